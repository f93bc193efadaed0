//! The entry that a stream should have, or the reason for having none. A pure function.

use crate::entry::{EntryError, RelayEntry};
use crate::ids::{State, StreamId};
use crate::leg::Evidence;
use crate::line::Line;
use crate::reason::Reason;
use crate::settings::Settings;
use shunt_latch::{Component, Policy, Time};
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

/// Plans a stream's entry. `owns_port`: whether the relay port of its sender belongs to this line.
pub(crate) fn plan(line: &Line, stream: StreamId, now: Time, settings: &Settings, policy: &Policy, owns_port: bool) -> Wanted {
    if let Some(reason) = line.released {
        return Wanted::none(State::Released, reason);
    }
    if !settings.enabled {
        return Wanted::none(State::Allocated, Reason::NoDataPlane);
    }
    if let Some(reason) = line.suspended.or(line.holds.reason()).or(line.described) {
        return Wanted::none(State::Suspended, reason);
    }
    if !line.is_answered() {
        return Wanted::none(State::Allocated, Reason::WaitingForAnswer);
    }
    if stream.component == Component::Rtcp && line.is_muxed() {
        return Wanted::none(State::Allocated, Reason::RtcpMuxed);
    }
    by_itself(line, stream, now, settings, policy, owns_port)
}

fn by_itself(line: &Line, stream: StreamId, now: Time, settings: &Settings, policy: &Policy, owns_port: bool) -> Wanted {
    let (component, sender, receiver) = (stream.component, line.leg(stream.sender), line.leg(stream.sender.other()));
    if receiver.is_held() {
        return Wanted::none(State::Suspended, Reason::OnHold);
    }
    let Some(arrival) = sender.relay_port(component).filter(|_| owns_port) else {
        return Wanted::none(State::Suspended, Reason::PortTaken);
    };
    if [sender, receiver].iter().any(|leg| leg.rtp.is_unstable(now)) {
        return Wanted::none(State::Suspended, Reason::UnstableSource);
    }
    let Some(source) = sender.source(component) else {
        if sender.latch(component).is_contested() {
            return Wanted::none(State::Suspended, Reason::Contested);
        }
        if !settings.listens_at(arrival) {
            return Wanted::none(State::Suspended, Reason::OutsideMediaRanges);
        }
        if sender.latch(component).candidate_count() > 0 {
            return Wanted::none(State::Learning, Reason::VerifyingSource);
        }
        if sender.evidence == Some(Evidence::OnRelay) {
            return Wanted::none(State::Suspended, Reason::NotInDataPlane);
        }
        return Wanted::none(State::Learning, Reason::WaitingForMedia);
    };
    if component == Component::Rtcp && !receiver.is_rtcp_reachable() {
        return Wanted::none(State::Learning, Reason::WaitingForOtherParty);
    }
    let silent = receiver.source(Component::Rtp).is_none();
    if silent && let Some(wanted) = undecided(line, stream, now, settings, policy) {
        return wanted;
    }
    let (Some(target), Some(departure)) = (receiver.target(component), receiver.relay_port(component)) else {
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

/// Returns what keeps a stream on the relay whose receiver is not latched; `None` if the receiver really sends nothing. The absence of
/// packets in the data plane does not prove that: packets may be rare, or take another path.
fn undecided(line: &Line, stream: StreamId, now: Time, settings: &Settings, policy: &Policy) -> Option<Wanted> {
    let (sender, receiver) = (line.leg(stream.sender), line.leg(stream.sender.other()));
    if !receiver.rtp.is_silent(policy, now) {
        let reason = if receiver.rtp.is_contested() {
            Reason::Contested
        } else {
            Reason::VerifyingSource
        };
        return Some(Wanted::none(State::Learning, reason));
    }
    let waited = sender.latched_at.is_some_and(|at| now.since(at) >= settings.one_way_after);
    match receiver.evidence {
        Some(Evidence::OnRelay) => Some(Wanted::none(State::Suspended, Reason::NotInDataPlane)),
        // An asymmetric party is not learned: packets go to its signalled address.
        Some(Evidence::Silent) if waited => None,
        None if waited && receiver.asymmetric => None,
        _ => Some(Wanted::none(State::Learning, Reason::WaitingForOtherParty)),
    }
}
