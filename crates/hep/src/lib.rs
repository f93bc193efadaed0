//! HEPv3, the Homer encapsulation protocol, and what its copies of SIP messages say of dialogs and media. Pure functions over bytes.
//!
//! [`Packet`] is one captured message. [`sip::Message`] reads of a SIP message no more than is wanted, because every message that a SIP
//! server receives or sends comes by: the start line, some headers, SDP.
#![forbid(unsafe_code)]

mod chunk;
mod error;
mod packet;
pub mod sip;

pub use error::HepError;
pub use packet::{Packet, PayloadKind, next_frame};
