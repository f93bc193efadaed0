//! Who exchanges media with whom, by media section.

use crate::describe::{CallDescription, MediaDescription, MediaFlags, StreamDescription, StreamFlags, Subscription, Tag};
use shunt_net::Endpoint;
use std::fmt;

/// One media section between two parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineDescription {
    /// The party that was created first comes first; of two of the same second the one that the reply has first. Empty: no answer yet.
    pub tags: [Vec<u8>; 2],
    /// 1 for the first m= line.
    pub index: u32,
    /// `audio`, `video`, `image` …
    pub kind: String,
    pub parties: [PartyDescription; 2],
    /// Whether a party has RTP and RTCP on one port.
    pub rtcp_mux: [bool; 2],
}

/// One party of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartyDescription {
    /// The port that this party sends RTP to, and from which RTP is sent to it.
    pub local_rtp: Option<Endpoint>,
    /// The same of RTCP, where it has a port of its own.
    pub local_rtcp: Option<Endpoint>,
    /// Where this party is: learned from its packets, else advertised.
    pub endpoint: Option<Endpoint>,
    pub endpoint_rtcp: Option<Endpoint>,
    /// Where this party is, according to its SDP.
    pub advertised: Option<Endpoint>,
    pub advertised_rtcp: Option<Endpoint>,
    /// Of the RTP stream.
    pub flags: StreamFlags,
    pub media: MediaFlags,
    pub protocol: Option<String>,
    pub codec: Option<String>,
    pub crypto_suite: Option<String>,
    pub via_branch: Option<Vec<u8>>,
    pub label: Option<Vec<u8>>,
    /// How many get this party's media.
    pub subscribers: usize,
    /// Those that get it by publish, subscribe or connect, by their tags.
    pub copied_to: Vec<Vec<u8>>,
}

/// Why rtpengine must forward a line itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayReason {
    Sdes,
    DtlsSrtp,
    Ice,
    Transcoding,
    T38,
    /// Neither RTP/AVP nor RTP/AVPF.
    Protocol,
    /// A party's media goes to more than the other.
    MediaFork,
    MediaEcho,
    AudioPlayer,
    GenerateRtcp,
    /// rtpengine is an end of the line: it plays or takes in.
    Generator,
    BlockEgress,
}

impl RelayReason {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sdes => "SDES",
            Self::DtlsSrtp => "DTLS-SRTP",
            Self::Ice => "ICE",
            Self::Transcoding => "transcoding",
            Self::T38 => "T.38",
            Self::Protocol => "protocol",
            Self::MediaFork => "media fork",
            Self::MediaEcho => "media echo",
            Self::AudioPlayer => "audio player",
            Self::GenerateRtcp => "generate RTCP",
            Self::Generator => "generator",
            Self::BlockEgress => "block egress",
        }
    }
}

impl fmt::Display for RelayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CallDescription {
    /// The pairs of parties between which media flows, one for each media section.
    ///
    /// Two parties are a pair when each gets the other's media by offer and answer. What a fork leaves behind is no pair: its branch is still
    /// relayed to the caller and gets no media. Nor is a section a line that has no port any more.
    #[must_use]
    pub fn lines(&self) -> Vec<LineDescription> {
        let mut lines = Vec::new();
        for (at, one) in self.tags.iter().enumerate() {
            for other in &self.tags[at + 1..] {
                if is_pair(one, other) {
                    let [first, second] = if other.created < one.created { [other, one] } else { [one, other] };
                    lines.extend(first.medias.iter().filter_map(|media| line(first, media, second)));
                }
            }
        }
        lines
    }
}

fn is_pair(one: &Tag, other: &Tag) -> bool {
    let has = |list: &[Subscription], tag: &Tag| list.iter().any(|flow| flow.offer_answer && flow.tag == tag.name);
    has(&one.subscriptions, other) && has(&other.subscriptions, one)
}

fn line(first: &Tag, media: &MediaDescription, second: &Tag) -> Option<LineDescription> {
    let other = second.medias.iter().find(|other| other.index == media.index)?;
    let parties = [party(first, media), party(second, other)];
    if parties.iter().any(|party| party.local_rtp.is_none()) {
        return None;
    }
    Some(LineDescription {
        tags: [first.name.clone(), second.name.clone()],
        index: media.index,
        kind: media.kind.clone(),
        rtcp_mux: [is_muxed(media), is_muxed(other)],
        parties,
    })
}

fn rtp(media: &MediaDescription) -> Option<&StreamDescription> {
    media.streams.iter().find(|stream| stream.flags.contains(StreamFlags::RTP))
}

fn is_muxed(media: &MediaDescription) -> bool {
    rtp(media).is_some_and(|stream| stream.flags.contains(StreamFlags::RTCP))
}

fn party(tag: &Tag, media: &MediaDescription) -> PartyDescription {
    let rtp = rtp(media);
    let rtcp = if is_muxed(media) {
        None
    } else {
        media.streams.iter().find(|stream| stream.flags.contains(StreamFlags::RTCP))
    };
    PartyDescription {
        local_rtp: rtp.and_then(|stream| stream.local),
        local_rtcp: rtcp.and_then(|stream| stream.local),
        endpoint: rtp.and_then(|stream| stream.endpoint),
        endpoint_rtcp: rtcp.and_then(|stream| stream.endpoint),
        advertised: rtp.and_then(|stream| stream.advertised),
        advertised_rtcp: rtcp.and_then(|stream| stream.advertised),
        flags: rtp.map_or(StreamFlags::NONE, |stream| stream.flags),
        media: media.flags,
        protocol: media.protocol.clone(),
        codec: media.codec.clone(),
        crypto_suite: media.streams.iter().find_map(|stream| stream.crypto_suite.clone()),
        via_branch: tag.via_branch.clone(),
        label: tag.label.clone(),
        subscribers: tag.subscribers.len(),
        copied_to: tag
            .subscribers
            .iter()
            .filter(|flow| !flow.offer_answer)
            .map(|flow| flow.tag.clone())
            .collect(),
    }
}

impl LineDescription {
    /// Why rtpengine must forward this line itself, as far as `query` tells; `None` for plain forwarding.
    #[must_use]
    pub fn needs_relay(&self) -> Option<RelayReason> {
        self.parties.iter().find_map(PartyDescription::needs_relay)
    }

    /// Whether rtpengine drops feedback from RTCP on its way: one side has RTP/AVPF, the other RTP/AVP.
    #[must_use]
    pub fn filters_rtcp(&self) -> bool {
        let feedback = |party: &PartyDescription| party.protocol.as_deref().is_some_and(|protocol| protocol.ends_with('F'));
        feedback(&self.parties[0]) != feedback(&self.parties[1])
    }
}

impl PartyDescription {
    fn needs_relay(&self) -> Option<RelayReason> {
        const BY_FLAG: [(MediaFlags, RelayReason); 11] = [
            (MediaFlags::DTLS_SRTP, RelayReason::DtlsSrtp),
            (MediaFlags::SDES, RelayReason::Sdes),
            (MediaFlags::ICE, RelayReason::Ice),
            (MediaFlags::TRICKLE_ICE, RelayReason::Ice),
            (MediaFlags::TRANSCODING, RelayReason::Transcoding),
            (MediaFlags::ECHO, RelayReason::MediaEcho),
            (MediaFlags::BLACKHOLE, RelayReason::MediaEcho),
            (MediaFlags::AUDIO_PLAYER, RelayReason::AudioPlayer),
            (MediaFlags::RTCP_GENERATOR, RelayReason::GenerateRtcp),
            (MediaFlags::GENERATOR, RelayReason::Generator),
            (MediaFlags::BLOCK_EGRESS, RelayReason::BlockEgress),
        ];
        let by_flag = BY_FLAG
            .iter()
            .find(|(flag, _)| self.media.contains(*flag))
            .map(|(_, reason)| *reason);
        let by_protocol = match self.protocol.as_deref() {
            Some("RTP/AVP" | "RTP/AVPF") => None,
            Some(protocol) if protocol.contains("TLS/") => Some(RelayReason::DtlsSrtp),
            Some(protocol) if protocol.contains("SAVP") => Some(RelayReason::Sdes),
            Some(protocol) if protocol.eq_ignore_ascii_case("udptl") => Some(RelayReason::T38),
            _ => Some(RelayReason::Protocol),
        };
        let by_suite = self.crypto_suite.as_ref().map(|_| RelayReason::Sdes);
        let by_copies = (!self.copied_to.is_empty() || self.subscribers > 1).then_some(RelayReason::MediaFork);
        by_flag.or(by_protocol).or(by_suite).or(by_copies)
    }
}
