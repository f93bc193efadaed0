//! HEPv3, the Homer encapsulation protocol, and what its copies of SIP messages tell about dialogs and media. Pure functions over bytes.
//!
//! [`Packet`] is one captured message. [`sip::Message`] reads only the needed parts of a SIP message (start line, some headers, SDP),
//! because every message of a SIP server is copied.
#![forbid(unsafe_code)]

mod chunk;
mod error;
mod packet;
pub mod sip;

pub use error::HepError;
pub use packet::{Packet, PayloadKind, next_frame};
