//! Mixers: which of them has which conference's audio or video, and what it is told of it.
//!
//! Audio is placed when somebody in the conference is to get a mix ([`super::mixing`]), video when tiled streams are wanted ([`super::tiling`]), in two
//! levels each column by itself; each job on the mixer that has the least to do of its medium. To the data plane a mixer is a participant of its own
//! for each job, of a name that nobody else can have, which gets copies of what it works on from one more relay address. A mixer that does not answer
//! loses what it had, and that is placed again; one that has begun anew is told again.

use super::kept::KeptMixer;
use super::mixing::Mixes;
use super::{Book, Level, Member, Random, Room, Turn};
use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::mixer::{Accepted, Description, MixerError, Status};
use crate::participant::{Leg, Participant as Planned};
use crate::tables::Name;
use crate::tiles::Tiles;
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use std::collections::BTreeSet;
use std::net::IpAddr;

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

/// A job that has no mixer and needs one, to which copies come from this port.
#[derive(Debug)]
pub struct Placing {
    pub conference: Name,
    pub job: Job,
    pub description: Description,
    port: u16,
}

/// What is to be done about a job of a conference.
#[derive(Debug)]
pub enum MixerWork {
    /// A mixer has to be found for it: [`Book::placed`] or [`Book::not_placed`] takes what comes of that.
    Place(Placing),
    /// Its mixer has to know this: [`Book::told`] takes the answer.
    Tell {
        conference: Name,
        job: Job,
        control: String,
        description: Description,
    },
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

    fn describe(&mut self, random: &mut Random, job: Job, address: IpAddr, port: u16) -> Option<Description> {
        match job {
            Job::Mixes => self.describe_mixes(random, address, port),
            job => self.describe_tiles(job, address, port),
        }
    }

    /// Receivers are told that the streams of a mixer are over (RFC 3550 section 6.6).
    pub fn say_over(&self, turn: &mut Turn, job: Job) {
        if job == Job::Mixes {
            let ends: Vec<u8> = self.mixes.ssrcs.values().flat_map(|ssrc| rtcp::bye(&[*ssrc])).collect();
            self.share_mixes(turn, &ends);
            return;
        }
        let (Some(mixer), medium) = (self.conference.mixer(job), job.medium()) else {
            return;
        };
        let ssrcs = mixer.leg(medium).map_or(&[][..], |leg| &leg.ssrcs);
        let is_for = |one: &&Planned| !ssrcs.is_empty() && self.conference.is_for(mixer, one, medium);
        for one in self.conference.participants.iter().filter(is_for) {
            for leg in Self::legs_for(one, mixer, medium) {
                turn.send_rtcp(leg, &rtcp::bye(ssrcs));
            }
        }
    }

    /// What a mixer makes is another mixer's, or another run's, from now on: streams begin anew.
    fn begin_anew(&mut self, turn: &mut Turn, random: &mut Random, job: Job) {
        self.say_over(turn, job);
        match job {
            Job::Mixes => self.mixes = Mixes::default(),
            job => self.renew_tiles(random, job),
        }
    }
}

impl Book {
    /// A job of a conference is done there from now on.
    pub(super) fn place(&mut self, turn: &mut Turn, name: &Name, job: Job, placed: Placed) {
        let Some(room) = self.rooms.get_mut(name) else {
            self.ports.free.push_back(placed.port);
            self.unplaced.insert((placed.control, job, name.clone()));
            return;
        };
        let mixer = job.participant();
        let mut one = Planned::new(mixer.clone());
        one.mixer = Some(job);
        let mut leg = Leg::new(Endpoint::new(self.settings.address, placed.port));
        leg.source = Some(placed.at);
        leg.latch.adopt(turn.now, placed.at, None);
        // Mixes go by relay entries.
        leg.sends = job != Job::Mixes;
        self.mixers_at.insert(placed.at);
        room.placed.insert(job, placed);
        // Nobody else has this name.
        let _ = room.conference.join(one);
        room.members.insert(mixer.clone(), Member::of_mixer(turn.now));
        self.install(turn, name, &mixer, (job.medium(), 0), leg);
        if let Some(room) = self.rooms.get_mut(name) {
            room.conference.settle();
        }
    }

    /// Nothing of a conference is mixed or tiled any more.
    pub(super) fn unplace_all(&mut self, turn: &mut Turn, name: &str) {
        let placed = self.rooms.get(name).map(|room| room.placed.keys().copied().collect());
        let placed: Vec<Job> = placed.unwrap_or_default();
        for job in placed {
            self.unplace(turn, name, job);
        }
    }

    /// A job of a conference is no longer done where it was; returns where.
    fn unplace(&mut self, turn: &mut Turn, name: &str, job: Job) -> Option<String> {
        let room = self.rooms.get_mut(name)?;
        let placed = room.placed.remove(&job)?;
        room.begin_anew(turn, &mut self.random, job);
        let name = room.conference.name.clone();
        let _ = self.take_out(turn, &name, &job.participant());
        self.unplaced.insert((placed.control.clone(), job, name));
        Some(placed.control)
    }

    // -- what mixers say ---------------------------------------------------------------------------

    /// Mixers that do not answer, and why.
    #[must_use]
    pub fn lacking_mixers(&self) -> Vec<(String, String)> {
        let lacking = self
            .known
            .iter()
            .filter_map(|(control, known)| Some((control.clone(), known.as_ref().err()?.clone())));
        lacking.collect()
    }

    /// The media that mixers make something of.
    #[must_use]
    pub fn used_mixers(&self) -> BTreeSet<(String, Medium)> {
        let placed = self.rooms.values().flat_map(|room| &room.placed);
        placed.map(|(job, placed)| (placed.control.clone(), job.medium())).collect()
    }

    /// A mixer has said how it is, or does not answer.
    pub fn mixer_status(&mut self, turn: &mut Turn, control: &str, status: Result<Status, MixerError>) {
        if let Ok(status) = &status {
            self.mixers_at.extend([status.audio, status.video]);
        }
        let now = status.map_err(|error| error.to_string());
        let text = match (&now, self.known.get(control)) {
            (Err(reason), None | Some(Ok(_))) => Some((Level::Warn, format!("mixer {control} is not there: {reason}"))),
            (Ok(_), None | Some(Err(_))) => Some((Level::Info, format!("mixer {control} is there"))),
            _ => None,
        };
        if let Some((level, text)) = text {
            turn.log(level, text);
        }
        self.known.insert(control.to_owned(), now);
    }

    /// Mixers that take more of a medium, the one that has the least to do first.
    #[must_use]
    pub fn candidates(&self, medium: Medium) -> Vec<String> {
        let there = self
            .known
            .iter()
            .filter_map(|(control, known)| Some((control, known.as_ref().ok()?)));
        let mut found: Vec<(u64, f64, String)> = there
            .filter_map(|(control, status)| Some((status.work(medium)?, status.load, control.clone())))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        found.into_iter().map(|(.., control)| control).collect()
    }

    // -- what mixers are told ----------------------------------------------------------------------

    /// What mixers need not make any more, of those that answer; that of others is said when they do. What could not be said goes to
    /// [`Book::not_ended`].
    pub fn ended_works(&mut self) -> Vec<(String, Job, Name)> {
        let is_placed = |control: &str, job: Job, name: &Name| {
            let room = self.rooms.get(name);
            room.is_some_and(|room| room.placed.get(&job).is_some_and(|placed| placed.control == control))
        };
        let mut gone = std::mem::take(&mut self.unplaced);
        gone.retain(|(control, job, name)| !is_placed(control, *job, name) && self.settings.mixers.contains(control));
        let is_there = |control: &str| self.known.get(control).is_some_and(Result::is_ok);
        let (now, later): (BTreeSet<_>, BTreeSet<_>) = gone.into_iter().partition(|(control, ..)| is_there(control));
        self.unplaced = later;
        now.into_iter().collect()
    }

    pub fn not_ended(&mut self, control: String, job: Job, conference: Name) {
        self.unplaced.insert((control, job, conference));
    }

    /// Place conferences on mixers, and tell these what they have to know. What is on a mixer that is not there any more is placed anew.
    pub fn mixer_works(&mut self, turn: &mut Turn) -> Vec<MixerWork> {
        self.drop_lost(turn);
        let names: Vec<Name> = self.rooms.keys().cloned().collect();
        let mut works = Vec::new();
        for name in names {
            self.assign_tiles(turn, &name);
            let placed = self
                .rooms
                .get(&name)
                .map(|room| room.jobs().into_iter().chain(room.placed.keys().copied()));
            let jobs: BTreeSet<Job> = placed.into_iter().flatten().collect();
            for job in jobs {
                works.extend(self.mixer_work(turn, &name, job));
            }
        }
        works
    }

    fn mixer_work(&mut self, turn: &mut Turn, name: &Name, job: Job) -> Option<MixerWork> {
        let address = self.settings.address;
        let room = self.rooms.get_mut(name)?;
        if let Some(port) = room.placed.get(&job).map(|placed| placed.port) {
            let Some(description) = room.describe(&mut self.random, job, address, port) else {
                self.unplace(turn, name, job);
                turn.kept(name);
                return None;
            };
            let placed = room.placed.get(&job)?;
            let is_told = placed.told.as_ref().is_some_and(|(_, told)| *told == description);
            return (!is_told).then(|| MixerWork::Tell {
                conference: name.clone(),
                job,
                control: placed.control.clone(),
                description,
            });
        }
        if !room.jobs().contains(&job) {
            return None;
        }
        if self.candidates(job.medium()).is_empty() {
            self.rooms.get_mut(name)?.lacks_mixer(job, "no mixer has room for it".to_owned());
            return None;
        }
        let port = match self.ports.take() {
            Ok(port) => port,
            Err(failure) => {
                self.rooms.get_mut(name)?.lacks_mixer(job, failure.message);
                return None;
            }
        };
        let Some(description) = self.rooms.get_mut(name)?.describe(&mut self.random, job, address, port) else {
            self.ports.free.push_back(port);
            return None;
        };
        Some(MixerWork::Place(Placing {
            conference: name.clone(),
            job,
            description,
            port,
        }))
    }

    /// A mixer has taken a job.
    pub fn placed(&mut self, turn: &mut Turn, placing: Placing, control: String, accepted: &Accepted) {
        let Placing {
            conference: name,
            job,
            description,
            port,
        } = placing;
        turn.log(Level::Info, format!("conference {name}: {} is made by mixer {control}", said(job)));
        if let Some(Ok(status)) = self.known.get_mut(&control) {
            status.add(job.medium(), description.work());
        }
        let placed = Placed {
            control: control.clone(),
            at: accepted.at,
            port,
            told: Some((accepted.epoch, description)),
        };
        self.place(turn, &name, job, placed);
        tell_mixers(turn, &name, "mixer", job, control, None);
        turn.kept(&name);
    }

    /// A mixer has not taken a job: it has no room, or does not answer and is not asked again before it does.
    pub fn declined(&mut self, turn: &mut Turn, name: &Name, control: &str, error: &MixerError) {
        let level = if matches!(error, MixerError::Full(_)) {
            Level::Debug
        } else {
            Level::Warn
        };
        turn.log(level, format!("mixer {control} does not take {name}: {error}"));
        self.lose_mixer(control, error);
    }

    fn lose_mixer(&mut self, control: &str, error: &MixerError) {
        if !matches!(error, MixerError::Full(_)) {
            self.known.insert(control.to_owned(), Err(error.to_string()));
        }
    }

    /// No mixer has taken a job.
    pub fn not_placed(&mut self, placing: &Placing, reason: String) {
        self.ports.free.push_back(placing.port);
        if let Some(room) = self.rooms.get_mut(&placing.conference) {
            room.lacks_mixer(placing.job, reason);
        }
    }

    /// What has come of telling a mixer of a change.
    pub fn told(
        &mut self,
        turn: &mut Turn,
        name: &Name,
        job: Job,
        control: &str,
        description: Description,
        answer: Result<Accepted, MixerError>,
    ) {
        match answer {
            Ok(accepted) => {
                let placed = self.rooms.get_mut(name).and_then(|room| room.placed.get_mut(&job));
                if let Some(placed) = placed.filter(|placed| placed.control == control) {
                    let moved = placed.at != accepted.at;
                    placed.told = Some((accepted.epoch, description));
                    if moved {
                        self.lose(turn, name, job, "its address is another");
                    } else {
                        turn.kept(name);
                    }
                }
            }
            Err(error) => {
                self.lose_mixer(control, &error);
                self.lose(turn, name, job, &error.to_string());
            }
        }
    }

    /// What is on a mixer that is not there any more has none.
    fn drop_lost(&mut self, turn: &mut Turn) {
        let (mut lost, mut renewed) = (Vec::new(), Vec::new());
        for (name, room) in &mut self.rooms {
            let mut anew = Vec::new();
            for (job, placed) in &mut room.placed {
                match self.known.get(&placed.control) {
                    Some(Ok(status)) => {
                        // One that has begun anew is told everything again.
                        if placed.told.take_if(|(told, _)| *told < status.epoch).is_some() {
                            anew.push(*job);
                        }
                    }
                    // Nobody has asked it yet.
                    None if self.settings.mixers.contains(&placed.control) => {}
                    _ => lost.push((name.clone(), *job)),
                }
            }
            for job in anew {
                room.begin_anew(turn, &mut self.random, job);
                renewed.push((name.clone(), job));
            }
        }
        for (name, job) in renewed {
            self.renewed(turn, &name, job);
        }
        for (name, job) in lost {
            self.lose(turn, &name, job, "it does not answer");
        }
    }

    fn lose(&mut self, turn: &mut Turn, name: &Name, job: Job, reason: &str) {
        let Some(control) = self.unplace(turn, name, job) else { return };
        // It knows nothing of the conference, or will be told to forget it once it answers.
        turn.log(
            Level::Warn,
            format!("conference {name}: mixer {control} of {} is lost: {reason}", said(job)),
        );
        tell_mixers(turn, name, "mixer-lost", job, control, Some(reason));
        self.renewed(turn, name, job);
    }

    /// What a mixer makes begins anew.
    fn renewed(&self, turn: &mut Turn, name: &Name, job: Job) {
        if let Some(room) = self.rooms.get(name).filter(|_| job == Job::Tiles) {
            room.tell_layout(turn);
        }
        turn.kept(name);
    }
}

fn tell_mixers(turn: &mut Turn, name: &Name, what: &'static str, job: Job, control: String, detail: Option<&str>) {
    turn.tell(name, what, None, Some(job.medium()), |facts| {
        facts.insert("mixer".into(), control.into());
        facts.extend(detail.map(|detail| ("detail".to_owned(), detail.into())));
        if let Job::Column(number) = job {
            facts.insert("column".into(), number.into());
        }
    });
}

/// What a job is, for the log.
fn said(job: Job) -> String {
    match job {
        Job::Column(number) => format!("column {number} of its tiles"),
        job => job.medium().name().to_owned(),
    }
}
