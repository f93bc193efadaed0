//! One agent of a pair: requests the lease, takes over with it, and steps down without it.
//!
//! Both agents always listen for SIP servers. The active one answers. The standby forwards commands to it, and holds them while no agent is
//! active. Sockets that only one of two agents on a host can bind (HEP, conferences) are bound after the lease is acquired.

use crate::clock::Clock;
use crate::core::Core;
use shunt_admin::AgentWhat;
use shunt_control::{Kind, Protocol, RelayClient, Sender, Service, Timing};
use shunt_journal::Grants;
use shunt_rtpproxy::framing::ControlAddress;
use shunt_rtpproxy::{Command, with_notify_address};
use shunt_standby::{Change, Fence, Holder, Lease, UNDECIDED, WriteAgain};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Poll interval for the end of an active process on this host.
const LOOK: Duration = Duration::from_millis(20);
/// Deadline of the active agent's reply to a forwarded command.
const PASS_ON_TIMEOUT: Duration = Duration::from_millis(400);
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Time in addition to the lease for which an unanswered command is held.
const HELD_LONGER: Duration = Duration::from_secs(2);
/// Most commands that wait for a take-over. Further ones get no answer, as if they were lost on the way.
const MOST_HELD: usize = 2000;
/// Deadline for the data plane's answer at a take-over.
const BIND_PATIENCE: Duration = Duration::from_secs(1);
/// Deadline for another agent to release the data plane.
const RIVAL_PATIENCE: Duration = Duration::from_secs(5);

/// The role of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Standby,
    Active,
    /// Another agent is active: this one restarts as a standby.
    Lost(String),
}

#[derive(Debug, Default)]
struct Facts {
    holder: Option<Holder>,
    /// Reason why the store does not answer.
    error: Option<String>,
    /// Reason why resources of the active agent are not available.
    hep: Option<String>,
}

/// State of the role, shared by the tasks of one agent.
pub struct Pair {
    pub fence: Fence,
    clock: Clock,
    length: Duration,
    me: Holder,
    part: watch::Sender<Part>,
    facts: Mutex<Facts>,
    give_back: Notify,
    /// Text of the present lease.
    text: Mutex<Option<String>>,
    pub passed_on: AtomicU64,
    pub takeovers: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pair {
    #[must_use]
    pub fn new(clock: Clock, length: Duration, me: Holder) -> Arc<Self> {
        Arc::new(Self {
            fence: Fence::closed(),
            clock,
            length,
            me,
            part: watch::Sender::new(Part::Standby),
            facts: Mutex::default(),
            give_back: Notify::new(),
            text: Mutex::default(),
            passed_on: AtomicU64::new(0),
            takeovers: AtomicU64::new(0),
        })
    }

    #[must_use]
    pub fn part(&self) -> Part {
        self.part.borrow().clone()
    }

    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(*self.part.borrow(), Part::Active)
    }

    /// Returns whether commands are answered here. An agent that was stopped may not know yet that its lease has expired.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.is_active() && self.fence.is_in_charge(Instant::now())
    }

    /// Waits until this agent is active.
    pub async fn active(&self) {
        let mut part = self.part.subscribe();
        // The sender lives as long as this.
        let _ = part.wait_for(|part| *part == Part::Active).await;
    }

    /// Waits until this agent becomes active; an active one that cannot verify its lease waits a moment.
    async fn becomes_active(&self) {
        if self.is_active() {
            return sleep(TRY_AGAIN).await;
        }
        self.active().await;
    }

    /// Waits until another agent is active. Returns the reason.
    pub async fn lost(&self) -> String {
        let mut part = self.part.subscribe();
        let lost = part.wait_for(|part| matches!(part, Part::Lost(_))).await;
        match lost.as_deref() {
            Ok(Part::Lost(why)) => why.clone(),
            _ => String::new(),
        }
    }

    /// Stops at once, because another agent is active.
    pub fn lose(&self, why: &str) {
        self.fence.close();
        self.part.send_if_modified(|part| {
            let is_new = !matches!(part, Part::Lost(_));
            if is_new {
                *part = Part::Lost(why.to_owned());
            }
            is_new
        });
    }

    /// Records that the binding to the data plane is lost. Without the lease another agent may have it by now.
    pub fn unbound(&self) {
        if self.is_active() && !self.fence.is_held(Instant::now()) {
            self.lose("the lease has run out, and the data plane's binding is gone too");
        }
    }

    /// Takes the lease, to return it.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        lock(&self.text).clone()
    }

    /// Returns the name of the active agent, if it is another one.
    #[must_use]
    pub fn holder_name(&self) -> Option<String> {
        lock(&self.facts).holder.as_ref().map(|holder| holder.name.clone())
    }

    /// Returns why no agent can take over at present.
    #[must_use]
    pub fn store_error(&self) -> Option<String> {
        lock(&self.facts).error.clone()
    }

    #[must_use]
    pub fn hep_error(&self) -> Option<String> {
        lock(&self.facts).hep.clone()
    }

    pub fn set_hep_error(&self, error: Option<String>) {
        lock(&self.facts).hep = error;
    }

    /// Returns the active agent's socket for a protocol.
    fn other_control(&self, protocol: Protocol) -> Option<String> {
        let facts = lock(&self.facts);
        let holder = facts.holder.as_ref()?;
        let (other, own) = match protocol {
            Protocol::Rtpproxy => (&holder.control, &self.me.control),
            Protocol::Ng => (&holder.ng, &self.me.ng),
        };
        (holder.id != self.me.id && other != own && !other.is_empty()).then(|| other.clone())
    }
}

// -- the lease -------------------------------------------------------------------------------------

/// Returns this process as a lease names it.
#[must_use]
pub fn this_process(name: String, control: String, ng: String, id: String) -> Holder {
    let pid = std::process::id();
    Holder {
        host: host().unwrap_or_else(|| id.clone()),
        id,
        name,
        control,
        ng,
        pid,
        started: started(pid).unwrap_or(0),
    }
}

/// Returns the host's name.
#[must_use]
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}

/// Identifies the kernel's process ids: the process of a holder with the same identifier can be checked.
fn host() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), space.display()))
}

/// Returns when a process was started, in clock ticks since boot; `None`: the process does not exist, or is a zombie (proc(5), fields 3 and
/// 22 of stat).
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn is_dead(holder: &Holder, me: &Holder) -> bool {
    holder.host == me.host && started(holder.pid) != Some(holder.started)
}

/// Requests the lease, takes over with it and renews it, until another agent has it.
pub async fn hold_or_stand_by(pair: Arc<Pair>, grants: Grants, core: Arc<Core>) {
    let ended = tokio::spawn(keep_lease(Arc::clone(&pair), grants, Arc::clone(&core))).await;
    if let Err(error) = ended {
        core.stats.tasks_restarted.inc();
        pair.lose(&format!("the task that keeps the lease has failed: {error}"));
    }
}

async fn keep_lease(pair: Arc<Pair>, mut grants: Grants, core: Arc<Core>) {
    let mut lease = Lease::new(pair.length);
    loop {
        let asked = pair.clock.uptime();
        let dead = lease.holder().is_some_and(|holder| is_dead(holder, &pair.me));
        let (answer, error) = grants.ask(&lease.ask(asked, dead)).await;
        let change = lease.answered(asked, answer);
        note(&pair, &lease, error);
        match change {
            Change::None => {}
            Change::Granted => {
                tokio::spawn(take_over(Arc::clone(&pair), Arc::clone(&core)));
            }
            Change::WriteAgain(why) => {
                let why = match why {
                    WriteAgain::Emptied => "it was emptied",
                    WriteAgain::CutOff => "this agent was cut off from it",
                };
                tracing::error!("the store of the lease: {why}; everything is written again");
                core.write_everything();
            }
            Change::Lost => {
                pair.lose("another agent holds the lease");
                return;
            }
            Change::StoreFailed => {
                let error = pair.store_error().unwrap_or_default();
                tracing::error!("the lease cannot be asked for: {error}");
            }
            Change::StoreAnswers => tracing::warn!("the store of the lease answers again"),
        }
        let pause = lease.pause(pair.clock.uptime());
        tokio::select! {
            () = pause_or_death(&pair, &lease, pause, dead) => {}
            () = pair.give_back.notified() => {
                give_back(&pair, &mut grants, &lease).await;
                return;
            }
        }
    }
}

fn note(pair: &Pair, lease: &Lease, error: Option<String>) {
    let standing = lease.standing();
    if !standing.until.is_zero() {
        pair.fence.hold(pair.clock.at(standing.until), standing.undecided);
        *lock(&pair.text) = Some(lease.text().to_owned());
    }
    let mut facts = lock(&pair.facts);
    facts.holder = lease.holder().cloned();
    facts.error = if lease.is_store_down() {
        error.or(facts.error.take())
    } else {
        None
    };
}

/// Waits, at most until the end of the active process if it runs on this host.
async fn pause_or_death(pair: &Pair, lease: &Lease, pause: Duration, was_dead: bool) {
    let Some(holder) = lease.holder().filter(|holder| holder.host == pair.me.host && !was_dead) else {
        return sleep(pause).await;
    };
    let until = pair.clock.uptime() + pause;
    while pair.clock.uptime() < until && !is_dead(holder, &pair.me) {
        sleep(LOOK).await;
    }
}

/// Returns the lease to the previously active agent, which was cut off from the store but not dead.
async fn give_back(pair: &Pair, grants: &mut Grants, lease: &Lease) {
    pair.fence.close();
    if let Err(error) = grants.release(lease.text()).await {
        tracing::warn!("the lease is left to expire: {error}");
    }
    sleep(UNDECIDED).await;
    pair.lose("another agent holds the data plane");
}

// -- taking over -----------------------------------------------------------------------------------

async fn take_over(pair: Arc<Pair>, core: Arc<Core>) {
    let began = Instant::now();
    if let Some(journal) = core.journal() {
        journal.begin();
    }
    while core.plane().is_some() && !core.data_plane.is_up() {
        let (waited, rival) = (began.elapsed(), pair.fence.has_rival());
        if waited > RIVAL_PATIENCE {
            if rival {
                pair.give_back.notify_one();
                return;
            }
            break;
        }
        if waited > BIND_PATIENCE && !rival {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    if matches!(pair.part(), Part::Lost(_)) {
        return;
    }
    pair.takeovers.fetch_add(1, Ordering::Relaxed);
    pair.part.send_replace(Part::Active);
    let took = began.elapsed().as_millis();
    tracing::warn!("in charge, {took} ms after the lease was granted");
    core.events().agent(AgentWhat::Active, "");
}

// -- commands --------------------------------------------------------------------------------------

/// Serves the control sockets of an agent that is one of a pair.
pub struct Front<S> {
    pair: Arc<Pair>,
    protocol: Protocol,
    commands: Arc<S>,
    held: Semaphore,
    other: Mutex<Option<(String, Arc<RelayClient>)>>,
}

impl<S: Service> Service for Front<S> {
    fn kind(&self, body: &[u8]) -> Kind {
        self.commands.kind(body)
    }

    fn on_expired(&self) {
        self.commands.on_expired();
    }

    async fn execute(&self, body: &[u8], sender: Sender) -> Option<Vec<u8>> {
        if self.pair.serves() {
            return self.commands.execute(body, sender).await;
        }
        let _place = self.held.try_acquire().ok()?;
        let limit = self.pair.length + HELD_LONGER;
        timeout(limit, self.elsewhere(body, sender)).await.ok().flatten()
    }
}

impl<S: Service> Front<S> {
    #[must_use]
    pub fn new(pair: Arc<Pair>, protocol: Protocol, commands: Arc<S>) -> Self {
        Self {
            pair,
            protocol,
            commands,
            held: Semaphore::new(MOST_HELD),
            other: Mutex::default(),
        }
    }

    /// Has the active agent answer, or this one after it has become active.
    async fn elsewhere(&self, body: &[u8], sender: Sender) -> Option<Vec<u8>> {
        // A notify socket that names only a port means the sender's address, which is not ours.
        let rewritten = match self.protocol {
            Protocol::Rtpproxy => Command::parse(body).ok().zip(sender.ip()),
            Protocol::Ng => None,
        };
        let rewritten = rewritten.and_then(|(command, ip)| with_notify_address(&command, ip));
        let own = rewritten.as_deref().unwrap_or(body);
        // The time of a held command counts from the take-over.
        let sender = Sender { received: None, ..sender };
        loop {
            if self.pair.serves() {
                return self.commands.execute(body, sender).await;
            }
            if let Part::Lost(_) = self.pair.part() {
                return None;
            }
            if let Some(client) = self.client() {
                let reply = tokio::select! {
                    reply = client.forward(own) => reply.inspect_err(|error| tracing::debug!("the agent in charge: {error}")).ok(),
                    () = self.pair.becomes_active() => None,
                };
                if reply.is_some() {
                    self.pair.passed_on.fetch_add(1, Ordering::Relaxed);
                    return reply;
                }
            }
            let _ = timeout(TRY_AGAIN, self.pair.becomes_active()).await;
        }
    }

    fn client(&self) -> Option<Arc<RelayClient>> {
        let address = self.pair.other_control(self.protocol)?;
        let mut other = lock(&self.other);
        match &*other {
            Some((known, client)) if *known == address => Some(Arc::clone(client)),
            _ => {
                let parsed: ControlAddress = address
                    .parse()
                    .inspect_err(|error| tracing::error!("the agent in charge says that it listens on {address}: {error}"))
                    .ok()?;
                let timing = Timing {
                    timeout: PASS_ON_TIMEOUT,
                    ..Timing::default()
                };
                let client = RelayClient::with_timing(parsed, self.protocol, timing)
                    .inspect_err(|error| tracing::error!("the agent in charge: {error}"))
                    .ok()?;
                let client = Arc::new(client);
                *other = Some((address, Arc::clone(&client)));
                Some(client)
            }
        }
    }
}
