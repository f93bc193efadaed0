//! Handles the results of writes and of tasks.

use super::{AUDIT_AGAIN, Done, Engine};
use crate::admission::Change;
use crate::batch::{Batch, Item};
use crate::come_up::remove_media;
use crate::event::{Event, Written};
use shunt_calls::{Operation, Outcome, RelayEntry};
use shunt_net::Endpoint;
use std::collections::HashSet;
use std::time::Instant;
use tokio::task::{Id, JoinError};

impl Engine {
    /// A finished write.
    pub(super) fn finish(&mut self, item: Item) {
        self.queue.finished(item.job.key().dst);
        self.result(item);
    }

    pub(super) fn result(&mut self, item: Item) {
        let (outcome, detail) = item.result.unwrap_or((Outcome::Unavailable, None));
        let key = item.job.key();
        let is_out = match item.job.operation {
            Operation::Delete(_) => outcome == Outcome::Done,
            Operation::Insert(_) => matches!(outcome, Outcome::TableFull | Outcome::HostPolicy | Outcome::Rejected),
            Operation::Modify(_) => false,
        };
        if is_out {
            self.idle_since.remove(&key);
        }
        if is_out && let Some(collisions) = self.collisions_of(&key) {
            collisions.release(&key);
        }
        if outcome != Outcome::Done {
            self.shared.counts.failed(1);
        } else if let Some(samples) = self.up.as_ref().and_then(|link| link.tables.samples.as_ref()) {
            match item.job.operation {
                Operation::Delete(_) => samples.samples().leave(&key),
                _ => samples.samples().want(key),
            }
        }
        let Some(id) = item.job.id else { return };
        let written = Written {
            id,
            outcome,
            counters: item.counters,
            detail,
            operation: item.job.operation,
            took: item.job.given.elapsed(),
        };
        match self.out.last_mut() {
            Some(Event::Written(all)) => all.push(written),
            _ => self.out.push(Event::Written(vec![written])),
        }
    }

    pub(super) fn done(&mut self, done: Result<(Id, Done), JoinError>) {
        let now = Instant::now();
        match done {
            Ok((id, Done::Batch(session, batch))) => {
                self.batches.remove(&id);
                self.batch_done(now, session, batch);
            }
            Ok((_, Done::Up(session, result))) if session == self.session => self.came_up(now, *result),
            Ok((_, Done::Table(session, found))) if session == self.session => self.table_read(now, found),
            Ok((_, Done::Samples(session))) if session == self.session => self.sampling = false,
            Ok((_, Done::Idle(mut idle))) => {
                self.age(now, &mut idle);
                self.out.push(Event::IdleTimes(idle));
            }
            Ok((_, Done::Removed(ranges))) => self.former_media.removed(&ranges),
            Ok((_, Done::Up(..) | Done::Table(..) | Done::Samples(_) | Done::Nothing)) => {}
            Err(error) => self.task_failed(&error),
        }
    }

    /// Handles a task that ended by a fault of ours: its writes are unknown, so a new session repeats its work.
    fn task_failed(&mut self, error: &JoinError) {
        tracing::error!("a task of the data plane ended: {error}");
        for job in self.batches.remove(&error.id()).unwrap_or_default() {
            self.finish(Item::new(job));
        }
        self.sampling = false;
        if let Ok(session) = self.shared.client.session() {
            session.give_up(&format!("a task ended: {error}"));
        }
    }

    pub(super) fn batch_done(&mut self, now: Instant, session: u64, batch: Batch) {
        self.shared.counts.retried(batch.retries);
        for item in batch.items {
            self.finish(item);
        }
        if session != self.session {
            // The new session writes all rows.
            return;
        }
        let mut failed = None;
        for ((change, _), answer) in batch.rows.iter().zip(batch.answers) {
            // Deleting a missing row is no error.
            let done = matches!(
                (&answer, change),
                (Some(Ok(())), _)
                    | (
                        Some(Err(_)),
                        Change::Filter(_, None) | Change::Block(_, false) | Change::Allow(_, false)
                    )
            );
            self.admission.written(now, change, done);
            if let (false, Some(Err(error))) = (done, answer) {
                failed.get_or_insert((change, error));
            }
        }
        self.rows_by(now);
        if let Some((change, error)) = failed {
            tracing::warn!("the data plane took no row {change:?}: {}", error.message);
        }
    }

    /// Removes the media ranges of a former configuration whose last entry is gone.
    fn end_former_media(&mut self, now: Instant, entries: &[RelayEntry], changed: &HashSet<Endpoint>) {
        let ports = entries.iter().map(RelayEntry::port).chain(changed.iter().copied());
        let gone = self.former_media.audited(now, self.settings.former_after, ports);
        let Some(link) = self.up.clone().filter(|_| !gone.is_empty()) else {
            return;
        };
        self.tasks.spawn(async move {
            let removed = remove_media(&link.session, &link.tables, gone).await;
            Done::Removed(removed.unwrap_or_else(|error| {
                tracing::warn!("media ranges that the configuration no longer has cannot be removed; the next audit tries again: {error}");
                Vec::new()
            }))
        });
    }

    pub(super) fn table_read(&mut self, now: Instant, found: Option<(Vec<RelayEntry>, HashSet<Endpoint>)>) {
        let Some((mut entries, marked_otherwise)) = found else {
            self.audit.failed(now + AUDIT_AGAIN);
            return;
        };
        let changed = self.audit.end(now, entries.len());
        let media = &self.settings.media;
        let is_own = |port| media.is_empty() || media.iter().any(|range| range.contains(port)) || self.former_media.contains(port);
        entries.retain(|entry| is_own(entry.port()));
        self.end_former_media(now, &entries, &changed);
        self.shared.counts.audited();
        self.hold_hashes(now, &mut entries, &changed);
        if let Some(samples) = self.up.as_ref().and_then(|link| link.tables.samples.as_ref()) {
            let keys = entries.iter().map(RelayEntry::key).collect();
            samples.samples().compare(&keys, |key| changed.contains(&key.dst));
        }
        self.out.push(Event::Table {
            entries,
            changed,
            marked_otherwise,
        });
    }
}
