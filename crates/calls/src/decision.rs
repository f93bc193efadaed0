//! What the book decides: plain data, for those who do I/O.

use crate::entry::Counters;
use crate::ids::{LineId, RelayId, State, StreamId};
use crate::journal::RowKey;
use crate::reason::Reason;
use crate::table::Write;
use shunt_latch::{Found, Time};
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtpproxy::{NotifyError, NotifyTarget};
use std::net::IpAddr;
use std::sync::Arc;

/// Why the book asks a relay something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The session of an offloaded stream is to stay, or gets its own time-out back.
    KeepAlive,
    /// Has the relay the session still, and packets of it?
    Check,
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
    Filter { port: Endpoint, allowed: Option<Vec<IpAddr>> },
    /// Drop what a scanner sends.
    Block(Found),
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
    },
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
    /// A line is over and all of its entries are out.
    Ended(Box<Ended>),
}

/// A media line that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub line: LineId,
    pub call: Arc<[u8]>,
    /// The tag that the relay's session was named after, and the other one.
    pub tag: Arc<[u8]>,
    pub other_tag: Option<Box<[u8]>>,
    pub media: Option<u32>,
    pub relay: RelayId,
    pub created: Time,
    pub reason: Reason,
    pub caller: EndedParty,
    pub callee: EndedParty,
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
    pub was_offloaded: bool,
    /// RTP payload types with the number of notices of each.
    pub payload_types: Vec<(u8, u32)>,
    /// Packets from other sources.
    pub mismatches: u64,
}
