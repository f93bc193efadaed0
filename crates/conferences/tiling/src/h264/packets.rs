//! NAL units in payloads of RTP packets and out of them: RFC 6184, packetization mode 1.

use super::nal;
use crate::packing::{self, Form, Packing};
use crate::stream::Payload;

pub use crate::packing::Unit;

const STAP_A: u8 = 24;
const FU_A: u8 = 28;

/// Payloads of packetization mode 1.
#[derive(Debug)]
pub struct Rfc6184;

/// Puts fragments together.
pub type Reader = packing::Reader<Rfc6184>;

impl Packing for Rfc6184 {
    const HEADER: usize = 1;

    fn form(payload: &[u8]) -> Option<Form> {
        match nal::kind(payload) {
            1..=23 => Some(Form::Single),
            STAP_A => Some(Form::Aggregate),
            FU_A => Some(Form::Fragment),
            _ => None,
        }
    }

    fn aggregate(units: &[&[u8]], out: &mut Vec<u8>) {
        let reference = units.iter().map(|unit| unit[0] & 0x60).max().unwrap_or(0);
        out.push(reference | STAP_A);
    }

    fn fragment(unit: &[u8], out: &mut Vec<u8>) {
        out.extend([unit[0] & 0xE0 | FU_A, unit[0] & 31]);
    }

    fn whole(payload: &[u8], out: &mut Vec<u8>) {
        out.push(payload[0] & 0xE0 | payload[1] & 31);
    }
}

/// Payloads for packets of at most `size` octets: small units together, large ones in fragments.
#[must_use]
pub fn payloads(units: &[Unit], size: usize) -> Vec<Payload> {
    packing::payloads::<Rfc6184>(units, size)
}
