//! NAL units in payloads of RTP packets and out of them: RFC 6184, packetization mode 1.

use super::nal;
use crate::fault::{Fault, What};
use crate::stream::{CONTRIBUTORS, Payload, header_size};

const STAP_A: u8 = 24;
const FU_A: u8 = 28;
/// The largest NAL unit that fragments make.
const LARGEST: usize = 1 << 20;

/// A NAL unit, and whose bits it has, if anybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub octets: Vec<u8>,
    pub contributor: Option<u32>,
}

/// Puts fragments together.
#[derive(Debug, Default)]
pub struct Reader {
    fragments: Option<Vec<u8>>,
}

impl Reader {
    /// The NAL units that end with a payload.
    ///
    /// # Errors
    /// It is not of packetization mode 1, or a fragment without its start.
    pub fn take(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let fault = |what| Fault { what, at: 0 };
        let begun = self.fragments.take();
        match nal::kind(payload) {
            1..=23 => Ok(vec![payload.to_vec()]),
            STAP_A => {
                let (mut units, mut rest) = (Vec::new(), &payload[1..]);
                while let [high, low, after @ ..] = rest {
                    let size = usize::from(u16::from_be_bytes([*high, *low]));
                    let (unit, after) = after.split_at_checked(size).ok_or(fault(What::Short))?;
                    units.push(unit.to_vec());
                    rest = after;
                }
                Ok(units)
            }
            FU_A => {
                let [indicator, header, fragment @ ..] = payload else {
                    return Err(fault(What::Short));
                };
                let mut unit = if header & 0x80 != 0 {
                    vec![indicator & 0xE0 | header & 31]
                } else {
                    begun.ok_or(fault(What::NalUnit))?
                };
                if unit.len() + fragment.len() > LARGEST {
                    return Err(fault(What::NalUnit));
                }
                unit.extend_from_slice(fragment);
                if header & 0x40 != 0 {
                    return Ok(vec![unit]);
                }
                self.fragments = Some(unit);
                Ok(Vec::new())
            }
            _ => Err(fault(What::NalUnit)),
        }
    }

    /// A packet was lost: a NAL unit that has begun is not whole.
    pub fn lost(&mut self) {
        self.fragments = None;
    }
}

/// Small units that share a packet.
#[derive(Default)]
struct Aggregate<'a> {
    units: Vec<&'a [u8]>,
    contributors: Vec<u32>,
}

impl<'a> Aggregate<'a> {
    /// Adds a unit if the packet stays within `size` octets.
    fn add(&mut self, unit: &'a Unit, size: usize) -> bool {
        let new = unit.contributor.filter(|contributor| !self.contributors.contains(contributor));
        let count = self.contributors.len() + usize::from(new.is_some());
        let alone = self.units.is_empty();
        let together: usize = self.units.iter().map(|unit| unit.len() + 2).sum();
        let octets = if alone {
            unit.octets.len()
        } else {
            together + unit.octets.len() + 3
        };
        let fits = count <= CONTRIBUTORS && header_size(count) + octets <= size && unit.octets.len() <= usize::from(u16::MAX);
        if fits {
            self.units.push(&unit.octets);
            self.contributors.extend(new);
        }
        fits
    }

    fn payload(self) -> Option<Payload> {
        let octets = match self.units.as_slice() {
            [] => return None,
            [one] => one.to_vec(),
            units => {
                let reference = units.iter().map(|unit| unit[0] & 0x60).max().unwrap_or(0);
                let mut octets = vec![reference | STAP_A];
                for unit in units {
                    // Those that are longer do not fit a packet.
                    #[allow(clippy::cast_possible_truncation)]
                    octets.extend((unit.len() as u16).to_be_bytes());
                    octets.extend_from_slice(unit);
                }
                octets
            }
        };
        Some(Payload {
            octets,
            contributors: self.contributors,
        })
    }
}

/// Payloads for packets of at most `size` octets: small units together, large ones in fragments.
#[must_use]
pub fn payloads(units: &[Unit], size: usize) -> Vec<Payload> {
    let mut payloads = Vec::new();
    let mut together = Aggregate::default();
    for unit in units.iter().filter(|unit| !unit.octets.is_empty()) {
        if together.add(unit, size) {
            continue;
        }
        payloads.extend(std::mem::take(&mut together).payload());
        if together.add(unit, size) {
            continue;
        }
        let contributors: Vec<u32> = unit.contributor.into_iter().collect();
        let room = size.saturating_sub(header_size(contributors.len()) + 2).max(1);
        let fragments = unit.octets[1..].chunks(room);
        let last = fragments.len() - 1;
        for (at, fragment) in fragments.enumerate() {
            let header = u8::from(at == 0) << 7 | u8::from(at == last) << 6 | unit.octets[0] & 31;
            payloads.push(Payload {
                octets: [&[unit.octets[0] & 0xE0 | FU_A, header], fragment].concat(),
                contributors: contributors.clone(),
            });
        }
    }
    payloads.extend(together.payload());
    payloads
}
