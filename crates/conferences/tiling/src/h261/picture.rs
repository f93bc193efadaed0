//! Pictures down to their macroblocks: what each one needs from the picture before, and where a packet may begin.

use super::codes::{CBP, COEFFICIENTS, END_OF_BLOCK, ESCAPE, INTRA, MBA, MTYPE, MVD, QUANT, STUFFING, TCOEFF, VECTOR};
use crate::bits::Reader;
use crate::fault::{Fault, What};
use std::ops::Range;

/// Macroblocks of a group.
pub const IN_GROUP: u8 = 33;
const IN_ROW: u8 = 11;
/// Vectors of a picture's macroblocks stay within it, and are at most so long.
const LONGEST: i8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 176x144, groups 1, 3 and 5.
    Qcif,
    /// 352x288, groups 1 to 12.
    Cif,
}

/// Where a macroblock lies, and what a decoder that begins there has to know (RFC 4587 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macroblock {
    /// Its first bit.
    pub at: usize,
    /// 1 to 33.
    pub address: u8,
    /// The address of the one before it in the group; 0: it is the first.
    pub previous: u8,
    /// The quantiser in effect before it.
    pub quantiser: u8,
    /// The vector of the one before it, horizontal and vertical.
    pub reference: (i8, i8),
    pub intra: bool,
    /// Its own vector: where its prediction lies, relative to its own place.
    pub vector: (i8, i8),
}

/// A group of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// 1 to 12.
    pub number: u8,
    /// The first bit after the group number, and the first after the last macroblock.
    pub bits: Range<usize>,
    /// Its macroblocks among those of the picture.
    pub macroblocks: Range<usize>,
}

/// What could be read of a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// From its header; nothing if that was not received.
    pub size: Option<Size>,
    pub groups: Vec<Group>,
    pub macroblocks: Vec<Macroblock>,
}

impl Picture {
    /// Reads a run of bits that begins with a picture or a group, after what was read before. What comes before a fault is kept.
    ///
    /// # Errors
    /// The bits are not H.261, or not groups that come after those so far.
    pub fn read(&mut self, data: &[u8], range: Range<usize>) -> Result<(), Fault> {
        let mut bits = Reader::within(data, range.start, range.end);
        if bits.peek(20) == 0x10 {
            self.header(&mut bits)?;
        }
        while !ends(&mut bits) {
            let first = self.macroblocks.len();
            if let Err(fault) = self.group(&mut bits) {
                self.macroblocks.truncate(first);
                return Err(fault);
            }
        }
        Ok(())
    }

    fn header(&mut self, bits: &mut Reader<'_>) -> Result<(), Fault> {
        let at = bits.at();
        if self.size.is_some() || !self.groups.is_empty() {
            return Err(Fault {
                what: What::PictureStart,
                at,
            });
        }
        // Start code, temporal reference, type.
        let short = Fault { what: What::Short, at };
        if !bits.skip(25) {
            return Err(short);
        }
        let kind = bits.take(6).ok_or(short)?;
        self.size = Some(if kind & 4 == 0 { Size::Qcif } else { Size::Cif });
        spare(bits).ok_or(short)
    }

    fn group(&mut self, bits: &mut Reader<'_>) -> Result<(), Fault> {
        let at = bits.at();
        let fault = |what| Fault { what, at };
        if bits.take(16) != Some(1) {
            return Err(fault(What::GroupStart));
        }
        let number = bits.peek(4);
        let last = self.groups.last().map_or(0, |group| u32::from(group.number));
        let known = self.size != Some(Size::Qcif) || number % 2 == 1 && number <= 5;
        if number <= last || number > 12 || !known || !bits.skip(4) {
            return Err(fault(What::GroupNumber));
        }
        let start = bits.at();
        let quantiser = bits.take(5).ok_or(fault(What::Short))?;
        if quantiser == 0 {
            return Err(fault(What::Quantiser));
        }
        spare(bits).ok_or(fault(What::Short))?;
        let first = self.macroblocks.len();
        // Both are small: checked above.
        #[allow(clippy::cast_possible_truncation)]
        let (number, mut quantiser) = (number as u8, quantiser as u8);
        let mut end = bits.at();
        let (mut previous, mut reference) = (0, (0, 0));
        while !ends(bits) && bits.peek(16) != 1 {
            let at = bits.at();
            let Some(found) = macroblock(bits, at, previous, quantiser, reference).map_err(|what| Fault { what, at: bits.at() })? else {
                continue;
            };
            self.macroblocks.push(found.0);
            quantiser = found.1;
            (previous, reference) = (found.0.address, found.0.vector);
            end = bits.at();
        }
        self.groups.push(Group {
            number,
            bits: start..end,
            macroblocks: first..self.macroblocks.len(),
        });
        Ok(())
    }
}

/// Passes over zeros that fill up to a start code or to the end; whether it is the end.
fn ends(bits: &mut Reader<'_>) -> bool {
    while bits.left() > 0 && bits.peek(16) == 0 {
        let _ = bits.skip(1);
    }
    bits.left() == 0
}

/// Passes over extra information (PEI, GEI).
fn spare(bits: &mut Reader<'_>) -> Option<()> {
    while bits.take(1)? == 1 {
        bits.take(8)?;
    }
    Some(())
}

/// A macroblock and the quantiser after it, or nothing: it was stuffing.
fn macroblock(
    bits: &mut Reader<'_>,
    at: usize,
    previous: u8,
    quantiser: u8,
    reference: (i8, i8),
) -> Result<Option<(Macroblock, u8)>, What> {
    let difference = MBA.read(bits).ok_or(What::Address)?;
    if difference == STUFFING {
        return Ok(None);
    }
    let address = previous + difference;
    if address > IN_GROUP {
        return Err(What::Address);
    }
    let kind = MTYPE.read(bits).ok_or(What::Type)?;
    let mut after = quantiser;
    if kind & QUANT != 0 {
        // Five bits.
        #[allow(clippy::cast_possible_truncation)]
        let new = bits.take(5).ok_or(What::Short)? as u8;
        if new == 0 {
            return Err(What::Quantiser);
        }
        after = new;
    }
    let mut vector = (0, 0);
    if kind & VECTOR != 0 {
        let predicted = if difference == 1 && address % IN_ROW != 1 {
            reference
        } else {
            (0, 0)
        };
        vector = (component(bits, predicted.0)?, component(bits, predicted.1)?);
    }
    let intra = kind & INTRA != 0;
    if kind & COEFFICIENTS != 0 {
        let pattern = if intra { 63 } else { CBP.read(bits).ok_or(What::Pattern)? };
        for _ in 0..pattern.count_ones() {
            block(bits, intra).ok_or(What::Coefficient)?;
        }
    }
    let found = Macroblock {
        at,
        address,
        previous,
        quantiser,
        reference,
        intra,
        vector,
    };
    Ok(Some((found, after)))
}

fn component(bits: &mut Reader<'_>, predicted: i8) -> Result<i8, What> {
    let difference = MVD.read(bits).ok_or(What::Vector)?;
    // Both are below 32.
    let sum = predicted + i8::from_be_bytes([difference]);
    let value = if sum > LONGEST { sum - 32 } else { sum };
    if (-LONGEST..=LONGEST).contains(&value) {
        Ok(value)
    } else {
        Err(What::Vector)
    }
}

/// Passes over a block's coefficients.
fn block(bits: &mut Reader<'_>, intra: bool) -> Option<()> {
    let mut coefficients = 0;
    if intra {
        // 0 and 128 stand for nothing.
        if bits.take(8)? & 0x7F == 0 {
            return None;
        }
        coefficients = 1;
    } else if bits.peek(1) == 1 {
        // The first coefficient's short code: no block ends before it.
        bits.take(2)?;
        coefficients = 1;
    }
    loop {
        let run = match TCOEFF.read(bits)? {
            END_OF_BLOCK => return Some(()),
            ESCAPE => {
                let run = bits.take(6)?;
                // Levels 0 and -128 are forbidden.
                if bits.take(8)? & 0x7F == 0 {
                    return None;
                }
                run
            }
            run => {
                bits.take(1)?;
                u32::from(run)
            }
        };
        coefficients += run + 1;
        if coefficients > 64 {
            return None;
        }
    }
}
