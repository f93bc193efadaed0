//! The thread that opens and writes the journal.

use crate::aside::move_aside;
use crate::change::{Changes, Queue};
use crate::journal::{Event, Progress, Shared};
use crate::lock::{self, LockError};
use crate::reader::{Opened, Request};
use crate::store::{Store, StoreError, make_folder};
use nix::fcntl::Flock;
use std::fs::File;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};

/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Commits between copies of the log into the file.
const COPY_EVERY: u32 = 500;
/// Pages from which on the log is restarted.
const LOG_PAGES: u64 = 16_384;

/// Reason for a missing store.
#[derive(Debug, Error)]
enum OpenError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the damaged file cannot be moved aside: {0}")]
    Aside(io::Error),
}

/// Reason why writing to a store has ended.
enum End {
    Closed,
    Failed,
    Damaged,
}

pub(crate) struct Writer {
    path: PathBuf,
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<Event>,
    lock: Option<Flock<File>>,
    /// The lock of the open file.
    reader: Option<Opened>,
    /// The agent restores the content found at the first opening.
    found: bool,
    commits: u32,
    /// Pages of the log at the latest copy.
    log_pages: Arc<AtomicU64>,
    /// The last field: dropping it releases the lock.
    progress: watch::Sender<Progress>,
}

impl Writer {
    pub(crate) fn new(path: PathBuf, shared: Arc<Shared>, progress: watch::Sender<Progress>, events: mpsc::UnboundedSender<Event>) -> Self {
        Self {
            path,
            shared,
            progress,
            events,
            lock: None,
            reader: None,
            found: false,
            commits: 0,
            log_pages: Arc::default(),
        }
    }

    /// Opens and writes until the journal is closed.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            match shared.busy(|| self.open()) {
                Ok(store) => match self.serve(store) {
                    End::Closed => break,
                    End::Damaged => continue,
                    End::Failed => {}
                },
                Err(error) => self.failed(&error.to_string()),
            }
            if shared.pause(PAUSE) {
                break;
            }
        }
        // After this nothing is open any more, and the waiter for the end is notified.
        if let Some(reader) = self.reader.take() {
            reader.stop();
        }
    }

    /// Logs a failure when it begins, and when its reason changes.
    fn failed(&self, error: &str) {
        self.progress.send_modify(|now| {
            if now.failing.as_deref() != Some(error) {
                tracing::error!(
                    "journal {}: {error}; calls go on, a restart would not know the latest",
                    self.path.display()
                );
            }
            now.failing = Some(error.to_owned());
            now.failures += 1;
        });
    }

    fn works(&self, committed: Option<u64>) {
        self.progress.send_modify(|now| {
            if now.failing.take().is_some() {
                tracing::warn!("journal {}: works again", self.path.display());
            }
            now.committed = committed.unwrap_or(now.committed);
        });
    }

    fn tell(&self, event: Event) {
        // A stopping agent does not listen any more.
        let _ = self.events.send(event);
    }

    fn open(&mut self) -> Result<Store, OpenError> {
        make_folder(&self.path)?;
        if self.lock.is_none() {
            self.lock = Some(lock::take(&self.path)?);
        }
        match self.open_store() {
            Err(error) if error.is_damage() => {
                set_aside(&self.path, &error.to_string())?;
                if self.found {
                    self.tell(Event::Emptied);
                }
                Ok(self.open_store()?)
            }
            opened => Ok(opened?),
        }
    }

    fn open_store(&mut self) -> Result<Store, StoreError> {
        let store = Store::open(&self.path)?;
        if self.reader.is_none() {
            let opened = Opened::start(&self.path, Arc::clone(&self.shared), !self.found)?;
            if !mem::replace(&mut self.found, true) {
                self.tell(Event::Opened(opened.reader()));
            }
            self.reader = Some(opened);
        }
        Ok(store)
    }

    /// Writes submitted changes.
    fn serve(&mut self, mut store: Store) -> End {
        let shared = Arc::clone(&self.shared);
        // If no change waits, a successful opening must suffice.
        if shared.queue().changes.is_empty() {
            self.works(None);
        }
        loop {
            let mut queue = shared.wait();
            let work = Work::take(&mut queue);
            shared.set_in_flight(work.changes.len());
            drop(queue);
            if let Some(damage) = &work.damage {
                return self.damaged(store, damage, work.changes);
            }
            if work.is_none() {
                return End::Closed;
            }
            let written = shared.busy(|| {
                if work.lost {
                    store.empty()?;
                }
                store.commit(&work.changes)
            });
            match written {
                Ok(()) => {
                    shared.set_in_flight(0);
                    self.works(Some(work.handed));
                    if work.lost {
                        self.tell(Event::Emptied);
                    }
                    self.tend_log(&store);
                }
                Err(error) => {
                    shared.change(|queue| {
                        queue.lost |= work.lost;
                        queue.give_back(work.changes);
                    });
                    shared.set_in_flight(0);
                    if error.is_damage() {
                        return self.damaged(store, &error.to_string(), Changes::new());
                    }
                    self.failed(&error.to_string());
                    if work.closed || shared.pause(PAUSE) {
                        return End::Closed;
                    }
                    if !error.is_passing() {
                        self.reader = None;
                        return End::Failed;
                    }
                }
            }
        }
    }

    /// Moves the file aside, together with its reader.
    fn damaged(&mut self, store: Store, damage: &str, changes: Changes) -> End {
        self.shared.change(|queue| queue.give_back(changes));
        self.shared.set_in_flight(0);
        drop(store);
        self.reader = None;
        match set_aside(&self.path, damage) {
            Ok(()) => {
                self.tell(Event::Emptied);
                End::Damaged
            }
            Err(error) => {
                self.failed(&error.to_string());
                End::Failed
            }
        }
    }

    fn tend_log(&mut self, store: &Store) {
        self.commits += 1;
        if self.commits < COPY_EVERY {
            return;
        }
        self.commits = 0;
        if self.log_pages.swap(0, Ordering::Relaxed) > LOG_PAGES {
            self.shared.busy(|| store.restart_log());
        }
        if let Some(reader) = &self.reader {
            reader.request(Request::Copy(Arc::clone(&self.log_pages)));
        }
    }
}

/// A batch taken from the queue.
struct Work {
    changes: Changes,
    handed: u64,
    lost: bool,
    damage: Option<String>,
    closed: bool,
}

impl Work {
    fn take(queue: &mut Queue) -> Self {
        Self {
            changes: mem::take(&mut queue.changes),
            handed: queue.handed,
            lost: mem::take(&mut queue.lost),
            damage: queue.damage.take(),
            closed: queue.closed,
        }
    }

    fn is_none(&self) -> bool {
        self.changes.is_empty() && !self.lost
    }
}

fn set_aside(path: &Path, cause: &str) -> Result<(), OpenError> {
    let aside = move_aside(path).map_err(OpenError::Aside)?;
    tracing::error!("journal {} is damaged ({cause}): moved to {}", path.display(), aside.display());
    Ok(())
}
