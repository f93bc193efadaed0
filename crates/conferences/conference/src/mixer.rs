//! What mixers are told, and what they say (docs/mixing.md, docs/tiling.md): the values of their control API.

use crate::adaptation::Medium;
use crate::tiles::{Area, Said, Shown};
use serde::{Deserialize, Serialize};
use shunt_admin_model::TiledCodec;
use shunt_net::Endpoint;
use std::time::Duration;
use thiserror::Error;

/// A mixer did not do what it was asked.
#[derive(Debug, Error)]
pub enum MixerError {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(String),
    /// It has no room for what it is asked.
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Refused(String),
}

/// What a mixer says of itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub epoch: u64,
    pub audio: Endpoint,
    pub receivers: u64,
    pub load: f64,
    pub full: Option<String>,
    pub video: Endpoint,
    pub tiles: u64,
    pub most_tiles: u64,
}

impl Status {
    /// How much it has to do of a medium, less first; `None`: it takes no more.
    #[must_use]
    pub fn work(&self, medium: Medium) -> Option<u64> {
        match medium {
            Medium::Audio => self.full.is_none().then_some(self.receivers),
            _ => (self.tiles < self.most_tiles).then_some(self.tiles),
        }
    }

    /// It has been given so much more, which it does not say yet.
    pub fn add(&mut self, medium: Medium, work: u64) {
        match medium {
            Medium::Audio => self.receivers += work,
            _ => self.tiles += work,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Listing {
    pub epoch: u64,
    pub conferences: Vec<Reported>,
}

/// Who speaks in a conference, as a mixer reports it.
#[derive(Clone, Debug, Deserialize)]
pub struct Reported {
    pub conference: String,
    pub speaker: Option<String>,
    pub participants: Vec<ReportedParticipant>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ReportedParticipant {
    pub participant: String,
    pub muted: bool,
    pub leave: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Tilings {
    pub epoch: u64,
    pub tilings: Vec<Tiled>,
}

/// What a mixer has made of a tiling.
#[derive(Clone, Debug, Deserialize)]
pub struct Tiled {
    pub tiling: String,
    pub streams: Vec<TiledStream>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct TiledStream {
    pub ssrc: u32,
    pub tiles: Vec<TileState>,
}

/// What a mixer knows of a tile.
#[derive(Clone, Debug, Deserialize)]
pub struct TileState {
    place: u8,
    /// The source's SSRC.
    contributor: u32,
    x: Option<u32>,
    y: Option<u32>,
    width: Option<u32>,
    height: Option<u32>,
    pictures: u64,
    refused: u64,
    refusal: Option<String>,
}

impl TileState {
    fn area(&self) -> Option<Area> {
        Some(Area {
            x: self.x?,
            y: self.y?,
            width: self.width?,
            height: self.height?,
        })
    }

    #[must_use]
    pub fn said(&self) -> Said {
        Said {
            place: self.place,
            contributor: self.contributor,
            shown: Shown {
                area: self.area(),
                pictures: self.pictures,
                refused: self.refused,
                refusal: self.refusal.clone(),
            },
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Accepted {
    pub epoch: u64,
    /// Where it takes what it is described.
    #[serde(alias = "audio", alias = "video")]
    pub at: Endpoint,
}

/// A conference's audio or video as a mixer is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Description {
    Mixes { audio: Audio },
    Tiles(Tiling),
}

impl Description {
    /// How much there is to do, as mixers count it: receivers, or tiles.
    #[must_use]
    pub fn work(&self) -> u64 {
        let count = match self {
            Self::Mixes { audio } => audio.participants.iter().filter(|one| one.mix.is_some()).count(),
            Self::Tiles(tiling) => tiling.streams.iter().map(|stream| stream.tiles.len()).sum(),
        };
        count as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tiling {
    pub from: Endpoint,
    pub to: Endpoint,
    pub codec: TiledCodec,
    pub payload_type: u8,
    pub streams: Vec<Stream>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stream {
    pub ssrc: u32,
    pub places: u8,
    pub tiles: Vec<Tile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tile {
    pub place: u8,
    pub participant: String,
    pub source: u32,
    /// Where the source is a mixer: the participant's SSRC, which tile of that mixer's column, and how many this has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contributor: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiles: Option<u8>,
    pub predicted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audio {
    pub from: Endpoint,
    pub announcements: bool,
    pub participants: Vec<Participant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Participant {
    pub participant: String,
    pub ssrcs: Vec<u32>,
    pub codecs: Vec<Codec>,
    pub mix: Option<Mix>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Codec {
    pub payload_type: u8,
    pub encoding: String,
    pub clock_rate: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mix {
    pub to: Endpoint,
    pub ssrc: u32,
    #[serde(flatten)]
    pub codec: Codec,
}
