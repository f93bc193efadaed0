//! What the book decides: plain data, for those who do I/O.

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

/// One thing to do, or to tell.
#[derive(Debug)]
pub enum Decision {
    /// Keep a conference for the next agent.
    Store(Box<Kept>),
    /// A conference is over: remove what was kept of it.
    Forget(Name),
    /// Hold a relay address: the port of RTP, and that of RTCP above it.
    Hold(Endpoint),
    /// A relay address that was held has no participant any more.
    Release(Endpoint),
    /// Send from a relay address.
    Send {
        from: Endpoint,
        to: Endpoint,
        data: Vec<u8>,
    },
    /// Append an event to the log of the admin API.
    Publish(Box<ConferenceFacts>),
    /// Tell policies outside of the agent.
    Estimated(Box<Estimate>),
    /// Read twice how many packets of its old source a leg has had; the answer goes to [`Book::answered`].
    Ask(Asked),
    /// Rows may have to be written: ask [`Book::next_rows`].
    Write,
    /// Mixers may have to be told something: ask [`Book::mixer_works`].
    Mix,
    /// Count it.
    Count(Count),
    Log(Level, String),
}

/// What the metrics count.
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

/// The time of an event, and what the book has decided on it so far.
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

    /// Something happened in a conference.
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

    /// What the next agent needs of a conference has changed.
    pub(super) fn keep(&mut self, conference: &Name) {
        self.stored.insert(conference.clone());
    }

    /// The rows of a conference are to be brought to what it is.
    pub(super) fn write(&mut self, conference: &Name) {
        self.rows.insert(conference.clone());
        self.writes = true;
    }

    /// There is something to write besides the rows of changed conferences.
    pub(super) fn wake(&mut self) {
        self.writes = true;
    }

    /// A conference has changed: its rows, and what mixers are told of it, follow.
    pub(super) fn touch(&mut self, conference: &Name) {
        self.write(conference);
        self.mixes = true;
    }

    /// A leg's media comes from another source from now on.
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

    /// Send RTCP to a participant, to where its own comes from, or by custom ought to (RFC 3550 section 11).
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

    /// A conference has changed in what is kept of it, too.
    pub(super) fn kept(&mut self, conference: &Name) {
        self.keep(conference);
        self.touch(conference);
    }

    pub(super) fn later(&mut self, at: Time, timer: Timer) {
        self.timers.push((at, timer));
    }
}

impl Book {
    /// Takes one event in: `act` calls the method that the event is for. Returns its result, and what is to be done, in this order.
    pub fn turn<R>(&mut self, now: Time, unix_us: u64, act: impl FnOnce(&mut Self, &mut Turn) -> R) -> (R, Vec<Decision>) {
        let mut turn = Turn::new(now, unix_us);
        let result = act(self, &mut turn);
        self.dirty.append(&mut turn.rows);
        self.timers.extend(turn.timers);
        // An event of what an agent that dies now does not remember would be wrong for ever.
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
