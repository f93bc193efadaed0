//! Detects packets that begin a key frame.

use shunt_rtp::payload::{Vp8, Vp9};

/// Codec of the video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Vp8,
    Vp9,
    H264,
    Av1,
}

/// IDR slice, sequence parameter set (ITU-T H.264 table 7-1).
const IDR: u8 = 5;
const SPS: u8 = 7;
/// Packets that contain several NAL units, or a fragment (RFC 6184 table 1).
const STAP_A: u8 = 24;
const FU_A: u8 = 28;

/// Returns whether a payload begins a key frame; with H.264 also the parameter sets before its picture.
#[must_use]
pub fn starts_key_frame(coding: Coding, payload: &[u8]) -> bool {
    match coding {
        Coding::Vp8 => Vp8::parse(payload).is_ok_and(|descriptor| descriptor.key),
        Coding::Vp9 => {
            Vp9::parse(payload).is_ok_and(|descriptor| descriptor.start && !descriptor.predicted && descriptor.spatial.unwrap_or(0) == 0)
        }
        Coding::H264 => h264(payload),
        // N: the first packet of a coded video sequence (AV1 RTP specification section 4.4).
        Coding::Av1 => payload.first().is_some_and(|aggregation| aggregation & 0x08 != 0),
    }
}

fn h264(payload: &[u8]) -> bool {
    let begins = |unit: u8| matches!(unit & 31, IDR | SPS);
    match payload {
        [first, rest @ ..] if first & 31 == STAP_A => {
            let mut rest = rest;
            while let [high, low, unit, ..] = rest {
                if begins(*unit) {
                    return true;
                }
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = rest.get(2 + length..).unwrap_or_default();
            }
            false
        }
        // S: the first fragment.
        [first, fragment, ..] if first & 31 == FU_A => fragment & 0x80 != 0 && begins(*fragment),
        [first, ..] => begins(*first),
        [] => false,
    }
}
