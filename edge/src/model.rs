//! Requests and answers of the control API. `docs/reference/media-apis.md` is their reference.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use thiserror::Error;

/// The name of a session: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = plain.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(())
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a browser is there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Room,
    /// It only sends (WHIP).
    Publish,
    /// It only receives (WHEP).
    Watch,
}

/// A browser is to be let in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    #[serde(deserialize_with = "short")]
    pub conference: String,
    #[serde(deserialize_with = "short")]
    pub participant: String,
    pub offer: String,
    #[serde(default)]
    pub role: Role,
    #[serde(default, deserialize_with = "short")]
    pub label: String,
    /// Encodings that the answer may name, as SDP has them; all that the edge knows where there are none.
    #[serde(default)]
    pub codecs: Vec<String>,
}

/// The browser's description has changed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    pub offer: String,
}

/// The browser's ICE begins anew: its new credentials.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestartIce {
    pub ufrag: String,
    pub pwd: String,
}

/// The edge's side of an ICE session.
#[derive(Clone, Serialize)]
pub struct Ice {
    pub ufrag: String,
    pub pwd: String,
    /// As in SDP, without `a=`.
    pub candidates: Vec<String>,
}

/// Where the media of a session go.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    pub media: Vec<ConnectMedium>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectMedium {
    pub mid: String,
    /// `None`: nowhere any more.
    pub rtp: Option<SocketAddr>,
    /// Where it shares no port with RTP.
    #[serde(default)]
    pub rtcp: Option<SocketAddr>,
}

/// In octets: a participant's name has up to 64 characters.
const LONGEST_NAME: usize = 256;

fn short<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > LONGEST_NAME || text.chars().any(char::is_control) {
        return Err(serde::de::Error::custom(
            "a text of more than 256 octets, or with control characters",
        ));
    }
    Ok(text)
}

/// The browser's view of a media description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

impl Direction {
    /// Whether the browser receives.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, Self::SendRecv | Self::RecvOnly)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Audio,
    Video,
}

/// A codec as the plain side has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Codec {
    pub payload_type: u8,
    pub encoding: String,
    pub clock_rate: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fmtp: Option<String>,
}

/// How packets tell their layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layers {
    pub by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_id: Option<u8>,
}

/// A media description as the plain side has it.
#[derive(Clone, Debug, Serialize)]
pub struct Medium {
    pub mid: String,
    pub kind: Kind,
    pub direction: Direction,
    pub rtp: SocketAddr,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
}

/// An answer for the browser, and what the plain side has.
#[derive(Clone, Debug, Serialize)]
pub struct Answered {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    pub answer: String,
    pub media: Vec<Medium>,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    New,
    /// Connectivity checks have come.
    Connecting,
    Connected,
    /// No consent for a while; it may come back.
    Disconnected,
    Closed,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionSummary {
    pub session: SessionId,
    pub conference: String,
    pub participant: String,
    pub role: Role,
    pub label: String,
    pub state: State,
    /// Unix time.
    pub created: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionView {
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// The edge's ICE user name.
    pub ufrag: String,
    pub remote: Option<SocketAddr>,
    /// `udp` or `tcp`.
    pub transport: Option<&'static str>,
    pub srtp: Option<&'static str>,
    pub rtt_ms: Option<f64>,
    /// What the browser can be sent, bit/s.
    pub estimate: Option<u64>,
    /// What the browser is asked to send at most, bit/s.
    pub asked: u64,
    pub media: Vec<MediumView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct MediumView {
    #[serde(flatten)]
    pub medium: Medium,
    /// Where its plain RTP goes.
    pub connected: Option<SocketAddr>,
    pub from_browser: FromBrowser,
    pub to_browser: ToBrowser,
}

/// What came from the browser.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FromBrowser {
    pub packets: u64,
    pub bytes: u64,
    /// Share of packets lost before repair, as last reported; 0 to 1.
    pub lost: Option<f32>,
    pub jitter_ms: Option<f64>,
    pub nacks_sent: u64,
    pub key_frames_asked: u64,
    /// Packets that the data plane's side asked for again, and got.
    pub resent: u64,
    /// Packets that came before it was said where they go.
    pub unconnected: u64,
}

/// What came from the data plane and goes to the browser.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ToBrowser {
    pub packets: u64,
    pub bytes: u64,
    pub ssrc: Option<u32>,
    /// Packets lost before the edge, and those of them that came when they were asked for.
    pub lost: i64,
    pub repaired: u64,
    pub jitter_ms: Option<f64>,
    /// Share of packets lost after the edge, as the browser last reported.
    pub browser_lost: Option<f32>,
    pub nacks_received: u64,
    pub retransmitted: u64,
    pub key_frames_wanted: u64,
    /// Packets that did not go on: of another source than the medium's, of another address, and what cannot be sent.
    pub other_source: u64,
    /// Of another encoding of the same video.
    pub other_encoding: u64,
    /// Of spatial layers that the browser does not get.
    pub other_layer: u64,
    /// Spatial layers that come, once there is more than one, and how many of them the browser is sent.
    pub layers: Option<u8>,
    pub layers_sent: Option<u8>,
    pub other_address: u64,
    pub unusable: u64,
    /// Packets before the first key frame of a source.
    pub before_key_frame: u64,
}

/// A session's state has changed.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    pub session: SessionId,
    pub conference: String,
    pub participant: String,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Unix time.
    pub time: f64,
}

/// What was dropped, and of what there is how much.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drops {
    /// Packets of addresses that belong to no session.
    pub unknown_address: u64,
    /// Connectivity checks for no session, or with another key.
    pub unknown_user: u64,
    pub wrong_key: u64,
    /// Connectivity checks that came from another address before.
    pub copies: u64,
    /// Packets beyond the limit of an address that has shown no key.
    pub limited: u64,
    /// TCP connections beyond a limit, and those that were closed for what they sent.
    pub connections_refused: u64,
    pub connections_broken: u64,
    /// Packets that a socket did not take.
    pub send_failed: u64,
    /// Packets of browsers with a TCP connection that does not keep up.
    pub backlog: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub version: &'static str,
    pub uptime_s: f64,
    pub listen: Vec<SocketAddr>,
    pub tcp: bool,
    pub sessions: usize,
    pub media: usize,
    pub connections: usize,
    /// Addresses that have shown no key, as far as they are remembered.
    pub unknown_addresses: usize,
    pub limits: Limits,
    pub ports: Ports,
    pub from_browsers: u64,
    pub to_browsers: u64,
    pub dropped: Drops,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    pub sessions: usize,
    pub media: usize,
    pub unknown_packets: u32,
    pub connections_per_address: usize,
    pub connections: usize,
    pub send_bitrate: u64,
    pub receive_bitrate: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ports {
    pub first: u16,
    pub last: u16,
    pub used: usize,
}

/// Why a request is not carried out.
#[derive(Debug, Error)]
pub enum Refusal {
    #[error("{0}")]
    Invalid(String),
    #[error("there is no session {0}")]
    NotFound(String),
    /// A limit, and which.
    #[error("{0}")]
    Limit(String),
    #[error("{0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_names_read_back() {
        let id = SessionId(0x1234);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "12", "+0000000000000000000000000000012", "zz000000000000000000000000000012"] {
            assert_eq!(text.parse::<SessionId>(), Err(()), "{text}");
        }
    }

    #[test]
    fn a_request_says_what_it_means() {
        let create: Create = serde_json::from_str(r#"{"conference": "a", "participant": "b", "offer": "v=0"}"#).unwrap();
        assert_eq!((create.role, create.label.as_str()), (Role::Room, ""));
        for text in [
            r#"{"conference": "a", "participant": "b"}"#,
            r#"{"conference": "a\n", "participant": "b", "offer": ""}"#,
            r#"{"conference": "a", "participant": "b", "offer": "", "more": 1}"#,
        ] {
            assert!(serde_json::from_str::<Create>(text).is_err(), "{text}");
        }
    }
}
