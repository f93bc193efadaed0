//! Conferences as the control API describes them, and what they become.

use crate::audio::{Audio, Hosted};
use crate::reports::{Rates, Reported};
use serde::{Deserialize, Serialize};
use shunt_mix::codec::Codec;
use shunt_mix::room::{Described, Format, Mix, Name};
use shunt_net::Endpoint;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use thiserror::Error;

/// One conference: all of it, each time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub audio: AudioDescription,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudioDescription {
    /// Where copies of what is sent come from.
    pub from: SocketAddr,
    /// Whether receivers hear who joins and who leaves.
    #[serde(default)]
    pub announcements: bool,
    pub participants: Vec<ParticipantDescription>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParticipantDescription {
    pub participant: String,
    #[serde(default)]
    pub ssrcs: Vec<u32>,
    #[serde(default)]
    pub codecs: Vec<CodecDescription>,
    /// The id of the header extension of RFC 6464.
    #[serde(default)]
    pub level_extension: Option<u8>,
    #[serde(default)]
    pub muted: bool,
    #[serde(default)]
    pub mix: Option<MixDescription>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecDescription {
    pub payload_type: u8,
    pub encoding: String,
    pub clock_rate: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixDescription {
    /// Where the mix goes.
    pub to: SocketAddr,
    pub ssrc: u32,
    pub payload_type: u8,
    pub encoding: String,
    pub clock_rate: u32,
    /// The id of the header extension of RFC 6465.
    #[serde(default)]
    pub levels_extension: Option<u8>,
}

/// What a conference is told back.
#[derive(Clone, Debug, Serialize)]
pub struct ConferenceView {
    pub conference: String,
    pub speaker: Option<String>,
    pub participants: Vec<ParticipantView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ParticipantView {
    pub participant: String,
    pub speaks: bool,
    pub level_dbov: i32,
    pub muted: bool,
    /// It has asked to leave, by keys.
    pub leave: bool,
    pub received: u64,
    pub lost: u64,
    pub late: u64,
    pub duplicates: u64,
    pub concealed: u64,
    pub broken: u64,
    pub unknown: u64,
    /// What the jitter buffer adds.
    pub added_ms: f64,
    /// What it has last reported of its mix.
    pub reported: Option<Reported>,
}

/// A description that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DescriptionError {
    #[error("participant {0:?} is there twice")]
    Twice(String),
    #[error("participant {0:?}: {1}/{2} is none of PCMU/8000, PCMA/8000, G722/8000, opus/48000")]
    Codec(String, String, u32),
    #[error("participant {0:?}: payload type {1} is not in 0..127")]
    PayloadType(String, u8),
    #[error("participant {0:?}: SSRC {1} is {2:?}'s too")]
    Ssrc(String, u32, String),
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::new(address.ip().to_canonical(), address.port())
}

impl AudioDescription {
    /// How many get a mix.
    #[must_use]
    pub fn receivers(&self) -> usize {
        self.participants.iter().filter(|one| one.mix.is_some()).count()
    }

    /// # Errors
    /// What is described cannot be.
    pub fn check(&self) -> Result<Checked, DescriptionError> {
        let mut checked = Checked {
            from: endpoint(self.from),
            announcements: self.announcements,
            described: BTreeMap::new(),
            destinations: HashMap::new(),
            sources: BTreeMap::new(),
        };
        let mut owners: HashMap<u32, &str> = HashMap::new();
        for one in &self.participants {
            let name: Name = one.participant.as_str().into();
            for ssrc in &one.ssrcs {
                if let Some(other) = owners.insert(*ssrc, &one.participant) {
                    return Err(DescriptionError::Ssrc(one.participant.clone(), *ssrc, other.to_owned()));
                }
            }
            let mix = one.mix.as_ref().map(|mix| one.mix(mix)).transpose()?;
            if let Some(mix) = &one.mix {
                checked.destinations.insert(name.clone(), endpoint(mix.to).into());
            }
            let rates: Rates = one.codecs.iter().map(|codec| (codec.payload_type, codec.clock_rate)).collect();
            checked.sources.extend(one.ssrcs.iter().map(|ssrc| (*ssrc, rates.clone())));
            // What is not mixed is not looked at.
            let formats = one
                .codecs
                .iter()
                .filter_map(|codec| Some((codec.payload_type, Format::of(&codec.encoding, codec.clock_rate)?)));
            let described = Described {
                ssrcs: one.ssrcs.clone(),
                formats: formats.collect(),
                level_extension: one.level_extension,
                muted: one.muted,
                mix,
            };
            if checked.described.insert(name, described).is_some() {
                return Err(DescriptionError::Twice(one.participant.clone()));
            }
        }
        Ok(checked)
    }
}

impl ParticipantDescription {
    fn mix(&self, mix: &MixDescription) -> Result<Mix, DescriptionError> {
        let none = || DescriptionError::Codec(self.participant.clone(), mix.encoding.clone(), mix.clock_rate);
        if mix.payload_type > 127 {
            return Err(DescriptionError::PayloadType(self.participant.clone(), mix.payload_type));
        }
        Ok(Mix {
            ssrc: mix.ssrc,
            codec: Codec::of(&mix.encoding, mix.clock_rate).ok_or_else(none)?,
            payload_type: mix.payload_type,
            levels_extension: mix.levels_extension,
        })
    }
}

/// A description, ready to be in force.
pub struct Checked {
    pub from: Endpoint,
    pub announcements: bool,
    pub described: BTreeMap<Name, Described>,
    pub destinations: HashMap<Name, shunt_udp::Address>,
    pub sources: BTreeMap<u32, Rates>,
}

impl ConferenceView {
    #[must_use]
    pub fn all(audio: &Audio) -> Vec<Self> {
        let view = |(name, hosted): (&String, &Hosted)| Self {
            conference: name.clone(),
            speaker: hosted.room.speaker().map(ToString::to_string),
            participants: participants(hosted),
        };
        audio.conferences().map(view).collect()
    }
}

fn participants(hosted: &Hosted) -> Vec<ParticipantView> {
    let leaving: &BTreeSet<Name> = &hosted.leaving;
    let views = hosted.room.reports().map(|one| ParticipantView {
        participant: one.name.to_string(),
        speaks: one.speaks,
        level_dbov: one.level.round() as i32,
        muted: one.muted,
        leave: leaving.contains(&one.name),
        received: one.counts.received,
        lost: one.counts.lost,
        late: one.counts.late,
        duplicates: one.counts.duplicates,
        concealed: one.counts.concealed,
        broken: one.counts.broken,
        unknown: one.unknown,
        added_ms: one.added as f64 / 1000.0,
        reported: hosted.reported(&one.name),
    });
    views.collect()
}
