//! RTP (RFC 3550, 8285) with the headers that tell layers (dependency descriptor, VP8, VP9, frame marking), RTCP (RFC 3550, 4585, 5104, 3611) and STUN (RFC 8489) as a media port receives them. Pure functions over bytes.
#![forbid(unsafe_code)]

mod bytes;
mod demux;
pub mod descriptor;
mod error;
mod extension;
mod header;
pub mod payload;
pub mod rtcp;
pub mod sequence;
pub mod stun;
mod window;

pub use demux::{Packet, demux};
pub use error::{MediaError, What};
pub use extension::{Element, Elements, Extension};
pub use header::{Header, Source};
pub use window::Window;
