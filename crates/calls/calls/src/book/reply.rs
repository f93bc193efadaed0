//! Replies of the relay to commands.

use super::Book;
use super::command::{described, hold_of, signalled};
use crate::call::Call;
use crate::decision::{Decision, Happening};
use crate::hold::{Hold, Holder};
use crate::ids::{LineId, RelayId, Side};
use crate::leg::{Offered, next_port};
use crate::line::{Line, Notification};
use crate::reason::Reason;
use crate::record::CallNumber;
use crate::sdp::Sdp;
use shunt_latch::{Component, Name, Names, Time};
use shunt_net::Endpoint;
use shunt_rtpproxy::{
    Command, Media, PortReply, PortsReply, Reply, Request, Session, StreamVerb, Subcommand, Symmetry, keepalive_modifiers,
};
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;

/// A relay gave out a port that another call holds: the relay has restarted since and lost its sessions. The caller can request another
/// port ([`shunt_rtpproxy::with_new_port`]); the book is as if the reply had not arrived.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the relay gave out {port}, which another call holds")]
pub struct PortHeld {
    pub port: Endpoint,
    /// Part of the reply, counted from 0.
    pub part: usize,
    /// Call-ID of the holder; `None` where only the data plane still has an entry for the port.
    pub holder: Option<Arc<[u8]>>,
}

impl Book {
    /// Handles the relay's reply to a command (`None`: no reply). `peer`: the sender of the command, for `%%CC_SELF%%`.
    ///
    /// # Errors
    /// The relay gave out a port that another call holds.
    pub fn replied(
        &mut self,
        now: Time,
        peer: Option<IpAddr>,
        relay: RelayId,
        command: &Command,
        reply: Option<&[u8]>,
    ) -> Result<Vec<Decision>, PortHeld> {
        match &command.request {
            Request::Update(media) => self.media_replied(now, peer, relay, command, media, true, reply)?,
            Request::Lookup(media) => self.media_replied(now, peer, relay, command, media, false, reply)?,
            Request::Query(_) => {
                let refused = reply.is_some_and(|reply| Reply::new(reply).error().is_some());
                self.steps_done(now, command, reply, refused);
            }
            Request::Stream(verb, session) => {
                let failed = reply.map(|reply| Reply::new(reply).error().is_some());
                for id in self.matching(session) {
                    self.with(id, |book, line| {
                        stream_replied(line, command, *verb, session, failed);
                        book.mark(line);
                        book.sync(line, now);
                    });
                }
            }
            _ => {}
        }
        Ok(self.take())
    }

    #[allow(clippy::too_many_arguments)]
    fn media_replied(
        &mut self,
        now: Time,
        peer: Option<IpAddr>,
        relay: RelayId,
        command: &Command,
        media: &Media,
        is_update: bool,
        reply: Option<&[u8]>,
    ) -> Result<(), PortHeld> {
        let answer = (1..).zip(command.steps()).find_map(answer_of);
        let asked = answer.iter().map(|(number, media)| (*number, &**media, false));
        let parts = reply.and_then(|reply| Reply::new(reply).ports().ok()).unwrap_or_default();
        let mut applied = Vec::new();
        for (number, media, is_update) in std::iter::once((0, media, is_update)).chain(asked) {
            let Some(PortsReply::Port(port)) = parts.get(number) else {
                continue;
            };
            let offered = applied.first().map(|(_, _, port): &(_, _, Endpoint)| port.addr);
            let Some(port) = self.locate(relay, media, is_update, port, offered) else {
                continue;
            };
            self.check_port(media.session.call_id, port, number)?;
            applied.push((media, is_update, port));
        }
        let refused = applied.is_empty();
        if refused && let Some((id, _)) = self.find(&media.session) {
            self.with(id, |book, line| book.unchanged(line, now));
        }
        for (media, is_update, port) in applied {
            let Some(id) = self.line_for(now, relay, media, is_update) else {
                continue;
            };
            let swapped = self.find(&media.session).is_some_and(|(_, swapped)| swapped);
            let side = described(is_update, swapped);
            self.with(id, |book, line| {
                book.apply(line, peer, command, media, side, swapped, is_update, port, now);
            });
        }
        self.steps_done(now, command, reply, refused);
        Ok(())
    }

    /// Undoes a change that the relay rejected.
    pub(super) fn unchanged(&mut self, line: &mut Line, now: Time) {
        self.resume(line, now);
    }

    /// The relay's address and port in a reply. A wildcard address, or none, stands for that of the call's other media lines towards the same
    /// party, else for the configured one. `offered`: the address that the same reply has given for the U of this L.
    fn locate(&self, relay: RelayId, media: &Media, is_update: bool, port: &PortReply, offered: Option<IpAddr>) -> Option<Endpoint> {
        if port.port == 0 {
            return None;
        }
        if let Some(endpoint) = port.endpoint() {
            let relay = self.relay(relay)?;
            return Some(Endpoint::new(relay.arrival(endpoint.addr), endpoint.port));
        }
        let v6 = self.is_v6(media, is_update, port, offered);
        let fits = |addr: &IpAddr| v6.is_none_or(|v6| addr.is_ipv6() == v6);
        let sibling = self.sibling_address(media, is_update).filter(fits);
        let addresses = &self.relay(relay)?.addresses;
        let addr = sibling.or_else(|| addresses.iter().copied().find(fits))?;
        Some(Endpoint::new(addr, port.port))
    }

    /// Whether a port without a usable address is one of IPv6; `None` where nothing tells.
    ///
    /// rtpproxy on wildcard addresses replies with the port alone. It listens for both parties in the IP version of the first U. If the L
    /// has an IPv6 address (modifier 6), it listens in IPv6 for the party that the L answers.
    fn is_v6(&self, media: &Media, is_update: bool, port: &PortReply, offered: Option<IpAddr>) -> Option<bool> {
        if let Some(addr) = port.address {
            return Some(addr.is_ipv6());
        }
        if port.family == Some(6) || media.flags.ipv6 {
            return Some(true);
        }
        let known = self.find(&media.session).and_then(|(id, swapped)| {
            let (line, side) = (self.lines.get(&id)?, described(is_update, swapped));
            line.leg(side.other()).relay.or(line.leg(side).relay)
        });
        let is_v6 = offered.or(known.map(|relay| relay.addr)).map(|addr| addr.is_ipv6());
        is_v6.or((is_update && media.flags.directions.is_empty()).then_some(false))
    }

    fn sibling_address(&self, media: &Media, is_update: bool) -> Option<IpAddr> {
        let call = self.calls.get(media.session.call_id)?;
        let tags = [Some((media.session.from.name, false)), media.session.to.map(|to| (to.name, true))];
        tags.into_iter().flatten().find_map(|(tag, swapped)| {
            let side = described(is_update, swapped).other();
            call.of_tag(tag)
                .find_map(|(_, id)| self.lines.get(&id)?.leg(side).relay)
                .map(|relay| relay.addr)
        })
    }

    fn check_port(&self, call_id: &[u8], port: Endpoint, part: usize) -> Result<(), PortHeld> {
        for port in [Some(port), next_port(port)].into_iter().flatten() {
            let slot = self.table.stream_at(port).and_then(|stream| self.lines.get(&stream.line));
            if let Some(line) = slot.filter(|line| *line.call != *call_id) {
                return Err(PortHeld {
                    port,
                    part,
                    holder: Some(Arc::clone(&line.call)),
                });
            }
            if slot.is_none() && self.orphans.contains_key(&port) {
                return Err(PortHeld { port, part, holder: None });
            }
        }
        Ok(())
    }

    /// Returns the line of a successful U or L; a U creates it.
    fn line_for(&mut self, now: Time, relay: RelayId, media: &Media, is_update: bool) -> Option<LineId> {
        if let Some((id, _)) = self.find(&media.session) {
            return Some(id);
        }
        if !is_update {
            return None;
        }
        let session = &media.session;
        self.ended.forget_session(session.call_id, session.from.name, session.from.media);
        self.last_line += 1;
        let id = LineId(self.last_line);
        let tag: Arc<[u8]> = session.from.name.into();
        let call = self.enter(session.call_id, Arc::clone(&tag), session.from.media, id, now);
        let line = Line::new(id, call, tag, session.from.media, relay, now);
        self.count_line(&line, true);
        self.lines.insert(line);
        Some(id)
    }

    /// Adds a line to the index of Call-IDs.
    pub(super) fn enter(
        &mut self,
        call_id: &[u8],
        tag: Arc<[u8]>,
        media: Option<u32>,
        id: LineId,
        created: Time,
    ) -> (Arc<[u8]>, CallNumber) {
        let key = match self.calls.get_key_value(call_id) {
            Some((key, _)) => Arc::clone(key),
            None => {
                let key: Arc<[u8]> = call_id.into();
                if let Some(stem) = super::sip::stem(call_id) {
                    self.branches.entry(stem.into()).or_default().insert(Arc::clone(&key));
                }
                key
            }
        };
        let call = self
            .calls
            .entry(Arc::clone(&key))
            .or_insert_with(|| Call::new(self.records.begin(Arc::clone(&key), created)));
        call.enter(tag, media, id);
        self.records.line_begins(call.number, created);
        (key, call.number)
    }

    #[allow(clippy::too_many_arguments)]
    fn apply(
        &mut self,
        line: &mut Line,
        peer: Option<IpAddr>,
        command: &Command,
        media: &Media,
        side: Side,
        swapped: bool,
        is_update: bool,
        port: Endpoint,
        now: Time,
    ) {
        let answered = line.is_answered();
        let fresh = !line.has_claims();
        self.place(line, side.other(), port, now);
        line.last_activity = now;
        if is_update {
            line.strong |= !media.flags.weak;
        }
        line.weak[side.index()] |= media.flags.weak;
        let address = signalled(media);
        self.set_notification(line, media, peer, is_update, fresh, address.is_some());
        let other = if swapped {
            Some(media.session.from.name)
        } else {
            media.session.to.map(|to| to.name)
        };
        if let Some(tag) = other.filter(|tag| !tag.is_empty() && **tag != *line.tag) {
            let branch = line.enter_branch(tag, now);
            if side == Side::Callee && address.is_some() {
                branch.signalled = address;
                branch.modifiers = self.modifiers.shared(media_modifiers(command, media));
            }
        }
        if let Some(signalled) = address {
            let offer = Offered {
                signalled,
                modifiers: self.modifiers.shared(command.modifiers),
                keepalive: self.modifiers.shared(keepalive_modifiers(command)),
                asymmetric: self.is_asymmetric(line.relay, media),
            };
            let leg = line.leg_mut(side);
            if is_update && answered {
                // Until the answer, the party's address is the former one; it may be the new one already.
                let differs = leg.signalled != Some(signalled) || leg.modifiers != offer.modifiers;
                leg.offered = differs.then(|| Box::new(offer));
            } else {
                self.agree(line, side, offer, now);
            }
        }
        if !is_update && let Some(offer) = line.leg_mut(side.other()).offered.take() {
            self.agree(line, side.other(), *offer, now);
        }
        for side in Side::BOTH {
            self.name_leg(line, side, now);
        }
        // U and L each request it for their own party's stream.
        let resize = Hold::new(Reason::Resize, "Z", Holder::Side(side));
        if media.flags.resize.is_some() {
            line.holds.confirm(resize, None);
        } else {
            line.holds.end(|hold| *hold == resize);
        }
        if command.steps().any(|step| step == Subcommand::Module) {
            line.holds.confirm(Hold::new(Reason::Dtmf, "&& M", Holder::Side(side)), None);
        }
        if let Some(ttl) = media.flags.ttl.and_then(|ttl| u32::try_from(ttl).ok()) {
            self.set_ttl(line, ttl, now);
        }
        if !answered && line.is_answered() {
            for side in Side::BOTH {
                line.leg_mut(side).rtp.answer_seen(now);
                line.leg_mut(side).rtcp.answer_seen(now);
            }
        }
        self.mark(line);
        if line.leg(side).offered.is_some() {
            return self.await_answer(line, now);
        }
        // An offer or answer shows that the call continues, also after a CANCEL of one branch.
        self.resume(line, now);
    }

    /// Applies an agreed description of a party: a party that has moved is learned anew.
    fn agree(&mut self, line: &mut Line, side: Side, offer: Offered, now: Time) {
        let policy = self.learner.policy;
        let leg = line.leg_mut(side);
        if leg.agree(offer) {
            leg.was_at = None;
            leg.forget(now, &policy, true);
        }
    }

    fn set_notification(&mut self, line: &mut Line, media: &Media, peer: Option<IpAddr>, is_update: bool, fresh: bool, has_address: bool) {
        if let Some((socket, tag)) = media.notify.and_then(|notify| Some((notify.socket, notify.tag?))) {
            line.notification = Some(Box::new(Notification {
                socket: socket.into(),
                tag: tag.into(),
                peer,
            }));
        } else if is_update && !fresh && has_address {
            // A repeated offer without notify arguments cancels the notification, as in rtpproxy.
            line.notification = None;
        }
    }

    fn is_asymmetric(&self, relay: RelayId, media: &Media) -> bool {
        let bridged = !media.flags.directions.is_empty() && media.flags.symmetry.is_none();
        let latches = self.relay(relay).is_some_and(|relay| relay.symmetric_bridging);
        media.flags.symmetry == Some(Symmetry::Asymmetric) || (bridged && !latches)
    }

    /// Gives a leg's latches the addresses that commands and copies of SIP name. Returns whether any is new.
    pub(super) fn name_leg(&mut self, line: &mut Line, side: Side, now: Time) -> bool {
        let (mut known, facts) = self.sighted_of(line, side);
        if known.is_empty() {
            known = line.leg(side).addresses().collect();
        }
        // rtpengine's description shows the result of an offer of rtcp-mux.
        let described = self.is_rtpengine(line.relay);
        let leg = line.leg_mut(side);
        let before = (leg.muxes, leg.signalled_rtcp, leg.sdp.take());
        if let (false, Some(facts)) = (described, &facts) {
            (leg.muxes, leg.signalled_rtcp) = (facts.muxes, facts.rtcp);
        }
        let signalled = leg.signalled;
        leg.sdp = facts.map(|facts| facts.line).or_else(|| before.2.clone());
        let sdp = leg.sdp.as_ref().and_then(Sdp::rtp);
        let mut news = before.0 != leg.muxes || before.1 != leg.signalled_rtcp || before.2 != leg.sdp;
        let (offered, was_at) = (leg.offered.as_ref().map(|offer| offer.signalled), leg.was_at);
        let of = |ends: [Option<Endpoint>; 3]| -> Names {
            let addresses = known.iter().copied().chain(was_at).map(Name::address);
            addresses.chain(ends.into_iter().flatten().map(Name::from)).collect()
        };
        let rtp = self.learner.nameable(of([sdp, offered, signalled]));
        let rtcp = self.learner.nameable(of([
            line.leg(side).signalled_rtcp.or_else(|| next_port(sdp?)),
            offered.and_then(next_port),
            signalled.and_then(next_port),
        ]));
        let addresses: Vec<IpAddr> = rtp.iter().map(|name| name.addr).collect();
        let leg = line.leg_mut(side);
        if *leg.rtp.names() != rtp {
            news = true;
            leg.rtp.signal(now, rtp);
            leg.rtcp.signal(now, rtcp);
            if let Some(learned) = leg.latch(Component::Rtp).learned() {
                leg.rtcp.add_name(Name::address(learned.addr));
            }
        }
        for addr in addresses {
            news |= self.join(line, side, addr);
        }
        news
    }

    /// Resumes learning and offloading after signalling has completed.
    pub(super) fn resume(&mut self, line: &mut Line, now: Time) {
        if line.suspended.take().is_some() {
            self.tell(line, Happening::Resumed);
        }
        line.resume_at = None;
        self.sync(line, now);
    }
}

/// Handles the relay's reply to a command on one stream; `failed` is `None` if there was no reply.
fn stream_replied(line: &mut Line, command: &Command, verb: StreamVerb, session: &Session, failed: Option<bool>) {
    let first = line.first_of(session);
    let hold = hold_of(verb, command, first);
    let is_of = |hold: &Hold, reason| hold.reason == reason && hold.holder == Holder::Side(first);
    match (verb, failed) {
        (StreamVerb::Play | StreamVerb::Record | StreamVerb::Copy, Some(true)) => line.holds.refuse(&hold),
        (StreamVerb::Record | StreamVerb::Copy, _) if line.holds.has_record(first) => {}
        (StreamVerb::Play | StreamVerb::Record | StreamVerb::Copy, _) => line.holds.confirm(hold, None),
        (StreamVerb::StopPlaying, Some(false)) => line.holds.end(|hold| is_of(hold, Reason::Playback)),
        (StreamVerb::StopRecording, Some(false)) => {
            // The relay has one record per stream, begun by R or C. Modifier a ends the records of both parties.
            let every = command.has_modifier(b'a');
            line.holds.end(|hold| {
                [Reason::Recording, Reason::Copy]
                    .into_iter()
                    .any(|reason| is_of(hold, reason) || (every && hold.reason == reason))
            });
        }
        _ => {}
    }
}

/// Returns the L among the sub-commands, and the part of the reply that answers it.
fn answer_of<'a>((part, step): (usize, Subcommand<'a>)) -> Option<(usize, Box<Media<'a>>)> {
    match step {
        Subcommand::Lookup(media) => Some((part, media)),
        _ => None,
    }
}

/// Returns the modifiers of the part of a command that names this media address.
fn media_modifiers(command: &Command, media: &Media) -> Vec<u8> {
    let own = command.media().is_some_and(|own| std::ptr::eq(own.address, media.address));
    if own { keepalive_modifiers(command) } else { Vec::new() }
}
