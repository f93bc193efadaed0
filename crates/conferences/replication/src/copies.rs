//! Rewrites of copies by stream number and RID, and their records in the kernel's maps.

use crate::Counted;
use crate::checksum::Sums;
use crate::fault::{Fault, Result};
use crate::free::Free;
use crate::hops::Hops;
use crate::sequences::TARGETS;
use crate::streams::{MAX_NUMBER, address_of, address_words};
use shunt_abi::replicate::{conference_size, copy, copy_flag, copy_wide, payload_type};
use shunt_net::Endpoint;
use shunt_xdp::{Loaded, Shared};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

const NEXTHOP: usize = offset_of!(copy, nexthop);
const STATE: usize = offset_of!(copy, valid);
const COUNTERS: [usize; 3] = [offset_of!(copy, packets), offset_of!(copy, bytes), offset_of!(copy, dropped)];
const PRIOR: [usize; 2] = [offset_of!(copy, prior_packets), offset_of!(copy, prior_bytes)];
const OUT6: u8 = copy_flag::COPY_OUT6.0 as u8;
const RENUMBERED: u8 = copy_flag::COPY_RENUMBERED.0 as u8;
const MAPPED: u8 = copy_flag::COPY_PAYLOAD_TYPES.0 as u8;

/// Payload types that are rewritten in one copy.
pub const PAYLOAD_TYPES: usize = conference_size::PAYLOAD_TYPES.0 as usize;
/// The highest payload type (RFC 3550 section 5.1).
const MAX_PAYLOAD_TYPE: u8 = 127;

/// Bits of a record's field `valid`, which only user space reads.
const IN_FORCE: u8 = 1;
/// Another record of the same name has replaced this one and still needs its counters.
const FORMER: u8 = 2;

/// The parameters of `copy_to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    pub src: Endpoint,
    pub dst: Endpoint,
    /// Stored, but not used.
    pub nexthop: u16,
    /// The target that the receiver gets, 0 the lowest.
    pub target: u8,
    /// Row of the receiver's sequence numbers; 0: none.
    pub sequence_state: u32,
    pub cadence: u8,
    /// The sender's payload type and the receiver's. Two equal types are an unused pair.
    pub payload_types: [(u8, u8); PAYLOAD_TYPES],
}

impl Rewrite {
    /// Returns the pairs that change a type.
    fn mapped(&self) -> impl Iterator<Item = (u8, u8)> {
        self.payload_types.into_iter().filter(|(from, to)| from != to)
    }
}

/// A stream number and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub number: u32,
    pub rid: u16,
}

/// A record that is in force, or that programs may still read.
#[derive(Clone, Debug)]
pub struct Copy {
    pub name: Name,
    pub rewrite: Rewrite,
    /// Its row of the next-hop table.
    pub row: u16,
    /// Its output interface; 0: no route.
    pub ifindex: u32,
    pub sums: Option<Sums>,
    /// Replaced records of this name whose counters must still be added.
    former: Vec<u32>,
}

/// All rewrites. Their records are rows of `c_copies` and `c_wides`; row 0 is unused.
pub struct Copies {
    records: Shared<copy>,
    wides: Shared<copy_wide>,
    slab: Vec<Option<Copy>>,
    names: HashMap<u32, BTreeMap<u16, u32>>,
    count: usize,
    free: Free,
    capacity: u32,
}

impl Copies {
    /// Makes the table; `rows`: those of the maps.
    pub fn new(loaded: &Loaded, rows: u32) -> shunt_xdp::Result<Self> {
        Ok(Self {
            records: Shared::map(loaded.map("c_copies")?, rows as usize)?,
            wides: Shared::map(loaded.map("c_wides")?, rows as usize)?,
            slab: Vec::new(),
            names: HashMap::new(),
            count: 0,
            free: Free::new(1, rows),
            capacity: rows.saturating_sub(1),
        })
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of rows that have ever been used.
    pub fn rows(&self) -> usize {
        self.slab.len()
    }

    pub fn at(&self, index: u32) -> Option<&Copy> {
        self.slab.get(index as usize)?.as_ref()
    }

    pub fn names(&self) -> impl Iterator<Item = Name> {
        let of = |(number, rids): (&u32, &BTreeMap<u16, u32>)| {
            let number = *number;
            rids.keys().map(move |rid| Name { number, rid: *rid }).collect::<Vec<_>>()
        };
        self.names.iter().flat_map(of)
    }

    /// Returns the records in force of a stream number, by RID.
    pub fn of_number(&self, number: u32) -> Option<&BTreeMap<u16, u32>> {
        self.names.get(&number)
    }

    /// Returns the record in force.
    pub fn find(&self, name: Name) -> Option<u32> {
        self.names.get(&name.number)?.get(&name.rid).copied()
    }

    /// Returns the record in force.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn index(&self, name: Name) -> Result<u32> {
        self.find(name)
            .ok_or_else(|| Fault::NotFound("There is no rewrite for these copies".into()))
    }

    /// Checks a rewrite.
    ///
    /// # Errors
    /// `Invalid`, `NoSpace`.
    pub fn check(name: Name, rewrite: &Rewrite, sequence_states: u32) -> Result<()> {
        if rewrite.src.addr.is_ipv6() != rewrite.dst.addr.is_ipv6() {
            let text = "Source and destination of the copy are not both IPv4 or both IPv6";
            return Err(Fault::Invalid(text.into()));
        }
        if name.number > MAX_NUMBER {
            return Err(Fault::Invalid(format!("The number {} is not in 0..{MAX_NUMBER}", name.number)));
        }
        if rewrite.sequence_state > sequence_states {
            let text = format!(
                "There is room for {sequence_states} receivers with rewritten numbers, and the sequence state is {}",
                rewrite.sequence_state
            );
            return Err(Fault::NoSpace(text));
        }
        if rewrite.target >= TARGETS {
            let text = format!("The target {} is not in 0..{}", rewrite.target, TARGETS - 1);
            return Err(Fault::Invalid(text));
        }
        if let Some(wrong) = rewrite
            .payload_types
            .iter()
            .flat_map(|(from, to)| [from, to])
            .find(|one| **one > MAX_PAYLOAD_TYPE)
        {
            return Err(Fault::Invalid(format!("The payload type {wrong} is not in 0..{MAX_PAYLOAD_TYPE}")));
        }
        for (at, (from, _)) in rewrite.mapped().enumerate() {
            if rewrite.mapped().take(at).any(|(other, _)| other == from) {
                return Err(Fault::Invalid(format!("The payload type {from} is rewritten to two others")));
            }
        }
        Ok(())
    }

    /// Returns the records in use, including retired ones.
    pub fn used(&self) -> usize {
        self.capacity as usize - self.free.left()
    }

    pub fn has_room(&self) -> bool {
        self.free.left() > 0
    }

    /// Writes a record that no list names yet. `row`: of the next-hop table; `ifindex`: its interface.
    pub fn make(&mut self, name: Name, rewrite: Rewrite, row: u16, ifindex: u32) -> Option<u32> {
        let index = self.free.take()?;
        let v6 = rewrite.dst.addr.is_ipv6();
        let word = |addr| if v6 { 0 } else { address_words(addr)[0] };
        let record = copy {
            saddr: word(rewrite.src.addr),
            daddr: word(rewrite.dst.addr),
            sport: rewrite.src.port.to_be(),
            dport: rewrite.dst.port.to_be(),
            nexthop: row,
            flags: flags_of(&rewrite),
            number: name.number,
            rid: name.rid,
            given_nexthop: rewrite.nexthop,
            ..Default::default()
        };
        let wide = copy_wide {
            saddr: if v6 { address_words(rewrite.src.addr) } else { [0; 4] },
            daddr: if v6 { address_words(rewrite.dst.addr) } else { [0; 4] },
            receiver: rewrite.sequence_state,
            target: rewrite.target,
            cadence: rewrite.cadence,
            unused: 0,
            payload_types: rewrite.payload_types.map(|(from, to)| payload_type { from, to }),
        };
        self.records.store(index as usize, &record);
        self.wides.store(index as usize, &wide);
        self.hold(index, Copy::new(name, rewrite, row, ifindex));
        Some(index)
    }

    fn hold(&mut self, index: u32, copy: Copy) {
        let index = index as usize;
        if self.slab.len() <= index {
            self.slab.resize_with(index + 1, || None);
        }
        self.slab[index] = Some(copy);
    }

    fn put_state(&self, index: u32, state: u8) {
        self.records.u8_at(index as usize, STATE).store(state, Ordering::Release);
    }

    /// Makes lists use this record from now on. Returns the record of the same name that it replaces.
    pub fn name(&mut self, index: u32) -> Option<u32> {
        let name = self.at(index)?.name;
        let before = self.names.entry(name.number).or_default().insert(name.rid, index);
        self.count += usize::from(before.is_none());
        let former = before
            .and_then(|before| self.at(before))
            .map(|copy| copy.former.clone())
            .unwrap_or_default();
        if let Some(copy) = self.slab.get_mut(index as usize).and_then(Option::as_mut) {
            copy.former = former;
            copy.former.extend(before);
        }
        before
    }

    /// Makes lists use no record of this name from now on.
    pub fn unname(&mut self, name: Name) -> Option<u32> {
        let rids = self.names.get_mut(&name.number)?;
        let index = rids.remove(&name.rid);
        if rids.is_empty() {
            self.names.remove(&name.number);
        }
        self.count -= usize::from(index.is_some());
        index
    }

    /// Makes lists use this record again.
    pub fn rename(&mut self, index: u32) {
        let Some(name) = self.at(index).map(|copy| copy.name) else { return };
        let before = self.names.entry(name.number).or_default().insert(name.rid, index);
        self.count += usize::from(before.is_none());
    }

    /// Marks a record as in force for an adopting process, and any other of its name as replaced.
    pub fn put_in_force(&self, index: u32, former: Option<u32>) {
        self.put_state(index, IN_FORCE);
        if let Some(former) = former {
            self.put_state(former, FORMER);
        }
    }

    /// Marks a record, and former ones of its name, as not in force for an adopting process.
    pub fn take_from_force(&self, index: u32) {
        self.put_state(index, 0);
        for former in self.at(index).map_or(&[][..], |copy| &copy.former) {
            self.put_state(*former, 0);
        }
    }

    /// Frees the row of a record that no program reads any more, and adds its counters to the record in force. Returns destination and
    /// source, whose row of the next-hop table it no longer holds.
    pub fn give(&mut self, index: u32) -> Option<(IpAddr, IpAddr)> {
        let copy = self.slab.get_mut(index as usize)?.take()?;
        self.put_state(index, 0);
        let current = self.find(copy.name).filter(|current| *current != index);
        if let Some(current) = current {
            let [packets, bytes, _] = self.counters(index);
            let former = self
                .slab
                .get_mut(current as usize)
                .and_then(Option::as_mut)
                .map(|copy| &mut copy.former);
            if let Some(former) = former
                && former.contains(&index)
            {
                former.retain(|one| *one != index);
                for (at, more) in PRIOR.into_iter().zip([packets, bytes]) {
                    self.records.u64_at(current as usize, at).fetch_add(more, Ordering::Relaxed);
                }
            }
        }
        self.free.give(index);
        Some((copy.rewrite.dst.addr, copy.rewrite.src.addr))
    }

    /// Returns packets, bytes and dropped copies of a record, including counters added from replaced ones.
    fn counters(&self, index: u32) -> [u64; 3] {
        let read = |at: usize| self.records.u64_at(index as usize, at).load(Ordering::Relaxed);
        let mut counted = COUNTERS.map(read);
        for (count, at) in counted.iter_mut().zip(PRIOR) {
            *count += read(at);
        }
        counted
    }

    /// Returns the counters of a rewrite.
    pub fn count(&self, index: u32) -> Counted {
        let mut sums = [0; 3];
        let former = self.at(index).map_or(&[][..], |copy| &copy.former);
        for one in std::iter::once(&index).chain(former) {
            for (sum, count) in sums.iter_mut().zip(self.counters(*one)) {
                *sum += count;
            }
        }
        let [packets, bytes, lost] = sums;
        Counted {
            packets,
            bytes,
            lost,
            idle_ticks: None,
        }
    }

    /// Sets the counters of a rewrite to 0.
    pub fn reset(&self, index: u32) {
        let former = self.at(index).map_or(&[][..], |copy| &copy.former);
        for one in std::iter::once(&index).chain(former) {
            for at in COUNTERS.into_iter().chain(PRIOR) {
                self.records.u64_at(*one as usize, at).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Gives a record another row of the next-hop table, which leads to this interface.
    pub fn move_to(&mut self, index: u32, row: u16, ifindex: u32) {
        let Some(copy) = self.slab.get_mut(index as usize).and_then(Option::as_mut) else {
            return;
        };
        self.records.u16_at(index as usize, NEXTHOP).store(row, Ordering::Release);
        copy.row = row;
        copy.ifindex = ifindex;
    }

    /// Returns destination and source of every record that holds a row of the next-hop table.
    pub fn destinations(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.slab
            .iter()
            .flatten()
            .map(|copy| (copy.rewrite.dst.addr, copy.rewrite.src.addr))
    }

    /// Returns the output interfaces of all copies.
    pub fn interfaces(&self) -> BTreeSet<u32> {
        let all = self.slab.iter().flatten().map(|copy| copy.ifindex);
        all.filter(|ifindex| *ifindex != 0).collect()
    }

    // Adoption

    /// Returns the records that a former process left in force, or replaced and not yet freed.
    fn left(&self) -> Vec<(u32, u8)> {
        (1..=self.capacity)
            .filter_map(|index| {
                let state = self.records.u8_at(index as usize, STATE).load(Ordering::Relaxed);
                (state != 0).then_some((index, state))
            })
            .collect()
    }

    /// Returns the rows of the next-hop table that those records use.
    pub fn left_rows(&self) -> Vec<u16> {
        let left = self.left();
        left.iter()
            .map(|(index, _)| self.records.u16_at(*index as usize, NEXTHOP).load(Ordering::Relaxed))
            .collect()
    }

    /// Takes over the records of a former process. `hops`: finds each record's row again. Returns records that are no longer in force, to
    /// be freed after a grace period.
    pub fn adopt(&mut self, hops: &mut impl Hops, taken: &BTreeSet<u16>) -> Vec<u32> {
        let mut left = self.left();
        // If two records are in force, the former process was killed between the two stores of a change: the second is the replaced one.
        left.sort_by_key(|(index, state)| (*state, *index));
        let mut replaced = Vec::new();
        for (index, state) in left {
            let record = self.records.load(index as usize);
            let wide = self.wides.load(index as usize);
            let v6 = record.flags & OUT6 != 0;
            let end = |word, words, port: u16| {
                let words = if v6 { words } else { [word, 0, 0, 0] };
                Endpoint::new(address_of(words, v6), u16::from_be(port))
            };
            let rewrite = Rewrite {
                src: end(record.saddr, wide.saddr, record.sport),
                dst: end(record.daddr, wide.daddr, record.dport),
                nexthop: record.given_nexthop,
                target: wide.target,
                sequence_state: wide.receiver,
                cadence: wide.cadence,
                payload_types: wide.payload_types.map(|pair| (pair.from, pair.to)),
            };
            let name = Name {
                number: record.number,
                rid: record.rid,
            };
            let row = hops.adopt(rewrite.dst.addr, rewrite.src.addr, record.nexthop, taken);
            self.records.u16_at(index as usize, NEXTHOP).store(row, Ordering::Release);
            self.hold(index, Copy::new(name, rewrite, row, hops.output(row)));
            let current = self.find(name);
            match current.and_then(|current| self.slab.get_mut(current as usize)?.as_mut()) {
                Some(current) => {
                    current.former.push(index);
                    self.put_state(index, FORMER);
                    replaced.push(index);
                }
                None if state == IN_FORCE => {
                    self.rename(index);
                }
                None => replaced.push(index),
            }
        }
        if let Some(highest) = self.slab.len().checked_sub(1) {
            let slab = &self.slab;
            self.free
                .claim(|row| slab.get(row as usize).is_some_and(Option::is_some), highest as u32);
        }
        replaced
    }
}

fn flags_of(rewrite: &Rewrite) -> u8 {
    let flags = [
        (OUT6, rewrite.dst.addr.is_ipv6()),
        (RENUMBERED, rewrite.sequence_state != 0),
        (MAPPED, rewrite.mapped().next().is_some()),
    ];
    flags.into_iter().filter(|(_, set)| *set).fold(0, |all, (flag, _)| all | flag)
}

impl Copy {
    fn new(name: Name, rewrite: Rewrite, row: u16, ifindex: u32) -> Self {
        Self {
            name,
            rewrite,
            row,
            ifindex,
            sums: Sums::of(&rewrite.src, &rewrite.dst),
            former: Vec::new(),
        }
    }
}
