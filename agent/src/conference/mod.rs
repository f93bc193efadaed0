//! Conferences: participants let in over the admin API, their sources latched, their RTCP shared out, and the data plane's rows that copy media.
//!
//! [`state`] is the one owner of what conferences are; whatever happens takes its lock for a moment, and nothing waits in it. [`writer`] is the one
//! that waits for the data plane. What depends on no I/O at all is in the crate shunt-conference.

mod accounting;
mod copies;
mod cpu_port;
mod feedback;
mod learning;
mod mixer_client;
mod mixers;
mod mixing;
mod rates;
mod sockets;
mod state;
mod store;
mod tiling;
mod view;
mod writer;

pub use cpu_port::Counts as CpuPortCounts;
pub use state::leg_name;

use crate::clock::Clock;
use crate::config::Conference as Settings;
use cpu_port::{CpuPort, KnownRoutes, Sender};
use learning::Asked;
use mixers::Mixers;
use prometheus_client::metrics::counter::Counter;
use shunt_admin::{
    Conference, ConferenceFacts, ConferenceSummary, Estimate, Event, EventLog, Facts, Failure, FailureKind, Join, Participant,
    ParticipantUpdate, QualityChange, TargetChange, TilingWish,
};
use shunt_calls::Notice;
use shunt_conference::adaptation::Medium;
use shunt_conference::ice::Credentials;
use shunt_conference::membership::TARGETS;
use shunt_conference::participant::{Leg, Participant as Planned};
use shunt_conference::rows::Key;
use shunt_conference::tables::Name;
use shunt_journal::Documents;
use shunt_latch::{Policy, Time};
use shunt_net::{Endpoint, FiveTuple};
use shunt_plane::{Plane, Routes};
use shunt_rtp::{Packet, demux};
use sockets::LegSockets;
use state::{Decided, Member, Place, Room, State};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Kept, Store};
use tokio::sync::{Notify, broadcast};

/// How long a join waits for an agent that has just started.
const READY: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(20);
/// How long the counters of who leaves may take: after that it leaves without.
const LAST_READING: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
/// Seconds between two looks at who is silent, and at streams whose layers are not known.
const LOOK_EVERY: u64 = 5;
const STRUCTURES_EVERY: u64 = 2;
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

/// What everything in here needs besides the state.
pub struct Shared {
    clock: Clock,
    address: IpAddr,
    policy: Policy,
    store: Store,
    log: Option<EventLog>,
    wake: Notify,
    /// What a mixer is to know may have changed.
    mixing: Notify,
    estimates: broadcast::Sender<Estimate>,
    pub counts: Counts,
}

/// All conferences of an agent.
pub struct Conferences {
    shared: Shared,
    plane: Plane,
    ports: (u16, u16),
    timeout: Duration,
    /// Of a switch.
    cpu_port: Option<Sender>,
    routes: KnownRoutes,
    mixers: Mixers,
    /// Of conferences that are to come.
    tiling: Option<TilingWish>,
    announcements: bool,
    state: Mutex<State>,
    /// Held from the last reading of rows until the state knows that they are gone: whoever reads the rows of a participant meanwhile would find
    /// neither them nor what they have counted.
    rows_end: tokio::sync::Mutex<()>,
    copies: copies::Copies,
    up: AtomicBool,
    /// What was kept is there. Rows of conferences that are not would be nobody's.
    loaded: AtomicBool,
    unsure: AtomicBool,
}

impl Shared {
    /// Something happened in a conference.
    fn tell(
        &self,
        conference: &Name,
        what: &'static str,
        participant: Option<&Name>,
        medium: Option<Medium>,
        more: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
    ) {
        let Some(log) = &self.log else { return };
        let mut facts = serde_json::Map::new();
        more(&mut facts);
        log.append(Event::of_agent(Facts::Conference(Box::new(ConferenceFacts {
            conference: conference.as_bytes().into(),
            what,
            participant: participant.map(|name| name.as_bytes().into()),
            medium: medium.map(|medium| medium.name().as_bytes().into()),
            more: facts,
        }))));
    }

    /// SSRCs that are somebody else's, and no longer: streams of these go to nobody.
    fn tell_conflicts(&self, room: &mut Room) {
        let found = room.conflicts();
        let before = std::mem::replace(&mut room.conflicting, found);
        let told = |what: &'static str, (participant, medium, ssrc): &(Name, Medium, u32), owner: &Name| {
            self.tell(&room.conference.name, what, Some(participant), Some(*medium), |facts| {
                facts.insert("ssrc".into(), (*ssrc).into());
                facts.insert("owner".into(), owner.to_string().into());
            });
        };
        for (stream, owner) in room.conflicting.iter().filter(|(stream, _)| !before.contains_key(stream)) {
            let (participant, medium, ssrc) = stream;
            tracing::warn!(
                "conference {}: {} of {participant} with SSRC {ssrc:08x} goes to nobody: {owner} has sent it before",
                room.conference.name,
                medium.name()
            );
            told("ssrc-conflict", stream, owner);
        }
        for (stream, owner) in before.iter().filter(|(stream, _)| !room.conflicting.contains_key(stream)) {
            told("ssrc-free", stream, owner);
        }
    }

    fn tell_source(&self, place: &Place, source: Option<Endpoint>) {
        let text = source.map(|source| source.to_string());
        tracing::info!(
            "conference {}: {} of {} comes from {}",
            place.conference,
            leg_name(place.leg),
            place.participant,
            text.as_deref().unwrap_or("nobody certain")
        );
        self.tell(&place.conference, "source", Some(&place.participant), Some(place.leg.0), |facts| {
            facts.insert("source".into(), text.into());
        });
    }

    /// Media on which a participant only listens are served where signalling says.
    fn serve_listening(&self, room: &mut Room, participant: &Name) {
        for (leg, to) in room.serve_listening(participant, self.clock.now()) {
            let place = Place {
                conference: room.conference.name.clone(),
                participant: participant.clone(),
                leg,
            };
            self.tell_source(&place, Some(to));
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn estimated(&self, room: &Room, sender: &Name, medium: Medium, receiver: &Name, estimate: f64, remb: Option<f64>, lost: Option<f64>) {
        let bits = |rate: f64| rate.max(0.0) as u64;
        let pair = (sender.clone(), receiver.clone());
        let level = room.conference.levels.get(&(pair, medium)).copied().unwrap_or(TARGETS);
        let rates = room.rates.get(&(sender.clone(), medium));
        // Nobody listening is no fault.
        let _ = self.estimates.send(Estimate {
            conference: room.conference.name.as_bytes().into(),
            sender: sender.as_bytes().into(),
            receiver: receiver.as_bytes().into(),
            medium: medium.name().to_owned(),
            estimate_bits_per_s: bits(estimate),
            remb_bits_per_s: remb.map(bits),
            fraction_lost: lost,
            targets_bits_per_s: rates.map(|rates| rates.iter().copied().map(bits).collect()).unwrap_or_default(),
            target: level.checked_sub(1).and_then(|target| u8::try_from(target).ok()),
        });
    }
}

impl Conferences {
    /// Carry on with the conferences that were kept: at once those of the folder, or, with a journal that agents share, once
    /// [`Conferences::carry_on`] has brought them. Needs a tokio runtime.
    #[must_use]
    pub fn start(
        settings: &Settings,
        cpu_interface: Option<&str>,
        policy: Policy,
        clock: Clock,
        plane: Plane,
        log: Option<EventLog>,
        shared: Option<Documents>,
    ) -> Arc<Self> {
        let is_shared = shared.is_some();
        let store = shared.map_or_else(|| Store::Folder(settings.state.clone()), Store::Shared);
        let address = settings.address.to_canonical();
        let (first, last) = (settings.ports.first, settings.ports.last);
        let routes = KnownRoutes::default();
        let made = Arc::new(Self {
            shared: Shared {
                clock,
                address,
                policy,
                store,
                log,
                wake: Notify::new(),
                mixing: Notify::new(),
                estimates: broadcast::Sender::new(ESTIMATES),
                counts: Counts::default(),
            },
            plane,
            ports: (first, last),
            timeout: Duration::from_secs(settings.timeout),
            cpu_port: cpu_interface.map(|interface| Sender {
                port: Arc::new(CpuPort::new(interface.to_owned(), address)),
                routes: Arc::clone(&routes),
            }),
            routes,
            mixers: Mixers::new(&settings.mixer),
            tiling: settings.tiling.clone(),
            announcements: settings.announcements,
            state: Mutex::new(State::new(first, last)),
            rows_end: tokio::sync::Mutex::new(()),
            copies: copies::Copies::default(),
            up: AtomicBool::new(false),
            loaded: AtomicBool::new(!is_shared),
            unsure: AtomicBool::new(true),
        });
        made.with(|state| state.mixing = !settings.mixer.is_empty());
        made.load(made.shared.store.load());
        made
    }

    /// What the agent in charge before this one has kept beside its calls.
    pub fn carry_on(self: &Arc<Self>, documents: &[(String, Vec<u8>)]) {
        if !self.loaded.load(Ordering::Relaxed) {
            self.load(Store::read(documents));
            self.loaded.store(true, Ordering::Relaxed);
            self.set_unsure();
            self.shared.wake.notify_one();
        }
    }

    /// The store has lost all that it had.
    pub fn keep_all(&self) {
        self.with(|state| state.rooms.values().for_each(|room| self.shared.store.put(&room.keep())));
    }

    fn load(self: &Arc<Self>, kept: Vec<Kept>) {
        let mut names: Vec<(Name, Name)> = Vec::new();
        self.with(|state| {
            let now = self.shared.clock.now();
            for one in kept {
                let name = one.conference.clone();
                if let Err(error) = state.restore(self.shared.address, one, now) {
                    tracing::error!("conference {name} cannot be carried on: {error}");
                    state.rooms.remove(&*name);
                }
            }
            for room in state.rooms.values() {
                let name = &room.conference.name;
                names.extend(room.members.keys().map(|member| (name.clone(), member.clone())));
            }
        });
        for (conference, participant) in &names {
            self.open_sockets(conference, participant);
        }
        if !names.is_empty() {
            tracing::info!("conferences: {} participants carried on", names.len());
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Whether this is one of the conferences' relay addresses, in use or not.
    #[must_use]
    pub fn owns(&self, end: Endpoint) -> bool {
        end.addr == self.shared.address && (self.ports.0..=self.ports.1 | 1).contains(&end.port)
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

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) && self.loaded.load(Ordering::Relaxed)
    }

    fn set_unsure(&self) {
        self.unsure.store(true, Ordering::Relaxed);
    }

    fn take_unsure(&self) -> bool {
        self.unsure.swap(false, Ordering::Relaxed)
    }

    // -- the data plane ----------------------------------------------------------------------------

    /// The data plane can be used, or no longer and why.
    pub fn set_data_plane(&self, down: Option<&str>) {
        self.up.store(down.is_none(), Ordering::Relaxed);
        self.set_unsure();
        if let Some(reason) = down {
            self.with(|state| state.problem = Some(format!("the data plane is not there: {reason}")));
        }
        self.shared.wake.notify_one();
    }

    /// Packets to the conferences' address that no row matches.
    pub fn noticed(self: &Arc<Self>, notices: &[Notice]) {
        let asked: Vec<Asked> = self.with(|state| notices.iter().filter_map(|notice| state.noticed(&self.shared, notice)).collect());
        for one in asked {
            let conferences = Arc::clone(self);
            tokio::spawn(async move { conferences.look_for_silence(one).await });
        }
    }

    /// Whether the old source of a leg still sends: its counters are read twice.
    async fn look_for_silence(&self, asked: Asked) {
        let before = self.count(&asked).await;
        let looked = self.shared.clock.now();
        tokio::time::sleep(self.shared.policy.silence).await;
        let after = self.count(&asked).await;
        let facts = before.zip(after).map(|(before, after)| shunt_latch::Facts {
            last_packet: if before == after { looked } else { self.shared.clock.now() },
            sequence: None,
        });
        self.with(|state| state.answered(&self.shared, &asked, facts));
    }

    /// Packets of a leg that the data plane has counted.
    async fn count(&self, asked: &Asked) -> Option<u64> {
        let place = &asked.place;
        let (keys, relay) = self.with(|state| {
            let room = state.rooms.get(&place.conference)?;
            let (leg, _) = room.leg(&place.participant, place.leg)?;
            let flow = FiveTuple::new(leg.source?, leg.relay);
            let keys: Vec<Key> = leg.ssrcs.iter().map(|ssrc| Key::Stream(flow, *ssrc)).collect();
            Some((keys, flow))
        })?;
        let counted = self.plane.conference_counters(Some(&keys)).await.ok()?;
        let relayed = self.plane.counters(&[relay]).await.ok()?;
        let sum: u64 = counted.iter().map(|one| one.packets).sum();
        Some(sum + relayed.iter().map(|(_, counters)| counters.packets).sum::<u64>())
    }

    /// Frames that the data plane has copied to the agent.
    pub fn copied<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) {
        self.with(|state| frames.into_iter().for_each(|frame| state.copied(&self.shared, frame)));
    }

    /// A datagram came to a relay port; whether it is RTCP or a connectivity check.
    fn arrived(&self, port: u16, from: Endpoint, data: &[u8]) -> bool {
        match demux(data) {
            Packet::Rtcp => self.with(|state| state.rtcp(&self.shared, port, from, data)),
            Packet::Stun => self.with(|state| state.checked(&self.shared, port, from, data)),
            _ => return false,
        }
        true
    }

    // -- tasks -------------------------------------------------------------------------------------

    /// For ever: write what has changed.
    pub async fn write(self: &Arc<Self>) {
        writer::write(self).await;
    }

    /// For ever: take what comes by the CPU port of a switch.
    pub async fn serve_cpu_port(self: &Arc<Self>) {
        match &self.cpu_port {
            Some(sender) => sender.port.serve(self).await,
            None => std::future::pending().await,
        }
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
        if *self.routes.lock().unwrap_or_else(PoisonError::into_inner) == routes {
            return;
        }
        self.with(|state| {
            self.set_routes(state, routes);
            let names: Vec<Name> = state.rooms.keys().cloned().collect();
            names.iter().for_each(|name| state.touch(&self.shared, name));
        });
    }

    /// These routes are in force from now on.
    fn set_routes(&self, state: &mut State, routes: Option<Arc<Routes>>) {
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = routes.clone();
        state
            .planner
            .set_routes(routes.map(|routes| routes as Arc<dyn shunt_conference::routes::Routes>));
    }

    /// For ever: bring time to conferences.
    pub async fn keep_time(self: &Arc<Self>) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.with(|state| state.tick(&self.shared));
        }
    }

    /// For ever: read counters, and what follows from them.
    pub async fn look(self: &Arc<Self>) {
        let mut interval = tokio::time::interval(SECOND);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut round = 0_u64;
        loop {
            interval.tick().await;
            round += 1;
            let ready = self.with(|state| {
                let ready = state.problem.is_none();
                if !ready {
                    // Without a data plane no packet is counted.
                    let now = self.shared.clock.now();
                    for room in state.rooms.values_mut() {
                        room.members.values_mut().for_each(|member| member.last_packet = now);
                    }
                }
                ready && !state.rooms.is_empty()
            });
            if !ready {
                continue;
            }
            match self.plane.conference_counters(None).await {
                Ok(read) => self.with(|state| state.counted(&self.shared, read)),
                Err(error) => tracing::debug!("counters of conferences: {error}"),
            }
            self.with(|state| {
                state.each_second(&self.shared);
                state.choose_copied(&self.shared);
                if round.is_multiple_of(STRUCTURES_EVERY) {
                    state.want_structures(&self.shared);
                }
            });
            if round.is_multiple_of(LOOK_EVERY) {
                self.hold_ports();
                self.look_who_is_silent().await;
            }
            let (is_switch, cut_off) = self.with(|state| {
                let cut_off = state.rooms.values().any(|room| !room.unreached.is_empty());
                (state.planner.routes().is_some(), cut_off)
            });
            if is_switch && (cut_off || round.is_multiple_of(ROUTES_EVERY)) {
                self.read_routes().await;
            }
        }
    }

    /// Ports that somebody else had, as an agent of the same pair that hangs, may be free by now.
    fn hold_ports(self: &Arc<Self>) {
        let lacking: Vec<(Name, Name)> = self.with(|state| {
            let rooms = state.rooms.values().flat_map(|room| {
                let lacking = |member: &Member| member.legs.values().any(|leg| leg.sockets.is_none());
                let members = room.members.iter().filter(move |(_, member)| lacking(member));
                members.map(|(name, _)| (room.conference.name.clone(), name.clone()))
            });
            rooms.collect()
        });
        for (conference, participant) in lacking {
            // They were said when they were wanted first.
            let _ = self.try_sockets(&conference, &participant);
        }
    }

    async fn look_who_is_silent(&self) {
        let keys = self.with(|state| state.relay_keys());
        if !keys.is_empty() {
            match self.plane.counters(&keys).await {
                Ok(read) => self.with(|state| state.relayed(&self.shared, &read)),
                Err(error) => {
                    tracing::debug!("counters of conferences: {error}");
                    return;
                }
            }
        }
        let silent = self.with(|state| state.silent(self.shared.clock.now(), self.timeout));
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
        self.with(|state| state.rooms.values().map(|room| view::summary(state, room)).collect())
    }

    /// Conferences, participants, and rows in the data plane.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        self.with(|state| {
            let participants = state.rooms.values().map(|room| room.people().count()).sum();
            (state.rooms.len(), participants, state.planner.len())
        })
    }

    fn unix_us(&self) -> u64 {
        u64::try_from(self.shared.clock.wall().as_micros()).unwrap_or(u64::MAX)
    }

    /// # Errors
    /// The name cannot be, or is taken.
    pub fn create(&self, name: &str) -> Result<ConferenceSummary, Failure> {
        let name = state::check_name("conference", name)?;
        self.with(|state| {
            if state.rooms.contains_key(&name) {
                return Err(Failure::new(FailureKind::Conflict, format!("there is a conference {name} already")));
            }
            let mut room = state.new_room(name.clone(), self.unix_us());
            room.set_tiling(self.tiling.clone())?;
            room.announcements = self.announcements;
            self.shared.store.put(&room.keep());
            state.rooms.insert(name.clone(), room);
            self.shared.tell(&name, "created", None, None, |_| {});
            Ok(view::summary(state, state.room(&name)?))
        })
    }

    /// # Errors
    /// There is no such conference.
    pub async fn look_at(self: &Arc<Self>, name: &str) -> Result<Conference, Failure> {
        let (has_copies, relays) = self.with(|state| {
            state.room(name)?;
            let keys = state.relay_keys().into_iter();
            let relays = keys.filter(|key| state.at.get(&key.dst.port).is_some_and(|place| &*place.conference == name));
            Ok((state.planner.copies(name).next().is_some(), relays.collect::<Vec<FiveTuple>>()))
        })?;
        let counted = if has_copies { self.copy_counts().await } else { None };
        if !relays.is_empty()
            && let Ok(read) = self.plane.counters(&relays).await
        {
            self.with(|state| state.relayed(&self.shared, &read));
        }
        self.with(|state| {
            Ok(view::conference(
                state,
                state.room(name)?,
                counted.as_deref(),
                self.shared.clock.now(),
            ))
        })
    }

    /// # Errors
    /// There is no such conference.
    pub async fn end(&self, name: &str) -> Result<(), Failure> {
        loop {
            let next = self.with(|state| Ok(state.room(name)?.people().next().map(|(one, _)| one.name.clone())))?;
            let Some(one) = next else { break };
            match self.leave(name, &one, "ended").await {
                Err(failure) if failure.kind != FailureKind::NotFound => return Err(failure),
                _ => {}
            }
        }
        self.with(|state| {
            state.unplace_all(name, self.shared.clock.now());
            if let Some(room) = state.rooms.remove(name) {
                let name = room.conference.name;
                self.shared.tell(&name, "ended", None, None, |_| {});
                state.touch(&self.shared, &name);
            }
        });
        self.shared.store.remove(name);
        Ok(())
    }

    async fn ready(&self) -> Result<(), Failure> {
        let deadline = self.shared.clock.uptime() + READY;
        loop {
            let Some(problem) = self.with(|state| state.problem.clone()) else {
                return Ok(());
            };
            if self.shared.clock.uptime() > deadline {
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
    pub async fn join(self: &Arc<Self>, conference: &str, join: &Join) -> Result<Participant, Failure> {
        let name = state::check_name("participant", &join.participant.as_text())?;
        let wanted = state::check_media(&join.media)?;
        if wanted.is_empty() {
            return Err(Failure::new(FailureKind::Invalid, "media: no medium is given"));
        }
        let credentials = join.ice.then(credentials).transpose()?;
        self.ready().await?;
        let conference: Name = self.with(|state| {
            let room = state.room_mut(conference)?;
            let conference = room.conference.name.clone();
            let mut one = Planned::new(name.clone());
            one.ice = credentials.is_some();
            one.encrypted = wanted.iter().any(state::Wanted::is_encrypted);
            one.wish = state::wish(join.mixed);
            let joined = room.conference.join(one);
            joined.map_err(|error| Failure::new(FailureKind::Conflict, error.to_string()))?;
            let member = Member {
                call: join.call.as_ref().map(|call| call.as_text().into_owned()),
                joined_us: self.unix_us(),
                ice: credentials,
                signalling: join.signalling.clone(),
                last_packet: self.shared.clock.now(),
                legs: BTreeMap::new(),
            };
            room.members.insert(name.clone(), member);
            if let Err(full) = state.add_legs(self.shared.address, &conference, &name, &wanted, &join.signalled) {
                let room = state.room_mut(&conference)?;
                room.members.remove(&name);
                let _ = room.conference.leave(&name);
                return Err(full);
            }
            let pairs = state.planner.payload_types();
            let room = state.room_mut(&conference)?;
            room.conference.settle();
            if let Err(failure) = check_fit(&room.conference, &name, pairs) {
                state.leave(&conference, &name, self.shared.clock.now())?;
                return Err(failure);
            }
            self.shared.store.put(&state.room(&conference)?.keep());
            Ok(conference)
        })?;
        self.open_sockets(&conference, &name);
        self.shared.tell(&conference, "joined", Some(&name), None, |_| {});
        self.with(|state| self.view(state, &conference, &name))
    }

    fn view(&self, state: &State, conference: &str, name: &str) -> Result<Participant, Failure> {
        let room = state.room(conference)?;
        let (one, member) = room.member(name)?;
        Ok(view::participant(room, one, member, self.shared.clock.now()))
    }

    /// Hold a participant's ports that are not held yet. One that somebody else has is said: its media works, but its RTCP does not arrive.
    fn open_sockets(self: &Arc<Self>, conference: &Name, participant: &Name) {
        for (relay, error) in self.try_sockets(conference, participant) {
            tracing::warn!("conference address {relay} is not held: {error}");
        }
    }

    /// The ports that cannot be had, and why.
    fn try_sockets(self: &Arc<Self>, conference: &Name, participant: &Name) -> Vec<(Endpoint, std::io::Error)> {
        let mut failed = Vec::new();
        let relays: Vec<_> = self.with(|state| {
            let room = state.rooms.get(conference);
            let legs = room.into_iter().flat_map(|room| {
                let member = room.members.get(participant);
                let open = member
                    .into_iter()
                    .flat_map(|member| member.legs.iter().filter(|(_, leg)| leg.sockets.is_none()));
                open.filter_map(|(key, _)| Some((*key, room.leg(participant, *key)?.0.relay)))
            });
            legs.collect()
        });
        for (key, relay) in relays {
            match LegSockets::open(self, relay) {
                Ok(sockets) => self.with(|state| {
                    let room = state.rooms.get_mut(conference);
                    let member = room.and_then(|room| room.members.get_mut(participant));
                    if let Some(leg) = member.and_then(|member| member.legs.get_mut(&key)) {
                        leg.sockets = Some(sockets);
                    }
                }),
                Err(error) => failed.push((relay, error)),
            }
        }
        failed
    }

    /// # Errors
    /// There is no such participant, or what is said of it cannot be.
    pub fn update(self: &Arc<Self>, conference: &str, participant: &str, update: &ParticipantUpdate) -> Result<Participant, Failure> {
        let wanted = update.media.as_deref().map(state::check_media).transpose()?;
        let credentials = update.ice_restart.then(credentials).transpose()?;
        let now = self.shared.clock.now();
        let (conference, name): (Name, Name) = self.with(|state| {
            let (one, _) = state.room(conference)?.member(participant)?;
            Ok((state.room(conference)?.conference.name.clone(), one.name.clone()))
        })?;
        let signalled = self.with(|state| -> Result<Vec<IpAddr>, Failure> {
            let (_, member) = state.room(&conference)?.member(&name)?;
            let before = member.legs.values().next().map(|leg| leg.signalled.clone()).unwrap_or_default();
            Ok(update.signalled.clone().unwrap_or(before))
        })?;
        self.with(|state| -> Result<(), Failure> {
            if let Some(wanted) = wanted {
                self.change_media(state, &conference, &name, wanted, &signalled)?;
            }
            if let Some(mixed) = update.mixed {
                self.change_mixed(state, &conference, &name, mixed)?;
            }
            let room = state.room_mut(&conference)?;
            if update.signalled.is_some() {
                self.move_participant(room, &name, &signalled, now);
            }
            if let Some(credentials) = credentials
                && let Some(member) = room.members.get_mut(&name)
            {
                member.ice = member.ice.is_some().then_some(credentials);
            }
            self.shared.serve_listening(room, &name);
            if let Some(member) = room.members.get_mut(&name) {
                if update.signalling.is_some() {
                    member.signalling.clone_from(&update.signalling);
                }
                member.last_packet = now;
            }
            room.conference.settle();
            self.shared.store.put(&room.keep());
            state.touch(&self.shared, &conference);
            Ok(())
        })?;
        self.open_sockets(&conference, &name);
        self.with(|state| self.view(state, &conference, &name))
    }

    /// Whether a participant is to get a mix is another from now on.
    fn change_mixed(&self, state: &mut State, conference: &Name, name: &Name, mixed: shunt_admin::Mixed) -> Result<(), Failure> {
        let pairs = state.planner.payload_types();
        let room = state.room_mut(conference)?;
        let mut tried = room.conference.clone();
        tried.get_mut(name).map_err(membership_failure)?.wish = state::wish(mixed);
        tried.settle();
        check_fit(&tried, name, pairs)?;
        room.conference = tried;
        Ok(())
    }

    fn change_media(
        &self,
        state: &mut State,
        conference: &Name,
        name: &Name,
        wanted: Vec<state::Wanted>,
        signalled: &[IpAddr],
    ) -> Result<(), Failure> {
        let pairs = state.planner.payload_types();
        let room = state.room_mut(conference)?;
        // On a copy: everybody can still be given everybody's packets, or nothing changes.
        let mut tried = room.conference.clone();
        if let Ok(participant) = tried.get_mut(name) {
            for one in &wanted {
                let new = Leg::new(Endpoint::new(self.shared.address, 0));
                one.shape(participant.legs.entry(one.key).or_insert(new));
            }
        }
        if tried != room.conference {
            tried.settle();
            check_fit(&tried, name, pairs)?;
        }
        let mut new = Vec::new();
        for one in wanted {
            let member = room.members.get_mut(name).and_then(|member| member.legs.get_mut(&one.key));
            let leg = room
                .conference
                .get_mut(name)
                .ok()
                .and_then(|participant| participant.legs.get_mut(&one.key));
            match leg.zip(member) {
                Some((leg, state)) => {
                    if one.apply(leg, state) {
                        let direction = view::direction(leg);
                        self.shared.tell(conference, "directions", Some(name), Some(one.key.0), |facts| {
                            facts.insert("direction".into(), serde_json::to_value(direction).unwrap_or_default());
                        });
                    }
                }
                None => new.push(one),
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        state.add_legs(self.shared.address, conference, name, &new, signalled)?;
        let media: Vec<String> = new.iter().map(|one| leg_name(one.key)).collect();
        self.shared.tell(conference, "media", Some(name), None, |facts| {
            facts.insert("media".into(), media.into());
        });
        Ok(())
    }

    /// Signalling names other addresses: everything is latched anew, but where checks say where media comes from.
    fn move_participant(&self, room: &mut Room, name: &Name, signalled: &[IpAddr], now: Time) {
        let Some(member) = room.members.get_mut(name).filter(|member| member.ice.is_none()) else {
            return;
        };
        let mut moved = Vec::new();
        for (key, leg) in &mut member.legs {
            if leg.signalled == signalled {
                continue;
            }
            leg.signalled = signalled.to_vec();
            leg.latch.forget(now, &self.shared.policy, true);
            leg.latch.signal(now, state::names(signalled));
            moved.push(*key);
        }
        for key in moved {
            room.set_source(name, key, None, now);
        }
    }

    /// A participant leaves; what its media have carried is in the event `left`.
    ///
    /// # Errors
    /// There is no such participant.
    pub async fn leave(&self, conference: &str, participant: &str, reason: &str) -> Result<(), Failure> {
        let _rows = tokio::time::timeout(LAST_READING, self.rows_end.lock()).await;
        let keys = self.with(|state| {
            state.room(conference)?.member(participant)?;
            Ok(state.rows_of(conference, participant))
        })?;
        let read = tokio::time::timeout(LAST_READING, accounting::read(&self.plane, &keys));
        let read = if keys.is_empty() {
            Some(accounting::Readings::new())
        } else {
            read.await.ok().and_then(Result::ok)
        };
        self.with(|state| {
            let media = state.usage(state.room(conference)?, participant, &keys, read.as_ref())?;
            let gone = state.leave(conference, participant, self.shared.clock.now())?;
            let room = state.room(conference)?;
            let name = room.conference.name.clone();
            self.shared.store.put(&room.keep());
            let seconds = self.unix_us().saturating_sub(gone.joined_us) as f64 / 1e6;
            self.shared.tell(&name, "left", Some(&participant.into()), None, |facts| {
                facts.insert("reason".into(), reason.into());
                facts.insert("call".into(), gone.call.as_deref().into());
                facts.insert("signalling".into(), gone.signalling.into());
                facts.insert("joined_us".into(), gone.joined_us.into());
                facts.insert("duration_s".into(), seconds.into());
                // What cannot be written as JSON is no figure.
                facts.insert("media".into(), serde_json::to_value(&media).unwrap_or_default());
            });
            state.touch(&self.shared, &name);
            Ok(())
        })
    }

    /// # Errors
    /// They are not both there.
    pub fn set_quality(&self, conference: &str, change: &QualityChange) -> Result<(), Failure> {
        let pair: (Name, Name) = (change.sender.as_text().as_ref().into(), change.receiver.as_text().as_ref().into());
        self.with(|state| {
            let room = state.room_mut(conference)?;
            let set = room.conference.set_quality(&pair.0, &pair.1, view::medium(change.quality));
            set.map_err(membership_failure)?;
            self.shared.store.put(&room.keep());
            let name = room.conference.name.clone();
            state.touch(&self.shared, &name);
            Ok(())
        })
    }

    /// # Errors
    /// One of the decisions cannot be; nothing has changed.
    pub fn set_targets(&self, conference: &str, change: &TargetChange) -> Result<(), Failure> {
        let hold = change.hold_s.map(Duration::try_from_secs_f64).transpose();
        let hold = hold.map_err(|error| Failure::new(FailureKind::Invalid, format!("hold_s: {error}")))?;
        let now = self.shared.clock.now();
        self.with(|state| {
            let room = state.room_mut(conference)?;
            let mut changes = Vec::new();
            for one in &change.targets {
                let pair: (Name, Name) = (one.sender.as_text().as_ref().into(), one.receiver.as_text().as_ref().into());
                let level = one.target.map_or(0, |target| usize::from(target) + 1);
                let media = [Medium::Video, Medium::Screen];
                let has = |medium: &Medium| room.conference.get(&pair.0).is_some_and(|sender| sender.leg(*medium).is_some());
                // On a copy: all decisions are taken over, or none.
                let mut tried = room.conference.clone();
                for medium in media.into_iter().filter(has) {
                    tried.set_level(&pair.0, &pair.1, medium, level).map_err(membership_failure)?;
                    changes.push((pair.clone(), medium, level));
                }
                room.member(&pair.0)?;
                room.member(&pair.1)?;
            }
            let name = room.conference.name.clone();
            for (pair, ..) in &changes {
                let decided = Decided {
                    external: hold.is_some(),
                    until: hold.map(|hold| now + hold),
                };
                room.decided.insert(pair.clone(), decided);
            }
            for (pair, medium, level) in &changes {
                state.may_be_less(&name, pair, *medium, *level)?;
            }
            for (pair, medium, level) in changes {
                state
                    .set_level(&self.shared, &name, &pair, medium, level)
                    .map_err(membership_failure)?;
            }
            Ok(())
        })
    }

    #[must_use]
    pub fn estimates(&self) -> broadcast::Receiver<Estimate> {
        self.shared.estimates.subscribe()
    }
}

/// Whether a participant and the others can be given each other's packets, or a mix of them. `pairs`: payload types that the data plane rewrites.
fn check_fit(conference: &shunt_conference::membership::Conference, name: &Name, pairs: usize) -> Result<(), Failure> {
    let invalid = |text: String| Failure::new(FailureKind::Invalid, text);
    let one = conference.get(name).filter(|one| one.wish == shunt_conference::mixing::Mixed::Yes);
    if one.is_some_and(|one| !one.mixed) {
        let reason = if conference.mixing {
            "its audio has no codec that is mixed (opus, G722, PCMA, PCMU), or is encrypted"
        } else {
            "there is no mixer (conference.mixer)"
        };
        return Err(invalid(format!("mixed: {name} can be given no mix: {reason}")));
    }
    conference
        .check_payload_types(name, pairs)
        .map_err(|differ| invalid(differ.to_string()))
}

/// New ICE credentials.
fn credentials() -> Result<Credentials, Failure> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Failure::new(FailureKind::Unavailable, format!("no random number: {error}")))?;
    Ok(Credentials::of(bytes))
}

fn membership_failure(error: shunt_conference::membership::MembershipError) -> Failure {
    use shunt_conference::membership::MembershipError;
    let kind = match error {
        MembershipError::NoParticipant(..) => FailureKind::NotFound,
        MembershipError::Taken(..) | MembershipError::Encrypted(_) => FailureKind::Conflict,
        MembershipError::Itself(_) | MembershipError::Level(..) => FailureKind::Invalid,
    };
    Failure::new(kind, error.to_string())
}
