//! Why a stream is in its state.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! reasons {
    ($($name:ident $word:literal $text:literal;)*) => {
        /// Why a stream is in its state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Reason {
            $(#[doc = $text] $name,)*
        }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the reason's name in logs, metrics and the admin API.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// Returns the explanation for an operator.
            #[must_use]
            pub fn explanation(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    Offloaded "offloaded" "The data plane carries this stream in both address translations; the relay sees none of it.";
    OneWay "one-way" "The data plane carries this stream to the address that signalling gave, because the other party has sent nothing yet.";
    Silent "silent" "The data plane carries this stream, but this party currently sends nothing.";
    Refreshing "refreshing" "The entry is removed until the relay has received a packet of this stream, because the relay would otherwise end the call for lack of media.";
    Installing "installing" "The entry was sent to the data plane, which has not confirmed it yet.";
    WaitingForAnswer "waiting-for-answer" "The call has no answer with media yet, so only one relay port is known.";
    WaitingForMedia "waiting-for-media" "No packet from this party has been seen yet.";
    WaitingForOtherParty "waiting-for-other-party" "This party's address is known; the other one has not sent a packet yet.";
    VerifyingSource "verifying-source" "Packets arrive from an address that signalling does not name, or that several parties share; a few more packets are needed.";
    Contested "contested" "Two sources claim to be this party. The stream stays on the relay until one stops sending.";
    UnstableSource "unstable-source" "The party's address or port changes repeatedly. The stream stays on the relay until the source has been stable for 30 s.";
    NotInDataPlane "not-in-data-plane" "The relay receives this party's packets, and the data plane never sees them: they come from the same host, a container, or an interface that is not configured.";
    RtcpMuxed "rtcp-muxed" "RTCP travels in the RTP stream (RFC 5761), so there is no separate RTCP stream.";
    ReInvite "re-invite" "Signalling changes this media line; the entries are removed so that the relay sees the change, and the addresses are learned anew.";
    OnHold "on-hold" "The party put the call on hold with a null address or port 0, so there is no address to send to.";
    ByeSeen "bye-seen" "A BYE or CANCEL for this call was seen; the entries are removed before the relay's delete arrives.";
    Resize "resize" "The relay resizes packets of this media line (modifier Z); only it can do that.";
    Playback "playback" "The relay plays an announcement into this media line.";
    Recording "recording" "The relay records this call.";
    Copy "copy" "The relay copies this call's media to another destination.";
    Dtmf "dtmf" "The relay listens for DTMF in this media line.";
    Srtp "srtp" "One party or both send SRTP whose keys the relay holds; only it can encrypt and decrypt.";
    Dtls "dtls" "The relay negotiates the keys of this media line by DTLS, on the media path.";
    Ice "ice" "The relay checks connectivity by ICE, on the media path.";
    Transcoding "transcoding" "The relay changes the codec, packet time or payload of this media line.";
    T38 "t38" "This media line is a fax by T.38, which is not RTP.";
    RtcpDemux "rtcp-demux" "One party sends RTCP in the RTP stream and the other one does not; the relay separates them.";
    Forwarding "forwarding" "The relay also sends this call's media to another destination.";
    MediaBlocked "media-blocked" "The relay blocks or silences media or DTMF of this call.";
    Subscription "subscription" "Others have subscribed to this call's media at the relay.";
    Processing "processing" "An option of the offer or answer makes the relay process the packets: it generates RTCP, delays or echoes media, or removes feedback or header extensions.";
    CommandUnknown "command-unknown" "A command that the agent does not know was sent to the relay for this call.";
    OutsideMediaRanges "outside-media-ranges" "The relay gave this party an address or port outside the configured media ranges, so the data plane ignores it.";
    AddressFamily "address-family" "The party's address has a different IP version than the relay port that sends to it.";
    PortTaken "port-taken" "The relay has given this party's port to another media line.";
    NoDataPlane "no-data-plane" "No data plane is configured.";
    DataPlaneUnavailable "data-plane-unavailable" "The data plane does not answer; its entries stay, but no new entry can be installed.";
    TableFull "table-full" "The data plane's relay table is full.";
    HashCollision "hash-collision" "Another stream's 5-tuple has the same hash in the switch, which cannot tell the two apart.";
    HostPolicy "host-policy" "The host would encrypt, translate, mark, block or route these packets in a way that the data plane does not (IPsec, NAT, routing rules); only the kernel can send them.";
    Rejected "rejected" "The data plane rejected the entry.";
    Draining "draining" "The agent is draining: no new stream is offloaded.";
    Released "released" "The media line was deleted by signalling.";
    MediaTimeout "media-timeout" "No packet arrived within the relay's time-out: the agent ended the session and notified the SIP server.";
    RelayTimeout "relay-timeout" "The relay no longer has the session.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
