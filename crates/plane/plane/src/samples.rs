//! Sampled streams, for a target that does not count on every relay entry (p4/include/counters.p4). Pure.
//!
//! A chip has registers for some thousand streams. Streams take them when they are offloaded, until all are in use.

use shunt_calls::Counters;
use shunt_net::FiveTuple;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// The sampled streams, their registers, and their lost packets.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    indices: HashMap<FiveTuple, u32>,
    free: VecDeque<u32>,
    /// Changes to write: streams to count, and streams to stop counting.
    wanted: BTreeMap<FiveTuple, bool>,
    /// The latest sum of a stream's register, and the packets lost since the first reading.
    losses: HashMap<FiveTuple, (u16, u64)>,
}

/// A change to write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) count: Vec<(FiveTuple, u32)>,
    pub(crate) leave: Vec<FiveTuple>,
}

impl Samples {
    /// Starts with the streams that a target counts. Of two streams with one register the second is removed, and so is a stream without
    /// one.
    pub(crate) fn adopt(room: u32, found: Vec<(FiveTuple, u32)>) -> Self {
        let mut made = Self::default();
        let mut used = HashSet::new();
        for (key, index) in found {
            if index < room && used.insert(index) {
                made.indices.insert(key, index);
            } else {
                made.wanted.insert(key, false);
            }
        }
        made.free = (0..room).filter(|index| !used.contains(index)).collect();
        made
    }

    /// Counts this stream if a register is free.
    pub(crate) fn want(&mut self, key: FiveTuple) {
        if self.wanted.get(&key) == Some(&false) || !self.indices.contains_key(&key) {
            self.wanted.insert(key, true);
        }
    }

    /// Stops counting a stream whose entry is removed.
    pub(crate) fn leave(&mut self, key: &FiveTuple) {
        if self.indices.contains_key(key) {
            self.wanted.insert(*key, false);
        } else {
            self.wanted.remove(key);
        }
    }

    /// Compares with `entries`, which are all entries of the table: removes streams without an entry, and counts others while registers are
    /// free. `changed`: whether an entry may differ by now.
    pub(crate) fn compare(&mut self, entries: &HashSet<FiveTuple>, changed: impl Fn(&FiveTuple) -> bool) {
        let gone: Vec<FiveTuple> = self
            .indices
            .keys()
            .filter(|key| !entries.contains(*key) && !changed(key))
            .copied()
            .collect();
        gone.iter().for_each(|key| self.leave(key));
        let mut room = self.free.len();
        for key in entries.iter().filter(|key| !changed(key)) {
            if room == 0 {
                break;
            }
            if !self.indices.contains_key(key) {
                self.want(*key);
                room -= 1;
            }
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns the next change. A stream without a free register is forgotten.
    pub(crate) fn take(&mut self, most: usize) -> Turn {
        let mut turn = Turn::default();
        for _ in 0..most {
            match self.wanted.pop_first() {
                None => break,
                Some((key, false)) => turn.leave.push(key),
                Some((key, true)) if !self.indices.contains_key(&key) => {
                    if let Some(index) = self.free.pop_front() {
                        self.indices.insert(key, index);
                        turn.count.push((key, index));
                    }
                }
                Some(_) => {}
            }
        }
        turn
    }

    /// Frees a stream's register, because it is not counted.
    pub(crate) fn release(&mut self, key: &FiveTuple) {
        self.losses.remove(key);
        if let Some(index) = self.indices.remove(key) {
            self.free.push_back(index);
        }
    }

    pub(crate) fn index(&self, key: &FiveTuple) -> Option<u32> {
        self.indices.get(key).copied()
    }

    /// Adds a stream's losses to its counters; `sum`: its register, modulo 2^16.
    ///
    /// The value before the stream, and the step of its first packet, mean nothing. Losses count from the first reading after a packet on.
    pub(crate) fn add_losses(&mut self, key: &FiveTuple, counters: &mut Counters, sum: u16) {
        if counters.packets == 0 {
            return;
        }
        let Some((last, lost)) = self.losses.get_mut(key) else {
            self.losses.insert(*key, (sum, 0));
            return;
        };
        let step = sum.wrapping_sub(*last) as i16;
        // A late packet reverses the loss that its absence added.
        *lost = lost.saturating_add_signed(step.into());
        *last = sum;
        counters.lost = Some(*lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_net::Endpoint;
    use std::net::Ipv4Addr;

    fn key(number: u16) -> FiveTuple {
        let end = |port| Endpoint::new(Ipv4Addr::LOCALHOST, port);
        FiveTuple::new(end(number), end(10_000))
    }

    #[test]
    fn registers_are_never_shared() {
        let mut samples = Samples::adopt(3, vec![(key(0), 1), (key(1), 1), (key(2), 9)]);
        assert_eq!(
            samples.take(10),
            Turn {
                count: vec![],
                leave: vec![key(1), key(2)]
            }
        );
        (3..6).for_each(|number| samples.want(key(number)));
        assert_eq!(samples.take(10).count, [(key(3), 0), (key(4), 2)]);
        assert!(!samples.is_waiting(), "the third finds no room");
        samples.leave(&key(3));
        samples.leave(&key(5));
        assert_eq!(samples.take(10).leave, [key(3)]);
        samples.release(&key(3));
        samples.want(key(3));
        samples.leave(&key(3));
        assert_eq!(samples.take(10), Turn::default(), "what came and went meanwhile is never written");
        samples.want(key(5));
        assert_eq!(samples.take(10).count, [(key(5), 0)]);
    }

    #[test]
    fn a_comparison_takes_up_what_is_not_counted_and_lets_go_what_is_gone() {
        let mut samples = Samples::adopt(2, vec![(key(0), 0), (key(1), 1)]);
        samples.compare(&HashSet::from([key(1), key(2)]), |key| key.src.port == 3);
        assert_eq!(samples.take(10).leave, [key(0)]);
        samples.release(&key(0));
        samples.compare(&HashSet::from([key(1), key(2), key(3)]), |key| key.src.port == 3);
        assert_eq!(samples.take(10).count, [(key(2), 0)]);
    }

    #[test]
    fn losses_count_from_the_first_reading_with_packets_and_wrap_around() {
        let mut samples = Samples::default();
        let mut read = |packets, sum| {
            let mut counters = Counters {
                packets,
                ..Counters::default()
            };
            samples.add_losses(&key(1), &mut counters, sum);
            counters.lost
        };
        assert_eq!(read(0, 4711), None);
        assert_eq!(read(5, 65_530), None);
        assert_eq!(read(6, 4), Some(10));
        assert_eq!(read(7, 1), Some(7), "three came late");
    }
}
