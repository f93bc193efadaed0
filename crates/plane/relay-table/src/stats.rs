//! The programs' counters of a stream: packets, bytes, idle time, and reception by RFC 3550.

use shunt_abi::relay::{counter, detail, rtp_state, slot};

/// The clock of the counters: the kernel's present tick, modulo 2^32, and its length in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub tick: u32,
    pub tick_ms: f64,
}

/// Reception of an RTP stream (RFC 3550 A.3 and A.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// Expected minus received packets; duplicates count as received. Never below 0.
    pub lost: u32,
    pub reordered: u32,
    pub duplicates: u32,
    /// Interarrival jitter in microseconds, with the clock of the payload type.
    pub jitter_us: u32,
    pub ssrc: u32,
}

/// Counters of an entry since it was installed or they were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    pub packets: u64,
    pub bytes: u64,
    /// Milliseconds since the last packet, or since the installation.
    pub idle_ms: u64,
    /// `None` until the first RTP packet.
    pub reception: Option<Reception>,
    /// Packets to the relay port from other sources.
    pub source_mismatch: u32,
}

/// A tick this far ahead counts as the present one, because the programs count meanwhile.
const JUST_AHEAD: u32 = 0xffff_ff00;
/// The jitter of a record is 16 times the estimate, in units of 1024 ns.
const JITTER_US: f64 = 1.024 / 16.0;

/// Returns the milliseconds from a tick to now.
pub fn idle_ms(last: u32, clock: Clock) -> u64 {
    let ticks = clock.tick.wrapping_sub(last);
    if ticks > JUST_AHEAD {
        0
    } else {
        (f64::from(ticks) * clock.tick_ms) as u64
    }
}

/// Returns the statistics in a slot and its detail.
#[must_use]
pub fn stats_of(slot: &slot, detail: &detail, source_mismatch: u32, clock: Clock) -> StreamStats {
    let received = slot.received.wrapping_add(u32::from(slot.max_seq)); // modulo 2^32, as the program counts
    let reception = (u32::from(slot.rtp_state) & rtp_state::RTP_STARTED.0 != 0).then(|| {
        let expected = i64::from(detail.cycles) + i64::from(slot.max_seq) - i64::from(detail.base_seq) + 1;
        let lost = (expected - i64::from(received)).max(0) + i64::from(detail.lost_prior);
        Reception {
            lost: u32::try_from(lost).unwrap_or(u32::MAX),
            reordered: detail.reordered,
            duplicates: detail.duplicates,
            jitter_us: (f64::from(detail.jitter) * JITTER_US) as u32,
            ssrc: u32::from_be(slot.ssrc),
        }
    });
    StreamStats {
        packets: (u64::from(detail.packets_high) << counter::COUNTER_BITS.0) + u64::from(slot.others.wrapping_add(received)),
        bytes: (u64::from(detail.bytes_high) << counter::COUNTER_BITS.0) + u64::from(slot.bytes),
        idle_ms: idle_ms(slot.last_jiffies, clock),
        reception,
        source_mismatch,
    }
}

/// Nanoseconds in one RTP timestamp unit for each payload type (RFC 3551 tables 4 and 5); dynamic ones have `dynamic_clock` Hz.
#[must_use]
pub fn tick_table(dynamic_clock: u32) -> [u32; 128] {
    std::array::from_fn(|payload_type| {
        let clock = match payload_type {
            6 => 16000,
            10 | 11 => 44100,
            14 | 25..=34 => 90000,
            16 => 11025,
            17 => 22050,
            96.. => dynamic_clock.max(1),
            _ => 8000,
        };
        (1_000_000_000 + clock / 2) / clock
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock { tick: 1000, tick_ms: 4.0 };

    #[test]
    fn a_tick_just_ahead_of_now_is_now() {
        assert_eq!(idle_ms(1000, CLOCK), 0);
        assert_eq!(idle_ms(1002, CLOCK), 0);
        assert_eq!(idle_ms(990, CLOCK), 40);
        assert_eq!(idle_ms(u32::MAX - 9, Clock { tick: 0, ..CLOCK }), 40);
    }

    #[test]
    fn nothing_is_said_of_reception_before_the_first_rtp_packet() {
        let slot = slot {
            others: 3,
            bytes: 90,
            last_jiffies: 1000,
            ..slot::default()
        };
        let stats = stats_of(&slot, &detail::default(), 2, CLOCK);
        assert_eq!(
            stats,
            StreamStats {
                packets: 3,
                bytes: 90,
                idle_ms: 0,
                reception: None,
                source_mismatch: 2
            }
        );
    }

    #[test]
    fn lost_is_expected_less_received_and_what_was_lost_before() {
        // Sequence numbers 10 to 19 over one wrap, eight of them received.
        let slot = slot {
            received: 8u32.wrapping_sub(19),
            max_seq: 19,
            rtp_state: 0x80,
            ..slot::default()
        };
        let detail = detail {
            cycles: 65536,
            base_seq: 10,
            lost_prior: 5,
            jitter: 1600,
            ..detail::default()
        };
        let reception = stats_of(&slot, &detail, 0, CLOCK).reception.unwrap_or_default();
        assert_eq!((reception.lost, reception.jitter_us), (65536 + 10 - 8 + 5, 102));
    }

    #[test]
    fn high_parts_count_in_units_of_two_to_the_31st() {
        let detail = detail {
            packets_high: 2,
            bytes_high: 3,
            ..detail::default()
        };
        let stats = stats_of(&slot::default(), &detail, 0, CLOCK);
        assert_eq!((stats.packets, stats.bytes), (2 << 31, 3 << 31));
    }

    #[test]
    fn payload_types_have_their_clocks() {
        let table = tick_table(48000);
        assert_eq!((table[0], table[26], table[96]), (125_000, 11_111, 20_833));
    }
}
