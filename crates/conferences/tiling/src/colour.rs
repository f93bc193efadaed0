//! What colours samples are: the start of the video usability information, which H.264 and H.265 have in common (their clauses E.1.1 and E.2.1).

use crate::bits::Writer;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Primaries, transfer characteristics and matrix; full range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Colour {
    full: bool,
    description: Option<u32>,
}

impl Colour {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        if fields.flag()? && fields.take(8)? == 255 {
            fields.take(32)?;
        }
        if fields.flag()? {
            fields.flag()?;
        }
        let mut colour = Self::default();
        if fields.flag()? {
            fields.take(3)?;
            colour.full = fields.flag()?;
            if fields.flag()? {
                colour.description = Some(fields.take(24)?);
            }
        }
        Ok(colour)
    }

    pub(crate) fn write(self, out: &mut Writer) {
        // Neither an aspect ratio nor overscan.
        out.put(0, 2);
        let said = self != Self::default();
        out.flag(said);
        if said {
            // No video format.
            out.put(5, 3);
            out.flag(self.full);
            out.flag(self.description.is_some());
            if let Some(description) = self.description {
                out.put(description, 24);
            }
        }
    }
}
