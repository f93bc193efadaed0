//! Restores calls of the journal: in the background, and at once if a command or a relay port names one.

use crate::core::Core;
use shunt_admin::CallWhat;
use shunt_calls::{RestoreError, Row, RowKey};
use shunt_journal::{Event, LONGEST_WAIT, Reader};
use shunt_rtpproxy::{PortsReply, Reply};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Rows restored before the loop yields.
const AT_ONCE: usize = 50;

#[derive(Clone, Debug)]
enum Phase {
    /// The journal is not open yet.
    Opening,
    Reading(Arc<Reader>),
    /// All rows are in the book, or there is no journal.
    Done,
}

/// Rows that are not restored yet.
#[derive(Debug)]
pub struct Restorer {
    phase: watch::Sender<Phase>,
    seen: Mutex<Seen>,
    /// Call-IDs of the journal that are not in the book yet.
    left: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    /// Call-IDs with all rows in the book.
    calls: HashSet<Box<[u8]>>,
    /// Rows that have ended since: the journal's content is older.
    ended: HashSet<RowKey>,
}

impl Restorer {
    #[must_use]
    pub fn new(has_journal: bool) -> Self {
        let phase = if has_journal { Phase::Opening } else { Phase::Done };
        Self {
            phase: watch::Sender::new(phase),
            seen: Mutex::default(),
            left: AtomicU64::new(0),
        }
    }

    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn seen<R>(&self, look: impl FnOnce(&mut Seen) -> R) -> R {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_done(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Done)
    }

    /// Records that a row has ended.
    pub fn ended(&self, key: &RowKey) {
        if !self.is_done() {
            self.seen(|seen| seen.ended.insert(key.clone()));
        }
    }

    /// Records that the journal cannot be opened: calls are served without it.
    pub fn go_without(&self, core: &Core) {
        let was_opening = self.phase.send_if_modified(|phase| {
            matches!(phase, Phase::Opening) && {
                *phase = Phase::Done;
                true
            }
        });
        if was_opening {
            core.set_restored();
        }
    }

    /// Restores the lines of a Call-ID that are in the journal and not in the book yet. A slow disk is not waited for.
    pub async fn restore_call(&self, core: &Arc<Core>, call_id: &[u8]) {
        if self.is_done() || self.seen(|seen| seen.calls.contains(call_id)) {
            return;
        }
        let _ = timeout(LONGEST_WAIT, async {
            let Some(reader) = self.reader().await else { return };
            self.take_back(core, &reader.of_call(call_id).await);
            self.seen(|seen| seen.calls.insert(call_id.into()));
        })
        .await;
    }

    /// Restores the lines that hold the ports in a reply.
    pub async fn restore_holders(&self, core: &Arc<Core>, reply: &[u8]) {
        if self.is_done() {
            return;
        }
        let parts = Reply::new(reply).ports().unwrap_or_default();
        let _ = timeout(LONGEST_WAIT, async {
            let Some(reader) = self.reader().await else { return };
            for part in parts {
                if let PortsReply::Port(port) = part {
                    self.take_back(core, &reader.of_port(port.port).await);
                }
            }
        })
        .await;
    }

    /// Waits until the journal is open; `None`: nothing is left to read.
    async fn reader(&self) -> Option<Arc<Reader>> {
        let mut phase = self.phase.subscribe();
        match &*phase.wait_for(|phase| !matches!(phase, Phase::Opening)).await.ok()? {
            Phase::Reading(reader) => Some(Arc::clone(reader)),
            _ => None,
        }
    }

    /// Puts rows into the book that are not there already. Returns their number.
    fn take_back(&self, core: &Arc<Core>, rows: &[Row]) -> u64 {
        let mut restored = 0;
        for row in rows {
            if self.seen(|seen| seen.ended.contains(&row.key)) {
                continue;
            }
            let wall = core.clock().wall();
            let result = core.update(|book, now| {
                let is_first = book.lines_of_call(&row.key.call_id.0).next().is_none();
                (book.restore(now, wall, row).map(|_| is_first), Vec::new())
            });
            match result {
                Ok(is_first) => {
                    restored += 1;
                    if is_first {
                        core.events().call(&row.key.call_id.0, CallWhat::Restored);
                    }
                    let left = self.left().saturating_sub(u64::from(is_first));
                    self.left.store(left, Ordering::Relaxed);
                }
                Err(RestoreError::Present) => {}
                Err(error) => core.set_aside(row.key.clone(), &error.to_string()),
            }
        }
        restored
    }

    async fn restore_all(&self, core: &Arc<Core>, reader: Reader) {
        let began = Instant::now();
        let reader = Arc::new(reader);
        self.seen(|seen| *seen = Seen::default());
        self.phase.send_replace(Phase::Reading(Arc::clone(&reader)));
        let calls = reader.count().await;
        self.left.store(calls, Ordering::Relaxed);
        let mut restored = 0;
        let mut read = reader.piece().await;
        while let Some(rows) = read {
            let take_back = async {
                for rows in rows.chunks(AT_ONCE) {
                    restored += self.take_back(core, rows);
                    tokio::task::yield_now().await;
                }
            };
            // The next rows are read meanwhile.
            (read, ()) = tokio::join!(reader.piece(), take_back);
        }
        self.phase.send_replace(Phase::Done);
        self.seen(|seen| *seen = Seen::default());
        self.left.store(0, Ordering::Relaxed);
        if calls > 0 {
            let took = began.elapsed().as_millis();
            tracing::info!("{restored} media lines of {calls} calls are restored from the journal, in {took} ms");
        }
        core.set_restored();
        let core = Arc::clone(core);
        tokio::spawn(async move { core.look_at_restored().await });
    }
}

/// Returns the documents of the previously active agent.
async fn carry_on(core: &Arc<Core>, reader: &Reader) {
    let documents = loop {
        match reader.documents().await {
            Some(documents) => break documents,
            None => tokio::time::sleep(LONGEST_WAIT).await,
        }
    };
    core.restore_group_drain(&documents);
    if let Some(conferences) = core.conferences() {
        conferences.carry_on(&documents);
    }
}

/// Handles the journal's notices until it is closed.
pub async fn follow(core: Arc<Core>, events: &mut mpsc::UnboundedReceiver<Event>) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Opened(reader) => {
                if core.pair().is_some() {
                    carry_on(&core, &reader).await;
                }
                core.restorer().restore_all(&core, reader).await;
            }
            // Only after all readable rows are in the book.
            Event::Emptied => core.write_everything(),
        }
    }
    std::future::pending::<()>().await;
}
