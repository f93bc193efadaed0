//! Video usability information (clause E.2.1), read to its end: what follows it in a parameter set has to be known.

use crate::colour::Colour;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// `vui_parameters`: the colours.
///
/// # Errors
/// It is cut short, or of fields.
pub(crate) fn read(fields: &mut Fields<'_>, sub_layers: u32) -> Result<Colour, Refusal> {
    let colour = Colour::read(fields)?;
    // Where chroma samples are.
    if fields.flag()? {
        unsigned(fields, 2)?;
    }
    // Neutral chroma; fields; frames and fields in messages.
    fields.flag()?;
    if fields.flag()? {
        return Err(Refusal::Interlaced);
    }
    fields.flag()?;
    // The default window.
    if fields.flag()? {
        unsigned(fields, 4)?;
    }
    // Timing.
    if fields.flag()? {
        fields.take(32)?;
        fields.take(32)?;
        if fields.flag()? {
            fields.unsigned()?;
        }
        if fields.flag()? {
            reference_decoder(fields, sub_layers)?;
        }
    }
    // Restrictions.
    if fields.flag()? {
        fields.take(3)?;
        unsigned(fields, 5)?;
    }
    Ok(colour)
}

fn unsigned(fields: &mut Fields<'_>, count: u32) -> Result<(), Refusal> {
    (0..count).try_for_each(|_| fields.unsigned().map(drop))
}

/// `hrd_parameters` (clause E.2.2), with what all sub-layers have in common.
fn reference_decoder(fields: &mut Fields<'_>, sub_layers: u32) -> Result<(), Refusal> {
    let kinds = [fields.flag()?, fields.flag()?];
    let mut parts = false;
    if kinds != [false; 2] {
        parts = fields.flag()?;
        if parts {
            fields.take(19)?;
        }
        fields.take(8)?;
        if parts {
            fields.take(4)?;
        }
        fields.take(15)?;
    }
    for _ in 0..=sub_layers {
        let general = fields.flag()?;
        let fixed = general || fields.flag()?;
        let mut low_delay = false;
        if fixed {
            fields.unsigned()?;
        } else {
            low_delay = fields.flag()?;
        }
        let buffers = if low_delay { 0 } else { fields.at_most(31)? };
        for _ in kinds.iter().filter(|there| **there) {
            for _ in 0..=buffers {
                unsigned(fields, if parts { 4 } else { 2 })?;
                fields.flag()?;
            }
        }
    }
    Ok(())
}
