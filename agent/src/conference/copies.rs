//! What copies have counted, for whoever looks at a conference. However many look, and however many copies there are: one read of all of them, and
//! the next one a second after it at the earliest.

use super::Conferences;
use shunt_conference::rows::Key;
use shunt_latch::Time;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Counts are not read again while they are younger.
const FRESH: Duration = Duration::from_secs(1);
/// An answer waits for a new reading for so long; then it has the one before.
const PATIENCE: Duration = Duration::from_millis(500);

/// The packets of all copies.
#[derive(Debug)]
pub struct Reading {
    pub packets: HashMap<Key, u64>,
    /// No count is older.
    pub begun: Time,
    ended: Time,
}

/// The latest reading, and whether there is one under way.
#[derive(Debug, Default)]
pub struct Copies {
    latest: watch::Sender<Option<Arc<Reading>>>,
    is_reading: AtomicBool,
}

impl Conferences {
    /// What copies have counted. `None`: they have not been read yet.
    pub(super) async fn copy_counts(self: &Arc<Self>) -> Option<Arc<Reading>> {
        let mut latest = self.copies.latest.subscribe();
        let now = self.shared.clock.now();
        let is_fresh = |reading: &Arc<Reading>| now.since(reading.ended) < FRESH;
        if !latest.borrow_and_update().as_ref().is_some_and(is_fresh) {
            if !self.copies.is_reading.swap(true, Ordering::AcqRel) {
                // It goes on when nobody waits for it any more.
                tokio::spawn(Arc::clone(self).read_copies());
            }
            // Without a new reading the one before is the answer.
            let _ = tokio::time::timeout(PATIENCE, latest.changed()).await;
        }
        latest.borrow().clone()
    }

    async fn read_copies(self: Arc<Self>) {
        let begun = self.shared.clock.now();
        let read = self.plane.copy_counters().await;
        let reading = match read {
            Ok(read) => Some(Reading {
                packets: read.into_iter().map(|one| (one.key, one.packets)).collect(),
                begun,
                ended: self.shared.clock.now(),
            }),
            Err(error) => {
                tracing::debug!("counters of copies: {error}");
                None
            }
        };
        self.copies.is_reading.store(false, Ordering::Release);
        self.copies.latest.send_modify(|latest| {
            if let Some(reading) = reading {
                *latest = Some(Arc::new(reading));
            }
        });
    }
}
