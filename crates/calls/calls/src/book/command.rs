//! Commands before they reach the relay.

use super::Book;
use crate::decision::{Decision, Purpose};
use crate::hold::{Hold, Holder};
use crate::ids::{LineId, RelayId, Side, WriteId};
use crate::limits::Refusal;
use crate::line::{Branch, Claim, Line};
use crate::reason::Reason;
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::{Command, ErrorCode, Media, Reply, Request, Session, StreamVerb, Subcommand, Tag, error_reply};
use std::net::IpAddr;
use std::time::Duration;

/// How long the D of a callee that lost a fork waits for the relay to switch to another callee.
const RESTORE: Duration = Duration::from_secs(2);

/// What to do with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pass it to the relay that has the call (`None`: no relay has it yet, or the agent does not know it) after these writes have
    /// completed.
    Pass { relay: Option<RelayId>, wait: Vec<WriteId> },
    /// Answer it without the relay.
    Answer(Vec<u8>),
}

/// The address of a U or L, a null address included; `None` for the `-` of keep-alives.
pub(super) fn signalled(media: &Media) -> Option<Endpoint> {
    media.ip().map(|addr| Endpoint::new(addr, media.port))
}

/// Which party a U or L describes. `swapped`: the session's own tag is the second one.
pub(super) fn described(is_update: bool, swapped: bool) -> Side {
    if is_update != swapped { Side::Caller } else { Side::Callee }
}

impl Book {
    /// Handles a command of the SIP server before the relay gets it.
    ///
    /// A [`Refusal`] accompanies an answer that has its own error number.
    pub fn command(&mut self, now: Time, command: &Command) -> (Step, Option<Refusal>, Vec<Decision>) {
        let relay = self.relay_of(command);
        let mut wait = Vec::new();
        let mut step = None;
        let mut refusal = None;
        match &command.request {
            Request::Update(media) | Request::Lookup(media) => {
                let is_update = matches!(command.request, Request::Update(_));
                match self.foresee(now, command, media, is_update, &mut wait) {
                    Ok(()) => {}
                    Err(error) => {
                        step = Some(Step::Answer(error_reply(error.code())));
                        refusal = Some(error);
                    }
                }
            }
            Request::Delete(session) => step = self.delete(now, command, session),
            Request::Stream(verb @ (StreamVerb::Play | StreamVerb::Record | StreamVerb::Copy), session) => {
                for id in self.matching(session) {
                    self.with(id, |book, line| {
                        let first = line.first_of(session);
                        if *verb == StreamVerb::Play || !line.holds.has_record(first) {
                            line.holds.begin(hold_of(*verb, command, first));
                        }
                        book.clear(line, now, &mut wait);
                    });
                }
            }
            Request::DeleteAll => {
                let mut ids: Vec<LineId> = self.lines.keys().copied().collect();
                ids.sort_unstable();
                for id in ids {
                    self.release(id, Reason::Released, now);
                }
            }
            _ => {}
        }
        if step.is_none() {
            self.foresee_steps(now, command, &mut wait);
        }
        (step.unwrap_or(Step::Pass { relay, wait }), refusal, self.take())
    }

    /// Prepares for sub-commands that have not reached the relay yet: removes the entries of each session that they end or that the relay
    /// is to copy.
    fn foresee_steps(&mut self, now: Time, command: &Command, wait: &mut Vec<WriteId>) {
        for step in command.steps() {
            match step {
                Subcommand::Delete { weak } => {
                    for id in self.ended_behind(command) {
                        self.with(id, |book, line| {
                            if line.ends_with(Claim::of_delete(weak, Side::Caller)) {
                                book.suspend(line, Reason::Released, None);
                                book.clear(line, now, wait);
                            }
                        });
                    }
                }
                Subcommand::Copy(source) => {
                    for id in self.matching(&source) {
                        self.with(id, |book, line| {
                            line.holds.begin(copied_into_session());
                            book.clear(line, now, wait);
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the entries of a line whose state has changed, before the relay gets the command.
    fn clear(&mut self, line: &mut Line, now: Time, wait: &mut Vec<WriteId>) {
        self.mark(line);
        self.sync(line, now);
        self.pending_deletes(line, wait);
    }

    /// Returns the lines that the sub-command D of a command ends: those of the session's own tag.
    fn ended_behind(&self, command: &Command) -> Vec<LineId> {
        let Some(session) = command.session() else { return Vec::new() };
        let Some(line) = self.find(session).and_then(|(id, _)| self.lines.get(&id)) else {
            return Vec::new();
        };
        let raw = line.with_index(&line.tag);
        let own = Session {
            call_id: session.call_id,
            from: Tag::parse(&raw),
            to: None,
        };
        self.matching(&own)
    }

    /// Applies the sub-commands that the relay has carried out. `refused`: the relay rejected the main command.
    pub(super) fn steps_done(&mut self, now: Time, command: &Command, reply: Option<&[u8]>, refused: bool) {
        let Some((id, _)) = command.session().and_then(|session| self.find(session)) else {
            return;
        };
        let reply = reply.map(Reply::new);
        let is_gone = reply.and_then(|reply| reply.error()) == Some(ErrorCode::SESSION_NOT_FOUND);
        for (number, step) in command.steps().enumerate() {
            let done = !refused && reply.is_some_and(|reply| reply.has_done(number));
            match step {
                Subcommand::Delete { weak } => {
                    for id in self.ended_behind(command) {
                        if done || is_gone {
                            self.drop_claim(id, Claim::of_delete(weak, Side::Caller), now);
                        }
                        self.with(id, |book, line| {
                            if line.suspended == Some(Reason::Released) {
                                book.resume(line, now);
                            }
                        });
                    }
                }
                Subcommand::Ttl(ttl) if done => {
                    self.with(id, |book, line| book.set_ttl(line, ttl, now));
                }
                Subcommand::Copy(source) => {
                    let own = done.then_some(id);
                    for id in self.matching(&source).into_iter().chain(own) {
                        self.with(id, |book, line| {
                            if done || reply.is_none() {
                                line.holds.confirm(copied_into_session(), None);
                            } else {
                                line.holds.refuse(&copied_into_session());
                            }
                            book.mark(line);
                            book.sync(line, now);
                        });
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn pending_deletes(&self, line: &Line, wait: &mut Vec<WriteId>) {
        let ports = Self::ports(line);
        wait.extend(ports.filter_map(|(_, port)| self.table.pending_delete(port)));
    }

    /// Returns the relay that has a command's call.
    #[must_use]
    pub fn relay_of(&self, command: &Command) -> Option<RelayId> {
        let call = self.calls.get(command.session()?.call_id)?;
        self.lines.get(&call.ids().next()?).map(|line| line.relay)
    }

    /// Finds the media line of a U, L or Q. The flag says whether the tags are swapped.
    pub(super) fn find(&self, session: &Session) -> Option<(LineId, bool)> {
        let call = self.calls.get(session.call_id)?;
        if let Some(id) = call.line(session.from.name, session.from.media) {
            return Some((id, false));
        }
        let to = session.to?;
        call.line(to.name, to.media.or(session.from.media)).map(|id| (id, true))
    }

    /// Finds the lines of a D, P, S, R or C: those named after either tag, because either party may have added a line. Returns all media
    /// lines unless the command gives an index.
    pub(super) fn matching(&self, session: &Session) -> Vec<LineId> {
        let Some(call) = self.calls.get(session.call_id) else {
            return Vec::new();
        };
        let to = session.to.filter(|to| *to.name != *session.from.name);
        let of_tag = |tag: Tag| {
            let fits = move |(media, _): &(Option<u32>, LineId)| tag.media.is_none() || tag.media == *media;
            call.of_tag(tag.name).filter(fits).map(|(_, id)| id)
        };
        std::iter::once(session.from).chain(to).flat_map(of_tag).collect()
    }

    /// Prepares for a U or L that has not reached the relay yet: removes the entries of whatever it changes.
    fn foresee(&mut self, now: Time, command: &Command, media: &Media, is_update: bool, wait: &mut Vec<WriteId>) -> Result<(), Refusal> {
        let Some((id, swapped)) = self.find(&media.session) else {
            return if is_update { self.admit(now, media) } else { Ok(()) };
        };
        let side = described(is_update, swapped);
        let Some(address) = signalled(media) else { return Ok(()) };
        self.with(id, |book, line| {
            let leg = line.leg(side);
            let moved = leg.signalled.is_some_and(|known| known != address);
            let changed = moved || (leg.signalled.is_some() && *leg.modifiers != *command.modifiers);
            let agrees = !is_update && line.leg(side.other()).offered.is_some();
            if changed || agrees {
                book.suspend(line, Reason::ReInvite, None);
                book.sync(line, now);
                book.pending_deletes(line, wait);
            }
        });
        Ok(())
    }

    /// Admits a new session if the limits allow it.
    fn admit(&mut self, now: Time, media: &Media) -> Result<(), Refusal> {
        let legs = self.calls.get(media.session.call_id).map_or(0, |call| 2 * call.len());
        self.admit_source(now, media.ip(), legs)
    }

    /// Admits a new session of a source if the limits allow it. `legs`: the legs that its call has already.
    pub(super) fn admit_source(&mut self, now: Time, source: Option<IpAddr>, legs: usize) -> Result<(), Refusal> {
        let limits = self.settings.limits;
        if legs + 2 > limits.legs_per_call {
            return Err(Refusal::LegsOfCall(legs));
        }
        if let (Some(rate), Some(source)) = (limits.sessions_per_source, source.filter(|addr| !addr.is_unspecified()))
            && !self.rates.admit(now, source, rate)
        {
            return Err(Refusal::SessionsOfSource(source));
        }
        Ok(())
    }

    /// Handles a D. The relay gets it unless it ends the dialog with a callee that lost a fork.
    fn delete(&mut self, now: Time, command: &Command, session: &Session) -> Option<Step> {
        let lines = self.matching(session);
        let tags = [Some(session.from), session.to];
        let lost = tags.into_iter().flatten().map(|tag| tag.name).find(|tag| {
            let mut lines = lines.iter().filter_map(|id| self.lines.get(id));
            lines.any(|line| line.is_lost_branch(tag))
        });
        for id in &lines {
            let Some(tag) = lost else {
                let first = self.lines.get(id)?.first_of(session);
                self.drop_claim(*id, Claim::of_delete(command.has_modifier(b'w'), first), now);
                continue;
            };
            let its_own = self.with(*id, |book, line| {
                if line.is_lost_branch(tag) {
                    book.drop_branch(line, tag, now);
                }
                let its_own = *line.tag == *tag;
                if its_own {
                    book.ask_relay(line, Purpose::Delete, now);
                }
                its_own
            });
            if its_own == Some(true) {
                self.release(*id, Reason::Released, now);
            }
        }
        lost.map(|_| Step::Answer(b"0".to_vec()))
    }

    fn drop_claim(&mut self, id: LineId, claim: Claim, now: Time) {
        let over = self.with(id, |book, line| {
            line.give_up(claim);
            book.mark(line);
            !line.has_claims()
        });
        if over == Some(true) {
            self.release(id, Reason::Released, now);
        }
    }

    /// Removes a callee that lost a fork and has hung up. If the relay sends to this callee, the relay is switched back to the previous
    /// one.
    fn drop_branch(&mut self, line: &mut Line, tag: &[u8], now: Time) {
        let current = line.other_tag() == Some(tag);
        line.branches.retain(|branch| *branch.tag != *tag);
        self.mark(line);
        if !current {
            return;
        }
        // A remaining callee that had a 2xx is preferred to the latest one.
        let best = line
            .branches
            .iter()
            .rposition(|branch| branch.confirmed && branch.signalled.is_some());
        let at = best.or_else(|| line.branches.iter().rposition(|branch| branch.signalled.is_some()));
        let Some(branch) = at.map(|at| line.branches.remove(at)) else {
            return;
        };
        line.branches.push(branch.clone());
        self.restore_branch(line, &branch, now);
    }

    fn restore_branch(&mut self, line: &mut Line, branch: &Branch, now: Time) {
        let Some(signalled) = branch.signalled else { return };
        let policy = self.learner.policy;
        let leg = line.leg_mut(Side::Callee);
        if leg.signalled == Some(signalled) {
            return;
        }
        leg.signalled = Some(signalled);
        leg.modifiers.clone_from(&branch.modifiers);
        (leg.offered, leg.was_at) = (None, None);
        leg.is_another(now);
        leg.forget(now, &policy, true);
        self.suspend(line, Reason::ReInvite, Some(now + RESTORE));
        self.name_leg(line, Side::Callee, now);
        let (from, to) = (line.with_index(&line.tag), line.with_index(&branch.tag));
        let target = Target {
            call_id: &line.call,
            from: &from,
            to: Some(&to),
        };
        let address = (!signalled.addr.is_unspecified()).then_some(signalled.addr);
        if let Ok(command) = build::lookup(&branch.modifiers, target, address, signalled.port, None) {
            self.out.push(Decision::AskRelay {
                line: line.id,
                relay: line.relay,
                purpose: Purpose::Restore,
                command,
            });
        }
        self.sync(line, now);
    }
}

/// Returns the hold of P, R or C: what the command makes the relay do to one party's media.
pub(super) fn hold_of(verb: StreamVerb, command: &Command, side: Side) -> Hold {
    let (reason, letter) = match verb {
        StreamVerb::Play | StreamVerb::StopPlaying => (Reason::Playback, "P"),
        StreamVerb::Copy => (Reason::Copy, "C"),
        StreamVerb::Record | StreamVerb::StopRecording => (Reason::Recording, "R"),
    };
    let mut hold = Hold::new(reason, letter, Holder::Side(side));
    if verb == StreamVerb::Copy {
        hold.to = command
            .arguments
            .first()
            .and_then(|target| copy_target(target))
            .into_iter()
            .collect();
    }
    hold
}

/// The address in `udp:ADDRESS:PORT`.
fn copy_target(target: &[u8]) -> Option<Endpoint> {
    std::str::from_utf8(target).ok()?.strip_prefix("udp:")?.parse().ok()
}

/// The hold of `&& C`: the relay copies one session's packets into another session, until that one ends.
fn copied_into_session() -> Hold {
    Hold::new(Reason::Forwarding, "&& C", Holder::Call)
}
