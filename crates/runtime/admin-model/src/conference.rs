//! Conferences in the API: membership commands, snapshots, and decisions of an external policy.

use crate::event::Direction;
use crate::text::Text;
use serde::{Deserialize, Serialize};
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Request to add a participant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub participant: Text,
    pub media: Vec<JoinMedium>,
    /// Signalled addresses: packets from there are latched at once.
    #[serde(default)]
    pub signalled: Vec<IpAddr>,
    /// Whether it uses ICE (RFC 8445); the agent is ICE-lite and answers with credentials.
    #[serde(default)]
    pub ice: bool,
    /// The participant's SIP call, for records.
    #[serde(default)]
    pub call: Option<Text>,
    /// Data that the signalling needs after a restart. It is stored and shown with the participant, and is in the event `left`. The agent
    /// does not read it.
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    /// Whether the participant gets a mix of all others' audio.
    #[serde(default)]
    pub mixed: Mixed,
}

/// Whether a participant gets a mix of audio. `auto`: yes if its signalling shows that it plays one stream only, or if it cannot play a
/// sender's codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixed {
    #[default]
    Auto,
    Yes,
    No,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinMedium {
    /// `audio`, `video` or `screen`.
    pub medium: String,
    /// The SDP's proto field: `RTP/AVP`, `RTP/AVPF`, `RTP/SAVP`, `RTP/SAVPF`.
    #[serde(default = "rtp_avp")]
    pub transport: String,
    /// Direction as in the participant's SDP.
    #[serde(default)]
    pub direction: Direction,
    /// Codecs. Payload types are mapped between participants that number a codec differently.
    #[serde(default)]
    pub codecs: Vec<Codec>,
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Whether RTCP shares the port of RTP (RFC 5761); `None`: its first packet decides.
    #[serde(default)]
    pub rtcp_mux: Option<bool>,
    /// The SDP's address for this medium. A participant that sends nothing on it is served there after another of its media comes from that
    /// address.
    #[serde(default)]
    pub destination: Option<Endpoint>,
}

fn rtp_avp() -> String {
    "RTP/AVP".to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    pub payload_type: u8,
    pub encoding: String,
    /// Hz.
    pub clock_rate: u32,
    #[serde(default)]
    pub channels: Option<u8>,
    /// The value of `a=fmtp`.
    #[serde(default)]
    pub fmtp: Option<String>,
}

/// Where packets describe their layers: `dependency-descriptor` with the id of the header extension, or `vp8`, `vp9`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    pub by: String,
    #[serde(default)]
    pub extension_id: Option<u8>,
}

/// Changes of a participant's signalling; missing fields stay unchanged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParticipantUpdate {
    #[serde(default)]
    pub media: Option<Vec<JoinMedium>>,
    #[serde(default)]
    pub signalled: Option<Vec<IpAddr>>,
    /// The participant restarts ICE (RFC 8839 section 4.4.1.1.1) and gets other credentials.
    #[serde(default)]
    pub ice_restart: bool,
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    #[serde(default)]
    pub mixed: Option<Mixed>,
}

/// The wanted tiled streams of a conference. Each request is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TilingWish {
    pub codec: TiledCodec,
    /// Payload type of the tiled streams. Default: 31 for H.261, 96 for H.264, 97 for H.265.
    #[serde(default)]
    pub payload_type: Option<u8>,
    /// Tiles of an H.264 column (default 15) or of an H.265 grid (default 16). An H.261 CIF picture has four.
    #[serde(default)]
    pub places: Option<u8>,
    /// H.264, two levels: number of columns in a stream, each made by its own mixer and joined by another one; `None`: one level.
    #[serde(default)]
    pub columns: Option<u8>,
    /// H.264 and H.265: all sources agree that their pictures predict from the one before, with vectors within the picture or a guard band.
    #[serde(default)]
    pub predicted: bool,
    /// Receivers of the tiled streams, now or after they join; `None`: all participants that can play them.
    #[serde(default)]
    pub receivers: Option<Vec<Text>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TiledCodec {
    H261,
    H264,
    H265,
}

/// Whether receivers of a mix hear when participants join and leave.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announcements {
    pub announcements: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct ConferenceSummary {
    pub conference: Text,
    pub participants: u64,
    /// The design of its trees: `two-party`, `nra`, `ra-r`, `ra-sr`; `empty`: no media yet.
    pub design: String,
    /// `None`: the data plane agrees with the plan.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conference {
    #[serde(flatten)]
    pub summary: ConferenceSummary,
    /// Unix time, µs.
    pub started_us: u64,
    pub members: Vec<Participant>,
    /// Whether there are mixers, and the control socket of the mixer that has its audio.
    pub mixing: bool,
    pub mixer: Option<String>,
    /// The present speaker, as its mixer reports.
    pub speaker: Option<Text>,
    /// Whether receivers of a mix hear when participants join and leave.
    pub announcements: bool,
    /// The tiled streams; `None`: none are wanted.
    pub tiling: Option<Tiling>,
    /// Pairs without video since tiled streams ended.
    pub unjoined: Vec<Unjoined>,
    /// The highest medium that a receiver gets of a sender, if that is not all.
    pub qualities: Vec<PairQuality>,
    pub subscriptions: Vec<Subscription>,
    /// Age of the packet counts of copies; `None`: there are no copies, or none were read yet.
    pub counters_age_s: Option<f64>,
}

/// The present tiled streams.
#[derive(Clone, Debug, Serialize)]
pub struct Tiling {
    #[serde(flatten)]
    pub wish: TilingWish,
    /// Control socket of the mixer that makes them.
    pub mixer: Option<String>,
    /// Reason why none are made.
    pub problem: Option<String>,
    pub streams: Vec<TiledStream>,
    /// Senders of video without a tile.
    pub untiled: Vec<Untiled>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TiledStream {
    pub ssrc: u32,
    /// Number of tiles that fit.
    pub places: u8,
    pub tiles: Vec<Tile>,
    /// With two levels: the columns.
    pub columns: Vec<TiledColumn>,
}

/// A column that is joined in a stream.
#[derive(Clone, Debug, Serialize)]
pub struct TiledColumn {
    pub column: u8,
    pub ssrc: u32,
    /// Control socket of the mixer that makes it.
    pub mixer: Option<String>,
}

/// A tile in samples of luma; `None` until its mixer knows the size.
#[derive(Clone, Debug, Serialize)]
pub struct Tile {
    pub place: u8,
    pub participant: Text,
    /// The SSRC of the pictures.
    pub source: u32,
    pub x: Option<u32>,
    pub y: Option<u32>,
    pub width: Option<u32>,
    pub height: Option<u32>,
    /// Pictures received, pictures that could not be tiled, and the reason of the last failure if no picture was tiled since.
    pub pictures: u64,
    pub refused: u64,
    pub refusal: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Untiled {
    pub participant: Text,
    pub reason: String,
}

/// A receiver that cannot get a sender's video.
#[derive(Clone, Debug, Serialize)]
pub struct Unjoined {
    pub sender: Text,
    pub receiver: Text,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct PairQuality {
    pub sender: Text,
    pub receiver: Text,
    pub quality: Quality,
}

#[derive(Clone, Debug, Serialize)]
pub struct Participant {
    pub participant: Text,
    pub call: Option<Text>,
    /// Unix time, µs.
    pub joined_us: u64,
    /// Whether any of its media has a source.
    pub present: bool,
    /// Time since its last packet or signalling.
    pub silent_s: f64,
    /// Its media are authenticated, so the data plane neither removes nor rewrites anything.
    pub encrypted: bool,
    pub media: Vec<ParticipantMedium>,
    /// ICE credentials of the agent's side.
    pub ice: Option<Credentials>,
    pub signalling: Option<serde_json::Value>,
    /// The requested value, and whether it gets a mix.
    pub mixed: Mixed,
    pub gets_mix: bool,
    /// It has muted itself by keys.
    pub muted: bool,
    /// It gets tiled video.
    pub gets_tiles: bool,
}

/// RFC 8445 section 5.3.
#[derive(Clone, Debug, Serialize)]
pub struct Credentials {
    pub ufrag: String,
    pub password: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct ParticipantMedium {
    pub medium: String,
    /// Where the participant sends RTP; RTCP is one port above.
    pub address: Endpoint,
    pub direction: Direction,
    /// Source of its packets, once latched.
    pub latched: Option<Endpoint>,
    /// Two sources show continuity: neither is carried.
    pub contested: bool,
    pub transport: String,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
    pub rtcp_mux: bool,
    /// The sender whose streams it brings, if the participant has several of the medium.
    pub shows: Option<Text>,
    /// The sender's stream, if it brings one stream only.
    pub shows_ssrc: Option<u32>,
    pub streams: Vec<StreamRate>,
}

/// One SSRC that a participant sends.
#[derive(Clone, Debug, Serialize)]
pub struct StreamRate {
    pub ssrc: u32,
    pub payload_type: Option<u8>,
    pub packets: u64,
    pub bits_per_s: Option<u64>,
    /// Bits/s up to and including each decode target, from the lowest.
    pub targets_bits_per_s: Vec<u64>,
    /// It repairs other streams (RTX, FEC).
    pub repair: bool,
    /// The participant that owns the SSRC, if that is another one: no receiver gets this stream then.
    pub conflicts_with: Option<Text>,
}

/// A sender's medium as one receiver gets it.
#[derive(Clone, Debug, Serialize)]
pub struct Subscription {
    pub sender: Text,
    pub receiver: Text,
    pub medium: String,
    pub quality: Quality,
    /// `None`: the stream is paused for this receiver.
    pub target: Option<u8>,
    /// `policy` (built in), `external`, or `operator`.
    pub decided_by: String,
    pub packets: Option<u64>,
    pub streams: Vec<CopiedStream>,
    /// Rate that the receiver's estimates and losses leave for this sender.
    pub estimate_bits_per_s: Option<u64>,
    /// The sender gets this receiver's reports and estimates.
    pub reported: bool,
}

/// One SSRC as a receiver gets it.
#[derive(Clone, Debug, Serialize)]
pub struct CopiedStream {
    pub ssrc: u32,
    pub packets: Option<u64>,
}

/// Counters of a participant's medium until it left. In the event `left`.
#[derive(Clone, Debug, Serialize)]
pub struct MediumUsage {
    pub medium: String,
    pub address: Endpoint,
    pub latched: Option<Endpoint>,
    pub payload_type: Option<u8>,
    pub codecs: Vec<Codec>,
    /// Its RTP as it arrived; `None`: a reading of the data plane's counters is lost.
    pub sent: Option<Usage>,
    /// Copies and relayed packets sent to it.
    pub received: Option<Usage>,
}

/// Sums of counters. `measured`: packets of rows with measured reception, to which the following fields refer (RFC 3550).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Rows with counters; with 0 nothing was carried.
    pub rows: u64,
    pub packets: u64,
    pub bytes: u64,
    pub measured: u64,
    pub lost: u64,
    pub reordered: u64,
    pub duplicates: u64,
    pub jitter_ms: Option<f64>,
    pub jitter_max_ms: Option<f64>,
}

/// The highest medium that a receiver gets of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    Audio,
    Video,
    Screen,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QualityChange {
    pub sender: Text,
    pub receiver: Text,
    pub quality: Quality,
}

/// Decisions of an external policy: all are applied, or none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetChange {
    pub targets: Vec<Decision>,
    /// Seconds without another decision after which the built-in policy decides again; `None`: never.
    #[serde(default)]
    pub hold_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub sender: Text,
    pub receiver: Text,
    /// 0 to 2; `None`: pause.
    pub target: Option<u8>,
}

/// Input of a policy: a receiver's share of its estimate for one sender. The event log does not have estimates.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    pub conference: Text,
    pub sender: Text,
    pub receiver: Text,
    pub medium: String,
    /// Filtered share of this sender.
    pub estimate_bits_per_s: u64,
    /// The receiver's latest estimate for all senders.
    pub remb_bits_per_s: Option<u64>,
    /// Share of packets lost, 0 to 1 (RFC 3550 section 6.4.1).
    pub fraction_lost: Option<f64>,
    pub targets_bits_per_s: Vec<u64>,
    pub target: Option<u8>,
}
