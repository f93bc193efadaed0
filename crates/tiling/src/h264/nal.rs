//! NAL units (clause 7.3.1): their header, and the emulation prevention of their payload.

pub(crate) const SLICE: u8 = 1;
pub(crate) const IDR: u8 = 5;
pub(crate) const SPS: u8 = 7;
pub(crate) const PPS: u8 = 8;

pub(crate) fn kind(nal: &[u8]) -> u8 {
    nal.first().map_or(0, |header| header & 31)
}

/// The payload of a NAL unit without emulation prevention.
pub(crate) fn payload(nal: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(nal.len());
    let mut zeros = 0;
    for octet in nal.iter().skip(1) {
        if zeros >= 2 && *octet == 3 {
            zeros = 0;
            continue;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        payload.push(*octet);
    }
    payload
}

/// A NAL unit.
pub(crate) fn unit(reference: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut nal = Vec::with_capacity(payload.len() + payload.len() / 64 + 2);
    nal.push(reference << 5 | kind);
    let mut zeros = 0;
    for octet in payload {
        if zeros >= 2 && *octet <= 3 {
            nal.push(3);
            zeros = 0;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        nal.push(*octet);
    }
    nal
}

/// Bits of a payload before its trailing bits (clause 7.3.2.11).
pub(crate) fn end(payload: &[u8]) -> usize {
    let last = payload.iter().rposition(|octet| *octet != 0);
    last.map_or(0, |last| last * 8 + 7 - payload[last].trailing_zeros() as usize)
}
