//! What the reply to `query` tells of a call, and the reply to a `delete` that names a party.

use crate::bits::bit_set;
use crate::error::{Fault, ParseError};
use crate::options::address;
use crate::value::{Value, decode};
use shunt_net::Endpoint;

bit_set! {
    /// What holds for one media section of one party.
    MediaFlags: u32 {
        INITIALIZED = "initialized",
        ASYMMETRIC = "asymmetric",
        SEND = "send",
        RECV = "recv",
        RTCP_MUX = "rtcp-mux",
        DTLS_SRTP = "DTLS-SRTP",
        DTLS_ACTIVE = "DTLS role active",
        DTLS_PASSIVE = "DTLS role passive",
        SDES = "SDES",
        /// SRTP passes as it is, because both sides have the same keys.
        PASSTHROUGH = "passthrough",
        ICE = "ICE",
        TRICKLE_ICE = "trickle ICE",
        /// Set on each second party, with ICE or without.
        ICE_CONTROLLING = "ICE controlling",
        ICE_LITE_PEER = "ICE-lite peer",
        ICE_LITE_SELF = "ICE-lite self",
        UNIDIRECTIONAL = "unidirectional",
        LOOP_CHECK = "loop check",
        TRANSCODING = "transcoding",
        GENERATOR = "generator/sink",
        PTIME_OVERRIDE = "ptime-override",
        RTCP_FEEDBACK = "RTCP feedback",
        RTCP_GENERATOR = "RTCP generator",
        ECHO = "echo",
        BLACKHOLE = "blackhole",
        SDES_REORDERED = "SDES reordered",
        AUDIO_PLAYER = "audio player",
        LEGACY_OSRTP = "legacy OSRTP",
        REVERSE_LEGACY_OSRTP = "reverse legacy OSRTP",
        BLOCK_EGRESS = "block egress",
    }
}

bit_set! {
    /// What holds for one stream.
    StreamFlags: u16 {
        RTP = "RTP",
        /// Together with RTP: both on one port.
        RTCP = "RTCP",
        /// The port of RTCP if the other side does not take rtcp-mux.
        FALLBACK_RTCP = "fallback RTCP",
        /// The party's address is known.
        FILLED = "filled",
        /// The endpoint was learned and is final until the next offer or answer.
        CONFIRMED = "confirmed",
        KERNELIZED = "kernelized",
        NO_KERNEL_SUPPORT = "no kernel support",
        FINGERPRINT_VERIFIED = "DTLS fingerprint verified",
        STRICT_SOURCE = "strict source address",
        MEDIA_HANDOVER = "media handover",
        ICE = "ICE",
    }
}

/// A call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDescription {
    /// Seconds since 1970.
    pub created: i64,
    /// The last offer or answer, likewise.
    pub last_signal: i64,
    /// In the order of the reply. If the query named a tag, that one is the first and those that have nothing to do with it are missing.
    pub tags: Vec<Tag>,
}

/// A party to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Empty for the callee before the answer.
    pub name: Vec<u8>,
    pub label: Option<Vec<u8>>,
    pub via_branch: Option<Vec<u8>>,
    pub created: i64,
    /// Whose media this party gets.
    pub subscriptions: Vec<Subscription>,
    /// Who gets this party's media.
    pub subscribers: Vec<Subscription>,
    pub medias: Vec<MediaDescription>,
}

/// One side of a flow of media.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    pub tag: Vec<u8>,
    /// By offer and answer, else by publish, subscribe or connect.
    pub offer_answer: bool,
}

/// A media section of one party.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaDescription {
    /// 1 for the first m= line.
    pub index: u32,
    /// `audio`, `video`, `image` …
    pub kind: String,
    /// `RTP/AVP` …; none for one that rtpengine does not know.
    pub protocol: Option<String>,
    /// The codec of the first packets: `PCMU/8000`.
    pub codec: Option<String>,
    pub flags: MediaFlags,
    /// Flags that are not known here.
    pub other: Vec<String>,
    pub streams: Vec<StreamDescription>,
}

/// RTP, RTCP or both of one media section of one party.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamDescription {
    /// The port that this party sends to, and from which it is sent to. None for port 0, and for a party that was deleted.
    pub local: Option<Endpoint>,
    /// Where this party is, as learned or else as advertised.
    pub endpoint: Option<Endpoint>,
    /// Where this party is, according to its SDP.
    pub advertised: Option<Endpoint>,
    pub flags: StreamFlags,
    /// Flags that are not known here.
    pub other: Vec<String>,
    pub ssrc: Option<u32>,
    pub crypto_suite: Option<String>,
    /// Seconds since 1970.
    pub last_packet: i64,
    pub packets: u64,
    pub bytes: u64,
    pub errors: u64,
}

/// Read the reply to `query`, or to a `delete` that names a party. What a newer rtpengine adds is passed over.
///
/// # Errors
/// It is no dictionary, or not the reply of a known call.
pub fn describe(reply: &[u8]) -> Result<CallDescription, ParseError> {
    let (_, body) = decode(reply)?;
    let tags = body.get("tags").filter(|tags| tags.is_dictionary());
    let tags = tags.ok_or(ParseError::new(Fault::Missing("tags"), 0))?.dictionary();
    Ok(CallDescription {
        created: number(&body, "created"),
        last_signal: number(&body, "last signal"),
        tags: tags.iter().map(|(key, value)| tag(key, value)).collect(),
    })
}

fn tag(key: &[u8], value: &Value<'_>) -> Tag {
    let flows = |name| {
        let items = value.get(name).map_or(&[][..], Value::list);
        items.iter().map(subscription).collect()
    };
    let text = |name| value.get(name).and_then(Value::text).map(<[u8]>::to_vec);
    Tag {
        // The key of a party without a tag is `<untagged 1>`.
        name: text("tag").unwrap_or_else(|| key.to_vec()),
        label: text("label"),
        via_branch: text("via-branch"),
        created: number(value, "created"),
        subscriptions: flows("subscriptions"),
        subscribers: flows("subscribers"),
        medias: value.get("medias").map_or(&[][..], Value::list).iter().map(media).collect(),
    }
}

fn subscription(value: &Value<'_>) -> Subscription {
    Subscription {
        tag: value.get("tag").and_then(Value::text).unwrap_or_default().to_vec(),
        offer_answer: value.get("type").and_then(Value::text).is_none_or(|kind| kind == b"offer/answer"),
    }
}

fn media(value: &Value<'_>) -> MediaDescription {
    let (mut known, mut other) = (MediaFlags::NONE, Vec::new());
    for flag in flags(value) {
        match MediaFlags::named(flag) {
            Some(flag) => known |= flag,
            None => other.push(lossy(flag)),
        }
    }
    MediaDescription {
        index: u32::try_from(number(value, "index")).unwrap_or(0),
        kind: text(value, "type").unwrap_or_default(),
        protocol: text(value, "protocol"),
        codec: text(value, "codec"),
        flags: known,
        other,
        streams: value.get("streams").map_or(&[][..], Value::list).iter().map(stream).collect(),
    }
}

fn stream(value: &Value<'_>) -> StreamDescription {
    let (mut known, mut other) = (StreamFlags::NONE, Vec::new());
    for flag in flags(value) {
        match StreamFlags::named(flag) {
            Some(flag) => known |= flag,
            None => other.push(lossy(flag)),
        }
    }
    let stats = |name| {
        let count = value.get("stats").map_or(0, |stats| number(stats, name));
        u64::try_from(count).unwrap_or(0)
    };
    StreamDescription {
        local: local(value),
        endpoint: value.get("endpoint").and_then(endpoint),
        advertised: value.get("advertised endpoint").and_then(endpoint),
        flags: known,
        other,
        ssrc: value.get("SSRC").and_then(Value::number).and_then(|ssrc| u32::try_from(ssrc).ok()),
        crypto_suite: text(value, "crypto suite"),
        last_packet: number(value, "last packet"),
        packets: stats("packets"),
        bytes: stats("bytes"),
        errors: stats("errors"),
    }
}

/// The local address and port of a stream.
fn local(stream: &Value<'_>) -> Option<Endpoint> {
    place(stream, "local address", "local port")
}

fn endpoint(value: &Value<'_>) -> Option<Endpoint> {
    place(value, "address", "port")
}

fn place(value: &Value<'_>, addr: &str, port: &str) -> Option<Endpoint> {
    let port = u16::try_from(value.get(port)?.number()?).ok().filter(|port| *port != 0)?;
    Some(Endpoint::new(address(value.get(addr)?.text()?)?, port))
}

fn flags<'v>(value: &'v Value<'_>) -> impl Iterator<Item = &'v [u8]> {
    let items = value.get("flags").map_or(&[][..], Value::list);
    items.iter().filter_map(Value::text)
}

fn number(value: &Value<'_>, key: &str) -> i64 {
    value.get(key).and_then(Value::number).unwrap_or(0)
}

fn text(value: &Value<'_>, key: &str) -> Option<String> {
    value.get(key).and_then(Value::text).map(lossy)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
