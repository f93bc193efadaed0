//! The thread that writes the journal, and the handle that gives it changes without waiting.

use crate::sqlite::Store;
use shunt_calls::RowKey;
use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// The longest that [`Journal::kept`] waits.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The newest of each row; `None` removes it.
pub(crate) type Changes = HashMap<RowKey, Option<Vec<u8>>>;

#[derive(Debug, Default)]
struct Queue {
    changes: Changes,
    /// Changes handed over since the start.
    handed: u64,
    closed: bool,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    committed: u64,
    failing: Option<String>,
    failures: u64,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    given: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal's handle. When it is dropped, what was handed over is written first, if the store works.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    pub(crate) fn start(store: Store) -> Self {
        let shared = Arc::new(Shared::default());
        let (sender, progress) = watch::channel(Progress::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || write(store, &theirs, &sender));
        Self {
            shared,
            progress,
            thread: Some(thread),
        }
    }

    /// Hands over a row, as JSON.
    pub fn put(&self, key: RowKey, row: Vec<u8>) {
        self.give(key, Some(row));
    }

    /// Hands over that a row ends.
    pub fn remove(&self, key: RowKey) {
        self.give(key, None);
    }

    fn give(&self, key: RowKey, row: Option<Vec<u8>>) {
        let mut queue = self.shared.queue();
        queue.changes.insert(key, row);
        queue.handed += 1;
        drop(queue);
        self.shared.given.notify_one();
    }

    /// Waits until all that was handed over is committed; at most [`LONGEST_WAIT`], and not while the store fails.
    /// Returns whether it is committed.
    pub async fn kept(&self) -> bool {
        let handed = self.shared.queue().handed;
        let mut progress = self.progress.clone();
        let done = progress.wait_for(|now| now.committed >= handed || now.failing.is_some());
        match tokio::time::timeout(LONGEST_WAIT, done).await {
            Ok(Ok(now)) => now.committed >= handed,
            _ => false,
        }
    }

    /// The number of changes that are not committed.
    #[must_use]
    pub fn pending(&self) -> u64 {
        let committed = self.progress.borrow().committed;
        self.shared.queue().handed.saturating_sub(committed)
    }

    /// Why the store fails, while it does.
    #[must_use]
    pub fn failing(&self) -> Option<String> {
        self.progress.borrow().failing.clone()
    }

    /// The number of commits that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.progress.borrow().failures
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.given.notify_one();
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has said so on its own.
            let _ = thread.join();
        }
    }
}

fn write(mut store: Store, shared: &Shared, progress: &watch::Sender<Progress>) {
    loop {
        let queue = shared.queue();
        let waited = shared.given.wait_while(queue, |queue| queue.changes.is_empty() && !queue.closed);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        let (changes, handed, closed) = (mem::take(&mut queue.changes), queue.handed, queue.closed);
        drop(queue);
        if changes.is_empty() {
            return;
        }
        match store.commit(&changes) {
            Ok(()) => progress.send_modify(|now| {
                now.committed = handed;
                now.failing = None;
            }),
            Err(error) => {
                tracing::error!("journal: {} rows not written: {error}", changes.len());
                progress.send_modify(|now| {
                    now.failing = Some(error.to_string());
                    now.failures += 1;
                });
                if closed {
                    return;
                }
                give_back(shared, changes);
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Puts changes back that were not written, where no newer one is there.
fn give_back(shared: &Shared, changes: Changes) {
    let mut queue = shared.queue();
    for (key, row) in changes {
        queue.changes.entry(key).or_insert(row);
    }
}
