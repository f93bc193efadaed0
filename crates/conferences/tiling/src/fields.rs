//! Fields of parameter sets and slice headers, read one after the other.

use crate::bits::Reader;
use crate::fault::{Fault, What};
use crate::refusal::Refusal;

pub(crate) struct Fields<'a>(pub(crate) Reader<'a>);

impl Fields<'_> {
    pub(crate) fn fault(&self, what: What) -> Refusal {
        Refusal::Fault(Fault { what, at: self.0.at() })
    }

    fn there<T>(&self, field: Option<T>) -> Result<T, Refusal> {
        field.ok_or_else(|| self.fault(What::Short))
    }

    pub(crate) fn take(&mut self, count: u32) -> Result<u32, Refusal> {
        let field = self.0.take(count);
        self.there(field)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Refusal> {
        let field = self.0.flag();
        self.there(field)
    }

    pub(crate) fn unsigned(&mut self) -> Result<u32, Refusal> {
        let field = self.0.unsigned();
        self.there(field)
    }

    pub(crate) fn signed(&mut self) -> Result<i32, Refusal> {
        let field = self.0.signed();
        self.there(field)
    }

    /// A number that is at most `most`.
    pub(crate) fn at_most(&mut self, most: u32) -> Result<u32, Refusal> {
        let field = self.unsigned()?;
        if field > most { Err(self.fault(What::Value)) } else { Ok(field) }
    }

    /// A signed number from `least` to `most`.
    pub(crate) fn within(&mut self, least: i32, most: i32) -> Result<i32, Refusal> {
        let field = self.signed()?;
        if (least..=most).contains(&field) {
            Ok(field)
        } else {
            Err(self.fault(What::Value))
        }
    }
}
