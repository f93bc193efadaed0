//! The book as others may read it.

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
    /// Of all its entries; of the present one as of `counted_at`.
    pub counters: Counters,
    /// When the present entry was last read; `None`: never.
    pub counted_at: Option<Time>,
    /// The last packet that met it, as of then.
    pub met_at: Option<Time>,
    /// No packet has met it since; `None`: packets do, or the data plane has reported nothing else.
    pub idle_since: Option<Time>,
}

/// A party.
#[derive(Clone, Debug, PartialEq)]
pub struct LegView<'a> {
    pub signalled: Option<Endpoint>,
    pub learned: Option<Endpoint>,
    pub learned_rtcp: Option<Endpoint>,
    /// Where the party sends to.
    pub relay: Option<Endpoint>,
    pub asymmetric: bool,
    /// Packets from other sources.
    pub mismatches: u64,
    /// RTP payload types with the number of notices of each.
    pub payload_types: &'a [(u8, u32)],
    /// The last one that a copy of SIP showed.
    pub sdp: Option<&'a Sdp>,
    /// RTP packets that the relay has counted, and when it was asked.
    pub relay_packets: Option<(u64, Time)>,
    /// Where it sends to, if nothing of it has arrived at its own relay port.
    pub misdirected: Option<Misdirected>,
    /// Who may send to the relay port; `None`: everybody.
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

    /// The tag that the relay's session is named after.
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

    /// Who sent the command that named the notify socket.
    #[must_use]
    pub fn notify_peer(&self) -> Option<IpAddr> {
        self.line.notification.as_ref()?.peer
    }

    /// Why the line is over; its last entries are on their way out.
    #[must_use]
    pub fn released(&self) -> Option<Reason> {
        self.line.released
    }

    /// Work of the relay on the media, with its holders.
    #[must_use]
    pub fn holds(&self) -> Vec<Hold> {
        self.line.all_holds()
    }

    /// The party whose media a hold is about; `None`: both, or that is not known.
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

    /// Where a party sends to, if nothing of it has arrived at its own relay port: by its signalled address and port, else by its address, if one
    /// party and one source are there.
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

    /// Whether a packet belongs to the party that is told to send there.
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

    /// What the data plane said of a stream's last write, if that failed.
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
    /// How many calls run.
    #[must_use]
    pub fn call_count(&self) -> usize {
        self.calls.len()
    }

    /// How many media lines there are.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// How many RTP streams there are in each state, for each reason; those that are none are left out.
    pub fn stream_counts(&self) -> impl Iterator<Item = (State, Reason, usize)> + '_ {
        State::ALL.into_iter().zip(&self.counts).flat_map(|(state, counts)| {
            let counts = Reason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
            counts.map(move |(reason, count)| (state, *reason, *count))
        })
    }

    /// How many recorders get media of lines at this time.
    #[must_use]
    pub fn recorder_count(&self) -> usize {
        self.recorders
    }

    /// All lines, in no order; also those whose last entries are on their way out.
    pub fn lines(&self) -> impl Iterator<Item = LineView<'_>> {
        self.lines.values().map(|line| LineView { book: self, line })
    }

    #[must_use]
    pub fn line(&self, id: LineId) -> Option<LineView<'_>> {
        self.lines.get(&id).map(|line| LineView { book: self, line })
    }

    /// The line that a U, L or Q is about, and whether its tags are swapped.
    #[must_use]
    pub fn line_of(&self, session: &Session) -> Option<(LineView<'_>, bool)> {
        let (id, swapped) = self.find(session)?;
        Some((self.line(id)?, swapped))
    }

    /// The lines of a Call-ID, as the control protocol has it.
    pub fn lines_of_call(&self, call_id: &[u8]) -> impl Iterator<Item = LineView<'_>> {
        let lines = self.calls.get(call_id).into_iter().flat_map(Call::ids);
        lines.filter_map(|id| self.line(id))
    }

    /// The stream whose packets arrive at a relay port.
    #[must_use]
    pub fn stream_at(&self, port: Endpoint) -> Option<StreamId> {
        self.table.stream_at(port)
    }

    /// All entries that are in the data plane or on their way in or out, with the stream that each is of.
    pub fn planned(&self) -> impl Iterator<Item = (StreamId, RelayEntry)> + '_ {
        self.table.rows()
    }

    #[must_use]
    pub fn planned_count(&self) -> usize {
        self.table.len()
    }

    /// Packets at ports of calls that were not their party's, since the start.
    #[must_use]
    pub fn source_mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Packets that the data plane has carried from a party, for the reply to Q.
    #[must_use]
    pub fn packets_from(&self, id: LineId, side: Side) -> u64 {
        self.lines
            .get(&id)
            .map_or(0, |line| line.stream(side, Component::Rtp).counters().packets)
    }

    /// Ports whose former streams are kept out of the next call.
    #[must_use]
    pub fn former_count(&self) -> usize {
        self.former.len()
    }
}
