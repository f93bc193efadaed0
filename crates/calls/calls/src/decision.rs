//! What the book decides: plain data, for those who do I/O.

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

/// Why the book asks a relay something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The session of an offloaded stream is to stay, or gets its own time-out back.
    KeepAlive,
    /// Has the relay the session still, and packets of it?
    Check,
    /// Has the relay packets of a party of which the data plane has seen none?
    Silence,
    /// Somebody wants to see how many packets the relay has counted.
    Count,
    /// A media time-out: the session is to end.
    Delete,
    /// A callee that lost a fork has hung up: the relay is to send to the other one.
    Restore,
}

/// One thing to do, or to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Write to the relay table; the result goes to [`crate::Book::written`].
    Write(Write),
    /// Who may send to a relay port and the RTCP port above it; `None`: everybody. An empty list: nobody.
    Filter { port: Endpoint, allowed: Option<Arc<[IpAddr]>> },
    /// A party of a call is at this address: it is no unknown source, also at a port that has no filter yet.
    Allow(IpAddr),
    /// Drop what a scanner sends.
    Block(Found),
    /// Delete an entry that no call claims: the relay has given its port to a new call.
    DeleteOrphan(FiveTuple),
    /// Read when these entries last met a packet, for [`crate::Book::idle_times`].
    ReadIdle(Vec<FiveTuple>),
    /// Send a relay a command of the book's own; the answer goes to [`crate::Book::relay_replied`].
    AskRelay {
        line: LineId,
        relay: RelayId,
        purpose: Purpose,
        command: Vec<u8>,
    },
    /// A stream is in another state, or has another reason for it.
    Changed {
        stream: StreamId,
        before: State,
        state: State,
        reason: Reason,
        /// The stream became offloaded: how long after both parties' first packet.
        after: Option<Duration>,
    },
    /// A packet came to a line's port that met no entry; what learning made of it.
    Learned {
        stream: StreamId,
        notice: Notice,
        verdict: Verdict,
    },
    /// Something to tell of a line.
    Happened { line: LineId, what: Happening },
    /// Report a media time-out to the SIP server.
    Notify {
        line: LineId,
        target: Result<NotifyTarget, NotifyError>,
        message: Vec<u8>,
    },
    /// The line's row is to be written to the journal ([`crate::Book::row`]).
    Store(LineId),
    /// The row is to be removed from the journal.
    Forget(RowKey),
    /// A call is over: no line of it runs, and all of its entries are out.
    Ended(Box<Ended>),
}

/// What an operator may want to know of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// Signalling changes the line: its entries are removed.
    Suspended(Reason),
    /// Signalling is through: learning goes on.
    Resumed,
    /// A party has another address.
    Moved {
        stream: StreamId,
        before: Endpoint,
        source: Endpoint,
    },
    /// A stream's entry has met no packet for this time.
    Idle { stream: StreamId, silent: Duration },
    /// It meets packets again.
    Active { stream: StreamId },
    /// The session ends for want of media in this time.
    MediaTimeout(Duration),
}

/// A call that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub call: Arc<[u8]>,
    /// When its first line began.
    pub created: Time,
    /// Why its last line ended.
    pub reason: Reason,
    /// In the order in which they began.
    pub lines: Vec<EndedLine>,
}

/// A media line that is over.
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
    /// Both relay ports were known.
    pub answered: bool,
    /// Recordings of its media by the relay, each with the party that it is about (`None`: both, or that is not known).
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

/// What a party of a line that is over has sent.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedParty {
    pub signalled: Option<Endpoint>,
    pub learned: Option<Endpoint>,
    /// Where it sent to.
    pub relay: Option<Endpoint>,
    /// What entries counted.
    pub rtp: Counters,
    pub rtcp: Counters,
    /// RTP packets by the relay's last word; `None`: nobody asked.
    pub relay_packets: Option<u64>,
    pub was_offloaded: bool,
    /// How long after both parties' first packet it was offloaded for the first time.
    pub offloaded_after: Option<Duration>,
    /// RTP payload types with the number of notices of each.
    pub payload_types: Vec<(u8, u32)>,
    /// The last one that a copy of SIP showed.
    pub sdp: Option<Sdp>,
    /// Packets from other sources.
    pub mismatches: u64,
}

impl EndedParty {
    /// Whether a packet of the party's own was seen.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.rtp.packets > 0 || self.relay_packets.is_some_and(|packets| packets > 0) || self.learned.is_some()
    }
}
