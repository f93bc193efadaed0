//! Slices: headers are read and written anew, slice data stays as it is (clause 7.3.6).

use super::nal;
use super::parameters::{Picture, Sequence};
use super::references::ReferenceSet;
use crate::bits::{Reader, Writer};
use crate::coding::{FRAME_NUMBER_BITS, Frame};
use crate::emulation;
use crate::fault::What;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Octets that a slice header has at most: more than one with the largest set of reference pictures and the largest extension.
const LARGEST: usize = 640;

/// How edges of blocks are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deblocking {
    Off,
    /// With these offsets, halved.
    On(i32, i32),
}

/// What a slice is predicted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Intra,
    /// P: the picture before.
    Once,
    /// B: twice the same picture, the one before; whether differences of the second vector are 0.
    Twice(bool),
}

/// What a slice header says of how the slice is decoded, apart from where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tools {
    pub kind: Kind,
    /// Sample adaptive offsets of luma and chroma.
    pub offsets: [bool; 2],
    /// Of one that is predicted: the other contexts, and how many merging candidates fewer than five.
    pub contexts: bool,
    pub merges: u32,
    /// The difference from 26.
    pub quantiser: i32,
    pub chroma: [i32; 2],
    pub deblocking: Deblocking,
    /// Filters cross its edge to slices before it.
    pub across: bool,
}

/// Where a picture is in the order of the source's pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Order begins anew here.
    pub anew: bool,
    /// Modulo 2 to the power of `bits`.
    pub order: u32,
    pub bits: u32,
    /// How many pictures before is the one that the slice predicts from.
    pub back: Option<u32>,
}

/// A slice of a source that can be tiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its tile in the source's picture, and its first coding tree block in that tile.
    pub tile: u32,
    pub first: u32,
    /// Whether it is the first slice of the source's picture.
    pub begins: bool,
    pub(crate) tools: Tools,
    pub(crate) position: Position,
    unit: Vec<u8>,
    /// Where in the unit the slice data begins. The octet before has a bit that is 1, so emulation prevention of the data depends on nothing
    /// before it.
    data: usize,
}

/// Which of a slice's parameter sets.
pub(crate) fn parameter_set(unit: &[u8]) -> Option<u32> {
    let payload = nal::payload(&unit[..unit.len().min(12)]);
    let mut bits = Reader::new(&payload);
    bits.flag()?;
    if nal::RANDOM_ACCESS.contains(&nal::kind(unit)) {
        bits.flag()?;
    }
    bits.unsigned()
}

/// Bits of a number that is less than `count`.
pub(crate) fn bits_below(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

impl Slice {
    /// Reads a slice with its parameter sets.
    ///
    /// # Errors
    /// It is cut short, or uses what a grid cannot have.
    pub fn parse(mut unit: Vec<u8>, sequence: &Sequence, picture: &Picture) -> Result<Self, Refusal> {
        let access = nal::kind(&unit);
        while unit.last() == Some(&0) {
            unit.pop();
        }
        let header = nal::payload(&unit[..unit.len().min(LARGEST)]);
        let mut fields = Fields(Reader::new(&header));
        let begins = fields.flag()?;
        if nal::RANDOM_ACCESS.contains(&access) {
            fields.flag()?;
        }
        fields.at_most(63)?;
        let address = address(&mut fields, begins, sequence, picture)?;
        fields.take(picture.extra_bits)?;
        let mut kind = match fields.at_most(2)? {
            0 => Kind::Twice(false),
            1 => Kind::Once,
            _ => Kind::Intra,
        };
        if picture.output && !fields.flag()? {
            return Err(Refusal::Hidden);
        }
        let mut position = Position {
            anew: nal::IDR.contains(&access) || nal::BROKEN_LINK.contains(&access),
            order: 0,
            bits: sequence.order_bits,
            back: None,
        };
        let mut used = 0;
        if !nal::IDR.contains(&access) {
            position.order = fields.take(sequence.order_bits)?;
            let references = references(&mut fields, sequence)?;
            used = references.used();
            position.back = references.first().filter(|_| kind != Kind::Intra);
            if sequence.temporal_vectors && fields.flag()? && kind != Kind::Intra {
                return Err(Refusal::TemporalVectors);
            }
        }
        let offsets = if sequence.offsets {
            [fields.flag()?, fields.flag()?]
        } else {
            [false; 2]
        };
        let (mut contexts, mut merges) = (false, 0);
        if kind != Kind::Intra {
            (contexts, merges) = prediction(&mut fields, &mut kind, picture, used)?;
            if position.back.is_none() {
                return Err(Refusal::References);
            }
        }
        let quantiser = picture.quantiser + fields.within(-100, 100)?;
        if !(-26..=25).contains(&quantiser) {
            return Err(fields.fault(What::Value));
        }
        let mut chroma = [0; 2];
        if picture.slice_chroma {
            chroma = [fields.within(-12, 12)?, fields.within(-12, 12)?];
        }
        let mut deblocking = picture.deblocking;
        if picture.overridden && fields.flag()? {
            deblocking = Deblocking::read(&mut fields)?;
        }
        let mut across = picture.across;
        if across && (offsets != [false; 2] || deblocking != Deblocking::Off) {
            across = fields.flag()?;
        }
        if picture.columns * picture.rows > 1 && fields.unsigned()? > 0 {
            return Err(Refusal::SliceOrder);
        }
        if picture.extension {
            for _ in 0..fields.at_most(256)? {
                fields.take(8)?;
            }
        }
        // byte_alignment( )
        if !fields.flag()? || fields.take(padding(&fields))? != 0 {
            return Err(fields.fault(What::Value));
        }
        let data = raw(&unit, fields.0.at() / 8);
        if data >= unit.len() {
            return Err(fields.fault(What::Short));
        }
        let (tile, first) = place(address, sequence, picture);
        Ok(Self {
            tile,
            first,
            begins,
            tools: Tools {
                kind,
                offsets,
                contexts,
                merges,
                quantiser,
                chroma,
                deblocking,
                // Nothing is before the first in the tile.
                across: across && first > 0,
            },
            position,
            unit,
            data,
        })
    }

    /// Whether it is coded intra.
    #[must_use]
    pub fn intra(&self) -> bool {
        self.tools.kind == Kind::Intra
    }

    /// The slice data, with emulation prevention.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.unit[self.data..]
    }
}

/// `slice_segment_address`.
fn address(fields: &mut Fields<'_>, begins: bool, sequence: &Sequence, picture: &Picture) -> Result<u32, Refusal> {
    if begins {
        return Ok(0);
    }
    if picture.dependent && fields.flag()? {
        return Err(Refusal::Dependent);
    }
    let trees = sequence.width * sequence.height;
    let address = fields.take(bits_below(trees))?;
    if (1..trees).contains(&address) {
        Ok(address)
    } else {
        Err(fields.fault(What::Value))
    }
}

/// In which of a source's tiles an address is, and which coding tree block of that tile it is.
fn place(address: u32, sequence: &Sequence, picture: &Picture) -> (u32, u32) {
    // Where there are more tiles than blocks the format is refused.
    let width = (sequence.width / picture.columns).max(1);
    let height = (sequence.height / picture.rows).max(1);
    let (x, y) = (address % sequence.width, address / sequence.width);
    (y / height * picture.columns + x / width, y % height * width + x % width)
}

/// The set of reference pictures.
fn references(fields: &mut Fields<'_>, sequence: &Sequence) -> Result<ReferenceSet, Refusal> {
    let known = &sequence.references;
    let set = if fields.flag()? {
        // There are at most 64.
        let at = fields.take(bits_below(known.len().try_into().unwrap_or(u32::MAX)))?;
        let set = known.get(at as usize);
        set.cloned().ok_or_else(|| fields.fault(What::Value))?
    } else {
        ReferenceSet::of_slice(fields, known)?
    };
    if let Some(sets) = sequence.long_term {
        let mut count = if sets > 0 { fields.at_most(32)? } else { 0 };
        count += fields.at_most(32)?;
        if count > 0 {
            return Err(Refusal::References);
        }
    }
    Ok(set)
}

/// What only slices that are predicted say: contexts and merging candidates, and of B slices, what `kind` has.
fn prediction(fields: &mut Fields<'_>, kind: &mut Kind, picture: &Picture, used: usize) -> Result<(bool, u32), Refusal> {
    let twice = matches!(kind, Kind::Twice(_));
    let lists = if twice { 2 } else { 1 };
    let mut counts = picture.references;
    if fields.flag()? {
        for count in &mut counts[..lists] {
            *count = fields.at_most(14)? + 1;
        }
    }
    if counts[..lists].iter().any(|count| *count > 1) {
        return Err(Refusal::References);
    }
    if picture.reordered && used > 1 {
        for _ in 0..lists {
            if fields.flag()? {
                return Err(Refusal::References);
            }
        }
    }
    if twice {
        *kind = Kind::Twice(fields.flag()?);
    }
    let contexts = picture.contexts && fields.flag()?;
    if picture.weighted[lists - 1] {
        return Err(Refusal::WeightedPrediction);
    }
    Ok((contexts, fields.at_most(4)?))
}

/// Bits up to a whole octet, less than 8.
fn padding(fields: &Fields<'_>) -> u32 {
    // Less than 8.
    #[allow(clippy::cast_possible_truncation)]
    let over = (fields.0.at() % 8) as u32;
    (8 - over) % 8
}

/// Where in a NAL unit what comes after so many octets of its payload is.
fn raw(unit: &[u8], octets: usize) -> usize {
    let (mut zeros, mut left) = (0, octets);
    for (at, octet) in unit.iter().enumerate().skip(nal::HEADER) {
        if left == 0 {
            return at;
        }
        if zeros >= 2 && *octet == 3 {
            zeros = 0;
            continue;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        left -= 1;
    }
    unit.len()
}

impl Deblocking {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        if fields.flag()? {
            return Ok(Self::Off);
        }
        Ok(Self::On(fields.within(-6, 6)?, fields.within(-6, 6)?))
    }
}

/// Where a slice of the grid begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// Of the first coding tree block, among those of the picture in raster scan; how many bits it has.
    pub tree: u32,
    pub bits: u32,
    /// Whether the grid has more than one tile.
    pub tiles: bool,
}

/// A slice of the grid as a NAL unit: a header, and slice data with its emulation prevention.
pub(crate) fn unit(address: Address, tools: &Tools, frame: Frame, data: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.flag(address.tree == 0);
    if frame.idr {
        // Pictures before are shown.
        out.flag(false);
    }
    out.unsigned(0);
    if address.tree > 0 {
        out.put(address.tree, address.bits);
    }
    out.unsigned(match tools.kind {
        Kind::Intra => 2,
        Kind::Once => 1,
        Kind::Twice(_) => 0,
    });
    if !frame.idr {
        out.put(frame.number, FRAME_NUMBER_BITS);
        // The sequence parameter set's only set of reference pictures.
        out.flag(true);
    }
    tools.offsets.into_iter().for_each(|there| out.flag(there));
    if tools.kind != Kind::Intra {
        // One reference picture in each list.
        out.flag(false);
        if let Kind::Twice(zero) = tools.kind {
            out.flag(zero);
        }
        out.flag(tools.contexts);
        out.unsigned(tools.merges);
    }
    out.signed(tools.quantiser);
    tools.chroma.into_iter().for_each(|offset| out.signed(offset));
    let overridden = tools.deblocking != Deblocking::On(0, 0);
    out.flag(overridden);
    if overridden {
        out.flag(tools.deblocking == Deblocking::Off);
        if let Deblocking::On(beta, threshold) = tools.deblocking {
            out.signed(beta);
            out.signed(threshold);
        }
    }
    if tools.offsets != [false; 2] || tools.deblocking != Deblocking::Off {
        out.flag(tools.across);
    }
    if address.tiles {
        // No entry points.
        out.unsigned(0);
    }
    let header = out.trailing();
    let mut nal = Vec::with_capacity(nal::HEADER + header.len() + 2 + data.len());
    let kind = if frame.idr { nal::IDR_N_LP } else { nal::TRAIL_R };
    nal.extend([kind << 1, 1]);
    emulation::add(&mut nal, &header);
    nal.extend_from_slice(data);
    nal
}
