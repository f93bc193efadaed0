//! The entry that a stream should have, and why where it should have none. A pure function.

use crate::entry::{EntryError, RelayEntry};
use crate::ids::{State, StreamId};
use crate::line::Line;
use crate::reason::Reason;
use crate::settings::Settings;
use shunt_latch::{Component, Time};
use shunt_net::FiveTuple;

/// The entry that a stream should have (`None`: it stays on the relay), with state and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) entry: Option<RelayEntry>,
    pub(crate) state: State,
    pub(crate) reason: Reason,
}

impl Wanted {
    fn none(state: State, reason: Reason) -> Self {
        Self {
            entry: None,
            state,
            reason,
        }
    }
}

/// What a stream needs. `owns_port`: whether the relay port of its sender is this line's.
pub(crate) fn plan(line: &Line, stream: StreamId, now: Time, settings: &Settings, owns_port: bool) -> Wanted {
    if let Some(reason) = line.released {
        return Wanted::none(State::Released, reason);
    }
    if !settings.enabled {
        return Wanted::none(State::Allocated, Reason::NoDataPlane);
    }
    if let Some(reason) = line.suspended.or(line.blocks.first().copied()).or(line.described) {
        return Wanted::none(State::Suspended, reason);
    }
    if !line.is_answered() {
        return Wanted::none(State::Allocated, Reason::WaitingForAnswer);
    }
    if stream.component == Component::Rtcp && line.is_muxed() {
        return Wanted::none(State::Allocated, Reason::RtcpMuxed);
    }
    by_itself(line, stream, now, settings, owns_port)
}

fn by_itself(line: &Line, stream: StreamId, now: Time, settings: &Settings, owns_port: bool) -> Wanted {
    let (component, sender, receiver) = (stream.component, line.leg(stream.sender), line.leg(stream.sender.other()));
    if receiver.is_held() {
        return Wanted::none(State::Suspended, Reason::OnHold);
    }
    let Some(arrival) = sender.relay_port(component).filter(|_| owns_port) else {
        return Wanted::none(State::Suspended, Reason::PortTaken);
    };
    let Some(source) = sender.source(component) else {
        if sender.latch(component).is_contested() {
            return Wanted::none(State::Suspended, Reason::Contested);
        }
        if !settings.listens_at(arrival) {
            return Wanted::none(State::Suspended, Reason::OutsideMediaRanges);
        }
        let has_candidate = sender.latch(component).candidate_count() > 0;
        let reason = if has_candidate {
            Reason::VerifyingSource
        } else {
            Reason::WaitingForMedia
        };
        return Wanted::none(State::Learning, reason);
    };
    if component == Component::Rtcp && !receiver.is_rtcp_reachable() {
        return Wanted::none(State::Learning, Reason::WaitingForOtherParty);
    }
    let silent = receiver.source(Component::Rtp).is_none();
    let waited = sender.latched_at.is_some_and(|at| now.since(at) >= settings.one_way_after);
    let (Some(target), Some(departure), true) = (receiver.target(component), receiver.relay_port(component), !silent || waited) else {
        return Wanted::none(State::Learning, Reason::WaitingForOtherParty);
    };
    match RelayEntry::new(FiveTuple::new(source, arrival), departure, target) {
        Ok(entry) => Wanted {
            entry: Some(entry),
            state: State::Offloaded,
            reason: if silent { Reason::OneWay } else { Reason::Offloaded },
        },
        Err(EntryError::Family(..)) => Wanted::none(State::Suspended, Reason::AddressFamily),
        Err(EntryError::Unusable(_)) => Wanted::none(State::Learning, Reason::WaitingForOtherParty),
    }
}
