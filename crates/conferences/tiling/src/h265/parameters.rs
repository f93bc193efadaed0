//! A source's parameter sets, read as far as tiling depends on them.

use super::nal;
use super::references::ReferenceSet;
use super::slice::Deblocking;
use super::usability;
use crate::bits::Reader;
use crate::colour::Colour;
use crate::emulation;
use crate::fault::What;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Main, Main 10 and the format range extensions (clauses A.3.2, A.3.3 and A.3.5), which have the same tools for 8 bits and 4:2:0, unless a parameter
/// set has extensions.
const PROFILES: [u32; 3] = [1, 2, 4];
/// Samples of a picture's width or height at most, at the highest level.
const LARGEST: u32 = 16_888;

/// Sizes of blocks, as powers of two, and how often transform blocks are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub(crate) least_coding: u32,
    pub(crate) tree: u32,
    pub(crate) least_transform: u32,
    pub(crate) largest_transform: u32,
    pub(crate) inter_depth: u32,
    pub(crate) intra_depth: u32,
}

/// A sequence parameter set (clause 7.3.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub(crate) id: u32,
    /// In coding tree blocks.
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) blocks: Blocks,
    /// Bits of a picture's order in slice headers.
    pub(crate) order_bits: u32,
    pub(crate) references: Vec<ReferenceSet>,
    /// Whether there are long-term reference pictures, and sets of them.
    pub(crate) long_term: Option<u32>,
    pub(crate) asymmetric: bool,
    pub(crate) offsets: bool,
    pub(crate) temporal_vectors: bool,
    pub(crate) smoothing: bool,
    pub(crate) colour: Colour,
}

/// A picture parameter set (clause 7.3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(crate) id: u32,
    pub(crate) sequence: u32,
    pub(crate) dependent: bool,
    pub(crate) output: bool,
    pub(crate) extra_bits: u32,
    pub(crate) sign_hiding: bool,
    pub(crate) contexts: bool,
    /// Reference pictures in both lists of a slice that says nothing else.
    pub(crate) references: [u32; 2],
    pub(crate) quantiser: i32,
    pub(crate) constrained_intra: bool,
    pub(crate) transform_skip: bool,
    /// How deep in a coding tree quantisers change, if they do.
    pub(crate) quantiser_depth: Option<u32>,
    pub(crate) chroma: [i32; 2],
    pub(crate) slice_chroma: bool,
    /// Of P and B slices.
    pub(crate) weighted: [bool; 2],
    /// Tiles of equal size.
    pub(crate) columns: u32,
    pub(crate) rows: u32,
    pub(crate) across: bool,
    pub(crate) overridden: bool,
    pub(crate) deblocking: Deblocking,
    pub(crate) reordered: bool,
    pub(crate) merge_level: u32,
    pub(crate) extension: bool,
}

impl Sequence {
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    pub fn parse(unit: &[u8]) -> Result<Self, Refusal> {
        let payload = nal::payload(unit);
        let mut fields = Fields(Reader::within(&payload, 0, emulation::end(&payload)));
        fields.take(4)?;
        let sub_layers = fields.take(3)?;
        fields.flag()?;
        profile(&mut fields, sub_layers)?;
        let id = fields.at_most(15)?;
        // 4:2:0.
        if fields.at_most(3)? != 1 {
            return Err(Refusal::Samples);
        }
        let (width, height) = (fields.at_most(LARGEST)?, fields.at_most(LARGEST)?);
        let cropped = fields.flag()?;
        let mut hidden = 0;
        if cropped {
            for _ in 0..4 {
                hidden |= fields.unsigned()?;
            }
        }
        if [fields.unsigned()?, fields.unsigned()?] != [0, 0] {
            return Err(Refusal::Samples);
        }
        let order_bits = fields.at_most(12)? + 4;
        let all = fields.flag()?;
        for _ in if all { 0 } else { sub_layers }..=sub_layers {
            for _ in 0..3 {
                fields.unsigned()?;
            }
        }
        let blocks = Blocks::read(&mut fields)?;
        let (columns, rows) = (width >> blocks.tree, height >> blocks.tree);
        if columns == 0 || rows == 0 || columns << blocks.tree != width || rows << blocks.tree != height {
            return Err(Refusal::BlockSize(1 << blocks.tree));
        }
        if hidden > 0 {
            return Err(Refusal::Cropped);
        }
        if fields.flag()? {
            return Err(Refusal::ScalingLists);
        }
        let (asymmetric, offsets) = (fields.flag()?, fields.flag()?);
        if fields.flag()? {
            return Err(Refusal::PulseCode);
        }
        let mut references = Vec::new();
        for _ in 0..fields.at_most(64)? {
            references.push(ReferenceSet::read(&mut fields, &references)?);
        }
        let long_term = fields.flag()?.then(|| long_term_sets(&mut fields, order_bits)).transpose()?;
        let (temporal_vectors, smoothing) = (fields.flag()?, fields.flag()?);
        let colour = if fields.flag()? {
            usability::read(&mut fields, sub_layers)?
        } else {
            Colour::default()
        };
        if fields.flag()? && fields.take(8)? != 0 {
            return Err(Refusal::Extensions);
        }
        Ok(Self {
            id,
            width: columns,
            height: rows,
            blocks,
            order_bits,
            references,
            long_term,
            asymmetric,
            offsets,
            temporal_vectors,
            smoothing,
            colour,
        })
    }
}

/// `profile_tier_level` (clause 7.3.3).
fn profile(fields: &mut Fields<'_>, sub_layers: u32) -> Result<(), Refusal> {
    let profile = fields.take(8)? & 31;
    let compatible = fields.take(32)?;
    // Constraints, then the level.
    fields.take(32)?;
    fields.take(24)?;
    if !PROFILES
        .iter()
        .any(|known| profile == *known || compatible >> (31 - known) & 1 == 1)
    {
        return Err(Refusal::MainProfile(profile));
    }
    if sub_layers > 0 {
        let there = fields.take(16)?;
        for layer in 0..sub_layers {
            let flags = there >> (14 - 2 * layer);
            let octets = if flags & 2 != 0 { 11 } else { 0 } + (flags & 1);
            for _ in 0..octets {
                fields.take(8)?;
            }
        }
    }
    Ok(())
}

/// How many sets of long-term reference pictures there are.
fn long_term_sets(fields: &mut Fields<'_>, order_bits: u32) -> Result<u32, Refusal> {
    let count = fields.at_most(32)?;
    for _ in 0..count {
        fields.take(order_bits + 1)?;
    }
    Ok(count)
}

impl Blocks {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let least_coding = fields.at_most(3)? + 3;
        let tree = least_coding + fields.at_most(3)?;
        let least_transform = fields.at_most(3)? + 2;
        let largest_transform = least_transform + fields.at_most(3)?;
        let (inter_depth, intra_depth) = (fields.at_most(4)?, fields.at_most(4)?);
        // Main has coding tree blocks of 16 to 64 samples (clause A.3.2).
        if !(4..=6).contains(&tree) || least_transform >= least_coding || largest_transform > tree.min(5) {
            return Err(fields.fault(What::Value));
        }
        Ok(Self {
            least_coding,
            tree,
            least_transform,
            largest_transform,
            inter_depth,
            intra_depth,
        })
    }
}

impl Picture {
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    pub fn parse(unit: &[u8]) -> Result<Self, Refusal> {
        let payload = nal::payload(unit);
        let mut fields = Fields(Reader::within(&payload, 0, emulation::end(&payload)));
        let (id, sequence) = (fields.at_most(63)?, fields.at_most(15)?);
        let (dependent, output, extra_bits) = (fields.flag()?, fields.flag()?, fields.take(3)?);
        let (sign_hiding, contexts) = (fields.flag()?, fields.flag()?);
        let references = [fields.at_most(14)? + 1, fields.at_most(14)? + 1];
        let quantiser = fields.within(-26, 25)?;
        let (constrained_intra, transform_skip) = (fields.flag()?, fields.flag()?);
        let quantiser_depth = fields.flag()?.then(|| fields.at_most(3)).transpose()?;
        let chroma = [fields.within(-12, 12)?, fields.within(-12, 12)?];
        let slice_chroma = fields.flag()?;
        let weighted = [fields.flag()?, fields.flag()?];
        if fields.flag()? {
            return Err(Refusal::Lossless);
        }
        let tiles = fields.flag()?;
        if fields.flag()? {
            return Err(Refusal::Wavefront);
        }
        let (mut columns, mut rows) = (1, 1);
        if tiles {
            (columns, rows) = (fields.at_most(19)? + 1, fields.at_most(21)? + 1);
            if !fields.flag()? {
                return Err(Refusal::Tiles);
            }
            fields.flag()?;
        }
        let across = fields.flag()?;
        let (mut overridden, mut deblocking) = (false, Deblocking::On(0, 0));
        if fields.flag()? {
            overridden = fields.flag()?;
            deblocking = Deblocking::read(&mut fields)?;
        }
        if fields.flag()? {
            return Err(Refusal::ScalingLists);
        }
        let reordered = fields.flag()?;
        let merge_level = fields.at_most(4)? + 2;
        let extension = fields.flag()?;
        if fields.flag()? && fields.take(8)? != 0 {
            return Err(Refusal::Extensions);
        }
        Ok(Self {
            id,
            sequence,
            dependent,
            output,
            extra_bits,
            sign_hiding,
            contexts,
            references,
            quantiser,
            constrained_intra,
            transform_skip,
            quantiser_depth,
            chroma,
            slice_chroma,
            weighted,
            columns,
            rows,
            across,
            overridden,
            deblocking,
            reordered,
            merge_level,
            extension,
        })
    }
}
