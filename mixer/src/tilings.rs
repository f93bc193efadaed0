//! Tiled streams as the control API describes them, and their layout.

use crate::reports::Reported;
use serde::{Deserialize, Serialize};
use shunt_tiling::h265::grid;
use shunt_tiling::tiler;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use thiserror::Error;

/// Tiles of a CIF picture; and of a column and a grid unless the description says how many.
const QUARTERS: usize = 4;
const COLUMN: usize = 15;
const GRID: usize = 16;
/// Columns and rows that a picture of H.265 can have (table A.8).
const MOST_COLUMNS: u8 = 20;
const MOST_ROWS: u8 = 22;
/// Tiles that one mixer takes: at 15 pictures a second some half of a core.
pub const MOST_TILES: usize = 1000;

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Codec {
    H261,
    H264,
    H265,
}

/// Streams that are made of the video that comes from one address: all of them, each time.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Where copies of what is sent come from; RTCP is a port higher.
    pub from: SocketAddr,
    /// Where the streams go.
    pub to: SocketAddr,
    pub codec: Codec,
    pub payload_type: u8,
    /// Octets of an IP packet at most.
    #[serde(default = "mtu")]
    pub mtu: usize,
    /// Milliseconds that a picture waits at most for those of other tiles.
    #[serde(default = "hold")]
    pub hold_ms: u64,
    pub streams: Vec<Stream>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    pub ssrc: u32,
    /// Of a column or a grid; a CIF picture has four.
    #[serde(default)]
    pub places: Option<u8>,
    /// Of a grid; unless said, so many that it is no higher than wide.
    #[serde(default)]
    pub columns: Option<u8>,
    pub tiles: Vec<Tile>,
}

impl Stream {
    /// How many tiles there can be.
    #[must_use]
    pub fn places(&self, codec: Codec) -> usize {
        let wanted = self.places.map(usize::from);
        match codec {
            Codec::H261 => QUARTERS,
            Codec::H264 => wanted.unwrap_or(COLUMN),
            Codec::H265 => wanted.unwrap_or(GRID),
        }
    }

    /// Columns and rows of a grid.
    #[must_use]
    pub fn grid(&self) -> (u8, u8) {
        // There are at most 255 places.
        let places = u8::try_from(self.places(Codec::H265)).unwrap_or(u8::MAX);
        let columns = self.columns.unwrap_or_else(|| grid::columns(places)).max(1);
        (columns, places.div_ceil(columns))
    }

    /// Whether it is the same but for who is in it.
    #[must_use]
    pub fn goes_on(&self, other: &Self) -> bool {
        (self.ssrc, self.places, self.columns) == (other.ssrc, other.places, other.columns)
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    pub place: usize,
    pub participant: String,
    /// The SSRC of the packets.
    pub source: u32,
    /// The participant's own SSRC, where the source is a mixer.
    #[serde(default)]
    pub contributor: Option<u32>,
    /// Which tile of that mixer's stream, and how many its column or grid has.
    #[serde(default)]
    pub tile: Option<u8>,
    #[serde(default)]
    pub tiles: Option<u8>,
    /// H.264 and H.265: it is agreed that vectors stay within the picture, or a guard band, so pictures may predict from the one before.
    #[serde(default)]
    pub predicted: bool,
}

impl Tile {
    /// The participant's SSRC.
    #[must_use]
    pub fn contributor(&self) -> u32 {
        self.contributor.unwrap_or(self.source)
    }
}

fn mtu() -> usize {
    1400
}

fn hold() -> u64 {
    125
}

/// A description that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TilingError {
    #[error("payload type {0} is not in 0..127")]
    PayloadType(u8),
    #[error("mtu {0} is not in 1200..9000")]
    Mtu(usize),
    #[error("stream {0} has no places: 1 to 255 are possible")]
    Places(u32),
    #[error("stream {0} has columns: those of H.265 alone have")]
    NoGrid(u32),
    #[error("stream {0} has {1} columns and {2} rows: 1 to 20 columns and 1 to 22 rows are possible")]
    Grid(u32, u8, u8),
    #[error("stream {0} is there twice")]
    Twice(u32),
    #[error("stream {0} has no place {1}, or two tiles at it")]
    Place(u32, usize),
}

impl Tiling {
    /// # Errors
    /// What is described cannot be.
    pub fn check(&self) -> Result<(), TilingError> {
        if self.payload_type > 127 {
            return Err(TilingError::PayloadType(self.payload_type));
        }
        if !(1200..=9000).contains(&self.mtu) {
            return Err(TilingError::Mtu(self.mtu));
        }
        let mut ssrcs = BTreeSet::new();
        for stream in &self.streams {
            if !ssrcs.insert(stream.ssrc) {
                return Err(TilingError::Twice(stream.ssrc));
            }
            if stream.places == Some(0) {
                return Err(TilingError::Places(stream.ssrc));
            }
            if self.codec == Codec::H265 {
                let columns = stream.columns.unwrap_or(1);
                let (_, rows) = stream.grid();
                if !(1..=MOST_COLUMNS).contains(&columns) || rows > MOST_ROWS {
                    return Err(TilingError::Grid(stream.ssrc, columns, rows));
                }
            } else if stream.columns.is_some() {
                return Err(TilingError::NoGrid(stream.ssrc));
            }
            let count = stream.places(self.codec);
            let mut taken = BTreeSet::new();
            for tile in &stream.tiles {
                if tile.place >= count || !taken.insert(tile.place) {
                    return Err(TilingError::Place(stream.ssrc, tile.place));
                }
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn tiles(&self) -> usize {
        self.streams.iter().map(|stream| stream.tiles.len()).sum()
    }

    /// Whether streams of the other go on with this one.
    #[must_use]
    pub fn goes_on(&self, other: &Self) -> bool {
        (self.to, self.codec, self.payload_type, self.mtu, self.hold_ms)
            == (other.to, other.codec, other.payload_type, other.mtu, other.hold_ms)
    }
}

/// Streams as they are: who is where.
#[derive(Clone, Debug, Serialize)]
pub struct TilingView {
    pub tiling: String,
    pub codec: Codec,
    pub from: String,
    pub to: String,
    pub streams: Vec<StreamView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StreamView {
    pub ssrc: u32,
    pub packets: u64,
    /// What a receiver of it has reported last.
    pub reported: Option<Reported>,
    pub tiles: Vec<TileView>,
}

/// A tile, in samples of luma; `null` until a picture has told the size.
#[derive(Clone, Debug, Serialize)]
pub struct TileView {
    pub place: usize,
    pub participant: String,
    pub contributor: u32,
    pub x: Option<u32>,
    pub y: Option<u32>,
    pub width: Option<u32>,
    pub height: Option<u32>,
    /// Pictures that have come.
    pub pictures: u64,
    /// Pictures that could not be tiled, and why the last one could not, unless one was since.
    pub refused: u64,
    pub refusal: Option<String>,
    /// How the decoding of one of its pictures has gone; `null`: its source is a mixer.
    pub trial: Option<Trial>,
}

/// Whether a decoder can decode a source's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trial {
    Pending,
    Decoded,
    Undecodable,
    /// No decoder has said anything.
    Unavailable,
}

impl Trial {
    #[must_use]
    pub fn of(trial: tiler::Trial) -> Option<Self> {
        match trial {
            tiler::Trial::None => None,
            tiler::Trial::Pending => Some(Self::Pending),
            tiler::Trial::Decoded => Some(Self::Decoded),
            tiler::Trial::Undecodable => Some(Self::Undecodable),
            tiler::Trial::Unavailable => Some(Self::Unavailable),
        }
    }
}
