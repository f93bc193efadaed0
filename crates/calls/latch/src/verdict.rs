//! Input and output of a latch.

use crate::time::Time;
use shunt_net::Endpoint;
use shunt_rtp::Source;

/// The kind of stream. RTCP has no sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Component {
    Rtp,
    Rtcp,
}

/// A packet at the stream's port, from a source that may not be the latched one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub at: Time,
    pub source: Endpoint,
    /// SSRC and sequence number of RTP or RTCP version 2; `None` for anything else.
    pub media: Option<Source>,
}

/// Facts about the latched source, in addition to the packets seen here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Time of its last packet.
    pub last_packet: Time,
    /// Its last sequence number, if the forwarder of its packets reports it.
    pub sequence: Option<u16>,
}

/// What to do with a packet and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The source is latched from now on.
    Latched,
    /// The source is latched after a NAT rebinding: the same SSRC continues from this source.
    Moved,
    /// The former source is latched again, because an injection looked like a rebinding and the former source still sends.
    Restored,
    /// The source is latched already.
    Known,
    /// This source and another one have shown continuity.
    Contested,
    /// The source has not shown enough yet.
    Waiting,
    /// The source would be latched if the latched one is silent. Read the time of the latched source's last packet, and call
    /// [`Latch::answer`].
    Ask,
    Ignored(Ignored),
}

/// Reason why a source is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The source scans, or an unsignalled source at its address does, or it sends to both ports of a call.
    Scanner,
    /// The old source, just after signalling has moved the party.
    Quarantined,
    /// The stream of the call that had the port before.
    Former,
    /// Another source is latched.
    Mismatch,
    /// The leg is declared asymmetric, and signalling does not name this address.
    Asymmetric,
}

impl Verdict {
    /// Returns whether the packet's source is now the stream's latched source.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Latched | Self::Moved | Self::Restored | Self::Known)
    }
}
