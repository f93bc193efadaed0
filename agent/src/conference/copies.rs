//! What copies have counted, for whoever looks at a conference. However many look, and however many copies there are: one read of all of them, and
//! the next one a second after it at the earliest.

use super::Conferences;
use shunt_conference::book::Reading;
use shunt_latch::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Counts are not read again while they are younger.
const FRESH: Duration = Duration::from_secs(1);
/// An answer waits for a new reading for so long; then it has the one before.
const PATIENCE: Duration = Duration::from_millis(500);

/// The latest reading, and whether there is one under way.
#[derive(Debug, Default)]
pub struct Copies {
    latest: watch::Sender<Option<(Arc<Reading>, Time)>>,
    is_reading: AtomicBool,
}

impl Conferences {
    /// What copies have counted. `None`: they have not been read yet.
    pub(super) async fn copy_counts(&self) -> Option<Arc<Reading>> {
        let mut latest = self.copies.latest.subscribe();
        let now = self.clock.now();
        let is_fresh = |(_, ended): &(Arc<Reading>, Time)| now.since(*ended) < FRESH;
        if !latest.borrow_and_update().as_ref().is_some_and(is_fresh) {
            if let Some(own) = self.own.upgrade()
                && !self.copies.is_reading.swap(true, Ordering::AcqRel)
            {
                // It goes on when nobody waits for it any more.
                tokio::spawn(own.read_copies());
            }
            // Without a new reading the one before is the answer.
            let _ = tokio::time::timeout(PATIENCE, latest.changed()).await;
        }
        latest.borrow().as_ref().map(|(reading, _)| Arc::clone(reading))
    }

    async fn read_copies(self: Arc<Self>) {
        let begun = self.clock.now();
        let read = self.plane.copy_counters().await;
        let reading = match read {
            Ok(read) => Some(Reading {
                packets: read.into_iter().map(|one| (one.key, one.packets)).collect(),
                begun,
            }),
            Err(error) => {
                tracing::debug!("counters of copies: {error}");
                None
            }
        };
        self.copies.is_reading.store(false, Ordering::Release);
        self.copies.latest.send_modify(|latest| {
            if let Some(reading) = reading {
                *latest = Some((Arc::new(reading), self.clock.now()));
            }
        });
    }
}
