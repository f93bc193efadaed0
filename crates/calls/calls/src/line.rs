//! A media line: one session of a relay, with two parties and four streams.

use crate::hold::{Hold, Holder, Holds};
use crate::ids::{COMPONENTS, LineId, RelayId, Side, StreamId, stream_index};
use crate::journal::Text;
use crate::leg::Leg;
use crate::reason::Reason;
use crate::record::CallNumber;
use crate::stream::Stream;
use shunt_latch::{Component, Time};
use shunt_net::Endpoint;
use shunt_rtpproxy::Session;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Number of callees of one forked call that are remembered, the latest ones.
const MOST_BRANCHES: usize = 8;

/// A callee; a forked call has several (RFC 3261 section 13.2.2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) tag: Box<[u8]>,
    /// Address in its command; `None` before its first command.
    pub(crate) signalled: Option<Endpoint>,
    pub(crate) modifiers: Arc<[u8]>,
    /// The via-branch of NG; empty if commands do not name it.
    pub(crate) via: Box<[u8]>,
    /// Whether a 2xx with this tag was seen.
    pub(crate) confirmed: bool,
}

/// Where the SIP server wants a media time-out reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) socket: Box<[u8]>,
    /// URL-encoded.
    pub(crate) tag: Box<[u8]>,
    /// Address that `%%CC_SELF%%` stands for.
    pub(crate) peer: Option<IpAddr>,
}

/// A claim to a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    Strong,
    /// The claim of the party that U or L described.
    Weak(Side),
}

impl Claim {
    /// Returns the claim that a D gives up. With w it is the claim of the party that is not named first.
    pub(crate) fn of_delete(weak: bool, first: Side) -> Self {
        if weak { Self::Weak(first.other()) } else { Self::Strong }
    }
}

/// Pending queries of a time-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) at: Time,
    pub(crate) waits_for_idle: bool,
    pub(crate) waits_for_relay: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) id: LineId,
    pub(crate) call: Arc<[u8]>,
    pub(crate) number: CallNumber,
    /// Tag of the first U's sender. With the media index it names the session.
    pub(crate) tag: Arc<[u8]>,
    pub(crate) media: Option<u32>,
    pub(crate) relay: RelayId,
    pub(crate) created: Time,
    legs: [Leg; 2],
    streams: [Stream; 4],
    /// The relay sends to the last one.
    pub(crate) branches: Vec<Branch>,
    pub(crate) notification: Option<Box<Notification>>,
    /// What commands make the relay do to the media.
    pub(crate) holds: Holds,
    /// What the relay does to the media, according to rtpengine's description.
    pub(crate) described: Option<Reason>,
    /// Receivers of copies of the media, according to rtpengine's description.
    pub(crate) subscribers: BTreeSet<Text>,
    /// This line's contribution to the book's number of recorders.
    pub(crate) counted_recorders: usize,
    /// Claims to the session, which ends with the last of them: one by U, and one by each party that modifier w was used for.
    pub(crate) strong: bool,
    pub(crate) weak: [bool; 2],
    pub(crate) suspended: Option<Reason>,
    pub(crate) resume_at: Option<Time>,
    pub(crate) released: Option<Reason>,
    pub(crate) kept_alive_at: Option<Time>,
    pub(crate) ttl_raised: bool,
    /// Time-out that a command has set for this session, s.
    pub(crate) ttl: Option<u32>,
    pub(crate) last_activity: Time,
    /// Packets that the relay has counted.
    pub(crate) relay_packets: Option<u64>,
    /// Packets that the relay has counted for each party, and the time of the query.
    pub(crate) relay_counts: Option<([u64; 2], Time)>,
    pub(crate) check: Option<Check>,
    /// The timer that is set.
    pub(crate) queued: Option<Time>,
    /// The line existed before a restart of the agent, which may have written entries that are not known here.
    pub(crate) inherited: bool,
    pub(crate) dirty: bool,
    pub(crate) stored: bool,
}

impl Line {
    pub(crate) fn new(
        id: LineId,
        (call, number): (Arc<[u8]>, CallNumber),
        tag: Arc<[u8]>,
        media: Option<u32>,
        relay: RelayId,
        now: Time,
    ) -> Self {
        Self {
            id,
            call,
            number,
            tag,
            media,
            relay,
            created: now,
            legs: [Leg::new(now), Leg::new(now)],
            streams: std::array::from_fn(|_| Stream::new(now)),
            branches: Vec::new(),
            notification: None,
            holds: Holds::default(),
            described: None,
            subscribers: BTreeSet::new(),
            counted_recorders: 0,
            strong: false,
            weak: [false; 2],
            suspended: None,
            resume_at: None,
            released: None,
            kept_alive_at: None,
            ttl_raised: false,
            ttl: None,
            last_activity: now,
            relay_packets: None,
            relay_counts: None,
            check: None,
            queued: None,
            inherited: false,
            dirty: false,
            stored: false,
        }
    }

    pub(crate) fn leg(&self, side: Side) -> &Leg {
        &self.legs[side.index()]
    }

    pub(crate) fn leg_mut(&mut self, side: Side) -> &mut Leg {
        &mut self.legs[side.index()]
    }

    pub(crate) fn stream(&self, sender: Side, component: Component) -> &Stream {
        &self.streams[stream_index(sender, component)]
    }

    pub(crate) fn stream_mut(&mut self, sender: Side, component: Component) -> &mut Stream {
        &mut self.streams[stream_index(sender, component)]
    }

    /// Returns RTP of both parties, then RTCP.
    pub(crate) fn stream_ids(&self) -> impl Iterator<Item = StreamId> + use<> {
        let line = self.id;
        COMPONENTS
            .into_iter()
            .flat_map(move |component| Side::BOTH.into_iter().map(move |sender| StreamId { line, sender, component }))
    }

    /// Returns whether both relay ports are known.
    pub(crate) fn is_answered(&self) -> bool {
        self.legs.iter().all(|leg| leg.relay.is_some())
    }

    /// Returns whether both parties send RTCP to the RTP port.
    pub(crate) fn is_muxed(&self) -> bool {
        self.legs.iter().all(|leg| leg.muxes)
    }

    /// Returns the tag of the party that the session is not named after.
    pub(crate) fn other_tag(&self) -> Option<&[u8]> {
        self.branches.last().map(|branch| &*branch.tag)
    }

    pub(crate) fn tag_of(&self, side: Side) -> Option<&[u8]> {
        match side {
            Side::Caller => Some(&self.tag),
            Side::Callee => self.other_tag(),
        }
    }

    /// Returns the side that has a tag.
    pub(crate) fn side_of(&self, tag: &[u8]) -> Option<Side> {
        if *self.tag == *tag {
            return Some(Side::Caller);
        }
        (self.other_tag() == Some(tag)).then_some(Side::Callee)
    }

    /// Makes this callee the one that the relay sends to.
    pub(crate) fn enter_branch(&mut self, tag: &[u8], now: Time) -> &mut Branch {
        if self.other_tag() != Some(tag) {
            self.leg_mut(Side::Callee).is_another(now);
        }
        let known = self.branches.iter().position(|branch| *branch.tag == *tag);
        let branch = known.map_or_else(
            || Branch {
                tag: tag.into(),
                signalled: None,
                modifiers: Arc::default(),
                via: Box::default(),
                confirmed: false,
            },
            |at| self.branches.remove(at),
        );
        if self.branches.len() >= MOST_BRANCHES {
            self.branches.remove(0);
        }
        let at = self.branches.len();
        self.branches.reserve_exact(1);
        self.branches.push(branch);
        &mut self.branches[at]
    }

    pub(crate) fn is_established(&self) -> bool {
        self.branches.iter().any(|branch| branch.confirmed)
    }

    /// Returns whether the callee lost a fork, so that the end of its dialog leaves the session to another callee.
    ///
    /// Copies of SIP show which callees had a 2xx. Without copies, every callee with a command counts.
    pub(crate) fn is_lost_branch(&self, tag: &[u8]) -> bool {
        if *self.tag == *tag {
            return false;
        }
        let known = self.branches.iter().any(|branch| *branch.tag == *tag);
        let mut others = self.branches.iter().filter(|branch| *branch.tag != *tag);
        if self.is_established() {
            others.any(|branch| branch.confirmed)
        } else {
            known && others.any(|branch| branch.signalled.is_some())
        }
    }

    /// Returns a tag with the media index, as the control protocol writes it.
    pub(crate) fn with_index(&self, tag: &[u8]) -> Vec<u8> {
        let mut out = tag.to_vec();
        if let Some(media) = self.media {
            out.extend_from_slice(format!(";{media}").as_bytes());
        }
        out
    }

    pub(crate) fn has_claims(&self) -> bool {
        self.strong || self.weak.contains(&true)
    }

    /// Returns whether the session ends when this claim is given up.
    pub(crate) fn ends_with(&self, claim: Claim) -> bool {
        let strong = self.strong && !matches!(claim, Claim::Strong);
        let weak = |side: Side| self.weak[side.index()] && !matches!(claim, Claim::Weak(given_up) if given_up == side);
        !strong && !Side::BOTH.into_iter().any(weak)
    }

    pub(crate) fn give_up(&mut self, claim: Claim) {
        match claim {
            Claim::Strong => self.strong = false,
            Claim::Weak(side) => self.weak[side.index()] = false,
        }
    }

    /// Returns its holds: those of commands, and subscriptions that only rtpengine's description shows.
    pub(crate) fn all_holds(&self) -> Vec<Hold> {
        let mut holds: Vec<Hold> = self.holds.iter().map(|held| held.hold.clone()).collect();
        let named: Vec<Holder> = holds.iter().map(|hold| hold.holder.clone()).collect();
        let described = self.subscribers.iter().map(|tag| Holder::Subscription(tag.clone()));
        let unseen = described.filter(|holder| !named.contains(holder));
        holds.extend(unseen.map(|holder| Hold::new(Reason::Subscription, "", holder)));
        holds
    }

    /// Returns the party whose media a hold is about; `None`: both, or unknown.
    pub(crate) fn side_of_hold(&self, hold: &Hold) -> Option<Side> {
        match &hold.holder {
            Holder::Side(side) => Some(*side),
            Holder::Party(selection) => selection.0.strip_prefix(b"from-tag=").and_then(|tag| self.side_of(tag)),
            _ => None,
        }
    }

    /// Returns the party that is named first in a command on one stream.
    pub(crate) fn first_of(&self, session: &Session) -> Side {
        if *session.from.name == *self.tag {
            Side::Caller
        } else {
            Side::Callee
        }
    }
}
