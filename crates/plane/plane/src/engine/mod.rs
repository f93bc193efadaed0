//! The task that forms batches and passes on the data plane's notices.

mod hashes;
mod results;
mod session;

use crate::admission::{Admission, Change};
use crate::audit::Audit;
use crate::batch::{Batch, Item};
use crate::collisions::Collisions;
use crate::come_up::refresh_greylist;
use crate::event::{Event, FormerMedia};
use crate::former::Former;
use crate::pace::Pace;
use crate::plane::{Link, Shared};
use crate::questions;
use crate::queue::{Job, Queue};
use crate::settings::Settings;
use bytes::Bytes;
use shunt_bfrt_client as client;
use shunt_calls::{Idle, Operation, Outcome, RelayEntry, WriteId};
use shunt_latch::Found;
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Operations per batch.
const AT_ONCE: usize = 1000;
/// Concurrent batches, so that one without an answer does not block the others.
const UNDER_WAY: usize = 8;
/// Coalescing window for writes without a waiter.
const COALESCE: Duration = Duration::from_millis(4);
/// Coalescing window for rows that admit a source: a call's two ports are opened within a millisecond of each other.
const COALESCE_ADMITTED: Duration = Duration::from_millis(1);
const COMMANDS: usize = 256;
/// Pause after a failed audit.
const AUDIT_AGAIN: Duration = Duration::from_secs(5);
/// By then the addresses of running calls are on the allowlist.
const GREYLIST_AFTER: Duration = Duration::from_millis(100);
const GREYLIST_EVERY: Duration = Duration::from_secs(43_200);

/// Requests from the handles.
pub(crate) enum Command {
    Write(Vec<(WriteId, Operation)>),
    Filter(Endpoint, Option<Arc<[IpAddr]>>),
    Allow(Vec<IpAddr>),
    Block(Found),
    DeleteOrphans(Vec<FiveTuple>),
    ReadIdle(Vec<FiveTuple>),
    Expect(Vec<FiveTuple>),
    Audit,
}

/// Results of tasks; `u64`: the session in which each began.
enum Done {
    Up(u64, Box<Result<Link, String>>),
    Batch(u64, Batch),
    Table(u64, Option<(Vec<RelayEntry>, HashSet<Endpoint>)>),
    Samples(u64),
    Idle(Vec<Idle>),
    /// These media ranges are removed.
    Removed(Vec<FormerMedia>),
    Nothing,
}

pub(crate) struct Engine {
    settings: Arc<Settings>,
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    link: watch::Sender<Result<Link, String>>,
    up: Option<Link>,
    session: u64,
    queue: Queue,
    admission: Admission,
    /// When waiting filter rows must be sent.
    rows_due: Option<Instant>,
    collisions: [Option<Collisions>; 2],
    pace: Pace,
    /// What each task has under way, for a task that ends without a result.
    batches: HashMap<tokio::task::Id, Vec<Job>>,
    audit: Audit,
    /// Since when entries are idle, for a target that reports only that they are.
    idle_since: HashMap<FiveTuple, Instant>,
    /// Whether rows of sampled streams are being written.
    sampling: bool,
    greylist_due: Option<Instant>,
    former_media: Former,
    tasks: JoinSet<Done>,
    out: Vec<Event>,
}

impl Engine {
    pub(crate) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        events: mpsc::Sender<Event>,
        link: watch::Sender<Result<Link, String>>,
    ) -> Self {
        Self {
            audit: Audit::new(settings.audit_every),
            settings: Arc::new(settings),
            shared,
            events,
            link,
            up: None,
            session: 0,
            queue: Queue::default(),
            admission: Admission::default(),
            rows_due: None,
            collisions: [None, None],
            pace: Pace::default(),
            batches: HashMap::new(),
            idle_since: HashMap::new(),
            sampling: false,
            greylist_due: None,
            former_media: Former::default(),
            tasks: JoinSet::new(),
            out: Vec::new(),
        }
    }

    /// Runs until all handles, or the receiver of the events, are gone.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>, mut client_events: mpsc::Receiver<client::Event>) {
        let mut taken = Vec::with_capacity(COMMANDS);
        loop {
            self.work(Instant::now());
            for event in std::mem::take(&mut self.out) {
                if self.events.send(event).await.is_err() {
                    return;
                }
            }
            let due = self.due();
            tokio::select! {
                Some(done) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.done(done),
                count = commands.recv_many(&mut taken, COMMANDS) => {
                    if count == 0 {
                        return;
                    }
                    for command in taken.drain(..) {
                        self.command(Instant::now(), command);
                    }
                }
                event = client_events.recv() => match event {
                    Some(event) => self.client_event(event),
                    None => return,
                },
                () = sleep_until(due), if due.is_some() => {}
            }
        }
    }

    // -- what is due -------------------------------------------------------------------------------

    /// Returns the next deadline.
    fn due(&self) -> Option<Instant> {
        self.up.as_ref()?;
        let refresh = self.admission.next_refresh();
        let times = [self.batch_due(Instant::now()), refresh, self.audit.due(), self.greylist_due];
        times.into_iter().flatten().min()
    }

    fn batch_due(&self, now: Instant) -> Option<Instant> {
        if self.batches.len() >= UNDER_WAY {
            return None;
        }
        let due = [self.queue.due(), self.rows_due].into_iter().flatten().min()?;
        Some(due.max(self.pace.allowed(now)))
    }

    fn work(&mut self, now: Instant) {
        let Some(link) = self.up.clone() else { return };
        if self.admission.next_refresh().is_some_and(|at| at <= now) {
            self.rows_due.get_or_insert(now);
        }
        while self.batch_due(now).is_some_and(|due| due <= now) {
            self.send(now, &link);
        }
        if self.audit.begin(now, self.queue.busy_ports()) {
            let (session, link) = (self.session, link.clone());
            self.tasks.spawn(async move {
                let found = questions::entries(&link.session, &link.tables).await;
                let found = found.inspect_err(|error| tracing::warn!("the relay tables cannot be read: {error}"));
                if link.tables.samples.is_some() {
                    // Losses are the difference between two readings.
                    let _ = questions::all_counters(&link.session, &link.tables).await;
                }
                Done::Table(session, found.ok())
            });
        }
        if !self.sampling
            && let Some(samples) = link.tables.samples.clone().filter(|samples| samples.samples().is_waiting())
        {
            self.sampling = true;
            let (session, link) = (self.session, link.clone());
            self.tasks.spawn(async move {
                if let Err(error) = samples.settle(&link.session).await {
                    tracing::debug!("which streams are counted is not certain: {error}");
                }
                Done::Samples(session)
            });
        }
        if self.greylist_due.is_some_and(|at| at <= now) {
            self.greylist_due = Some(now + GREYLIST_EVERY);
            let settings = Arc::clone(&self.settings);
            self.tasks.spawn(async move {
                if let Err(error) = refresh_greylist(&link.session, &link.tables, &settings).await {
                    tracing::warn!("the greylist cannot be written: {error}");
                }
                Done::Nothing
            });
        }
        self.shared.counts.now(self.queue.waiting(), self.admission.len());
    }

    /// Sends one batch.
    fn send(&mut self, now: Instant, link: &Link) {
        let mut items = Vec::new();
        for job in self.queue.take(AT_ONCE) {
            match self.claim(now, job) {
                None => items.push(Item::new(job)),
                Some(detail) => {
                    let mut item = Item::new(job);
                    item.finish(Outcome::HashCollision, Some(detail));
                    self.finish(item);
                }
            }
        }
        let changes = self.admission.take(now, AT_ONCE - items.len());
        let mut rows: Vec<(Change, Bytes)> = Vec::with_capacity(changes.len());
        for change in changes {
            match link.tables.admission.encode(&change, self.settings.block_for) {
                Some(update) => rows.push((change, update)),
                None => self.admission.has_no_table(&change),
            }
        }
        self.rows_due = self.admission.is_dirty().then_some(now);
        if items.is_empty() && rows.is_empty() {
            return;
        }
        self.shared.counts.batch(items.len() + rows.len());
        self.pace.sent(now);
        let batch = Batch {
            items,
            rows,
            answers: Vec::new(),
            retries: 0,
        };
        let (session, tables) = (link.session.clone(), Arc::clone(&link.tables));
        let jobs = batch.items.iter().map(|item| item.job).collect();
        let number = self.session;
        // Tokio moves a task's future several times. A batch with its gRPC calls is kilobytes, so it is boxed.
        let carried_out = Box::pin(batch.carry_out(session, tables));
        let task = self.tasks.spawn(async move { Done::Batch(number, carried_out.await) });
        self.batches.insert(task.id(), jobs);
    }

    // -- commands ----------------------------------------------------------------------------------

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Write(writes) => {
                for (id, operation) in writes {
                    self.push(now, Some(id), operation);
                }
            }
            Command::DeleteOrphans(keys) => {
                for key in keys {
                    self.push(now + COALESCE, None, Operation::Delete(key));
                }
            }
            Command::Filter(port, allowed) => {
                let admits = self.admission.filter(now, port, allowed);
                self.rows_by(now + if admits { COALESCE_ADMITTED } else { COALESCE });
            }
            Command::Allow(addresses) => {
                let mut admits = false;
                for addr in addresses {
                    admits |= self.admission.allow(now, addr);
                }
                self.rows_by(now + if admits { COALESCE_ADMITTED } else { COALESCE });
            }
            Command::Block(found) => {
                if self.admission.block(now, found, self.settings.block_for) {
                    tracing::info!(
                        "blocked for {:?}: {found:?} sends to many ports that no call has",
                        self.settings.block_for
                    );
                    self.rows_by(now);
                }
            }
            Command::ReadIdle(keys) => self.read_idle(keys),
            Command::Expect(keys) => {
                for key in keys {
                    let holder = self.collisions_of(&key).and_then(|collisions| collisions.expect(now, key));
                    self.out.extend(holder.map(|holder| Event::Collision { key, holder }));
                }
            }
            Command::Audit => self.audit.hurry(now),
        }
    }

    fn rows_by(&mut self, due: Instant) {
        if self.admission.is_dirty() {
            self.rows_due = Some(self.rows_due.map_or(due, |before| before.min(due)));
        }
    }

    fn push(&mut self, now: Instant, id: Option<WriteId>, operation: Operation) {
        let due = match operation {
            Operation::Delete(_) => now,
            _ => now + COALESCE,
        };
        let job = Job {
            id,
            operation,
            given: now,
            due,
        };
        if self.up.is_none() {
            let mut item = Item::new(job);
            item.finish(Outcome::Unavailable, None);
            self.result(item);
            return;
        }
        self.audit.wrote(job.key().dst);
        self.queue.push(job);
    }

    fn read_idle(&mut self, keys: Vec<FiveTuple>) {
        let Some(link) = self.up.clone() else { return };
        self.tasks.spawn(async move {
            match questions::idle_times(&link.session, &link.tables, &keys).await {
                Ok(idle) => Done::Idle(idle),
                Err(error) => {
                    tracing::debug!("idle times of {} entries: {error}", keys.len());
                    Done::Nothing
                }
            }
        });
    }
}

async fn sleep_until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due.into()).await;
    }
}
