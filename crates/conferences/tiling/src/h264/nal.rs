//! NAL units (clause 7.3.1): their header, and the emulation prevention of their payload.

use crate::emulation;

pub(crate) const SLICE: u8 = 1;
pub(crate) const IDR: u8 = 5;
pub(crate) const SPS: u8 = 7;
pub(crate) const PPS: u8 = 8;

pub(crate) fn kind(nal: &[u8]) -> u8 {
    nal.first().map_or(0, |header| header & 31)
}

/// The payload of a NAL unit without emulation prevention.
pub(crate) fn payload(nal: &[u8]) -> Vec<u8> {
    emulation::without(nal.get(1..).unwrap_or_default())
}

/// A NAL unit.
pub(crate) fn unit(reference: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut nal = vec![reference << 5 | kind];
    emulation::add(&mut nal, payload);
    nal
}
