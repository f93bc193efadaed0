//! What the data plane tells, handed to the call state.

use crate::core::Core;
use shunt_calls::Idle;
use shunt_plane::{Event, Facts, Written};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The latest of the data plane, for the status.
#[derive(Debug, Default)]
pub struct State {
    current: Mutex<Current>,
}

/// Whether the data plane can be used, and what it is.
#[derive(Clone, Debug, Default)]
pub struct Current {
    pub facts: Option<Arc<Facts>>,
    /// Why it cannot be used.
    pub down: Option<String>,
    /// Entries found at the latest audit that has ended.
    pub entries: Option<u64>,
}

impl State {
    #[must_use]
    pub fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A comparison with the plan has ended.
    pub fn compared(&self, entries: u64) {
        self.change(|current| current.entries = Some(entries));
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Take events until the plane is dropped.
pub async fn serve(core: &Arc<Core>, events: &mut mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        handle(core, event).await;
    }
}

async fn handle(core: &Arc<Core>, event: Event) {
    match event {
        Event::Up(facts) => {
            tracing::info!("data plane: {}, room for {} entries", facts.name, facts.capacity);
            for lack in &facts.lacks {
                tracing::warn!("data plane: {lack}");
            }
            core.events().data_plane(&facts.name, None);
            core.data_plane
                .change(|current| (current.facts, current.down) = (Some(facts), None));
            core.set_data_plane(true);
            if let Some(conferences) = core.conferences() {
                conferences.set_data_plane(None);
            }
        }
        Event::Down(reason) => {
            // It is tried again twice a second: one line for each reason is enough.
            if core.data_plane.current().down.as_ref() != Some(&reason) {
                tracing::error!("data plane: {reason}");
                core.events().data_plane("", Some(&reason));
            }
            if let Some(conferences) = core.conferences() {
                conferences.set_data_plane(Some(&reason));
            }
            core.data_plane.change(|current| current.down = Some(reason));
            core.set_data_plane(false);
        }
        Event::Written(written) => core.written(written),
        Event::Notices(notices) => {
            core.stats.notices.inc_by(notices.len() as u64);
            match core.conferences() {
                Some(conferences) => {
                    let (theirs, of_calls): (Vec<_>, Vec<_>) = notices.into_iter().partition(|notice| conferences.owns(notice.key.dst));
                    conferences.noticed(&theirs);
                    core.noticed(&of_calls);
                }
                None => core.noticed(&notices),
            }
        }
        // Of conferences of two: who is silent is seen by their counters.
        Event::Idle(key) | Event::Active(key) if core.conferences().is_some_and(|conferences| conferences.owns(key.dst)) => {}
        Event::Idle(key) => {
            core.tell(|book, now| book.idle(now, key));
            // A switch says of an orphan entry no more than this.
            core.delete_idle_orphans(&[Idle {
                key,
                idle: Some(Duration::MAX),
                sequence: None,
            }]);
        }
        Event::Active(key) => core.tell(|book, now| book.active(now, key)),
        Event::IdleTimes(read) => core.idle_times(&read),
        Event::Table { mut entries, changed } => {
            if !core.is_restored() {
                // Entries of calls that are still being read from the journal would be nobody's: the table is read again.
                let core = Arc::clone(core);
                tokio::spawn(async move {
                    core.restored().await;
                    core.plane().inspect(|plane| plane.audit());
                });
                return;
            }
            if let Some(conferences) = core.conferences() {
                entries.retain(|entry| !conferences.owns(entry.key().dst));
            }
            core.compare(entries, changed);
        }
        Event::Collision { key, holder } => {
            tracing::warn!("{key} would meet the entry of {holder}, which has the same hash: that is removed");
            core.tell(|book, now| book.collided(now, holder));
        }
        Event::Packets(frames) => {
            if let Some(conferences) = core.conferences() {
                conferences.copied(frames.iter().map(AsRef::as_ref));
            }
        }
    }
}

/// Log what a write failed of.
pub fn log_failure(written: &Written) {
    if let Some(detail) = &written.detail {
        tracing::warn!("data plane: a write failed: {detail}");
    }
}
