//! NAL units in payloads of RTP packets and out of them: RFC 7798, without decoding order numbers (`sprop-max-don-diff` 0).

use super::nal;
use crate::packing::{self, Form, Packing};
use crate::stream::Payload;

pub use crate::packing::Unit;

const AP: u8 = 48;
const FU: u8 = 49;

/// Payloads without decoding order numbers.
#[derive(Debug)]
pub struct Rfc7798;

/// Puts fragments together.
pub type Reader = packing::Reader<Rfc7798>;

impl Packing for Rfc7798 {
    const HEADER: usize = nal::HEADER;

    fn form(payload: &[u8]) -> Option<Form> {
        let [first, _, ..] = payload else { return None };
        match first >> 1 & 63 {
            0..AP => Some(Form::Single),
            AP => Some(Form::Aggregate),
            FU => Some(Form::Fragment),
            _ => None,
        }
    }

    /// With the lowest of the units' layers and of their temporal sub-layers (section 4.4.2).
    fn aggregate(units: &[&[u8]], out: &mut Vec<u8>) {
        let layer = units.iter().map(|unit| unit[0] << 5 & 0x20 | unit[1] >> 3).min().unwrap_or(0);
        let temporal = units.iter().map(|unit| unit[1] & 7).min().unwrap_or(1);
        out.extend([AP << 1 | layer >> 5, layer << 3 | temporal]);
    }

    fn fragment(unit: &[u8], out: &mut Vec<u8>) {
        out.extend([unit[0] & 0x81 | FU << 1, unit[1], unit[0] >> 1 & 63]);
    }

    fn whole(payload: &[u8], out: &mut Vec<u8>) {
        out.extend([payload[0] & 0x81 | payload[2] << 1 & 0x7E, payload[1]]);
    }
}

/// Payloads for packets of at most `size` octets: small units together, large ones in fragments.
#[must_use]
pub fn payloads(units: &[Unit], size: usize) -> Vec<Payload> {
    packing::payloads::<Rfc7798>(units, size)
}
