//! Read access to the book.

use super::Book;
use crate::call::Call;
use crate::entry::{Counters, RelayEntry};
use crate::hold::Hold;
use crate::ids::{LineId, RelayId, Side, State, StreamId};
use crate::line::Line;
use crate::misdirected::Misdirected;
use crate::reason::Reason;
use crate::sdp::Sdp;
use shunt_latch::{Component, Time};
use shunt_net::Endpoint;
use shunt_rtpproxy::Session;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// A media line.
#[derive(Clone, Copy, Debug)]
pub struct LineView<'a> {
    book: &'a Book,
    line: &'a Line,
}

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamView {
    pub id: StreamId,
    pub state: State,
    pub reason: Reason,
    pub since: Time,
    /// The entry that the data plane has confirmed.
    pub entry: Option<RelayEntry>,
    pub was_offloaded: bool,
    pub offloaded_after: Option<Duration>,
    /// Counters of all its entries; those of the present entry as of `counted_at`.
    pub counters: Counters,
    /// When the present entry was last read; `None`: never.
    pub counted_at: Option<Time>,
    /// Last packet that matched it, as of that time.
    pub met_at: Option<Time>,
    /// Time since which no packet has matched it; `None`: packets match, or the data plane has not reported it idle.
    pub idle_since: Option<Time>,
}

/// A party.
#[derive(Clone, Debug, PartialEq)]
pub struct LegView<'a> {
    pub signalled: Option<Endpoint>,
    pub learned: Option<Endpoint>,
    pub learned_rtcp: Option<Endpoint>,
    /// Relay port that the party sends to.
    pub relay: Option<Endpoint>,
    pub asymmetric: bool,
    /// Packets from sources that do not match.
    pub mismatches: u64,
    /// RTP payload types, with the number of notices of each.
    pub payload_types: &'a [(u8, u32)],
    /// Latest SDP in a copy of SIP.
    pub sdp: Option<&'a Sdp>,
    /// RTP packets that the relay has counted, and the time of the query.
    pub relay_packets: Option<(u64, Time)>,
    /// Where it sends to instead, if nothing from it has arrived at its own relay port.
    pub misdirected: Option<Misdirected>,
    /// Sources allowed at the relay port; `None`: all.
    pub filter: Option<&'a [IpAddr]>,
}

impl<'a> LineView<'a> {
    #[must_use]
    pub fn id(&self) -> LineId {
        self.line.id
    }

    #[must_use]
    pub fn call_id(&self) -> &'a [u8] {
        &self.line.call
    }

    /// Returns the tag that the relay's session is named after.
    #[must_use]
    pub fn tag(&self) -> &'a [u8] {
        &self.line.tag
    }

    #[must_use]
    pub fn other_tag(&self) -> Option<&'a [u8]> {
        self.line.other_tag()
    }

    #[must_use]
    pub fn media(&self) -> Option<u32> {
        self.line.media
    }

    #[must_use]
    pub fn relay(&self) -> RelayId {
        self.line.relay
    }

    #[must_use]
    pub fn created(&self) -> Time {
        self.line.created
    }

    /// Returns the sender of the command that named the notify socket.
    #[must_use]
    pub fn notify_peer(&self) -> Option<IpAddr> {
        self.line.notification.as_ref()?.peer
    }

    /// Returns why the line has ended; its last entries are being removed.
    #[must_use]
    pub fn released(&self) -> Option<Reason> {
        self.line.released
    }

    /// Returns the relay's work on the media, with its holders.
    #[must_use]
    pub fn holds(&self) -> Vec<Hold> {
        self.line.all_holds()
    }

    /// Returns the party whose media a hold is about; `None`: both, or unknown.
    #[must_use]
    pub fn side_of(&self, hold: &Hold) -> Option<Side> {
        self.line.side_of_hold(hold)
    }

    #[must_use]
    pub fn leg(&self, side: Side) -> LegView<'a> {
        let leg = self.line.leg(side);
        LegView {
            signalled: leg.signalled,
            learned: leg.rtp.learned(),
            learned_rtcp: leg.rtcp.learned(),
            relay: leg.relay,
            asymmetric: leg.asymmetric,
            mismatches: leg.mismatches,
            payload_types: &leg.payload_types,
            sdp: leg.sdp.as_ref(),
            relay_packets: self.line.relay_counts.map(|(counts, at)| (counts[side.index()], at)),
            misdirected: self.misdirected(side),
            filter: leg.filter.as_deref(),
        }
    }

    /// Returns where a party sends to, if nothing from it has arrived at its own relay port. It is identified by its signalled address and
    /// port, else by its address if that has only one party and one source.
    fn misdirected(&self, side: Side) -> Option<Misdirected> {
        let leg = self.line.leg(side);
        let right = leg.relay.filter(|_| leg.rtp.learned().is_none() && self.line.released.is_none())?;
        let elsewhere = |addr| self.book.arrivals.elsewhere(addr, right, self.line.created);
        let exact = leg
            .signalled
            .and_then(|signalled| elsewhere(signalled.addr).find(|seen| seen.source == signalled));
        exact.or_else(|| {
            let named: BTreeSet<IpAddr> = leg.rtp.names().iter().map(|name| name.addr).collect();
            let alone = named.into_iter().filter(|addr| !self.book.learner.parties.is_shared(*addr));
            let mut seen = alone.flat_map(elsewhere).filter(|seen| !self.is_latched(*seen));
            seen.next().filter(|_| seen.next().is_none())
        })
    }

    /// Returns whether a packet's source is latched for the party that is to send to that port.
    fn is_latched(&self, seen: Misdirected) -> bool {
        let owner = self.book.table.stream_at(seen.port);
        let line = owner.and_then(|id| Some((id, self.book.lines.get(&id.line)?)));
        line.is_some_and(|(id, line)| line.leg(id.sender).latch(id.component).is_latched_to(seen.source))
    }

    #[must_use]
    pub fn stream(&self, sender: Side, component: Component) -> StreamView {
        let id = StreamId {
            line: self.line.id,
            sender,
            component,
        };
        let stream = self.line.stream(sender, component);
        let port = self.line.leg(sender).relay_port(component);
        let (counted_at, met_at) = stream.last_read();
        StreamView {
            id,
            state: stream.state,
            reason: stream.reason,
            since: stream.since,
            entry: port.and_then(|port| self.book.table.present(id, port)),
            was_offloaded: stream.was_offloaded,
            offloaded_after: stream.offloaded_after(),
            counters: stream.counters(),
            counted_at,
            met_at,
            idle_since: stream.idle_since,
        }
    }

    /// Returns the data plane's text on a stream's last write, if that failed.
    #[must_use]
    pub fn detail(&self, sender: Side, component: Component) -> Option<&'a str> {
        let stream = self.line.stream(sender, component);
        let failed = matches!(
            stream.reason,
            Reason::TableFull | Reason::HashCollision | Reason::HostPolicy | Reason::Rejected | Reason::DataPlaneUnavailable
        );
        stream.failure.as_ref()?.detail.as_deref().filter(|_| failed)
    }

    /// RTP of both parties, then RTCP.
    pub fn streams(&self) -> impl Iterator<Item = StreamView> + use<'a> {
        let view = *self;
        self.line.stream_ids().map(move |id| view.stream(id.sender, id.component))
    }
}

impl Book {
    /// Returns the number of running calls.
    #[must_use]
    pub fn call_count(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of media lines.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Returns how many RTP streams are in each state, by reason, without zeros.
    pub fn stream_counts(&self) -> impl Iterator<Item = (State, Reason, usize)> + '_ {
        State::ALL.into_iter().zip(&self.counts).flat_map(|(state, counts)| {
            let counts = Reason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
            counts.map(move |(reason, count)| (state, *reason, *count))
        })
    }

    /// Returns how many recorders currently get media of lines.
    #[must_use]
    pub fn recorder_count(&self) -> usize {
        self.recorders
    }

    /// Returns all lines in no particular order, including those whose last entries are being removed.
    pub fn lines(&self) -> impl Iterator<Item = LineView<'_>> {
        self.lines.values().map(|line| LineView { book: self, line })
    }

    #[must_use]
    pub fn line(&self, id: LineId) -> Option<LineView<'_>> {
        self.lines.get(&id).map(|line| LineView { book: self, line })
    }

    /// Returns the line of a U, L or Q, and whether its tags are swapped.
    #[must_use]
    pub fn line_of(&self, session: &Session) -> Option<(LineView<'_>, bool)> {
        let (id, swapped) = self.find(session)?;
        Some((self.line(id)?, swapped))
    }

    /// Returns the lines of a Call-ID, as the control protocol names it.
    pub fn lines_of_call(&self, call_id: &[u8]) -> impl Iterator<Item = LineView<'_>> {
        let lines = self.calls.get(call_id).into_iter().flat_map(Call::ids);
        lines.filter_map(|id| self.line(id))
    }

    /// Returns the stream whose packets arrive at a relay port.
    #[must_use]
    pub fn stream_at(&self, port: Endpoint) -> Option<StreamId> {
        self.table.stream_at(port)
    }

    /// Returns all entries that are in the data plane, being installed or being removed, each with its stream.
    pub fn planned(&self) -> impl Iterator<Item = (StreamId, RelayEntry)> + '_ {
        self.table.rows()
    }

    #[must_use]
    pub fn planned_count(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of packets at ports of calls from sources that did not match, since the start.
    #[must_use]
    pub fn source_mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Returns the packets that the data plane has carried from a party, for the reply to Q.
    #[must_use]
    pub fn packets_from(&self, id: LineId, side: Side) -> u64 {
        self.lines
            .get(&id)
            .map_or(0, |line| line.stream(side, Component::Rtp).counters().packets)
    }

    /// Returns the ports whose former streams are kept out of the next call.
    #[must_use]
    pub fn former_count(&self) -> usize {
        self.former.len()
    }
}
