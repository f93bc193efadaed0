//! The event log: events in segment files that outlive the process, written by a thread of its own.

mod follow;
mod line;
mod segment;
mod store;
mod writer;

pub use follow::Follow;

use line::Stamped;
use serde::Serialize;
use shunt_admin_model::{AgentFacts, AgentWhat, Event, Facts};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use store::{Former, Segment, Store};
use thiserror::Error;
use tokio::sync::watch;

/// Where the log is, and how much it keeps.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub directory: PathBuf,
    /// A segment that has so many bytes is followed by another one.
    pub segment_bytes: u64,
    /// The log keeps at most `segments * segment_bytes` bytes.
    pub segments: u32,
    /// Events that may wait for the writer; what comes then is dropped, and shows as a gap.
    pub queue: usize,
}

impl LogSettings {
    /// 8 segments of 8 MiB.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            segment_bytes: 8 << 20,
            segments: 8,
            queue: 16_384,
        }
    }
}

/// Why the log cannot be written or read.
#[derive(Debug, Error)]
pub enum LogError {
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    #[error("{0} is in use by another process")]
    Locked(PathBuf),
}

/// The log as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogStatus {
    /// The first event that is kept, and the number of the next one.
    pub first: u64,
    pub next: u64,
    pub bytes: u64,
    pub segments: usize,
    /// Events of this epoch.
    pub written: u64,
    pub dropped: u64,
    /// Why nothing is written at present: events wait, the latest are dropped where too many do.
    pub error: Option<String>,
}

/// What appenders, writer and readers share.
#[derive(Debug)]
struct Shared {
    epoch: u64,
    segments: Mutex<Vec<Segment>>,
    /// The number after the last one that readers may read.
    next: watch::Sender<u64>,
    written: AtomicU64,
    dropped: AtomicU64,
    error: Mutex<Option<String>>,
}

/// A panic while a lock was held leaves plain values that are as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn drop_events(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Appender {
    seq: u64,
    /// `None`: closed. Events are boxed, because the queue allocates all of its places at the start.
    queue: Option<SyncSender<Box<Stamped>>>,
}

/// The log, for those who append and those who follow. Clones are one log. Where the directory cannot be written, events wait, those beyond 8 MiB
/// and the queue are dropped and counted, the error is in [`EventLog::status`], and the writer tries again each second.
#[derive(Clone, Debug)]
pub struct EventLog {
    began: Instant,
    appender: Arc<Mutex<Appender>>,
    shared: Arc<Shared>,
    done: Arc<Mutex<Receiver<()>>>,
}

fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl EventLog {
    /// Open the log, begin an epoch, and append its first event.
    ///
    /// An epoch's numbers begin with its Unix time in µs, or after the last one kept if that is higher: so they never go back, even when the
    /// directory or its last writes are lost.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn open(settings: LogSettings) -> io::Result<Self> {
        let opened = Store::open(&settings);
        let former = opened.as_ref().map_or(Former::default(), |(_, former)| *former);
        let now = unix_us();
        let seq = former.last.map_or(now, |last| now.max(last + 1));
        let shared = Arc::new(Shared {
            epoch: (now / 1_000_000).max(former.epoch.saturating_add(1)),
            segments: Mutex::default(),
            next: watch::Sender::new(seq),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            error: Mutex::default(),
        });
        let (queue, events) = sync_channel(settings.queue.max(16));
        let (finished, done) = sync_channel(1);
        let writer = writer::Writer::new(settings, opened, former.last, shared.clone());
        std::thread::Builder::new().name("event-log".to_owned()).spawn(move || {
            writer.run(&events);
            // Nobody waits when the log was dropped instead of closed.
            let _ = finished.send(());
        })?;
        let log = Self {
            began: Instant::now(),
            appender: Arc::new(Mutex::new(Appender { seq, queue: Some(queue) })),
            shared,
            done: Arc::new(Mutex::new(done)),
        };
        log.append(Event::of_agent(Facts::Agent(AgentFacts {
            previous_seq: former.last,
            clean: former.last.map(|_| former.clean),
            ..AgentFacts::of(AgentWhat::Started)
        })));
        Ok(log)
    }

    /// Append an event. It never blocks: what does not fit into the queue is dropped and counted. Numbers are given in the order of the calls.
    pub fn append(&self, event: Event) {
        let (time, mono) = (unix_us(), self.began.elapsed());
        let ago = event.ago;
        let mut appender = lock(&self.appender);
        let seq = appender.seq;
        let Some(queue) = &appender.queue else { return };
        let stamped = Box::new(Stamped {
            seq,
            time_us: time.saturating_sub(micros(ago)),
            mono_us: micros(mono.saturating_sub(ago)),
            event,
        });
        match queue.try_send(stamped) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.shared.drop_events(1),
        }
        appender.seq += 1;
    }

    /// Append the epoch's last event, and block until everything is written, for at most `most`. Events after that are ignored.
    /// Returns whether it was written in time.
    pub fn close(&self, most: Duration) -> bool {
        self.append(Event::of_agent(Facts::Agent(AgentFacts::of(AgentWhat::Stopped))));
        lock(&self.appender).queue = None;
        lock(&self.done).recv_timeout(most).is_ok()
    }

    /// Read from this number on; `None`: all that is kept.
    #[must_use]
    pub fn follow(&self, from: Option<u64>) -> Follow {
        Follow::new(self.shared.clone(), from)
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    #[must_use]
    pub fn status(&self) -> LogStatus {
        // First: what counts as written is in the rest.
        let written = self.shared.written.load(Ordering::Acquire);
        let segments = lock(&self.shared.segments);
        let next = *self.shared.next.borrow();
        LogStatus {
            first: segments.first().map_or(next, |segment| segment.first),
            next,
            bytes: segments.iter().map(|segment| segment.length).sum(),
            segments: segments.len(),
            written,
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            error: lock(&self.shared.error).clone(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
