//! Arithmetic of RTP sequence numbers, modulo 2^16 (RFC 3550 appendix A.1, RFC 1982).

/// How far `sequence` is ahead of `other`: -32768..=32767.
#[must_use]
pub fn distance(sequence: u16, other: u16) -> i32 {
    i32::from(i16::from_be_bytes(sequence.wrapping_sub(other).to_be_bytes()))
}

/// Whether `sequence` plausibly belongs to a stream last seen at `after`: at most `ahead` before it, or `behind` after it (reordering).
#[must_use]
pub fn follows(sequence: u16, after: u16, ahead: u16, behind: u16) -> bool {
    sequence.wrapping_sub(after) <= ahead || after.wrapping_sub(sequence) <= behind
}

/// Extends sequence numbers to 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extender {
    highest: Option<i64>,
}

impl Extender {
    /// The extended number, closest to the highest so far. Numbers before the first one seen are negative after a wrap.
    pub fn extend(&mut self, sequence: u16) -> i64 {
        let Some(highest) = self.highest else {
            self.highest = Some(i64::from(sequence));
            return i64::from(sequence);
        };
        // The low 16 bits of two's complement are the number modulo 2^16.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let low = highest as u16;
        let extended = highest + i64::from(distance(sequence, low));
        self.highest = Some(highest.max(extended));
        extended
    }
}
