//! Emulation prevention of NAL units (clause 7.4.1 of H.264, clause 7.4.2 of H.265): no three octets of a payload look like a start code.

/// Octets without emulation prevention.
pub(crate) fn without(octets: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(octets.len());
    let mut zeros = 0;
    for octet in octets {
        if zeros >= 2 && *octet == 3 {
            zeros = 0;
            continue;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        payload.push(*octet);
    }
    payload
}

/// Adds a payload to a NAL unit, whose last octet so far is not 0.
pub(crate) fn add(nal: &mut Vec<u8>, payload: &[u8]) {
    nal.reserve(payload.len() + payload.len() / 64 + 1);
    let mut zeros = 0;
    for octet in payload {
        if zeros >= 2 && *octet <= 3 {
            nal.push(3);
            zeros = 0;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        nal.push(*octet);
    }
}

/// Bits of a payload before its trailing bits (`rbsp_trailing_bits`).
pub(crate) fn end(payload: &[u8]) -> usize {
    let last = payload.iter().rposition(|octet| *octet != 0);
    last.map_or(0, |last| last * 8 + 7 - payload[last].trailing_zeros() as usize)
}
