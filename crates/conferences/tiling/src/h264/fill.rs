//! Slices of tiles that have nothing new: the picture before once more, or grey.

use super::nal;
use super::parameters::Format;
use super::slice::{Deblocking, Frame, Header, align};
use crate::bits::Writer;
use crate::cabac::{Context, Encoder};

/// A slice that repeats the picture before: every macroblock is skipped, and predicts from its own place, because none of its neighbours in
/// the slice moves (clause 8.4.1.1).
#[must_use]
pub fn repeat(format: &Format, first: u32, frame: Frame) -> Vec<u8> {
    let mut out = begin(format, first, false, frame);
    if format.cabac {
        let mut encoder = Encoder::new();
        // mb_skip_flag, whose neighbours are skipped or not there (table 9-13, cabac_init_idc 0).
        let mut skipped = Context::new(23, 33, 26);
        for left in (0..format.macroblocks()).rev() {
            encoder.bin(&mut skipped, true, &mut out);
            encoder.end(left == 0, &mut out);
        }
    } else {
        out.unsigned(format.macroblocks());
        out.flag(true);
    }
    nal::unit(2, nal::SLICE, &out.finish())
}

/// A slice of grey: macroblocks coded intra, each the mean of its neighbours, which begins at 128.
#[must_use]
pub fn grey(format: &Format, first: u32, frame: Frame) -> Vec<u8> {
    let mut out = begin(format, first, true, frame);
    if format.cabac {
        arithmetic(format, &mut out);
    } else {
        for _ in 0..format.macroblocks() {
            // I_16x16_2_0_0: the mean, without coefficients; the mean for chroma too.
            out.unsigned(3);
            out.unsigned(0);
            out.signed(0);
            // No coefficients of a block whose neighbours have none.
            out.flag(true);
        }
        out.flag(true);
    }
    nal::unit(
        if frame.idr { 3 } else { 2 },
        if frame.idr { nal::IDR } else { nal::SLICE },
        &out.finish(),
    )
}

fn begin(format: &Format, first: u32, intra: bool, frame: Frame) -> Writer {
    let mut out = Writer::default();
    let header = Header {
        first,
        intra,
        contexts: (format.cabac && !intra).then_some(0),
        quantiser: 0,
        deblocking: Deblocking::Off,
    };
    header.write(frame, &mut out);
    if format.cabac {
        align(&mut out);
    }
    out
}

/// What the grey slice's syntax elements are in binary (clause 9.3.2.5), and in which contexts (tables 9-12, 9-16 and 9-18).
fn arithmetic(format: &Format, out: &mut Writer) {
    let mut encoder = Encoder::new();
    let context = |slope, start| Context::new(slope, start, 26);
    let mut kind = [context(20, -15), context(2, 54), context(3, 74)];
    let (mut luma, mut chroma) = (context(-28, 127), context(-23, 104));
    let (mut mean, mut not_plane) = (context(-1, 54), context(7, 51));
    let (mut mode, mut quantiser) = (context(-9, 83), context(0, 41));
    let mut coded = [context(-17, 123), context(-12, 115), context(-16, 122), context(-11, 115)];
    let last = format.macroblocks() - 1;
    for at in 0..=last {
        let (left, above) = (usize::from(at % format.width > 0), usize::from(at >= format.width));
        // Not I_NxN, not I_PCM, no coefficients of luma or chroma, mode 2.
        encoder.bin(&mut kind[left + above], true, out);
        encoder.end(false, out);
        encoder.bin(&mut luma, false, out);
        encoder.bin(&mut chroma, false, out);
        encoder.bin(&mut mean, true, out);
        encoder.bin(&mut not_plane, false, out);
        encoder.bin(&mut mode, false, out);
        encoder.bin(&mut quantiser, false, out);
        // Where there is no neighbour, one with coefficients is assumed.
        encoder.bin(&mut coded[1 - left + 2 * (1 - above)], false, out);
        encoder.end(at == last, out);
    }
}
