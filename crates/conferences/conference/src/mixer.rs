//! Requests and answers of the mixers' control API (docs/mixing.md, docs/tiling.md).

use crate::adaptation::Medium;
use crate::tiles::{Area, Said, Shown};
use serde::{Deserialize, Serialize};
use shunt_admin_model::TiledCodec;
use shunt_net::Endpoint;
use std::time::Duration;
use thiserror::Error;

/// Why a mixer did not fulfil a request.
#[derive(Debug, Error)]
pub enum MixerError {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(String),
    /// The mixer has no capacity for the request.
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Refused(String),
}

/// A mixer's status.
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
    /// Returns the mixer's load of a medium; `None` if it accepts no more.
    #[must_use]
    pub fn work(&self, medium: Medium) -> Option<u64> {
        match medium {
            Medium::Audio => self.full.is_none().then_some(self.receivers),
            _ => (self.tiles < self.most_tiles).then_some(self.tiles),
        }
    }

    /// Adds work that the mixer's status does not include yet.
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

/// A conference's speakers, as a mixer reports them.
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

/// A mixer's report on tiled streams.
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

/// A mixer's report on a tile.
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
    /// Address where the mixer receives the described medium.
    #[serde(alias = "audio", alias = "video")]
    pub at: Endpoint,
}

/// Description of a conference's audio or video for a mixer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Description {
    Mixes { audio: Audio },
    Tiles(Tiling),
}

impl Description {
    /// Returns the amount of work in the mixers' unit: receivers, or tiles.
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
    /// If the source is a mixer: the participant's SSRC, the index of the tile in that mixer's column, and the number of tiles there.
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
