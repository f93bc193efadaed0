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
    SILENT: "The data plane carries this stream, but this party has sent nothing for a while.",
    REFRESHING: "The relay is to see a packet of this stream, or it would end the call for want of media; with the next packet the entry goes in again.",
    INSTALLING: "The entry was sent to the data plane, which has not confirmed it yet.",
    WAITING_FOR_ANSWER: "The call has no answer with media yet, so only one relay port is known.",
    WAITING_FOR_MEDIA: "No packet from this party has been seen yet.",
    WAITING_FOR_OTHER_PARTY: "This party's address is known; the other one has not sent a packet yet.",
    VERIFYING_SOURCE: "Packets arrive from an address that signalling does not name, or that several parties share; a few more are needed.",
    CONTESTED: "Two sources claim to be this party. The stream stays on the relay until one falls silent.",
    UNSTABLE_SOURCE: "The party's address or port changes again and again. The stream stays on the relay until the source has stayed put for 30 s.",
    NOT_IN_DATA_PLANE: "The relay receives this party's packets, and the data plane never sees them: they come from the same host, a container, or an interface that is not configured.",
    RTCP_MUXED: "RTCP travels in the RTP stream (RFC 5761), so there is none of its own.",
    RE_INVITE: "Signalling changes this media line; the entries are removed so that the relay sees the change, and the addresses are learned anew.",
    ON_HOLD: "The party put the call on hold with a null address or port 0; there is nowhere to send to.",
    BYE_SEEN: "A BYE or CANCEL for this call was seen; the entries are removed ahead of the relay's own delete.",
    RESIZE: "The relay resizes packets of this media line (modifier Z); only it can do that.",
    PLAYBACK: "The relay plays an announcement into this media line.",
    RECORDING: "The relay records this call.",
    COPY: "The relay copies this call's media to another place.",
    DTMF: "The relay listens for DTMF in this media line.",
    SRTP: "One party or both send SRTP whose keys the relay holds; only it can encrypt and decrypt.",
    DTLS: "The relay negotiates the keys of this media line by DTLS, in the media's own path.",
    ICE: "The relay checks connectivity by ICE in this media line's own path.",
    TRANSCODING: "The relay changes the codec, packet time or payload of this media line.",
    T38: "This media line is a fax by T.38, which is not RTP.",
    RTCP_DEMUX: "One party sends RTCP in the RTP stream and the other one does not; the relay takes them apart.",
    FORWARDING: "The relay sends this call's media to another place too.",
    MEDIA_BLOCKED: "The relay blocks or silences media or DTMF of this call.",
    SUBSCRIPTION: "Others have subscribed to this call's media at the relay.",
    PROCESSING: "An option of the offer or answer has the relay work on the packets itself: generated RTCP, a delay, an echo, feedback or header extensions removed.",
    COMMAND_UNKNOWN: "A command that the agent does not know was sent to the relay for this call.",
    OUTSIDE_MEDIA: "The relay gave this party an address or port that no configured media range has, so the data plane does not look at it.",
    ADDRESS_FAMILY: "The party's address is of another IP version than the relay port that sends to it.",
    PORT_TAKEN: "The relay has given this party's port to another media line.",
    NO_DATA_PLANE: "No data plane is configured.",
    DATA_PLANE_UNAVAILABLE: "The data plane does not answer; its entries stay, no new one can be installed.",
    TABLE_FULL: "The data plane's relay table is full.",
    HASH_COLLISION: "Another stream's 5-tuple has the same hash in the switch, which cannot tell the two apart.",
    HOST_POLICY: "The host would encrypt, translate, mark, block or route these packets in a way that the data plane does not (IPsec, NAT, routing rules); only the kernel can send them.",
    REJECTED: "The data plane rejected the entry.",
    DRAINING: "The agent is draining: no new stream is offloaded.",
    RELEASED: "The media line was deleted by signalling.",
    MEDIA_TIMEOUT: "No packet for the relay's time-out: the agent ended the session and notified the SIP server.",
    RELAY_TIMEOUT: "The relay no longer has the session.",
}
