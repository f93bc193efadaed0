//! What a SIP message says of its dialog and of its media.
//!
//! Any line end, folding, compact names and blanks before the colon are taken: a BYE must not be missed because something in it is odd.

mod headers;
mod lines;
mod message;
mod sdp;
mod via;

pub use message::{Message, SipError, Start};
pub use sdp::{Direction, Format, Sdp, SdpMedia};
pub use via::Via;
