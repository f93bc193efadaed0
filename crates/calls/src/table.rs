//! The relay table as it is planned: at most one entry for each relay port, and what writes are under way.
//!
//! An entry with another key can be written only when the one before it at the same port is out, because a data plane may look entries up by
//! port. So a port is either free, or belongs to the stream whose entry is in or on its way in or out.

use crate::entry::{Operation, Outcome, RelayEntry};
use crate::ids::{StreamId, WriteId};
use shunt_net::Endpoint;
use std::collections::{BTreeSet, HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Inserting,
    Present,
    Modifying,
    Deleting,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    entry: RelayEntry,
    owner: StreamId,
    phase: Phase,
    /// The write whose result counts; `None`: none is under way.
    write: Option<WriteId>,
}

/// What becomes of a stream's wish for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is in.
    Confirmed,
    /// It is on its way.
    Pending,
    /// The port has another entry, which has to be out first.
    Busy,
}

/// What a result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Installed(StreamId, RelayEntry),
    /// The entry is not in; the outcome says why.
    Failed(StreamId, RelayEntry, Outcome),
    Deleted(StreamId, RelayEntry),
}

/// A write for the data plane. Writes to one key have to be done in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub id: WriteId,
    pub stream: StreamId,
    pub operation: Operation,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: HashMap<Endpoint, Row>,
    writes: HashMap<WriteId, Endpoint>,
    /// Ports whose delete has had no answer.
    unacknowledged: BTreeSet<Endpoint>,
    last: u64,
    /// Ports at which something was written or settled since a comparison with the data plane began.
    changed: Option<HashSet<Endpoint>>,
    comparisons: u64,
}

impl Table {
    /// Note at which ports something changes. The result names these notes; the next ones take their place.
    pub(crate) fn note_changes(&mut self) -> u64 {
        self.changed = Some(HashSet::new());
        self.comparisons += 1;
        self.comparisons
    }

    pub(crate) fn notes_changes(&self, serial: u64) -> bool {
        self.changed.is_some() && self.comparisons == serial
    }

    pub(crate) fn has_changed(&self, port: Endpoint) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.contains(&port))
    }

    pub(crate) fn end_notes(&mut self, serial: u64) {
        if self.comparisons == serial {
            self.changed = None;
        }
    }

    fn note(&mut self, port: Endpoint) {
        if let Some(changed) = &mut self.changed {
            changed.insert(port);
        }
    }

    fn write(&mut self, port: Endpoint, stream: StreamId, operation: Operation, out: &mut Vec<Write>) -> WriteId {
        self.note(port);
        self.last += 1;
        let id = WriteId(self.last);
        self.writes.insert(id, port);
        out.push(Write { id, stream, operation });
        id
    }

    /// The stream should have this entry.
    pub(crate) fn want(&mut self, owner: StreamId, entry: RelayEntry, out: &mut Vec<Write>) -> Placed {
        let port = entry.port();
        let Some(row) = self.rows.get(&port).copied() else {
            let write = self.write(port, owner, Operation::Insert(entry), out);
            let row = Row {
                entry,
                owner,
                phase: Phase::Inserting,
                write: Some(write),
            };
            self.rows.insert(port, row);
            return Placed::Pending;
        };
        if row.owner != owner || row.entry.key() != entry.key() || row.phase == Phase::Deleting {
            self.delete(port, out);
            return Placed::Busy;
        }
        if row.entry == entry {
            return if row.phase == Phase::Present {
                Placed::Confirmed
            } else {
                Placed::Pending
            };
        }
        if row.phase != Phase::Present {
            // One write at a time: when it is settled, the stream's wish is looked at again.
            return Placed::Pending;
        }
        let write = self.write(port, owner, Operation::Modify(entry), out);
        self.rows.insert(
            port,
            Row {
                entry,
                owner,
                phase: Phase::Modifying,
                write: Some(write),
            },
        );
        Placed::Pending
    }

    /// The stream should have no entry at this port. Returns whether it has none.
    pub(crate) fn unwant(&mut self, owner: StreamId, port: Endpoint, out: &mut Vec<Write>) -> bool {
        if !self.rows.get(&port).is_some_and(|row| row.owner == owner) {
            return true;
        }
        self.delete(port, out);
        false
    }

    fn delete(&mut self, port: Endpoint, out: &mut Vec<Write>) {
        let Some(row) = self.rows.get(&port).copied().filter(|row| row.phase != Phase::Deleting) else {
            return;
        };
        let write = self.write(port, row.owner, Operation::Delete(row.entry.key()), out);
        if let Some(row) = self.rows.get_mut(&port) {
            (row.phase, row.write) = (Phase::Deleting, Some(write));
        }
    }

    /// The stream that a write is for, until its result is in.
    pub(crate) fn stream_of_write(&self, id: WriteId) -> Option<StreamId> {
        let port = self.writes.get(&id)?;
        self.rows.get(port).map(|row| row.owner)
    }

    /// The result of a write; `None` where a later write has overtaken it, or there is no such write.
    pub(crate) fn settle(&mut self, id: WriteId, outcome: Outcome, out: &mut Vec<Write>) -> Option<Settled> {
        let port = self.writes.remove(&id)?;
        self.note(port);
        let row = self.rows.get_mut(&port).filter(|row| row.write == Some(id))?;
        row.write = None;
        let (owner, entry, phase) = (row.owner, row.entry, row.phase);
        match (phase, outcome) {
            (Phase::Deleting, Outcome::Done) => {
                self.rows.remove(&port);
                Some(Settled::Deleted(owner, entry))
            }
            (Phase::Deleting, _) => {
                self.unacknowledged.insert(port);
                None
            }
            (_, Outcome::Done) => {
                row.phase = Phase::Present;
                Some(Settled::Installed(owner, entry))
            }
            (Phase::Inserting, Outcome::TableFull | Outcome::HashCollision | Outcome::Rejected) => {
                self.rows.remove(&port);
                Some(Settled::Failed(owner, entry, outcome))
            }
            (Phase::Present, _) => None,
            (Phase::Inserting | Phase::Modifying, _) => {
                // It may be in, the old one or the new: out with it.
                self.delete(port, out);
                Some(Settled::Failed(owner, entry, outcome))
            }
        }
    }

    /// The data plane answers again: deletes without an answer are repeated.
    pub(crate) fn repeat_deletes(&mut self, out: &mut Vec<Write>) {
        for port in std::mem::take(&mut self.unacknowledged) {
            let Some(row) = self.rows.get(&port).copied() else { continue };
            let write = self.write(port, row.owner, Operation::Delete(row.entry.key()), out);
            if let Some(row) = self.rows.get_mut(&port) {
                row.write = Some(write);
            }
        }
    }

    /// An entry that is in the data plane already. False where the port has one.
    pub(crate) fn adopt(&mut self, owner: StreamId, entry: RelayEntry) -> bool {
        let free = !self.rows.contains_key(&entry.port());
        if free {
            let row = Row {
                entry,
                owner,
                phase: Phase::Present,
                write: None,
            };
            self.rows.insert(entry.port(), row);
        }
        free
    }

    /// The data plane has lost an entry, or has something else in its place: write it again.
    pub(crate) fn insert_again(&mut self, port: Endpoint, modify: bool, out: &mut Vec<Write>) {
        let Some(row) = self.rows.get(&port).copied().filter(|row| row.phase == Phase::Present) else {
            return;
        };
        let operation = if modify {
            Operation::Modify(row.entry)
        } else {
            Operation::Insert(row.entry)
        };
        let write = self.write(port, row.owner, operation, out);
        if let Some(row) = self.rows.get_mut(&port) {
            (row.phase, row.write) = (Phase::Inserting, Some(write));
        }
    }

    /// The entry of a stream that the data plane has, or has with an older rewrite.
    pub(crate) fn present(&self, owner: StreamId, port: Endpoint) -> Option<RelayEntry> {
        let row = self.rows.get(&port).filter(|row| row.owner == owner)?;
        matches!(row.phase, Phase::Present | Phase::Modifying).then_some(row.entry)
    }

    /// The entry of a stream that is in the data plane, and of which no write is under way.
    pub(crate) fn confirmed(&self, owner: StreamId, port: Endpoint) -> Option<RelayEntry> {
        let row = self.rows.get(&port).filter(|row| row.owner == owner)?;
        (row.phase == Phase::Present).then_some(row.entry)
    }

    /// Whether the stream has an entry at the port, also one on its way in or out.
    pub(crate) fn holds(&self, owner: StreamId, port: Endpoint) -> bool {
        self.rows.get(&port).is_some_and(|row| row.owner == owner)
    }

    pub(crate) fn owner(&self, port: Endpoint) -> Option<(StreamId, RelayEntry)> {
        self.rows.get(&port).map(|row| (row.owner, row.entry))
    }

    /// The delete of a port's entry that has had no answer yet.
    pub(crate) fn pending_delete(&self, port: Endpoint) -> Option<WriteId> {
        self.rows.get(&port).filter(|row| row.phase == Phase::Deleting)?.write
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (StreamId, RelayEntry)> + '_ {
        self.rows.values().map(|row| (row.owner, row.entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}
