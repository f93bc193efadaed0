//! Lists of copies: their layout in the kernel's words, and their allocation.
//!
//! A list is a head, a word for each output interface, and a word for each copy, ordered by interface and then as in the tree. It never
//! changes after a stream names it.

use crate::buddy::Buddy;
use crate::checksum::Sums;
use crate::fault::{Fault, Result};
use shunt_abi::replicate::{conference_size, list_device, list_element, list_head};
use shunt_xdp::{Plain, Shared, bytes_of, from_bytes};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Most copies of one packet. A driver's queue must accept them at once.
pub const MAX_COPIES: usize = 512;
const DEVICES: usize = conference_size::DEVICES.0 as usize;

/// The output interfaces of a list and the number of copies by each; ascending by interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Composition {
    devices: [(u32, u32); DEVICES],
    count: usize,
}

impl Composition {
    /// Interfaces and numbers of copies.
    pub fn devices(&self) -> &[(u32, u32)] {
        &self.devices[..self.count]
    }

    /// Returns the number of all copies.
    pub fn copies(&self) -> u32 {
        self.devices().iter().map(|(_, copies)| copies).sum()
    }

    fn push(&mut self, ifindex: u32, copies: u32) -> bool {
        let Some(place) = self.devices.get_mut(self.count) else {
            return false;
        };
        *place = (ifindex, copies);
        self.count += 1;
        true
    }
}

/// One copy of a packet, before it is in a list.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Its output interface.
    pub ifindex: u32,
    /// Its row of `c_copies`.
    pub copy: u32,
    /// Sums over its addresses and ports; `None` for IPv6.
    pub after: Option<Sums>,
}

/// A list in the words. `at` 0: no copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List {
    pub at: u32,
    pub words: u32,
    /// Its row of `c_outputs`.
    pub outputs: u16,
}

fn word<T: Plain>(value: &T) -> u64 {
    from_bytes(bytes_of(value)).unwrap_or_default()
}

fn from_word<T: Plain + Default>(word: u64) -> T {
    from_bytes(bytes_of(&word)).unwrap_or_default()
}

/// Writes the words of a list with these copies to `words`; the row of `c_outputs` in the first is 0. `before`: sums of the stream's
/// packets.
///
/// # Errors
/// `NoSpace` for too many copies or interfaces.
pub fn compose(elements: &mut [Element], before: Option<Sums>, words: &mut Vec<u64>) -> Result<Composition> {
    if elements.len() > MAX_COPIES {
        let text = format!("A packet has at most {MAX_COPIES} copies, not {}", elements.len());
        return Err(Fault::NoSpace(text));
    }
    elements.sort_by_key(|element| element.ifindex);
    let mut composition = Composition::default();
    let mut groups = 0;
    for group in elements.chunk_by(|one, next| one.ifindex == next.ifindex) {
        composition.push(group[0].ifindex, group.len() as u32);
        groups += 1;
    }
    if groups > DEVICES {
        let text = format!("The copies of a packet leave by at most {DEVICES} interfaces, not {groups}");
        return Err(Fault::NoSpace(text));
    }
    words.clear();
    words.push(word(&head(&composition, 0)));
    let mut first = 0;
    for (ifindex, copies) in composition.devices() {
        words.push(word(&list_device { ifindex: *ifindex, first }));
        first += copies;
    }
    words.extend(elements.iter().map(|element| {
        let (ip, udp) = before
            .zip(element.after)
            .map_or((0, 0), |(before, after)| before.changes_to(&after));
        word(&list_element {
            copy: element.copy,
            ip_change: ip.to_be(),
            udp_change: udp.to_be(),
        })
    }));
    Ok(composition)
}

fn head(composition: &Composition, outputs: u16) -> list_head {
    list_head {
        copies: composition.copies() as u16,
        outputs,
        devices: composition.count as u16,
        unused: 0,
    }
}

/// The words of all lists, and of other records of user space.
pub struct Lists {
    words: Shared<u64>,
    room: Buddy,
}

impl Lists {
    /// Makes an empty allocator on the map `c_lists`; `None` if its size is no power of two.
    pub fn new(map: impl AsFd, size: u32) -> shunt_xdp::Result<Option<Self>> {
        let words = Shared::map(map, size as usize)?;
        Ok(Buddy::new(size).map(|room| Self { words, room }))
    }

    pub fn room(&self) -> &Buddy {
        &self.room
    }

    /// Allocates this many words.
    pub fn take(&mut self, words: u32) -> Option<u32> {
        self.room.take(words)
    }

    pub fn give(&mut self, at: u32, words: u32) {
        self.room.give(at, words);
    }

    /// Takes over words that a former process has written.
    pub fn claim(&mut self, at: u32, words: u32) -> bool {
        self.room.claim(at, words)
    }

    /// Writes words that no program reads yet.
    pub fn write(&self, at: u32, words: &[u64]) {
        for (at, word) in (at as usize..).zip(words) {
            self.words.u64_at(at, 0).store(*word, Ordering::Relaxed);
        }
    }

    /// Writes a list's words with its row of `c_outputs`.
    pub fn write_list(&self, at: u32, words: &[u64], composition: &Composition, outputs: u16) {
        self.write(at, words);
        self.write(at, &[word(&head(composition, outputs))]);
    }

    /// Switches packets to another list, by the word that locates it.
    pub fn turn(&self, at: u32, list: u32) {
        self.words.u64_at(at as usize, 0).store(list.into(), Ordering::Release);
    }

    pub fn read(&self, at: u32) -> Option<u64> {
        let at = at as usize;
        (at < self.words.len()).then(|| self.words.u64_at(at, 0).load(Ordering::Relaxed))
    }

    /// Returns whether a list has these words, except its row of `c_outputs`.
    pub fn holds(&self, list: &List, words: &[u64]) -> bool {
        let same = |n: usize, wanted: u64| self.read(list.at + n as u32) == Some(wanted);
        list.words as usize == words.len()
            && self.read(list.at).is_some_and(|head| {
                let mut head: list_head = from_word(head);
                head.outputs = 0;
                word(&head) == words[0]
            })
            && words.iter().enumerate().skip(1).all(|(n, wanted)| same(n, *wanted))
    }

    /// Takes over the list at a position; `None` if there is none, or its words are in use.
    pub fn adopt(&mut self, at: u32) -> Option<(List, Composition)> {
        let head: list_head = from_word(self.read(at)?);
        let (copies, devices) = (u32::from(head.copies), u32::from(head.devices));
        let words = 1 + devices + copies;
        if devices as usize > DEVICES || devices == 0 || copies as usize > MAX_COPIES || !self.claim(at, words) {
            return None;
        }
        let firsts: Vec<list_device> = (1..=devices).filter_map(|n| Some(from_word(self.read(at + n)?))).collect();
        let mut composition = Composition::default();
        let mut ends = firsts.iter().skip(1).map(|next| next.first).chain([copies]);
        for device in &firsts {
            let count = ends.next()?.checked_sub(device.first);
            let Some(count) = count.filter(|count| *count > 0) else {
                self.give(at, words);
                return None;
            };
            composition.push(device.ifindex, count);
        }
        let outputs = head.outputs;
        Some((List { at, words, outputs }, composition))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shunt_net::Endpoint;

    proptest! {
        /// Copies are ordered by interface, and for each interface in the given order. The device words locate the first copy of each.
        #[test]
        fn a_list_has_every_copy_at_its_interfaces_place(interfaces in proptest::collection::vec(1u32..7, 1..40)) {
            let mut elements: Vec<Element> = interfaces
                .iter()
                .enumerate()
                .map(|(n, ifindex)| Element { ifindex: *ifindex, copy: n as u32 + 1, after: None })
                .collect();
            let mut different = interfaces.clone();
            different.sort_unstable();
            different.dedup();
            let mut words = vec![7; 3];
            let composed = compose(&mut elements, None, &mut words);
            if different.len() > DEVICES {
                prop_assert!(matches!(composed, Err(Fault::NoSpace(_))));
                return Ok(());
            }
            let composition = composed.unwrap();
            let head: list_head = from_word(words[0]);
            prop_assert_eq!((usize::from(head.copies), usize::from(head.devices)), (interfaces.len(), different.len()));
            let mut found = Vec::new();
            for (n, ifindex) in different.iter().enumerate() {
                let device: list_device = from_word(words[1 + n]);
                prop_assert_eq!(device.ifindex, *ifindex);
                let expected: Vec<u32> =
                    interfaces.iter().enumerate().filter(|(_, one)| *one == ifindex).map(|(n, _)| n as u32 + 1).collect();
                let from = 1 + different.len() + device.first as usize;
                let copies: Vec<u32> =
                    words[from..from + expected.len()].iter().map(|word| from_word::<list_element>(*word).copy).collect();
                prop_assert_eq!(&copies, &expected);
                prop_assert_eq!(composition.devices()[n], (*ifindex, expected.len() as u32));
                found.extend(copies);
            }
            prop_assert_eq!(found.len(), words.len() - 1 - different.len());
        }
    }

    #[test]
    fn more_than_512_copies_are_rejected() {
        let element = Element {
            ifindex: 3,
            copy: 1,
            after: None,
        };
        let mut words = Vec::new();
        assert!(compose(&mut vec![element; 512], None, &mut words).is_ok());
        let fault = compose(&mut vec![element; 513], None, &mut words).unwrap_err();
        assert_eq!(fault.to_string(), "A packet has at most 512 copies, not 513");
    }

    #[test]
    fn only_copies_from_ipv4_to_ipv4_have_changes_of_sums() {
        let ends = [Endpoint::new([10, 0, 0, 1], 7), Endpoint::new([10, 0, 0, 2], 8)];
        let sums = Sums::of(&ends[0], &ends[1]);
        let moved = Sums::of(&ends[0], &Endpoint::new([10, 0, 0, 3], 8));
        let mut words = Vec::new();
        let changes = |words: &[u64]| {
            let element: list_element = from_word(words[2]);
            (u16::from_be(element.ip_change), u16::from_be(element.udp_change))
        };
        for (before, after, expected) in [(sums, moved, (1, 1)), (None, sums, (0, 0)), (sums, None, (0, 0))] {
            let mut elements = [Element {
                ifindex: 3,
                copy: 1,
                after,
            }];
            compose(&mut elements, before, &mut words).unwrap();
            assert_eq!(changes(&words), expected);
        }
    }
}
