//! Rows of the journal: one per media line, so that the cost of a command does not depend on the number of lines of its call.
//!
//! Times are Unix times in ms. A missing field has its default, and an unknown one is ignored.

use crate::alike::Alike;
use crate::hold::Hold;
use crate::ids::{Side, component_index};
use crate::line::Line;
use crate::reason::Reason;
use crate::sdp::{Sdp, SdpFormat, SdpKind};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shunt_hep::sip::Direction;
use shunt_latch::Component;
use shunt_net::Endpoint;
use std::fmt;
use std::net::IpAddr;
use thiserror::Error;

/// Version of the row format.
pub(crate) const FORMAT: u32 = 3;

/// Bytes that usually are text: written as a string if they are UTF-8, else as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(pub Vec<u8>);

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Text {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_seq(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of bytes")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.as_bytes().to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
                let mut bytes = Vec::new();
                while let Some(number) = seq.next_element::<u64>()? {
                    bytes.push(u8::try_from(number).map_err(|_| A::Error::custom("not a byte"))?);
                }
                Ok(Text(bytes))
            }
        }
        deserializer.deserialize_any(Bytes)
    }
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowKey {
    pub call_id: Text,
    /// The tag that the relay's session is named after.
    pub tag: Text,
    pub media: Option<u32>,
}

impl RowKey {
    pub(crate) fn of(line: &Line) -> Self {
        Self {
            call_id: (&*line.call).into(),
            tag: (&*line.tag).into(),
            media: line.media,
        }
    }
}

/// A media line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub format: u32,
    pub key: RowKey,
    /// Configured name of the relay.
    pub relay: String,
    pub created_ms: u64,
    #[serde(default)]
    pub branches: Vec<BranchRow>,
    #[serde(default)]
    pub notification: Option<NotificationRow>,
    /// What keeps the line on the relay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldRow>,
    /// Recordings that have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorded: Vec<Hold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub described: Option<Reason>,
    /// Receivers of copies in rtpengine's description.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<Text>,
    /// The caller's claim by modifier w.
    #[serde(default)]
    pub weak: bool,
    #[serde(default)]
    pub weak_callee: bool,
    pub strong: bool,
    #[serde(default)]
    pub kept_alive_ms: Option<u64>,
    #[serde(default)]
    pub ttl_raised: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
    pub caller: LegRow,
    pub callee: LegRow,
    /// Streams that were offloaded.
    #[serde(default)]
    pub streams: Vec<StreamRow>,
}

/// Work of the relay on the line's media.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldRow {
    #[serde(flatten)]
    pub hold: Hold,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// A callee of a forked call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchRow {
    pub tag: Text,
    pub signalled: Option<Endpoint>,
    #[serde(default)]
    pub modifiers: Text,
    #[serde(default, skip_serializing_if = "Text::is_empty")]
    pub via: Text,
    #[serde(default)]
    pub confirmed: bool,
}

/// Where a media time-out is reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotificationRow {
    pub socket: Text,
    pub tag: Text,
    pub peer: Option<IpAddr>,
}

/// A party.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LegRow {
    pub signalled: Option<Endpoint>,
    pub relay: Option<Endpoint>,
    #[serde(default)]
    pub modifiers: Text,
    #[serde(default)]
    pub keepalive: Text,
    #[serde(default)]
    pub asymmetric: bool,
    #[serde(default)]
    pub muxes: bool,
    #[serde(default)]
    pub signalled_rtcp: Option<Endpoint>,
    #[serde(default)]
    pub names: Vec<NameRow>,
    #[serde(default)]
    pub rtp: Option<LearnedRow>,
    #[serde(default)]
    pub rtcp: Option<LearnedRow>,
    /// RTP payload types with the number of notices of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub payload_types: Vec<(u8, u32)>,
    /// Packets from sources that do not match.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mismatches: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sdp: Option<SdpRow>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The last SDP of a party.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SdpRow {
    pub medium: Text,
    /// Payload type, encoding, clock rate.
    pub formats: Vec<(u8, Text, u32)>,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub direction: DirectionRow,
    #[serde(default)]
    pub ptime_ms: Option<u16>,
    #[serde(default)]
    pub rtcp_mux: bool,
}

/// RFC 8866 section 6.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectionRow {
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

impl From<&Sdp> for SdpRow {
    fn from(sdp: &Sdp) -> Self {
        let formats = sdp.kind.formats.iter();
        Self {
            medium: (&*sdp.kind.medium).into(),
            formats: formats
                .map(|format| (format.payload_type, (&*format.encoding).into(), format.clock_rate))
                .collect(),
            address: sdp.address,
            port: sdp.port,
            direction: match sdp.direction {
                Direction::SendRecv => DirectionRow::SendRecv,
                Direction::SendOnly => DirectionRow::SendOnly,
                Direction::RecvOnly => DirectionRow::RecvOnly,
                Direction::Inactive => DirectionRow::Inactive,
            },
            ptime_ms: sdp.ptime_ms,
            rtcp_mux: sdp.rtcp_mux,
        }
    }
}

impl SdpRow {
    pub(crate) fn sdp(&self, kinds: &mut Alike<SdpKind>) -> Sdp {
        let formats = self.formats.iter().map(|(payload_type, encoding, clock_rate)| SdpFormat {
            payload_type: *payload_type,
            encoding: encoding.0.as_slice().into(),
            clock_rate: *clock_rate,
        });
        Sdp {
            kind: kinds.shared(SdpKind {
                medium: self.medium.0.as_slice().into(),
                formats: formats.collect(),
            }),
            address: self.address,
            port: self.port,
            direction: match self.direction {
                DirectionRow::SendRecv => Direction::SendRecv,
                DirectionRow::SendOnly => Direction::SendOnly,
                DirectionRow::RecvOnly => Direction::RecvOnly,
                DirectionRow::Inactive => Direction::Inactive,
            },
            ptime_ms: self.ptime_ms,
            rtcp_mux: self.rtcp_mux,
        }
    }
}

/// An address that signalling names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameRow {
    pub addr: IpAddr,
    pub port: Option<u16>,
}

/// A latched source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedRow {
    pub source: Endpoint,
    #[serde(default)]
    pub ssrc: Option<u32>,
    #[serde(default)]
    pub sequence: Option<u16>,
}

/// A stream that was offloaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamRow {
    pub sender: Side,
    pub rtcp: bool,
    #[serde(default)]
    pub packets: u64,
    #[serde(default)]
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_max_us: Option<u32>,
    /// Time from both parties' first packet to the first offload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloaded_after_us: Option<u64>,
    pub entry: Option<EntryRow>,
}

/// An entry that was in the data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryRow {
    pub source: Endpoint,
    pub port: Endpoint,
    pub new_source: Endpoint,
    pub new_destination: Endpoint,
}

/// Why a row was not restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    #[error("row of format {0}")]
    Format(u32),
    #[error("relay {0:?} is not configured")]
    Relay(String),
    #[error("the line exists already")]
    Present,
    #[error("another line has port {0}")]
    PortHeld(Endpoint),
}

pub(crate) fn component(rtcp: bool) -> Component {
    if rtcp { Component::Rtcp } else { Component::Rtp }
}

pub(crate) fn is_rtcp(component: Component) -> bool {
    component_index(component) == 1
}
