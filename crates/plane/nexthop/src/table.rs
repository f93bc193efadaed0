//! The neighbour of each row of the next-hop table, and the number of destinations that use it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;

use thiserror::Error;

use crate::row::{Row, Rows, UNRESOLVED};

/// More distinct next hops than the table has rows.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("all {rows} rows of the next-hop table are in use")]
pub struct Exhausted {
    pub rows: u32,
}

/// The subject of a row. Destinations with the same hop share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    /// The interface of the route, which may be a VLAN sub-interface.
    pub ifindex: u32,
    pub addr: IpAddr,
    /// In bytes; 0: the interface's MTU.
    pub mtu: u32,
}

struct Entry {
    /// `None` for a row of a former process whose neighbour is unknown.
    hop: Option<Hop>,
    /// How many destinations use the row.
    users: u32,
    content: Option<Row>,
    /// IP version of the first destination.
    ipv4: bool,
}

impl Entry {
    fn mark(&self) -> Option<Mark> {
        self.content.map(|row| mark(row, self.ipv4))
    }
}

/// The key by which an adopted row is recognised: content, with `no_xmit` clear, and IP version. A router has one Ethernet address for both
/// versions.
type Mark = (Row, bool);

fn mark(row: Row, ipv4: bool) -> Mark {
    (Row { no_xmit: false, ..row }, ipv4)
}

/// The rows in use. Until [`Table::finish_adoption`], rows of a former process are neither changed nor reused.
pub(crate) struct Table<R> {
    rows: R,
    capacity: u32,
    entries: HashMap<u16, Entry>,
    by_hop: HashMap<Hop, u16>,
    /// Adopted rows without a hop.
    adopted: HashMap<Mark, u16>,
    /// Rows that were not empty at the start, until the adoption is finished.
    left_over: HashSet<u16>,
    adopting: bool,
    free: VecDeque<u16>,
}

/// Maximum number of rows: entries name their row with 16 bits.
const MOST_ROWS: u32 = 1 << 16;

impl<R: Rows> Table<R> {
    /// `capacity`: rows of the shared table, row 0 included.
    pub(crate) fn new(rows: R, capacity: u32) -> Self {
        let capacity = capacity.min(MOST_ROWS);
        rows.write(u32::from(UNRESOLVED), None);
        let (left_over, free) = Self::indexes(capacity).partition::<Vec<u16>, _>(|&index| rows.read(index.into()).is_some());
        Self {
            rows,
            capacity,
            entries: HashMap::new(),
            by_hop: HashMap::new(),
            adopted: HashMap::new(),
            left_over: left_over.into_iter().collect(),
            adopting: true,
            free: free.into(),
        }
    }

    fn indexes(capacity: u32) -> impl Iterator<Item = u16> {
        (1..capacity).filter_map(|index| u16::try_from(index).ok())
    }

    pub(crate) fn rows(&self) -> &R {
        &self.rows
    }

    pub(crate) fn find(&self, hop: &Hop) -> Option<u16> {
        self.by_hop.get(hop).copied()
    }

    pub(crate) fn hop(&self, index: u16) -> Option<Hop> {
        self.entries.get(&index)?.hop
    }

    pub(crate) fn content(&self, index: u16) -> Option<Row> {
        self.entries.get(&index)?.content
    }

    pub(crate) fn is_in_use(&self, index: u16) -> bool {
        self.entries.contains_key(&index)
    }

    pub(crate) fn has_free_rows(&self) -> bool {
        self.free.iter().any(|index| !self.entries.contains_key(index))
    }

    /// Returns the adopted rows whose neighbour is unknown.
    pub(crate) fn without_hop(&self) -> Vec<u16> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.hop.is_none())
            .map(|(&index, _)| index)
            .collect()
    }

    /// Adds a reference of a destination to the row.
    pub(crate) fn hold(&mut self, index: u16) {
        if let Some(entry) = self.entries.get_mut(&index) {
            entry.users += 1;
        }
    }

    /// Releases a destination's reference to the row; the last one frees the row. Returns the hop that has lost its row.
    pub(crate) fn leave(&mut self, index: u16) -> Option<Hop> {
        let entry = self.entries.get_mut(&index)?;
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return None;
        }
        let entry = self.entries.remove(&index)?;
        self.forget_adopted(index, &entry);
        // Entries that are not adopted yet may use the row.
        if !(self.adopting && self.left_over.contains(&index)) {
            if entry.content.is_some() {
                self.rows.write(index.into(), None);
            }
            self.free.push_back(index);
        }
        let hop = entry.hop?;
        self.by_hop.remove(&hop);
        Some(hop)
    }

    /// Adds a reference of a former process's destination to row `index`, or to [`UNRESOLVED`] if that is not possible; returns the row.
    pub(crate) fn adopt(&mut self, index: u16, ipv4: bool) -> u16 {
        if index == UNRESOLVED || u32::from(index) >= self.capacity {
            return UNRESOLVED;
        }
        let entry = self.entries.entry(index).or_insert_with(|| {
            let entry = Entry {
                hop: None,
                users: 0,
                content: self.rows.read(index.into()),
                ipv4,
            };
            if let Some(mark) = entry.mark() {
                self.adopted.entry(mark).or_insert(index);
            }
            entry
        });
        if entry.hop.is_some() && !self.left_over.contains(&index) {
            return UNRESOLVED;
        }
        entry.users += 1;
        index
    }

    /// Clears the rows that were not adopted.
    pub(crate) fn finish_adoption(&mut self) {
        self.adopting = false;
        for index in std::mem::take(&mut self.left_over) {
            if !self.entries.contains_key(&index) {
                self.rows.write(index.into(), None);
            }
        }
        self.free = Self::indexes(self.capacity)
            .filter(|index| !self.entries.contains_key(index))
            .collect();
    }

    /// Gives a new hop a row: an adopted one with the same content, else a free one. `wanted`: the adopted row that the destination uses.
    pub(crate) fn bind(&mut self, hop: Hop, content: Option<Row>, wanted: Option<u16>) -> Result<u16, Exhausted> {
        let ipv4 = hop.addr.is_ipv4();
        let wanted = wanted.filter(|index| self.entries.get(index).is_some_and(|entry| entry.hop.is_none()));
        let equal = |index: &u16| content.is_some_and(|content| self.content(*index) == Some(content));
        // A row is harmless if its packets still reach the right neighbour meanwhile.
        let harmless = |index: &u16| {
            self.content(*index)
                .is_none_or(|before| content.is_some_and(|content| content.same_neighbour(&before)))
        };
        let kept = wanted
            .filter(equal)
            .or_else(|| content.and_then(|content| self.adopted.get(&mark(content, ipv4)).copied()))
            .or_else(|| wanted.filter(harmless));
        let index = match kept {
            Some(index) => index,
            None => self.take_free()?,
        };
        let mut entry = self.entries.remove(&index).unwrap_or(Entry {
            hop: None,
            users: 0,
            content: None,
            ipv4,
        });
        self.forget_adopted(index, &entry);
        entry.hop = Some(hop);
        self.entries.insert(index, entry);
        self.by_hop.insert(hop, index);
        Ok(index)
    }

    fn take_free(&mut self) -> Result<u16, Exhausted> {
        while let Some(index) = self.free.pop_front() {
            if !self.entries.contains_key(&index) {
                return Ok(index);
            }
        }
        Err(Exhausted {
            rows: self.capacity.saturating_sub(1),
        })
    }

    fn forget_adopted(&mut self, index: u16, entry: &Entry) {
        if let Some(mark) = entry.mark().filter(|mark| self.adopted.get(mark) == Some(&index)) {
            self.adopted.remove(&mark);
        }
    }

    /// Writes a row in use, if its content has changed.
    pub(crate) fn write(&mut self, index: u16, content: Option<Row>) {
        let Some(mut entry) = self.entries.remove(&index) else { return };
        if entry.content != content {
            self.rows.write(index.into(), content.as_ref());
            self.forget_adopted(index, &entry);
            entry.content = content;
            if let Some(mark) = entry.mark().filter(|_| entry.hop.is_none()) {
                self.adopted.entry(mark).or_insert(index);
            }
        }
        self.entries.insert(index, entry);
    }

    /// Panics if the table is inconsistent, or differs from `used`: the number of destinations of each row.
    #[cfg(test)]
    pub(crate) fn check(&self, used: &HashMap<u16, u32>) {
        for (index, entry) in &self.entries {
            assert_eq!(Some(&entry.users), used.get(index), "users of row {index}");
            assert_eq!(self.rows.read((*index).into()), entry.content, "content of row {index}");
            if let Some(hop) = entry.hop {
                assert_eq!(self.by_hop.get(&hop), Some(index), "row of {hop:?}");
            }
        }
        for index in used.keys() {
            assert!(
                *index == UNRESOLVED || self.entries.contains_key(index),
                "row {index} is used and free"
            );
        }
        assert_eq!(self.by_hop.len(), self.entries.values().filter(|entry| entry.hop.is_some()).count());
        for (mark, index) in &self.adopted {
            let entry = &self.entries[index];
            assert!(entry.hop.is_none() && entry.mark() == Some(*mark));
        }
        let free: HashSet<u16> = self
            .free
            .iter()
            .copied()
            .filter(|index| !self.entries.contains_key(index))
            .collect();
        for index in Self::indexes(self.capacity) {
            let left_over = self.adopting && self.left_over.contains(&index);
            assert!(
                free.contains(&index) || self.entries.contains_key(&index) || left_over,
                "row {index} is lost"
            );
            if !self.entries.contains_key(&index) && !left_over {
                assert_eq!(self.rows.read(index.into()), None, "row {index} is free and resolved");
            }
        }
        assert_eq!(self.rows.read(UNRESOLVED.into()), None);
    }
}
