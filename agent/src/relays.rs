//! The relays behind the agent: their state, their capabilities, and the choice for a new call.

use crate::config::RelayConfig;
use crate::core::Core;
use crate::stats::{Quick, Seconds};
use crate::tasks::ticks;
use prometheus_client::metrics::counter::Counter;
use shunt_admin::LinkWhat;
use shunt_calls::{RelayId, RelayKind};
use shunt_control::{Deadline, Protocol, RelayClient, RelayError, Unsupported};
use shunt_rtpproxy::build;
use shunt_rtpproxy::capability::{self, KeepAlive};
use shunt_rtpproxy::{Info, Reply};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Poll interval of a relay's sessions.
const POLL: Duration = Duration::from_secs(1);
/// One in this many polls of rtpengine asks for its statistics.
const STATISTICS_EVERY: u64 = 10;
/// Most concurrent commands of the agent's own to one relay, whose control thread serves the SIP server too.
const OWN_COMMANDS: usize = 64;

/// Facts from a relay's answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The reply to V.
    pub version: String,
    pub keepalive: Option<KeepAlive>,
    pub may_query: bool,
    pub lists_sessions: bool,
    pub sessions: Option<u64>,
    pub packets_relayed: Option<u64>,
}

/// One relay.
pub struct Relay {
    pub name: String,
    pub kind: RelayKind,
    /// Its control socket.
    pub address: String,
    client: RelayClient,
    alive: AtomicBool,
    /// Time from a SIP server's command to the reply.
    pub reply_seconds: Seconds<Quick>,
    /// Commands of SIP servers without a reply.
    pub unanswered: Counter,
    sessions: AtomicU64,
    polls: AtomicU64,
    facts: Mutex<Facts>,
    error: Mutex<Option<String>>,
    own: Semaphore,
}

/// All relays, in the order of the configuration.
pub struct Relays {
    relays: Vec<(RelayId, Relay)>,
}

impl Relay {
    fn new(config: &RelayConfig) -> Result<Self, Unsupported> {
        Ok(Self {
            name: config.name.clone(),
            kind: config.kind(),
            address: config.socket.to_string(),
            client: RelayClient::new(config.socket.clone(), protocol(config.kind()))?,
            alive: AtomicBool::new(true),
            reply_seconds: Seconds::default(),
            unanswered: Counter::default(),
            sessions: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            facts: Mutex::default(),
            error: Mutex::default(),
            own: Semaphore::new(OWN_COMMANDS),
        })
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Reason why the last command of the agent's own had no reply.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_facts(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends a command of the agent's own. `None`: no answer.
    pub async fn request(&self, command: &[u8]) -> Option<Vec<u8>> {
        let _place = self.own.acquire().await.ok()?;
        let (reply, error) = match self.client.request(command).await {
            Ok(reply) => (Some(reply), None),
            Err(error) => {
                tracing::debug!("relay {}: {error}", self.name);
                let reason = match error {
                    RelayError::Timeout { tries, timeout, .. } => format!("no reply after {tries} tries of {timeout:?}"),
                    RelayError::Unreachable { reason, .. } => reason,
                    error => error.to_string(),
                };
                (None, Some(reason))
            }
        };
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        reply
    }

    /// Returns whether it answers VF for these dates with yes. `None`: no answer.
    async fn handshake(&self) -> Option<Facts> {
        let version = self.request(&build::version()).await?;
        let mut has = HashMap::new();
        for date in capability::AGENT_HANDSHAKE.into_iter().chain([capability::SESSION_LISTING]) {
            let reply = self.request(&build::capability(date)).await?;
            has.insert(date, Reply::new(&reply).number() == Some(1));
        }
        let has = |date| has.get(&date).copied().unwrap_or(false);
        Some(Facts {
            version: String::from_utf8_lossy(&version).trim().to_owned(),
            keepalive: Some(capability::keepalive(has)),
            may_query: capability::may_query(has),
            lists_sessions: has(capability::SESSION_LISTING),
            ..self.facts()
        })
    }

    async fn poll(&self, core: &Arc<Core>, id: RelayId) -> Option<()> {
        match self.kind {
            RelayKind::Rtpproxy => self.poll_rtpproxy(core, id).await,
            RelayKind::Rtpengine => self.poll_rtpengine().await,
        }
    }

    async fn poll_rtpengine(&self) -> Option<()> {
        let reply = self.request(&shunt_ng::build::ping()).await?;
        shunt_ng::Reply::parse(&reply).ok().filter(shunt_ng::Reply::is_ok)?;
        // Its statistics are long: one poll in STATISTICS_EVERY requests them.
        if self.polls.fetch_add(1, Ordering::Relaxed).is_multiple_of(STATISTICS_EVERY) {
            let reply = self.request(&shunt_ng::build::statistics()).await?;
            let told = shunt_ng::statistics(&reply);
            let sessions = told.as_ref().and_then(|told| told.sessions);
            self.sessions.store(sessions.unwrap_or(0), Ordering::Relaxed);
            self.set_facts(|facts| {
                "rtpengine".clone_into(&mut facts.version);
                (facts.may_query, facts.lists_sessions) = (true, true);
                (facts.sessions, facts.packets_relayed) = (sessions, told.and_then(|told| told.packets_relayed));
            });
        }
        Some(())
    }

    async fn poll_rtpproxy(&self, core: &Arc<Core>, id: RelayId) -> Option<()> {
        if self.facts().keepalive.is_none() {
            let facts = self.handshake().await?;
            if let Some(keepalive) = facts.keepalive {
                core.set_capabilities(id, keepalive, facts.may_query);
            }
            self.set_facts(|old| *old = facts);
        }
        let reply = self.request(b"I").await?;
        // Not every relay has all of these lines.
        let info = Info::parse(&reply);
        let sessions = info.map(|info| info.active_sessions);
        self.sessions.store(sessions.unwrap_or(0), Ordering::Relaxed);
        let counted = self.request(b"G npkts_relayed").await?;
        let packets_relayed = Reply::new(&counted).number();
        self.set_facts(|facts| (facts.sessions, facts.packets_relayed) = (sessions, packets_relayed));
        Some(())
    }

    fn set_alive(&self, core: &Core, id: RelayId, alive: bool) {
        if self.alive.swap(alive, Ordering::Relaxed) == alive {
            return;
        }
        if alive {
            tracing::warn!("relay {} ({}) answers again", self.name, self.address);
        } else {
            tracing::error!("relay {} ({}) does not answer", self.name, self.address);
            // Another version may come back.
            self.set_facts(|facts| facts.keepalive = None);
            self.polls.store(0, Ordering::Relaxed);
        }
        let what = if alive { LinkWhat::Up } else { LinkWhat::Down };
        core.events().relay(&self.name, what, None);
        let lines = core.read(|book| book.lines().filter(|line| line.relay() == id && line.released().is_none()).count());
        if alive && lines > 0 && self.facts().sessions == Some(0) {
            let detail = format!("it has no session of the {lines} that it had");
            tracing::warn!("relay {}: {detail}", self.name);
            core.events().relay(&self.name, LinkWhat::Reset, Some(&detail));
        }
    }
}

/// Protocol that controls a kind of relay.
fn protocol(kind: RelayKind) -> Protocol {
    match kind {
        RelayKind::Rtpproxy => Protocol::Rtpproxy,
        RelayKind::Rtpengine => Protocol::Ng,
    }
}

impl Relays {
    /// Makes the clients of all relays. `ids`: the book's numbers of the same relays.
    ///
    /// # Errors
    /// A relay's protocol is not spoken over its kind of socket.
    pub fn new(configs: &[RelayConfig], ids: &[RelayId]) -> Result<Self, Unsupported> {
        let relays = ids.iter().zip(configs).map(|(id, config)| Ok((*id, Relay::new(config)?)));
        Ok(Self {
            relays: relays.collect::<Result<_, _>>()?,
        })
    }

    #[must_use]
    pub fn get(&self, id: RelayId) -> Option<&Relay> {
        self.relays.iter().find(|(known, _)| *known == id).map(|(_, relay)| relay)
    }

    pub fn iter(&self) -> impl Iterator<Item = (RelayId, &Relay)> {
        self.relays.iter().map(|(id, relay)| (*id, relay))
    }

    /// Returns the relays of one kind, in the order of the configuration.
    #[must_use]
    pub fn ids_of(&self, kind: RelayKind) -> Vec<RelayId> {
        self.of(kind).map(|(id, _)| id).collect()
    }

    fn of(&self, kind: RelayKind) -> impl Iterator<Item = (RelayId, &Relay)> {
        self.iter().filter(move |(_, relay)| relay.kind == kind)
    }

    #[must_use]
    pub fn living(&self, kind: RelayKind) -> Vec<RelayId> {
        self.of(kind).filter(|(_, relay)| relay.is_alive()).map(|(id, _)| id).collect()
    }

    /// Returns the relays to try for a new call: the living one with the fewest sessions first, dead ones last, because they may be back.
    #[must_use]
    pub fn candidates(&self, kind: RelayKind) -> Vec<RelayId> {
        let mut all: Vec<_> = self.of(kind).collect();
        all.sort_by_key(|(_, relay)| (!relay.is_alive(), relay.sessions.load(Ordering::Relaxed)));
        all.into_iter().map(|(id, _)| id).collect()
    }

    /// Returns the first of [`Relays::candidates`].
    #[must_use]
    pub fn best(&self, kind: RelayKind) -> Option<RelayId> {
        let key = |relay: &Relay| (!relay.is_alive(), relay.sessions.load(Ordering::Relaxed));
        self.of(kind).min_by_key(|(_, relay)| key(relay)).map(|(id, _)| id)
    }

    /// Forwards a SIP server's command. `None`: no answer. `deadline`: how long the SIP server waits, if known.
    pub async fn forward(&self, id: RelayId, body: &[u8], deadline: Option<Deadline<'_>>) -> Option<Vec<u8>> {
        let relay = self.get(id)?;
        let began = Instant::now();
        let result = match deadline {
            Some(deadline) => relay.client.forward_until(body, deadline).await,
            None => relay.client.forward(body).await,
        };
        match result {
            Ok(reply) => {
                relay.reply_seconds.observe(began.elapsed());
                Some(reply)
            }
            Err(error @ RelayError::Expired { .. }) => {
                relay.unanswered.inc();
                tracing::debug!("{error}");
                None
            }
            Err(error) => {
                relay.unanswered.inc();
                tracing::warn!("relay {}: {error}", relay.name);
                None
            }
        }
    }

    /// Sends a relay a command of the agent's own. `None`: no answer.
    pub async fn request(&self, id: RelayId, body: &[u8]) -> Option<Vec<u8>> {
        self.get(id)?.request(body).await
    }

    /// Polls a relay's capabilities and state, without end.
    pub async fn watch(core: &Arc<Core>, id: RelayId) {
        let Some(relay) = core.relays().get(id) else { return };
        let mut due = ticks(core, POLL);
        loop {
            let alive = relay.poll(core, id).await.is_some();
            relay.set_alive(core, id, alive);
            due.tick().await;
        }
    }
}
