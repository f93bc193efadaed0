"""Why a stream is in its state: the words of `shunt why`, each with what an operator should know. The agent has the same (crates/calls/calls/src/reason.rs)."""

from __future__ import annotations

OFFLOADED = "offloaded"
ONE_WAY = "one-way"
SILENT = "silent"
REFRESHING = "refreshing"
INSTALLING = "installing"
WAITING_FOR_ANSWER = "waiting-for-answer"
WAITING_FOR_MEDIA = "waiting-for-media"
WAITING_FOR_OTHER_PARTY = "waiting-for-other-party"
VERIFYING_SOURCE = "verifying-source"
CONTESTED = "contested"
UNSTABLE_SOURCE = "unstable-source"
NOT_IN_DATA_PLANE = "not-in-data-plane"
RTCP_MUXED = "rtcp-muxed"
RE_INVITE = "re-invite"
ON_HOLD = "on-hold"
BYE_SEEN = "bye-seen"
RESIZE = "resize"
PLAYBACK = "playback"
RECORDING = "recording"
COPY = "copy"
DTMF = "dtmf"
SRTP = "srtp"
DTLS = "dtls"
ICE = "ice"
TRANSCODING = "transcoding"
T38 = "t38"
RTCP_DEMUX = "rtcp-demux"
FORWARDING = "forwarding"
MEDIA_BLOCKED = "media-blocked"
SUBSCRIPTION = "subscription"
PROCESSING = "processing"
COMMAND_UNKNOWN = "command-unknown"
OUTSIDE_MEDIA = "outside-media-ranges"
ADDRESS_FAMILY = "address-family"
PORT_TAKEN = "port-taken"
NO_DATA_PLANE = "no-data-plane"
DATA_PLANE_UNAVAILABLE = "data-plane-unavailable"
TABLE_FULL = "table-full"
HASH_COLLISION = "hash-collision"
HOST_POLICY = "host-policy"
REJECTED = "rejected"
DRAINING = "draining"
RELEASED = "released"
MEDIA_TIMEOUT = "media-timeout"
RELAY_TIMEOUT = "relay-timeout"

REASONS: dict[str, str] = {
    OFFLOADED: "The data plane carries this stream in both address translations; the relay sees none of it.",
    ONE_WAY: "The data plane carries this stream to the address that signalling gave, because the other party has sent nothing yet.",
    SILENT: "The data plane carries this stream, but this party currently sends nothing.",
    REFRESHING: "The entry is removed until the relay has received a packet of this stream, because the relay would otherwise end the call for lack of media.",
    INSTALLING: "The entry was sent to the data plane, which has not confirmed it yet.",
    WAITING_FOR_ANSWER: "The call has no answer with media yet, so only one relay port is known.",
    WAITING_FOR_MEDIA: "No packet from this party has been seen yet.",
    WAITING_FOR_OTHER_PARTY: "This party's address is known; the other one has not sent a packet yet.",
    VERIFYING_SOURCE: "Packets arrive from an address that signalling does not name, or that several parties share; a few more packets are needed.",
    CONTESTED: "Two sources claim to be this party. The stream stays on the relay until one stops sending.",
    UNSTABLE_SOURCE: "The party's address or port changes repeatedly. The stream stays on the relay until the source has been stable for 30 s.",
    NOT_IN_DATA_PLANE: "The relay receives this party's packets, and the data plane never sees them: they come from the same host, a container, or an interface that is not configured.",
    RTCP_MUXED: "RTCP travels in the RTP stream (RFC 5761), so there is no separate RTCP stream.",
    RE_INVITE: "Signalling changes this media line; the entries are removed so that the relay sees the change, and the addresses are learned anew.",
    ON_HOLD: "The party put the call on hold with a null address or port 0, so there is no address to send to.",
    BYE_SEEN: "A BYE or CANCEL for this call was seen; the entries are removed before the relay's delete arrives.",
    RESIZE: "The relay resizes packets of this media line (modifier Z); only it can do that.",
    PLAYBACK: "The relay plays an announcement into this media line.",
    RECORDING: "The relay records this call.",
    COPY: "The relay copies this call's media to another destination.",
    DTMF: "The relay listens for DTMF in this media line.",
    SRTP: "One party or both send SRTP whose keys the relay holds; only it can encrypt and decrypt.",
    DTLS: "The relay negotiates the keys of this media line by DTLS, on the media path.",
    ICE: "The relay checks connectivity by ICE, on the media path.",
    TRANSCODING: "The relay changes the codec, packet time or payload of this media line.",
    T38: "This media line is a fax by T.38, which is not RTP.",
    RTCP_DEMUX: "One party sends RTCP in the RTP stream and the other one does not; the relay separates them.",
    FORWARDING: "The relay also sends this call's media to another destination.",
    MEDIA_BLOCKED: "The relay blocks or silences media or DTMF of this call.",
    SUBSCRIPTION: "Others have subscribed to this call's media at the relay.",
    PROCESSING: "An option of the offer or answer makes the relay process the packets: it generates RTCP, delays or echoes media, or removes feedback or header extensions.",
    COMMAND_UNKNOWN: "A command that the agent does not know was sent to the relay for this call.",
    OUTSIDE_MEDIA: "The relay gave this party an address or port outside the configured media ranges, so the data plane ignores it.",
    ADDRESS_FAMILY: "The party's address has a different IP version than the relay port that sends to it.",
    PORT_TAKEN: "The relay has given this party's port to another media line.",
    NO_DATA_PLANE: "No data plane is configured.",
    DATA_PLANE_UNAVAILABLE: "The data plane does not answer; its entries stay, but no new entry can be installed.",
    TABLE_FULL: "The data plane's relay table is full.",
    HASH_COLLISION: "Another stream's 5-tuple has the same hash in the switch, which cannot tell the two apart.",
    HOST_POLICY: "The host would encrypt, translate, mark, block or route these packets in a way that the data plane does not (IPsec, NAT, routing rules); only the kernel can send them.",
    REJECTED: "The data plane rejected the entry.",
    DRAINING: "The agent is draining: no new stream is offloaded.",
    RELEASED: "The media line was deleted by signalling.",
    MEDIA_TIMEOUT: "No packet arrived within the relay's time-out: the agent ended the session and notified the SIP server.",
    RELAY_TIMEOUT: "The relay no longer has the session.",
}
