//! RTCP of participants: reports of senders go on to who gets their media, requests to the sender that they name, and estimates become levels.
//!
//! Nothing here waits: what comes in goes out in the same call.

use super::Shared;
use super::state::{LegKey, Room, State, Timer};
use shunt_admin::{Failure, FailureKind};
use shunt_conference::adaptation::{Decision, Feedback, Medium, OWN_SSRC, Streams};
use shunt_conference::jobs::Job;
use shunt_conference::membership::{Conference, Pair, STREAMS, TARGETS, stream_name, stream_of};
use shunt_conference::packets::Told;
use shunt_conference::payload_types;
use shunt_conference::policy::Stepwise;
use shunt_conference::reports::{Request, for_receivers, requests};
use shunt_conference::tables::{Name, Source};
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Who gets less stays in the trees of what it got for so long: until its numbers have changed over.
const HELD: Duration = Duration::from_secs(1);

/// What the adaptation asks of a conference's streams.
pub struct RoomStreams<'a> {
    pub conference: &'a Conference,
    pub rates: &'a HashMap<(Name, Medium), Vec<f64>>,
}

impl Streams for RoomStreams<'_> {
    fn rates(&self, sender: &Name, medium: Medium) -> &[f64] {
        self.rates.get(&(sender.clone(), medium)).map_or(&[], Vec::as_slice)
    }

    fn level(&self, sender: &Name, medium: Medium, receiver: &Name) -> Option<usize> {
        self.conference.levels.get(&((sender.clone(), receiver.clone()), medium)).copied()
    }

    fn needs_key_frame(&self, sender: &Name, medium: Medium) -> bool {
        let told = self.conference.get(sender).and_then(|one| one.leg(medium)).and_then(|leg| leg.told);
        !matches!(told, Some(Told::DependencyDescriptor(_)))
    }
}

/// Whether a receiver is to get a medium of a sender, by its quality, and by what mixers make.
#[must_use]
pub fn permits(conference: &Conference, sender: &Name, receiver: &Name, medium: Medium) -> bool {
    let pair = conference.get(sender).zip(conference.get(receiver));
    pair.is_none_or(|(sender, receiver)| conference.is_for(sender, receiver, medium))
        && (conference.qualities.is_empty()
            || conference
                .qualities
                .get(&(sender.clone(), receiver.clone()))
                .is_none_or(|highest| medium <= *highest))
}

impl State {
    /// RTCP that came to a relay address. From whoever does not send the leg's media it is not taken.
    pub fn rtcp(&mut self, shared: &Shared, port: u16, from: Endpoint, data: &[u8]) {
        let now = shared.clock.now();
        let relay = port & !1;
        let Some(place) = self.at.get(&relay).cloned() else { return };
        let me = &place.participant;
        if self.listener(shared, port, from) {
            self.touch(shared, &place.conference);
        }
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let source = room.leg(me, place.leg).and_then(|(leg, _)| leg.source);
        if source.is_none_or(|source| source.addr != from.addr) {
            shared.counts.rtcp_refused.inc();
            return;
        }
        if rtcp::classify(data).is_err() {
            shared.counts.rtcp_refused.inc();
            return;
        }
        shared.counts.rtcp_taken.inc();
        let muxed = port == relay;
        if let Some(state) = room.members.get_mut(me).and_then(|member| member.legs.get_mut(&place.leg)) {
            state.rtcp = Some(from);
        }
        let mut remuxed = false;
        if let Ok(one) = room.conference.get_mut(me)
            && let Some(leg) = one.legs.get_mut(&place.leg)
        {
            remuxed = leg.muxed != muxed;
            leg.muxed = muxed;
        }
        let present = room.conference.participants.iter().filter(|one| one.is_present()).count();
        if present <= 2 && room.conference.levels.is_empty() {
            for other in room.conference.participants.iter().filter(|one| one.name != *me) {
                // What it says of its own stream goes to where that is brought; what it says of the other's, to where that comes from.
                let brings = room.leg_for(other, me, place.leg.0).filter(|_| place.leg.1 == 0);
                let sends = room.leg(&other.name, (place.leg.0, 0));
                let sends = sends.and_then(|(leg, state)| Some((state, leg.source?, leg.muxed)));
                let sends = sends.filter(|sends| brings.as_ref().is_none_or(|brings| brings.1 != sends.1));
                for (state, source, muxed) in brings.into_iter().chain(sends) {
                    state.send_rtcp(source, muxed, data);
                }
            }
        } else {
            let mut work = Work {
                shared,
                now,
                dirty: &mut self.dirty,
                timers: &mut self.timers,
            };
            work.share(room, me, place.leg, data);
        }
        if remuxed {
            self.touch(shared, &place.conference);
        }
    }

    /// Mark a conference: it is to be brought to what it is to be.
    pub fn touch(&mut self, shared: &Shared, name: &Name) {
        self.dirty.insert(name.clone());
        shared.wake.notify_one();
        shared.mixing.notify_one();
    }

    /// Somebody who only listens is found by its RTCP, from an address that signalling names.
    fn listener(&mut self, shared: &Shared, port: u16, from: Endpoint) -> bool {
        let relay = port & !1;
        let Some(place) = self.at.get(&relay).cloned() else { return false };
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return false;
        };
        let Some((leg, state)) = room.leg(&place.participant, place.leg) else {
            return false;
        };
        if leg.source.is_some()
            || leg.sends
            || !state.signalled.contains(&from.addr)
            || room.members.get(&place.participant).is_none_or(|one| one.ice.is_some())
        {
            return false;
        }
        let muxed = port == relay;
        let Some(media) = (if muxed { Some(from.port) } else { from.port.checked_sub(1) }) else {
            return false;
        };
        let source = Endpoint::new(from.addr, media);
        room.set_source(&place.participant, place.leg, Some(source), shared.clock.now());
        if let Some(state) = room
            .members
            .get_mut(&place.participant)
            .and_then(|member| member.legs.get_mut(&place.leg))
        {
            state.latch.adopt(shared.clock.now(), source, None);
        }
        shared.tell_source(&place, Some(source));
        shared.serve_listening(room, &place.participant);
        shared.store.put(&room.keep());
        true
    }

    /// Timers that are due.
    pub fn tick(&mut self, shared: &Shared) {
        let now = shared.clock.now();
        while let Some((at, timer)) = self.timers.first().cloned().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer.clone()));
            match timer {
                Timer::Again(name) => self.touch(shared, &name),
                Timer::LetGo(name, pair, medium) => {
                    let gone = self
                        .rooms
                        .get_mut(&name)
                        .is_some_and(|room| room.conference.let_go(&pair.0, &pair.1, medium));
                    if gone {
                        self.touch(shared, &name);
                    }
                }
                Timer::KeyFrame(name, sender, medium) => {
                    let Some(room) = self.rooms.get_mut(&name) else { continue };
                    let frames = room.key_frames.get_mut(&(sender.clone(), medium));
                    if frames.is_some_and(|frames| frames.due(now)) {
                        ask_key_frame(shared, room, &sender, medium);
                    }
                }
            }
        }
    }

    /// Every second: paused streams are tried again, and decisions from outside come to their end.
    pub fn each_second(&mut self, shared: &Shared) {
        let now = shared.clock.now();
        for room in self.rooms.values_mut() {
            room.decided.retain(|_, decided| decided.until.is_none_or(|until| until > now));
            room.adaptation.observed = shared.estimates.receiver_count() > 0;
            let streams = RoomStreams {
                conference: &room.conference,
                rates: &room.rates,
            };
            let decisions = room.adaptation.tick(&streams, now);
            let mut work = Work {
                shared,
                now,
                dirty: &mut self.dirty,
                timers: &mut self.timers,
            };
            for decision in decisions {
                work.decide(room, decision);
            }
        }
    }

    /// Streams that tell their layers by templates of which nothing is known, and of which somebody is to get less: a key frame tells them.
    pub fn want_structures(&mut self, shared: &Shared) {
        let mut waiting: BTreeSet<(Name, Name, Medium)> = BTreeSet::new();
        for room in self.rooms.values() {
            let name = &room.conference.name;
            for source in self.planner.streams(name) {
                if let Some((medium, _)) = stream_of(&source.stream)
                    && room.conference.is_tracked(&source.sender, medium)
                    && self.planner.numbering.awaits_structure(source)
                {
                    waiting.insert((name.clone(), source.sender.clone(), medium));
                }
            }
        }
        for (conference, sender, medium) in waiting {
            self.want_key_frame(shared, &conference, &sender, medium);
        }
    }

    /// Somebody needs a key frame of a sender.
    pub fn want_key_frame(&mut self, shared: &Shared, conference: &Name, sender: &Name, medium: Medium) {
        let Some(room) = self.rooms.get_mut(conference) else { return };
        let mut work = Work {
            shared,
            now: shared.clock.now(),
            dirty: &mut self.dirty,
            timers: &mut self.timers,
        };
        work.want_key_frame(room, sender, medium);
    }

    /// Whether a receiver can get fewer layers of a sender's medium than it gets.
    ///
    /// # Errors
    /// The data plane cannot leave them out, and why.
    pub fn may_be_less(&self, conference: &Name, pair: &Pair, medium: Medium, level: usize) -> Result<(), Failure> {
        let Some(room) = self.rooms.get(conference) else { return Ok(()) };
        if level == 0 || level >= TARGETS || room.conference.target(&pair.0, &pair.1, medium).is_some() {
            return Ok(());
        }
        let numbering = &self.planner.numbering;
        let leg = room.conference.get(&pair.0).and_then(|one| one.leg(medium));
        let reason = match leg.and_then(|leg| leg.told) {
            Some(told) if !numbering.reads(told) => "the data plane reads no layers but those that a dependency descriptor tells",
            Some(_) if numbering.room() < 2 * STREAMS => {
                "as many streams and receivers have numbers of their own as the data plane has room for"
            }
            _ => return Ok(()),
        };
        let text = format!("{}'s {} goes on whole: {reason}", pair.0, medium.name());
        Err(Failure::new(FailureKind::Conflict, text))
    }

    /// Give a receiver so many layers.
    ///
    /// # Errors
    /// It cannot be, and why.
    pub fn set_level(
        &mut self,
        shared: &Shared,
        conference: &Name,
        pair: &Pair,
        medium: Medium,
        level: usize,
    ) -> Result<(), shunt_conference::membership::MembershipError> {
        let Some(room) = self.rooms.get_mut(conference) else {
            return Ok(());
        };
        let mut work = Work {
            shared,
            now: shared.clock.now(),
            dirty: &mut self.dirty,
            timers: &mut self.timers,
        };
        work.set_level(room, pair, medium, level)
    }
}

fn ask_key_frame(shared: &Shared, room: &Room, sender: &Name, medium: Medium) {
    let Some((leg, state)) = room.leg(sender, (medium, 0)) else {
        return;
    };
    let Some(source) = leg.source else { return };
    for ssrc in leg.ssrcs.iter().filter(|ssrc| !leg.repair.contains(ssrc)) {
        shared.counts.key_frames_asked.inc();
        state.send_rtcp(source, leg.muxed, &rtcp::pli(OWN_SSRC, *ssrc));
    }
}

/// What the work on one conference may touch besides it.
pub struct Work<'a> {
    pub shared: &'a Shared,
    pub now: Time,
    pub dirty: &'a mut BTreeSet<Name>,
    pub timers: &'a mut BTreeSet<(Time, Timer)>,
}

impl Work<'_> {
    /// RTCP of one of many.
    fn share(&mut self, room: &mut Room, me: &Name, key: LegKey, data: &[u8]) {
        let medium = key.0;
        if room.conference.mixer(Job::Mixes).is_some_and(|mixer| mixer.name == *me) {
            room.share_mixes(data);
        } else {
            let carried = |ssrc: u32| room.conference.conflict(me, medium, ssrc).is_none();
            if let Ok(reports) = for_receivers(data, carried)
                && !reports.is_empty()
            {
                let sender = room.conference.get(me);
                for other in room.conference.participants.iter().filter(|one| one.name != *me) {
                    if let Some(sender) = sender.filter(|_| permits(&room.conference, me, &other.name, medium)) {
                        for (state, source, muxed) in room.legs_for(other, sender, medium) {
                            state.send_rtcp(source, muxed, &reports);
                        }
                    }
                }
            }
            if medium == Medium::Audio {
                room.report_mix(me, data);
            }
        }
        let mut streams: Vec<(u32, Name)> = Vec::new();
        let mine = room.conference.get(me);
        let mine_is_no_mixer = mine.is_none_or(|mine| mine.mixer.is_none());
        for other in room.conference.participants.iter().filter(|one| one.name != *me) {
            let this = mine.and_then(|mine| mine.legs.get(&key)).map(|leg| leg.relay);
            let is_brought = |ssrc: u32| {
                let brings = mine.and_then(|mine| mine.leg_for_stream(&other.name, medium, ssrc));
                brings.map(|leg| leg.relay) == this
            };
            let Some(leg) = other.leg(medium).filter(|leg| leg.source.is_some()) else {
                continue;
            };
            if permits(&room.conference, &other.name, me, medium) {
                let carried = leg
                    .ssrcs
                    .iter()
                    .filter(|ssrc| is_brought(**ssrc) && room.conference.conflict(&other.name, medium, **ssrc).is_none());
                streams.extend(carried.map(|ssrc| (*ssrc, other.name.clone())));
            }
        }
        if streams.is_empty() {
            return;
        }
        let feedback = Feedback {
            receiver: me,
            medium,
            transport: key.1,
            streams: &streams,
            packet: data,
        };
        let known = RoomStreams {
            conference: &room.conference,
            rates: &room.rates,
        };
        if let Ok(decisions) = room.adaptation.take(&feedback, &known, &Stepwise, self.now) {
            for decision in decisions {
                // A mixer gets everything: it could not tell its receivers that it got less.
                let is_told = matches!(decision, Decision::Forward { .. } | Decision::Downlink { .. });
                if is_told || mine_is_no_mixer {
                    self.decide(room, decision);
                }
            }
        }
        for request in requests(data).unwrap_or_default() {
            let (Request::Nack { ssrc, .. } | Request::KeyFrame { ssrc }) = &request;
            let Some((_, sender)) = streams.iter().find(|(one, _)| one == ssrc) else {
                continue;
            };
            match &request {
                Request::Nack { ssrc, lost } => self.nack(room, me, sender, medium, *ssrc, lost),
                Request::KeyFrame { .. } => self.want_key_frame(room, sender, medium),
            }
        }
    }

    pub fn decide(&mut self, room: &mut Room, decision: Decision) {
        match decision {
            Decision::Forward { sender, medium, packet } => {
                if let Some((leg, state)) = room.leg(&sender, (medium, 0))
                    && let Some(source) = leg.source
                {
                    state.send_rtcp(source, leg.muxed, &packet);
                }
            }
            Decision::Level {
                sender,
                medium,
                receiver,
                before,
                level,
                estimate,
            } => {
                let pair = (sender, receiver);
                if room.decided.contains_key(&pair) {
                    return;
                }
                if let Err(error) = self.set_level(room, &pair, medium, level) {
                    tracing::debug!("conference {}: {error}", room.conference.name);
                    return;
                }
                let more = [("sender", pair.0.to_string()), ("receiver", pair.1.to_string())];
                self.shared.tell(&room.conference.name, "target", None, Some(medium), |facts| {
                    facts.extend(more.map(|(name, text)| (name.to_owned(), text.into())));
                    facts.insert("before".into(), before.into());
                    facts.insert("level".into(), level.into());
                    facts.insert("estimate_bits_per_s".into(), (estimate.max(0.0) as u64).into());
                });
            }
            Decision::KeyFrame { sender, medium } => self.want_key_frame(room, &sender, medium),
            Decision::Downlink {
                sender, medium, receiver, ..
            } => {
                self.shared
                    .tell(&room.conference.name, "downlink", Some(&sender), Some(medium), |facts| {
                        facts.insert("receiver".into(), receiver.map(|name| name.to_string()).into());
                    });
            }
            Decision::Estimated {
                sender,
                medium,
                receiver,
                estimate,
                remb,
                lost,
            } => self.shared.estimated(room, &sender, medium, &receiver, estimate, remb, lost),
            Decision::PolicyFailed { sender, receiver, reason } => {
                tracing::warn!(
                    "conference {}: the policy for {receiver} of {sender}: {reason}",
                    room.conference.name
                );
            }
        }
    }

    pub fn set_level(
        &mut self,
        room: &mut Room,
        pair: &Pair,
        medium: Medium,
        level: usize,
    ) -> Result<(), shunt_conference::membership::MembershipError> {
        let key = (pair.clone(), medium);
        let before = room.conference.levels.get(&key).copied().unwrap_or(TARGETS);
        room.conference.set_level(&pair.0, &pair.1, medium, level)?;
        if level == before {
            return Ok(());
        }
        if room.conference.held.contains_key(&key) {
            let timer = Timer::LetGo(room.conference.name.clone(), pair.clone(), medium);
            self.timers.insert((self.now + HELD, timer));
        }
        if level > 0 {
            let change = (pair.clone(), medium, before.max(1) - 1, level - 1);
            room.retargets.push(change);
        }
        self.dirty.insert(room.conference.name.clone());
        self.shared.wake.notify_one();
        self.shared.store.put(&room.keep());
        Ok(())
    }

    /// Ask for a key frame, now or when the last request is old enough: the requests of many receivers are one.
    pub fn want_key_frame(&mut self, room: &mut Room, sender: &Name, medium: Medium) {
        let frames = room.key_frames.entry((sender.clone(), medium)).or_default();
        self.shared.counts.key_frames_wanted.inc();
        let held = frames.due_at().is_some();
        if frames.wanted(self.now) {
            ask_key_frame(self.shared, room, sender, medium);
        } else if let (false, Some(due)) = (held, frames.due_at()) {
            let timer = Timer::KeyFrame(room.conference.name.clone(), sender.clone(), medium);
            self.timers.insert((due, timer));
        }
    }

    /// A receiver misses packets: they are sent again to it alone, where there is a cache of them. Where there is none yet there will be one.
    fn nack(&mut self, room: &mut Room, me: &Name, sender: &Name, medium: Medium, ssrc: u32, lost: &[u16]) {
        self.shared.counts.nacks.inc();
        let source = Source {
            conference: room.conference.name.clone(),
            sender: sender.clone(),
            stream: stream_name(medium, ssrc),
        };
        room.nacked.insert(source.clone(), self.now);
        let answer = match room.caches.get_mut(&source) {
            Some(cache) => cache.nack(me, lost.iter().copied(), self.now),
            // Which packet has which of a receiver's own numbers is not known: it gets a key frame.
            None if room.conference.target(sender, me, medium).is_some() => {
                self.want_key_frame(room, sender, medium);
                return;
            }
            None => shunt_conference::repair::Answer {
                ask: lost.to_vec(),
                ..Default::default()
            },
        };
        if let Some(receiver) = room.conference.get(me)
            && let Some((state, to, _)) = room.leg_for_stream(receiver, sender, medium, ssrc)
            && let Some(sockets) = &state.sockets
        {
            let types = room.conference.payload_types(sender, me, medium).rewritten;
            for mut packet in answer.packets {
                self.shared.counts.retransmitted.inc();
                payload_types::rewrite(&mut packet, &types);
                sockets.send(false, to, &packet);
            }
        }
        if let (false, Some((leg, state))) = (answer.ask.is_empty(), room.leg(sender, (medium, 0)))
            && let (Some(to), Ok(packet)) = (leg.source, rtcp::nack(OWN_SSRC, ssrc, answer.ask))
        {
            state.send_rtcp(to, leg.muxed, &packet);
        }
        if answer.key_frame {
            self.want_key_frame(room, sender, medium);
        }
    }
}

/// Whether a stream is of a medium.
#[must_use]
pub fn is_of(source: &Source, medium: Medium) -> bool {
    source.stream.strip_prefix(medium.name()).is_some_and(|rest| rest.starts_with(':'))
}
