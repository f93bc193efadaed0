//! Compares the plan with the contents of the data plane.

use super::Book;
use crate::decision::Decision;
use crate::entry::{Idle, Outcome, RelayEntry};
use crate::ids::{LineId, State, StreamId};
use crate::line::Line;
use shunt_latch::{Component, Time};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{HashMap, HashSet};

/// A comparison of the plan with one reading of the relay table. It runs in pieces, so that a large table does not delay commands.
#[derive(Debug)]
pub struct Comparison {
    serial: u64,
    changed: HashSet<Endpoint>,
    /// Sorted by port.
    present: Vec<RelayEntry>,
    /// Ports whose entry has a DSCP other than the configured one.
    marked_otherwise: HashSet<Endpoint>,
    stage: Stage,
    superseded: bool,
    orphans: HashMap<Endpoint, FiveTuple>,
    found: Differences,
}

/// Planned entries that were missing, and those that did something else.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    missing: usize,
    different: usize,
}

/// The work that is left.
#[derive(Debug)]
enum Stage {
    /// Entries from this index on, then all lines.
    Entries(usize),
    /// These lines, the last one first.
    Lines(Vec<LineId>),
    End,
}

impl Comparison {
    /// A reading of the table. Sorting takes tens of milliseconds for half a million entries.
    #[must_use]
    pub fn with_entries(mut self, mut present: Vec<RelayEntry>) -> Self {
        present.sort_unstable_by_key(RelayEntry::port);
        self.present = present;
        self
    }

    /// Returns the ports whose entry has another DSCP than the configured one: these entries are written again.
    #[must_use]
    pub fn with_marked_otherwise(mut self, ports: HashSet<Endpoint>) -> Self {
        self.marked_otherwise = ports;
        self
    }

    /// Returns whether another comparison has replaced this one.
    #[must_use]
    pub fn was_superseded(&self) -> bool {
        self.superseded
    }

    /// Returns the number of planned entries that were missing.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.found.missing
    }

    /// Returns the number of planned entries that did something else.
    #[must_use]
    pub fn different(&self) -> usize {
        self.found.different
    }

    fn at(&self, port: Endpoint) -> Option<RelayEntry> {
        let at = self.present.binary_search_by_key(&port, RelayEntry::port).ok()?;
        Some(self.present[at])
    }
}

impl Book {
    /// Begins to compare the plan with the data plane. Call it as soon as the table has been read: later writes are left alone. The ports
    /// in `changed` were written during the reading, so the values read there are ignored.
    ///
    /// Entries that the data plane has lost are written again. Each surplus entry was written before a restart of the agent: it is adopted
    /// by a line, removed because its call has ended, or kept as an orphan entry. A comparison that is still running is replaced.
    pub fn begin_compare(&mut self, changed: HashSet<Endpoint>) -> Comparison {
        Comparison {
            serial: self.table.note_changes(),
            changed,
            present: Vec::new(),
            marked_otherwise: HashSet::new(),
            stage: Stage::Entries(0),
            superseded: false,
            orphans: HashMap::new(),
            found: Differences::default(),
        }
    }

    /// Continues a comparison with at most `most` entries or lines. Returns whether work is left.
    pub fn go_on_comparing(&mut self, now: Time, comparison: &mut Comparison, most: usize) -> (bool, Vec<Decision>) {
        if !self.table.notes_changes(comparison.serial) {
            comparison.stage = Stage::End;
            comparison.superseded = true;
        }
        comparison.stage = match std::mem::replace(&mut comparison.stage, Stage::End) {
            Stage::Entries(at) => self.compare_entries(now, comparison, at, most),
            Stage::Lines(mut ids) => {
                let left = ids.len().saturating_sub(most);
                for id in ids.drain(left..).rev() {
                    if self.lines.get(&id).is_none_or(|line| self.is_as_planned(line, comparison)) {
                        continue;
                    }
                    let found = self
                        .with(id, |book, line| book.compare_line(line, comparison, now))
                        .unwrap_or_default();
                    comparison.found.missing += found.missing;
                    comparison.found.different += found.different;
                }
                if ids.is_empty() { Stage::End } else { Stage::Lines(ids) }
            }
            Stage::End => Stage::End,
        };
        let more = !matches!(comparison.stage, Stage::End);
        if !more {
            if !comparison.superseded {
                self.over = None;
            }
            self.table.end_notes(comparison.serial);
        }
        (more, self.take())
    }

    /// Compares entries that no line has planned. They precede the lines, because a line does not write an entry that it adopts.
    fn compare_entries(&mut self, now: Time, comparison: &mut Comparison, at: usize, most: usize) -> Stage {
        let end = comparison.present.len().min(at + most);
        for at in at..end {
            let entry = comparison.present[at];
            if self.says_nothing(comparison, entry.port()) {
                continue;
            }
            if self.table.owner(entry.port()).is_some() {
                continue;
            }
            if self.over.as_ref().is_some_and(|over| over.contains(&entry.port())) {
                self.out.push(Decision::DeleteOrphan(entry.key()));
            } else if !self.adopt(now, &entry) {
                comparison.orphans.insert(entry.port(), entry.key());
            }
        }
        if end < comparison.present.len() {
            return Stage::Entries(end);
        }
        let found = std::mem::take(&mut comparison.orphans);
        let table = &self.table;
        self.orphans
            .retain(|port, _| comparison.changed.contains(port) || table.has_changed(*port));
        self.orphans.extend(found.into_iter().filter(|(port, _)| !table.has_changed(*port)));
        Stage::Lines(self.line_ids())
    }

    fn says_nothing(&self, comparison: &Comparison, port: Endpoint) -> bool {
        comparison.changed.contains(&port) || self.table.has_changed(port)
    }

    /// Returns whether the data plane already has the entries that offload all streams of a line, so that there is nothing to do.
    fn is_as_planned(&self, line: &Line, comparison: &Comparison) -> bool {
        Self::ports(line).all(|(id, port)| {
            let is_offloaded = line.stream(id.sender, id.component).state == State::Offloaded;
            let entry = self.table.confirmed(id, port).filter(|_| is_offloaded);
            let is_there = entry.is_some() && entry == comparison.at(port) && !comparison.marked_otherwise.contains(&port);
            is_there && !self.says_nothing(comparison, port)
        })
    }

    fn compare_line(&mut self, line: &mut Line, comparison: &Comparison, now: Time) -> Differences {
        let (mut writes, mut differences) = (Vec::new(), Differences::default());
        for (id, port) in Self::ports(line) {
            if self.says_nothing(comparison, port) {
                continue;
            }
            let Some(entry) = self.table.confirmed(id, port) else { continue };
            let found = comparison.at(port);
            if found != Some(entry) || comparison.marked_otherwise.contains(&port) {
                let modify = found.is_some_and(|found| found.key() == entry.key());
                *(if modify {
                    &mut differences.different
                } else {
                    &mut differences.missing
                }) += 1;
                self.table.insert_again(port, modify, &mut writes);
            }
        }
        self.emit(writes);
        self.look_at_line(line, now);
        differences
    }

    /// Adopts an entry, which shows the source that the agent had latched before its restart.
    fn adopt(&mut self, now: Time, entry: &RelayEntry) -> bool {
        let Some(id) = self.table.stream_at(entry.port()) else {
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

    /// This entry has the same hash in the switch as a stream without an entry, whose packets would match it. The entry's own stream
    /// returns to the relay.
    pub fn collided(&mut self, now: Time, holder: FiveTuple) -> Vec<Decision> {
        if let Some((id, _)) = self.table.owner(holder.dst).filter(|(_, entry)| entry.key() == holder) {
            self.with(id.line, |book, line| {
                let mut writes = Vec::new();
                book.table.unwant(id, holder.dst, &mut writes);
                book.emit(writes);
                book.failed(line, id, Outcome::HashCollision, None, now);
            });
        }
        self.take()
    }

    /// The data plane holds these entries back because of the host's policy. They are removed, and the result of the next write gives the
    /// reason.
    pub fn held_back(&mut self, now: Time, keys: &[FiveTuple]) -> Vec<Decision> {
        for key in keys {
            let Some((id, _)) = self.table.owner(key.dst).filter(|(_, entry)| entry.key() == *key) else {
                continue;
            };
            self.with(id.line, |book, line| {
                let mut writes = Vec::new();
                book.table.unwant(id, key.dst, &mut writes);
                book.emit(writes);
                book.sync(line, now);
            });
        }
        self.take()
    }

    /// Returns entries that no call claims. They occupy their relay ports until they are idle.
    pub fn orphans(&self) -> impl Iterator<Item = FiveTuple> + '_ {
        self.orphans.values().copied()
    }

    /// Applies when orphan entries last matched a packet. Returns the ones to delete, and forgets them.
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
