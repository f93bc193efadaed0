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

            /// The word that logs, metrics and the admin API have.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What an operator should know.
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
    Silent "silent" "The data plane carries this stream, but this party has sent nothing for a while.";
    Refreshing "refreshing" "The relay is to see a packet of this stream, or it would end the call for want of media; with the next packet the entry goes in again.";
    Installing "installing" "The entry was sent to the data plane, which has not confirmed it yet.";
    WaitingForAnswer "waiting-for-answer" "The call has no answer with media yet, so only one relay port is known.";
    WaitingForMedia "waiting-for-media" "No packet from this party has been seen yet.";
    WaitingForOtherParty "waiting-for-other-party" "This party's address is known; the other one has not sent a packet yet.";
    VerifyingSource "verifying-source" "Packets arrive from an address that signalling does not name, or that several parties share; a few more are needed.";
    Contested "contested" "Two sources claim to be this party. The stream stays on the relay until one falls silent.";
    UnstableSource "unstable-source" "The party's address or port changes again and again. The stream stays on the relay until the source has stayed put for 30 s.";
    NotInDataPlane "not-in-data-plane" "The relay receives this party's packets, and the data plane never sees them: they come from the same host, a container, or an interface that is not configured.";
    RtcpMuxed "rtcp-muxed" "RTCP travels in the RTP stream (RFC 5761), so there is none of its own.";
    ReInvite "re-invite" "Signalling changes this media line; the entries are removed so that the relay sees the change, and the addresses are learned anew.";
    OnHold "on-hold" "The party put the call on hold with a null address or port 0; there is nowhere to send to.";
    ByeSeen "bye-seen" "A BYE or CANCEL for this call was seen; the entries are removed ahead of the relay's own delete.";
    Resize "resize" "The relay resizes packets of this media line (modifier Z); only it can do that.";
    Playback "playback" "The relay plays an announcement into this media line.";
    Recording "recording" "The relay records this call.";
    Copy "copy" "The relay copies this call's media to another place.";
    Dtmf "dtmf" "The relay listens for DTMF in this media line.";
    Srtp "srtp" "One party or both send SRTP whose keys the relay holds; only it can encrypt and decrypt.";
    Dtls "dtls" "The relay negotiates the keys of this media line by DTLS, in the media's own path.";
    Ice "ice" "The relay checks connectivity by ICE in this media line's own path.";
    Transcoding "transcoding" "The relay changes the codec, packet time or payload of this media line.";
    T38 "t38" "This media line is a fax by T.38, which is not RTP.";
    RtcpDemux "rtcp-demux" "One party sends RTCP in the RTP stream and the other one does not; the relay takes them apart.";
    Forwarding "forwarding" "The relay sends this call's media to another place too.";
    MediaBlocked "media-blocked" "The relay blocks or silences media or DTMF of this call.";
    Subscription "subscription" "Others have subscribed to this call's media at the relay.";
    Processing "processing" "An option of the offer or answer has the relay work on the packets itself: generated RTCP, a delay, an echo, feedback or header extensions removed.";
    CommandUnknown "command-unknown" "A command that the agent does not know was sent to the relay for this call.";
    OutsideMediaRanges "outside-media-ranges" "The relay gave this party an address or port that no configured media range has, so the data plane does not look at it.";
    AddressFamily "address-family" "The party's address is of another IP version than the relay port that sends to it.";
    PortTaken "port-taken" "The relay has given this party's port to another media line.";
    NoDataPlane "no-data-plane" "No data plane is configured.";
    DataPlaneUnavailable "data-plane-unavailable" "The data plane does not answer; its entries stay, no new one can be installed.";
    TableFull "table-full" "The data plane's relay table is full.";
    HashCollision "hash-collision" "Another stream's 5-tuple has the same hash in the switch, which cannot tell the two apart.";
    HostPolicy "host-policy" "The host would encrypt, translate, mark, block or route these packets in a way that the data plane does not (IPsec, NAT, routing rules); only the kernel can send them.";
    Rejected "rejected" "The data plane rejected the entry.";
    Draining "draining" "The agent is draining: no new stream is offloaded.";
    Released "released" "The media line was deleted by signalling.";
    MediaTimeout "media-timeout" "No packet for the relay's time-out: the agent ended the session and notified the SIP server.";
    RelayTimeout "relay-timeout" "The relay no longer has the session.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
