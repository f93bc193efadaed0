//! NG: what commands for rtpengine change, and what rtpengine reports about a call.
//!
//! A command is passed on byte for byte. First the entries of whatever it may change are removed. After an offer or answer the agent sends
//! `query` to rtpengine, and [`Book::ng_described`] applies the reply. So rtpengine decides which ports a party has and what happens to the
//! media.

use super::Book;
use super::timers::RelayCount;
use crate::decision::Decision;
use crate::entry::Counters;
use crate::hold::{Hold, Holder, Holds};
use crate::ids::{COMPONENTS, LineId, RelayId, Side, WriteId};
use crate::leg::next_port;
use crate::limits::Refusal;
use crate::line::{Branch, Line};
use crate::reason::Reason;
use shunt_hep::sip::Sdp;
use shunt_latch::{Component, Time};
use shunt_net::{Endpoint, FiveTuple};
use shunt_ng::{
    All, CallDescription, Cause, Command, Effect, LineDescription, MediaFlags, Needs, PartyDescription, RelayReason, Reply, ReplyResult,
    Verb, Whom, describe,
};
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A played file ends this long after its duration.
const PLAYED_AFTER: Duration = Duration::from_millis(500);
/// The option of an offer or answer that `stop recording` ends.
const RECORD_CALL: &str = "record-call";
const CALL_ID: &[u8] = b"call-id";

/// What to do with a command: pass it to this relay (`None`: no relay has the call, or the agent does not know it) after these writes have
/// completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    pub relay: Option<RelayId>,
    pub wait: Vec<WriteId>,
}

/// What to do after the reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Nothing,
    /// Query the call at the relay, for [`Book::ng_described`].
    Describe,
    /// Query the relay for the receivers of the call's media, for [`Book::ng_copies_described`].
    DescribeCopies,
}

impl Book {
    /// Returns the relay that has a call.
    #[must_use]
    pub fn relay_of_call(&self, call_id: &[u8]) -> Option<RelayId> {
        let call = self.calls.get(call_id)?;
        self.lines.get(&call.ids().next()?).map(|line| line.relay)
    }

    /// Returns whether a line of a call has no answer yet.
    #[must_use]
    pub fn lacks_answer(&self, call_id: &[u8]) -> bool {
        let lines = self.calls.get(call_id).into_iter().flat_map(|call| call.ids());
        lines.filter_map(|id| self.lines.get(&id)).any(|line| !line.is_answered())
    }

    /// Handles an NG command before the relay gets it.
    ///
    /// # Errors
    /// A limit rejects a new call.
    pub fn ng_command(&mut self, now: Time, command: &Command) -> (Result<Foreseen, Refusal>, Vec<Decision>) {
        let Some(call_id) = command.call_id.as_deref() else {
            return (Ok(Foreseen::default()), Vec::new());
        };
        let mut wait = Vec::new();
        match command.effect() {
            Effect::Negotiates => {
                if let Err(refusal) = self.negotiates(now, call_id, command, &mut wait) {
                    return (Err(refusal), self.take());
                }
            }
            Effect::Blocks(_) | Effect::Subscribes => {
                for id in self.lines_concerned(command) {
                    self.with(id, |book, line| {
                        line.holds.begin(hold_of(command));
                        book.mark(line);
                        book.sync(line, now);
                        book.pending_deletes(line, &mut wait);
                    });
                }
            }
            Effect::Ends => {
                // The reply has counts, and the entries' final counters are known only after their removal.
                let counts = command.from_tag.as_deref().is_some_and(|tag| !tag.is_empty());
                for id in self.ended_by(call_id, command) {
                    self.with(id, |book, line| {
                        book.suspend(line, Reason::ByeSeen, Some(now + book.settings.bye_grace));
                        book.sync(line, now);
                        if counts {
                            book.pending_deletes(line, &mut wait);
                        }
                    });
                }
            }
            Effect::None | Effect::Unblocks(_) => {}
        }
        let relay = self.relay_of_call(call_id);
        (Ok(Foreseen { relay, wait }), self.take())
    }

    /// Handles the relay's reply to a command (`None`: it did not reply).
    pub fn ng_replied(&mut self, now: Time, relay: RelayId, command: &Command, reply: Option<&Reply>) -> (After, Vec<Decision>) {
        let Some(call_id) = command.call_id.as_deref() else {
            return (After::Nothing, Vec::new());
        };
        let succeeded = reply.is_some_and(Reply::is_ok);
        let mut after = After::Nothing;
        match command.effect() {
            Effect::Negotiates => match reply.filter(|_| succeeded) {
                Some(reply) => after = self.negotiated(now, relay, call_id, command, reply),
                None => {
                    for id in self.lines_named(call_id) {
                        self.with(id, |book, line| book.unchanged(line, now));
                    }
                }
            },
            Effect::Blocks(_) | Effect::Subscribes => {
                self.begun(now, command, reply);
                after = self.after_subscription(call_id, command);
            }
            Effect::Unblocks(cause) if succeeded => {
                self.change_holds(now, command, |holds| holds.end(|hold| is_ended_by(hold, cause, command)));
                after = self.after_subscription(call_id, command);
            }
            Effect::Ends => {
                for id in self.ended_by(call_id, command) {
                    self.with(id, |_, line| keep_ended_branches(line, command));
                    self.release(id, Reason::Released, now);
                }
                if command.to_tag.is_some() || command.via_branch.is_some() {
                    // Other branches of the fork may remain.
                    after = After::Describe;
                }
            }
            Effect::None | Effect::Unblocks(_) => {}
        }
        (after, self.take())
    }

    /// Applies the relay's description of a call to its lines. Adopts a call that the agent does not know.
    pub fn ng_described(&mut self, now: Time, relay: RelayId, call_id: &[u8], description: &CallDescription) -> Vec<Decision> {
        self.described(now, relay, call_id, description, |_| true)
    }

    /// Does the same after a subscription began or ended. If an offer has arrived meanwhile, the suspended line waits for the description
    /// that follows the answer.
    pub fn ng_copies_described(&mut self, now: Time, relay: RelayId, call_id: &[u8], description: &CallDescription) -> Vec<Decision> {
        self.described(now, relay, call_id, description, |line| line.suspended.is_none())
    }

    fn described(
        &mut self,
        now: Time,
        relay: RelayId,
        call_id: &[u8],
        description: &CallDescription,
        concerns: fn(&Line) -> bool,
    ) -> Vec<Decision> {
        let mut seen = Vec::new();
        for described in description.lines() {
            let [first, second] = &described.tags;
            let known = self.calls.get(call_id).and_then(|call| {
                let of = |tag: &[u8]| call.line(tag, Some(described.index));
                of(first).or_else(|| of(second))
            });
            if second.is_empty() {
                seen.extend(known);
                continue;
            }
            // rtpengine keeps a call for its delete-delay after a `delete`.
            if known.is_none() && self.ended.has_dialog(call_id, [first, second]) {
                continue;
            }
            let id = known.unwrap_or_else(|| self.begin_line(now, relay, call_id, first, described.index));
            seen.push(id);
            self.with(id, |book, line| {
                if concerns(line) {
                    book.apply_description(line, &described, known.is_none(), now);
                }
            });
        }
        for id in self.lines_named(call_id) {
            if !seen.contains(&id) {
                self.with(id, |book, line| {
                    if concerns(line) {
                        book.switch_off(line, now);
                    }
                });
            }
        }
        self.take()
    }

    /// Returns the counters of the entries at each relay port of a call.
    #[must_use]
    pub fn ng_counts(&self, call_id: &[u8]) -> Vec<(Endpoint, Counters)> {
        let lines = self.calls.get(call_id).into_iter().flat_map(|call| call.ids());
        let lines = lines.filter_map(|id| self.lines.get(&id));
        lines
            .flat_map(|line| {
                line.stream_ids().filter_map(|id| {
                    let port = line.leg(id.sender).relay_port(id.component)?;
                    Some((port, line.stream(id.sender, id.component).counters()))
                })
            })
            .collect()
    }

    /// Returns the entries of a call that are in the data plane.
    #[must_use]
    pub fn entries_of_call(&self, call_id: &[u8]) -> Vec<FiveTuple> {
        let lines = self.calls.get(call_id).into_iter().flat_map(|call| call.ids());
        let lines = lines.filter_map(|id| self.lines.get(&id));
        lines.flat_map(|line| self.present(line)).map(|(_, entry)| entry.key()).collect()
    }

    // -- offers and answers ------------------------------------------------------------------------

    /// Handles an offer or answer: removes the entries of the lines of the parties that it names, unless it repeats an earlier one.
    fn negotiates(&mut self, now: Time, call_id: &[u8], command: &Command, wait: &mut Vec<WriteId>) -> Result<(), Refusal> {
        let lines = self.lines_named(call_id);
        if lines.is_empty() && command.verb == Verb::Offer {
            self.admit_source(now, command.received_from, 0)?;
        }
        let repeated = self.sight_command(call_id, command);
        if repeated {
            return Ok(());
        }
        let tags = [command.from_tag.as_deref(), command.to_tag.as_deref()];
        for id in lines {
            self.with(id, |book, line| {
                let named = tags.into_iter().flatten().any(|tag| line.side_of(tag).is_some());
                if named && line.is_answered() {
                    // An offer is not an agreement: latched sources stay, and media may also come from the offered address.
                    for side in Side::BOTH {
                        book.name_leg(line, side, now);
                    }
                    book.await_answer(line, now);
                    book.pending_deletes(line, wait);
                }
            });
        }
        Ok(())
    }

    /// Remembers what an offer or answer says about its sender. Returns whether it repeats the sender's last one.
    fn sight_command(&mut self, call_id: &[u8], command: &Command) -> bool {
        let tag = match command.verb {
            Verb::Answer => command.to_tag.as_deref(),
            _ => command.from_tag.as_deref(),
        };
        let Some(tag) = tag.filter(|tag| !tag.is_empty()) else {
            return false;
        };
        let mut hasher = DefaultHasher::new();
        command.raw.hash(&mut hasher);
        let sdp = command.sdp.as_deref().and_then(Sdp::parse);
        let source = command.received_from.filter(|addr| !self.learner.parties.is_own(*addr));
        // Done before the relay gets the command and before the party sends, so that a named address is no unknown source.
        let media = sdp.iter().flat_map(|sdp| &sdp.media).filter_map(|media| media.address);
        let named: Vec<IpAddr> = source.into_iter().chain(media).filter(|addr| !addr.is_unspecified()).collect();
        for addr in named {
            if !self.learner.parties.contains(addr) && !self.learner.parties.is_own(addr) {
                let allow = Decision::Allow(addr);
                if !self.out.contains(&allow) {
                    self.out.push(allow);
                }
            }
        }
        self.sight_description(call_id, tag, sdp.as_ref(), source, hasher.finish())
    }

    fn negotiated(&mut self, now: Time, relay: RelayId, call_id: &[u8], command: &Command, reply: &Reply) -> After {
        if let (Some(from), Some(to)) = (command.from_tag.as_deref(), command.to_tag.as_deref()) {
            self.ended.forget_dialog(call_id, [from, to]);
        }
        if self.lines_named(call_id).is_empty() && command.verb == Verb::Offer {
            self.offered(now, relay, call_id, command, reply);
        }
        let mut needs = command.needs();
        if reply.recordings {
            needs |= Needs::RECORDING;
        }
        self.change_holds(now, command, |holds| {
            for hold in holds_of(needs) {
                holds.confirm(hold, None);
            }
        });
        if command.verb == Verb::Offer {
            After::Nothing
        } else {
            After::Describe
        }
    }

    /// Handles the first offer of a call: the reply has the ports that the callee sends to.
    fn offered(&mut self, now: Time, relay: RelayId, call_id: &[u8], command: &Command, reply: &Reply) {
        let Some(tag) = command.from_tag.as_deref() else { return };
        let offer = command.sdp.as_deref().and_then(Sdp::parse).unwrap_or_default();
        let Some(answer) = reply.sdp.as_deref().and_then(Sdp::parse) else {
            return;
        };
        for ((index, asked), given) in (1..).zip(&offer.media).zip(&answer.media) {
            let Some(port) = given.rtp() else { continue };
            let id = self.begin_line(now, relay, call_id, tag, index);
            self.with(id, |book, line| {
                line.leg_mut(Side::Caller).signalled = asked.address.map(|addr| Endpoint::new(addr, asked.port));
                book.clear_port(port);
                book.place_described(line, Side::Callee, port, now);
                for side in Side::BOTH {
                    book.name_leg(line, side, now);
                }
                book.mark(line);
                book.sync(line, now);
            });
        }
    }

    // -- descriptions ------------------------------------------------------------------------------

    /// Begins a new media line. It inherits what commands have said about the call's other lines.
    fn begin_line(&mut self, now: Time, relay: RelayId, call_id: &[u8], tag: &[u8], index: u32) -> LineId {
        let mut holds = Holds::default();
        for sibling in self.lines_named(call_id).iter().filter_map(|id| self.lines.get(id)) {
            holds.join(&sibling.holds);
        }
        self.last_line += 1;
        let id = LineId(self.last_line);
        let tag: Arc<[u8]> = tag.into();
        let call = self.enter(call_id, Arc::clone(&tag), Some(index), id, now);
        let mut line = Line::new(id, call, tag, Some(index), relay, now);
        line.strong = true;
        line.holds = holds;
        self.count_line(&line, true);
        self.lines.insert(line);
        id
    }

    /// `adopted`: the agent did not know the line.
    fn apply_description(&mut self, line: &mut Line, described: &LineDescription, adopted: bool, now: Time) {
        let answered = line.is_answered();
        // A call's first tag is the caller's, unless the line was named after the other tag.
        let caller = usize::from(*line.tag != *described.tags[0]);
        let order = [(Side::Caller, caller), (Side::Callee, 1 - caller)];
        let signalled = |party: &PartyDescription| party.advertised.or(party.endpoint);
        let callee = 1 - caller;
        let branch = line.enter_branch(&described.tags[callee], now);
        branch.signalled = signalled(&described.parties[callee]);
        branch.via = described.parties[callee].via_branch.as_deref().unwrap_or_default().into();
        let policy = self.learner.policy;
        for (side, at) in order {
            let party = &described.parties[at];
            if let Some(port) = party.local_rtp {
                if !adopted {
                    self.clear_port(port);
                }
                self.place_described(line, side, port, now);
            }
            let address = signalled(party);
            let leg = line.leg_mut(side);
            if let Some(known) = leg.signalled.filter(|known| Some(*known) != address) {
                leg.was_at = None;
                // Packets in flight from the former address must not be learned; a line that was switched off has none.
                leg.forget(now, &policy, answered && known.port != 0);
            }
            (leg.signalled, leg.signalled_rtcp) = (address, party.advertised_rtcp);
            leg.muxes = described.rtcp_mux[at];
            leg.asymmetric = party.media.contains(MediaFlags::ASYMMETRIC);
            leg.rtp.set_asymmetric(leg.asymmetric);
            leg.rtcp.set_asymmetric(leg.asymmetric);
        }
        let copied_to = described.parties.iter().flat_map(|party| &party.copied_to);
        line.subscribers = copied_to.map(|tag| tag.as_slice().into()).collect();
        line.described = described.needs_relay().map(reason_of_line).or_else(|| of_rtcp(described));
        line.last_activity = now;
        for side in Side::BOTH {
            self.name_leg(line, side, now);
        }
        if !answered {
            for side in Side::BOTH {
                line.leg_mut(side).rtp.answer_seen(now);
                line.leg_mut(side).rtcp.answer_seen(now);
            }
        }
        self.mark(line);
        self.resume(line, now);
    }

    /// The relay has given out a port: an entry there that no call claims belongs to an ended call. At the ports of an adopted line such an
    /// entry may belong to the line itself, from before a restart of the agent; the next comparison decides.
    fn clear_port(&mut self, port: Endpoint) {
        for end in [Some(port), next_port(port)].into_iter().flatten() {
            if let Some(key) = self.orphans.remove(&end) {
                self.out.push(Decision::DeleteOrphan(key));
            }
        }
    }

    /// Handles a line without relay ports: it was rejected, or switched off with port 0, and may return (RFC 3264 section 8.2).
    fn switch_off(&mut self, line: &mut Line, now: Time) {
        if !line.is_answered() {
            return;
        }
        let policy = self.learner.policy;
        for side in Side::BOTH {
            let leg = line.leg_mut(side);
            leg.signalled = leg.signalled.map(|end| Endpoint::new(end.addr, 0));
            leg.forget(now, &policy, false);
        }
        self.mark(line);
        self.resume(line, now);
    }

    /// Assigns a relay port to a leg's party, unless the port belongs to another call whose media flows. Then the relay has forgotten that
    /// call, and the port cannot tell the two calls apart. The newer call stays on the relay, at a port that is open to both.
    fn place_described(&mut self, line: &mut Line, side: Side, port: Endpoint, now: Time) {
        if line.leg(side).relay == Some(port) {
            return;
        }
        let mut is_free = true;
        for end in [Some(port), next_port(port)].into_iter().flatten() {
            let holder = self.table.stream_at(end);
            let Some(holder) = holder.filter(|holder| holder.line != line.id) else {
                continue;
            };
            // A line of the same call has lost the port, as the description of that line says or will say.
            let other = self.lines.get(&holder.line).filter(|other| other.call != line.call);
            let Some(other) = other else { continue };
            if self.is_offloaded(other) && !self.meets_nothing(other) {
                is_free = false;
                self.with(holder.line, |book, other| {
                    other.leg_mut(holder.sender).shares_port = true;
                    book.sync_filters(other, now);
                });
            } else {
                self.release(holder.line, Reason::RelayTimeout, now);
            }
        }
        if is_free {
            self.place(line, side, port, now);
        } else {
            self.unplace(line, side, now);
            let leg = line.leg_mut(side);
            (leg.relay, leg.shares_port) = (Some(port), true);
        }
    }

    // -- helpers -----------------------------------------------------------------------------------

    fn lines_named(&self, call_id: &[u8]) -> Vec<LineId> {
        self.calls.get(call_id).map_or_else(Vec::new, |call| call.ids().collect())
    }

    /// Returns the lines that a `delete` ends. rtpengine matches the to-tag, else the via-branch, else the from-tag; without a from-tag it
    /// ends the whole call.
    fn ended_by(&self, call_id: &[u8], command: &Command) -> Vec<LineId> {
        let named = |tag: &Option<std::borrow::Cow<'_, [u8]>>| tag.as_deref().filter(|tag| !tag.is_empty()).map(<[u8]>::to_vec);
        let (from, to, via) = (named(&command.from_tag), named(&command.to_tag), named(&command.via_branch));
        let ids = self.lines_named(call_id);
        let lines = || ids.iter().filter_map(|id| self.lines.get(id));
        let via_of = |line: &Line| line.branches.last().map_or(Vec::new(), |branch| branch.via.to_vec());
        let fits = |line: &Line| match (&to, &via, &from) {
            (Some(tag), _, Some(_)) => line.side_of(tag).is_some(),
            // A branch other than the line's own has lost a fork.
            (None, Some(via), Some(_)) if !via_of(line).is_empty() => via_of(line) == *via,
            (None, _, Some(tag)) => line.side_of(tag).is_some(),
            (.., None) => true,
        };
        lines().filter(|line| fits(line)).map(|line| line.id).collect()
    }

    /// Returns the lines of all calls that a command names.
    fn lines_concerned(&self, command: &Command) -> Vec<LineId> {
        command.calls().flat_map(|call_id| self.lines_named(call_id)).collect()
    }

    fn change_holds(&mut self, now: Time, command: &Command, change: impl Fn(&mut Holds)) {
        for id in self.lines_concerned(command) {
            self.with(id, |book, line| {
                change(&mut line.holds);
                book.mark(line);
                book.sync(line, now);
            });
        }
    }

    /// Handles the reply to a command that makes the relay work on the media (`None`: no reply).
    fn begun(&mut self, now: Time, command: &Command, reply: Option<&Reply>) {
        let refused = reply.is_some_and(|reply| !reply.is_ok());
        let hold = hold_of(command);
        if command.verb == Verb::SubscribeRequest {
            // Only the reply names the subscription. Without a reply the SIP server cannot answer it, and rtpengine copies nothing.
            let named = reply.filter(|reply| reply.is_ok()).and_then(|reply| reply.to_tag.as_deref());
            let named = named.map(|tag| Hold::new(hold.reason, &hold.command, Holder::Subscription(tag.into())));
            return self.change_holds(now, command, |holds| {
                if let Some(named) = &named {
                    holds.confirm(named.clone(), None);
                }
                holds.refuse(&hold);
            });
        }
        let played = reply.filter(|_| command.verb == Verb::PlayMedia && !command.options.repeats);
        let duration = played.and_then(|reply| u64::try_from(reply.duration?).ok());
        let until = duration.map(|duration| now + Duration::from_millis(duration) + PLAYED_AFTER);
        let copies = (command.verb == Verb::SubscribeAnswer).then(|| destinations(command));
        self.change_holds(now, command, |holds| {
            if refused {
                return holds.refuse(&hold);
            }
            // The relay may have received a command that it did not answer.
            holds.confirm(hold.clone(), until);
            if let Some(to) = &copies {
                holds.aim(&hold, to.clone());
            }
        });
    }

    /// Returns what to do after a subscription: rtpengine's description shows the other receivers of a call's media. A call with an open
    /// offer is described after its answer.
    fn after_subscription(&self, call_id: &[u8], command: &Command) -> After {
        let is_of_subscription = matches!(command.effect(), Effect::Subscribes | Effect::Unblocks(Cause::Subscription));
        let awaits_answer = |line: &Line| !line.is_answered() || line.suspended.is_some();
        let mut lines = self.calls.get(call_id).into_iter().flat_map(|call| call.ids());
        let awaits_answer = lines.any(|id| self.lines.get(&id).is_some_and(awaits_answer));
        if is_of_subscription && !awaits_answer {
            After::DescribeCopies
        } else {
            After::Nothing
        }
    }
}

/// Returns where a subscriber wants its copies.
fn destinations(command: &Command) -> Vec<Endpoint> {
    let sdp = command.sdp.as_deref().and_then(Sdp::parse).unwrap_or_default();
    sdp.media.iter().filter_map(|media| media.rtp()).collect()
}

/// Returns the hold of a command: what it makes rtpengine do to the media.
fn hold_of(command: &Command) -> Hold {
    let name = String::from_utf8_lossy(&command.name);
    match command.effect() {
        Effect::Blocks(cause) => Hold::new(reason_of(cause), &name, selected(command)),
        _ if matches!(command.verb, Verb::SubscribeRequest | Verb::SubscribeAnswer) => {
            Hold::new(Reason::Subscription, Verb::SubscribeRequest.name(), subscription(command))
        }
        _ => Hold::new(Reason::Subscription, &name, Holder::Call),
    }
}

fn subscription(command: &Command) -> Holder {
    Holder::Subscription(command.to_tag.as_deref().unwrap_or_default().into())
}

/// Returns whose media a command is about, by everything that it names: versions of rtpengine differ on what a from-tag alone selects. A
/// command that ends the work uses the same selection as the one that began it.
fn selected(command: &Command) -> Holder {
    if command.whom() != Whom::Parties {
        return Holder::Call;
    }
    let one = |name: &'static str, value: &Option<Cow<[u8]>>| value.as_deref().map(|value| [name.as_bytes(), b"=", value].concat());
    let names = [
        ("from-tag", &command.from_tag),
        ("label", &command.label),
        ("address", &command.address),
        ("to-tag", &command.to_tag),
        ("to-label", &command.to_label),
        ("via-branch", &command.via_branch),
    ];
    let mut words: Vec<Vec<u8>> = names.into_iter().filter_map(|(name, value)| one(name, value)).collect();
    words.extend(command.from_tags.iter().map(|tag| [b"from-tags=", &**tag].concat()));
    if command.options.directional {
        words.push(b"directional".to_vec());
    }
    let is_flow = command.to_tag.is_some() || command.to_label.is_some() || command.options.all != All::None;
    if command.options.all != All::None {
        words.push(format!("all={:?}", command.options.all).into_bytes());
    }
    let words = words.join(&b' ').as_slice().into();
    if is_flow { Holder::Flow(words) } else { Holder::Party(words) }
}

/// Returns whether a command that ends a cause ends this hold.
fn is_ended_by(hold: &Hold, cause: Cause, command: &Command) -> bool {
    let begins: &[&str] = match cause {
        Cause::Subscription => return hold.reason == Reason::Subscription && hold.holder == subscription(command),
        Cause::Recording => &["start recording", RECORD_CALL],
        Cause::Forwarding => &["start forwarding"],
        Cause::BlockDtmf => &["block DTMF"],
        Cause::BlockMedia => &["block media"],
        Cause::SilenceMedia => &["silence media"],
        Cause::PlayMedia => &["play media"],
        Cause::Inject => &["inject start"],
        Cause::PlayDtmf | Cause::Transform | Cause::Unknown => &[],
    };
    let is_whose = match command.whom() {
        Whom::Everyone => matches!(hold.holder, Holder::Call | Holder::Party(_)),
        Whom::Call | Whom::Parties => hold.holder == selected(command),
    };
    begins.contains(&&*hold.command) && is_whose
}

/// Reduces a line that a `delete` ends to those callees of its fork that the command names: the others continue. Without a from-tag the
/// command ends the whole call.
fn keep_ended_branches(line: &mut Line, command: &Command) {
    let [from, to, via] = [&command.from_tag, &command.to_tag, &command.via_branch].map(|name| name.as_deref().unwrap_or_default());
    let is_named = |branch: &Branch| {
        !from.is_empty() && ((!to.is_empty() && *branch.tag == *to) || (to.is_empty() && !via.is_empty() && *branch.via == *via))
    };
    if line.branches.iter().any(is_named) {
        line.branches.retain(is_named);
    }
}

/// Returns what the relay does to RTCP. It demultiplexes RTCP if only one party uses rtcp-mux or has RTCP at a port other than the next
/// one. It removes feedback if one party has RTP/AVPF and the other RTP/AVP.
fn of_rtcp(described: &LineDescription) -> Option<Reason> {
    let apart = |party: &PartyDescription| match (party.local_rtp, party.local_rtcp) {
        (Some(rtp), Some(rtcp)) => next_port(rtp) != Some(rtcp),
        _ => false,
    };
    let [first, second] = described.rtcp_mux;
    if first != second || described.parties.iter().any(apart) {
        return Some(Reason::RtcpDemux);
    }
    described.filters_rtcp().then_some(Reason::Processing)
}

/// Returns whether the relay no longer knows the line's call, and its counts of the line's parties.
pub(super) fn counted(line: &Line, reply: &[u8]) -> (bool, Option<RelayCount>) {
    let Ok(parsed) = Reply::parse(reply) else { return (false, None) };
    if is_unknown_call(&parsed) {
        return (true, None);
    }
    let Ok(description) = describe(reply) else { return (false, None) };
    let count = |side: Side, components: &[Component]| {
        let ports: Vec<_> = components.iter().map(|component| line.leg(side).relay_port(*component)).collect();
        let streams = description.tags.iter().flat_map(|tag| &tag.medias).flat_map(|media| &media.streams);
        let streams = streams.filter(|stream| stream.local.is_some() && ports.contains(&stream.local));
        streams.fold(0, |sum: u64, stream| sum.saturating_add(stream.packets))
    };
    let counted = RelayCount {
        packets: Side::BOTH.map(|side| count(side, &COMPONENTS)),
        rtp: Side::BOTH.map(|side| count(side, &[Component::Rtp])),
        left: None,
    };
    (false, Some(counted))
}

/// Returns whether the relay does not know the call of a command.
#[must_use]
pub fn is_unknown_call(reply: &Reply) -> bool {
    let says_so = |text: &[u8]| text.to_ascii_lowercase().windows(CALL_ID.len()).any(|part| part == CALL_ID);
    match &reply.result {
        ReplyResult::Error(reason) => reason.to_ascii_lowercase().starts_with(b"unknown") && says_so(reason),
        _ => false,
    }
}

/// Returns the holds for what an offer or answer requests and `query` does not show.
fn holds_of(needs: Needs) -> impl Iterator<Item = Hold> {
    let all = [
        (Needs::RECORDING, Reason::Recording, RECORD_CALL),
        (Needs::RECORDING_VSC, Reason::Recording, "recording-vsc"),
        (Needs::DROP_TRAFFIC, Reason::MediaBlocked, "drop-traffic"),
        (Needs::BLOCK_DTMF, Reason::MediaBlocked, "block-DTMF"),
        (Needs::BLOCK_SHORT, Reason::MediaBlocked, "block-short"),
        (Needs::DETECT_DTMF, Reason::Dtmf, "detect-DTMF"),
        (Needs::INJECT_DTMF, Reason::Dtmf, "inject-DTMF"),
        (Needs::SUBSCRIPTIONS, Reason::Subscription, "subscribe"),
        (Needs::AUDIO_PLAYER, Reason::Playback, "audio-player"),
        (Needs::MEDIA_ECHO, Reason::Processing, "media-echo"),
        (Needs::GENERATE_RTCP, Reason::Processing, "generate-RTCP"),
        (Needs::DELAY_BUFFER, Reason::Processing, "delay-buffer"),
        (Needs::EXTMAP, Reason::Processing, "extmap"),
        (Needs::BUNDLE, Reason::Processing, "bundle"),
        (Needs::TEMPLATE, Reason::Processing, "template"),
    ];
    let asked = all.into_iter().filter(move |(need, ..)| needs.contains(*need));
    asked.map(|(_, reason, option)| Hold::new(reason, option, Holder::Call))
}

fn reason_of_line(reason: RelayReason) -> Reason {
    match reason {
        RelayReason::Sdes => Reason::Srtp,
        RelayReason::DtlsSrtp => Reason::Dtls,
        RelayReason::Ice => Reason::Ice,
        RelayReason::Transcoding => Reason::Transcoding,
        RelayReason::T38 => Reason::T38,
        RelayReason::MediaFork => Reason::Subscription,
        RelayReason::AudioPlayer | RelayReason::Generator => Reason::Playback,
        RelayReason::BlockEgress => Reason::MediaBlocked,
        RelayReason::Protocol | RelayReason::MediaEcho | RelayReason::GenerateRtcp => Reason::Processing,
    }
}

fn reason_of(cause: Cause) -> Reason {
    match cause {
        Cause::Recording => Reason::Recording,
        Cause::Forwarding => Reason::Forwarding,
        Cause::BlockMedia | Cause::BlockDtmf | Cause::SilenceMedia => Reason::MediaBlocked,
        Cause::PlayMedia | Cause::PlayDtmf | Cause::Inject => Reason::Playback,
        Cause::Subscription => Reason::Subscription,
        Cause::Transform | Cause::Unknown => Reason::CommandUnknown,
    }
}
