//! Slices: headers are read and written anew, slice data stays as it is (clause 7.3.3).

use super::nal;
use super::parameters::{Picture, PictureOrder, Sequence};
use crate::bits::{Reader, Writer};
use crate::coding::FRAME_NUMBER_BITS;
use crate::emulation;
use crate::fault::What;
use crate::fields::Fields;
use crate::refusal::Refusal;

pub use crate::coding::Frame;

/// How edges of blocks are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deblocking {
    Off,
    /// Within the slice, with these offsets.
    Within(i32, i32),
    /// Across slices too.
    Across(i32, i32),
}

/// A slice of a source that can be tiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its first macroblock in the source's picture.
    pub first: u32,
    pub intra: bool,
    /// Whether later pictures may predict from it.
    pub reference: bool,
    cabac: bool,
    contexts: u32,
    /// The difference from 26.
    quantiser: i32,
    deblocking: Deblocking,
    payload: Vec<u8>,
    /// Where the slice data lies in the payload.
    data: std::ops::Range<usize>,
}

/// Which of a slice's parameter sets.
pub(crate) fn parameter_set(unit: &[u8]) -> Option<u32> {
    let start = &unit[..unit.len().min(24)];
    let payload = nal::payload(start);
    let mut bits = Reader::new(&payload);
    bits.unsigned()?;
    bits.unsigned()?;
    bits.unsigned()
}

impl Slice {
    /// Reads a slice with its parameter sets.
    ///
    /// # Errors
    /// It is cut short, or uses what a column cannot have.
    pub fn parse(unit: &[u8], sequence: &Sequence, picture: &Picture) -> Result<Self, Refusal> {
        let payload = nal::payload(unit);
        let end = emulation::end(&payload);
        let mut fields = Fields(Reader::within(&payload, 0, end));
        let idr = nal::kind(unit) == nal::IDR;
        let reference = unit.first().is_some_and(|header| header >> 5 & 3 != 0);
        let first = fields.unsigned()?;
        let intra = match fields.at_most(9)? % 5 {
            0 => false,
            1 => return Err(Refusal::Bidirectional),
            2 => true,
            _ => return Err(Refusal::Switching),
        };
        // The parameter set, then the frame number.
        fields.unsigned()?;
        fields.take(sequence.frame_number_bits)?;
        if idr {
            fields.unsigned()?;
        }
        match sequence.order {
            PictureOrder::Least(bits) => {
                fields.take(bits)?;
                if picture.order_of_fields {
                    fields.signed()?;
                }
            }
            PictureOrder::Difference => {
                fields.signed()?;
                if picture.order_of_fields {
                    fields.signed()?;
                }
            }
            PictureOrder::Nothing => {}
        }
        if !intra {
            let references = if fields.flag()? {
                fields.at_most(31)? + 1
            } else {
                picture.references
            };
            let reordered = fields.flag()?;
            if references > 1 || reordered {
                return Err(Refusal::References);
            }
            if picture.weighted {
                return Err(Refusal::WeightedPrediction);
            }
        }
        if reference {
            marking(&mut fields, idr)?;
        }
        let contexts = if picture.cabac && !intra { fields.at_most(2)? } else { 0 };
        let quantiser = picture.quantiser.saturating_add(fields.signed()?);
        if !(-26..=25).contains(&quantiser) {
            return Err(fields.fault(What::Value));
        }
        let deblocking = if picture.deblocking {
            Deblocking::read(&mut fields)?
        } else {
            Deblocking::Across(0, 0)
        };
        if first > 0 && matches!(deblocking, Deblocking::Across(..)) {
            return Err(Refusal::Deblocking);
        }
        let data = if picture.cabac {
            // Whole octets, with the trailing bit, which is part of the arithmetic code.
            fields.0.at().div_ceil(8) * 8..(end / 8 + 1) * 8
        } else {
            fields.0.at()..end
        };
        if data.start >= data.end {
            return Err(fields.fault(What::Short));
        }
        Ok(Self {
            first,
            intra,
            reference,
            cabac: picture.cabac,
            contexts,
            quantiser,
            deblocking,
            data,
            payload,
        })
    }

    /// The slice as a NAL unit of the column: what is at macroblock `from` of the source's picture is at `to`.
    #[must_use]
    pub fn unit(&self, from: u32, to: u32, frame: Frame) -> Vec<u8> {
        let mut out = Writer::default();
        let header = Header {
            first: self.first - from + to,
            intra: self.intra,
            contexts: (self.cabac && !self.intra).then_some(self.contexts),
            quantiser: self.quantiser,
            deblocking: self.deblocking,
        };
        header.write(frame, &mut out);
        if self.cabac {
            align(&mut out);
        }
        out.copy(&self.payload, self.data.start, self.data.end);
        if !self.cabac {
            out.flag(true);
        }
        nal::unit(
            if frame.idr { 3 } else { 2 },
            if frame.idr { nal::IDR } else { nal::SLICE },
            &out.finish(),
        )
    }
}

/// `cabac_alignment_one_bit`.
pub(crate) fn align(out: &mut Writer) {
    while !out.len().is_multiple_of(8) {
        out.flag(true);
    }
}

fn marking(fields: &mut Fields<'_>, idr: bool) -> Result<(), Refusal> {
    if idr {
        // Whether pictures before are shown; whether this one stays for long.
        let _ = fields.take(2)?;
    } else if fields.flag()? {
        // A source that marks its pictures has more than one to predict from.
        return Err(Refusal::References);
    }
    Ok(())
}

impl Deblocking {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let kind = fields.at_most(2)?;
        if kind == 1 {
            return Ok(Self::Off);
        }
        let (alpha, beta) = (fields.signed()?, fields.signed()?);
        if !(-6..=6).contains(&alpha) || !(-6..=6).contains(&beta) {
            return Err(fields.fault(What::Value));
        }
        Ok(if kind == 0 {
            Self::Across(alpha, beta)
        } else {
            Self::Within(alpha, beta)
        })
    }
}

/// A slice header of the column.
pub(crate) struct Header {
    pub first: u32,
    pub intra: bool,
    /// `cabac_init_idc` of a P slice.
    pub contexts: Option<u32>,
    pub quantiser: i32,
    pub deblocking: Deblocking,
}

impl Header {
    pub(crate) fn write(&self, frame: Frame, out: &mut Writer) {
        out.unsigned(self.first);
        out.unsigned(if self.intra { 2 } else { 0 });
        out.unsigned(0);
        out.put(frame.number, FRAME_NUMBER_BITS);
        if frame.idr {
            out.unsigned(frame.id);
        }
        if !self.intra {
            // One reference picture, the one before.
            out.put(0, 2);
        }
        // Pictures before are shown, none stays for long; or the oldest gives way.
        out.put(0, if frame.idr { 2 } else { 1 });
        if let Some(contexts) = self.contexts {
            out.unsigned(contexts);
        }
        out.signed(self.quantiser);
        match self.deblocking {
            Deblocking::Off => out.unsigned(1),
            // Where a source has one slice, its edges are those of the picture, which are not filtered either.
            Deblocking::Within(alpha, beta) | Deblocking::Across(alpha, beta) => {
                out.unsigned(2);
                out.signed(alpha);
                out.signed(beta);
            }
        }
    }
}
