//! Allocates the numbers of one replication engine: trees, nodes, streams, RIDs and exclusion sets. The order of writes is decided
//! elsewhere.

use crate::tables::{Limits, Name, Row, Source};
use crate::trees::LayoutError;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Numbers from `first` to `limit - 1`. Freed numbers are reused first.
#[derive(Clone, Debug)]
pub struct Numbers {
    what: &'static str,
    first: u32,
    next: u32,
    limit: u32,
    freed: Vec<u32>,
}

impl Numbers {
    #[must_use]
    pub fn new(what: &'static str, first: u32, limit: u32) -> Self {
        Self {
            what,
            first,
            next: first,
            limit,
            freed: Vec::new(),
        }
    }

    /// # Errors
    /// All numbers are in use.
    pub fn take(&mut self) -> Result<u32, LayoutError> {
        if let Some(number) = self.freed.pop() {
            return Ok(number);
        }
        if self.next >= self.limit {
            let count = self.limit.saturating_sub(self.first);
            return Err(LayoutError::Full { what: self.what, count });
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    pub fn give(&mut self, number: u32) {
        self.freed.push(number);
    }

    /// Marks numbers that are in use elsewhere.
    pub fn reserve(&mut self, used: &BTreeSet<u32>) {
        let Some(last) = used.last().copied().filter(|last| *last >= self.next) else {
            return;
        };
        self.freed.extend((self.next..last).filter(|number| !used.contains(number)));
        self.next = last.saturating_add(1);
    }

    /// Returns how many numbers are free.
    #[must_use]
    pub fn room(&self) -> usize {
        self.freed.len() + self.limit.saturating_sub(self.next) as usize
    }
}

/// Half of a set of trees: MGIDs `base..base + trees`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub base: u32,
    pub trees: u32,
    /// 0 or 1.
    pub half: usize,
}

/// Sets of `qualities` trees, or single trees cut from such a set, in halves.
#[derive(Clone, Debug)]
struct Halves {
    qualities: u32,
    blocks: Numbers,
    /// By size of the set: bases whose half is free, for each half.
    free: BTreeMap<u32, [BTreeSet<u32>; 2]>,
    used: HashMap<u32, u32>,
}

impl Halves {
    fn bases(&self, block: u32, trees: u32) -> impl Iterator<Item = u32> + use<> {
        let first = 1 + block * self.qualities;
        (first..first + self.qualities).step_by(trees as usize)
    }

    /// Allocates half of a set: the preferred half if it is free, otherwise the half with more free sets.
    fn take(&mut self, trees: u32, prefer: Option<usize>) -> Result<Slot, LayoutError> {
        let free = self.free.entry(trees).or_default();
        let mut half = prefer.unwrap_or(usize::from(free[1].len() > free[0].len())) & 1;
        if free[half].is_empty() {
            half = 1 - half;
        }
        if free[half].is_empty() {
            half = prefer.unwrap_or(0) & 1;
            let block = self.blocks.take()?;
            let bases: Vec<u32> = self.bases(block, trees).collect();
            let free = self.free.entry(trees).or_default();
            for side in free.iter_mut() {
                side.extend(&bases);
            }
        }
        let free = self.free.entry(trees).or_default();
        let base = free[half].pop_last().ok_or(LayoutError::Full {
            what: "sets of trees",
            count: 0,
        })?;
        *self.used.entry((base - 1) / self.qualities).or_default() += 1;
        Ok(Slot { base, trees, half })
    }

    fn give(&mut self, slot: Slot) {
        let block = (slot.base - 1) / self.qualities;
        let bases: Vec<u32> = self.bases(block, slot.trees).collect();
        let free = self.free.entry(slot.trees).or_default();
        free[slot.half].insert(slot.base);
        let used = self.used.entry(block).or_default();
        *used = used.saturating_sub(1);
        if *used == 0 {
            // All trees of the set are free, so it can become a set of the other size.
            self.used.remove(&block);
            for base in bases {
                free[0].remove(&base);
                free[1].remove(&base);
            }
            self.blocks.give(block);
        }
    }
}

/// Numbers of a conference's participants and streams.
#[derive(Clone, Debug, Default)]
struct Kept {
    indices: HashMap<Name, u32>,
    free: Vec<u32>,
    streams: HashMap<Source, u32>,
}

/// Numbers used by rows found in a data plane.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    blocks: BTreeSet<u32>,
    nodes: BTreeSet<u32>,
    streams: BTreeSet<u32>,
    xids: BTreeSet<u32>,
}

/// All numbers of one engine. A failed call changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    limits: Limits,
    halves: Halves,
    nodes: Numbers,
    streams: Numbers,
    xids: Numbers,
    /// L2 XID and users, by port.
    xid_of: HashMap<u32, (u32, u32)>,
    kept: HashMap<Name, Kept>,
}

impl Room {
    pub fn new(limits: Limits, qualities: u32) -> Self {
        Self {
            limits,
            halves: Halves {
                qualities,
                blocks: Numbers::new("sets of trees", 0, limits.trees.saturating_sub(1) / qualities),
                free: BTreeMap::new(),
                used: HashMap::new(),
            },
            nodes: Numbers::new("L1 nodes", 1, limits.nodes),
            streams: Numbers::new("stream numbers", 1, limits.streams),
            xids: Numbers::new("L2 exclusion sets", 1, limits.l2_xids),
            xid_of: HashMap::new(),
            kept: HashMap::new(),
        }
    }

    /// Returns a participant's number within its conference. It stays the same until [`Room::forget`].
    pub fn index(&mut self, conference: &Name, participant: &Name) -> Result<u32, LayoutError> {
        let kept = self.kept.entry(conference.clone()).or_default();
        if let Some(index) = kept.indices.get(participant) {
            return Ok(*index);
        }
        let count = u32::try_from(kept.indices.len()).unwrap_or(u32::MAX);
        let index = kept.free.last().copied().unwrap_or(count);
        if index.saturating_mul(2).saturating_add(2) >= self.limits.rids {
            return Err(LayoutError::Rids {
                conference: conference.clone(),
                rids: self.limits.rids,
                participants: index,
            });
        }
        kept.free.pop();
        kept.indices.insert(participant.clone(), index);
        Ok(index)
    }

    pub fn rid(&mut self, conference: &Name, participant: &Name, half: usize) -> Result<u32, LayoutError> {
        Ok(2 * self.index(conference, participant)? + half as u32 + 1)
    }

    /// Returns a stream's number. It stays the same until [`Room::forget`].
    pub fn stream(&mut self, source: &Source) -> Result<u32, LayoutError> {
        let kept = self.kept.entry(source.conference.clone()).or_default();
        if let Some(number) = kept.streams.get(source) {
            return Ok(*number);
        }
        let number = self.streams.take()?;
        kept.streams.insert(source.clone(), number);
        Ok(number)
    }

    /// Frees the numbers of a conference's other participants and streams.
    pub fn forget(&mut self, conference: &Name, participants: &BTreeSet<Name>) {
        let Some(kept) = self.kept.get_mut(conference) else { return };
        let mut gone: Vec<u32> = Vec::new();
        kept.indices.retain(|name, index| {
            participants.contains(name) || {
                gone.push(*index);
                false
            }
        });
        gone.sort_unstable_by(|a, b| b.cmp(a));
        kept.free.append(&mut gone);
        let streams = &mut self.streams;
        kept.streams.retain(|source, number| {
            participants.contains(&source.sender) || {
                streams.give(*number);
                false
            }
        });
        if participants.is_empty() {
            self.kept.remove(conference);
        }
    }

    /// Returns the L2 XID that excludes this port. Each call adds a user.
    pub fn exclusion(&mut self, port: u32) -> Result<u32, LayoutError> {
        if let Some((xid, users)) = self.xid_of.get_mut(&port) {
            *users += 1;
            return Ok(*xid);
        }
        let xid = self.xids.take()?;
        self.xid_of.insert(port, (xid, 1));
        Ok(xid)
    }

    /// Removes a user. Returns the XID if its row is no longer needed.
    pub fn drop_exclusion(&mut self, port: u32) -> Option<u32> {
        let (xid, users) = self.xid_of.get_mut(&port)?;
        *users -= 1;
        if *users > 0 {
            return None;
        }
        let xid = *xid;
        self.xid_of.remove(&port);
        self.xids.give(xid);
        Some(xid)
    }

    /// Reserves the numbers of rows found in a data plane, until they are given back.
    pub fn reserve<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) -> Reserved {
        let mut found = Reserved::default();
        for row in rows {
            match row {
                Row::Node(node) => found.nodes.insert(*node),
                Row::Tree(mgid) if *mgid > 0 => found.blocks.insert((mgid - 1) / self.halves.qualities),
                Row::Prune(xid) => found.xids.insert(*xid),
                Row::Copy(stream, _) => found.streams.insert(*stream),
                Row::Tree(_) | Row::Stream(_) | Row::Relay(_) => false,
            };
        }
        self.halves.blocks.reserve(&found.blocks);
        self.nodes.reserve(&found.nodes);
        self.streams.reserve(&found.streams);
        self.xids.reserve(&found.xids);
        found
    }

    pub fn give_back(&mut self, found: Reserved) {
        found.blocks.into_iter().for_each(|block| self.halves.blocks.give(block));
        found.nodes.into_iter().for_each(|node| self.nodes.give(node));
        found.streams.into_iter().for_each(|stream| self.streams.give(stream));
        found.xids.into_iter().for_each(|xid| self.xids.give(xid));
    }

    pub fn half(&mut self, trees: u32, prefer: Option<usize>) -> Result<Slot, LayoutError> {
        self.halves.take(trees, prefer)
    }

    pub fn give_half(&mut self, slot: Slot) {
        self.halves.give(slot);
    }

    pub fn node(&mut self) -> Result<u32, LayoutError> {
        self.nodes.take()
    }

    pub fn give_node(&mut self, node: u32) {
        self.nodes.give(node);
    }
}
