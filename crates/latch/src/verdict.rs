//! What goes into a latch, and what comes out.

use crate::time::Time;
use shunt_net::Endpoint;
use shunt_rtp::Source;

/// What the stream is. RTCP has no sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Component {
    Rtp,
    Rtcp,
}

/// A packet at the stream's port from a source that is not latched, or of which that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub at: Time,
    pub source: Endpoint,
    /// SSRC and sequence number of what looks like RTP or RTCP of version 2; `None` for anything else.
    pub media: Option<Source>,
}

/// What is known of the latched source besides the packets that came in here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// When its last packet came.
    pub last_packet: Time,
    /// Its last sequence number, if somebody who forwards its packets can tell.
    pub sequence: Option<u16>,
}

/// What to do with a packet, and with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The source is the stream's from now on.
    Latched,
    /// The same, by a NAT rebinding: the same SSRC goes on from there.
    Moved,
    /// The same, after a rebinding that was an injection: the source before it still sends.
    Restored,
    /// The source is the stream's.
    Known,
    /// It has shown continuity, and so has another source.
    Contested,
    /// Too little is known of it yet.
    Waiting,
    /// It would be latched if the latched source has fallen silent: see when its last packet came, and call [`Latch::answer`].
    Ask,
    Ignored(Ignored),
}

/// Why a source is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It scans, or somebody at an address that nobody names does, or it sends to both ports of a call.
    Scanner,
    /// The old source, just after signalling has moved the party.
    Quarantined,
    /// The stream of the call that had the port before.
    Former,
    /// Another source has the stream.
    Mismatch,
    /// The leg is declared asymmetric, and signalling does not name this address.
    Asymmetric,
}

impl Verdict {
    /// Whether the packet's source is the stream's now.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Latched | Self::Moved | Self::Restored | Self::Known)
    }
}
