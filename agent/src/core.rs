//! The only owner of call state: all events come in here, and the book's decisions are executed.
//!
//! Nothing here waits. The book is locked for the moment of one event, and decisions are passed to the components that do I/O.

use crate::clock::Clock;
use crate::conference::Conferences;
use crate::data_plane::{self, Reconciling};
use crate::events::Events;
use crate::facts;
use crate::relays::Relays;
use crate::restore::Restorer;
use crate::standby::Pair;
use crate::stats::Stats;
use crate::tasks::ticks;
use crate::turns::Turns;
use serde::{Deserialize, Serialize};
use shunt_admin::{AgentWhat, Audit, CallWhat, LinkWhat, StopOf};
use shunt_calls::{
    After, Book, Comparison, Decision, Happening, Idle, LineId, Notice, Outcome, PortHeld, Purpose, Reading, Refusal, RelayEntry, RelayId,
    RowKey, Step, Time, WriteId,
};
use shunt_hep::sip::Message;
use shunt_journal::Journal;
use shunt_net::{Endpoint, FiveTuple};
use shunt_notify::{Notifier, Permit};
use shunt_plane::{Plane, Written};
use shunt_rtpproxy::capability::KeepAlive;
use shunt_rtpproxy::{Command, NotifyTarget};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};

/// Lines whose timers are checked before the loop yields.
const LINES_AT_ONCE: usize = 200;
/// Rows per submission to the journal. A command that arrives now waits until they are written, and this loop until they are encoded.
const ROWS_AT_ONCE: usize = 10;
/// Pause after a submission. If many rows wait, the loop only yields.
const ROWS_PAUSE: Duration = Duration::from_millis(5);
const MANY_ROWS: usize = 1000;
/// Entries per idle query before the loop yields.
const KEYS_AT_ONCE: usize = 1000;
/// Coalescing window for rows without a waiting command, because a call whose streams are offloaded changes its row several times. After a
/// restart, calls adopt entries that no row names yet.
const GATHER: Duration = Duration::from_millis(500);
/// How long a reply waits for the data plane's counters; then the last known ones are added.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(200);
/// The name of a group's drain in the journal.
const DRAIN: &str = "drain";
/// Poll interval of the journal's state.
const JOURNAL_EVERY: Duration = Duration::from_millis(100);

/// Call state, and all components that act on it.
pub struct Core {
    clock: Clock,
    state: Mutex<State>,
    /// Signals that a deadline is earlier than the one being waited for.
    earlier: Notify,
    plane: Option<Plane>,
    conferences: Option<Arc<Conferences>>,
    relays: Arc<Relays>,
    journal: Option<Journal>,
    pair: Option<Arc<Pair>>,
    restorer: Restorer,
    notifier: Mutex<Notifier>,
    permit: Permit,
    events: Events,
    drain_file: PathBuf,
    pub stats: Stats,
    /// Results of NG commands, and of the agent's own queries about their calls.
    pub ng_turns: Turns,
    pub data_plane: data_plane::State,
    /// Whether all rows of the journal are in the book.
    restored: watch::Sender<bool>,
    audited: watch::Sender<Option<Audit>>,
}

struct State {
    book: Book,
    /// Waiters for the results of writes.
    waiting: HashMap<WriteId, Vec<oneshot::Sender<()>>>,
    /// The deadline being waited for; `None`: none.
    armed: Option<Time>,
    /// Lines whose rows must be written to the journal.
    unwritten: HashSet<LineId>,
    /// What the operator has stopped, and when.
    drain: Option<Drain>,
}

impl State {
    /// Registers waiters before submitting the writes.
    fn expect(&mut self, writes: Vec<WriteId>) -> Vec<oneshot::Receiver<()>> {
        let expected = writes.into_iter().map(|id| {
            let (sender, receiver) = oneshot::channel();
            self.waiting.entry(id).or_default().push(sender);
            receiver
        });
        expected.collect()
    }
}

/// What draining stops. The journal stores a group's drain, a file that of a single agent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Drain {
    pub stop: StopOf,
    /// Unix time.
    pub since: Duration,
    /// Another agent of the group continues draining after a take-over.
    pub group: bool,
}

/// The components that execute the book's decisions.
pub struct Parts {
    pub plane: Option<Plane>,
    pub conferences: Option<Arc<Conferences>>,
    pub relays: Arc<Relays>,
    pub journal: Option<Journal>,
    /// `None`: this agent is not one of a pair.
    pub pair: Option<Arc<Pair>>,
    pub permit: Permit,
    pub events: Events,
    /// Stores the drain of an agent without a group over restarts.
    pub drain_file: PathBuf,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    #[must_use]
    pub fn new(clock: Clock, book: Book, parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::new(State {
                book,
                waiting: HashMap::new(),
                armed: None,
                unwritten: HashSet::new(),
                drain: None,
            }),
            earlier: Notify::new(),
            plane: parts.plane,
            conferences: parts.conferences,
            relays: parts.relays,
            restorer: Restorer::new(parts.journal.is_some()),
            journal: parts.journal,
            pair: parts.pair,
            notifier: Mutex::default(),
            permit: parts.permit,
            events: parts.events,
            drain_file: parts.drain_file,
            stats: Stats::new(),
            ng_turns: Turns::default(),
            data_plane: data_plane::State::default(),
            restored: watch::Sender::new(false),
            audited: watch::Sender::new(None),
        })
    }

    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    #[must_use]
    pub fn relays(&self) -> &Relays {
        &self.relays
    }

    #[must_use]
    pub fn plane(&self) -> Option<&Plane> {
        self.plane.as_ref()
    }

    #[must_use]
    pub fn conferences(&self) -> Option<&Arc<Conferences>> {
        self.conferences.as_ref()
    }

    #[must_use]
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        self.pair.as_ref()
    }

    /// Returns whether this agent, and not another one of its group, is responsible for its calls.
    #[must_use]
    pub fn is_in_charge(&self) -> bool {
        self.pair.as_ref().is_none_or(|pair| pair.serves())
    }

    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Reads the book.
    pub fn read<R>(&self, look: impl FnOnce(&Book) -> R) -> R {
        look(&lock(&self.state).book)
    }

    /// Applies an event to the book, and executes its decisions before the next event.
    pub fn update<R>(self: &Arc<Self>, event: impl FnOnce(&mut Book, Time) -> (R, Vec<Decision>)) -> R {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let (result, decisions) = event(&mut state.book, now);
        self.carry_out(&mut state, now, decisions);
        result
    }

    /// As [`Core::update`], without a result.
    pub fn tell(self: &Arc<Self>, event: impl FnOnce(&mut Book, Time) -> Vec<Decision>) {
        self.update(|book, now| ((), event(book, now)));
    }

    fn arm(&self, state: &mut State) {
        let next = state.book.next_deadline();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            self.earlier.notify_one();
        }
    }

    /// Runs the book's timers without end.
    pub async fn keep_time(self: &Arc<Self>) {
        loop {
            // A standby agent ignores timers that were armed before the take-over.
            while !self.is_in_charge() {
                tokio::time::sleep(JOURNAL_EVERY).await;
            }
            let due = {
                let mut state = lock(&self.state);
                state.armed = state.book.next_deadline();
                state.armed
            };
            match due {
                Some(due) if due <= self.clock.now() => {
                    self.tell(|book, now| book.tick(now, LINES_AT_ONCE));
                    tokio::task::yield_now().await;
                }
                Some(due) => {
                    let sleep = tokio::time::sleep_until(self.clock.instant(due).into());
                    tokio::select! { () = sleep => {}, () = self.earlier.notified() => {} }
                }
                None => self.earlier.notified().await,
            }
        }
    }

    // -- decisions ---------------------------------------------------------------------------------

    fn carry_out(self: &Arc<Self>, state: &mut State, now: Time, decisions: Vec<Decision>) {
        let mut writes = Vec::new();
        for decision in decisions {
            match decision {
                Decision::Write(write) => writes.push((write.id, write.operation)),
                Decision::Store(line) => {
                    if self.journal.is_some() {
                        state.unwritten.insert(line);
                    }
                }
                other => self.carry_out_one(&state.book, now, other),
            }
        }
        if let (false, Some(plane)) = (writes.is_empty(), &self.plane) {
            plane.write(writes);
        }
        self.arm(state);
    }

    fn carry_out_one(self: &Arc<Self>, book: &Book, now: Time, decision: Decision) {
        match decision {
            // Submitted together.
            Decision::Write(_) | Decision::Store(_) => {}
            Decision::Filter { port, allowed } => {
                if let Some(plane) = &self.plane {
                    plane.filter(port, allowed);
                }
            }
            Decision::Allow(addr) => {
                if let Some(plane) = &self.plane {
                    plane.allow(vec![addr]);
                }
            }
            Decision::Block(found) => {
                if let Some(plane) = &self.plane {
                    plane.block(found);
                }
                self.stats.scanners_blocked.inc();
                self.events.blocked(found);
            }
            Decision::DeleteOrphan(key) => {
                if let Some(plane) = &self.plane {
                    plane.delete_orphans(vec![key]);
                }
            }
            Decision::ReadIdle(keys) => {
                if let Some(plane) = &self.plane {
                    plane.read_idle(keys);
                }
            }
            Decision::AskRelay {
                line,
                relay,
                purpose,
                command,
            } => self.ask(line, relay, purpose, command),
            Decision::Changed {
                stream,
                before,
                state,
                reason,
                after,
            } => {
                self.stats.changed(state, reason, after);
                self.events.changed(book, stream, before, state, reason, after);
            }
            Decision::Learned { stream, notice, verdict } => {
                let verdict = facts::verdict(verdict);
                self.stats.learned(verdict);
                self.events.learned(book, stream, &notice, verdict);
            }
            Decision::Happened { line, what } => {
                if matches!(what, Happening::MediaTimeout(_)) {
                    self.stats.media_timeouts.inc();
                }
                self.events.happened(book, line, what);
            }
            Decision::Notify { line, target, message } => self.notify(book, line, target, &message),
            Decision::Forget(key) => {
                self.restorer.ended(&key);
                if let Some(journal) = &self.journal {
                    journal.remove(key);
                }
            }
            Decision::Ended(ended) => {
                self.stats.ended(&ended, now.since(ended.created));
                let name = |relay| self.relays.get(relay).map_or("", |relay| relay.name.as_str());
                self.events.ended(&ended, self.stats.calls_over(), name, now);
            }
        }
    }

    fn ask(self: &Arc<Self>, line: LineId, relay: RelayId, purpose: Purpose, command: Vec<u8>) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let reply = core.relays.request(relay, &command).await;
            core.tell(|book, now| book.relay_replied(now, line, purpose, &command, reply.as_deref()));
        });
    }

    fn notify(self: &Arc<Self>, book: &Book, line: LineId, target: Result<NotifyTarget, shunt_rtpproxy::NotifyError>, message: &[u8]) {
        let line = book.line(line);
        let call_id = line
            .as_ref()
            .map(|line| line.call_id().escape_ascii().to_string())
            .unwrap_or_default();
        let call: Box<[u8]> = line.map(|line| line.call_id().into()).unwrap_or_default();
        let peer = line.and_then(|line| line.notify_peer());
        let refused = match target {
            Ok(target) if self.permit.allows(&target, peer) => {
                let core = Arc::downgrade(self);
                let failed = move |reason: &str| {
                    if let Some(core) = core.upgrade() {
                        core.events.notify_failed(&call, reason);
                    }
                };
                lock(&self.notifier).send_or(&target, message.to_vec(), Box::new(failed));
                return;
            }
            Ok(target) => format!("{target} is not among notify.allow"),
            Err(error) => error.to_string(),
        };
        tracing::warn!(call_id, "media time-out: the SIP server is not notified: {refused}");
        self.events.notify_failed(&call, &refused);
    }

    /// Stops all writes: another agent of the group is active.
    pub fn abandon(&self, why: &str) {
        self.tell_drain_ends();
        self.events.agent(AgentWhat::Standby, why);
        self.events.close();
    }

    /// Delivers the queued time-out notices.
    pub async fn close(&self) {
        self.tell_drain_ends();
        let notifier = std::mem::take(&mut *lock(&self.notifier));
        notifier.close().await;
        if let Some(journal) = &self.journal {
            while self.write_rows(journal) > 0 {}
            journal.close().await;
        }
        self.events.close();
    }

    // -- commands ----------------------------------------------------------------------------------

    /// Processes a command before the relay gets it. Returns deletes to wait for.
    pub fn command(self: &Arc<Self>, command: &Command) -> (Step, Vec<oneshot::Receiver<()>>) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let (step, refusal, decisions) = state.book.command(now, command);
        let waits = match &step {
            Step::Pass { wait, .. } => state.expect(wait.clone()),
            Step::Answer(_) => Vec::new(),
        };
        self.carry_out(&mut state, now, decisions);
        self.write_rows_of(&mut state, now, command);
        if let Some(refusal) = refusal {
            self.stats.refused.inc();
            self.events.refused(command.session().map(|session| session.call_id), &refusal);
        }
        (step, waits)
    }

    /// Processes the relay's reply to a command.
    ///
    /// # Errors
    /// The relay assigned a port that another call holds.
    pub fn replied(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        relay: RelayId,
        command: &Command,
        reply: Option<&[u8]>,
    ) -> Result<(), PortHeld> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let decisions = state.book.replied(now, peer, relay, command, reply)?;
        self.carry_out(&mut state, now, decisions);
        self.write_rows_of(&mut state, now, command);
        drop(state);
        if let Some(session) = command.session() {
            self.expect_call(session.call_id);
        }
        Ok(())
    }

    /// Processes an NG command before the relay gets it. Returns the relay that has its call, and deletes to wait for.
    pub fn ng_command(self: &Arc<Self>, command: &shunt_ng::Command) -> (Result<Option<RelayId>, Refusal>, Vec<oneshot::Receiver<()>>) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let (foreseen, decisions) = state.book.ng_command(now, command);
        let wait = foreseen.as_ref().map_or_else(|_| Vec::new(), |foreseen| foreseen.wait.clone());
        let waits = state.expect(wait);
        self.carry_out(&mut state, now, decisions);
        let call_id = command.call_id.as_deref().unwrap_or_default();
        self.write_rows_of_call(&mut state, now, call_id);
        if let Err(refusal) = &foreseen {
            self.stats.refused.inc();
            self.events.refused(Some(call_id), refusal);
        }
        (foreseen.map(|foreseen| foreseen.relay), waits)
    }

    /// Processes the relay's reply to an NG command (`None`: there was none). Returns what to do next.
    pub fn ng_replied(self: &Arc<Self>, relay: RelayId, command: &shunt_ng::Command, reply: Option<&shunt_ng::Reply>) -> After {
        let now = self.clock.now();
        let call_id = command.call_id.as_deref().unwrap_or_default();
        let mut state = lock(&self.state);
        let (after, decisions) = state.book.ng_replied(now, relay, command, reply);
        self.carry_out(&mut state, now, decisions);
        self.write_rows_of_call(&mut state, now, call_id);
        drop(state);
        self.expect_call(call_id);
        after
    }

    // -- the journal -------------------------------------------------------------------------------

    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    #[must_use]
    pub fn restorer(&self) -> &Restorer {
        &self.restorer
    }

    /// Submits the row of a command's line to the journal, if it has changed.
    fn write_rows_of(&self, state: &mut State, now: Time, command: &Command) {
        let (Some(journal), Some(session)) = (&self.journal, command.session()) else {
            return;
        };
        let line = state.book.line_of(session).map(|(line, _)| line.id());
        let Some(line) = line.filter(|line| state.unwritten.remove(line)) else {
            return;
        };
        if let Some(row) = state.book.row(line, now, self.clock.wall()) {
            journal.put(&row);
        }
    }

    /// The same for all lines of a call.
    fn write_rows_of_call(&self, state: &mut State, now: Time, call_id: &[u8]) {
        let Some(journal) = &self.journal else { return };
        let lines: Vec<LineId> = state.book.lines_of_call(call_id).map(|line| line.id()).collect();
        for line in lines {
            if state.unwritten.remove(&line)
                && let Some(row) = state.book.row(line, now, self.clock.wall())
            {
                journal.put(&row);
            }
        }
    }

    /// Submits some rows to the journal. Returns the number of remaining ones.
    fn write_rows(&self, journal: &Journal) -> usize {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let mut state = lock(&self.state);
        let lines: Vec<LineId> = state.unwritten.iter().take(ROWS_AT_ONCE).copied().collect();
        for line in lines {
            state.unwritten.remove(&line);
            if let Some(row) = state.book.row(line, now, wall) {
                journal.put(&row);
            }
        }
        state.unwritten.len()
    }

    /// Submits rows without a waiting command, without end.
    pub async fn write_journal(&self) {
        let mut due = ticks(self, GATHER);
        loop {
            due.tick().await;
            loop {
                match self.journal.as_ref().map_or(0, |journal| self.write_rows(journal)) {
                    0 => break,
                    1..MANY_ROWS => tokio::time::sleep(ROWS_PAUSE).await,
                    _ => tokio::task::yield_now().await,
                }
            }
        }
    }

    /// Marks all lines for writing, because the journal has lost its content.
    pub fn write_everything(&self) {
        self.mark_all();
        if let Some(conferences) = &self.conferences {
            conferences.keep_all();
        }
        self.keep_drain();
    }

    fn mark_all(&self) {
        let mut state = lock(&self.state);
        let lines: Vec<LineId> = state.book.lines().map(|line| line.id()).collect();
        state.unwritten.extend(lines);
    }

    /// Records that a row cannot be restored.
    pub fn set_aside(&self, key: RowKey, reason: &str) {
        tracing::error!(call_id = %key.call_id.0.escape_ascii(), "journal: a row is set aside: {reason}");
        if let Some(journal) = &self.journal {
            journal.set_aside(key, reason.to_owned());
        }
    }

    /// Waits until a command's change is stored, unless the journal fails or is slow.
    pub async fn keep(&self) {
        if let Some(journal) = &self.journal {
            journal.kept().await;
        }
    }

    /// Reports the journal's failures, without end.
    pub async fn watch_journal(&self) {
        let mut failing = false;
        let mut due = ticks(self, JOURNAL_EVERY);
        loop {
            due.tick().await;
            let Some(status) = self.journal.as_ref().map(Journal::status) else {
                continue;
            };
            if status.error.is_some() {
                self.restorer.go_without(self);
            }
            if failing != status.error.is_some() {
                failing = status.error.is_some();
                let what = if failing {
                    AgentWhat::JournalFailed
                } else {
                    AgentWhat::JournalRecovered
                };
                self.events.agent(what, status.error.as_deref().unwrap_or_default());
            }
        }
    }

    /// Asks when the entries of restored calls last matched a packet, because an entry that became idle without an agent is not reported
    /// again.
    pub async fn look_at_restored(&self) {
        let Some(plane) = &self.plane else { return };
        let keys: Vec<FiveTuple> = self.read(|book| book.planned().map(|(_, entry)| entry.key()).collect());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            plane.read_idle(keys.to_vec());
            tokio::time::sleep(JOURNAL_EVERY).await;
        }
    }

    // -- the data plane ----------------------------------------------------------------------------

    /// Processes results of writes.
    pub fn written(self: &Arc<Self>, written: Vec<Written>) {
        let mut done = Vec::with_capacity(written.len());
        self.tell(|book, now| {
            let mut decisions = Vec::new();
            for write in written {
                self.stats.written(&write.operation, write.outcome, write.took);
                if write.outcome != Outcome::Done {
                    crate::data_plane::log_failure(&write);
                    self.events.write_failed(book, book.stream_of_write(write.id), &write);
                }
                decisions.extend(book.written(now, write.id, write.outcome, write.counters, write.detail));
                done.push(write.id);
            }
            decisions
        });
        let mut state = lock(&self.state);
        for waiting in done.iter().filter_map(|id| state.waiting.remove(id)).flatten().collect::<Vec<_>>() {
            let _ = waiting.send(());
        }
    }

    /// Processes packets without an entry.
    pub fn noticed(self: &Arc<Self>, notices: &[Notice]) {
        // A source that sends to a port of a call that is not restored yet is no scanner.
        let restored = self.is_restored();
        self.tell(|book, now| {
            let mut decisions = Vec::new();
            for notice in notices {
                if restored || book.stream_at(notice.key.dst).is_some() {
                    decisions.extend(book.noticed(now, notice));
                }
            }
            decisions
        });
    }

    /// Processes a copy of a SIP message.
    pub fn sip(self: &Arc<Self>, source: Endpoint, destination: Endpoint, message: &Message) {
        self.events.sip(source, destination, message);
        self.tell(|book, now| book.sip(now, source, destination, message));
    }

    /// Processes the times when entries last matched a packet.
    pub fn idle_times(self: &Arc<Self>, read: &[Idle]) {
        self.tell(|book, now| book.idle_times(now, read));
        self.delete_idle_orphans(read);
    }

    /// Deletes those of these entries that no call claims and that match no packets.
    pub fn delete_idle_orphans(self: &Arc<Self>, read: &[Idle]) {
        let orphans = self.update(|book, _| (book.idle_orphans(read), Vec::new()));
        if let (false, Some(plane)) = (orphans.is_empty(), &self.plane) {
            plane.delete_orphans(orphans);
        }
    }

    /// Asks when the entries that no call claims last matched a packet.
    pub fn look_at_orphans(&self) {
        let orphans: Vec<FiveTuple> = self.read(|book| book.orphans().collect());
        if let (false, Some(plane)) = (orphans.is_empty(), &self.plane) {
            plane.read_idle(orphans);
        }
    }

    pub fn counted(self: &Arc<Self>, read: &[Reading]) {
        self.update(|book, now| (book.counted(now, read), Vec::new()));
    }

    /// Reads the counters of these entries, as far as the data plane answers in time.
    pub async fn read_counters(self: &Arc<Self>, keys: &[FiveTuple]) {
        let Some(plane) = self.plane().filter(|_| !keys.is_empty()) else {
            return;
        };
        if let Ok(Ok(read)) = tokio::time::timeout(COUNTERS_TIMEOUT, plane.readings(keys)).await {
            self.counted(&read);
        }
    }

    /// Processes the relay's answer to the SIP server's Q of a line.
    pub fn queried(self: &Arc<Self>, line: LineId, swapped: bool, command: &[u8], reply: &[u8]) {
        self.update(|book, now| (book.queried(now, line, swapped, command, reply), Vec::new()));
    }

    /// Asks the relay for the packet counts of these lines, if it can report them, and waits for its answers.
    pub async fn count_on_relay(self: &Arc<Self>, lines: &[LineId]) {
        let questions: Vec<_> = self.read(|book| lines.iter().filter_map(|line| Some((*line, book.count_question(*line)?))).collect());
        for (line, (relay, command)) in questions {
            let reply = self.relays.request(relay, &command).await;
            self.tell(|book, now| book.relay_replied(now, line, Purpose::Count, &command, reply.as_deref()));
        }
    }

    /// Processes the result of a relay's handshake.
    pub fn set_capabilities(self: &Arc<Self>, relay: RelayId, keepalive: KeepAlive, may_query: bool) {
        self.update(|book, _| (book.set_capabilities(relay, keepalive, may_query), Vec::new()));
    }

    pub fn set_data_plane(self: &Arc<Self>, available: bool) {
        let was_available = self.update(|book, _| (book.is_available(), book.set_data_plane(available)));
        // It is retried while the relay is away.
        if available || was_available {
            self.look_at_all();
        }
    }

    /// Reevaluates all lines, some at a time.
    fn look_at_all(self: &Arc<Self>) {
        let (core, lines) = (Arc::clone(self), self.read(Book::line_ids));
        tokio::spawn(async move {
            for lines in lines.chunks(LINES_AT_ONCE) {
                core.tell(|book, now| book.look_at(now, lines));
                tokio::task::yield_now().await;
            }
        });
    }

    // -- the operator ------------------------------------------------------------------------------

    /// Returns what draining stops, and since when.
    #[must_use]
    pub fn drain(&self) -> Option<Drain> {
        lock(&self.state).drain
    }

    /// Begins draining, or ends it (`None`), and stores that for the next start. `group`: another agent of the group continues draining
    /// after a take-over.
    pub fn set_drain(self: &Arc<Self>, stop: Option<StopOf>, group: bool) {
        let since = self.clock.wall();
        self.apply_drain(stop.map(|stop| Drain { stop, since, group }), "");
        self.keep_drain();
    }

    /// Drains until the agent's end, unless it drains already.
    pub fn drain_to_stop(self: &Arc<Self>) {
        if self.drain().is_none() {
            let since = self.clock.wall();
            let (stop, group) = (StopOf::Calls, false);
            self.apply_drain(Some(Drain { stop, since, group }), "the agent was told to stop");
        }
    }

    fn apply_drain(self: &Arc<Self>, drain: Option<Drain>, detail: &str) {
        lock(&self.state).drain = drain;
        let what = if drain.is_some() {
            AgentWhat::DrainBegun
        } else {
            AgentWhat::DrainEnded
        };
        self.events.agent(what, detail);
        self.update(|book, _| (book.set_draining(drain.is_some()), Vec::new()));
        if drain.is_none() {
            self.look_at_all();
        }
    }

    fn keep_drain(&self) {
        let drain = self.drain();
        if self.pair.is_some() {
            let Some(journal) = &self.journal else { return };
            match drain.filter(|drain| drain.group).map(|drain| serde_json::to_vec(&drain)) {
                Some(Ok(text)) => journal.documents().put(DRAIN, text),
                _ => journal.documents().remove(DRAIN),
            }
            return;
        }
        let kept = match drain.map(|drain| serde_json::to_vec(&drain)) {
            Some(Ok(text)) => std::fs::write(&self.drain_file, text),
            _ => match std::fs::remove_file(&self.drain_file) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        if let Err(error) = kept {
            let file = self.drain_file.display();
            tracing::error!("{file}: {error}: the next start of the agent does not know whether to drain");
        }
    }

    /// Restores draining after the restart of an agent without a group.
    pub fn restore_own_drain(self: &Arc<Self>) {
        match std::fs::read(&self.drain_file) {
            Ok(text) => self.restore_drain(&text, "as before the restart"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => self.tell_drain_lost(&error.to_string()),
        }
    }

    /// Restores the group's draining after a take-over.
    pub fn restore_group_drain(self: &Arc<Self>, documents: &[(String, Vec<u8>)]) {
        if let Some((_, text)) = documents.iter().find(|(name, _)| name == DRAIN) {
            self.restore_drain(text, "as the agent in charge before this one");
        }
    }

    fn restore_drain(self: &Arc<Self>, text: &[u8], why: &str) {
        match serde_json::from_slice(text) {
            Ok(drain) => {
                tracing::warn!("draining goes on {why}: no new stream is offloaded; `shunt drain nothing` ends it");
                self.apply_drain(Some(drain), why);
            }
            Err(error) => self.tell_drain_lost(&error.to_string()),
        }
    }

    fn tell_drain_lost(&self, error: &str) {
        tracing::error!("draining has ended with the restart: what was kept of it cannot be read: {error}");
        self.events.agent(AgentWhat::DrainEnded, error);
    }

    /// Logs that an agent of a group takes its own drain with it.
    fn tell_drain_ends(&self) {
        if self.pair.is_some() && self.drain().is_some_and(|drain| !drain.group) {
            tracing::warn!("draining ends: the agent of the group that takes over does not drain");
        }
    }

    /// Ends a call. Returns whether the call exists.
    pub fn end_call(self: &Arc<Self>, call_id: &[u8]) -> bool {
        if self.read(|book| book.lines_of_call(call_id).next().is_some()) {
            self.events.call(call_id, CallWhat::ReleaseRequested);
        }
        self.update(|book, now| book.end_call(now, call_id))
    }

    /// Compares the relay table, as just read, with the plan: in the background, some at a time, once all calls are restored.
    /// `marked_otherwise`: ports whose entry has another DSCP than the configured one.
    pub fn compare(self: &Arc<Self>, entries: Vec<RelayEntry>, changed: HashSet<Endpoint>, marked_otherwise: HashSet<Endpoint>) {
        let comparison = self.update(|book, _| (book.begin_compare(changed), Vec::new()));
        let comparison = comparison.with_marked_otherwise(marked_otherwise);
        let core = Arc::clone(self);
        tokio::spawn(async move { core.go_on_comparing(comparison, entries).await });
    }

    async fn go_on_comparing(self: Arc<Self>, comparison: Comparison, entries: Vec<RelayEntry>) {
        let began = self.clock.now();
        let entry_count = entries.len() as u64;
        let sorted = tokio::task::spawn_blocking(move || comparison.with_entries(entries)).await;
        let mut comparison = match sorted {
            Ok(comparison) => comparison,
            Err(error) => return tracing::error!("the relay table is not compared with the plan: {error}"),
        };
        // Entries of calls that are still being read from the journal would look like orphans.
        self.restored().await;
        let (mut more, mut writes) = (true, 0);
        while more {
            more = self.update(|book, now| {
                let (more, decisions) = book.go_on_comparing(now, &mut comparison, LINES_AT_ONCE);
                writes += decisions.iter().filter(|decision| matches!(decision, Decision::Write(_))).count() as u64;
                (more, decisions)
            });
            tokio::task::yield_now().await;
        }
        if comparison.was_superseded() {
            return;
        }
        let audit = Audit {
            entries: entry_count,
            missing: comparison.missing() as u64,
            unexpected: self.read(|book| book.orphans().count() as u64),
            different: comparison.different() as u64,
            writes,
            took_s: self.clock.now().since(began).as_secs_f64(),
        };
        self.tell_compared(&audit);
        self.audited.send_replace(Some(audit));
    }

    /// Reports the result of a comparison of table and plan.
    fn tell_compared(&self, audit: &Audit) {
        let Audit {
            entries,
            missing,
            unexpected,
            different,
            ..
        } = audit;
        let found = format!("{entries} entries, {missing} missing, {different} different, {unexpected} of no call");
        let differs = missing + different > 0;
        match self.data_plane.compared(differs) {
            Some(Reconciling::Begun { name }) => {
                if *entries == 0 && *missing > 0 {
                    tracing::warn!("data plane: it has come back without its tables: {found}");
                    self.events.data_plane(&name, LinkWhat::Reset, Some(&found));
                }
                if differs {
                    // Again, after missing entries have been written.
                    self.plane.as_ref().inspect(|plane| plane.audit());
                }
            }
            Some(Reconciling::Done { name }) => self.events.data_plane(&name, LinkWhat::Reconciled, Some(&found)),
            None if differs => {
                tracing::warn!("data plane: table and plan differ, and the table is mended: {found}");
                self.events.agent(AgentWhat::Audited, &found);
            }
            None => {}
        }
    }

    /// Waits for the next comparison of table and plan.
    pub async fn audited(&self) -> Option<Audit> {
        let mut audits = self.audited.subscribe();
        audits.borrow_and_update();
        audits.changed().await.ok()?;
        audits.borrow().clone()
    }

    /// Records that all rows of the journal are in the book, or that there is no journal.
    pub fn set_restored(&self) {
        self.restored.send_replace(true);
    }

    #[must_use]
    pub fn is_restored(&self) -> bool {
        *self.restored.borrow()
    }

    /// Waits until all rows of the journal are in the book.
    pub async fn restored(&self) {
        let _ = self.restored.subscribe().wait_for(|restored| *restored).await;
    }

    /// How long a command may wait for its deletes before it goes to the relay anyway.
    #[must_use]
    pub fn patience() -> Duration {
        Duration::from_millis(500)
    }
}
