//! H.265 (ITU-T H.265 08/2021, RFC 7798): pictures of equal size, side by side as tiles (clause 6.3.1) of one picture. Each source's slices
//! become slices of a tile; coding tree units stay as they are.
//!
//! | from | by | to |
//! | --- | --- | --- |
//! | a source's packets | [`assembler`](crate::assembler) ([`packets`]) | NAL units of a picture |
//! | those | [`parameters`] ([`references`], `usability`), [`slice`](mod@slice) | slices whose headers are known, or the reason why they cannot be tiled |
//! | slices of all tiles | [`sliced`](crate::sliced) ([`grid`], [`format`](mod@format), [`fill`]) | NAL units of a picture of the grid |
//! | those | [`packets`] | payloads of packets |

pub mod fill;
pub mod format;
pub mod grid;
mod nal;
pub mod packets;
pub mod parameters;
pub mod references;
pub mod slice;
mod usability;
