//! The book: the only owner of call state.

mod adopt;
mod command;
mod end;
mod filter;
mod learn;
mod ng;
mod reconcile;
mod reply;
mod restore;
mod sip;
mod timers;
mod view;

pub use command::Step;
pub use learn::Notice;
pub use ng::{After, Foreseen, is_unknown_call};
pub use reconcile::Comparison;
pub use reply::PortHeld;
pub use sip::stem;
pub use view::{LegView, LineView, StreamView};

use crate::alike::Alike;
use crate::call::Call;
use crate::decision::{Decision, Happening};
use crate::ended::EndedSessions;
use crate::entry::{Counters, Outcome, Reading, RelayEntry};
use crate::former::FormerStreams;
use crate::hold::recorders;
use crate::ids::{ByPort, COMPONENTS, LineId, RelayId, Side, State, StreamId, WriteId, component_index};
use crate::limits::SourceRates;
use crate::line::Line;
use crate::lines::Lines;
use crate::misdirected::Arrivals;
use crate::plan::plan;
use crate::reason::Reason;
use crate::recent::Recent;
use crate::record::Records;
use crate::sdp::SdpKind;
use crate::settings::{Relay, RelayKind, Settings};
use crate::stream::{Failure, Refresh};
use crate::table::{Held, Placed, Settled, Table, Write};
use crate::timers::Timers;
use shunt_latch::{Component, Learner, Policy, Time};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long an entry may be missing, so that the relay sees a packet, before the stream's state reports it.
const REFRESH_UNSEEN: Duration = Duration::from_secs(1);

/// How long the media of an established call stays on the relay after an offer without an answer.
const OFFER_HOLD: Duration = Duration::from_secs(4);

/// Call-IDs whose SIP is remembered until commands have named the parties, in each of two generations.
const MOST_SIP_SEEN: usize = 10_000;

/// All calls.
#[derive(Debug)]
pub struct Book {
    settings: Settings,
    relays: Vec<Relay>,
    learner: Learner,
    calls: HashMap<Arc<[u8]>, Call>,
    /// Call-IDs `<Call-ID>-<branch>` on the control channel, by their SIP Call-ID (rtp_relay of OpenSIPS).
    branches: HashMap<Arc<[u8]>, BTreeSet<Arc<[u8]>>>,
    lines: Lines,
    records: Records,
    table: Table,
    /// Entries in the data plane that no call claims, with their source and the time when they were found.
    orphans: ByPort<FiveTuple>,
    /// Relay ports of inherited lines that ended before the plan was first compared with the data plane; `None` after that comparison.
    over: Option<HashSet<Endpoint>>,
    former: FormerStreams,
    ended: EndedSessions,
    sip_seen: Recent<Arc<[u8]>, sip::SipSeen>,
    sdp_kinds: Alike<SdpKind>,
    modifiers: Alike<[u8]>,
    rates: SourceRates,
    /// Packets at ports of calls from a source that does not match.
    mismatches: u64,
    arrivals: Arrivals,
    timers: Timers,
    /// RTP streams by state and reason.
    counts: [[usize; Reason::ALL.len()]; State::ALL.len()],
    /// Recorders of all lines.
    recorders: usize,
    draining: bool,
    available: bool,
    last_line: u64,
    out: Vec<Decision>,
    dirty: Vec<LineId>,
}

impl Book {
    #[must_use]
    pub fn new(settings: Settings, policy: Policy) -> Self {
        Self {
            settings,
            relays: Vec::new(),
            learner: Learner::new(policy),
            calls: HashMap::new(),
            branches: HashMap::new(),
            lines: Lines::default(),
            records: Records::default(),
            table: Table::default(),
            orphans: ByPort::default(),
            over: Some(HashSet::new()),
            former: FormerStreams::default(),
            ended: EndedSessions::default(),
            sip_seen: Recent::new(MOST_SIP_SEEN),
            sdp_kinds: Alike::default(),
            modifiers: Alike::default(),
            rates: SourceRates::new(),
            mismatches: 0,
            arrivals: Arrivals::new(),
            timers: Timers::default(),
            counts: [[0; Reason::ALL.len()]; State::ALL.len()],
            recorders: 0,
            draining: false,
            available: true,
            last_line: 0,
            out: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// Adds a relay. Its addresses belong to no party.
    pub fn add_relay(&mut self, relay: Relay) -> RelayId {
        let advertised = relay.advertised.iter().map(|(advertised, _)| advertised);
        for addr in relay.addresses.iter().chain(advertised) {
            self.learner.parties.declare_own(*addr);
        }
        self.relays.push(relay);
        RelayId(self.relays.len() - 1)
    }

    /// Applies the result of a relay's handshake.
    pub fn set_capabilities(&mut self, relay: RelayId, keepalive: shunt_rtpproxy::capability::KeepAlive, may_query: bool) {
        if let Some(relay) = self.relays.get_mut(relay.0) {
            (relay.keepalive, relay.may_query) = (keepalive, may_query);
        }
    }

    /// Declares an address of the SIP server or of a proxy, which belongs to no party.
    pub fn declare_own(&mut self, addr: IpAddr) {
        self.learner.parties.declare_own(addr);
    }

    /// Starts or stops draining: while draining, no further stream is offloaded. Afterwards the caller passes all lines to
    /// [`Book::look_at`].
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Returns whether the data plane answers.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.available
    }

    /// Notes whether the data plane answers. Afterwards the caller passes all lines to [`Book::look_at`]. When the data plane answers
    /// again, unacknowledged deletes are repeated.
    pub fn set_data_plane(&mut self, available: bool) -> Vec<Decision> {
        self.available = available;
        if available {
            let mut writes = Vec::new();
            self.table.repeat_deletes(&mut writes);
            self.emit(writes);
        }
        self.take()
    }

    /// All lines, in the order in which they came.
    #[must_use]
    pub fn line_ids(&self) -> Vec<LineId> {
        let mut ids: Vec<LineId> = self.lines.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Plans these lines again, because an obstacle to offloading is gone. Lines that have ended are skipped.
    pub fn look_at(&mut self, now: Time, lines: &[LineId]) -> Vec<Decision> {
        for id in lines {
            self.with(*id, |book, line| book.look_at_line(line, now));
        }
        self.take()
    }

    fn look_at_line(&mut self, line: &mut Line, now: Time) {
        for stream in line.stream_ids() {
            if let Some(failure) = &mut line.stream_mut(stream.sender, stream.component).failure {
                failure.until = now;
            }
        }
        // While the data plane was unavailable it could not report that a silent stream was active again.
        let silent = self
            .present(line)
            .filter(|(id, _)| line.stream(id.sender, id.component).idle_since.is_some());
        let keys: Vec<FiveTuple> = silent.map(|(_, entry)| entry.key()).collect();
        if self.available && !keys.is_empty() {
            self.out.push(Decision::ReadIdle(keys));
        }
        self.sync(line, now);
    }

    // -- helpers of all events ---------------------------------------------------------------------

    /// Returns the decisions of one event.
    fn take(&mut self) -> Vec<Decision> {
        for id in std::mem::take(&mut self.dirty) {
            let Some(line) = self.lines.get_mut(&id).filter(|line| line.dirty) else {
                continue;
            };
            line.dirty = false;
            line.stored = true;
            let recorders = recorders(&line.all_holds());
            self.recorders = self.recorders - line.counted_recorders + recorders;
            line.counted_recorders = recorders;
            self.out.push(Decision::Store(id));
        }
        std::mem::take(&mut self.out)
    }

    fn emit(&mut self, writes: Vec<Write>) {
        self.out.extend(writes.into_iter().map(Decision::Write));
    }

    /// Marks a line whose journal row has changed.
    fn mark(&mut self, line: &mut Line) {
        if !line.dirty && line.released.is_none() {
            line.dirty = true;
            self.dirty.push(line.id);
        }
    }

    /// Works on a line and on the rest of the book, which does not contain the line meanwhile ([`Lines::lend`]).
    fn with<R>(&mut self, id: LineId, work: impl FnOnce(&mut Self, &mut Line) -> R) -> Option<R> {
        let mut line = self.lines.lend(id)?;
        let result = work(self, &mut line);
        self.lines.give_back(line);
        Some(result)
    }

    fn set_state(&mut self, line: &mut Line, id: StreamId, state: State, reason: Reason, now: Time) {
        let stream = line.stream_mut(id.sender, id.component);
        let before = stream.state;
        if (before, stream.reason) == (state, reason) {
            return;
        }
        if id.component == Component::Rtp {
            let count = &mut self.counts[before as usize][stream.reason as usize];
            *count = count.saturating_sub(1);
            self.counts[state as usize][reason as usize] += 1;
        }
        (stream.state, stream.reason, stream.since) = (state, reason, now);
        let after = (state == State::Offloaded && before != State::Offloaded)
            .then(|| Self::time_to_offload(line, id, now))
            .flatten();
        if let Some(after) = after {
            line.stream_mut(id.sender, id.component).set_offloaded_after(after);
        }
        self.out.push(Decision::Changed {
            stream: id,
            before,
            state,
            reason,
            after,
        });
    }

    /// Returns the time since both parties' first packet.
    fn time_to_offload(line: &Line, id: StreamId, now: Time) -> Option<Duration> {
        let first = |side: Side| line.leg(side).first_packet[component_index(id.component)];
        Some(now.since(first(Side::Caller)?.max(first(Side::Callee)?)))
    }

    /// Reports an event of a line.
    fn tell(&mut self, line: &Line, what: Happening) {
        self.out.push(Decision::Happened { line: line.id, what });
    }

    /// Suspends a line because signalling changes it or a BYE was seen.
    fn suspend(&mut self, line: &mut Line, reason: Reason, resume_at: Option<Time>) {
        if line.suspended.replace(reason) != Some(reason) {
            self.tell(line, Happening::Suspended(reason));
        }
        line.resume_at = resume_at;
    }

    /// Keeps the media on the relay after an offer, for as long as an answer is likely.
    fn await_answer(&mut self, line: &mut Line, now: Time) {
        self.suspend(line, Reason::ReInvite, Some(now + OFFER_HOLD));
        self.sync(line, now);
    }

    /// Adds or removes a line's RTP streams in the counts.
    fn count_line(&mut self, line: &Line, comes: bool) {
        for side in Side::BOTH {
            let stream = line.stream(side, Component::Rtp);
            let count = &mut self.counts[stream.state as usize][stream.reason as usize];
            *count = if comes { *count + 1 } else { count.saturating_sub(1) };
        }
        if comes {
            self.recorders += line.counted_recorders;
        } else {
            self.recorders -= line.counted_recorders;
        }
    }

    /// Returns what a stream has at the relay port of its sender.
    fn held(&self, line: &Line, id: StreamId) -> Held {
        let port = line.leg(id.sender).relay_port(id.component);
        port.map_or_else(Held::default, |port| self.table.held(id, port))
    }

    // -- bringing the table to the plan --------------------------------------------------------------

    /// Brings the table to what the plan wants for a line after a change. No other function requests writes of entries.
    fn sync(&mut self, line: &mut Line, now: Time) {
        let mut writes = Vec::new();
        for id in line.stream_ids() {
            self.sync_stream(line, id, now, &mut writes);
        }
        self.emit(writes);
        self.sync_filters(line, now);
        self.set_timer(line, now);
    }

    fn sync_stream(&mut self, line: &mut Line, id: StreamId, now: Time, writes: &mut Vec<Write>) {
        let held = self.held(line, id);
        let wanted = plan(line, id, now, &self.settings, &self.learner.policy, held.port);
        let Some(entry) = wanted.entry else {
            if let Some(port) = line.leg(id.sender).relay_port(id.component).filter(|_| held.entry) {
                self.table.unwant(id, port, writes);
            }
            line.stream_mut(id.sender, id.component).refresh = Refresh::No;
            let waits = matches!(
                wanted.reason,
                Reason::WaitingForMedia | Reason::VerifyingSource | Reason::WaitingForOtherParty
            );
            let reason = if waits && !self.available {
                Reason::DataPlaneUnavailable
            } else {
                wanted.reason
            };
            self.set_state(line, id, wanted.state, reason, now);
            return;
        };
        let hindrance = line
            .stream(id.sender, id.component)
            .failure
            .as_ref()
            .filter(|failure| now < failure.until)
            .map(|failure| failure.reason);
        let hindrance = if !self.available {
            Some(Reason::DataPlaneUnavailable)
        } else if self.draining {
            Some(Reason::Draining)
        } else {
            hindrance
        };
        if let (false, Some(reason)) = (held.entry, hindrance) {
            self.set_state(line, id, State::Learning, reason, now);
            return;
        }
        let refresh = line.stream(id.sender, id.component).refresh;
        if let Refresh::Waits(since) = refresh {
            self.table.unwant(id, entry.port(), writes);
            if now.since(since) >= REFRESH_UNSEEN {
                self.set_state(line, id, State::Learning, Reason::Refreshing, now);
            }
            return;
        }
        // A party's RTCP packets may be far apart.
        let silent = id.component == Component::Rtp && line.stream(id.sender, id.component).idle_since.is_some();
        let reason = if silent { Reason::Silent } else { wanted.reason };
        match self.table.want(id, entry, writes) {
            Placed::Confirmed => self.set_state(line, id, State::Offloaded, reason, now),
            Placed::Pending if held.present => self.set_state(line, id, State::Offloaded, reason, now),
            // No event for an entry that is missing for one packet only.
            Placed::Pending | Placed::Busy
                if refresh == Refresh::Returns && line.stream(id.sender, id.component).state == State::Offloaded => {}
            Placed::Pending | Placed::Busy => self.set_state(line, id, State::Learning, Reason::Installing, now),
        }
    }

    /// Returns the stream that a write is for, until the result arrives.
    #[must_use]
    pub fn stream_of_write(&self, id: WriteId) -> Option<StreamId> {
        self.table.stream_of_write(id)
    }

    /// Applies the result of a write, with the counters of a removed entry and the data plane's text on a failure.
    pub fn written(
        &mut self,
        now: Time,
        id: WriteId,
        outcome: Outcome,
        counters: Option<Counters>,
        detail: Option<Arc<str>>,
    ) -> Vec<Decision> {
        let mut writes = Vec::new();
        let settled = self.table.settle(id, outcome, &mut writes);
        self.emit(writes);
        match settled {
            Some(Settled::Installed(stream, _)) => {
                self.with(stream.line, |book, line| book.installed(line, stream, now));
            }
            Some(Settled::Failed(stream, _, outcome)) => {
                self.with(stream.line, |book, line| book.failed(line, stream, outcome, detail, now));
            }
            Some(Settled::Deleted(stream, entry)) => self.deleted(stream, entry, counters, now),
            None => {}
        }
        self.take()
    }

    fn installed(&mut self, line: &mut Line, id: StreamId, now: Time) {
        let stream = line.stream_mut(id.sender, id.component);
        (stream.idle_since, stream.failure) = (None, None);
        (stream.was_offloaded, stream.refresh) = (true, Refresh::No);
        if self.is_rtpengine(line.relay) {
            // The relay has just received the packets that were learned from.
            line.kept_alive_at.get_or_insert(now);
        }
        self.mark(line);
        self.sync(line, now);
    }

    fn failed(&mut self, line: &mut Line, id: StreamId, outcome: Outcome, detail: Option<Arc<str>>, now: Time) {
        let (after, reason) = match outcome {
            Outcome::TableFull => (5, Reason::TableFull),
            Outcome::HashCollision => (30, Reason::HashCollision),
            Outcome::HostPolicy => (30, Reason::HostPolicy),
            Outcome::Unavailable => (1, Reason::DataPlaneUnavailable),
            Outcome::Rejected | Outcome::Done => (30, Reason::Rejected),
        };
        let stream = line.stream_mut(id.sender, id.component);
        let until = now + Duration::from_secs(after);
        stream.failure = Some(Box::new(Failure { until, reason, detail }));
        stream.refresh = Refresh::No;
        self.sync(line, now);
    }

    fn deleted(&mut self, id: StreamId, entry: RelayEntry, counters: Option<Counters>, now: Time) {
        self.with(id.line, |book, line| {
            let stream = line.stream_mut(id.sender, id.component);
            stream.entry_ended(counters);
            stream.idle_since = None;
            book.mark(line);
            book.sync(line, now);
        });
        self.end_if_out(id.line);
        // The port may belong to another line by now.
        if let Some(next) = self.table.stream_at(entry.port()).filter(|next| next.line != id.line) {
            self.with(next.line, |book, line| book.sync(line, now));
        }
    }

    /// Applies the counters that the data plane has kept for entries since their installation.
    pub fn counted(&mut self, now: Time, read: &[Reading]) {
        for reading in read {
            let Some((id, _)) = self.table.owner(reading.key.dst).filter(|(_, entry)| entry.key() == reading.key) else {
                continue;
            };
            if let Some(line) = self.lines.get_mut(&id.line) {
                let met_at = reading.idle.map(|idle| learn::ago(now, idle));
                line.stream_mut(id.sender, id.component).set_live(reading.counters, now, met_at);
            }
        }
    }

    /// Returns the relay ports of a line's legs, RTP and RTCP, each with the stream whose packets arrive there.
    fn ports(line: &Line) -> impl Iterator<Item = (StreamId, Endpoint)> + '_ {
        line.stream_ids()
            .filter_map(|id| Some((id, line.leg(id.sender).relay_port(id.component)?)))
    }

    /// Assigns a relay port to a leg's party. If another line of this Call-ID has the port, that line loses it.
    fn place(&mut self, line: &mut Line, side: Side, relay: Endpoint, now: Time) {
        if line.leg(side).relay == Some(relay) {
            return;
        }
        self.unplace(line, side, now);
        let policy = self.learner.policy;
        let leg = line.leg_mut(side);
        // The party's address is still the former one.
        leg.was_at = leg.rtp.learned().map(|source| source.addr).or(leg.was_at);
        (leg.relay, leg.placed_at, leg.shares_port) = (Some(relay), now, false);
        leg.forget(now, &policy, false);
        for component in COMPONENTS {
            let Some(port) = line.leg(side).relay_port(component) else {
                continue;
            };
            let id = StreamId {
                line: line.id,
                sender: side,
                component,
            };
            let before = self.table.assign(port, id);
            if let Some(former) = self.former.take(now, port, line.id) {
                line.leg_mut(side).latch_mut(component).keep_out(now, &policy, former);
            }
            if let Some(before) = before.filter(|before| before.line != line.id) {
                self.with(before.line, |book, other| book.sync(other, now));
            }
        }
    }

    /// Takes a leg's relay port away, and remembers for the next call which sources sent there.
    fn unplace(&mut self, line: &mut Line, side: Side, now: Time) {
        let mut writes = Vec::new();
        for component in COMPONENTS {
            let Some(port) = line.leg(side).relay_port(component) else {
                continue;
            };
            let id = StreamId {
                line: line.id,
                sender: side,
                component,
            };
            self.table.unwant(id, port, &mut writes);
            self.table.withdraw(port, id);
            if let Some(former) = line.leg(side).latch(component).former() {
                self.former.add(now, self.learner.policy.former_hold, port, line.id, former);
            }
        }
        self.emit(writes);
        self.remove_filter(line, side);
        line.leg_mut(side).relay = None;
    }

    /// Notes that a party may be at an address. Returns whether that is new.
    fn join(&mut self, line: &mut Line, side: Side, addr: IpAddr) -> bool {
        let leg = line.leg_mut(side);
        if addr.is_unspecified() || leg.joined.contains(&addr) || self.learner.parties.is_own(addr) {
            return false;
        }
        if leg.joined.len() >= 32 {
            self.learner.parties.leave(leg.joined.remove(0));
        }
        leg.joined.reserve_exact(1);
        leg.joined.push(addr);
        if self.learner.parties.join(addr) {
            self.out.push(Decision::Allow(addr));
        }
        true
    }

    fn leave(&mut self, line: &mut Line, side: Side) {
        for addr in std::mem::take(&mut line.leg_mut(side).joined) {
            self.learner.parties.leave(addr);
        }
    }

    fn relay(&self, id: RelayId) -> Option<&Relay> {
        self.relays.get(id.0)
    }

    fn is_rtpengine(&self, id: RelayId) -> bool {
        self.relay(id).is_some_and(|relay| relay.kind == RelayKind::Rtpengine)
    }

    fn is_offloaded(&self, line: &Line) -> bool {
        Self::ports(line).any(|(id, port)| self.table.held(id, port).entry)
    }

    fn present(&self, line: &Line) -> impl Iterator<Item = (StreamId, RelayEntry)> {
        Self::ports(line).filter_map(|(id, port)| Some((id, self.table.present(id, port)?)))
    }

    fn component_of(&self, port: Endpoint) -> Component {
        if port.port.is_multiple_of(2) {
            Component::Rtp
        } else {
            Component::Rtcp
        }
    }
}
