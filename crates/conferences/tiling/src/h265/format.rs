//! What the pictures of all tiles have in common, and the parameter sets of a grid of them.

use super::nal;
use super::parameters::{Blocks, Picture, Sequence};
use crate::bits::Writer;
use crate::coding::FRAME_NUMBER_BITS;
use crate::colour::Colour;
use crate::fault::{Fault, What};
use crate::refusal::{Parameter, Refusal};

/// Of a tile, in samples (clause A.3.2).
const LEAST: (u32, u32) = (256, 64);
/// Pictures of the grid a second, at most.
const RATE: u64 = 30;

/// A level: its number times 30; samples of luma of a picture and a second, slices of a picture, and rows and columns of tiles, at most (tables A.8
/// and A.9).
struct Level {
    number: u32,
    picture: u64,
    second: u64,
    slices: u32,
    rows: u32,
    columns: u32,
}

#[rustfmt::skip]
const LEVELS: [Level; 13] = [
    Level { number: 30, picture: 36_864, second: 552_960, slices: 16, rows: 1, columns: 1 },
    Level { number: 60, picture: 122_880, second: 3_686_400, slices: 16, rows: 1, columns: 1 },
    Level { number: 63, picture: 245_760, second: 7_372_800, slices: 20, rows: 1, columns: 1 },
    Level { number: 90, picture: 552_960, second: 16_588_800, slices: 30, rows: 2, columns: 2 },
    Level { number: 93, picture: 983_040, second: 33_177_600, slices: 40, rows: 3, columns: 3 },
    Level { number: 120, picture: 2_228_224, second: 66_846_720, slices: 75, rows: 5, columns: 5 },
    Level { number: 123, picture: 2_228_224, second: 133_693_440, slices: 75, rows: 5, columns: 5 },
    Level { number: 150, picture: 8_912_896, second: 267_386_880, slices: 200, rows: 11, columns: 10 },
    Level { number: 153, picture: 8_912_896, second: 534_773_760, slices: 200, rows: 11, columns: 10 },
    Level { number: 156, picture: 8_912_896, second: 1_069_547_520, slices: 200, rows: 11, columns: 10 },
    Level { number: 180, picture: 35_651_584, second: 1_069_547_520, slices: 600, rows: 22, columns: 20 },
    Level { number: 183, picture: 35_651_584, second: 2_139_095_040, slices: 600, rows: 22, columns: 20 },
    Level { number: 186, picture: 35_651_584, second: 4_278_190_080, slices: 600, rows: 22, columns: 20 },
];

/// What the pictures of all tiles have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Of a tile, in coding tree blocks.
    pub width: u32,
    pub height: u32,
    pub(crate) blocks: Blocks,
    asymmetric: bool,
    smoothing: bool,
    sign_hiding: bool,
    constrained_intra: bool,
    transform_skip: bool,
    quantiser_depth: Option<u32>,
    chroma: [i32; 2],
    merge_level: u32,
    colour: Colour,
}

impl Format {
    /// Of a source whose picture has so many tiles.
    ///
    /// # Errors
    /// It has another number of them, or they are of no size that tiles may have.
    pub fn of(sequence: &Sequence, picture: &Picture, tiles: u32) -> Result<Self, Refusal> {
        let (columns, rows) = (picture.columns, picture.rows);
        if columns * rows != tiles {
            return Err(if tiles == 1 { Refusal::Tiles } else { Refusal::PictureSize });
        }
        if !sequence.width.is_multiple_of(columns) || !sequence.height.is_multiple_of(rows) {
            return Err(Refusal::Tiles);
        }
        let format = Self {
            width: sequence.width / columns,
            height: sequence.height / rows,
            blocks: sequence.blocks,
            asymmetric: sequence.asymmetric,
            smoothing: sequence.smoothing,
            sign_hiding: picture.sign_hiding,
            constrained_intra: picture.constrained_intra,
            transform_skip: picture.transform_skip,
            quantiser_depth: picture.quantiser_depth,
            chroma: picture.chroma,
            merge_level: picture.merge_level,
            colour: sequence.colour,
        };
        let (width, height) = format.size();
        if width < LEAST.0 || height < LEAST.1 {
            return Err(Refusal::TileSize);
        }
        if format.merge_level > format.blocks.tree {
            return Err(Refusal::Fault(Fault { what: What::Value, at: 0 }));
        }
        Ok(format)
    }

    /// Whether pictures of another source go with these.
    ///
    /// # Errors
    /// What differs.
    pub fn admits(&self, other: &Self) -> Result<(), Refusal> {
        let differs = |same: bool, parameter| if same { Ok(()) } else { Err(Refusal::Differs(parameter)) };
        if self.size() != other.size() {
            return Err(Refusal::PictureSize);
        }
        differs(self.blocks == other.blocks, Parameter::Blocks)?;
        differs(self.asymmetric == other.asymmetric, Parameter::Asymmetric)?;
        differs(self.smoothing == other.smoothing, Parameter::Smoothing)?;
        differs(self.sign_hiding == other.sign_hiding, Parameter::SignHiding)?;
        differs(self.constrained_intra == other.constrained_intra, Parameter::ConstrainedIntra)?;
        differs(self.transform_skip == other.transform_skip, Parameter::TransformSkip)?;
        differs(self.quantiser_depth == other.quantiser_depth, Parameter::Quantiser)?;
        differs(self.chroma == other.chroma, Parameter::Chroma)?;
        differs(self.merge_level == other.merge_level, Parameter::MergeLevel)?;
        differs(self.colour == other.colour, Parameter::Colour)
    }

    /// Of a tile, in samples.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.width << self.blocks.tree, self.height << self.blocks.tree)
    }

    /// Coding tree blocks of a tile.
    #[must_use]
    pub fn trees(&self) -> u32 {
        self.width * self.height
    }

    fn level(&self, columns: u32, rows: u32) -> Option<&'static Level> {
        let (width, height) = self.size();
        let (width, height) = (u64::from(width) * u64::from(columns), u64::from(height) * u64::from(rows));
        let fits = |level: &&Level| {
            let sides = width.max(height).pow(2) <= 8 * level.picture;
            let tiles = columns <= level.columns && rows <= level.rows && columns * rows <= level.slices;
            sides && tiles && width * height <= level.picture && width * height * RATE <= level.second
        };
        LEVELS.iter().find(fits)
    }

    /// Slices that each of so many tiles has at most.
    ///
    /// # Errors
    /// No level allows so many.
    pub fn slices(&self, columns: u32, rows: u32) -> Result<u32, Refusal> {
        let level = self.level(columns, rows).ok_or(Refusal::Level)?;
        Ok(level.slices / (columns * rows))
    }

    /// The parameter sets of a grid: of the video, the sequence and the picture.
    ///
    /// # Errors
    /// No level allows so many tiles.
    pub fn parameter_sets(&self, columns: u32, rows: u32) -> Result<[Vec<u8>; 3], Refusal> {
        let level = self.level(columns, rows).ok_or(Refusal::Level)?;
        Ok([
            nal::unit(nal::VPS, &video(level)),
            nal::unit(nal::SPS, &self.sequence(level, columns, rows)),
            nal::unit(nal::PPS, &self.picture(columns, rows)),
        ])
    }

    fn sequence(&self, level: &Level, columns: u32, rows: u32) -> Vec<u8> {
        let mut out = Writer::default();
        // Video parameter set 0, one temporal layer, which is nested in itself.
        out.put(1, 8);
        profile(level, &mut out);
        let (width, height) = self.size();
        // Number 0, 4:2:0.
        [0, 1, width * columns, height * rows]
            .into_iter()
            .for_each(|number| out.unsigned(number));
        // All is shown, with 8 bits.
        out.flag(false);
        [0, 0, FRAME_NUMBER_BITS - 4].into_iter().for_each(|number| out.unsigned(number));
        pictures(&mut out);
        let blocks = &self.blocks;
        [
            blocks.least_coding - 3,
            blocks.tree - blocks.least_coding,
            blocks.least_transform - 2,
            blocks.largest_transform - blocks.least_transform,
            blocks.inter_depth,
            blocks.intra_depth,
        ]
        .into_iter()
        .for_each(|number| out.unsigned(number));
        out.flag(false);
        out.flag(self.asymmetric);
        // Slices say whether they have sample adaptive offsets; no PCM.
        out.put(0b10, 2);
        // One set of reference pictures: the one before.
        [1, 1, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(true);
        // Neither long-term reference pictures nor temporal motion vectors.
        out.put(0, 2);
        out.flag(self.smoothing);
        let said = self.colour != Colour::default();
        out.flag(said);
        if said {
            self.colour.write(&mut out);
            // No chroma location, fields, window, timing or restriction.
            out.put(0, 7);
        }
        out.flag(false);
        out.trailing()
    }

    fn picture(&self, columns: u32, rows: u32) -> Vec<u8> {
        let mut out = Writer::default();
        [0, 0].into_iter().for_each(|number| out.unsigned(number));
        // No dependent slice segments, all pictures are shown, no extra bits.
        out.put(0, 5);
        out.flag(self.sign_hiding);
        // Slices choose contexts.
        out.flag(true);
        [0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.signed(0);
        out.flag(self.constrained_intra);
        out.flag(self.transform_skip);
        out.flag(self.quantiser_depth.is_some());
        if let Some(depth) = self.quantiser_depth {
            out.unsigned(depth);
        }
        self.chroma.into_iter().for_each(|offset| out.signed(offset));
        // Slices have chroma offsets; no weighted prediction, nothing is lossless.
        out.put(0b1000, 4);
        let tiles = columns * rows > 1;
        out.flag(tiles);
        out.flag(false);
        if tiles {
            [columns - 1, rows - 1].into_iter().for_each(|number| out.unsigned(number));
            // Of equal size, and filters do not cross them.
            out.put(0b10, 2);
        }
        // Slices say whether filters cross them, and how edges are deblocked.
        out.put(0b1110, 4);
        [0, 0].into_iter().for_each(|number| out.signed(number));
        out.put(0, 2);
        out.unsigned(self.merge_level - 2);
        // No extensions.
        out.put(0, 2);
        out.trailing()
    }
}

fn video(level: &Level) -> Vec<u8> {
    let mut out = Writer::default();
    // Number 0; the base layer is there; one layer, one temporal layer, which is nested in itself; reserved bits.
    out.put(0, 4);
    out.put(0b11, 2);
    out.put(0, 9);
    out.put(0x1_FFFF, 17);
    profile(level, &mut out);
    pictures(&mut out);
    // No more layers or sets of them, no timing, no extension.
    out.put(0, 6);
    out.unsigned(0);
    out.put(0, 2);
    out.trailing()
}

/// `profile_tier_level` (clause 7.3.3): Main, of the main tier.
fn profile(level: &Level, out: &mut Writer) {
    out.put(1, 8);
    // Main 10 has all that Main has.
    out.put(0b0110_0000 << 24, 32);
    // Frames, progressive; nothing else that constrains.
    out.put(0b1001 << 28, 32);
    out.put(0, 16);
    out.put(level.number, 8);
}

/// Two pictures are kept, and pictures are shown as soon as they are decoded.
fn pictures(out: &mut Writer) {
    out.flag(true);
    [1, 0, 0].into_iter().for_each(|number| out.unsigned(number));
}
