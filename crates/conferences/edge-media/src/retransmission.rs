//! Recently sent packets of one stream, for retransmission to a browser (NACK, RFC 4585; RTX, RFC 4588).

use crate::numbers::after;
use std::time::Duration;

/// Number of kept packets; a power of two.
const KEPT: u64 = 1024;
/// How long packets are kept.
const LASTS: Duration = Duration::from_secs(3);
/// Largest share of retransmissions in the sent octets, and octets allowed at once.
const SHARE: f64 = 0.5;
const BURST: f64 = 64.0 * 1024.0;
/// Interval at which the memory of old packets is freed: several neighbouring ones at a time.
const RECLAIM: Duration = Duration::from_millis(100);
/// Most spare buffers.
const SPARE: usize = 32;

/// A packet without the parts of a single transmission: its transport sequence number and the time of sending.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub marker: bool,
    pub payload_type: u8,
    pub timestamp: u32,
    /// Header extensions, each as id, length and octets; then the payload.
    octets: Vec<u8>,
    elements: usize,
}

impl Kept {
    /// Clears the content. The memory stays.
    pub fn clear(&mut self) {
        self.octets.clear();
        self.elements = 0;
    }

    /// Adds a header extension of at most 255 octets; longer ones are omitted. Add all of them before the payload.
    pub fn element(&mut self, id: u8, data: &[u8]) {
        if let Ok(length) = u8::try_from(data.len()) {
            self.octets.extend_from_slice(&[id, length]);
            self.octets.extend_from_slice(data);
            self.elements = self.octets.len();
        }
    }

    pub fn set_payload(&mut self, payload: &[u8]) {
        self.octets.truncate(self.elements);
        self.octets.extend_from_slice(payload);
    }

    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.octets[self.elements..]
    }

    pub fn elements(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &self.octets[..self.elements];
        std::iter::from_fn(move || {
            let [id, length, tail @ ..] = rest else { return None };
            let (data, next) = tail.split_at_checked(usize::from(*length))?;
            rest = next;
            Some((*id, data))
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    sequence: Option<u64>,
    stored: Duration,
    again: Option<Duration>,
    packet: Kept,
}

/// The packets of one stream by extended sequence number.
#[derive(Clone, Debug)]
pub struct Retransmissions {
    slots: Vec<Slot>,
    highest: u64,
    /// Numbers below are too old for retransmission, and their memory is in other use.
    oldest: u64,
    /// When that is checked next.
    reclaim: Duration,
    spare: Vec<Vec<u8>>,
    /// Octets that may be retransmitted now.
    allowed: f64,
}

impl Default for Retransmissions {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            highest: 0,
            oldest: 0,
            reclaim: Duration::ZERO,
            spare: Vec::new(),
            allowed: BURST,
        }
    }
}

impl Retransmissions {
    fn place(sequence: u64) -> usize {
        // Less than KEPT.
        #[allow(clippy::cast_possible_truncation)]
        let at = (sequence % KEPT) as usize;
        at
    }

    /// Returns a place for a packet of this many octets, cleared.
    pub fn store(&mut self, now: Duration, sequence: u64, octets: usize) -> &mut Kept {
        let at = Self::place(sequence);
        if self.slots.is_empty() {
            self.oldest = sequence;
        }
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        self.highest = self.highest.max(sequence);
        self.reclaim(now);
        // Octets of a packet.
        #[allow(clippy::cast_precision_loss)]
        let earned = octets as f64 * SHARE;
        self.allowed = (self.allowed + earned).min(BURST);
        let slot = &mut self.slots[at];
        (slot.sequence, slot.stored, slot.again) = (Some(sequence), now, None);
        if slot.packet.octets.capacity() == 0 {
            slot.packet.octets = self.spare.pop().unwrap_or_default();
        }
        slot.packet.clear();
        &mut slot.packet
    }

    /// Frees the memory of packets that are too old, so that only the packets of the keeping time use memory.
    fn reclaim(&mut self, now: Duration) {
        if now < self.reclaim {
            return;
        }
        self.reclaim = now + RECLAIM;
        // A restarted source may be far ahead: no kept packet is further back.
        self.oldest = self.oldest.max(self.highest.saturating_sub(KEPT));
        while self.oldest < self.highest {
            let place = Self::place(self.oldest);
            if let Some(slot) = self.slots.get_mut(place).filter(|slot| slot.sequence == Some(self.oldest)) {
                if now.saturating_sub(slot.stored) < LASTS {
                    return;
                }
                let octets = std::mem::take(&mut slot.packet.octets);
                (slot.sequence, slot.packet.elements) = (None, 0);
                if self.spare.len() < SPARE {
                    self.spare.push(octets);
                }
            }
            self.oldest += 1;
        }
    }

    /// Returns the packet with a number, if it is kept.
    #[must_use]
    pub fn get(&self, sequence: u64) -> Option<&Kept> {
        let slot = self.slots.get(Self::place(sequence))?;
        (slot.sequence == Some(sequence)).then_some(&slot.packet)
    }

    /// Returns the latest packet with a payload of at least this many octets, among the last few.
    #[must_use]
    pub fn latest(&self, octets: usize) -> Option<u64> {
        let numbers = self.highest.saturating_sub(16)..=self.highest;
        numbers
            .rev()
            .find(|number| self.get(*number).is_some_and(|packet| packet.payload().len() >= octets))
    }

    /// Handles a browser's request. Returns the packet's extended number if it must be retransmitted. A repeated request before the answer
    /// can have arrived is ignored, and so are old packets and more than the allowed share.
    pub fn asked(&mut self, now: Duration, sequence: u16, rtt: Duration) -> Option<u64> {
        let highest = i64::try_from(self.highest).ok()?;
        let number = u64::try_from(highest + after(sequence, highest)).ok()?;
        let slot = self.slots.get_mut(Self::place(number))?;
        let fresh = slot.sequence == Some(number) && now.saturating_sub(slot.stored) < LASTS;
        let waits = slot.again.is_some_and(|again| now.saturating_sub(again) < rtt);
        if !fresh || waits || self.allowed < 0.0 {
            return None;
        }
        slot.again = Some(now);
        // Octets of a packet.
        #[allow(clippy::cast_precision_loss)]
        let spent = slot.packet.octets.len() as f64;
        self.allowed -= spent;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn filled(numbers: std::ops::Range<u64>) -> Retransmissions {
        let mut cache = Retransmissions::default();
        for number in numbers {
            let packet = cache.store(ms(number), number, 1000);
            packet.element(3, b"mid");
            packet.set_payload(&number.to_be_bytes());
        }
        cache
    }

    #[test]
    fn a_packet_is_answered_once_in_a_round_trip() {
        let mut cache = filled(65_000..66_000);
        // 65,700 is sequence number 164 after the number wrapped.
        assert_eq!(cache.asked(ms(66_000), 164, ms(50)), Some(65_700));
        assert_eq!(cache.asked(ms(66_040), 164, ms(50)), None, "the answer is on its way");
        assert_eq!(cache.asked(ms(66_050), 164, ms(50)), Some(65_700));
        let packet = cache.get(65_700).unwrap();
        assert_eq!(packet.payload(), 65_700u64.to_be_bytes());
        assert_eq!(packet.elements().collect::<Vec<_>>(), [(3, &b"mid"[..])]);
    }

    #[test]
    fn what_is_old_or_was_never_sent_is_not_answered() {
        let mut cache = filled(1000..3000);
        assert_eq!(cache.asked(ms(3000), 1500, ms(50)), None, "its place was taken");
        assert_eq!(cache.asked(ms(3000), 3001, ms(50)), None, "it was not sent yet");
        assert_eq!(cache.asked(ms(3000), 2999, ms(50)), Some(2999));
        assert_eq!(cache.asked(ms(6000), 2999, ms(50)), None, "nobody waits for it any more");
    }

    #[test]
    fn a_slow_stream_keeps_no_more_than_its_last_seconds() {
        let mut cache = Retransmissions::default();
        for number in 1000..9000u64 {
            cache.store(ms(10 * number), number, 1000).set_payload(&[0; 1000]);
        }
        let last = ms(10 * 9000);
        assert!(
            (8701..9000).all(|number| cache.get(number).is_some()),
            "3 s at 100 packets a second"
        );
        assert_eq!(cache.asked(last, 8690, ms(50)), None);
        let held: usize = cache.slots.iter().map(|slot| slot.packet.octets.capacity()).sum();
        let spare: usize = cache.spare.iter().map(Vec::capacity).sum();
        assert!(held + spare <= (310 + SPARE) * 1000, "{held} octets, and {spare} to spare");
    }

    #[test]
    fn what_is_sent_again_is_a_share_of_what_is_sent() {
        let mut cache = Retransmissions::default();
        let mut again = 0;
        for number in 1000..9000u64 {
            cache.store(ms(number), number, 1000).set_payload(&[0; 1000]);
            // All numbers are requested twice.
            for sequence in [number, number - 1] {
                again += usize::from(cache.asked(ms(number), u16::try_from(sequence).unwrap(), ms(0)).is_some());
            }
        }
        assert!((4000..4200).contains(&again), "{again} of 8,000");
    }

    proptest! {
        #[test]
        fn any_request_is_answered_by_that_packet(first in 1000u64..200_000, asked in proptest::collection::vec(any::<u16>(), 1..50)) {
            let mut cache = filled(first..first + 1500);
            for sequence in asked {
                if let Some(number) = cache.asked(ms(first + 1500), sequence, ms(50)) {
                    prop_assert_eq!(number & 0xFFFF, u64::from(sequence));
                    prop_assert!(cache.get(number).unwrap().payload() == number.to_be_bytes());
                }
            }
        }
    }
}
