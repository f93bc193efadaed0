//! Conferences in the API: membership commands, snapshots, and decisions of a policy outside of the agent.

use crate::event::Direction;
use crate::text::Text;
use serde::{Deserialize, Serialize};
use shunt_net::Endpoint;
use std::net::IpAddr;

/// A participant is to be let in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub participant: Text,
    pub media: Vec<JoinMedium>,
    /// Addresses that signalling names: packets from there are latched at once.
    #[serde(default)]
    pub signalled: Vec<IpAddr>,
    /// Whether it uses ICE (RFC 8445); the agent is ICE-lite and answers with credentials.
    #[serde(default)]
    pub ice: bool,
    /// The SIP call that it comes by, for records.
    #[serde(default)]
    pub call: Option<Text>,
    /// What its signalling needs to go on after a restart: kept with the participant, shown with it, and in the event `left`. The agent does not read it.
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    /// Whether it gets one stream of audio, made of all others.
    #[serde(default)]
    pub mixed: Mixed,
}

/// Whether a participant gets a mix of audio. `auto`: who plays one stream, by its signalling, and who cannot play what somebody sends.
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
    /// As the participant's SDP has it.
    #[serde(default)]
    pub direction: Direction,
    /// Payload types are mapped where participants have different ones for a codec.
    #[serde(default)]
    pub codecs: Vec<Codec>,
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Whether RTCP shares the port of RTP (RFC 5761); `None`: its first packet says it.
    #[serde(default)]
    pub rtcp_mux: Option<bool>,
    /// Where the SDP says that this medium is to go. Who sends nothing on it is served there, once another of its media comes from that address.
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

/// How packets tell their layers: `dependency-descriptor` with the id of the header extension, or `vp8`, `vp9`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    pub by: String,
    #[serde(default)]
    pub extension_id: Option<u8>,
}

/// What a participant's signalling has changed; what is missing stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParticipantUpdate {
    #[serde(default)]
    pub media: Option<Vec<JoinMedium>>,
    #[serde(default)]
    pub signalled: Option<Vec<IpAddr>>,
    /// It begins ICE anew (RFC 8839 section 4.4.1.1.1): it gets other credentials.
    #[serde(default)]
    pub ice_restart: bool,
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    #[serde(default)]
    pub mixed: Option<Mixed>,
}

/// Tiled streams that are wanted of a conference: all that is said of them, each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TilingWish {
    pub codec: TiledCodec,
    /// Of the tiled streams; 31 for H.261, 96 for H.264 and 97 for H.265 unless said.
    #[serde(default)]
    pub payload_type: Option<u8>,
    /// Tiles of a column of H.264, 15 unless said, or of a grid of H.265, 16 unless said; a CIF picture of H.261 has four.
    #[serde(default)]
    pub places: Option<u8>,
    /// H.264, two levels: so many columns, each made by a mixer of its own, are joined in a stream; `None`: one level.
    #[serde(default)]
    pub columns: Option<u8>,
    /// H.264 and H.265: it is agreed with all sources that their pictures predict from the one before, with vectors that stay within the picture or a
    /// guard band.
    #[serde(default)]
    pub predicted: bool,
    /// Who gets them in place of everybody's video, now or once it is there; `None`: everybody who can play them.
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

/// Whether those who get a mix hear who joins and who leaves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announcements {
    pub announcements: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct ConferenceSummary {
    pub conference: Text,
    pub participants: u64,
    /// The design of its trees: `two-party`, `nra`, `ra-r`, `ra-sr`; `empty`: nobody's media has come yet.
    pub design: String,
    /// `None`: the data plane holds it as it is to be.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conference {
    #[serde(flatten)]
    pub summary: ConferenceSummary,
    /// Unix time, µs.
    pub started_us: u64,
    pub members: Vec<Participant>,
    /// Whether there are mixers; and the one that its audio is placed on, by its control socket.
    pub mixing: bool,
    pub mixer: Option<String>,
    /// Who speaks, as its mixer hears.
    pub speaker: Option<Text>,
    /// Those who get a mix hear who joins and who leaves.
    pub announcements: bool,
    /// The tiled streams; `None`: none are wanted.
    pub tiling: Option<Tiling>,
    /// Who gets no video of whom, because tiled streams that it got in its place are over.
    pub unjoined: Vec<Unjoined>,
    /// The highest medium that a receiver gets of a sender, where that is not all.
    pub qualities: Vec<PairQuality>,
    pub subscriptions: Vec<Subscription>,
    /// How long ago the packets of copies were read; `None`: there are no copies, or they have not been read yet.
    pub counters_age_s: Option<f64>,
}

/// Tiled streams as they are.
#[derive(Clone, Debug, Serialize)]
pub struct Tiling {
    #[serde(flatten)]
    pub wish: TilingWish,
    /// The control socket of the mixer that makes them.
    pub mixer: Option<String>,
    /// Why none are made.
    pub problem: Option<String>,
    pub streams: Vec<TiledStream>,
    /// Senders of video that have no tile.
    pub untiled: Vec<Untiled>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TiledStream {
    pub ssrc: u32,
    /// How many tiles it has room for.
    pub places: u8,
    pub tiles: Vec<Tile>,
    /// Of two levels.
    pub columns: Vec<TiledColumn>,
}

/// A column that is joined in a stream.
#[derive(Clone, Debug, Serialize)]
pub struct TiledColumn {
    pub column: u8,
    pub ssrc: u32,
    /// The control socket of the mixer that makes it.
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
    /// Pictures that have come, and those that could not be tiled; why the last could not, unless one was since.
    pub pictures: u64,
    pub refused: u64,
    pub refusal: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Untiled {
    pub participant: Text,
    pub reason: String,
}

/// A receiver that cannot be given a sender's video.
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
    /// Since its last packet or signalling.
    pub silent_s: f64,
    /// Its media are authenticated, so nothing of them is left out or rewritten.
    pub encrypted: bool,
    pub media: Vec<ParticipantMedium>,
    /// ICE credentials of the agent's side.
    pub ice: Option<Credentials>,
    pub signalling: Option<serde_json::Value>,
    /// As was asked for; and whether it gets a mix.
    pub mixed: Mixed,
    pub gets_mix: bool,
    /// It has muted itself, by keys.
    pub muted: bool,
    /// Its video comes tiled.
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
    /// Where its packets come from, once latched.
    pub latched: Option<Endpoint>,
    /// Two sources show continuity: neither is carried.
    pub contested: bool,
    pub transport: String,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
    pub rtcp_mux: bool,
    /// Whose streams it brings, where the participant has several of the medium.
    pub shows: Option<Text>,
    /// Which of that one's, where it brings one alone.
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
    /// It repairs others (RTX, FEC).
    pub repair: bool,
    /// Whose the SSRC is, where that is somebody else: then nobody gets the stream.
    pub conflicts_with: Option<Text>,
}

/// One (sender, receiver, medium): what the receiver gets of the sender.
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
    /// What the receiver's estimates and losses leave for this sender.
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

/// What a medium of a participant has carried until it left. In the event `left`.
#[derive(Clone, Debug, Serialize)]
pub struct MediumUsage {
    pub medium: String,
    pub address: Endpoint,
    pub latched: Option<Endpoint>,
    pub payload_type: Option<u8>,
    pub codecs: Vec<Codec>,
    /// Its RTP as it arrived; `None`: a reading of the data plane's counters is lost.
    pub sent: Option<Usage>,
    /// Copies and relayed packets that went to it.
    pub received: Option<Usage>,
}

/// Sums of counters. `measured`: packets of rows whose reception was measured, which what follows belongs to (RFC 3550).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Rows that have counted: with 0 nothing was carried.
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

/// Decisions of a policy outside of the agent: all of them are taken over, or none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetChange {
    pub targets: Vec<Decision>,
    /// After so many seconds without another decision the built-in policy decides again; `None`: never.
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

/// What a policy decides from: a receiver's share of its estimate for one sender. Estimates are not kept in the event log.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    pub conference: Text,
    pub sender: Text,
    pub receiver: Text,
    pub medium: String,
    /// Filtered, of this sender's share.
    pub estimate_bits_per_s: u64,
    /// The latest from the receiver, of all senders.
    pub remb_bits_per_s: Option<u64>,
    /// Share of packets lost, 0 to 1 (RFC 3550 section 6.4.1).
    pub fraction_lost: Option<f64>,
    pub targets_bits_per_s: Vec<u64>,
    pub target: Option<u8>,
}
