//! The thread that writes the event log.

use super::line::Stamped;
use super::store::{Former, Store};
use super::{LogError, LogSettings, Shared, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Events are written in groups: how long the first waits for more, and how many bytes are written at once. To wake this thread, and all that
/// follow the log, costs more than to write some dozen events.
const COALESCE: Duration = Duration::from_millis(100);
const GROUP_BYTES: usize = 256 << 10;
const RETRY: Duration = Duration::from_secs(1);
/// Bytes that wait while the log cannot be written. Events beyond that are dropped.
const MOST_WAITING: usize = 8 << 20;

pub(super) struct Writer {
    settings: LogSettings,
    store: Option<Store>,
    retry_at: Instant,
    /// The last number written.
    last: Option<u64>,
    shared: Arc<Shared>,
}

/// Lines that are written together. They stay until they are written.
#[derive(Default)]
struct Group {
    lines: Vec<u8>,
    count: u64,
    first: u64,
    last: u64,
}

impl Writer {
    pub(super) fn new(settings: LogSettings, opened: Result<(Store, Former), LogError>, last: Option<u64>, shared: Arc<Shared>) -> Self {
        let mut writer = Self {
            settings,
            store: None,
            retry_at: Instant::now(),
            last,
            shared,
        };
        writer.opened(opened);
        writer
    }

    fn opened(&mut self, opened: Result<(Store, Former), LogError>) {
        match opened {
            Ok((store, former)) => {
                self.last = self.last.max(former.last);
                self.store = Some(store);
                self.publish(None);
            }
            Err(error) => {
                self.retry_at = Instant::now() + RETRY;
                self.failed(&error);
            }
        }
    }

    /// Write until all senders are gone.
    pub(super) fn run(mut self, events: &Receiver<Box<Stamped>>) {
        let mut group = Group::default();
        loop {
            let next = if group.count == 0 {
                events.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                events.recv_timeout(RETRY)
            };
            match next {
                Ok(event) => {
                    self.add(&mut group, &event);
                    std::thread::sleep(COALESCE);
                    while let Ok(event) = events.try_recv() {
                        self.add(&mut group, &event);
                        if group.lines.len() >= GROUP_BYTES {
                            self.write(&mut group);
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.write(&mut group);
        }
        self.retry_at = Instant::now();
        self.write(&mut group);
        self.shared.drop_events(group.count);
    }

    fn add(&self, group: &mut Group, event: &Stamped) {
        // Only where a directory was late to open can it have higher numbers.
        let late = self.last.is_some_and(|last| event.seq <= last);
        if late || group.lines.len() >= MOST_WAITING || !event.write(self.shared.epoch, &mut group.lines) {
            self.shared.drop_events(1);
            return;
        }
        if group.count == 0 {
            group.first = event.seq;
        }
        group.last = event.seq;
        group.count += 1;
    }

    fn write(&mut self, group: &mut Group) {
        if group.count > 0 && self.store.is_none() && Instant::now() >= self.retry_at {
            self.opened(Store::open(&self.settings));
            if self.last.is_some_and(|last| group.first <= last) {
                self.shared.drop_events(group.count);
                *group = Group::default();
            }
        }
        if group.count == 0 || Instant::now() < self.retry_at {
            return;
        }
        let result = self.store.as_mut().map(|store| store.append(group.first, &group.lines));
        match result {
            Some(Ok(())) => {
                self.last = Some(group.last);
                self.publish(Some(group.last + 1));
                // Last: what counts as written can be read.
                self.shared.written.fetch_add(group.count, Ordering::Release);
                if lock(&self.shared.error).take().is_some() {
                    tracing::info!("event log: events are written again");
                }
                group.lines.clear();
                group.count = 0;
            }
            Some(Err(error)) => {
                // Old segments may have been removed all the same.
                self.publish(None);
                self.retry_at = Instant::now() + RETRY;
                self.failed(&error);
            }
            None => {}
        }
    }

    /// Show readers the segments, and the number after the last event. Both under one lock: a reader that finds the event finds its number given.
    fn publish(&self, next: Option<u64>) {
        let mut segments = lock(&self.shared.segments);
        if let Some(store) = &self.store {
            segments.clear();
            segments.extend(store.segments.iter().cloned());
        }
        if let Some(next) = next {
            self.shared.next.send_replace(next);
        }
    }

    /// Say it once for as long as the cause stays the same.
    fn failed(&self, error: &LogError) {
        let text = error.to_string();
        let mut said = lock(&self.shared.error);
        if said.as_deref() != Some(&text) {
            tracing::error!("event log: {text}; events wait, and are dropped where too many do");
            *said = Some(text);
        }
    }
}
