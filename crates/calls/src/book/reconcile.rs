//! The plan against what the data plane has.

use super::Book;
use crate::decision::Decision;
use crate::entry::{Idle, Outcome, RelayEntry};
use crate::ids::StreamId;
use crate::line::Line;
use shunt_latch::{Component, Time};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{HashMap, HashSet};

impl Book {
    /// Compare the plan with what the data plane has, as read at one time: what it has lost is written again; what it has besides, an agent before
    /// this one has written, and a line adopts it, or it is an orphan entry.
    /// Of the ports in `changed` something was written while it was read: what was read there says nothing.
    pub fn compare(&mut self, now: Time, present: &[RelayEntry], changed: &HashSet<Endpoint>) -> Vec<Decision> {
        let by_port: HashMap<Endpoint, &RelayEntry> = present.iter().map(|entry| (entry.port(), entry)).collect();
        let mut planned: Vec<(StreamId, RelayEntry)> = self
            .table
            .rows()
            .filter(|(_, entry, present)| *present && !changed.contains(&entry.port()))
            .map(|(stream, entry, _)| (stream, entry))
            .collect();
        planned.sort_unstable_by_key(|(_, entry)| entry.port());
        let mut writes = Vec::new();
        for (_, entry) in planned {
            match by_port.get(&entry.port()) {
                Some(found) if **found == entry => {}
                found => {
                    let modify = found.is_some_and(|found| found.key() == entry.key());
                    self.table.insert_again(entry.port(), modify, &mut writes);
                }
            }
        }
        self.emit(writes);
        self.orphans.retain(|port, _| changed.contains(port));
        for entry in present.iter().filter(|entry| !changed.contains(&entry.port())) {
            if self.table.owner(entry.port()).is_none() && !self.adopt(now, entry) {
                self.orphans.insert(entry.port(), entry.key());
            }
        }
        self.sync_all(now);
        self.take()
    }

    /// An entry says whom an agent before this one had latched.
    fn adopt(&mut self, now: Time, entry: &RelayEntry) -> bool {
        let Some(id) = self.slots.get(&entry.port()).copied() else {
            return false;
        };
        let adopted = self.with(id.line, |book, line| {
            if !book.table.adopt(id, *entry) {
                return false;
            }
            book.adopt_source(line, id, entry.key().src, now);
            line.stream_mut(id.sender, id.component).was_offloaded = true;
            book.mark(line);
            true
        });
        adopted == Some(true)
    }

    fn adopt_source(&mut self, line: &mut Line, id: StreamId, source: Endpoint, now: Time) {
        let leg = line.leg_mut(id.sender);
        let latch = leg.latch_mut(id.component);
        if latch.is_asymmetric() {
            leg.note_source(id.component, source);
        } else if latch.learned().is_none() && !latch.is_contested() {
            latch.adopt(now, source, None);
        }
        if id.component == Component::Rtp {
            leg.latched_at.get_or_insert(now);
        }
        self.join(line, id.sender, source.addr);
    }

    /// Packets of a stream without an entry would meet this entry, which has the same hash in the switch: its stream goes back to the relay.
    pub fn collided(&mut self, now: Time, holder: FiveTuple) -> Vec<Decision> {
        if let Some((id, _)) = self.table.owner(holder.dst).filter(|(_, entry)| entry.key() == holder) {
            self.with(id.line, |book, line| {
                let mut writes = Vec::new();
                book.table.unwant(id, holder.dst, &mut writes);
                book.emit(writes);
                book.failed(line, id, Outcome::HashCollision, now);
            });
        }
        self.take()
    }

    /// Entries that no call claims: they hold their relay ports until nothing uses them.
    pub fn orphans(&self) -> impl Iterator<Item = FiveTuple> + '_ {
        self.orphans.values().copied()
    }

    /// When orphan entries last met a packet. Returned are those to delete; they are forgotten.
    pub fn idle_orphans(&mut self, read: &[Idle]) -> Vec<FiveTuple> {
        let mut idle = Vec::new();
        for read in read {
            let is_idle = read.idle.is_some_and(|idle| idle >= self.settings.entry_idle);
            if is_idle && self.orphans.get(&read.key.dst) == Some(&read.key) {
                self.orphans.remove(&read.key.dst);
                idle.push(read.key);
            }
        }
        idle
    }
}
