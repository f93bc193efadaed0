//! Short-term reference picture sets (clauses 7.3.7 and 7.4.8): which pictures a picture and those after it may predict from.

use crate::fault::What;
use crate::fields::Fields;
use crate::refusal::Refusal;

/// Pictures of a set at most, before and after the picture together (`sps_max_dec_pic_buffering_minus1`).
const MOST: u32 = 16;

/// Another picture: its order less that of the picture, and whether this picture itself may predict from it.
type Reference = (i32, bool);

/// The pictures before, the nearest first, and those after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceSet {
    before: Vec<Reference>,
    after: Vec<Reference>,
}

impl ReferenceSet {
    /// The next set of a sequence parameter set that has these so far.
    pub(crate) fn read(fields: &mut Fields<'_>, known: &[Self]) -> Result<Self, Refusal> {
        Self::next(fields, known, false)
    }

    /// The set of a slice header.
    pub(crate) fn of_slice(fields: &mut Fields<'_>, known: &[Self]) -> Result<Self, Refusal> {
        Self::next(fields, known, true)
    }

    fn next(fields: &mut Fields<'_>, known: &[Self], of_slice: bool) -> Result<Self, Refusal> {
        if !known.is_empty() && fields.flag()? {
            return Self::from_another(fields, known, of_slice);
        }
        let (before, after) = (fields.at_most(MOST)?, fields.at_most(MOST)?);
        let mut read = |count: u32, sign: i32| {
            let mut order = 0i32;
            let mut references = Vec::new();
            for _ in 0..count {
                order += sign * (signed(fields.at_most(0x7FFF)?) + 1);
                references.push((order, fields.flag()?));
            }
            Ok::<_, Refusal>(references)
        };
        Ok(Self {
            before: read(before, -1)?,
            after: read(after, 1)?,
        })
    }

    /// From another set, all of whose pictures are moved by a difference (equations 7-61 and 7-62).
    fn from_another(fields: &mut Fields<'_>, known: &[Self], of_slice: bool) -> Result<Self, Refusal> {
        let back = if of_slice { fields.unsigned()? } else { 0 };
        let another = usize::try_from(back)
            .ok()
            .and_then(|back| known.len().checked_sub(back + 1))
            .ok_or_else(|| fields.fault(What::Value))?;
        let another = &known[another];
        let earlier = fields.flag()?;
        let by = signed(fields.at_most(0x7FFF)?) + 1;
        let by = if earlier { -by } else { by };
        let mut moved = Vec::new();
        let picture = std::iter::once(&(0, true));
        for (order, _) in another.before.iter().chain(&another.after).chain(picture) {
            let used = fields.flag()?;
            if used || fields.flag()? {
                moved.push((order + by, used));
            }
        }
        let mut before: Vec<Reference> = moved.iter().filter(|(order, _)| *order < 0).copied().collect();
        let mut after: Vec<Reference> = moved.iter().filter(|(order, _)| *order > 0).copied().collect();
        before.sort_by_key(|(order, _)| -order);
        after.sort_by_key(|(order, _)| *order);
        if before.len() + after.len() > MOST as usize {
            return Err(fields.fault(What::Value));
        }
        Ok(Self { before, after })
    }

    /// Pictures that this one may predict from.
    pub(crate) fn used(&self) -> usize {
        self.before.iter().chain(&self.after).filter(|(_, used)| *used).count()
    }

    /// How far before is the picture that a slice predicts from if it has one in each list (clause 8.3.4): nothing, if there is none, or one after.
    pub(crate) fn first(&self) -> Option<u32> {
        if self.after.iter().any(|(_, used)| *used) {
            return None;
        }
        let (order, _) = self.before.iter().find(|(_, used)| *used)?;
        Some(order.unsigned_abs())
    }
}

/// A number of at most 15 bits.
fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
