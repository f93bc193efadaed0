//! The task that puts batches together and passes on what the data plane tells.

use crate::admission::{Admission, Change};
use crate::audit::Audit;
use crate::batch::{Batch, Item};
use crate::collisions::Collisions;
use crate::come_up::{come_up, refresh_greylist};
use crate::event::{Event, Facts, Written};
use crate::notice::Digest;
use crate::pace::Pace;
use crate::plane::{Link, Shared};
use crate::questions;
use crate::queue::{Job, Queue};
use crate::row::TableRow;
use crate::settings::Settings;
use crate::tables::Tables;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::{self, idle_timeout_notification::NotificationType};
use shunt_bfrt_client as client;
use shunt_calls::{Idle, Operation, Outcome, RelayEntry, WriteId};
use shunt_latch::Found;
use shunt_net::{Endpoint, FiveTuple};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Operations of one batch.
const AT_ONCE: usize = 1000;
/// Batches under way: one that the target has swallowed does not hold up the others.
const UNDER_WAY: usize = 8;
/// How long a write that nobody waits for waits for company.
const COALESCE: Duration = Duration::from_millis(4);
const COMMANDS: usize = 256;
/// The pause after an audit that failed.
const AUDIT_AGAIN: Duration = Duration::from_secs(5);
/// The addresses of running calls are on the allowlist by then.
const GREYLIST_AFTER: Duration = Duration::from_millis(100);
const GREYLIST_EVERY: Duration = Duration::from_secs(43_200);

/// What handles submit.
pub(crate) enum Command {
    Write(Vec<(WriteId, Operation)>),
    Filter(Endpoint, Option<Vec<IpAddr>>),
    Allow(Vec<IpAddr>),
    Block(Found),
    DeleteOrphans(Vec<FiveTuple>),
    ReadIdle(Vec<FiveTuple>),
    Expect(Vec<FiveTuple>),
    Audit,
}

/// What tasks bring back; `u64`: the session in which they began.
enum Done {
    Up(u64, Box<Result<Link, String>>),
    Batch(Batch),
    Table(u64, Option<Vec<RelayEntry>>),
    Idle(Vec<Idle>),
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
    /// When rows of who may send have to go.
    rows_due: Option<Instant>,
    collisions: [Option<Collisions>; 2],
    pace: Pace,
    batches: usize,
    audit: Audit,
    greylist_due: Option<Instant>,
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
            batches: 0,
            greylist_due: None,
            tasks: JoinSet::new(),
            out: Vec::new(),
        }
    }

    /// Until all handles are gone, or nobody takes the events.
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
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.done(done),
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

    /// When something has to be done, if nothing else happens.
    fn due(&self) -> Option<Instant> {
        self.up.as_ref()?;
        let refresh = self.admission.next_refresh();
        let times = [self.batch_due(Instant::now()), refresh, self.audit.due(), self.greylist_due];
        times.into_iter().flatten().min()
    }

    fn batch_due(&self, now: Instant) -> Option<Instant> {
        if self.batches >= UNDER_WAY {
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
                Done::Table(session, found.ok())
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

    /// Send one batch.
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
        let encode = |change: Change| {
            let update = link.tables.admission.encode(&change, self.settings.block_for)?;
            Some((change, update))
        };
        let rows: Vec<(Change, Bytes)> = changes.into_iter().filter_map(encode).collect();
        self.rows_due = self.admission.is_dirty().then_some(now);
        if items.is_empty() && rows.is_empty() {
            return;
        }
        self.shared.counts.batch(items.len() + rows.len());
        self.pace.sent(now);
        self.batches += 1;
        let batch = Batch {
            items,
            rows,
            answers: Vec::new(),
        };
        let (session, tables) = (link.session.clone(), Arc::clone(&link.tables));
        self.tasks.spawn(async move { Done::Batch(batch.carry_out(session, tables).await) });
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
                self.rows_by(if admits { now } else { now + COALESCE });
            }
            Command::Allow(addresses) => {
                for addr in addresses {
                    self.admission.allow(now, addr);
                }
                self.rows_by(now + COALESCE);
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
        let job = Job { id, operation, due };
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

    // -- hash collisions ---------------------------------------------------------------------------

    fn collisions_of(&mut self, key: &FiveTuple) -> Option<&mut Collisions> {
        self.collisions[usize::from(key.is_v6())].as_mut()
    }

    /// Why an entry cannot go in, if another 5-tuple of its hash is in use.
    fn claim(&mut self, now: Instant, job: Job) -> Option<Arc<str>> {
        if matches!(job.operation, Operation::Delete(_)) {
            return None;
        }
        let key = job.key();
        let collision = self.collisions_of(&key)?.claim(now, key)?;
        let holder = collision.other;
        if collision.holds {
            self.out.push(Event::Collision { key, holder });
        }
        self.shared.counts.collided();
        Some(format!("{holder} has the same hash in the data plane").into())
    }

    // -- results -----------------------------------------------------------------------------------

    /// A write that is over.
    fn finish(&mut self, item: Item) {
        self.queue.finished(item.job.key().dst);
        self.result(item);
    }

    fn result(&mut self, item: Item) {
        let (outcome, detail) = item.result.unwrap_or((Outcome::Unavailable, None));
        let key = item.job.key();
        let is_out = match item.job.operation {
            Operation::Delete(_) => outcome == Outcome::Done,
            Operation::Insert(_) => matches!(outcome, Outcome::TableFull | Outcome::Rejected),
            Operation::Modify(_) => false,
        };
        if is_out && let Some(collisions) = self.collisions_of(&key) {
            collisions.release(&key);
        }
        if outcome != Outcome::Done {
            self.shared.counts.failed(1);
        }
        let Some(id) = item.job.id else { return };
        let written = Written {
            id,
            outcome,
            counters: item.counters,
            detail,
        };
        match self.out.last_mut() {
            Some(Event::Written(all)) => all.push(written),
            _ => self.out.push(Event::Written(vec![written])),
        }
    }

    fn done(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let now = Instant::now();
        match done {
            Ok(Done::Batch(batch)) => self.batch_done(now, batch),
            Ok(Done::Up(session, result)) if session == self.session => self.came_up(now, *result),
            Ok(Done::Table(session, found)) if session == self.session => self.table_read(now, found),
            Ok(Done::Idle(idle)) => self.out.push(Event::IdleTimes(idle)),
            Ok(Done::Up(..) | Done::Table(..) | Done::Nothing) => {}
            Err(error) => tracing::error!("a task of the data plane ended: {error}"),
        }
    }

    fn batch_done(&mut self, now: Instant, batch: Batch) {
        self.batches -= 1;
        for item in batch.items {
            self.finish(item);
        }
        let mut failed = None;
        for ((change, _), answer) in batch.rows.iter().zip(batch.answers) {
            // Deleting what is not there is no error.
            let done = matches!(
                (&answer, change),
                (Some(Ok(())), _)
                    | (
                        Some(Err(_)),
                        Change::Filter(_, None) | Change::Block(_, false) | Change::Allow(_, false)
                    )
            );
            self.admission.written(now, change, done);
            if let (false, Some(Err(error))) = (done, answer) {
                failed.get_or_insert((change, error));
            }
        }
        if let Some((change, error)) = failed {
            tracing::warn!("the data plane took no row {change:?}: {}", error.message);
        }
    }

    fn table_read(&mut self, now: Instant, found: Option<Vec<RelayEntry>>) {
        let Some(mut entries) = found else {
            self.audit.failed(now + AUDIT_AGAIN);
            return;
        };
        let changed = self.audit.end(now, entries.len());
        let media = &self.settings.media;
        entries.retain(|entry| media.is_empty() || media.iter().any(|range| range.contains(entry.port())));
        self.shared.counts.audited();
        self.hold_hashes(now, &mut entries, &changed);
        self.out.push(Event::Table { entries, changed });
    }

    /// Note who holds which hash. Of two entries of one hash, which an agent left that knew nothing of hashes, one goes.
    fn hold_hashes(&mut self, now: Instant, entries: &mut Vec<RelayEntry>, changed: &std::collections::HashSet<Endpoint>) {
        if self.collisions.iter().all(Option::is_none) {
            return;
        }
        let present: std::collections::HashSet<FiveTuple> = entries.iter().map(RelayEntry::key).collect();
        for collisions in self.collisions.iter_mut().flatten() {
            for key in collisions.keys() {
                if !present.contains(&key) && !changed.contains(&key.dst) {
                    collisions.release(&key);
                }
            }
        }
        let mut colliding = Vec::new();
        entries.retain(|entry| {
            let key = entry.key();
            let collisions = self.collisions[usize::from(key.is_v6())].as_mut();
            let held = collisions
                .and_then(|collisions| collisions.claim(now, key))
                .filter(|collision| collision.holds);
            if let Some(collision) = held {
                tracing::error!("{} and {key} have the same hash: the second is deleted", collision.other);
                colliding.push(key);
            }
            held.is_none()
        });
        for key in colliding {
            self.push(now, None, Operation::Delete(key));
        }
    }

    // -- the session -------------------------------------------------------------------------------

    fn client_event(&mut self, event: client::Event) {
        match event {
            client::Event::Up => self.connected(),
            client::Event::Down(reason) => self.down(reason),
            client::Event::Digest(digest) => self.digest(&digest),
            client::Event::Idle(notice) => self.idle(&notice),
        }
    }

    /// A session begins: what it offers, and what has to be set in it.
    fn connected(&mut self) {
        self.session += 1;
        let session = self.session;
        let Ok(bound) = self.shared.client.session() else { return };
        match Tables::new(bound.schema(), bound.contexts(), &self.settings) {
            Ok(tables) => {
                let settings = Arc::clone(&self.settings);
                let tables = Arc::new(tables);
                self.tasks.spawn(async move {
                    let facts = come_up(&bound, &tables, &settings).await;
                    let link = facts.map(|facts| Link {
                        session: bound.clone(),
                        tables,
                        facts: Arc::new(facts),
                    });
                    Done::Up(session, Box::new(link.map_err(|error| error.to_string())))
                });
            }
            Err(error) => {
                tracing::error!("the data plane {} cannot be used: {error}", self.settings.target.address);
                self.down(format!("it cannot be used: {error}"));
            }
        }
    }

    fn came_up(&mut self, now: Instant, result: Result<Link, String>) {
        let link = match result {
            Ok(link) => link,
            Err(reason) => {
                if let Ok(session) = self.shared.client.session() {
                    session.give_up(&reason);
                }
                return;
            }
        };
        self.note_hashes(now, &link.tables);
        self.admission.start_over(now);
        self.rows_due = self.admission.is_dirty().then_some(now);
        self.greylist_due = Some(now + GREYLIST_AFTER);
        self.audit.hurry(now);
        for lack in &link.facts.lacks {
            tracing::info!("data plane: {lack}");
        }
        let facts: Arc<Facts> = Arc::clone(&link.facts);
        self.link.send_modify(|now| *now = Ok(link.clone()));
        self.up = Some(link);
        self.out.push(Event::Up(facts));
    }

    /// Keys that held a hash may all still be in; reading the table shows which.
    fn note_hashes(&mut self, now: Instant, tables: &Tables) {
        for (collisions, hashes) in self.collisions.iter_mut().zip(&tables.hashes) {
            let held = collisions.as_ref().map_or_else(Vec::new, Collisions::keys);
            *collisions = (!hashes.is_empty()).then(|| Collisions::new(hashes.clone()));
            for key in held {
                if let Some(collisions) = collisions {
                    collisions.claim(now, key);
                }
            }
        }
    }

    fn down(&mut self, reason: String) {
        self.up = None;
        self.session += 1;
        self.audit.stop();
        self.link.send_modify(|now| *now = Err(reason.clone()));
        self.out.push(Event::Down(reason.clone()));
        let detail: Arc<str> = reason.into();
        for job in self.queue.drain() {
            let mut item = Item::new(job);
            item.finish(Outcome::Unavailable, Some(Arc::clone(&detail)));
            self.result(item);
        }
    }

    fn digest(&mut self, digest: &pb::DigestList) {
        let Some(link) = &self.up else { return };
        match link.tables.learns.iter().find_map(|learn| learn.read(digest)) {
            Some(Digest::Notices(notices)) => self.out.push(Event::Notices(notices)),
            Some(Digest::Packets(packets)) => self.out.push(Event::Packets(packets)),
            None => {}
        }
    }

    fn idle(&mut self, notice: &pb::IdleTimeoutNotification) {
        let (Some(link), Some(entry)) = (&self.up, &notice.table_entry) else {
            return;
        };
        let relay = link.tables.relay.iter().flatten().find(|relay| relay.tuple.id == entry.table_id);
        let entity = pb::Entity {
            entity: Some(pb::entity::Entity::TableEntry(entry.clone())),
        };
        let encoded = entity.encode_to_vec();
        let row = TableRow::decode(&encoded).ok().flatten();
        let Some(key) = relay.zip(row).and_then(|(relay, row)| relay.tuple.key_of(&row.key)) else {
            return;
        };
        let idle = notice.r#type() == NotificationType::EntryIdle;
        self.out.push(if idle { Event::Idle(key) } else { Event::Active(key) });
    }
}

async fn sleep_until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due.into()).await;
    }
}
