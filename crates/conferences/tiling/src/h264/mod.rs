//! H.264 (ITU-T H.264 08/2021, RFC 6184): pictures of equal size, one below the other. Each source's slices become slices of the column;
//! macroblocks stay as they are.
//!
//! | from | by | to |
//! | --- | --- | --- |
//! | a source's packets | [`assembler`](crate::assembler) ([`packets`]) | NAL units of a picture |
//! | those | [`parameters`], [`slice`](mod@slice) | slices whose headers are known, or the reason why they cannot be tiled |
//! | slices of all tiles | [`sliced`](crate::sliced) ([`column`], [`fill`]) | NAL units of a picture of the column |
//! | those | [`packets`] | payloads of packets |

pub mod column;
pub mod fill;
mod nal;
pub mod packets;
pub mod parameters;
pub mod slice;
