//! Thresholds for latching a source.

use std::time::Duration;

/// The thresholds of learning, the same for all streams of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Packets of one SSRC that show continuity.
    pub packets: u32,
    /// Minimum time that these packets must span.
    pub guard: Duration,
    /// Packets and time of the shorter run, for a source at the signalled address and port while no other source at a signalled address
    /// sends. Never longer than the full run.
    pub port_packets: u32,
    pub port_guard: Duration,
    /// Longest pause of a steady source. A source with longer pauses can be a party, but gives way to a steady one.
    pub max_gap: Duration,
    /// Largest step of the sequence number within a run.
    pub max_step: u16,
    /// How far a sequence number may fall behind (reordering) without ending a run. Such a packet does not count.
    pub max_reorder: u16,
    /// Packets that make another source a rival. A port scanner touches each port too rarely.
    pub rival_packets: u32,
    /// How long a rival counts after its last packet.
    pub contest_hold: Duration,
    /// How long a source can be contested after it was latched and after the answer.
    pub probation: Duration,
    /// How long the old source is not latched after signalling has moved the party.
    pub quarantine: Duration,
    /// Longest time for which the stream of the port's previous call is kept out.
    pub former_hold: Duration,
    /// How long after signalling a party may change to an unknown source.
    pub signalling_window: Duration,
    /// Silence of the old source that this change needs.
    pub signalling_silence: Duration,
    /// How long media is sent to a source that is not latched, after its last packet.
    pub tentative_hold: Duration,
    /// Consecutive packets that make a NAT rebinding.
    pub rebind_packets: u32,
    /// Silence of the old source that a rebinding with continuing sequence numbers needs.
    pub rebind_silence: Duration,
    /// Silence of the old source that any other change needs.
    pub silence: Duration,
    /// How long rebindings are slow after one that was an injection.
    pub rebind_lockout: Duration,
    /// No relay takes a contested stream: among unknown sources the first latched one stays.
    pub last_resort: bool,
    /// Most candidates of one stream; the weakest is replaced.
    pub candidates: usize,
}

impl Default for Policy {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            packets: 5,
            guard: ms(80),
            port_packets: 3,
            port_guard: ms(30),
            max_gap: ms(300),
            max_step: 1000,
            max_reorder: 100,
            rival_packets: 3,
            contest_hold: ms(2000),
            probation: ms(5000),
            quarantine: ms(3000),
            former_hold: ms(30_000),
            signalling_window: ms(10_000),
            signalling_silence: ms(300),
            tentative_hold: ms(15_000),
            rebind_packets: 3,
            rebind_silence: ms(50),
            silence: ms(1000),
            rebind_lockout: ms(60_000),
            last_resort: false,
            candidates: 32,
        }
    }
}
