//! Conferences: the shell of the book.
//!
//! [`Book`] decides, in the crate shunt-conference. Here its decisions are carried out, outside of its lock and in their order, and the rest does what waits:
//! [`writer`] for the data plane, [`mixers`] for mixers, [`sockets`] and [`cpu_port`] for packets.

mod copies;
mod counters;
mod cpu_port;
mod mixer_client;
mod mixers;
mod sockets;
mod store;
mod writer;

pub use cpu_port::Counts as CpuPortCounts;

use crate::clock::Clock;
use crate::config::Conference as Config;
use counters::Readings;
use cpu_port::{CpuPort, KnownRoutes, Sender};
use prometheus_client::metrics::counter::Counter;
use shunt_admin::{
    Conference, ConferenceSummary, Estimate, Event, EventLog, Facts, Failure, FailureKind, Join, Participant, ParticipantUpdate,
    QualityChange, TargetChange, Tiling, TilingWish,
};
use shunt_calls::Notice;
use shunt_conference::book::{Asked, Book, Count, Decision, Level, Settings, Turn};
use shunt_conference::ice::Credentials;
use shunt_conference::routes::Routes;
use shunt_journal::Documents;
use shunt_latch::Policy;
use shunt_net::Endpoint;
use shunt_plane::Plane;
use shunt_rtp::{Packet, demux};
use shunt_rtpproxy::framing::ControlAddress;
use sockets::LegSockets;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use store::Store;
use tokio::sync::{Notify, broadcast};

/// How long a join waits for an agent that has just started.
const READY: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(20);
/// How long the counters of who leaves may take: after that it leaves without.
const LAST_READING: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
/// Seconds between two looks at who is silent.
const LOOK_EVERY: u64 = 5;
/// Estimates that wait for a client of the admin API.
const ESTIMATES: usize = 1024;
/// Between two readings of a switch's routes, s; where somebody is not reached each second.
const ROUTES_EVERY: u64 = 10;

/// What conferences count.
#[derive(Debug, Default)]
pub struct Counts {
    pub rtcp_taken: Counter,
    pub rtcp_refused: Counter,
    pub stun_answered: Counter,
    pub stun_refused: Counter,
    pub nacks: Counter,
    pub retransmitted: Counter,
    pub key_frames_wanted: Counter,
    pub key_frames_asked: Counter,
    pub packets_copied: Counter,
    pub source_mismatches: Counter,
    pub rows_written: Counter,
}

impl Counts {
    fn of(&self, count: Count) -> &Counter {
        match count {
            Count::RtcpTaken => &self.rtcp_taken,
            Count::RtcpRefused => &self.rtcp_refused,
            Count::StunAnswered => &self.stun_answered,
            Count::StunRefused => &self.stun_refused,
            Count::Nack => &self.nacks,
            Count::Retransmitted => &self.retransmitted,
            Count::KeyFrameWanted => &self.key_frames_wanted,
            Count::KeyFrameAsked => &self.key_frames_asked,
            Count::PacketCopied => &self.packets_copied,
            Count::SourceMismatch => &self.source_mismatches,
        }
    }
}

/// All conferences of an agent.
pub struct Conferences {
    /// For tasks that go on by themselves.
    own: Weak<Self>,
    book: Mutex<Book>,
    /// Decisions to carry out, in order. The holder of `carrying` carries them out.
    decided: Mutex<VecDeque<Decision>>,
    carrying: Mutex<()>,
    clock: Clock,
    plane: Plane,
    store: Store,
    log: Option<EventLog>,
    address: IpAddr,
    ports: (u16, u16),
    timeout: Duration,
    policy: Policy,
    /// By port of RTP; `None`: somebody else has the port.
    sockets: Mutex<HashMap<u16, (Endpoint, Option<LegSockets>)>>,
    /// Of a switch.
    cpu_port: Option<Sender>,
    routes: KnownRoutes,
    mixers: Vec<ControlAddress>,
    /// Rows may have to be written.
    wake: Notify,
    /// What a mixer is to know may have changed.
    mixing: Notify,
    estimates: broadcast::Sender<Estimate>,
    pub counts: Counts,
    /// Held from the last reading of rows until the book knows that they are gone. Otherwise a reader of a participant's rows could find
    /// neither the rows nor their counters.
    rows_end: tokio::sync::Mutex<()>,
    copies: copies::Copies,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conferences {
    /// Carry on with the conferences that were kept: at once those of the folder, or, with a journal that agents share, once
    /// [`Conferences::carry_on`] has brought them. Needs a tokio runtime.
    #[must_use]
    pub fn start(
        config: &Config,
        cpu_interface: Option<&str>,
        policy: Policy,
        clock: Clock,
        plane: Plane,
        log: Option<EventLog>,
        shared: Option<Documents>,
    ) -> Arc<Self> {
        let is_shared = shared.is_some();
        let store = shared.map_or_else(|| Store::Folder(config.state.clone()), Store::Shared);
        let address = config.address.to_canonical();
        let ports = (config.ports.first, config.ports.last);
        // The nanoseconds are as good as any where the system has no random number: SSRCs are no secret.
        let seed = getrandom::u64().unwrap_or_else(|_| u64::from(clock.wall().subsec_nanos()));
        let settings = Settings {
            address,
            ports,
            policy,
            mixers: config.mixer.iter().map(ToString::to_string).collect(),
            tiling: config.tiling.clone(),
            announcements: config.announcements,
            seed,
        };
        let routes = KnownRoutes::default();
        let made = Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            book: Mutex::new(Book::new(settings, !is_shared)),
            decided: Mutex::default(),
            carrying: Mutex::default(),
            clock,
            plane,
            store,
            log,
            address,
            ports,
            timeout: Duration::from_secs(config.timeout),
            policy,
            sockets: Mutex::default(),
            cpu_port: cpu_interface.map(|interface| Sender {
                port: Arc::new(CpuPort::new(interface.to_owned(), address)),
                routes: Arc::clone(&routes),
            }),
            routes,
            mixers: config.mixer.clone(),
            wake: Notify::new(),
            mixing: Notify::new(),
            estimates: broadcast::Sender::new(ESTIMATES),
            counts: Counts::default(),
            rows_end: tokio::sync::Mutex::new(()),
            copies: copies::Copies::default(),
        });
        let kept = made.store.load();
        made.decide(|book, turn| book.restore(turn, kept, false));
        made
    }

    /// What the agent in charge before this one has kept beside its calls.
    pub fn carry_on(&self, documents: &[(String, Vec<u8>)]) {
        if !self.look(Book::is_loaded) {
            let kept = Store::read(documents);
            self.decide(|book, turn| book.restore(turn, kept, true));
        }
    }

    /// The store has lost all that it had.
    pub fn keep_all(&self) {
        self.decide(|book, turn| book.keep_all(turn));
    }

    // -- the book ----------------------------------------------------------------------------------

    /// What the book says.
    fn look<R>(&self, look: impl FnOnce(&Book) -> R) -> R {
        look(&locked(&self.book))
    }

    /// Bring the book an event, and carry out what it decides: when this returns, that has been done.
    fn decide<R>(&self, act: impl FnOnce(&mut Book, &mut Turn) -> R) -> R {
        let unix_us = u64::try_from(self.clock.wall().as_micros()).unwrap_or(u64::MAX);
        let result = {
            let mut book = locked(&self.book);
            let (result, decisions) = book.turn(self.clock.now(), unix_us, act);
            if decisions.is_empty() {
                return result;
            }
            // In the order of the book's turns, as it is locked.
            locked(&self.decided).extend(decisions);
            result
        };
        let _carrying = locked(&self.carrying);
        loop {
            let decision = locked(&self.decided).pop_front();
            let Some(decision) = decision else { break };
            self.carry_out(decision);
        }
        result
    }

    fn carry_out(&self, decision: Decision) {
        match decision {
            Decision::Store(kept) => self.store.put(&kept),
            Decision::Forget(name) => self.store.remove(&name),
            Decision::Hold(relay) => self.hold(relay),
            Decision::Release(relay) => drop(locked(&self.sockets).remove(&relay.port)),
            Decision::Send { from, to, data } => self.send(from, to, &data),
            Decision::Publish(facts) => {
                if let Some(log) = &self.log {
                    log.append(Event::of_agent(Facts::Conference(facts)));
                }
            }
            // Nobody listening is no fault.
            Decision::Estimated(estimate) => drop(self.estimates.send(*estimate)),
            Decision::Ask(asked) => {
                if let Some(own) = self.own.upgrade() {
                    tokio::spawn(async move { own.look_for_silence(asked).await });
                }
            }
            Decision::Write => self.wake.notify_one(),
            Decision::Mix => self.mixing.notify_one(),
            Decision::Count(count) => drop(self.counts.of(count).inc()),
            Decision::Log(level, text) => match level {
                Level::Error => tracing::error!("{text}"),
                Level::Warn => tracing::warn!("{text}"),
                Level::Info => tracing::info!("{text}"),
                Level::Debug => tracing::debug!("{text}"),
            },
        }
    }

    // -- sockets -----------------------------------------------------------------------------------

    /// Reserve a relay address. If another process has it, a warning is logged: media works, but RTCP does not arrive.
    fn hold(&self, relay: Endpoint) {
        if let Err(error) = self.try_hold(relay) {
            tracing::warn!("conference address {relay} is not held: {error}");
        }
    }

    fn try_hold(&self, relay: Endpoint) -> std::io::Result<()> {
        let Some(own) = self.own.upgrade() else { return Ok(()) };
        let opened = LegSockets::open(&own, relay);
        let (sockets, result) = match opened {
            Ok(sockets) => (Some(sockets), Ok(())),
            Err(error) => (None, Err(error)),
        };
        locked(&self.sockets).insert(relay.port, (relay, sockets));
        result
    }

    /// Ports that somebody else had, as an agent of the same pair that hangs, may be free by now.
    fn hold_ports(&self) {
        let _carrying = locked(&self.carrying);
        let lacking: Vec<Endpoint> = {
            let sockets = locked(&self.sockets);
            sockets
                .values()
                .filter(|(_, sockets)| sockets.is_none())
                .map(|(relay, _)| *relay)
                .collect()
        };
        for relay in lacking {
            // It was said when the port was wanted first.
            let _ = self.try_hold(relay);
        }
    }

    /// Send from a relay address.
    fn send(&self, from: Endpoint, to: Endpoint, data: &[u8]) {
        if let Some((_, Some(sockets))) = locked(&self.sockets).get(&(from.port & !1)) {
            sockets.send(from.port & 1 == 1, to, data);
        }
    }

    /// A datagram came to a relay port; whether it is RTCP or a connectivity check.
    fn arrived(&self, port: u16, from: Endpoint, data: &[u8]) -> bool {
        match demux(data) {
            Packet::Rtcp => self.decide(|book, turn| book.rtcp(turn, port, from, data)),
            Packet::Stun => self.decide(|book, turn| book.checked(turn, port, from, data)),
            _ => return false,
        }
        true
    }

    // -- what the agent asks -----------------------------------------------------------------------

    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether this is one of the conferences' relay addresses, in use or not.
    #[must_use]
    pub fn owns(&self, end: Endpoint) -> bool {
        end.addr == self.address && (self.ports.0..=self.ports.1 | 1).contains(&end.port)
    }

    /// The CPU port of a switch; `None`: the conferences' address is the host's.
    pub(crate) fn cpu_port(&self) -> Option<&Sender> {
        self.cpu_port.as_ref()
    }

    /// The interface that is the switch's CPU port, and why nothing comes or goes by it.
    #[must_use]
    pub fn cpu_port_problem(&self) -> Option<(String, String)> {
        let port = &self.cpu_port.as_ref()?.port;
        Some((port.interface().to_owned(), port.problem()?))
    }

    #[must_use]
    pub fn cpu_port_counts(&self) -> Option<&CpuPortCounts> {
        self.cpu_port.as_ref().map(|sender| &sender.port.counts)
    }

    #[must_use]
    pub fn has_mixers(&self) -> bool {
        !self.mixers.is_empty()
    }

    /// Mixers that do not answer, and why.
    #[must_use]
    pub fn lacking_mixers(&self) -> Vec<(String, String)> {
        self.look(Book::lacking_mixers)
    }

    /// Conferences that are on a mixer, and participants who get a mix.
    #[must_use]
    pub fn mixed_sizes(&self) -> (usize, usize) {
        self.look(Book::mixed_sizes)
    }

    /// Conferences whose video a mixer tiles, and participants whose video comes tiled.
    #[must_use]
    pub fn tiled_sizes(&self) -> (usize, usize) {
        self.look(Book::tiled_sizes)
    }

    /// Conferences, participants, and rows in the data plane.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        self.look(Book::sizes)
    }

    #[must_use]
    pub fn estimates(&self) -> broadcast::Receiver<Estimate> {
        self.estimates.subscribe()
    }

    // -- the data plane ----------------------------------------------------------------------------

    /// The data plane can be used, or no longer and why.
    pub fn set_data_plane(&self, down: Option<&str>) {
        self.decide(|book, turn| book.set_data_plane(turn, down));
    }

    /// Packets to the conferences' address that no row matches.
    pub fn noticed(&self, notices: &[Notice]) {
        self.decide(|book, turn| notices.iter().for_each(|notice| book.noticed(turn, notice)));
    }

    /// Whether the old source of a leg still sends: its counters are read twice.
    async fn look_for_silence(&self, asked: Asked) {
        let before = self.count(&asked).await;
        let looked = self.clock.now();
        tokio::time::sleep(self.policy.silence).await;
        let after = self.count(&asked).await;
        let facts = before.zip(after).map(|(before, after)| shunt_latch::Facts {
            last_packet: if before == after { looked } else { self.clock.now() },
            sequence: None,
        });
        self.decide(|book, turn| book.answered(turn, &asked, facts));
    }

    /// Packets of a leg that the data plane has counted.
    async fn count(&self, asked: &Asked) -> Option<u64> {
        let (keys, relay) = self.look(|book| book.rows_of_leg(&asked.place))?;
        let counted = self.plane.conference_counters(Some(&keys)).await.ok()?;
        let relayed = self.plane.counters(&[relay]).await.ok()?;
        let sum: u64 = counted.iter().map(|one| one.packets).sum();
        Some(sum + relayed.iter().map(|(_, counters)| counters.packets).sum::<u64>())
    }

    /// Frames that the data plane has copied to the agent.
    pub fn copied<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) {
        self.decide(|book, turn| frames.into_iter().for_each(|frame| book.copied(turn, frame)));
    }

    /// A switch's routes are its operator's, who may change them at any time: copies follow.
    async fn read_routes(&self) {
        let routes = match self.plane.routes().await {
            Ok(routes) => routes.map(Arc::new),
            Err(error) => {
                tracing::warn!("conferences: the switch's routes cannot be read, and those of before are in force: {error}");
                return;
            }
        };
        if *locked(&self.routes) != routes {
            let routes = self.known_routes(routes);
            self.decide(|book, turn| book.set_routes(turn, routes));
        }
    }

    /// These routes are in force from now on.
    fn known_routes(&self, routes: Option<Arc<shunt_plane::Routes>>) -> Option<Arc<dyn Routes>> {
        locked(&self.routes).clone_from(&routes);
        routes.map(|routes| routes as Arc<dyn Routes>)
    }

    // -- tasks -------------------------------------------------------------------------------------

    /// For ever: write what has changed.
    pub async fn write(&self) {
        writer::write(self).await;
    }

    /// For ever: take what comes by the CPU port of a switch.
    pub async fn serve_cpu_port(&self) {
        match &self.cpu_port {
            Some(sender) => sender.port.serve(self).await,
            None => std::future::pending().await,
        }
    }

    /// For ever: bring time to conferences.
    pub async fn keep_time(&self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.decide(|book, turn| book.tick(turn));
        }
    }

    /// For ever: read counters, and what follows from them.
    pub async fn look_at_counters(&self) {
        let mut interval = tokio::time::interval(SECOND);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut round = 0_u64;
        loop {
            interval.tick().await;
            round += 1;
            if !self.decide(|book, turn| book.second(turn)) {
                continue;
            }
            match self.plane.conference_counters(None).await {
                Ok(read) => self.decide(|book, turn| book.counted(turn, read)),
                Err(error) => tracing::debug!("counters of conferences: {error}"),
            }
            let observed = self.estimates.receiver_count() > 0;
            self.decide(|book, turn| book.consider(turn, observed));
            if round.is_multiple_of(LOOK_EVERY) {
                self.hold_ports();
                self.look_who_is_silent().await;
            }
            let (is_switch, cut_off) = self.look(Book::is_cut_off);
            if is_switch && (cut_off || round.is_multiple_of(ROUTES_EVERY)) {
                self.read_routes().await;
            }
        }
    }

    async fn look_who_is_silent(&self) {
        let keys = self.look(Book::relay_keys);
        if !keys.is_empty() {
            match self.plane.counters(&keys).await {
                Ok(read) => self.decide(|book, turn| book.relayed(turn, &read)),
                Err(error) => {
                    tracing::debug!("counters of conferences: {error}");
                    return;
                }
            }
        }
        let silent = self.look(|book| book.silent(self.clock.now(), self.timeout));
        for (conference, participant) in silent {
            tracing::info!(
                "conference {conference}: {participant} has sent nothing for {:?} and is removed",
                self.timeout
            );
            // It may have left just now.
            let _ = self.leave(&conference, &participant, "media-timeout").await;
        }
    }

    // -- the admin API -----------------------------------------------------------------------------

    #[must_use]
    pub fn list(&self) -> Vec<ConferenceSummary> {
        self.look(Book::list)
    }

    /// # Errors
    /// The name cannot be, or is taken.
    pub fn create(&self, name: &str) -> Result<ConferenceSummary, Failure> {
        self.decide(|book, turn| book.create(turn, name))
    }

    /// # Errors
    /// There is no such conference.
    pub async fn look_at(&self, name: &str) -> Result<Conference, Failure> {
        let (relays, has_copies) = self.look(|book| book.counters_of(name))?;
        let counted = if has_copies { self.copy_counts().await } else { None };
        if !relays.is_empty()
            && let Ok(read) = self.plane.counters(&relays).await
        {
            self.decide(|book, turn| book.relayed(turn, &read));
        }
        self.look(|book| book.look(name, counted.as_deref(), self.clock.now()))
    }

    /// # Errors
    /// There is no such conference.
    pub async fn end(&self, name: &str) -> Result<(), Failure> {
        while let Some(one) = self.look(|book| book.anybody(name))? {
            match self.leave(name, &one, "ended").await {
                Err(failure) if failure.kind != FailureKind::NotFound => return Err(failure),
                _ => {}
            }
        }
        self.decide(|book, turn| book.end(turn, name));
        Ok(())
    }

    async fn ready(&self) -> Result<(), Failure> {
        let deadline = self.clock.uptime() + READY;
        loop {
            let Some(problem) = self.look(|book| book.problem().map(str::to_owned)) else {
                return Ok(());
            };
            if self.clock.uptime() > deadline {
                let text = format!("nobody can be let in, {} s were waited for that: {problem}", READY.as_secs());
                return Err(Failure::new(FailureKind::Unavailable, text));
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Give a participant its relay addresses.
    ///
    /// # Errors
    /// What was asked for cannot be; nothing has changed.
    pub async fn join(&self, conference: &str, join: &Join) -> Result<Participant, Failure> {
        Book::check_join(join)?;
        let credentials = join.ice.then(credentials).transpose()?;
        self.ready().await?;
        self.decide(|book, turn| book.join(turn, conference, join, credentials))
    }

    /// # Errors
    /// There is no such participant, or what is said of it cannot be.
    pub fn update(&self, conference: &str, participant: &str, update: &ParticipantUpdate) -> Result<Participant, Failure> {
        let credentials = update.ice_restart.then(credentials).transpose()?;
        self.decide(|book, turn| book.update(turn, conference, participant, update, credentials))
    }

    /// A participant leaves; what its media have carried is in the event `left`.
    ///
    /// # Errors
    /// There is no such participant.
    pub async fn leave(&self, conference: &str, participant: &str, reason: &str) -> Result<(), Failure> {
        let _rows = tokio::time::timeout(LAST_READING, self.rows_end.lock()).await;
        let keys = self.look(|book| book.leaving(conference, participant))?;
        let read = if keys.is_empty() {
            Some(Readings::new())
        } else {
            let read = tokio::time::timeout(LAST_READING, counters::read(&self.plane, &keys));
            read.await.ok().and_then(Result::ok)
        };
        self.decide(|book, turn| book.leave(turn, conference, participant, reason, &keys, read.as_ref()))
    }

    /// # Errors
    /// They are not both there.
    pub fn set_quality(&self, conference: &str, change: &QualityChange) -> Result<(), Failure> {
        self.decide(|book, turn| book.set_quality(turn, conference, change))
    }

    /// # Errors
    /// One of the decisions cannot be; nothing has changed.
    pub fn set_targets(&self, conference: &str, change: &TargetChange) -> Result<(), Failure> {
        self.decide(|book, turn| book.set_targets(turn, conference, change))
    }

    /// # Errors
    /// There is no such conference, or no mixer.
    pub fn set_announcements(&self, conference: &str, wanted: bool) -> Result<(), Failure> {
        self.decide(|book, turn| book.set_announcements(turn, conference, wanted))
    }

    /// # Errors
    /// There is no such conference, they cannot be, or there is no mixer.
    pub fn set_tiling(&self, conference: &str, wish: TilingWish) -> Result<Tiling, Failure> {
        self.decide(|book, turn| book.set_tiling(turn, conference, wish))
    }

    /// # Errors
    /// There is no such conference, or it has none.
    pub fn end_tiling(&self, conference: &str) -> Result<(), Failure> {
        self.decide(|book, turn| book.end_tiling(turn, conference))
    }
}

/// New ICE credentials.
fn credentials() -> Result<Credentials, Failure> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Failure::new(FailureKind::Unavailable, format!("no random number: {error}")))?;
    Ok(Credentials::of(bytes))
}
