//! What a SIP message tells about its dialog and its media.
//!
//! Any line end, folding, compact names and blanks before the colon are accepted: unusual syntax must not hide a BYE.

mod headers;
mod lines;
mod message;
mod sdp;
mod via;

pub use message::{Message, SipError, Start};
pub use sdp::{Direction, Format, Sdp, SdpMedia};
pub use via::Via;
