//! The payload header of RFC 4587 section 4.1.

use crate::fault::{Fault, What};

/// What a decoder has to know that begins with this packet. All 0 where the payload begins with a picture or a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Bits of the first octet that belong to the packet before.
    pub start: u8,
    /// Bits of the last octet that belong to the packet after.
    pub end: u8,
    /// All is coded intra.
    pub intra: bool,
    /// There may be motion vectors.
    pub vectors: bool,
    pub group: u8,
    /// The address of the last macroblock of the packet before, less one.
    pub address: u8,
    pub quantiser: u8,
    /// The vector of that macroblock.
    pub vector: (i8, i8),
}

impl Header {
    pub const SIZE: usize = 4;

    /// The header of a payload, and the octets after it.
    ///
    /// # Errors
    /// It is cut short, or leaves no bit of the payload.
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Fault> {
        let fault = Fault {
            what: What::PayloadHeader,
            at: 0,
        };
        let (head, rest) = payload.split_at_checked(Self::SIZE).ok_or(fault)?;
        let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        // Each is masked to at most five bits.
        #[allow(clippy::cast_possible_truncation)]
        let field = |shift: u32, bits: u32| (word >> shift & ((1 << bits) - 1)) as u8;
        let signed = |shift| i8::from_be_bytes([field(shift, 5) << 3]) >> 3;
        let header = Self {
            start: field(29, 3),
            end: field(26, 3),
            intra: field(25, 1) == 1,
            vectors: field(24, 1) == 1,
            group: field(20, 4),
            address: field(15, 5),
            quantiser: field(10, 5),
            vector: (signed(5), signed(0)),
        };
        if rest.len() * 8 <= usize::from(header.start + header.end) {
            return Err(fault);
        }
        Ok((header, rest))
    }

    #[must_use]
    pub fn bytes(&self) -> [u8; Self::SIZE] {
        let field = |value: u8, shift: u32, bits: u32| (u32::from(value) & ((1 << bits) - 1)) << shift;
        let word = field(self.start, 29, 3)
            | field(self.end, 26, 3)
            | field(u8::from(self.intra), 25, 1)
            | field(u8::from(self.vectors), 24, 1)
            | field(self.group, 20, 4)
            | field(self.address, 15, 5)
            | field(self.quantiser, 10, 5)
            | field(self.vector.0.to_be_bytes()[0], 5, 5)
            | field(self.vector.1.to_be_bytes()[0], 0, 5);
        word.to_be_bytes()
    }
}
