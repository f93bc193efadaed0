//! Relay ports: the stream of each, its present or wanted entry, and pending writes.
//!
//! An entry with another key can be written only after the previous one at the same port has been removed, because a data plane may look
//! entries up by port. So a port is either free, or belongs to the stream whose entry is installed, being installed or being removed.

use crate::entry::{Operation, Outcome, RelayEntry};
use crate::ids::{ByPort, PackedStreamId, Quick, StreamId, WriteId};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddrV4};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Inserting,
    Present,
    Modifying,
    Deleting,
}

/// An entry's source, new source and new destination. The IPv4 form takes 18 bytes, three endpoints take 60.
#[derive(Clone, Debug)]
enum Ends {
    V4([SocketAddrV4; 3]),
    Other(Box<[Endpoint; 3]>),
}

impl From<[Endpoint; 3]> for Ends {
    fn from(ends: [Endpoint; 3]) -> Self {
        let v4 = |end: Endpoint| match end.addr {
            IpAddr::V4(addr) => Some(SocketAddrV4::new(addr, end.port)),
            IpAddr::V6(_) => None,
        };
        match ends.map(v4) {
            [Some(source), Some(new_source), Some(new_destination)] => Self::V4([source, new_source, new_destination]),
            _ => Self::Other(Box::new(ends)),
        }
    }
}

impl From<&Ends> for [Endpoint; 3] {
    fn from(ends: &Ends) -> Self {
        match ends {
            Ends::V4(ends) => ends.map(|end| Endpoint::new(*end.ip(), end.port())),
            Ends::Other(ends) => **ends,
        }
    }
}

/// An entry, or a write of an entry.
#[derive(Clone, Debug)]
struct Row {
    owner: PackedStreamId,
    /// The pending write whose result counts; `None`: no write is pending.
    write: Option<WriteId>,
    phase: Phase,
    ends: Ends,
}

impl Row {
    fn new(owner: StreamId, entry: RelayEntry, phase: Phase, write: Option<WriteId>) -> Self {
        Self {
            owner: owner.into(),
            write,
            phase,
            ends: [entry.key().src, entry.new_source(), entry.new_destination()].into(),
        }
    }

    fn is_of(&self, owner: StreamId) -> bool {
        self.owner == owner.into()
    }

    fn entry(&self, port: Endpoint) -> RelayEntry {
        let [source, new_source, new_destination] = (&self.ends).into();
        RelayEntry::again(FiveTuple::new(source, port), new_source, new_destination)
    }

    /// Returns whether the data plane has the entry, possibly with an older rewrite.
    fn is_in(&self) -> bool {
        matches!(self.phase, Phase::Present | Phase::Modifying)
    }
}

/// A relay port.
#[derive(Clone, Debug, Default)]
struct Port {
    /// The stream whose packets arrive here.
    stream: Option<PackedStreamId>,
    row: Option<Row>,
}

/// Result of a stream's request for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The entry is installed.
    Confirmed,
    /// The entry is being installed.
    Pending,
    /// The port has another entry, which has to be removed first.
    Busy,
}

/// The meaning of a write's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Installed(StreamId, RelayEntry),
    /// The entry is not installed; the outcome gives the reason.
    Failed(StreamId, RelayEntry, Outcome),
    Deleted(StreamId, RelayEntry),
}

/// A write for the data plane. Writes to one key must be executed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub id: WriteId,
    pub stream: StreamId,
    pub operation: Operation,
}

/// What a stream has at its relay port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Whether packets that arrive there are its own.
    pub(crate) port: bool,
    /// Whether it has an entry, including one that is being installed or removed.
    pub(crate) entry: bool,
    /// Whether the data plane has that entry, possibly with an older rewrite.
    pub(crate) present: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    ports: ByPort<Port>,
    /// Ports that have a row.
    rows: usize,
    writes: HashMap<WriteId, Endpoint, Quick>,
    /// Ports whose delete is unacknowledged.
    unacknowledged: BTreeSet<Endpoint>,
    last: u64,
    /// Ports that were written or settled since a comparison with the data plane began.
    changed: Option<HashSet<Endpoint>>,
    comparisons: u64,
}

impl Table {
    // -- which stream's packets arrive where ---------------------------------------------------------

    /// Returns the stream whose packets arrive at a port.
    pub(crate) fn stream_at(&self, port: Endpoint) -> Option<StreamId> {
        self.ports.get(&port)?.stream.map(Into::into)
    }

    /// Assigns a port to a stream. Returns the stream that had it.
    pub(crate) fn assign(&mut self, port: Endpoint, stream: StreamId) -> Option<StreamId> {
        let before = self.ports.entry(port).or_default().stream.replace(stream.into());
        before.map(Into::into)
    }

    /// Takes a port away from a stream.
    pub(crate) fn withdraw(&mut self, port: Endpoint, stream: StreamId) {
        if let Some(known) = self.ports.get_mut(&port).filter(|known| known.stream == Some(stream.into())) {
            known.stream = None;
            self.forget_unused(port);
        }
    }

    fn forget_unused(&mut self, port: Endpoint) {
        if self
            .ports
            .get(&port)
            .is_some_and(|port| port.stream.is_none() && port.row.is_none())
        {
            self.ports.remove(&port);
        }
    }

    // -- comparisons -------------------------------------------------------------------------------

    /// Starts to note the ports that change. The result identifies these notes; a later call replaces them.
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

    // -- entries -----------------------------------------------------------------------------------

    fn row(&self, port: Endpoint) -> Option<&Row> {
        self.ports.get(&port)?.row.as_ref()
    }

    fn row_mut(&mut self, port: Endpoint) -> Option<&mut Row> {
        self.ports.get_mut(&port)?.row.as_mut()
    }

    fn put(&mut self, port: Endpoint, row: Row) {
        let before = self.ports.entry(port).or_default().row.replace(row);
        self.rows += usize::from(before.is_none());
    }

    fn remove(&mut self, port: Endpoint) {
        let removed = self.ports.get_mut(&port).and_then(|port| port.row.take());
        self.rows -= usize::from(removed.is_some());
        self.forget_unused(port);
    }

    fn write(&mut self, port: Endpoint, stream: StreamId, operation: Operation, out: &mut Vec<Write>) -> WriteId {
        self.note(port);
        self.last += 1;
        let id = WriteId::new(self.last);
        self.writes.insert(id, port);
        out.push(Write { id, stream, operation });
        id
    }

    /// Requests this entry for a stream.
    pub(crate) fn want(&mut self, owner: StreamId, entry: RelayEntry, out: &mut Vec<Write>) -> Placed {
        let port = entry.port();
        let Some(row) = self.row(port) else {
            let write = self.write(port, owner, Operation::Insert(entry), out);
            self.put(port, Row::new(owner, entry, Phase::Inserting, Some(write)));
            return Placed::Pending;
        };
        let (is_own, known, phase) = (row.is_of(owner), row.entry(port), row.phase);
        if !is_own || known.key() != entry.key() || phase == Phase::Deleting {
            self.delete(port, out);
            return Placed::Busy;
        }
        if known == entry {
            return if phase == Phase::Present {
                Placed::Confirmed
            } else {
                Placed::Pending
            };
        }
        if phase != Phase::Present {
            // Only one write at a time: its result triggers a new look at the stream's request.
            return Placed::Pending;
        }
        let write = self.write(port, owner, Operation::Modify(entry), out);
        self.put(port, Row::new(owner, entry, Phase::Modifying, Some(write)));
        Placed::Pending
    }

    /// Removes a stream's entry at this port. Returns whether it is gone.
    pub(crate) fn unwant(&mut self, owner: StreamId, port: Endpoint, out: &mut Vec<Write>) -> bool {
        if !self.row(port).is_some_and(|row| row.is_of(owner)) {
            return true;
        }
        self.delete(port, out);
        false
    }

    fn delete(&mut self, port: Endpoint, out: &mut Vec<Write>) {
        if self.row(port).is_some_and(|row| row.phase != Phase::Deleting) {
            self.delete_again(port, out);
        }
    }

    fn delete_again(&mut self, port: Endpoint, out: &mut Vec<Write>) {
        let Some((owner, entry)) = self.owner(port) else { return };
        let write = self.write(port, owner, Operation::Delete(entry.key()), out);
        if let Some(row) = self.row_mut(port) {
            (row.phase, row.write) = (Phase::Deleting, Some(write));
        }
    }

    /// Returns the stream that a write is for, until its result arrives.
    pub(crate) fn stream_of_write(&self, id: WriteId) -> Option<StreamId> {
        let port = self.writes.get(&id)?;
        self.row(*port).map(|row| row.owner.into())
    }

    /// Applies the result of a write; `None` if a later write has replaced it, or there is no such write.
    pub(crate) fn settle(&mut self, id: WriteId, outcome: Outcome, out: &mut Vec<Write>) -> Option<Settled> {
        let port = self.writes.remove(&id)?;
        self.note(port);
        let row = self.row_mut(port).filter(|row| row.write == Some(id))?;
        row.write = None;
        let (owner, entry, phase) = (row.owner.into(), row.entry(port), row.phase);
        match (phase, outcome) {
            (Phase::Deleting, Outcome::Done) => {
                self.remove(port);
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
            (Phase::Inserting, Outcome::TableFull | Outcome::HashCollision | Outcome::HostPolicy | Outcome::Rejected) => {
                self.remove(port);
                Some(Settled::Failed(owner, entry, outcome))
            }
            (Phase::Present, _) => None,
            (Phase::Inserting | Phase::Modifying, _) => {
                // The old or the new entry may be installed: delete it.
                self.delete(port, out);
                Some(Settled::Failed(owner, entry, outcome))
            }
        }
    }

    /// Repeats unacknowledged deletes when the data plane answers again.
    pub(crate) fn repeat_deletes(&mut self, out: &mut Vec<Write>) {
        for port in std::mem::take(&mut self.unacknowledged) {
            self.delete_again(port, out);
        }
    }

    /// Adopts an entry that the data plane already has. Returns false if the port has one.
    pub(crate) fn adopt(&mut self, owner: StreamId, entry: RelayEntry) -> bool {
        let free = self.row(entry.port()).is_none();
        if free {
            self.put(entry.port(), Row::new(owner, entry, Phase::Present, None));
        }
        free
    }

    /// Writes an entry again that the data plane has lost or replaced.
    pub(crate) fn insert_again(&mut self, port: Endpoint, modify: bool, out: &mut Vec<Write>) {
        let present = self.row(port).filter(|row| row.phase == Phase::Present);
        let Some((owner, entry)) = present.map(|row| (row.owner.into(), row.entry(port))) else {
            return;
        };
        let operation = if modify {
            Operation::Modify(entry)
        } else {
            Operation::Insert(entry)
        };
        let write = self.write(port, owner, operation, out);
        if let Some(row) = self.row_mut(port) {
            (row.phase, row.write) = (Phase::Inserting, Some(write));
        }
    }

    pub(crate) fn held(&self, stream: StreamId, port: Endpoint) -> Held {
        let Some(known) = self.ports.get(&port) else {
            return Held::default();
        };
        let row = known.row.as_ref().filter(|row| row.is_of(stream));
        Held {
            port: known.stream == Some(stream.into()),
            entry: row.is_some(),
            present: row.is_some_and(Row::is_in),
        }
    }

    /// Returns a stream's entry that the data plane has, possibly with an older rewrite.
    pub(crate) fn present(&self, owner: StreamId, port: Endpoint) -> Option<RelayEntry> {
        let row = self.row(port).filter(|row| row.is_of(owner) && row.is_in())?;
        Some(row.entry(port))
    }

    /// Returns a stream's entry that the data plane has, if no write of it is pending.
    pub(crate) fn confirmed(&self, owner: StreamId, port: Endpoint) -> Option<RelayEntry> {
        let row = self.row(port).filter(|row| row.is_of(owner) && row.phase == Phase::Present)?;
        Some(row.entry(port))
    }

    /// Returns the entry at a port, including one that is being installed or removed.
    pub(crate) fn owner(&self, port: Endpoint) -> Option<(StreamId, RelayEntry)> {
        self.row(port).map(|row| (row.owner.into(), row.entry(port)))
    }

    /// Returns the unacknowledged delete of a port's entry.
    pub(crate) fn pending_delete(&self, port: Endpoint) -> Option<WriteId> {
        self.row(port).filter(|row| row.phase == Phase::Deleting)?.write
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (StreamId, RelayEntry)> + '_ {
        let row = |(port, known): (&Endpoint, &Port)| known.row.as_ref().map(|row| (row.owner.into(), row.entry(*port)));
        self.ports.iter().filter_map(row)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }
}
