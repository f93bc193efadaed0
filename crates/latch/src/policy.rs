//! When a source is latched.

use std::time::Duration;

/// The thresholds of learning; the same for all streams of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Packets of one SSRC that show continuity.
    pub packets: u32,
    /// Over how long at least they have to come.
    pub guard: Duration,
    /// The shorter run of a source at the very address and port that signalling names, while nobody else at a named address sends: packets, and
    /// over how long at least they have to come. Never longer than the other run.
    pub port_packets: u32,
    pub port_guard: Duration,
    /// The longest pause of a source that sends steadily. A source that pauses longer is a party too, but gives way to one that sends steadily.
    pub max_gap: Duration,
    /// The largest step of the sequence number in a run.
    pub max_step: u16,
    /// How far a sequence number may be behind (reordering) without ending a run. It does not count.
    pub max_reorder: u16,
    /// The run that makes another source a rival. A spray touches each port too rarely.
    pub rival_packets: u32,
    /// How long a rival counts after its last packet.
    pub contest_hold: Duration,
    /// How long after it was latched, and after the answer, a source can be contested.
    pub probation: Duration,
    /// How long the old source is not latched after signalling has moved the party.
    pub quarantine: Duration,
    /// How long at most the stream of the call that had the port before is kept out.
    pub former_hold: Duration,
    /// How long after signalling a party may come from an unknown source.
    pub signalling_window: Duration,
    /// How long the old source must be silent for that.
    pub signalling_silence: Duration,
    /// How long after its last packet a source that is not latched is sent to.
    pub tentative_hold: Duration,
    /// Packets in sequence that make a NAT rebinding.
    pub rebind_packets: u32,
    /// How long the old source must be silent for a rebinding whose sequence numbers go on.
    pub rebind_silence: Duration,
    /// How long it must be silent for any other change of source.
    pub silence: Duration,
    /// How long a rebinding that went wrong makes the next one slow.
    pub rebind_lockout: Duration,
    /// There is nobody to leave a contested stream to: among unknown sources the one that was latched first stays.
    pub last_resort: bool,
    /// Sources that are told apart for one stream; the weakest makes room.
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
