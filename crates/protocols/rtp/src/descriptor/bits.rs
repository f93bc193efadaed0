//! Octets read bit by bit, most significant first.

use crate::error::{MediaError, What};

pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// In bits.
    at: usize,
}

impl<'a> Bits<'a> {
    /// From octet `at` on.
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at: 8 * at }
    }

    /// The next `count` bits, 32 at most.
    pub(super) fn take(&mut self, count: u32) -> Result<u32, MediaError> {
        let mut value = 0;
        for _ in 0..count {
            let octet = self.data.get(self.at / 8).ok_or(MediaError::new(What::Descriptor, self.at / 8))?;
            value = value << 1 | u32::from(octet >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Ok(value)
    }

    /// `ns(limit)`: a value below `limit` in as few bits as it takes.
    pub(super) fn below(&mut self, limit: u32) -> Result<u32, MediaError> {
        let width = u32::BITS - limit.leading_zeros();
        let short = (1 << width) - limit;
        let value = self.take(width.saturating_sub(1))?;
        if value < short {
            return Ok(value);
        }
        Ok((value << 1) - short + self.take(1)?)
    }
}
