//! NAL units (clauses 7.3.1 and 7.4.2.2): their header, and the emulation prevention of their payload.

use crate::emulation;

pub(crate) const TRAIL_R: u8 = 1;
/// RADL and RASL pictures, which are decoded after pictures that are shown after them.
pub(crate) const LEADING: std::ops::RangeInclusive<u8> = 6..=9;
/// Slices of pictures that are no leading ones: TRAIL, TSA, STSA; BLA, IDR, CRA.
pub(crate) const SLICES: [std::ops::RangeInclusive<u8>; 2] = [0..=5, 16..=21];
/// Pictures at which decoding can begin, with what is reserved for such.
pub(crate) const RANDOM_ACCESS: std::ops::RangeInclusive<u8> = 16..=23;
pub(crate) const BROKEN_LINK: std::ops::RangeInclusive<u8> = 16..=18;
pub(crate) const IDR: std::ops::RangeInclusive<u8> = 19..=20;
/// Without leading pictures.
pub(crate) const IDR_N_LP: u8 = 20;
pub(crate) const VPS: u8 = 32;
pub(crate) const SPS: u8 = 33;
pub(crate) const PPS: u8 = 34;
/// What has no meaning (`UNSPEC63`).
const NOTHING: u8 = 63;
/// Octets of the header.
pub(crate) const HEADER: usize = 2;

/// Units of another layer than the base layer have no meaning here.
pub(crate) fn kind(nal: &[u8]) -> u8 {
    match nal {
        [first, second, ..] if first & 1 == 0 && second >> 3 == 0 => first >> 1 & 63,
        _ => NOTHING,
    }
}

/// The payload of a NAL unit, or of its start, without emulation prevention.
pub(crate) fn payload(nal: &[u8]) -> Vec<u8> {
    emulation::without(nal.get(HEADER..).unwrap_or_default())
}

/// A NAL unit of the base layer, of the lowest temporal sub-layer.
pub(crate) fn unit(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut nal = vec![kind << 1, 1];
    emulation::add(&mut nal, payload);
    nal
}
