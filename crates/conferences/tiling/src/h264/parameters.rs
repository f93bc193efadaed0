//! Parameter sets: a source's are read as far as tiling depends on them, the column's are written.

use super::nal;
use crate::bits::{Reader, Writer};
use crate::coding::FRAME_NUMBER_BITS;
use crate::colour::Colour;
use crate::emulation;
use crate::fault::What;
use crate::fields::Fields;
use crate::refusal::{Parameter, Refusal};

const BASELINE: u8 = 66;
const MAIN: u8 = 77;
const HIGH: u8 = 100;
/// Level, macroblocks a second and of a picture (table A-1).
const LEVELS: [(u8, u32, u32); 14] = [
    (10, 1485, 99),
    (11, 3000, 396),
    (12, 6000, 396),
    (13, 11_880, 396),
    (21, 19_800, 792),
    (22, 20_250, 1620),
    (30, 40_500, 1620),
    (31, 108_000, 3600),
    (32, 216_000, 5120),
    (40, 245_760, 8192),
    (42, 522_240, 8704),
    (50, 589_824, 22_080),
    (51, 983_040, 36_864),
    (52, 2_073_600, 36_864),
];
/// Pictures of the column a second, at most.
const RATE: u32 = 30;

/// How a slice header tells the order of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PictureOrder {
    /// Type 0: with so many bits.
    Least(u32),
    /// Type 1: with a difference.
    Difference,
    /// Type 1 without a difference, and type 2.
    Nothing,
}

/// A sequence parameter set (clause 7.3.2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub(crate) id: u32,
    profile: u8,
    constraints: u8,
    pub(crate) frame_number_bits: u32,
    pub(crate) order: PictureOrder,
    /// In macroblocks.
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Columns of chroma samples on the right that are not shown.
    right: u32,
    colour: Colour,
}

/// A picture parameter set (clause 7.3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(crate) id: u32,
    pub(crate) sequence: u32,
    pub(crate) cabac: bool,
    pub(crate) order_of_fields: bool,
    /// Reference pictures of a P slice that says nothing else.
    pub(crate) references: u32,
    pub(crate) weighted: bool,
    pub(crate) quantiser: i32,
    pub(crate) deblocking: bool,
    constrained_intra: bool,
    large_transform: bool,
    chroma: [i32; 2],
}

impl Sequence {
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    pub fn parse(unit: &[u8]) -> Result<Self, Refusal> {
        let payload = nal::payload(unit);
        let mut fields = Fields(Reader::within(&payload, 0, emulation::end(&payload)));
        let [_, profile, constraints, _] = fields.take(24)?.to_be_bytes();
        let id = fields.at_most(31)?;
        match profile {
            BASELINE | MAIN => {}
            HIGH => {
                if [fields.unsigned()?, fields.unsigned()?, fields.unsigned()?] != [1, 0, 0] {
                    return Err(Refusal::Samples);
                }
                if fields.flag()? {
                    return Err(Refusal::Lossless);
                }
                if fields.flag()? {
                    return Err(Refusal::ScalingLists);
                }
            }
            other => return Err(Refusal::Profile(other)),
        }
        let frame_number_bits = fields.at_most(12)? + 4;
        let order = PictureOrder::read(&mut fields)?;
        // Reference frames, and whether frame numbers may have gaps.
        fields.unsigned()?;
        fields.flag()?;
        let (width, height) = (fields.at_most(1023)? + 1, fields.at_most(1023)? + 1);
        if !fields.flag()? {
            return Err(Refusal::Interlaced);
        }
        // Direct inference.
        fields.flag()?;
        let mut right = 0;
        if fields.flag()? {
            fields.unsigned()?;
            right = fields.at_most(7)?;
            fields.unsigned()?;
            fields.unsigned()?;
        }
        let colour = if fields.flag()? {
            Colour::read(&mut fields)?
        } else {
            Colour::default()
        };
        Ok(Self {
            id,
            profile,
            constraints,
            frame_number_bits,
            order,
            width,
            height,
            right,
            colour,
        })
    }
}

impl PictureOrder {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        match fields.at_most(2)? {
            0 => Ok(Self::Least(fields.at_most(12)? + 4)),
            1 => {
                let nothing = fields.flag()?;
                fields.signed()?;
                fields.signed()?;
                for _ in 0..fields.at_most(255)? {
                    fields.signed()?;
                }
                Ok(if nothing { Self::Nothing } else { Self::Difference })
            }
            _ => Ok(Self::Nothing),
        }
    }
}

impl Picture {
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    pub fn parse(unit: &[u8]) -> Result<Self, Refusal> {
        let payload = nal::payload(unit);
        let mut fields = Fields(Reader::within(&payload, 0, emulation::end(&payload)));
        let (id, sequence) = (fields.at_most(255)?, fields.at_most(31)?);
        let (cabac, order_of_fields) = (fields.flag()?, fields.flag()?);
        if fields.unsigned()? > 0 {
            return Err(Refusal::SliceGroups);
        }
        let references = fields.at_most(31)? + 1;
        fields.at_most(31)?;
        let weighted = fields.flag()?;
        fields.take(2)?;
        let quantiser = fields.signed()?;
        fields.signed()?;
        let chroma = fields.signed()?;
        let (deblocking, constrained_intra) = (fields.flag()?, fields.flag()?);
        if fields.flag()? {
            return Err(Refusal::Redundant);
        }
        let (mut large_transform, mut second) = (false, chroma);
        if fields.0.left() > 0 {
            large_transform = fields.flag()?;
            if fields.flag()? {
                return Err(Refusal::ScalingLists);
            }
            second = fields.signed()?;
        }
        if !(-26..=25).contains(&quantiser) || !(-12..=12).contains(&chroma) || !(-12..=12).contains(&second) {
            return Err(fields.fault(What::Value));
        }
        Ok(Self {
            id,
            sequence,
            cabac,
            order_of_fields,
            references,
            weighted,
            quantiser,
            deblocking,
            constrained_intra,
            large_transform,
            chroma: [chroma, second],
        })
    }
}

/// What the pictures of all tiles have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    profile: u8,
    constraints: u8,
    /// Of a tile, in macroblocks.
    pub width: u32,
    pub height: u32,
    right: u32,
    pub cabac: bool,
    constrained_intra: bool,
    large_transform: bool,
    chroma: [i32; 2],
    colour: Colour,
}

impl Format {
    /// Of a source whose picture has so many tiles, one below the other.
    ///
    /// # Errors
    /// Its height is not a multiple of theirs.
    pub fn of(sequence: &Sequence, picture: &Picture, tiles: u32) -> Result<Self, Refusal> {
        if tiles == 0 || !sequence.height.is_multiple_of(tiles) {
            return Err(Refusal::PictureSize);
        }
        Ok(Self {
            profile: sequence.profile,
            constraints: sequence.constraints,
            width: sequence.width,
            height: sequence.height / tiles,
            right: sequence.right,
            cabac: picture.cabac,
            constrained_intra: picture.constrained_intra,
            large_transform: picture.large_transform,
            chroma: picture.chroma,
            colour: sequence.colour,
        })
    }

    /// Whether pictures of another source go with these.
    ///
    /// # Errors
    /// What differs.
    pub fn admits(&self, other: &Self) -> Result<(), Refusal> {
        let differs = |same: bool, parameter| if same { Ok(()) } else { Err(Refusal::Differs(parameter)) };
        if (self.width, self.height, self.right) != (other.width, other.height, other.right) {
            return Err(Refusal::PictureSize);
        }
        differs(self.profile == other.profile, Parameter::Profile)?;
        differs(self.cabac == other.cabac, Parameter::Entropy)?;
        differs(self.large_transform == other.large_transform, Parameter::Transform)?;
        differs(self.constrained_intra == other.constrained_intra, Parameter::ConstrainedIntra)?;
        differs(self.chroma == other.chroma, Parameter::Chroma)?;
        differs(self.colour == other.colour, Parameter::Colour)
    }

    /// Macroblocks of a tile.
    #[must_use]
    pub fn macroblocks(&self) -> u32 {
        self.width * self.height
    }

    fn level(&self, tiles: u32) -> Option<u8> {
        let (size, height) = (self.macroblocks() * tiles, self.height * tiles);
        let fits = |largest: u32| size <= largest && height * height <= 8 * largest && self.width * self.width <= 8 * largest;
        let level = LEVELS.iter().find(|(_, rate, largest)| fits(*largest) && size * RATE <= *rate);
        level.map(|(level, ..)| *level)
    }

    /// The parameter sets of a column of so many tiles.
    ///
    /// # Errors
    /// No level allows so many.
    pub fn parameter_sets(&self, tiles: u32) -> Result<[Vec<u8>; 2], Refusal> {
        let level = self.level(tiles).ok_or(Refusal::Level)?;
        let mut out = Writer::default();
        // Constraint 3 says level 1b, or intra only, and neither holds.
        [self.profile, self.constraints & 0b1110_0000, level]
            .iter()
            .for_each(|octet| out.put(u32::from(*octet), 8));
        out.unsigned(0);
        if self.profile == HIGH {
            // 4:2:0, 8 bits, neither lossless nor scaling lists.
            [1, 0, 0].into_iter().for_each(|number| out.unsigned(number));
            out.put(0, 2);
        }
        // Pictures are shown in the order in which they come; each refers to the one before.
        [FRAME_NUMBER_BITS - 4, 2, 1].into_iter().for_each(|number| out.unsigned(number));
        out.flag(false);
        out.unsigned(self.width - 1);
        out.unsigned(self.height * tiles - 1);
        // Frames only, direct inference.
        out.put(0b11, 2);
        out.flag(self.right > 0);
        if self.right > 0 {
            [0, self.right, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        }
        out.flag(true);
        self.colour.write(&mut out);
        // No chroma location, timing, HRD parameters or structure of pictures.
        out.put(0, 5);
        // Pictures are shown as soon as they are decoded.
        out.put(0b11, 2);
        [0, 0, 16, 16, 0, 1].into_iter().for_each(|number| out.unsigned(number));
        let sequence = nal::unit(3, nal::SPS, &out.trailing());

        let mut out = Writer::default();
        [0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(self.cabac);
        out.flag(false);
        // No slice groups, one reference picture, no weighted prediction.
        [0, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.put(0, 3);
        [0, 0, self.chroma[0]].into_iter().for_each(|number| out.signed(number));
        // Slices say how they are deblocked.
        out.flag(true);
        out.flag(self.constrained_intra);
        out.flag(false);
        if self.profile == HIGH {
            out.flag(self.large_transform);
            out.flag(false);
            out.signed(self.chroma[1]);
        }
        Ok([sequence, nal::unit(3, nal::PPS, &out.trailing())])
    }
}
