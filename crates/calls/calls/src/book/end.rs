//! The end of media lines.

use super::Book;
use crate::decision::{Decision, EndedLine, EndedParty, Purpose};
use crate::hold::Hold;
use crate::ids::{LineId, Side};
use crate::journal::RowKey;
use crate::leg::next_port;
use crate::line::Line;
use crate::reason::Reason;
use shunt_latch::{Component, Time};

impl Book {
    /// Ends a call as a D of the SIP server would: removes its entries and its sessions on the relay. Returns whether the call exists.
    pub fn end_call(&mut self, now: Time, call_id: &[u8]) -> (bool, Vec<Decision>) {
        let ids: Vec<LineId> = self.lines_of_call(call_id).map(|line| line.id()).collect();
        for id in &ids {
            self.with(*id, |book, line| book.ask_relay(line, Purpose::Delete, now));
            self.release(*id, Reason::Released, now);
        }
        (!ids.is_empty(), self.take())
    }

    /// Ends a line: removes its entries and releases its ports. A second call changes nothing.
    pub(super) fn release(&mut self, id: LineId, reason: Reason, now: Time) {
        let released = self.with(id, |book, line| {
            if line.released.is_some() {
                return false;
            }
            line.released = Some(reason);
            // A relay that forgot the session may restore it from its store; every other reason is a decided end.
            if reason != Reason::RelayTimeout {
                book.ended.add(line);
            }
            // Removed at once, because the next agent must not adopt a call that has ended.
            line.dirty = false;
            if std::mem::take(&mut line.stored) {
                book.out.push(Decision::Forget(RowKey::of(line)));
            }
            book.sync(line, now);
            book.leave_index(line);
            for side in Side::BOTH {
                let relay = line.leg(side).relay;
                if let (true, Some(over), Some(port)) = (line.inherited, &mut book.over, relay) {
                    over.extend([Some(port), next_port(port)].into_iter().flatten());
                }
                book.unplace(line, side, now);
                line.leg_mut(side).relay = relay;
                book.leave(line, side);
            }
            true
        });
        if released == Some(true) {
            self.end_if_out(id);
        }
    }

    fn leave_index(&mut self, line: &Line) {
        let Some(call) = self.calls.get_mut(&line.call) else { return };
        call.remove(line.id, &line.tag);
        if call.len() > 0 {
            return;
        }
        self.calls.remove(&line.call);
        if let Some(stem) = super::sip::stem(&line.call)
            && let Some(branches) = self.branches.get_mut(stem)
        {
            branches.remove(&line.call);
            if branches.is_empty() {
                self.branches.remove(stem);
            }
        }
    }

    /// Forgets a released line once its last entry has been removed.
    pub(super) fn end_if_out(&mut self, id: LineId) {
        let Some(reason) = self.lines.get(&id).and_then(|line| line.released) else {
            return;
        };
        if self.lines.get(&id).is_some_and(|line| self.is_offloaded(line)) {
            return;
        }
        let Some(line) = self.lines.remove(&id) else { return };
        self.count_line(&line, false);
        let (caller, callee) = (ended_party(&line, Side::Caller), ended_party(&line, Side::Callee));
        let ended = EndedLine {
            line: id,
            other_tag: line.other_tag().map(Into::into),
            answered: line.is_answered(),
            recorded: recorded(&line),
            tag: (*line.tag).into(),
            media: line.media,
            relay: line.relay,
            created: line.created,
            reason,
            caller,
            callee,
        };
        if let Some(ended) = self.records.line_ends(line.number, ended) {
            self.out.push(Decision::Ended(Box::new(ended)));
        }
    }
}

/// Returns the recordings that ended before the line, then those that ended with it.
fn recorded(line: &Line) -> Vec<(Hold, Option<Side>)> {
    let mut all = line.holds.past().to_vec();
    let last = line.all_holds().into_iter().filter(Hold::is_recording);
    for hold in last {
        if !all.contains(&hold) {
            all.push(hold);
        }
    }
    all.into_iter().map(|hold| (hold.clone(), line.side_of_hold(&hold))).collect()
}

fn ended_party(line: &Line, side: Side) -> EndedParty {
    let (leg, rtp) = (line.leg(side), line.stream(side, Component::Rtp));
    EndedParty {
        signalled: leg.signalled,
        learned: leg.source(Component::Rtp).or(leg.last_source),
        relay: leg.relay,
        rtp: rtp.counters(),
        rtcp: line.stream(side, Component::Rtcp).counters(),
        relay_packets: line.relay_counts.map(|(counts, _)| counts[side.index()]),
        was_offloaded: rtp.was_offloaded,
        offloaded_after: rtp.offloaded_after(),
        payload_types: leg.payload_types.clone(),
        sdp: leg.sdp.clone(),
        mismatches: leg.mismatches,
    }
}
