//! Why bits are not what they were taken for.

use thiserror::Error;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum What {
    #[error("cut short")]
    Short,
    #[error("no picture start code")]
    PictureStart,
    #[error("no group of blocks start code")]
    GroupStart,
    #[error("groups of blocks are out of order, or of another picture size")]
    GroupNumber,
    #[error("quantiser 0")]
    Quantiser,
    #[error("no such macroblock address")]
    Address,
    #[error("no such macroblock type")]
    Type,
    #[error("no such motion vector")]
    Vector,
    #[error("motion vector leaves the picture")]
    VectorRange,
    #[error("no such coded block pattern")]
    Pattern,
    #[error("no such coefficient")]
    Coefficient,
    #[error("H.261 payload header is cut short or contradicts its payload")]
    PayloadHeader,
    #[error("no such NAL unit, or it is not allowed in this packetization mode")]
    NalUnit,
    #[error("a value that is not allowed")]
    Value,
}

/// Bits that are not what they were taken for; `at` is the offset in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} (bit {at})")]
pub struct Fault {
    pub what: What,
    pub at: usize,
}
