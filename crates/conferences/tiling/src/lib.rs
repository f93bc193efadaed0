//! Video of many sources in one stream, without decoding (spatial tiling): bit streams are taken apart to macroblocks or slices, which
//! get new places in a larger picture. Without I/O and without a clock: RTP packets and the time come in, RTP packets go out.
//!
//! [`tiler::Tiler`] is one stream, an RTP mixer of RFC 3550 section 7.1; [`h261`], [`h264`] and [`h265`] are what it can be made of. A
//! tile may also be one of another mixer's: mixers form hierarchies.
#![forbid(unsafe_code)]

pub mod assembler;
pub mod bits;
mod cabac;
pub mod coding;
mod colour;
mod emulation;
mod fault;
mod fields;
pub mod h261;
pub mod h264;
pub mod h265;
pub mod order;
pub mod packing;
mod queue;
mod refusal;
pub mod sliced;
pub mod stream;
pub mod tiler;

pub use fault::{Fault, What};
pub use refusal::{Parameter, Refusal};
