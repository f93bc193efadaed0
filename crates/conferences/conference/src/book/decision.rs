//! Decisions of the book as plain data, for the components that do I/O.

use super::kept::Kept;
use super::learning::Asked;
use super::{Book, Place, Timer, leg_name};
use crate::adaptation::Medium;
use crate::participant::Leg;
use crate::tables::Name;
use shunt_admin_model::{ConferenceFacts, Estimate};
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::collections::BTreeSet;

/// One action or notification.
#[derive(Debug)]
pub enum Decision {
    /// Store a conference for the next agent.
    Store(Box<Kept>),
    /// The conference has ended: remove its stored state.
    Forget(Name),
    /// Open a relay address: the RTP port, and the RTCP port above it.
    Hold(Endpoint),
    /// Close a relay address that no participant uses any more.
    Release(Endpoint),
    /// Send from a relay address.
    Send {
        from: Endpoint,
        to: Endpoint,
        data: Vec<u8>,
    },
    /// Append an event to the log of the admin API.
    Publish(Box<ConferenceFacts>),
    /// Send an estimate to external policies.
    Estimated(Box<Estimate>),
    /// Read twice how many packets a leg has received from its old source, and pass the result to [`Book::answered`].
    Ask(Asked),
    /// Rows may need a write: call [`Book::next_rows`].
    Write,
    /// Mixers may need a command: call [`Book::mixer_works`].
    Mix,
    /// Increment a counter.
    Count(Count),
    Log(Level, String),
}

/// Counters of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    RtcpTaken,
    RtcpRefused,
    StunAnswered,
    StunRefused,
    Nack,
    Retransmitted,
    KeyFrameWanted,
    KeyFrameAsked,
    PacketCopied,
    SourceMismatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// The time of an event, and the book's decisions on it so far.
pub struct Turn {
    pub now: Time,
    /// Unix time, µs.
    pub unix_us: u64,
    decisions: Vec<Decision>,
    stored: BTreeSet<Name>,
    rows: BTreeSet<Name>,
    timers: Vec<(Time, Timer)>,
    writes: bool,
    mixes: bool,
}

impl Turn {
    fn new(now: Time, unix_us: u64) -> Self {
        Self {
            now,
            unix_us,
            decisions: Vec::new(),
            stored: BTreeSet::new(),
            rows: BTreeSet::new(),
            timers: Vec::new(),
            writes: false,
            mixes: false,
        }
    }

    /// Publishes an event of a conference.
    pub(super) fn tell(
        &mut self,
        conference: &Name,
        what: &'static str,
        participant: Option<&Name>,
        medium: Option<Medium>,
        more: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
    ) {
        let mut facts = serde_json::Map::new();
        more(&mut facts);
        self.decisions.push(Decision::Publish(Box::new(ConferenceFacts {
            conference: conference.as_bytes().into(),
            what,
            participant: participant.map(|name| name.as_bytes().into()),
            medium: medium.map(|medium| medium.name().as_bytes().into()),
            more: facts,
        })));
    }

    pub(super) fn decide(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    pub(super) fn count(&mut self, what: Count) {
        self.decisions.push(Decision::Count(what));
    }

    pub(super) fn log(&mut self, level: Level, text: String) {
        self.decisions.push(Decision::Log(level, text));
    }

    /// Marks a conference's stored state as changed.
    pub(super) fn keep(&mut self, conference: &Name) {
        self.stored.insert(conference.clone());
    }

    /// Marks a conference's rows as outdated.
    pub(super) fn write(&mut self, conference: &Name) {
        self.rows.insert(conference.clone());
        self.writes = true;
    }

    /// Wakes up the writer for work other than the rows of changed conferences.
    pub(super) fn wake(&mut self) {
        self.writes = true;
    }

    /// Marks a conference's rows and its mixers' descriptions as outdated.
    pub(super) fn touch(&mut self, conference: &Name) {
        self.write(conference);
        self.mixes = true;
    }

    /// Logs and publishes the new source of a leg's media.
    pub(super) fn tell_source(&mut self, place: &Place, source: Option<Endpoint>) {
        let text = source.map(|source| source.to_string());
        let (leg, of) = (leg_name(place.leg), &place.participant);
        let from = text.as_deref().unwrap_or("nobody certain");
        self.log(
            Level::Info,
            format!("conference {}: {leg} of {of} comes from {from}", place.conference),
        );
        self.tell(&place.conference, "source", Some(&place.participant), Some(place.leg.0), |facts| {
            facts.insert("source".into(), text.into());
        });
    }

    /// Sends RTCP to a participant: to the source of its own RTCP, or else to the address that RFC 3550 section 11 implies.
    pub(super) fn send_rtcp(&mut self, leg: &Leg, data: &[u8]) {
        let Some(source) = leg.source else { return };
        let next = source.port.checked_add(1).map(|port| Endpoint::new(source.addr, port));
        let (port, to) = if leg.muxed {
            (leg.relay.port, Some(source))
        } else {
            (leg.relay.port + 1, leg.rtcp.filter(|rtcp| rtcp.addr == source.addr).or(next))
        };
        if let Some(to) = to {
            self.decide(Decision::Send {
                from: Endpoint::new(leg.relay.addr, port),
                to,
                data: data.to_vec(),
            });
        }
    }

    /// Marks a conference's rows, descriptions and stored state as changed.
    pub(super) fn kept(&mut self, conference: &Name) {
        self.keep(conference);
        self.touch(conference);
    }

    pub(super) fn later(&mut self, at: Time, timer: Timer) {
        self.timers.push((at, timer));
    }
}

impl Book {
    /// Processes one event. `act` calls the method for the event. Returns its result, and the decisions in order.
    pub fn turn<R>(&mut self, now: Time, unix_us: u64, act: impl FnOnce(&mut Self, &mut Turn) -> R) -> (R, Vec<Decision>) {
        let mut turn = Turn::new(now, unix_us);
        let result = act(self, &mut turn);
        self.dirty.append(&mut turn.rows);
        self.timers.extend(turn.timers);
        // The stored state comes first, because an event must not announce what a restarted agent would not know.
        let mut decisions: Vec<Decision> = turn.stored.into_iter().map(|name| self.stored(name)).collect();
        decisions.append(&mut turn.decisions);
        if turn.writes {
            decisions.push(Decision::Write);
        }
        if turn.mixes {
            decisions.push(Decision::Mix);
        }
        (result, decisions)
    }

    fn stored(&self, name: Name) -> Decision {
        match self.rooms.get(&name) {
            Some(room) => Decision::Store(Box::new(room.keep())),
            None => Decision::Forget(name),
        }
    }
}
