//! Recorded pictures, and packets of them.
#![allow(dead_code)]

use shunt_tiling::stream::Stream;

/// Three pictures of QCIF by FFmpeg's encoder, the first intra; each after its length in two octets.
const QCIF: &[u8] = include_bytes!("../data/qcif.h261");

pub fn pictures(mut recorded: &[u8]) -> Vec<Vec<u8>> {
    let mut pictures = Vec::new();
    while let [high, low, rest @ ..] = recorded {
        let (picture, rest) = rest.split_at(usize::from(*high) << 8 | usize::from(*low));
        pictures.push(picture.to_vec());
        recorded = rest;
    }
    pictures
}

/// NAL units of three QCIF pictures by x264, two of them IDR, each after its length in two octets.
const BASELINE: &[u8] = include_bytes!("../data/baseline.h264");
/// The same, entropy coded by CABAC.
const HIGH: &[u8] = include_bytes!("../data/high.h264");

/// NAL units by profile.
pub fn units(high: bool) -> Vec<Vec<u8>> {
    pictures(if high { HIGH } else { BASELINE })
}

pub fn qcif() -> Vec<Vec<u8>> {
    pictures(QCIF)
}

pub const STREAM: Stream = Stream {
    ssrc: 7,
    payload_type: 31,
    sequence: 65_535,
    timestamp: 0,
    size: 1200,
};

/// A packet of one of the sources.
pub fn packet(ssrc: u32, sequence: u16, timestamp: u32, marker: bool, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, u8::from(marker) << 7 | 31];
    packet.extend(sequence.to_be_bytes());
    packet.extend(timestamp.to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

/// A picture's packets, as FFmpeg's muxer cuts them: anywhere.
pub fn h261_packets(ssrc: u32, sequence: u16, timestamp: u32, picture: &[u8]) -> Vec<Vec<u8>> {
    let chunks: Vec<&[u8]> = picture.chunks(700).collect();
    let last = chunks.len() - 1;
    let numbered = chunks.iter().enumerate();
    numbered
        .map(|(at, chunk)| {
            let payload = [&[0; 4][..], chunk].concat();
            packet(ssrc, sequence + u16::try_from(at).unwrap(), timestamp, at == last, &payload)
        })
        .collect()
}

/// NAL units of three 256x192 pictures by x265 after VPS, SPS and PPS: the first IDR, the third CRA, the others predicted from the one before; coding
/// trees of 16.
const PREDICTED: &[u8] = include_bytes!("../data/predicted.h265");
/// Of two IDR pictures; coding trees of 32.
const INTRA: &[u8] = include_bytes!("../data/intra.h265");

/// NAL units of H.265.
pub fn h265_units(intra: bool) -> Vec<Vec<u8>> {
    pictures(if intra { INTRA } else { PREDICTED })
}
