//! Bits of a bit stream, the most significant first: read from bytes, and written one after the other.

/// Reads bits of `data` up to bit `end`.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self::within(data, 0, usize::MAX)
    }

    /// The bits from `at` to `end`, which counts as the data's own end if it is beyond it.
    #[must_use]
    pub fn within(data: &'a [u8], at: usize, end: usize) -> Self {
        let end = end.min(data.len() * 8);
        Self {
            data,
            at: at.min(end),
            end,
        }
    }

    /// Bits from the start of the data.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    #[must_use]
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// The next bits, at most 32, which stay; past the end they are 0.
    #[must_use]
    #[inline]
    pub fn peek(&self, count: u32) -> u32 {
        let byte = self.at / 8;
        let word = match self.data.get(byte..byte + 8) {
            Some(eight) => u64::from_be_bytes([eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7]]),
            None => (0..8).fold(0, |word, more| {
                word << 8 | u64::from(self.data.get(byte + more).copied().unwrap_or(0))
            }),
        };
        let wanted = (word << (self.at % 8)).checked_shr(64 - count).unwrap_or(0);
        let beyond = u32::try_from((count as usize).saturating_sub(self.left())).unwrap_or(32);
        // At most 32 bits are wanted.
        #[allow(clippy::cast_possible_truncation)]
        let wanted = wanted as u32;
        wanted.checked_shr(beyond).and_then(|value| value.checked_shl(beyond)).unwrap_or(0)
    }

    /// Whether there were so many bits to skip.
    #[must_use]
    #[inline]
    pub fn skip(&mut self, count: usize) -> bool {
        let there = count <= self.left();
        if there {
            self.at += count;
        }
        there
    }

    /// The next bits, at most 32; nothing if there are not so many.
    #[inline]
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let value = self.peek(count);
        self.skip(count as usize).then_some(value)
    }

    /// The next bit; nothing at the end.
    pub fn flag(&mut self) -> Option<bool> {
        self.take(1).map(|bit| bit == 1)
    }

    /// An unsigned Exp-Golomb code (H.264 clause 9.1); nothing if it is cut short or has more than 32 bits.
    pub fn unsigned(&mut self) -> Option<u32> {
        let zeros = self.peek(32).leading_zeros();
        if zeros > 31 || !self.skip(zeros as usize) {
            return None;
        }
        self.take(zeros + 1).map(|value| value - 1)
    }

    /// A signed Exp-Golomb code (H.264 clause 9.1.1).
    pub fn signed(&mut self) -> Option<i32> {
        let code = self.unsigned()?;
        let half = i32::try_from(code.div_ceil(2)).ok()?;
        Some(if code % 2 == 1 { half } else { -half })
    }
}

/// Writes bits.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    held: u64,
    count: u32,
}

impl Writer {
    /// Bits written.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len() * 8 + self.count as usize
    }

    /// The lowest `count` bits of `value`, at most 32.
    #[inline]
    pub fn put(&mut self, value: u32, count: u32) {
        let mask = (1u64 << count) - 1;
        self.held = self.held << count | (u64::from(value) & mask);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            // The highest eight of the held bits.
            #[allow(clippy::cast_possible_truncation)]
            self.bytes.push((self.held >> self.count) as u8);
        }
    }

    pub fn flag(&mut self, value: bool) {
        self.put(u32::from(value), 1);
    }

    /// An unsigned Exp-Golomb code; `value` is less than 2^32 - 1.
    pub fn unsigned(&mut self, value: u32) {
        let code = value.saturating_add(1);
        let zeros = 31 - code.leading_zeros();
        self.put(0, zeros);
        self.put(code, zeros + 1);
    }

    /// A signed Exp-Golomb code.
    pub fn signed(&mut self, value: i32) {
        let double = value.unsigned_abs().saturating_mul(2);
        self.unsigned(if value > 0 { double - 1 } else { double });
    }

    /// The bits of `data` from `from` to `to`.
    pub fn copy(&mut self, data: &[u8], from: usize, to: usize) {
        let mut bits = Reader::within(data, from, to);
        if self.count == 0 && from.is_multiple_of(8) {
            let whole = &data[bits.at() / 8..(bits.at() + bits.left()) / 8];
            self.bytes.extend_from_slice(whole);
            let _ = bits.skip(whole.len() * 8);
        }
        while bits.left() >= 32 {
            self.put(bits.peek(32), 32);
            let _ = bits.skip(32);
        }
        // Less than 32 are left.
        #[allow(clippy::cast_possible_truncation)]
        let rest = bits.left() as u32;
        self.put(bits.peek(rest), rest);
    }

    /// What was written, with a 1 after it (`rbsp_trailing_bits` of H.264 and H.265), filled up to a whole byte with zeros.
    #[must_use]
    pub fn trailing(mut self) -> Vec<u8> {
        self.flag(true);
        self.finish()
    }

    /// What was written, filled up to a whole byte with zeros.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.put(0, (8 - self.count) % 8);
        self.bytes
    }
}
