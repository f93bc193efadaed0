//! Handles participants' RTCP: forwards senders' reports to their receivers and requests to the sender that they name, and turns estimates
//! into levels.
//!
//! Nothing waits here: output follows its input in the same call.

use super::{Book, Count, Decision, LegKey, Level, Room, Timer, Turn};
use crate::adaptation::{Decision as Adapted, Feedback, Medium, OWN_SSRC, Streams};
use crate::jobs::Job;
use crate::membership::{Conference, MembershipError, Pair, STREAMS, TARGETS, stream_name, stream_of};
use crate::packets::Told;
use crate::payload_types;
use crate::policy::Stepwise;
use crate::reports::{Request, for_receivers, requests};
use crate::tables::{Name, Source};
use shunt_admin_model::{Estimate, Failure, FailureKind};
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How long a receiver with a lowered level stays in its former trees, until its sequence numbers have switched over.
const HELD: Duration = Duration::from_secs(1);

/// The streams of a conference, as the adaptation sees them.
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

/// Returns whether a receiver is to get a medium of a sender, considering its quality and the mixers' streams.
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

impl Book {
    /// Handles RTCP at a relay address. RTCP from sources other than the leg's media source is dropped.
    pub fn rtcp(&mut self, turn: &mut Turn, port: u16, from: Endpoint, data: &[u8]) {
        let relay = port & !1;
        let Some(place) = self.at.get(&relay).cloned() else { return };
        let me = &place.participant;
        if self.listener(turn, port, from) {
            turn.touch(&place.conference);
        }
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return;
        };
        let source = room.leg(me, place.leg).and_then(|leg| leg.source);
        if source.is_none_or(|source| source.addr != from.addr) {
            turn.count(Count::RtcpRefused);
            return;
        }
        if rtcp::classify(data).is_err() {
            turn.count(Count::RtcpRefused);
            return;
        }
        turn.count(Count::RtcpTaken);
        let muxed = port == relay;
        let mut remuxed = false;
        if let Some(leg) = room.leg_mut(me, place.leg) {
            leg.rtcp = Some(from);
            remuxed = leg.muxed != muxed;
            leg.muxed = muxed;
        }
        let present = room.conference.participants.iter().filter(|one| one.is_present()).count();
        if present <= 2 && room.conference.levels.is_empty() {
            for other in room.conference.participants.iter().filter(|one| one.name != *me) {
                // Reports about the participant's own stream go to its receivers; reports about another's stream go to that sender.
                let brings = other
                    .leg_for(me, place.leg.0)
                    .filter(|leg| place.leg.1 == 0 && leg.source.is_some());
                let sends = other.leg(place.leg.0);
                let sends = sends.filter(|sends| brings.is_none_or(|brings| brings.source != sends.source));
                for leg in brings.into_iter().chain(sends) {
                    turn.send_rtcp(leg, data);
                }
            }
        } else {
            room.share(turn, me, place.leg, data);
        }
        if remuxed {
            turn.touch(&place.conference);
        }
    }

    /// Latches a receive-only participant by its RTCP, if signalling names the source address.
    fn listener(&mut self, turn: &mut Turn, port: u16, from: Endpoint) -> bool {
        let relay = port & !1;
        let Some(place) = self.at.get(&relay).cloned() else { return false };
        let Some(room) = self.rooms.get_mut(&place.conference) else {
            return false;
        };
        let Some(leg) = room.leg(&place.participant, place.leg) else {
            return false;
        };
        if leg.source.is_some()
            || leg.sends
            || !leg.signalled.contains(&from.addr)
            || room.members.get(&place.participant).is_none_or(|one| one.ice.is_some())
        {
            return false;
        }
        let muxed = port == relay;
        let Some(media) = (if muxed { Some(from.port) } else { from.port.checked_sub(1) }) else {
            return false;
        };
        let source = Endpoint::new(from.addr, media);
        room.set_source(&place.participant, place.leg, Some(source), turn.now);
        if let Some(leg) = room.leg_mut(&place.participant, place.leg) {
            leg.latch.adopt(turn.now, source, None);
        }
        turn.tell_source(&place, Some(source));
        room.serve_listening(turn, &place.participant);
        turn.keep(&room.conference.name);
        true
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, turn: &mut Turn) {
        let now = turn.now;
        while let Some((at, timer)) = self.timers.first().cloned().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer.clone()));
            match timer {
                Timer::Again(name) => turn.touch(&name),
                Timer::LetGo(name, pair, medium) => {
                    let gone = self
                        .rooms
                        .get_mut(&name)
                        .is_some_and(|room| room.conference.let_go(&pair.0, &pair.1, medium));
                    if gone {
                        turn.touch(&name);
                    }
                }
                Timer::KeyFrame(name, sender, medium) => {
                    let Some(room) = self.rooms.get_mut(&name) else { continue };
                    let frames = room.key_frames.get_mut(&(sender.clone(), medium));
                    if frames.is_some_and(|frames| frames.due(now)) {
                        room.ask_key_frame(turn, &sender, medium);
                    }
                }
            }
        }
    }

    /// Every second: retries paused streams and expires external decisions. `observed`: a policy follows the estimates.
    pub(super) fn try_levels(&mut self, turn: &mut Turn, observed: bool) {
        let now = turn.now;
        for room in self.rooms.values_mut() {
            room.decided.retain(|_, decided| decided.until.is_none_or(|until| until > now));
            room.adaptation.observed = observed;
            let streams = RoomStreams {
                conference: &room.conference,
                rates: &room.rates,
            };
            let decisions = room.adaptation.tick(&streams, now);
            for decision in decisions {
                room.decide(turn, decision);
            }
        }
    }

    /// Requests a key frame of streams whose template structure is unknown, if a receiver is to get fewer layers.
    pub fn want_structures(&mut self, turn: &mut Turn) {
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
            self.want_key_frame(turn, &conference, &sender, medium);
        }
    }

    /// Requests a key frame of a sender.
    pub fn want_key_frame(&mut self, turn: &mut Turn, conference: &Name, sender: &Name, medium: Medium) {
        if let Some(room) = self.rooms.get_mut(conference) {
            room.want_key_frame(turn, sender, medium);
        }
    }

    /// Checks whether a receiver can get fewer layers of a sender's medium.
    ///
    /// # Errors
    /// The reason why the data plane cannot drop layers.
    pub(super) fn may_be_less(&self, room: &Room, pair: &Pair, medium: Medium, level: usize) -> Result<(), Failure> {
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
}

impl Room {
    fn ask_key_frame(&self, turn: &mut Turn, sender: &Name, medium: Medium) {
        let Some(leg) = self.leg(sender, (medium, 0)).filter(|leg| leg.source.is_some()) else {
            return;
        };
        for ssrc in leg.ssrcs.iter().filter(|ssrc| !leg.repair.contains(ssrc)) {
            turn.count(Count::KeyFrameAsked);
            turn.send_rtcp(leg, &rtcp::pli(OWN_SSRC, *ssrc));
        }
    }

    /// Distributes RTCP of a participant in a conference of more than two.
    fn share(&mut self, turn: &mut Turn, me: &Name, key: LegKey, data: &[u8]) {
        let medium = key.0;
        if self.conference.mixer(Job::Mixes).is_some_and(|mixer| mixer.name == *me) {
            self.share_mixes(turn, data);
        } else {
            let carried = |ssrc: u32| self.conference.conflict(me, medium, ssrc).is_none();
            if let Ok(reports) = for_receivers(data, carried)
                && !reports.is_empty()
            {
                let sender = self.conference.get(me);
                for other in self.conference.participants.iter().filter(|one| one.name != *me) {
                    if let Some(sender) = sender.filter(|_| permits(&self.conference, me, &other.name, medium)) {
                        for leg in Self::legs_for(other, sender, medium) {
                            turn.send_rtcp(leg, &reports);
                        }
                    }
                }
            }
            if medium == Medium::Audio {
                self.report_mix(turn, me, data);
            }
        }
        let mut streams: Vec<(u32, Name)> = Vec::new();
        let mine = self.conference.get(me);
        let mine_is_no_mixer = mine.is_none_or(|mine| mine.mixer.is_none());
        for other in self.conference.participants.iter().filter(|one| one.name != *me) {
            let this = mine.and_then(|mine| mine.legs.get(&key)).map(|leg| leg.relay);
            let is_brought = |ssrc: u32| {
                let brings = mine.and_then(|mine| mine.leg_for_stream(&other.name, medium, ssrc));
                brings.map(|leg| leg.relay) == this
            };
            let Some(leg) = other.leg(medium).filter(|leg| leg.source.is_some()) else {
                continue;
            };
            if permits(&self.conference, &other.name, me, medium) {
                let carried = leg
                    .ssrcs
                    .iter()
                    .filter(|ssrc| is_brought(**ssrc) && self.conference.conflict(&other.name, medium, **ssrc).is_none());
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
            conference: &self.conference,
            rates: &self.rates,
        };
        if let Ok(decisions) = self.adaptation.take(&feedback, &known, &Stepwise, turn.now) {
            for decision in decisions {
                // Mixers always get everything, because a mixer could not tell its receivers that it gets less.
                let is_told = matches!(decision, Adapted::Forward { .. } | Adapted::Downlink { .. });
                if is_told || mine_is_no_mixer {
                    self.decide(turn, decision);
                }
            }
        }
        for request in requests(data).unwrap_or_default() {
            let (Request::Nack { ssrc, .. } | Request::KeyFrame { ssrc }) = &request;
            let Some((_, sender)) = streams.iter().find(|(one, _)| one == ssrc) else {
                continue;
            };
            match &request {
                Request::Nack { ssrc, lost } => self.nack(turn, me, sender, medium, *ssrc, lost),
                Request::KeyFrame { .. } => self.want_key_frame(turn, sender, medium),
            }
        }
    }

    pub fn decide(&mut self, turn: &mut Turn, decision: Adapted) {
        match decision {
            Adapted::Forward { sender, medium, packet } => {
                if let Some(leg) = self.leg(&sender, (medium, 0)) {
                    turn.send_rtcp(leg, &packet);
                }
            }
            Adapted::Level {
                sender,
                medium,
                receiver,
                before,
                level,
                estimate,
            } => {
                let pair = (sender, receiver);
                if self.decided.contains_key(&pair) {
                    return;
                }
                if let Err(error) = self.set_level(turn, &pair, medium, level) {
                    turn.log(Level::Debug, format!("conference {}: {error}", self.conference.name));
                    return;
                }
                let more = [("sender", pair.0.to_string()), ("receiver", pair.1.to_string())];
                turn.tell(&self.conference.name, "target", None, Some(medium), |facts| {
                    facts.extend(more.map(|(name, text)| (name.to_owned(), text.into())));
                    facts.insert("before".into(), before.into());
                    facts.insert("level".into(), level.into());
                    facts.insert("estimate_bits_per_s".into(), (estimate.max(0.0) as u64).into());
                });
            }
            Adapted::KeyFrame { sender, medium } => self.want_key_frame(turn, &sender, medium),
            Adapted::Downlink {
                sender, medium, receiver, ..
            } => {
                turn.tell(&self.conference.name, "downlink", Some(&sender), Some(medium), |facts| {
                    facts.insert("receiver".into(), receiver.map(|name| name.to_string()).into());
                });
            }
            Adapted::Estimated {
                sender,
                medium,
                receiver,
                estimate,
                remb,
                lost,
            } => self.estimated(turn, &sender, medium, &receiver, estimate, remb, lost),
            Adapted::PolicyFailed { sender, receiver, reason } => {
                let name = &self.conference.name;
                turn.log(
                    Level::Warn,
                    format!("conference {name}: the policy for {receiver} of {sender}: {reason}"),
                );
            }
        }
    }

    pub fn set_level(&mut self, turn: &mut Turn, pair: &Pair, medium: Medium, level: usize) -> Result<(), MembershipError> {
        let key = (pair.clone(), medium);
        let before = self.conference.levels.get(&key).copied().unwrap_or(TARGETS);
        self.conference.set_level(&pair.0, &pair.1, medium, level)?;
        if level == before {
            return Ok(());
        }
        if self.conference.held.contains_key(&key) {
            let timer = Timer::LetGo(self.conference.name.clone(), pair.clone(), medium);
            turn.later(turn.now + HELD, timer);
        }
        if level > 0 {
            // A receiver that was paused, and had the sender's numbers before, starts with its new target.
            let from = before.checked_sub(1).unwrap_or(level - 1);
            let change = (pair.clone(), medium, from, level - 1);
            self.retargets.push(change);
        }
        turn.write(&self.conference.name);
        turn.keep(&self.conference.name);
        Ok(())
    }

    /// Requests a key frame, at once or when the last request is old enough. Requests of several receivers are merged.
    pub fn want_key_frame(&mut self, turn: &mut Turn, sender: &Name, medium: Medium) {
        let frames = self.key_frames.entry((sender.clone(), medium)).or_default();
        turn.count(Count::KeyFrameWanted);
        let held = frames.due_at().is_some();
        if frames.wanted(turn.now) {
            self.ask_key_frame(turn, sender, medium);
        } else if let (false, Some(due)) = (held, frames.due_at()) {
            let timer = Timer::KeyFrame(self.conference.name.clone(), sender.clone(), medium);
            turn.later(due, timer);
        }
    }

    /// Handles a NACK: retransmits from the cache to this receiver only. If the stream has no cache, one is made.
    fn nack(&mut self, turn: &mut Turn, me: &Name, sender: &Name, medium: Medium, ssrc: u32, lost: &[u16]) {
        turn.count(Count::Nack);
        let source = Source {
            conference: self.conference.name.clone(),
            sender: sender.clone(),
            stream: stream_name(medium, ssrc),
        };
        self.nacked.insert(source.clone(), turn.now);
        let answer = match self.caches.get_mut(&source) {
            Some(cache) => cache.nack(me, lost.iter().copied(), turn.now),
            // The mapping of the receiver's own numbers to packets is unknown, so the receiver gets a key frame.
            None if self.conference.target(sender, me, medium).is_some() => {
                self.want_key_frame(turn, sender, medium);
                return;
            }
            None => crate::repair::Answer {
                ask: lost.to_vec(),
                ..Default::default()
            },
        };
        if let Some(leg) = self.conference.get(me).and_then(|me| me.leg_for_stream(sender, medium, ssrc))
            && let Some(to) = leg.source
        {
            let from = leg.relay;
            let types = self.conference.payload_types(sender, me, medium).rewritten;
            for mut packet in answer.packets {
                turn.count(Count::Retransmitted);
                payload_types::rewrite(&mut packet, &types);
                turn.decide(Decision::Send { from, to, data: packet });
            }
        }
        if let (false, Some(leg)) = (answer.ask.is_empty(), self.leg(sender, (medium, 0)))
            && let Ok(packet) = rtcp::nack(OWN_SSRC, ssrc, answer.ask)
        {
            turn.send_rtcp(leg, &packet);
        }
        if answer.key_frame {
            self.want_key_frame(turn, sender, medium);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn estimated(
        &self,
        turn: &mut Turn,
        sender: &Name,
        medium: Medium,
        receiver: &Name,
        estimate: f64,
        remb: Option<f64>,
        lost: Option<f64>,
    ) {
        let bits = |rate: f64| rate.max(0.0) as u64;
        let pair = (sender.clone(), receiver.clone());
        let level = self.conference.levels.get(&(pair, medium)).copied().unwrap_or(TARGETS);
        let rates = self.rates.get(&(sender.clone(), medium));
        turn.decide(Decision::Estimated(Box::new(Estimate {
            conference: self.conference.name.as_bytes().into(),
            sender: sender.as_bytes().into(),
            receiver: receiver.as_bytes().into(),
            medium: medium.name().to_owned(),
            estimate_bits_per_s: bits(estimate),
            remb_bits_per_s: remb.map(bits),
            fraction_lost: lost,
            targets_bits_per_s: rates.map(|rates| rates.iter().copied().map(bits).collect()).unwrap_or_default(),
            target: level.checked_sub(1).and_then(|target| u8::try_from(target).ok()),
        })));
    }
}

/// Returns whether a stream belongs to a medium.
#[must_use]
pub fn is_of(source: &Source, medium: Medium) -> bool {
    source.stream.strip_prefix(medium.name()).is_some_and(|rest| rest.starts_with(':'))
}
