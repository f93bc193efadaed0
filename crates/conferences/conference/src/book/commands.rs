//! Commands of the admin API: begin and end conferences; add, change and remove participants; set qualities and targets.

use super::room::Decided;
use super::wanted::{self, Wanted, check_media, check_name, leg_name};
use super::{Book, Member, Readings, Turn, view};
use crate::adaptation::Medium;
use crate::ice::Credentials;
use crate::membership::{Conference, MembershipError};
use crate::mixing::Mixed;
use crate::participant::{Leg, Participant as Planned};
use crate::rows::Key;
use crate::tables::Name;
use shunt_admin_model::{ConferenceSummary, Failure, FailureKind, Join, Participant, ParticipantUpdate, QualityChange, TargetChange};
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::time::Duration;

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, text)
}

/// Checks a join request before anything waits for I/O.
///
/// # Errors
/// A name or a medium is invalid.
pub(super) fn check_join(join: &Join) -> Result<(Name, Vec<Wanted>), Failure> {
    let name = check_name("participant", &join.participant.as_text())?;
    let wanted = check_media(&join.media)?;
    if wanted.is_empty() {
        return Err(invalid("media: no medium is given"));
    }
    Ok((name, wanted))
}

impl Book {
    /// # Errors
    /// The name is invalid or in use.
    pub fn create(&mut self, turn: &mut Turn, name: &str) -> Result<ConferenceSummary, Failure> {
        let name = check_name("conference", name)?;
        if self.rooms.contains_key(&name) {
            return Err(Failure::new(FailureKind::Conflict, format!("there is a conference {name} already")));
        }
        let mut room = self.new_room(name.clone(), turn.unix_us);
        room.set_tiling(turn, self.settings.tiling.clone())?;
        room.announcements = self.settings.announcements;
        turn.keep(&name);
        turn.tell(&name, "created", None, None, |_| {});
        let summary = view::summary(self, &room);
        self.rooms.insert(name, room);
        Ok(summary)
    }

    /// Returns any participant left in a conference that is to end. All participants leave first.
    ///
    /// # Errors
    /// There is no such conference.
    pub fn anybody(&self, name: &str) -> Result<Option<Name>, Failure> {
        Ok(self.room(name)?.people().next().map(|(one, _)| one.name.clone()))
    }

    /// Ends a conference without participants.
    pub fn end(&mut self, turn: &mut Turn, name: &str) {
        self.unplace_all(turn, name);
        if let Some(room) = self.rooms.remove(name) {
            let name = room.conference.name;
            turn.tell(&name, "ended", None, None, |_| {});
            turn.keep(&name);
            turn.touch(&name);
        }
    }

    /// Checks a join request as far as possible before the data plane is connected.
    ///
    /// # Errors
    /// A name or a medium is invalid.
    pub fn check_join(join: &Join) -> Result<(), Failure> {
        check_join(join).map(|_| ())
    }

    /// Adds a participant and allocates its relay addresses.
    ///
    /// # Errors
    /// The request cannot be fulfilled; nothing has changed.
    pub fn join(
        &mut self,
        turn: &mut Turn,
        conference: &str,
        join: &Join,
        credentials: Option<Credentials>,
    ) -> Result<Participant, Failure> {
        let (name, wanted) = check_join(join)?;
        let room = self.room_mut(conference)?;
        let conference = room.conference.name.clone();
        let mut one = Planned::new(name.clone());
        one.ice = credentials.is_some();
        one.encrypted = wanted.iter().any(Wanted::is_encrypted);
        one.wish = wanted::wish(join.mixed);
        let joined = room.conference.join(one);
        joined.map_err(|error| Failure::new(FailureKind::Conflict, error.to_string()))?;
        let member = Member {
            call: join.call.as_ref().map(|call| call.as_text().into_owned()),
            joined_us: turn.unix_us,
            ice: credentials,
            signalling: join.signalling.clone(),
            last_packet: turn.now,
        };
        room.members.insert(name.clone(), member);
        if let Err(full) = self.add_legs(turn, &conference, &name, &wanted, &join.signalled) {
            let room = self.room_mut(&conference)?;
            room.members.remove(&name);
            let _ = room.conference.leave(&name);
            return Err(full);
        }
        let pairs = self.planner.payload_types();
        let room = self.room_mut(&conference)?;
        room.conference.settle();
        if let Err(failure) = check_fit(&room.conference, &name, pairs) {
            self.take_out(turn, &conference, &name)?;
            return Err(failure);
        }
        turn.keep(&conference);
        turn.tell(&conference, "joined", Some(&name), None, |_| {});
        self.participant(turn, &conference, &name)
    }

    fn participant(&self, turn: &Turn, conference: &str, name: &str) -> Result<Participant, Failure> {
        let room = self.room(conference)?;
        let (one, member) = room.member(name)?;
        Ok(view::participant(room, one, member, turn.now))
    }

    /// Applies new signalling of a participant. `credentials`: those of an ICE restart.
    ///
    /// # Errors
    /// There is no such participant, or the signalling is invalid.
    pub fn update(
        &mut self,
        turn: &mut Turn,
        conference: &str,
        participant: &str,
        update: &ParticipantUpdate,
        credentials: Option<Credentials>,
    ) -> Result<Participant, Failure> {
        let wanted = update.media.as_deref().map(check_media).transpose()?;
        let room = self.room(conference)?;
        let (one, _) = room.member(participant)?;
        let (conference, name) = (room.conference.name.clone(), one.name.clone());
        let before = one.legs.values().next().map(|leg| leg.signalled.clone());
        let signalled = update.signalled.clone().or(before).unwrap_or_default();
        if let Some(wanted) = wanted {
            self.change_media(turn, &conference, &name, wanted, &signalled)?;
        }
        if let Some(mixed) = update.mixed {
            self.change_mixed(&conference, &name, mixed)?;
        }
        if update.signalled.is_some() {
            self.move_participant(turn, &conference, &name, &signalled);
        }
        let room = self.room_mut(&conference)?;
        if let Some(credentials) = credentials
            && let Some(member) = room.members.get_mut(&name)
        {
            member.ice = member.ice.is_some().then_some(credentials);
        }
        room.serve_listening(turn, &name);
        if let Some(member) = room.members.get_mut(&name) {
            if update.signalling.is_some() {
                member.signalling.clone_from(&update.signalling);
            }
            member.last_packet = turn.now;
        }
        room.conference.settle();
        turn.keep(&conference);
        turn.touch(&conference);
        self.participant(turn, &conference, &name)
    }

    /// Changes whether a participant is to get a mix.
    fn change_mixed(&mut self, conference: &Name, name: &Name, mixed: shunt_admin_model::Mixed) -> Result<(), Failure> {
        let pairs = self.planner.payload_types();
        let room = self.room_mut(conference)?;
        let mut tried = room.conference.clone();
        tried.get_mut(name).map_err(membership_failure)?.wish = wanted::wish(mixed);
        tried.settle();
        check_fit(&tried, name, pairs)?;
        room.conference = tried;
        Ok(())
    }

    fn change_media(
        &mut self,
        turn: &mut Turn,
        conference: &Name,
        name: &Name,
        wanted: Vec<Wanted>,
        signalled: &[IpAddr],
    ) -> Result<(), Failure> {
        let (pairs, address) = (self.planner.payload_types(), self.settings.address);
        let room = self.room_mut(conference)?;
        // The change is tried on a copy: either all participants can still receive each other, or nothing changes.
        let mut tried = room.conference.clone();
        let mut differs = false;
        if let Ok(participant) = tried.get_mut(name) {
            for one in &wanted {
                let is_new = !participant.legs.contains_key(&one.key);
                let leg = participant.legs.entry(one.key);
                differs |= one.shape(leg.or_insert_with(|| Leg::new(Endpoint::new(address, 0)))) || is_new;
            }
        }
        if differs {
            tried.settle();
            check_fit(&tried, name, pairs)?;
        }
        let mut new = Vec::new();
        for one in wanted {
            match room.leg_mut(name, one.key) {
                Some(leg) => {
                    if one.apply(leg) {
                        let direction = view::direction(leg);
                        turn.tell(conference, "directions", Some(name), Some(one.key.0), |facts| {
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
        self.add_legs(turn, conference, name, &new, signalled)?;
        let media: Vec<String> = new.iter().map(|one| leg_name(one.key)).collect();
        turn.tell(conference, "media", Some(name), None, |facts| {
            facts.insert("media".into(), media.into());
        });
        Ok(())
    }

    /// Restarts latching after signalling has named other addresses. With ICE, connectivity checks determine the source instead.
    fn move_participant(&mut self, turn: &Turn, conference: &Name, name: &Name, signalled: &[IpAddr]) {
        let Some(room) = self.rooms.get_mut(conference) else { return };
        if room.members.get(name).is_none_or(|member| member.ice.is_some()) {
            return;
        }
        let Ok(one) = room.conference.get_mut(name) else { return };
        let mut moved = Vec::new();
        for (key, leg) in &mut one.legs {
            if leg.signalled == signalled {
                continue;
            }
            leg.signalled = signalled.to_vec();
            leg.latch.forget(turn.now, &self.settings.policy, true);
            leg.latch.signal(turn.now, wanted::names(signalled));
            moved.push(*key);
        }
        for key in moved {
            room.set_source(name, key, None, turn.now);
        }
    }

    /// Returns the rows whose counters must be read before a participant leaves.
    ///
    /// # Errors
    /// There is no such participant.
    pub fn leaving(&self, conference: &str, participant: &str) -> Result<Vec<Key>, Failure> {
        self.room(conference)?.member(participant)?;
        Ok(self.rows_of(conference, participant))
    }

    /// Removes a participant and reports its usage in the event `left`. `keys`: its rows; `read`: their counters, `None` if reading failed.
    ///
    /// # Errors
    /// There is no such participant.
    pub fn leave(
        &mut self,
        turn: &mut Turn,
        conference: &str,
        participant: &str,
        reason: &str,
        keys: &[Key],
        read: Option<&Readings>,
    ) -> Result<(), Failure> {
        let media = self.usage(self.room(conference)?, participant, keys, read)?;
        let gone = self.take_out(turn, conference, participant)?;
        let name = self.room(conference)?.conference.name.clone();
        turn.keep(&name);
        let (joined_us, seconds) = (gone.joined_us, turn.unix_us.saturating_sub(gone.joined_us) as f64 / 1e6);
        turn.tell(&name, "left", Some(&participant.into()), None, |facts| {
            facts.insert("reason".into(), reason.into());
            facts.insert("call".into(), gone.call.as_deref().into());
            facts.insert("signalling".into(), gone.signalling.into());
            facts.insert("joined_us".into(), joined_us.into());
            facts.insert("duration_s".into(), seconds.into());
            // A value that JSON cannot represent is omitted.
            facts.insert("media".into(), serde_json::to_value(&media).unwrap_or_default());
        });
        turn.touch(&name);
        Ok(())
    }

    /// # Errors
    /// A participant is missing.
    pub fn set_quality(&mut self, turn: &mut Turn, conference: &str, change: &QualityChange) -> Result<(), Failure> {
        let pair: (Name, Name) = (change.sender.as_text().as_ref().into(), change.receiver.as_text().as_ref().into());
        let room = self.room_mut(conference)?;
        let set = room.conference.set_quality(&pair.0, &pair.1, view::medium(change.quality));
        set.map_err(membership_failure)?;
        turn.keep(&room.conference.name);
        turn.touch(&room.conference.name);
        Ok(())
    }

    /// # Errors
    /// A target is invalid; nothing has changed.
    pub fn set_targets(&mut self, turn: &mut Turn, conference: &str, change: &TargetChange) -> Result<(), Failure> {
        let hold = change.hold_s.map(Duration::try_from_secs_f64).transpose();
        let hold = hold.map_err(|error| invalid(format!("hold_s: {error}")))?;
        let room = self.room(conference)?;
        let mut changes = Vec::new();
        for one in &change.targets {
            let pair: (Name, Name) = (one.sender.as_text().as_ref().into(), one.receiver.as_text().as_ref().into());
            let level = one.target.map_or(0, |target| usize::from(target) + 1);
            let media = [Medium::Video, Medium::Screen];
            let has = |medium: &Medium| room.conference.get(&pair.0).is_some_and(|sender| sender.leg(*medium).is_some());
            // The change is tried on a copy: all targets are accepted, or none.
            let mut tried = room.conference.clone();
            for medium in media.into_iter().filter(has) {
                tried.set_level(&pair.0, &pair.1, medium, level).map_err(membership_failure)?;
                self.may_be_less(room, &pair, medium, level)?;
                changes.push((pair.clone(), medium, level));
            }
            room.member(&pair.0)?;
            room.member(&pair.1)?;
        }
        let room = self.room_mut(conference)?;
        let decided = Decided {
            external: hold.is_some(),
            until: hold.map(|hold| turn.now + hold),
        };
        for (pair, medium, level) in changes {
            room.decided.insert(pair.clone(), decided);
            room.set_level(turn, &pair, medium, level).map_err(membership_failure)?;
        }
        Ok(())
    }
}

/// Checks whether a participant and the others can receive each other's packets, or a mix. `pairs`: number of payload types that the data
/// plane can rewrite.
fn check_fit(conference: &Conference, name: &Name, pairs: usize) -> Result<(), Failure> {
    let one = conference.get(name).filter(|one| one.wish == Mixed::Yes);
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

fn membership_failure(error: MembershipError) -> Failure {
    let kind = match error {
        MembershipError::NoParticipant(..) => FailureKind::NotFound,
        MembershipError::Taken(..) | MembershipError::Encrypted(_) => FailureKind::Conflict,
        MembershipError::Itself(_) | MembershipError::Level(..) => FailureKind::Invalid,
    };
    Failure::new(kind, error.to_string())
}
