//! Transport-wide sequence numbers: when each packet was sent, and its arrival by the browser's feedback
//! (draft-holmer-rmcat-transport-wide-cc-extensions-01).

use crate::numbers::after;
use shunt_rtp::rtcp::Item;
use std::collections::VecDeque;
use std::time::Duration;

/// Most packets that wait for feedback, and how long.
const MOST: usize = 8192;
const LASTS: Duration = Duration::from_secs(5);
/// The reference time is in 64 ms and has 24 bits; deltas are in 250 µs.
const REFERENCE_US: i64 = 64_000;
const REFERENCES: i64 = 1 << 24;
const DELTA_US: i64 = 250;

/// A sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    pub at: Duration,
    pub octets: usize,
    /// Its probe.
    pub probe: Option<u32>,
}

/// Arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub sent: Departure,
    /// In the browser's clock, µs; `None` if it had not arrived.
    pub arrived: Option<i64>,
}

/// Sent packets without a report.
#[derive(Clone, Debug, Default)]
pub struct Departures {
    waiting: VecDeque<Option<Departure>>,
    /// The number of the next packet, extended.
    next: i64,
    /// The last reference time, extended.
    reference: Option<i64>,
}

impl Departures {
    /// Returns the sequence number of the next packet.
    #[must_use]
    pub fn next(&self) -> u16 {
        crate::numbers::low(self.next)
    }

    /// Records that the packet with the next number is sent.
    pub fn sent(&mut self, departure: Departure) {
        if self.waiting.len() == MOST {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Some(departure));
        self.next += 1;
    }

    /// Processes feedback. Returns each packet that is reported for the first time, in the order of sending.
    pub fn feedback(&mut self, item: &Item<'_>, outcomes: &mut Vec<Outcome>) {
        outcomes.clear();
        self.read(item, outcomes);
        if let Some(last) = outcomes.last() {
            while self.waiting.front().is_some_and(|first| is_over(*first, last.sent.at)) {
                self.waiting.pop_front();
            }
        }
    }

    fn read(&mut self, item: &Item<'_>, outcomes: &mut Vec<Outcome>) {
        let Some(head) = item.twcc() else { return };
        let Some(mut rest) = item.bytes.get(20..) else { return };
        let reference = i64::from(head.reference_time);
        let reference = self.reference.map_or(reference, |before| {
            let step = (reference - before).rem_euclid(REFERENCES);
            before + if step >= REFERENCES / 2 { step - REFERENCES } else { step }
        });
        let mut symbols = Vec::with_capacity(usize::from(head.packets));
        while symbols.len() < usize::from(head.packets) {
            let Some((chunk, tail)) = rest.split_first_chunk::<2>() else {
                return;
            };
            rest = tail;
            let left = usize::from(head.packets) - symbols.len();
            unpack(u16::from_be_bytes(*chunk), left, &mut symbols);
        }
        self.reference = Some(reference);
        let first = self.next - 1 + after(head.base_sequence, self.next - 1);
        let mut clock = reference * REFERENCE_US;
        for (number, symbol) in (first..).zip(symbols) {
            let arrived = match symbol {
                1 => {
                    let Some((delta, tail)) = rest.split_first() else { return };
                    rest = tail;
                    clock += i64::from(*delta) * DELTA_US;
                    Some(clock)
                }
                2 => {
                    let Some((delta, tail)) = rest.split_first_chunk::<2>() else {
                        return;
                    };
                    rest = tail;
                    clock += i64::from(i16::from_be_bytes(*delta)) * DELTA_US;
                    Some(clock)
                }
                _ => None,
            };
            if let Some(sent) = self.take(number) {
                outcomes.push(Outcome { sent, arrived });
            }
        }
    }

    fn take(&mut self, number: i64) -> Option<Departure> {
        let oldest = self.next - i64::try_from(self.waiting.len()).ok()?;
        let at = usize::try_from(number - oldest).ok()?;
        self.waiting.get_mut(at)?.take()
    }
}

fn is_over(departure: Option<Departure>, now: Duration) -> bool {
    departure.is_none_or(|departure| now.saturating_sub(departure.at) > LASTS)
}

/// Returns the statuses of a chunk (sections 3.1.3 and 3.1.4): 0 not received, 1 with a small delta, 2 with a large one.
fn unpack(chunk: u16, most: usize, symbols: &mut Vec<u8>) {
    // Two bits each.
    #[allow(clippy::cast_possible_truncation)]
    let two = |shift: u16| (chunk >> shift & 3) as u8;
    if chunk & 0x8000 == 0 {
        let run = usize::from(chunk & 0x1FFF).min(most);
        symbols.extend(std::iter::repeat_n(two(13), run));
    } else if chunk & 0x4000 == 0 {
        symbols.extend((0..14u16).rev().take(most).map(|bit| u8::from(chunk >> bit & 1 != 0)));
    } else {
        symbols.extend((0..7u16).rev().take(most).map(|at| two(2 * at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shunt_rtp::rtcp::walk;

    /// Writes feedback on packets from `base` on, as libwebrtc does: arrivals in units of 250 µs from the reference time.
    fn feedback(base: u16, reference: u32, arrivals: &[Option<i16>]) -> Vec<u8> {
        let mut out = vec![0x8F, 205, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        out.extend_from_slice(&base.to_be_bytes());
        out.extend_from_slice(&u16::try_from(arrivals.len()).unwrap().to_be_bytes());
        out.extend_from_slice(&(reference << 8).to_be_bytes());
        for chunk in arrivals.chunks(7) {
            let mut word = 0xC000u16;
            for (at, arrival) in chunk.iter().enumerate() {
                let symbol = match arrival {
                    None => 0,
                    Some(delta) if (0..256).contains(delta) => 1,
                    Some(_) => 2,
                };
                word |= symbol << (12 - 2 * at);
            }
            out.extend_from_slice(&word.to_be_bytes());
        }
        for delta in arrivals.iter().flatten() {
            match u8::try_from(*delta) {
                Ok(delta) => out.push(delta),
                Err(_) => out.extend_from_slice(&delta.to_be_bytes()),
            }
        }
        while out.len() % 4 != 0 {
            out.push(0);
        }
        let words = u16::try_from(out.len() / 4 - 1).unwrap();
        out[2..4].copy_from_slice(&words.to_be_bytes());
        out
    }

    fn departure(ms: u64) -> Departure {
        Departure {
            at: Duration::from_millis(ms),
            octets: 100,
            probe: None,
        }
    }

    fn outcomes(departures: &mut Departures, packet: &[u8]) -> Vec<(u64, Option<i64>)> {
        let mut found = Vec::new();
        departures.feedback(&walk(packet).next().unwrap().unwrap(), &mut found);
        found
            .iter()
            .map(|one| (u64::try_from(one.sent.at.as_millis()).unwrap(), one.arrived))
            .collect()
    }

    #[test]
    fn feedback_is_matched_with_what_was_sent() {
        let mut departures = Departures::default();
        for ms in 0..10 {
            assert_eq!(departures.next(), u16::try_from(ms).unwrap());
            departures.sent(departure(ms));
        }
        let packet = feedback(2, 10, &[Some(4), None, Some(300), Some(-8)]);
        let due = [(2, Some(641_000)), (3, None), (4, Some(716_000)), (5, Some(714_000))];
        assert_eq!(outcomes(&mut departures, &packet), due);
        assert_eq!(outcomes(&mut departures, &packet), [], "it was told before");
    }

    #[test]
    fn numbers_and_reference_times_wrap() {
        let mut departures = Departures::default();
        for number in 0..65_540u64 {
            departures.sent(departure(number / 20));
        }
        let packet = feedback(65_535, 0x7F_FFFF, &[Some(0), Some(0)]);
        let before = outcomes(&mut departures, &packet);
        let packet = feedback(1, 0x80_0000, &[Some(0)]);
        let later = outcomes(&mut departures, &packet);
        assert_eq!(later[0].1.unwrap() - before[1].1.unwrap(), 64_000);
    }

    proptest! {
        #[test]
        fn any_feedback_is_read(
            base in any::<u16>(),
            arrivals in proptest::collection::vec(proptest::option::of(any::<i16>()), 1..300),
            cut in 0usize..64,
        ) {
            let mut departures = Departures::default();
            for number in 0..70_000u64 {
                departures.sent(departure(number / 100));
            }
            let mut packet = feedback(base, 7, &arrivals);
            let whole = packet.len();
            packet.truncate((whole - cut.min(whole - 20)) / 4 * 4);
            let words = u16::try_from(packet.len() / 4 - 1).unwrap();
            packet[2..4].copy_from_slice(&words.to_be_bytes());
            let mut found = Vec::new();
            departures.feedback(&walk(&packet).next().unwrap().unwrap(), &mut found);
            prop_assert!(found.len() <= arrivals.len());
            let lost = arrivals.iter().filter(|one| one.is_none()).count();
            prop_assert!(found.iter().filter(|one| one.arrived.is_none()).count() <= lost);
        }

        #[test]
        fn any_octets_are_read(octets in proptest::collection::vec(any::<u8>(), 16..200)) {
            let mut departures = Departures::default();
            for number in 0..500u64 {
                departures.sent(departure(number));
            }
            let mut packet = vec![0x8F, 205, 0, 0, 0, 0, 0, 1];
            packet.extend(octets);
            packet.truncate(packet.len() / 4 * 4);
            let words = u16::try_from(packet.len() / 4 - 1).unwrap();
            packet[2..4].copy_from_slice(&words.to_be_bytes());
            let mut found = Vec::new();
            for item in walk(&packet).flatten() {
                departures.feedback(&item, &mut found);
            }
            prop_assert!(found.len() <= 500);
        }
    }
}
