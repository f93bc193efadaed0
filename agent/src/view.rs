//! The call state in the form of the admin API.

use crate::clock::Clock;
use crate::facts::{entry, hold, micros, sdp};
use shunt_admin::{CallFilter, CallPage, CallView, LegView, LineView, StreamView};
use shunt_calls::{Book, Component, LineId, Reason, Side, State, StreamId, Time, recorders};

/// Returns a time of the call state as Unix time in µs.
fn unix_us(clock: &Clock, now: Time, at: Time) -> u64 {
    u64::try_from(clock.wall().saturating_sub(now.since(at)).as_micros()).unwrap_or(u64::MAX)
}

fn seconds(now: Time, at: Time) -> f64 {
    now.since(at).as_secs_f64()
}

/// The time of a snapshot.
#[derive(Clone, Copy)]
struct Look {
    now: Time,
    /// Values read since then were read for this answer.
    asked: Time,
}

impl Look {
    /// Returns the age of a value, s.
    fn age(&self, at: Time) -> f64 {
        if at >= self.asked { 0.0 } else { seconds(self.now, at) }
    }
}

/// Returns one call, if it is known. `asked`: values read since then are fresh.
#[must_use]
pub fn call(book: &Book, clock: &Clock, asked: Time, relay: impl Fn(shunt_calls::RelayId) -> String, call_id: &[u8]) -> Option<CallView> {
    let now = clock.now();
    let look = Look { now, asked };
    let mut lines: Vec<_> = book.lines_of_call(call_id).collect();
    lines.sort_by_key(|line| line.id());
    let created = lines.iter().map(|line| line.created()).min()?;
    Some(CallView {
        call: call_id.into(),
        started_us: unix_us(clock, now, created),
        age_s: seconds(now, created),
        lines: lines.iter().map(|line| line_view(line, look, relay(line.relay()))).collect(),
        counters_error: None,
    })
}

fn line_view(line: &shunt_calls::LineView, look: Look, relay: String) -> LineView {
    let holds = line.holds();
    LineView {
        media: line.media(),
        relay: relay.as_bytes().into(),
        from_tag: line.tag().into(),
        to_tag: line.other_tag().map(Into::into),
        released: line.released(),
        caller: leg_view(&line.leg(Side::Caller), look),
        callee: leg_view(&line.leg(Side::Callee), look),
        streams: line.streams().map(|stream| stream_view(line, &stream, look)).collect(),
        recorders: recorders(&holds) as u64,
        holds: holds.iter().map(|held| hold(held, line.side_of(held))).collect(),
    }
}

fn leg_view(leg: &shunt_calls::LegView, look: Look) -> LegView {
    LegView {
        signalled: leg.signalled,
        latched: leg.learned,
        latched_rtcp: leg.learned_rtcp,
        relay_port: leg.relay,
        asymmetric: leg.asymmetric,
        source_mismatches: leg.mismatches,
        payload_types: leg.payload_types.to_vec(),
        allowed_sources: leg.filter.map(<[_]>::to_vec),
        sdp: leg.sdp.map(sdp),
        sends_from: leg.misdirected.map(|seen| seen.source),
        sends_to: leg.misdirected.map(|seen| seen.port),
        relay_packets: leg.relay_packets.map(|(packets, _)| packets),
        relay_packets_age_s: leg.relay_packets.map(|(_, at)| look.age(at)),
    }
}

fn stream_view(line: &shunt_calls::LineView, stream: &shunt_calls::StreamView, look: Look) -> StreamView {
    let StreamId { sender, component, .. } = stream.id;
    // Counters of earlier entries are final.
    let age = if stream.entry.is_none() {
        Some(0.0)
    } else {
        stream.counted_at.map(|at| look.age(at))
    };
    let known = stream.was_offloaded && (age.is_some() || stream.counters.packets > 0);
    let met = stream.counted_at.zip(stream.met_at).map(|(read, met)| seconds(read, met));
    StreamView {
        from: sender,
        component: component.into(),
        state: stream.state,
        reason: stream.reason,
        detail: line.detail(sender, component).map(Into::into),
        since_s: seconds(look.now, stream.since),
        entry: stream.entry.map(entry),
        was_offloaded: stream.was_offloaded,
        offloaded_after_us: stream.offloaded_after.map(micros),
        counters: known.then(|| stream.counters.into()),
        counters_age_s: age.filter(|_| known),
        idle_s: stream.idle_since.map(|since| seconds(look.now, since)).or(met),
    }
}

/// Returns whether one stream of a line has this state and this reason.
fn fits(line: &shunt_calls::LineView, state: Option<State>, reason: Option<Reason>) -> bool {
    let mut streams = line.streams().filter(|stream| stream.id.component == Component::Rtp);
    (state.is_none() && reason.is_none())
        || streams.any(|stream| state.is_none_or(|state| stream.state == state) && reason.is_none_or(|reason| stream.reason == reason))
}

/// Returns the calls that match a filter, the oldest first.
#[must_use]
pub fn page(book: &Book, clock: &Clock, asked: Time, relay: impl Fn(shunt_calls::RelayId) -> String, filter: &CallFilter) -> CallPage {
    let part = filter.part.as_ref().map(|part| &*part.0);
    let contains = |call_id: &[u8]| part.is_none_or(|part| part.is_empty() || call_id.windows(part.len()).any(|window| window == part));
    // The oldest line determines a call's position.
    let mut found: Vec<(LineId, &[u8])> = Vec::new();
    for line in book.lines() {
        if contains(line.call_id()) && fits(&line, filter.state, filter.reason) {
            found.push((line.id(), line.call_id()));
        }
    }
    found.sort_unstable();
    let mut seen = std::collections::HashSet::new();
    found.retain(|(_, call_id)| seen.insert(*call_id));
    let total = found.len() as u64;
    let after = filter.after.unwrap_or(0);
    let mut rest = found.iter().filter(|(id, _)| id.number() > after).peekable();
    let (mut calls, mut last) = (Vec::new(), None);
    for (id, call_id) in rest.by_ref().take(filter.limit) {
        calls.extend(call(book, clock, asked, &relay, call_id));
        last = Some(id.number());
    }
    let next = last.filter(|_| rest.peek().is_some());
    CallPage { calls, total, next }
}
