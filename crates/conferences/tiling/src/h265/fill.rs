//! Slice data of tiles that have nothing new: the picture before once more, or grey. It is the same at each place.

use super::format::Format;
use super::slice::{Deblocking, Kind, Tools};
use crate::bits::Writer;
use crate::cabac::{Context, Encoder};
use crate::emulation;

/// Slice data that shows the picture before, and grey, with emulation prevention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    pub(crate) repeat: Vec<u8>,
    pub(crate) grey: Vec<u8>,
}

/// How it is decoded: as it is, without filters.
pub(crate) fn tools(kind: Kind) -> Tools {
    Tools {
        kind,
        offsets: [false; 2],
        contexts: false,
        // One candidate.
        merges: 4,
        quantiser: 0,
        chroma: [0; 2],
        deblocking: Deblocking::Off,
        across: false,
    }
}

impl Fill {
    /// For tiles of a format.
    #[must_use]
    pub fn of(format: &Format) -> Self {
        Self {
            repeat: repeat(format),
            grey: grey(format),
        }
    }
}

/// A context variable from its `initValue` (clause 9.3.2.2), with a quantiser of 26.
fn context(value: i32) -> Context {
    Context::new((value >> 4) * 5 - 45, ((value & 15) << 3) - 16, 26)
}

fn protected(out: Writer) -> Vec<u8> {
    let mut data = Vec::new();
    emulation::add(&mut data, &out.finish());
    data
}

/// Every coding tree unit is one that is skipped. The only merging candidate is one that does not move (clause 8.5.3.2.5), because none of its
/// neighbours in the slice does. Contexts are those of tables 9-7 and 9-8, of P slices.
fn repeat(format: &Format) -> Vec<u8> {
    let (mut out, mut encoder) = (Writer::default(), Encoder::new());
    let mut split = context(107);
    let mut skipped = [context(197), context(185), context(201)];
    let splits = format.blocks.tree > format.blocks.least_coding;
    for at in 0..format.trees() {
        let neighbours = usize::from(at % format.width > 0) + usize::from(at >= format.width);
        if splits {
            encoder.bin(&mut split, false, &mut out);
        }
        encoder.bin(&mut skipped[neighbours], true, &mut out);
        encoder.end(at + 1 == format.trees(), &mut out);
    }
    protected(out)
}

/// Contexts of a grey slice (tables 9-7 to 9-22, of I slices).
struct Grey {
    split: Context,
    whole: Context,
    probable: Context,
    chroma_mode: Context,
    /// By the size of the block.
    transform_split: [Context; 3],
    chroma_coded: Context,
    /// Below the coding block, and of its size.
    luma_coded: [Context; 2],
}

/// Every coding tree unit is one block, planar of its neighbours, which begin at 128, and without coefficients.
fn grey(format: &Format) -> Vec<u8> {
    let (mut out, mut encoder) = (Writer::default(), Encoder::new());
    let mut contexts = Grey {
        split: context(139),
        whole: context(184),
        probable: context(184),
        chroma_mode: context(63),
        transform_split: [context(153), context(138), context(138)],
        chroma_coded: context(94),
        luma_coded: [context(111), context(141)],
    };
    for at in 0..format.trees() {
        if format.blocks.tree > format.blocks.least_coding {
            encoder.bin(&mut contexts.split, false, &mut out);
        } else {
            // One prediction block.
            encoder.bin(&mut contexts.whole, true, &mut out);
        }
        // The first of the most probable modes: planar, as the block to the left, or as it is where there is none.
        encoder.bin(&mut contexts.probable, true, &mut out);
        encoder.bypass(false, &mut out);
        // Chroma as luma.
        encoder.bin(&mut contexts.chroma_mode, false, &mut out);
        contexts.transform(format, format.blocks.tree, 0, &mut encoder, &mut out);
        encoder.end(at + 1 == format.trees(), &mut out);
    }
    protected(out)
}

impl Grey {
    /// `transform_tree` (clause 7.3.8.8): split only where blocks are larger than transforms.
    fn transform(&mut self, format: &Format, size: u32, depth: u32, encoder: &mut Encoder, out: &mut Writer) {
        let blocks = &format.blocks;
        let too_large = size > blocks.largest_transform;
        if !too_large && size > blocks.least_transform && depth < blocks.intra_depth {
            encoder.bin(&mut self.transform_split[(5 - size) as usize], false, out);
        }
        if depth == 0 {
            // Neither blue nor red.
            encoder.bin(&mut self.chroma_coded, false, out);
            encoder.bin(&mut self.chroma_coded, false, out);
        }
        if too_large {
            (0..4).for_each(|_| self.transform(format, size - 1, depth + 1, encoder, out));
        } else {
            encoder.bin(&mut self.luma_coded[usize::from(depth == 0)], false, out);
        }
    }
}
