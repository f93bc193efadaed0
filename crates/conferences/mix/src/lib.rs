//! Audio of conferences mixed for those who play one stream: decoders, jitter buffers, N-1 mixes, encoders. No I/O and no clock: packets and times come in, packets go
//! out.
#![forbid(unsafe_code)]

pub mod codec;
mod conceal;
mod delay;
pub mod g711;
pub mod g722;
pub mod jitter;
pub mod keys;
pub mod level;
pub mod output;
pub mod resample;
pub mod room;
mod source;

/// Hz that everything is mixed at: wideband.
pub const RATE: u32 = 16_000;
/// Samples of 20 ms.
pub const FRAME: usize = RATE as usize / 50;
