//! Why bytes are not a HEPv3 packet.

use thiserror::Error;

/// The fault, with byte offsets into the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HepError {
    #[error("{0} bytes are too few for a HEPv3 header of 6")]
    Short(usize),
    #[error("this is HEP version {0}; set the SIP server's tracing to version 3")]
    Version(u8),
    #[error("does not start with HEP3")]
    Magic,
    #[error("announces a length of {0} bytes, less than its own header")]
    Length(usize),
    #[error("announces {announced} bytes but has {held}")]
    Cut { announced: usize, held: usize },
    #[error("{left} bytes at byte {at} are too few for a chunk")]
    ChunkHeader { at: usize, left: usize },
    #[error("chunk {kind} at byte {at} announces {announced} bytes; {left} are left")]
    ChunkLength {
        kind: u16,
        at: usize,
        announced: usize,
        left: usize,
    },
    #[error("chunk {kind} at byte {at} holds {held} bytes instead of {wanted}")]
    ChunkSize { kind: u16, at: usize, held: usize, wanted: usize },
    #[error("has no payload chunk")]
    NoPayload,
    #[error("the compressed payload cannot be inflated")]
    Deflate,
    #[error("the compressed payload is larger than 65536 bytes")]
    Inflated,
    #[error("source and destination are of different IP versions")]
    Families,
    #[error("{0} bytes are more than the 65535 that a HEPv3 packet can announce")]
    Large(usize),
}
