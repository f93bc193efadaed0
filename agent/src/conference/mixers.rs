//! Mixers: which of them has which conference's audio or video, and what it is told of it.
//!
//! Audio is placed when somebody in the conference is to get a mix ([`super::mixing`]), video when tiled streams are wanted ([`super::tiling`]), in two
//! levels each column by itself; each job on the mixer that has the least to do of its medium. To the data plane a mixer is a participant of its own for
//! each job, of a name that nobody else can have, which gets copies of what it works on from one more relay address. A mixer that does not answer loses what it had, and that is placed again; one that has
//! begun anew is told again.

use super::Conferences;
use super::mixer_client::{self as client, Description, MixerError, Status};
use super::state::{LegState, Member, Room, State};
use super::store::KeptMixer;
use shunt_conference::adaptation::Medium;
use shunt_conference::jobs::Job;
use shunt_conference::participant::{Leg, Participant as Planned};
use shunt_conference::tables::Name;
use shunt_conference::tiles::Tiles;
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use shunt_rtpproxy::framing::ControlAddress;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Between two looks at mixers.
const LOOK: Duration = Duration::from_millis(500);
/// Changes that come together are told together.
const COALESCE: Duration = Duration::from_millis(20);

/// Where a conference's audio is mixed, or its video tiled.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The mixer's control socket.
    pub control: String,
    /// Where it takes the medium, and sends from.
    pub at: Endpoint,
    /// The relay port that copies to it come from.
    pub port: u16,
    /// What it was told last, and in which of its runs; `None`: what it knows is not certain.
    told: Option<(u64, Description)>,
}

impl Placed {
    /// As it was kept.
    #[must_use]
    pub fn restored(kept: &KeptMixer) -> Self {
        Self {
            control: kept.control.clone(),
            at: kept.at,
            port: kept.port,
            told: None,
        }
    }
}

/// The mixers that are configured, and what they said last.
pub struct Mixers {
    all: Vec<ControlAddress>,
    known: Mutex<HashMap<String, Known>>,
}

/// What is known of a mixer: its status, or why there is none.
type Known = Result<Status, String>;

impl Mixers {
    #[must_use]
    pub fn new(all: &[ControlAddress]) -> Self {
        Self {
            all: all.to_vec(),
            known: Mutex::new(HashMap::new()),
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut HashMap<String, Known>) -> R) -> R {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn address(&self, control: &str) -> Option<&ControlAddress> {
        self.all.iter().find(|one| one.to_string() == control)
    }

    /// Those that take more of a medium, the one that has the least to do first.
    fn candidates(&self, medium: Medium) -> Vec<String> {
        let mut found: Vec<(u64, f64, String)> = self.with(|known| {
            let there = known.iter().filter_map(|(control, known)| Some((control, known.as_ref().ok()?)));
            there
                .filter_map(|(control, status)| Some((status.work(medium)?, status.load, control.clone())))
                .collect()
        });
        found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        found.into_iter().map(|(.., control)| control).collect()
    }

    /// A mixer has been given more to do.
    fn give(&self, control: &str, medium: Medium, work: u64) {
        self.with(|known| {
            if let Some(Ok(status)) = known.get_mut(control) {
                status.add(medium, work);
            }
        });
    }

    /// A mixer did not do what was asked: it is not asked again before it has answered.
    fn lose(&self, control: &str, reason: &MixerError) {
        self.with(|known| known.insert(control.to_owned(), Err(reason.to_string())));
    }
}

impl Room {
    /// Whether a mixer, in this run of it, has been told of a job.
    #[must_use]
    pub fn is_made_by(&self, job: Job, control: &str, epoch: u64) -> bool {
        let placed = self.placed.get(&job).filter(|placed| placed.control == control);
        placed.is_some_and(|placed| placed.told.as_ref().is_some_and(|(told, _)| *told == epoch))
    }

    /// What mixers have to do.
    fn jobs(&self) -> BTreeSet<Job> {
        let mixes = self.conference.participants.iter().any(|one| one.mixed).then_some(Job::Mixes);
        let tiles = self.tiles().map(Tiles::jobs).unwrap_or_default();
        tiles.into_iter().chain(mixes).collect()
    }

    fn describe(&mut self, job: Job, address: IpAddr, port: u16) -> Option<Description> {
        match job {
            Job::Mixes => self.describe_mixes(address, port),
            job => self.describe_tiles(job, address, port),
        }
    }

    /// Receivers are told that the streams of a mixer are over (RFC 3550 section 6.6).
    pub fn say_over(&self, job: Job) {
        if job == Job::Mixes {
            let ends: Vec<u8> = self.mixes.ssrcs.values().flat_map(|ssrc| rtcp::bye(&[*ssrc])).collect();
            self.share_mixes(&ends);
            return;
        }
        let (Some(mixer), medium) = (self.conference.mixer(job), job.medium()) else {
            return;
        };
        let ssrcs = mixer.leg(medium).map_or(&[][..], |leg| &leg.ssrcs);
        let is_for = |one: &&Planned| !ssrcs.is_empty() && self.conference.is_for(mixer, one, medium);
        for one in self.conference.participants.iter().filter(is_for) {
            for (state, source, muxed) in self.legs_for(one, mixer, medium) {
                state.send_rtcp(source, muxed, &rtcp::bye(ssrcs));
            }
        }
    }

    /// What a mixer makes is another mixer's, or another run's, from now on: streams begin anew.
    fn begin_anew(&mut self, job: Job) {
        self.say_over(job);
        match job {
            Job::Mixes => self.mixes = super::mixing::Mixes::default(),
            job => self.renew_tiles(job),
        }
    }
}

impl State {
    /// A job of a conference is done there from now on.
    pub fn place(&mut self, address: IpAddr, name: &Name, job: Job, placed: Placed, now: Time) {
        let Some(room) = self.rooms.get_mut(name) else {
            self.give_port(placed.port);
            self.unplaced.insert((placed.control, job, name.clone()));
            return;
        };
        let mixer = job.participant();
        let mut one = Planned::new(mixer.clone());
        one.mixer = Some(job);
        let mut leg = Leg::new(Endpoint::new(address, placed.port));
        leg.source = Some(placed.at);
        // Mixes go by relay entries.
        leg.sends = job != Job::Mixes;
        let state = LegState::of_mixer(placed.at, now);
        self.mixers_at.insert(placed.at);
        room.placed.insert(job, placed);
        // Nobody else has this name.
        let _ = room.conference.join(one);
        room.members.insert(mixer.clone(), Member::of_mixer(now));
        self.install(name, &mixer, (job.medium(), 0), leg, state);
        if let Some(room) = self.rooms.get_mut(name) {
            room.conference.settle();
        }
    }

    /// Nothing of a conference is mixed or tiled any more.
    pub fn unplace_all(&mut self, name: &str, now: Time) {
        let placed = self.rooms.get(name).map(|room| room.placed.keys().copied().collect());
        let placed: Vec<Job> = placed.unwrap_or_default();
        for job in placed {
            self.unplace(name, job, now);
        }
    }

    /// A job of a conference is no longer done where it was; returns where.
    pub fn unplace(&mut self, name: &str, job: Job, now: Time) -> Option<String> {
        let room = self.rooms.get_mut(name)?;
        let placed = room.placed.remove(&job)?;
        room.begin_anew(job);
        let name = room.conference.name.clone();
        let _ = self.leave(&name, &job.participant(), now);
        self.unplaced.insert((placed.control.clone(), job, name));
        Some(placed.control)
    }
}

/// Where the system has no random number, the clock's nanoseconds are as good as any: SSRCs are no secret.
#[must_use]
pub fn random_ssrc() -> u32 {
    getrandom::u32().unwrap_or_else(|_| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.subsec_nanos())
    })
}

/// What is to be done about a job of a conference.
enum Work {
    /// It has no mixer and needs one, to which copies come from this port.
    Place(Description, u16),
    /// Its mixer has to know this.
    Tell(String, Description),
}

impl Conferences {
    #[must_use]
    pub fn has_mixers(&self) -> bool {
        !self.mixers.all.is_empty()
    }

    /// Mixers that do not answer, and why.
    #[must_use]
    pub fn lacking_mixers(&self) -> Vec<(String, String)> {
        self.mixers.with(|known| {
            let lacking = known
                .iter()
                .filter_map(|(control, known)| Some((control.clone(), known.as_ref().err()?.clone())));
            lacking.collect()
        })
    }

    /// For ever: place conferences on mixers, and tell these what they have to know.
    pub async fn mix(self: &Arc<Self>) {
        let mut looked: Option<Instant> = None;
        loop {
            let due = looked.map_or(Duration::ZERO, |looked| LOOK.saturating_sub(looked.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(due) => {
                    self.look_at_mixers().await;
                    looked = Some(Instant::now());
                }
                () = self.shared.mixing.notified() => tokio::time::sleep(COALESCE).await,
            }
            if !self.is_up() {
                // Without a data plane nothing arrives, and another agent may be in charge.
                continue;
            }
            self.drop_lost();
            self.end_unplaced().await;
            let works: Vec<(Name, Job, Work)> = self.with(|state| self.works(state));
            for (name, job, work) in works {
                match work {
                    Work::Place(description, port) => self.place(&name, job, description, port).await,
                    Work::Tell(control, description) => self.tell_mixer(&name, job, &control, description).await,
                }
            }
        }
    }

    /// Ask all mixers how they are, and those that have something what they make of it.
    async fn look_at_mixers(self: &Arc<Self>) {
        let mut asked = JoinSet::new();
        let used: BTreeSet<(String, Medium)> = self.with(|state| {
            let placed = state.rooms.values().flat_map(|room| &room.placed);
            placed.map(|(job, placed)| (placed.control.clone(), job.medium())).collect()
        });
        for control in self.mixers.all.clone() {
            let makes = |medium: Medium| used.contains(&(control.to_string(), medium));
            let (mixes, tiles) = (makes(Medium::Audio), makes(Medium::Video));
            asked.spawn(async move {
                let status = client::status(&control).await;
                let (mut listing, mut tilings) = (None, None);
                if mixes && status.is_ok() {
                    listing = client::listing(&control).await.ok();
                }
                if tiles && status.is_ok() {
                    tilings = client::tilings(&control).await.ok();
                }
                (control.to_string(), status, listing, tilings)
            });
        }
        while let Some(answered) = asked.join_next().await {
            let Ok((control, status, listing, tilings)) = answered else {
                continue;
            };
            if let Ok(status) = &status {
                let at = [status.audio, status.video];
                self.with(|state| state.mixers_at.extend(at));
            }
            let now = status.map_err(|error| error.to_string());
            let before = self.mixers.with(|known| known.insert(control.clone(), now.clone()));
            match (&now, before) {
                (Err(reason), None | Some(Ok(_))) => tracing::warn!("mixer {control} is not there: {reason}"),
                (Ok(_), None | Some(Err(_))) => tracing::info!("mixer {control} is there"),
                _ => {}
            }
            if let Some(listing) = listing {
                self.reported(&control, listing).await;
            }
            if let Some(tilings) = tilings {
                self.tiled(&control, tilings);
            }
        }
    }

    /// What is on a mixer that is not there any more has none.
    fn drop_lost(&self) {
        let known: HashMap<String, Option<u64>> = self.mixers.with(|known| {
            let epochs = known
                .iter()
                .map(|(control, known)| (control.clone(), known.as_ref().ok().map(|status| status.epoch)));
            epochs.collect()
        });
        self.with(|state| {
            let (mut lost, mut renewed) = (Vec::new(), Vec::new());
            for (name, room) in &mut state.rooms {
                let mut anew = Vec::new();
                for (job, placed) in &mut room.placed {
                    match known.get(&placed.control) {
                        Some(Some(epoch)) => {
                            // One that has begun anew is told everything again.
                            if placed.told.take_if(|(told, _)| *told < *epoch).is_some() {
                                anew.push(*job);
                            }
                        }
                        // Nobody has asked it yet.
                        None if self.mixers.address(&placed.control).is_some() => {}
                        _ => lost.push((name.clone(), *job)),
                    }
                }
                for job in anew {
                    room.begin_anew(job);
                    renewed.push((name.clone(), job));
                }
            }
            for (name, job) in renewed {
                self.renewed(state, &name, job);
            }
            for (name, job) in lost {
                self.lose(state, &name, job, "it does not answer");
            }
        });
    }

    fn lose(&self, state: &mut State, name: &Name, job: Job, reason: &str) {
        let Some(control) = state.unplace(name, job, self.shared.clock.now()) else {
            return;
        };
        // It knows nothing of the conference, or will be told to forget it once it answers.
        tracing::warn!("conference {name}: mixer {control} of {} is lost: {reason}", said(job));
        self.tell_mixers(name, "mixer-lost", job, control, Some(reason));
        self.renewed(state, name, job);
    }

    /// What a mixer makes begins anew.
    fn renewed(&self, state: &mut State, name: &Name, job: Job) {
        if let Some(room) = state.rooms.get(name).filter(|_| job == Job::Tiles) {
            self.tell_layout(room);
        }
        self.kept(state, name);
    }

    fn tell_mixers(&self, name: &Name, what: &'static str, job: Job, control: String, detail: Option<&str>) {
        self.shared.tell(name, what, None, Some(job.medium()), |facts| {
            facts.insert("mixer".into(), control.into());
            facts.extend(detail.map(|detail| ("detail".to_owned(), detail.into())));
            if let Job::Column(number) = job {
                facts.insert("column".into(), number.into());
            }
        });
    }

    pub(super) fn kept(&self, state: &mut State, name: &Name) {
        if let Some(room) = state.rooms.get(name) {
            self.shared.store.put(&room.keep());
        }
        state.touch(&self.shared, name);
    }

    /// Tell mixers what they need not make any more. One that does not answer is told when it does.
    async fn end_unplaced(&self) {
        let unplaced = self.with(|state| {
            let gone = std::mem::take(&mut state.unplaced);
            let is_placed = |control: &str, job: Job, name: &Name| {
                let room = state.rooms.get(name);
                room.is_some_and(|room| room.placed.get(&job).is_some_and(|placed| placed.control == control))
            };
            gone.into_iter()
                .filter(|(control, job, name)| !is_placed(control, *job, name))
                .collect::<Vec<_>>()
        });
        for (control, job, name) in unplaced {
            let there = self.mixers.with(|known| known.get(&control).is_some_and(Result::is_ok));
            let Some(address) = self.mixers.address(&control) else { continue };
            let ended = there && client::end(address, job, &name).await.is_ok();
            if !ended {
                self.with(|state| state.unplaced.insert((control, job, name)));
            }
        }
    }

    fn works(&self, state: &mut State) -> Vec<(Name, Job, Work)> {
        let names: Vec<Name> = state.rooms.keys().cloned().collect();
        let mut works = Vec::new();
        for name in names {
            self.assign_tiles(state, &name);
            let placed = state
                .rooms
                .get(&name)
                .map(|room| room.jobs().into_iter().chain(room.placed.keys().copied()));
            let jobs: BTreeSet<Job> = placed.into_iter().flatten().collect();
            for job in jobs {
                works.extend(self.work(state, &name, job).map(|work| (name.clone(), job, work)));
            }
        }
        works
    }

    fn work(&self, state: &mut State, name: &Name, job: Job) -> Option<Work> {
        let address = self.shared.address;
        let room = state.rooms.get_mut(name)?;
        if let Some(port) = room.placed.get(&job).map(|placed| placed.port) {
            let Some(description) = room.describe(job, address, port) else {
                state.unplace(name, job, self.shared.clock.now());
                self.kept(state, name);
                return None;
            };
            let placed = room.placed.get(&job)?;
            let is_told = placed.told.as_ref().is_some_and(|(_, told)| *told == description);
            return (!is_told).then(|| Work::Tell(placed.control.clone(), description));
        }
        if !room.jobs().contains(&job) {
            return None;
        }
        if self.mixers.candidates(job.medium()).is_empty() {
            room.lacks_mixer(job, "no mixer has room for it".to_owned());
            return None;
        }
        let port = match state.take_port() {
            Ok(port) => port,
            Err(failure) => {
                state.rooms.get_mut(name)?.lacks_mixer(job, failure.message);
                return None;
            }
        };
        let description = state.rooms.get_mut(name)?.describe(job, address, port);
        if description.is_none() {
            state.give_port(port);
        }
        description.map(|description| Work::Place(description, port))
    }

    /// Place it on the mixer that has the least to do, among those that take it.
    async fn place(self: &Arc<Self>, name: &Name, job: Job, description: Description, port: u16) {
        let medium = job.medium();
        let mut reason = String::new();
        for control in self.mixers.candidates(medium) {
            let Some(address) = self.mixers.address(&control) else { continue };
            match client::describe(address, job, name, &description).await {
                Ok(accepted) => {
                    tracing::info!("conference {name}: {} is made by mixer {control}", said(job));
                    self.mixers.give(&control, medium, description.work());
                    let placed = Placed {
                        control: control.clone(),
                        at: accepted.at,
                        port,
                        told: Some((accepted.epoch, description)),
                    };
                    self.with(|state| {
                        state.place(self.shared.address, name, job, placed, self.shared.clock.now());
                        self.tell_mixers(name, "mixer", job, control, None);
                        self.kept(state, name);
                    });
                    self.open_sockets(name, &job.participant());
                    return;
                }
                Err(MixerError::Full(full)) => {
                    tracing::debug!("mixer {control} does not take {name}: {full}");
                    reason = full;
                }
                Err(error) => {
                    tracing::warn!("mixer {control} does not take {name}: {error}");
                    self.mixers.lose(&control, &error);
                    reason = error.to_string();
                }
            }
        }
        self.with(|state| {
            state.give_port(port);
            if let Some(room) = state.rooms.get_mut(name) {
                room.lacks_mixer(job, reason);
            }
        });
    }

    /// A mixer has to know of a change.
    async fn tell_mixer(&self, name: &Name, job: Job, control: &str, description: Description) {
        let Some(address) = self.mixers.address(control) else { return };
        let told = client::describe(address, job, name, &description).await;
        self.with(|state| match told {
            Ok(accepted) => {
                let placed = state.rooms.get_mut(name).and_then(|room| room.placed.get_mut(&job));
                if let Some(placed) = placed.filter(|placed| placed.control == control) {
                    let moved = placed.at != accepted.at;
                    placed.told = Some((accepted.epoch, description));
                    if moved {
                        self.lose(state, name, job, "its address is another");
                    } else {
                        self.kept(state, name);
                    }
                }
            }
            Err(error) => {
                if !matches!(error, MixerError::Full(_)) {
                    self.mixers.lose(control, &error);
                }
                self.lose(state, name, job, &error.to_string());
            }
        });
    }
}

/// What a job is, for the log.
fn said(job: Job) -> String {
    match job {
        Job::Column(number) => format!("column {number} of its tiles"),
        job => job.medium().name().to_owned(),
    }
}
