//! NAL units in payloads of RTP packets and out of them: what RFC 6184 (packetization mode 1) and RFC 7798 (without decoding order numbers) have
//! in common.

use crate::fault::{Fault, What};
use crate::stream::{CONTRIBUTORS, Payload, header_size};
use std::fmt::Debug;
use std::marker::PhantomData;

/// The largest NAL unit that fragments make.
const LARGEST: usize = 1 << 20;

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Single,
    Aggregate,
    Fragment,
}

/// How payloads of one codec begin.
pub trait Packing: Debug {
    /// Octets of a NAL unit's header, and of that of a payload.
    const HEADER: usize;

    /// What a payload is; nothing if it is not allowed.
    fn form(payload: &[u8]) -> Option<Form>;

    /// Adds the header of a payload that has these NAL units.
    fn aggregate(units: &[&[u8]], out: &mut Vec<u8>);

    /// Adds the headers of a payload that has a fragment of a NAL unit, of which it is neither the first nor the last.
    fn fragment(unit: &[u8], out: &mut Vec<u8>);

    /// Adds the header of the NAL unit that a payload has a fragment of; there are [`Packing::HEADER`] octets and one more of the payload.
    fn whole(payload: &[u8], out: &mut Vec<u8>);
}

/// A NAL unit, and whose bits it has, if anybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub octets: Vec<u8>,
    pub contributor: Option<u32>,
}

/// Puts fragments together.
#[derive(Debug)]
pub struct Reader<P> {
    fragments: Option<Vec<u8>>,
    packing: PhantomData<P>,
}

impl<P> Default for Reader<P> {
    fn default() -> Self {
        Self {
            fragments: None,
            packing: PhantomData,
        }
    }
}

impl<P: Packing> Reader<P> {
    /// The NAL units that end with a payload.
    ///
    /// # Errors
    /// It is none that [`Packing`] knows, or a fragment without its start.
    pub fn take(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let fault = |what| Fault { what, at: 0 };
        let begun = self.fragments.take();
        match P::form(payload).ok_or(fault(What::NalUnit))? {
            Form::Single => Ok(vec![payload.to_vec()]),
            Form::Aggregate => {
                let (mut units, mut rest) = (Vec::new(), &payload[P::HEADER..]);
                while let [high, low, after @ ..] = rest {
                    let size = usize::from(u16::from_be_bytes([*high, *low]));
                    let (unit, after) = after.split_at_checked(size).ok_or(fault(What::Short))?;
                    units.push(unit.to_vec());
                    rest = after;
                }
                Ok(units)
            }
            Form::Fragment => {
                let (headers, fragment) = payload.split_at_checked(P::HEADER + 1).ok_or(fault(What::Short))?;
                let flags = headers[P::HEADER];
                let mut unit = if flags & 0x80 != 0 {
                    let mut unit = Vec::new();
                    P::whole(payload, &mut unit);
                    unit
                } else {
                    begun.ok_or(fault(What::NalUnit))?
                };
                if unit.len() + fragment.len() > LARGEST {
                    return Err(fault(What::NalUnit));
                }
                unit.extend_from_slice(fragment);
                if flags & 0x40 != 0 {
                    return Ok(vec![unit]);
                }
                self.fragments = Some(unit);
                Ok(Vec::new())
            }
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
    fn add<P: Packing>(&mut self, unit: &'a Unit, size: usize) -> bool {
        let new = unit.contributor.filter(|contributor| !self.contributors.contains(contributor));
        let count = self.contributors.len() + usize::from(new.is_some());
        let alone = self.units.is_empty();
        let together: usize = self.units.iter().map(|unit| unit.len() + 2).sum();
        let octets = if alone {
            unit.octets.len()
        } else {
            P::HEADER + together + 2 + unit.octets.len()
        };
        let fits = count <= CONTRIBUTORS && header_size(count) + octets <= size && unit.octets.len() <= usize::from(u16::MAX);
        if fits {
            self.units.push(&unit.octets);
            self.contributors.extend(new);
        }
        fits
    }

    fn payload<P: Packing>(self) -> Option<Payload> {
        let octets = match self.units.as_slice() {
            [] => return None,
            [one] => one.to_vec(),
            units => {
                let mut octets = Vec::with_capacity(P::HEADER + units.iter().map(|unit| 2 + unit.len()).sum::<usize>());
                P::aggregate(units, &mut octets);
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
pub fn payloads<P: Packing>(units: &[Unit], size: usize) -> Vec<Payload> {
    let mut payloads = Vec::new();
    let mut together = Aggregate::default();
    for unit in units.iter().filter(|unit| unit.octets.len() >= P::HEADER) {
        if together.add::<P>(unit, size) {
            continue;
        }
        payloads.extend(std::mem::take(&mut together).payload::<P>());
        if together.add::<P>(unit, size) {
            continue;
        }
        let contributors: Vec<u32> = unit.contributor.into_iter().collect();
        let room = size.saturating_sub(header_size(contributors.len()) + P::HEADER + 1).max(1);
        let fragments = unit.octets[P::HEADER..].chunks(room);
        let last = fragments.len().saturating_sub(1);
        for (at, fragment) in fragments.enumerate() {
            let mut octets = Vec::with_capacity(P::HEADER + 1 + fragment.len());
            P::fragment(&unit.octets, &mut octets);
            octets[P::HEADER] |= u8::from(at == 0) << 7 | u8::from(at == last) << 6;
            octets.extend_from_slice(fragment);
            payloads.push(Payload {
                octets,
                contributors: contributors.clone(),
            });
        }
    }
    payloads.extend(together.payload::<P>());
    payloads
}
