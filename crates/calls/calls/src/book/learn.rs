//! Learn notices: packets that matched no entry.

use super::Book;
use crate::decision::{Decision, Happening, Purpose};
use crate::entry::Idle;
use crate::ids::{LineId, StreamId, component_index};
use crate::line::Line;
use crate::stream::Refresh;
use shunt_latch::{Component, Facts, Found, Name, Packet, Time, Verdict};
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::Source;
use std::time::Duration;

/// A packet that matched no entry at a relay port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub key: FiveTuple,
    /// SSRC and sequence number if the packet looks like RTP version 2. Ignored at an RTCP port.
    pub media: Option<Source>,
    /// The RTP payload type.
    pub payload_type: Option<u8>,
}

impl Notice {
    /// Whether the packet looks like RTCP (RFC 5761 section 4).
    fn is_rtcp(&self) -> bool {
        self.payload_type.is_some_and(|payload_type| (64..96).contains(&payload_type))
    }
}

/// Returns the time that is `duration` before `now`.
pub(super) fn ago(now: Time, duration: Duration) -> Time {
    Time::from_nanos(now.as_nanos().saturating_sub(Time::from(duration).as_nanos()))
}

impl Book {
    /// Handles a packet that matched no entry.
    pub fn noticed(&mut self, now: Time, notice: &Notice) -> Vec<Decision> {
        match self.table.stream_at(notice.key.dst) {
            Some(id) => {
                self.with(id.line, |book, line| book.observe(line, id, now, notice));
            }
            None => self.missed(now, notice),
        }
        self.take()
    }

    /// Handles a packet to a port without a call.
    fn missed(&mut self, now: Time, notice: &Notice) {
        let (source, port) = (notice.key.src, notice.key.dst);
        let component = self.component_of(port);
        if self.former.goes_on(now, port, source, notice.media, component) {
            return;
        }
        if !notice.is_rtcp() {
            self.arrivals.note(now, source, port);
        }
        match self.learner.missed(now, source, port.port) {
            Some(Found::Address(addr)) if self.learner.parties.contains(addr) => {}
            Some(found) => self.out.push(Decision::Block(found)),
            None => {}
        }
    }

    fn observe(&mut self, line: &mut Line, id: StreamId, now: Time, notice: &Notice) {
        let (source, port, component) = (notice.key.src, notice.key.dst, id.component);
        let media = notice.media.filter(|_| component == Component::Rtp);
        let packet = Packet { at: now, source, media };
        // An installed entry takes the latched source's packets, so their absence here proves nothing.
        let present = self.table.present(id, port);
        let last_packet = line.leg(id.sender).last_packet[component_index(component)];
        let facts = last_packet.filter(|_| present.is_none()).map(|last_packet| Facts {
            last_packet,
            sequence: None,
        });
        let elsewhere = line.leg(id.sender.other()).latch(component).has_met(&self.learner.policy, &packet);
        let leg = line.leg_mut(id.sender);
        leg.noticed |= component == Component::Rtp;
        let before = leg.latch(component).learned();
        if before != Some(source) && !notice.is_rtcp() {
            self.arrivals.note(now, source, port);
        }
        let mut verdict = self.learner.observe(leg.latch_mut(component), elsewhere, port.port, &packet, facts);
        if verdict == Verdict::Waiting && component == Component::Rtcp && leg.is_rtcp_of_party(source) {
            leg.rtcp.adopt(now, source, None);
            verdict = Verdict::Latched;
        }
        if !matches!(verdict, Verdict::Ignored(_)) {
            leg.first_packet[component_index(component)].get_or_insert(now);
        }
        if verdict.is_held() {
            leg.last_packet[component_index(component)] = Some(now);
            let refresh = &mut line.stream_mut(id.sender, component).refresh;
            if matches!(refresh, Refresh::Waits(_)) {
                *refresh = Refresh::Returns;
            }
            line.last_activity = now;
            if let (Component::Rtp, Some(payload_type)) = (component, notice.payload_type.filter(|_| media.is_some())) {
                line.leg_mut(id.sender).count_payload_type(payload_type);
            }
        } else if matches!(verdict, Verdict::Ignored(_)) {
            let leg = line.leg_mut(id.sender);
            leg.mismatches = leg.mismatches.saturating_add(1);
            self.mismatches += 1;
        }
        self.out.push(Decision::Learned {
            stream: id,
            notice: *notice,
            verdict,
        });
        if verdict == Verdict::Ask {
            self.ask(line, id, notice);
        }
        self.learned(line, id, before, verdict, source, now);
    }

    fn ask(&mut self, line: &mut Line, id: StreamId, notice: &Notice) {
        let Some(entry) = self.table.present(id, notice.key.dst) else {
            return;
        };
        let stream = line.stream_mut(id.sender, id.component);
        let before = stream.asked.replace(Box::new(*notice));
        if before.is_none_or(|before| before.key.src != notice.key.src) {
            self.out.push(Decision::ReadIdle(vec![entry.key()]));
        }
    }

    /// Applies a verdict: acts on a change of the latched source.
    fn learned(&mut self, line: &mut Line, id: StreamId, before: Option<Endpoint>, verdict: Verdict, source: Endpoint, now: Time) {
        let after = line.leg(id.sender).latch(id.component).learned();
        let mut news = after != before || matches!(verdict, Verdict::Contested | Verdict::Waiting);
        // A source that keeps changing would count as moved with each packet.
        let roams = verdict == Verdict::Known && before.is_some();
        if let Some(learned) = after.filter(|_| after != before && !roams) {
            if let Some(before) = before {
                let moved = Happening::Moved {
                    stream: id,
                    before,
                    source: learned,
                };
                self.tell(line, moved);
            }
            self.join(line, id.sender, learned.addr);
            if id.component == Component::Rtp {
                let leg = line.leg_mut(id.sender);
                leg.latched_at = Some(now);
                leg.rtcp.add_name(Name::address(learned.addr));
            }
            self.mark(line);
        }
        let present = self.held(line, id).entry;
        if verdict == Verdict::Known && line.leg(id.sender).asymmetric && !present {
            news |= line.leg_mut(id.sender).note_source(id.component, source);
            if id.component == Component::Rtp {
                line.leg_mut(id.sender).latched_at.get_or_insert(now);
            }
        }
        if news || !present {
            self.sync(line, now);
        }
    }

    /// Applies when entries last matched a packet: the answer to [`Decision::ReadIdle`].
    pub fn idle_times(&mut self, now: Time, read: &[Idle]) -> Vec<Decision> {
        let mut lines: Vec<LineId> = Vec::new();
        for idle in read {
            let Some((id, _)) = self.table.owner(idle.key.dst).filter(|(_, entry)| entry.key() == idle.key) else {
                continue;
            };
            self.with(id.line, |book, line| {
                let met_nothing = book.meets_nothing(line);
                book.idle_time(line, id, idle, now);
                book.fell_idle(line, met_nothing, now);
            });
            if !lines.contains(&id.line) {
                lines.push(id.line);
            }
        }
        for id in lines {
            self.with(id, |_, line| {
                if let Some(check) = &mut line.check {
                    check.waits_for_idle = false;
                }
            });
            self.conclude(id, now);
        }
        self.take()
    }

    fn idle_time(&mut self, line: &mut Line, id: StreamId, read: &Idle, now: Time) {
        let stream = line.stream_mut(id.sender, id.component);
        let asked = stream.asked.take();
        if let Some(idle) = read.idle {
            let met = ago(now, idle);
            line.last_activity = line.last_activity.max(met);
            // An entry that matched packets again is reported anew when it becomes idle.
            self.note_idle(line, id, (idle >= self.settings.entry_idle).then_some(met), now);
        }
        let since = line.stream(id.sender, id.component).idle_since;
        let Some(notice) = asked else { return };
        let source = notice.key.src;
        let last_packet = match (read.idle, since) {
            (Some(idle), _) => ago(now, idle),
            (None, Some(since)) => since,
            // A switch reports only idleness: an entry that is not reported idle has matched packets.
            (None, None) => now,
        };
        let facts = Facts {
            last_packet,
            sequence: read.sequence,
        };
        let policy = self.learner.policy;
        let latch = line.leg_mut(id.sender).latch_mut(id.component);
        let before = latch.learned();
        let verdict = latch.answer(now, &policy, source, facts);
        self.out.push(Decision::Learned {
            stream: id,
            notice: *notice,
            verdict,
        });
        self.learned(line, id, before, verdict, source, now);
    }

    /// The data plane reports that an entry has matched no packet for [`crate::Settings::entry_idle`].
    pub fn idle(&mut self, now: Time, key: FiveTuple) -> Vec<Decision> {
        let since = ago(now, self.settings.entry_idle);
        self.set_idle(now, key, Some(since))
    }

    /// The data plane reports that an idle entry matches packets again.
    pub fn active(&mut self, now: Time, key: FiveTuple) -> Vec<Decision> {
        self.set_idle(now, key, None)
    }

    fn set_idle(&mut self, now: Time, key: FiveTuple, since: Option<Time>) -> Vec<Decision> {
        if let Some((id, _)) = self.table.owner(key.dst).filter(|(_, entry)| entry.key() == key) {
            self.with(id.line, |book, line| {
                let met_nothing = book.meets_nothing(line);
                if since.is_none() {
                    line.last_activity = now;
                }
                book.note_idle(line, id, since, now);
                book.fell_idle(line, met_nothing, now);
                book.set_timer(line, now);
            });
        }
        self.take()
    }

    /// Notes that a stream's entry has matched no packet since a time, or matches packets (`None`).
    fn note_idle(&mut self, line: &mut Line, id: StreamId, since: Option<Time>, now: Time) {
        let before = std::mem::replace(&mut line.stream_mut(id.sender, id.component).idle_since, since);
        match (before, since) {
            (None, Some(since)) => self.tell(
                line,
                Happening::Idle {
                    stream: id,
                    silent: now.since(since),
                },
            ),
            (Some(_), None) => self.tell(line, Happening::Active { stream: id }),
            _ => return,
        }
        self.sync(line, now);
    }

    /// Returns whether a line has entries and all of them are idle.
    pub(super) fn meets_nothing(&self, line: &Line) -> bool {
        let mut entries = self.present(line).peekable();
        entries.peek().is_some() && entries.all(|(id, _)| line.stream(id.sender, id.component).idle_since.is_some())
    }

    /// Handles the last of a line's entries becoming idle. If the relay has meanwhile ended the session without the agent, the call ends
    /// too.
    fn fell_idle(&mut self, line: &mut Line, met_nothing: bool, now: Time) {
        let may_query = self.relay(line.relay).is_some_and(|relay| relay.may_query);
        if may_query && !met_nothing && line.released.is_none() && self.meets_nothing(line) {
            self.ask_relay(line, Purpose::Check, now);
        }
    }
}
