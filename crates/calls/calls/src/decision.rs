//! What the book decides: plain data for the components that do I/O.

use crate::book::Notice;
use crate::entry::Counters;
use crate::hold::Hold;
use crate::ids::{LineId, RelayId, Side, State, StreamId};
use crate::journal::RowKey;
use crate::reason::Reason;
use crate::sdp::Sdp;
use crate::table::Write;
use shunt_latch::{Found, Time, Verdict};
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtpproxy::{NotifyError, NotifyTarget};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The purpose of a command that the book sends to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Keep the session of an offloaded stream, or restore its time-out.
    KeepAlive,
    /// Query whether the relay still has the session, and its packet count.
    Check,
    /// Query the relay's count for a party from which the data plane has seen no packet.
    Silence,
    /// Query the relay's packet count for a client of the admin API.
    Count,
    /// End the session after a media time-out.
    Delete,
    /// Make the relay send to another callee, because one that lost a fork has hung up.
    Restore,
}

/// One action to execute, or one event to report.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Write to the relay table; the result goes to [`crate::Book::written`].
    Write(Write),
    /// The sources allowed at a relay port and the RTCP port above it; `None`: all, an empty list: none.
    Filter { port: Endpoint, allowed: Option<Arc<[IpAddr]>> },
    /// A party of a call is at this address: it is no unknown source, even at a port without a filter.
    Allow(IpAddr),
    /// Drop packets from a scanner.
    Block(Found),
    /// Delete an entry that no call claims, because the relay has given its port to a new call.
    DeleteOrphan(FiveTuple),
    /// Read when these entries last matched a packet, for [`crate::Book::idle_times`].
    ReadIdle(Vec<FiveTuple>),
    /// Send a command of the book to a relay; the answer goes to [`crate::Book::relay_replied`].
    AskRelay {
        line: LineId,
        relay: RelayId,
        purpose: Purpose,
        command: Vec<u8>,
    },
    /// A stream's state or reason has changed.
    Changed {
        stream: StreamId,
        before: State,
        state: State,
        reason: Reason,
        /// If the stream became offloaded: the time since both parties' first packet.
        after: Option<Duration>,
    },
    /// A packet at a line's port matched no entry; this is what learning concluded.
    Learned {
        stream: StreamId,
        notice: Notice,
        verdict: Verdict,
    },
    /// An event of a line.
    Happened { line: LineId, what: Happening },
    /// Report a media time-out to the SIP server.
    Notify {
        line: LineId,
        target: Result<NotifyTarget, NotifyError>,
        message: Vec<u8>,
    },
    /// Write the line's row to the journal ([`crate::Book::row`]).
    Store(LineId),
    /// Remove the row from the journal.
    Forget(RowKey),
    /// A call has ended: it has no running line, and all of its entries have been removed.
    Ended(Box<Ended>),
}

/// An event of a line that may interest an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// Signalling changes the line: its entries are removed.
    Suspended(Reason),
    /// Signalling has completed: learning continues.
    Resumed,
    /// A party has another address.
    Moved {
        stream: StreamId,
        before: Endpoint,
        source: Endpoint,
    },
    /// A stream's entry has matched no packet for this time.
    Idle { stream: StreamId, silent: Duration },
    /// The entry matches packets again.
    Active { stream: StreamId },
    /// The session ends after this time unless media arrives.
    MediaTimeout(Duration),
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub call: Arc<[u8]>,
    /// When its first line began.
    pub created: Time,
    /// Why its last line ended.
    pub reason: Reason,
    /// Ordered by their begin.
    pub lines: Vec<EndedLine>,
}

/// A media line that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedLine {
    pub line: LineId,
    /// The tag that the relay's session was named after, and the other one.
    pub tag: Arc<[u8]>,
    pub other_tag: Option<Box<[u8]>>,
    pub media: Option<u32>,
    pub relay: RelayId,
    pub created: Time,
    pub reason: Reason,
    /// Whether both relay ports were known.
    pub answered: bool,
    /// Recordings of its media by the relay, each with the party that it covers (`None`: both, or unknown).
    pub recorded: Vec<(Hold, Option<Side>)>,
    pub caller: EndedParty,
    pub callee: EndedParty,
}

impl EndedLine {
    #[must_use]
    pub fn party(&self, side: Side) -> &EndedParty {
        match side {
            Side::Caller => &self.caller,
            Side::Callee => &self.callee,
        }
    }
}

/// What a party of an ended line has sent.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedParty {
    pub signalled: Option<Endpoint>,
    pub learned: Option<Endpoint>,
    /// Relay port that the party sent to.
    pub relay: Option<Endpoint>,
    /// Counters of its entries.
    pub rtp: Counters,
    pub rtcp: Counters,
    /// RTP packets in the relay's last answer; `None`: the relay was not queried.
    pub relay_packets: Option<u64>,
    pub was_offloaded: bool,
    /// Time from both parties' first packet to the first offload.
    pub offloaded_after: Option<Duration>,
    /// RTP payload types, with the number of notices of each.
    pub payload_types: Vec<(u8, u32)>,
    /// Latest SDP in a copy of SIP.
    pub sdp: Option<Sdp>,
    /// Packets from sources that do not match.
    pub mismatches: u64,
}

impl EndedParty {
    /// Returns whether any packet from the party was seen.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.rtp.packets > 0 || self.relay_packets.is_some_and(|packets| packets > 0) || self.learned.is_some()
    }
}
