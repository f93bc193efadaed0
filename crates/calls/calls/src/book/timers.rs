//! Timers: keep-alives, media time-outs, retries, ends of grace periods.

use super::learn::ago;
use super::{Book, ng};
use crate::decision::{Decision, Happening, Purpose};
use crate::ids::{COMPONENTS, LineId, RelayId, Side, StreamId};
use crate::leg::Evidence;
use crate::line::{Check, Line};
use crate::reason::Reason;
use crate::settings::{Relay, RelayKind};
use crate::stream::Refresh;
use shunt_latch::{Component, Time};
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::capability::KeepAlive;
use shunt_rtpproxy::{Command, ErrorCode, NotifyTarget, ParseError, Reply, notify_line, query_counters};
use std::time::Duration;

/// Time-out of a relay's session while its media is offloaded, s.
const RAISED_TTL: u32 = 3600;
/// Minimum interval between queries for the count of a party that seems silent, and the number of queries within the time that it has been
/// silent.
const LEAST_BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 30;
const REFRESH: Duration = Duration::from_secs(1200);
/// How long a time-out waits for the answers of the data plane and the relay.
const PATIENCE: Duration = Duration::from_secs(2);
/// Retry interval while the data plane does not answer.
const AGAIN: Duration = Duration::from_secs(2);
/// Query interval for a relay that still has a silent session.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Retry interval for an rtpengine that has not answered whether it has a call.
const KEEP_AGAIN: Duration = Duration::from_secs(1);
/// Query interval for rtpengine, which keeps a call on hold for an hour.
const ASK_RTPENGINE_AGAIN: Duration = Duration::from_secs(30);

impl Book {
    /// Returns when [`Book::tick`] is due next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Handles the lines that are due, at most `most`. [`Book::next_deadline`] tells whether more are due.
    pub fn tick(&mut self, now: Time, most: usize) -> Vec<Decision> {
        for _ in 0..most {
            let Some((at, id)) = self.timers.pop(now) else { break };
            let due = self.with(id, |book, line| {
                if line.queued != Some(at) {
                    return false;
                }
                line.queued = None;
                line.released.is_none() && book.look(line, now)
            });
            if due == Some(true) {
                self.conclude(id, now);
            }
            // Other work that is due now waits for the next call.
            self.with(id, |book, line| book.set_timer(line, now));
        }
        self.take()
    }

    pub(super) fn set_timer(&mut self, line: &mut Line, now: Time) {
        if line.released.is_some() {
            return;
        }
        let Some(due) = self.due(line, now) else { return };
        // Never in the past, so that a tick terminates.
        let at = due.max(now + Duration::from_millis(1));
        self.timers.set(line.id, &mut line.queued, at);
    }

    /// Returns when a line is due next.
    fn due(&self, line: &Line, now: Time) -> Option<Time> {
        let mut due: Vec<Time> = line.resume_at.into_iter().chain(line.holds.due()).collect();
        for side in Side::BOTH {
            due.extend(self.filter_due(line, side, now));
            due.extend(self.question_due(line, side));
            let leg = line.leg(side);
            let reviews = [leg.rtp.review_due(&self.learner.policy), leg.rtp.unstable_until()];
            due.extend(reviews.into_iter().flatten().filter(|at| *at > now));
        }
        for id in line.stream_ids() {
            let stream = line.stream(id.sender, id.component);
            due.extend(stream.failure.as_ref().map(|failure| failure.until).filter(|at| *at > now));
            if let Refresh::Waits(since) = stream.refresh {
                due.push(since + super::REFRESH_UNSEEN);
            }
        }
        due.extend(self.keepalive_due(line, now));
        due.extend(match line.check {
            Some(check) => Some(check.at + PATIENCE),
            None => self.silence_due(line),
        });
        due.into_iter().min()
    }

    /// Returns when to query the relay for its count of a party from which the data plane has seen nothing. The query repeats while the
    /// stream towards that party is offloaded, because the party may begin to send. The interval grows with the silence.
    fn question_due(&self, line: &Line, side: Side) -> Option<Time> {
        let (leg, sender) = (line.leg(side), line.leg(side.other()));
        let asks = self.settings.enabled
            && line.is_answered()
            && line.suspended.is_none()
            && line.holds.is_empty()
            && line.described.is_none()
            && !leg.asymmetric
            && !leg.is_held()
            && leg.evidence != Some(Evidence::OnRelay)
            && leg.rtp.learned().is_none()
            && leg.rtp.candidate_count() == 0
            && self.relay(line.relay).is_some_and(|relay| relay.may_query);
        let latched = sender.latched_at.filter(|_| asks && sender.source(Component::Rtp).is_some())?;
        let least = self.settings.one_way_after.max(LEAST_BETWEEN_QUESTIONS);
        Some(match leg.asked_at {
            Some(asked) => asked + least.max(asked.since(latched) / QUESTIONS),
            None => latched + self.settings.one_way_after,
        })
    }

    fn ask_about_silence(&mut self, line: &mut Line, now: Time) {
        let due = Side::BOTH.map(|side| self.question_due(line, side).is_some_and(|at| at <= now));
        if due == [false; 2] {
            return;
        }
        for side in Side::BOTH {
            line.leg_mut(side).asked_at = Some(now);
        }
        self.ask_relay(line, Purpose::Silence, now);
    }

    /// Handles everything that is due for a line. Returns whether the queries of a time-out have waited long enough.
    fn look(&mut self, line: &mut Line, now: Time) -> bool {
        if line.resume_at.is_some_and(|at| at <= now) {
            self.after_bye(line, now);
        }
        if line.holds.expire(now) {
            self.mark(line);
        }
        self.sync(line, now);
        self.ask_about_silence(line, now);
        if self.keepalive_due(line, now).is_some_and(|at| at <= now) {
            self.keep_alive(line, now);
        }
        match line.check {
            Some(check) => now >= check.at + PATIENCE,
            None => {
                if self.silence_due(line).is_some_and(|at| at <= now) {
                    self.begin_check(line, now);
                }
                false
            }
        }
    }

    /// Handles a BYE without a delete. The time-out counts from the BYE if no packet arrived since; the line has no entries until one
    /// arrives.
    fn after_bye(&mut self, line: &mut Line, now: Time) {
        if line.suspended == Some(Reason::ByeSeen) {
            let policy = self.learner.policy;
            if now.since(line.last_activity) >= self.settings.bye_grace {
                for side in Side::BOTH {
                    line.leg_mut(side).forget(now, &policy, false);
                }
            }
            self.ask_relay(line, Purpose::Check, now);
        }
        self.resume(line, now);
    }

    // -- keeping the session -----------------------------------------------------------------------

    fn keepalive_due(&self, line: &Line, now: Time) -> Option<Time> {
        let relay = self.relay(line.relay)?;
        let every = Self::keepalive_every(relay);
        match (self.is_offloaded(line), line.kept_alive_at) {
            (true, Some(kept)) => Some(kept + every),
            (true, None) | (false, Some(_)) => Some(now),
            (false, None) => None,
        }
    }

    fn keepalive_every(relay: &Relay) -> Duration {
        match (relay.kind, relay.keepalive) {
            (RelayKind::Rtpengine, _) => relay.ttl / 2,
            (RelayKind::Rtpproxy, KeepAlive::Lookup) => relay.ttl / 3,
            (RelayKind::Rtpproxy, _) => REFRESH,
        }
    }

    fn keep_alive(&mut self, line: &mut Line, now: Time) {
        let offloaded = self.is_offloaded(line);
        if self.is_rtpengine(line.relay) {
            line.kept_alive_at = offloaded.then_some(now);
            if offloaded {
                self.ask_relay(line, Purpose::KeepAlive, now);
            }
            return;
        }
        let raised = line.ttl_raised;
        line.kept_alive_at = offloaded.then_some(now);
        line.ttl_raised = offloaded && self.relay(line.relay).is_some_and(|relay| relay.keepalive != KeepAlive::Lookup);
        if offloaded || raised {
            self.ask_relay(line, Purpose::KeepAlive, now);
        }
        self.mark(line);
    }

    /// Applies rtpengine's answer whether it has the call. A packet passed to an rtpengine that is down, or has forgotten the call, is
    /// lost.
    fn keep_at_rtpengine(&mut self, line: &mut Line, answered: bool, gone: bool, now: Time) {
        if answered && !gone {
            self.show_packets(line, now);
        } else if !answered && line.kept_alive_at.is_some() {
            let every = self.relay(line.relay).map_or(REFRESH, Self::keepalive_every);
            line.kept_alive_at = Some(ago(now, every.saturating_sub(KEEP_AGAIN)));
            self.set_timer(line, now);
        }
    }

    /// Passes a packet to rtpengine: the RTP entries are removed until a packet has passed, or the RTCP entries if no RTP flows.
    fn show_packets(&mut self, line: &mut Line, now: Time) {
        for component in COMPONENTS {
            let mut shown = false;
            for sender in Side::BOTH {
                let id = StreamId {
                    line: line.id,
                    sender,
                    component,
                };
                let Some(port) = line.leg(sender).relay_port(component) else {
                    continue;
                };
                let flows = self.table.confirmed(id, port).is_some() && line.stream(sender, component).idle_since.is_none();
                if flows {
                    line.stream_mut(sender, component).refresh = Refresh::Waits(now);
                    shown = true;
                }
            }
            if shown {
                break;
            }
        }
        self.sync(line, now);
    }

    pub(super) fn ask_relay(&mut self, line: &mut Line, purpose: Purpose, _now: Time) {
        let Some(command) = self.relay_command(line, purpose).and_then(Result::ok) else {
            return;
        };
        self.out.push(Decision::AskRelay {
            line: line.id,
            relay: line.relay,
            purpose,
            command,
        });
    }

    /// Returns the relay command for a purpose; `None` if the relay cannot be queried.
    fn relay_command(&self, line: &Line, purpose: Purpose) -> Option<Result<Vec<u8>, ParseError>> {
        let relay = self.relay(line.relay)?;
        if relay.kind == RelayKind::Rtpengine {
            return Some(Ok(match purpose {
                Purpose::Check | Purpose::Silence | Purpose::Count | Purpose::KeepAlive => shunt_ng::build::query(&line.call),
                Purpose::Delete => shunt_ng::build::delete(&line.call, None, None, None),
                Purpose::Restore => return None,
            }));
        }
        let (from, to) = (line.with_index(&line.tag), line.other_tag().map(|tag| line.with_index(tag)));
        let target = Target {
            call_id: &line.call,
            from: &from,
            to: to.as_deref(),
        };
        let own = line
            .ttl
            .unwrap_or_else(|| u32::try_from(relay.ttl.as_secs()).unwrap_or(u32::MAX).max(1));
        let ttl = if line.ttl_raised { RAISED_TTL } else { own };
        match purpose {
            Purpose::KeepAlive if relay.keepalive == KeepAlive::TtlSubcommand => Some(build::query(target, &[], false, Some(ttl))),
            Purpose::KeepAlive => {
                // Never U: one without notify arguments would cancel the notification.
                let ttl = (relay.keepalive == KeepAlive::TtlModifier).then_some(ttl);
                Some(build::lookup(&line.leg(Side::Callee).keepalive, target, None, 0, ttl))
            }
            Purpose::Check | Purpose::Silence | Purpose::Count => relay.may_query.then(|| build::query(target, &[], false, None)),
            Purpose::Delete => Some(build::delete(target, false)),
            Purpose::Restore => None,
        }
    }

    /// Handles a relay's answer to [`Decision::AskRelay`] (`None`: no answer).
    pub fn relay_replied(&mut self, now: Time, id: LineId, purpose: Purpose, command: &[u8], reply: Option<&[u8]>) -> Vec<Decision> {
        let Some(line) = self.lines.get(&id) else { return Vec::new() };
        let (gone, packets) = match reply {
            None => (false, None),
            Some(reply) if self.is_rtpengine(line.relay) => ng::counted(line, reply),
            Some(reply) => (
                Reply::new(reply).error() == Some(ErrorCode::SESSION_NOT_FOUND),
                relay_count(command, reply),
            ),
        };
        let over = self.with(id, |book, line| {
            if line.released.is_some() {
                return false;
            }
            if purpose == Purpose::Restore {
                book.resume(line, now);
            }
            if let Some(counted) = packets {
                let count = counted.total();
                // A first count does not tell when the packets arrived; the relay's own timer does.
                if line.relay_packets.is_some_and(|before| before != count) {
                    let met = counted.idle(line.ttl_raised).map_or(now, |idle| ago(now, idle));
                    line.last_activity = line.last_activity.max(met);
                }
                line.relay_packets = Some(count);
                line.relay_counts = Some((counted.packets, now));
                if purpose == Purpose::Silence {
                    let apart = book.settings.one_way_after.max(LEAST_BETWEEN_QUESTIONS);
                    for side in Side::BOTH {
                        line.leg_mut(side).relay_counted(counted.rtp[side.index()], now, apart);
                    }
                    book.sync(line, now);
                }
            }
            if purpose == Purpose::KeepAlive && book.is_rtpengine(line.relay) {
                book.keep_at_rtpengine(line, reply.is_some(), gone, now);
            }
            if let (Purpose::Check, Some(check)) = (purpose, &mut line.check) {
                check.waits_for_relay = false;
            }
            // Offloaded media continues when a relay has restarted and lost the session.
            purpose == Purpose::Check && gone && (!book.is_offloaded(line) || book.meets_nothing(line))
        });
        if over == Some(true) {
            self.release(id, Reason::RelayTimeout, now);
        }
        self.conclude(id, now);
        self.take()
    }

    /// Returns the query for the relay's packet count of a line, for [`Book::relay_replied`] with [`Purpose::Count`]; `None` if the relay
    /// cannot be queried.
    #[must_use]
    pub fn count_question(&self, id: LineId) -> Option<(RelayId, Vec<u8>)> {
        let line = self.lines.get(&id).filter(|line| line.released.is_none())?;
        let command = self.relay_command(line, Purpose::Count)?.ok()?;
        Some((line.relay, command))
    }

    /// Applies the relay's answer to the SIP server's Q of a line. `swapped`: its tags are in the other order.
    pub fn queried(&mut self, now: Time, id: LineId, swapped: bool, command: &[u8], reply: &[u8]) {
        let Some(mut counted) = relay_count(command, reply) else { return };
        if swapped {
            counted.packets.swap(0, 1);
        }
        if let Some(line) = self.lines.get_mut(&id) {
            line.relay_counts = Some((counted.packets, now));
        }
    }

    /// The relay has accepted a new session time-out from the SIP server.
    pub(super) fn set_ttl(&mut self, line: &mut Line, ttl: u32, now: Time) {
        line.ttl = Some(ttl);
        if line.ttl_raised {
            // The new time-out has replaced the one that kept the session alive while its media is offloaded.
            self.keep_alive(line, now);
        }
        self.mark(line);
        self.set_timer(line, now);
    }

    // -- media time-out ----------------------------------------------------------------------------

    fn ttl(&self, line: &Line) -> Option<Duration> {
        let relay = self.relay(line.relay)?;
        let usual = if line.is_answered() { relay.ttl } else { relay.setup_ttl };
        Some(line.ttl.map_or(usual, |ttl| Duration::from_secs(ttl.into())))
    }

    /// Returns when a line will have been silent for the relay's time-out; `None` while an entry matches packets.
    fn silence_due(&self, line: &Line) -> Option<Time> {
        let mut last = line.last_activity;
        for (id, _) in self.present(line) {
            last = last.max(line.stream(id.sender, id.component).idle_since?);
        }
        Some(last + self.ttl(line)?)
    }

    fn is_silent(&self, line: &Line, now: Time) -> bool {
        self.silence_due(line).is_some_and(|due| due <= now)
    }

    /// Queries the data plane and the relay about a line that seems silent.
    fn begin_check(&mut self, line: &mut Line, now: Time) {
        let keys: Vec<_> = self.present(line).map(|(_, entry)| entry.key()).collect();
        let asks_relay = self.relay(line.relay).is_some_and(|relay| relay.may_query);
        line.check = Some(Check {
            at: now,
            waits_for_idle: !keys.is_empty(),
            waits_for_relay: asks_relay,
        });
        if !keys.is_empty() {
            self.out.push(Decision::ReadIdle(keys));
        }
        if asks_relay {
            self.ask_relay(line, Purpose::Check, now);
        }
        if !asks_relay && !line.check.is_some_and(|check| check.waits_for_idle) {
            // Neither can be queried: the timer decides.
            line.check = Some(Check {
                at: ago(now, PATIENCE),
                waits_for_idle: false,
                waits_for_relay: false,
            });
        }
    }

    /// Decides whether a silent line has ended, after both answers or a time-out.
    pub(super) fn conclude(&mut self, id: LineId, now: Time) {
        let raised = self.with(id, |book, line| {
            let check = line.check.filter(|_| line.released.is_none())?;
            let up = now >= check.at + PATIENCE;
            if !up && (check.waits_for_idle || check.waits_for_relay) {
                return None;
            }
            line.check = None;
            if !book.is_silent(line, now) {
                book.set_timer(line, now);
                return None;
            }
            if check.waits_for_idle {
                // The data plane does not answer, so offloaded traffic is unknown.
                line.last_activity = line.last_activity.max(ago(now, book.ttl(line)?)) + AGAIN;
                book.set_timer(line, now);
                return None;
            }
            let relay = book.relay(line.relay)?;
            if relay.kind == RelayKind::Rtpengine {
                // rtpengine ends calls itself, and still has this one.
                line.last_activity = ago(now, book.ttl(line)?.saturating_sub(ASK_RTPENGINE_AGAIN));
                book.set_timer(line, now);
                return None;
            }
            if book.is_offloaded(line) || line.ttl_raised || line.kept_alive_at.is_some() {
                return Some(Reason::MediaTimeout);
            }
            if !relay.may_query && book.settings.enabled {
                // The data plane sees every packet to the relay's ports, so the silence is certain.
                return Some(Reason::RelayTimeout);
            }
            // The relay decides this time-out and still has the session: it is queried again.
            line.last_activity = ago(now, book.ttl(line)?.saturating_sub(ASK_AGAIN));
            book.set_timer(line, now);
            None
        });
        let Some(Some(reason)) = raised else { return };
        if reason == Reason::MediaTimeout {
            self.with(id, |book, line| book.raise(line, now));
        }
        self.release(id, reason, now);
    }

    /// Ends the session as the relay would have.
    fn raise(&mut self, line: &mut Line, now: Time) {
        if let Some(ttl) = self.ttl(line) {
            self.tell(line, Happening::MediaTimeout(ttl));
        }
        self.ask_relay(line, Purpose::Delete, now);
        if let Some(notification) = &line.notification {
            self.out.push(Decision::Notify {
                line: line.id,
                target: NotifyTarget::parse(&notification.socket, notification.peer),
                message: notify_line(&notification.tag),
            });
        }
    }
}

/// A relay's answer to Q or `query`.
pub(super) struct RelayCount {
    /// Packets of the party named first in the command, and of the other party.
    pub(super) packets: [u64; 2],
    /// RTP packets only.
    pub(super) rtp: [u64; 2],
    /// Time until the relay's own time-out, s.
    pub(super) left: Option<u64>,
}

impl RelayCount {
    fn total(&self) -> u64 {
        self.packets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns how long the relay has received no packet, according to its timer.
    fn idle(&self, raised: bool) -> Option<Duration> {
        let full = raised.then_some(u64::from(RAISED_TTL))?;
        Some(Duration::from_secs(full.checked_sub(self.left?)?))
    }
}

fn relay_count(command: &[u8], reply: &[u8]) -> Option<RelayCount> {
    let command = Command::parse(command).ok()?;
    let counters = query_counters(&command, reply).ok()?;
    let value = |wanted: &[u8]| {
        counters
            .iter()
            .find(|counter| counter.name == wanted)
            .and_then(|counter| counter.value())
    };
    // rtpproxy counts RTP only.
    let packets = [value(b"npkts_ina")?, value(b"npkts_ino")?];
    Some(RelayCount {
        packets,
        rtp: packets,
        left: value(b"ttl"),
    })
}
