//! The journal's handle: changes are submitted without waiting, and status is read. It is the same for a file and for Redis.

use crate::change::{Change, Queue};
use crate::reader::Reader;
use crate::shared::{SharedSettings, Writer as SharedWriter};
use crate::writer;
use shunt_calls::{Row, RowKey};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Longest wait of [`Journal::kept`]; a disk that takes longer is no longer waited for.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// Time without an answer from the disk after which the journal counts as failing.
const SLOW: Duration = Duration::from_secs(1);
/// How long [`Journal::close`] waits for the disk.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Notices of the journal to the agent.
#[derive(Debug)]
pub enum Event {
    /// The journal is open; its content must be restored.
    Opened(Reader),
    /// The journal has lost its content: submit all lines anew.
    Emptied,
}

/// Status of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Failed commits and attempts to open.
    pub failures: u64,
    /// Waiting rows.
    pub pending: u64,
    /// Reason of the present failure.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Number of submitted changes.
    pub(crate) committed: u64,
    pub(crate) failing: Option<String>,
    pub(crate) failures: u64,
}

/// State shared by the threads and the handle.
#[derive(Debug)]
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    given: Condvar,
    start: Instant,
    /// Since when the disk is waited for, in ms from `start`, plus 1; 0: it is not.
    busy_since: AtomicU64,
    /// Rows that are being written.
    in_flight: AtomicUsize,
}

impl Shared {
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue());
        self.given.notify_one();
    }

    /// Waits for work.
    pub(crate) fn wait(&self) -> MutexGuard<'_, Queue> {
        let waited = self.given.wait_while(self.queue(), |queue| queue.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this agent is active. Returns whether the journal is closed.
    pub(crate) fn wait_until_begun(&self) -> bool {
        let waited = self.given.wait_while(self.queue(), |queue| queue.is_held && !queue.closed);
        waited.unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Waits for a time, or until the journal is closed. Returns whether it is.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let waited = self.given.wait_timeout_while(self.queue(), duration, |queue| !queue.closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Marks the disk as busy while `work` runs.
    pub(crate) fn busy<R>(&self, work: impl FnOnce() -> R) -> R {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.busy_since.store(now + 1, Ordering::Relaxed);
        let result = work();
        self.busy_since.store(0, Ordering::Relaxed);
        result
    }

    /// Records rows that have left the queue and are not written yet.
    pub(crate) fn set_in_flight(&self, rows: usize) {
        self.in_flight.store(rows, Ordering::Relaxed);
    }

    /// Returns how long the disk has been waited for.
    fn waited(&self) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.start.elapsed().saturating_sub(Duration::from_millis(since - 1)),
        }
    }
}

/// A journal.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    kind: &'static str,
}

/// Documents other than calls, by name, in a journal that agents share.
#[derive(Clone, Debug)]
pub struct Documents(Arc<Shared>);

impl Documents {
    /// Submits a document.
    pub fn put(&self, name: &str, body: Vec<u8>) {
        self.0.change(|queue| queue.give_document(name.to_owned(), Some(body)));
    }

    /// Submits the deletion of a document.
    pub fn remove(&self, name: &str) {
        self.0.change(|queue| queue.give_document(name.to_owned(), None));
    }
}

impl Shared {
    fn new(is_held: bool) -> Arc<Self> {
        let queue = Queue {
            is_held,
            ..Queue::default()
        };
        Arc::new(Self {
            queue: Mutex::new(queue),
            given: Condvar::new(),
            start: Instant::now(),
            busy_since: AtomicU64::new(u64::from(!is_held)),
            in_flight: AtomicUsize::new(0),
        })
    }
}

impl Journal {
    /// Starts to open the journal at `path`. It accepts changes at once, and retries while the file cannot be opened.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(path: PathBuf) -> io::Result<(Self, mpsc::UnboundedReceiver<Event>)> {
        let shared = Shared::new(false);
        let (told, progress) = watch::channel(Progress::default());
        let (events, receiver) = mpsc::unbounded_channel();
        let writer = writer::Writer::new(path, Arc::clone(&shared), told, events);
        thread::Builder::new().name("journal".into()).spawn(move || writer.run())?;
        let kind = "sqlite";
        Ok((Self { shared, progress, kind }, receiver))
    }

    /// Prepares a journal in Redis. Nothing is opened before [`Journal::begin`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start_shared(settings: SharedSettings) -> io::Result<(Self, mpsc::UnboundedReceiver<Event>)> {
        let shared = Shared::new(true);
        let (told, progress) = watch::channel(Progress::default());
        let (events, receiver) = mpsc::unbounded_channel();
        let writer = SharedWriter::new(settings, Arc::clone(&shared), told, events)?;
        thread::Builder::new().name("journal".into()).spawn(move || writer.run())?;
        let kind = "redis";
        Ok((Self { shared, progress, kind }, receiver))
    }

    /// Starts a shared journal: this agent is active from now on.
    pub fn begin(&self) {
        self.shared.change(|queue| queue.is_held = false);
    }

    /// `sqlite` or `redis`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the handle for documents other than calls.
    #[must_use]
    pub fn documents(&self) -> Documents {
        Documents(Arc::clone(&self.shared))
    }

    /// Submits a row.
    pub fn put(&self, row: &Row) {
        match Change::put(row) {
            Ok(change) => self.give(row.key.clone(), change),
            Err(error) => tracing::error!("journal: a row cannot be written: {error}"),
        }
    }

    /// Submits the end of a row.
    pub fn remove(&self, key: RowKey) {
        self.give(key, Change::Remove);
    }

    /// Submits that a row cannot be used, with the reason: it is stored separately.
    pub fn set_aside(&self, key: RowKey, reason: String) {
        self.give(key, Change::SetAside(reason));
    }

    fn give(&self, key: RowKey, change: Change) {
        self.shared.change(|queue| queue.give(key, change));
    }

    /// Waits until all submitted changes are committed: at most [`LONGEST_WAIT`], and not at all while the store fails or one commit has
    /// taken longer. Returns whether they are committed.
    pub async fn kept(&self) -> bool {
        let handed = self.shared.queue().handed;
        let is_over = |now: &Progress| now.committed >= handed || now.failing.is_some();
        let left = LONGEST_WAIT.saturating_sub(self.shared.waited());
        if !is_over(&self.progress.borrow()) {
            let mut progress = self.progress.clone();
            let _ = timeout(left, progress.wait_for(is_over)).await;
        }
        self.progress.borrow().committed >= handed
    }

    #[must_use]
    pub fn status(&self) -> Status {
        let progress = self.progress.borrow();
        let waited = self.shared.waited();
        let slow = (waited >= SLOW).then(|| format!("no answer for {} s", waited.as_secs()));
        let waiting = |queue: &Queue| queue.changes.len() + queue.documents.len();
        Status {
            failures: progress.failures,
            pending: (waiting(&self.shared.queue()) + self.shared.in_flight.load(Ordering::Relaxed)) as u64,
            error: progress.failing.clone().or(slow),
        }
    }

    /// Writes the submitted changes and closes the file; a disk that does not answer is not waited for.
    pub async fn close(&self) {
        self.shared.change(|queue| queue.closed = true);
        let mut progress = self.progress.clone();
        let ended = async { while progress.changed().await.is_ok() {} };
        if timeout(LAST_WAIT, ended).await.is_err() {
            tracing::error!("journal: no answer: {} rows are not written", self.status().pending);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.change(|queue| queue.closed = true);
    }
}
