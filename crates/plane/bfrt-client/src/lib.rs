//! A BF Runtime client that stays subscribed and bound. One task keeps the session; all others get it from [`Client::session`].
//!
//! [`Client::start`] connects in the background and reports [`Event`]s. A [`Session`] writes and reads. Once the server or the stream is
//! gone, all of its calls fail with [`CallError::Unavailable`], and the next session is a new one. Large reads use a second client
//! ([`Session::read_all`]) with its own id, so that they block no other call: bf_switchd serves one call of a client at a time. Requests
//! that change tables pass a [`shunt_standby::Fence`].
#![forbid(unsafe_code)]

mod connect;
mod error;
mod handshake;
mod keep;
mod session;
mod writes;

pub use connect::{Target, Tls};
pub use error::{CallError, Outcome, UpdateError};
pub use keep::{Client, Event};
pub use session::Session;
