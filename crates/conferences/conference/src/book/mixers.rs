//! Assigns the audio and video of conferences to mixers, and describes each job to its mixer.
//!
//! Audio needs a mixer when a participant is to get a mix ([`super::mixing`]). Video needs one when tiled streams are wanted
//! ([`super::tiling`]); in two levels, each column is a separate job. A job goes to the mixer with the lowest load of its medium. In the
//! data plane, a mixer is one participant per job, with a reserved name, which receives copies of its input from an additional relay
//! address. The jobs of a mixer that does not answer go to other mixers. A restarted mixer gets its descriptions again.

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

/// The mixer of a conference's audio or video.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The mixer's control socket.
    pub control: String,
    /// Address where the mixer receives the medium and sends from.
    pub at: Endpoint,
    /// Relay port that copies to the mixer come from.
    pub port: u16,
    /// The last description sent, and the mixer's epoch then; `None`: the mixer's state is uncertain.
    told: Option<(u64, Description)>,
}

impl Placed {
    /// Restores an assignment from the stored state.
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

/// A job that needs a mixer, and the port that copies come from.
#[derive(Debug)]
pub struct Placing {
    pub conference: Name,
    pub job: Job,
    pub description: Description,
    port: u16,
}

/// Work for a mixer.
#[derive(Debug)]
pub enum MixerWork {
    /// A mixer must be found for the job. Pass the result to [`Book::placed`] or [`Book::not_placed`].
    Place(Placing),
    /// The mixer must get this description. Pass the answer to [`Book::told`].
    Tell {
        conference: Name,
        job: Job,
        control: String,
        description: Description,
    },
}

impl Room {
    /// Returns whether a mixer has the description of a job, in the mixer's present epoch.
    #[must_use]
    pub fn is_made_by(&self, job: Job, control: &str, epoch: u64) -> bool {
        let placed = self.placed.get(&job).filter(|placed| placed.control == control);
        placed.is_some_and(|placed| placed.told.as_ref().is_some_and(|(told, _)| *told == epoch))
    }

    /// Returns the jobs of a conference.
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

    /// Tells receivers by RTCP BYE that a mixer's streams have ended (RFC 3550 section 6.6).
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

    /// Restarts the streams of a job with new SSRCs, because another mixer or a restarted one makes them.
    fn begin_anew(&mut self, turn: &mut Turn, random: &mut Random, job: Job) {
        self.say_over(turn, job);
        match job {
            Job::Mixes => self.mixes = Mixes::default(),
            job => self.renew_tiles(random, job),
        }
    }
}

impl Book {
    /// Assigns a job to a mixer.
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
        // Relay entries carry mixes, so only the mixers of tiles send to the conference.
        leg.sends = job != Job::Mixes;
        self.mixers_at.insert(placed.at);
        room.placed.insert(job, placed);
        // The reserved name is never in use.
        let _ = room.conference.join(one);
        room.members.insert(mixer.clone(), Member::of_mixer(turn.now));
        self.install(turn, name, &mixer, (job.medium(), 0), leg);
        if let Some(room) = self.rooms.get_mut(name) {
            room.conference.settle();
        }
    }

    /// Releases all jobs of a conference.
    pub(super) fn unplace_all(&mut self, turn: &mut Turn, name: &str) {
        let placed = self.rooms.get(name).map(|room| room.placed.keys().copied().collect());
        let placed: Vec<Job> = placed.unwrap_or_default();
        for job in placed {
            self.unplace(turn, name, job);
        }
    }

    /// Releases a job of a conference. Returns its former mixer.
    fn unplace(&mut self, turn: &mut Turn, name: &str, job: Job) -> Option<String> {
        let room = self.rooms.get_mut(name)?;
        let placed = room.placed.remove(&job)?;
        room.begin_anew(turn, &mut self.random, job);
        let name = room.conference.name.clone();
        let _ = self.take_out(turn, &name, &job.participant());
        self.unplaced.insert((placed.control.clone(), job, name));
        Some(placed.control)
    }

    // -- mixers' reports ---------------------------------------------------------------------------

    /// Returns the mixers that do not answer, with reasons.
    #[must_use]
    pub fn lacking_mixers(&self) -> Vec<(String, String)> {
        let lacking = self
            .known
            .iter()
            .filter_map(|(control, known)| Some((control.clone(), known.as_ref().err()?.clone())));
        lacking.collect()
    }

    /// Returns the media for which mixers are available.
    #[must_use]
    pub fn used_mixers(&self) -> BTreeSet<(String, Medium)> {
        let placed = self.rooms.values().flat_map(|room| &room.placed);
        placed.map(|(job, placed)| (placed.control.clone(), job.medium())).collect()
    }

    /// Records a mixer's status, or the reason why it does not answer.
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

    /// Returns the mixers that accept more work of a medium, the one with the lowest load first.
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

    // -- mixers' descriptions ----------------------------------------------------------------------

    /// Returns the jobs to end on mixers that answer; jobs on other mixers are ended once those answer. Pass failures to
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

    /// Assigns jobs to mixers and returns the descriptions to send. Jobs of lost mixers are assigned again.
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

    /// Records that a mixer has accepted a job.
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

    /// Records that a mixer has rejected a job: it has no capacity, or does not answer. A mixer that does not answer gets no job until it
    /// does.
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

    /// Records that no mixer has accepted a job.
    pub fn not_placed(&mut self, placing: &Placing, reason: String) {
        self.ports.free.push_back(placing.port);
        if let Some(room) = self.rooms.get_mut(&placing.conference) {
            room.lacks_mixer(placing.job, reason);
        }
    }

    /// Records the result of sending a description to a mixer.
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

    /// Releases the jobs of mixers that are lost.
    fn drop_lost(&mut self, turn: &mut Turn) {
        let (mut lost, mut renewed) = (Vec::new(), Vec::new());
        for (name, room) in &mut self.rooms {
            let mut anew = Vec::new();
            for (job, placed) in &mut room.placed {
                match self.known.get(&placed.control) {
                    Some(Ok(status)) => {
                        // A restarted mixer gets all descriptions again.
                        if placed.told.take_if(|(told, _)| *told < status.epoch).is_some() {
                            anew.push(*job);
                        }
                    }
                    // The mixer has not been polled yet.
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
        // The mixer has no state of the conference, or will be told to end the job once it answers.
        turn.log(
            Level::Warn,
            format!("conference {name}: mixer {control} of {} is lost: {reason}", said(job)),
        );
        tell_mixers(turn, name, "mixer-lost", job, control, Some(reason));
        self.renewed(turn, name, job);
    }

    /// Restarts the streams of a job.
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

/// Names a job for the log.
fn said(job: Job) -> String {
    match job {
        Job::Column(number) => format!("column {number} of its tiles"),
        job => job.medium().name().to_owned(),
    }
}
