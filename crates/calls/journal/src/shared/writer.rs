//! The thread that writes submitted changes to Redis once this agent is active.

use super::link::{Link, LinkError};
use super::{Opened, SharedSettings, rows};
use crate::change::{Changes, Documents};
use crate::journal::{Event, Progress, Shared};
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Writer {
    runtime: Runtime,
    link: Link,
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<Event>,
    reader: Option<Opened>,
    /// The last field: dropping it notifies the waiter for the end.
    progress: watch::Sender<Progress>,
}

impl Writer {
    pub(crate) fn new(
        settings: SharedSettings,
        shared: Arc<Shared>,
        progress: watch::Sender<Progress>,
        events: mpsc::UnboundedSender<Event>,
    ) -> io::Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            link: Link::new(settings),
            shared,
            events,
            reader: None,
            progress,
        })
    }

    /// Writes until the journal is closed.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        if !shared.wait_until_begun() {
            while !self.open() {
                if shared.pause(PAUSE) {
                    return;
                }
            }
            while self.write() {}
        }
        if let Some(reader) = self.reader.take() {
            reader.stop();
        }
    }

    fn open(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        match shared.busy(|| self.runtime.block_on(rows::open(&mut self.link))) {
            Ok(moved) => {
                if moved {
                    tracing::error!(
                        "journal {}: its rows are of another version and are moved aside",
                        self.link.settings.name()
                    );
                }
            }
            Err(error) => {
                self.failed(&error);
                return false;
            }
        }
        match Opened::start(self.link.settings.clone(), shared, self.events.clone()) {
            Ok(reader) => self.reader = Some(reader),
            Err(error) => tracing::error!("journal: no thread to read with: {error}"),
        }
        self.works(None);
        true
    }

    /// Writes once. Returns whether to continue.
    fn write(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.wait();
        let (mut changes, mut documents) = (mem::take(&mut queue.changes), mem::take(&mut queue.documents));
        let (handed, lost, closed) = (queue.handed, mem::take(&mut queue.lost), queue.closed);
        shared.set_in_flight(changes.len() + documents.len());
        drop(queue);
        if changes.is_empty() && documents.is_empty() && !lost {
            return !closed;
        }
        let written = shared.busy(|| {
            self.runtime.block_on(async {
                if lost {
                    rows::empty(&mut self.link).await?;
                }
                rows::commit(&mut self.link, &mut changes, &mut documents).await
            })
        });
        let result = match written {
            Ok(()) => {
                self.works(Some(handed));
                if lost {
                    self.tell_emptied();
                }
                true
            }
            Err(error) => {
                self.give_back(lost, changes, documents);
                if error.is_damage() && self.runtime.block_on(rows::set_aside(&mut self.link)).is_ok() {
                    tracing::error!(
                        "journal {}: its rows are damaged ({error}) and are moved aside",
                        self.link.settings.name()
                    );
                    self.tell_emptied();
                }
                self.failed(&error);
                !closed && !shared.pause(PAUSE)
            }
        };
        shared.set_in_flight(0);
        result
    }

    fn give_back(&self, lost: bool, changes: Changes, documents: Documents) {
        self.shared.change(|queue| {
            queue.lost |= lost;
            queue.give_back(changes);
            queue.give_back_documents(documents);
        });
    }

    fn tell_emptied(&self) {
        // A stopping agent does not listen any more.
        let _ = self.events.send(Event::Emptied);
    }

    /// Logs a failure when it begins, and when its reason changes.
    fn failed(&self, error: &LinkError) {
        let error = error.to_string();
        self.progress.send_modify(|now| {
            if now.failing.as_ref() != Some(&error) {
                let name = self.link.settings.name();
                tracing::error!("journal {name}: {error}; calls go on, another agent would not know the latest");
            }
            now.failing = Some(error);
            now.failures += 1;
        });
    }

    fn works(&self, committed: Option<u64>) {
        self.progress.send_modify(|now| {
            if now.failing.take().is_some() {
                tracing::warn!("journal {}: works again", self.link.settings.name());
            }
            now.committed = committed.unwrap_or(now.committed);
        });
    }
}
