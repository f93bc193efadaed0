//! A BF Runtime client that stays subscribed and bound: one task keeps the session, everybody else asks [`Client::session`] for it.
//!
//! [`Client::start`] connects in the background and reports what happens as [`Event`]s. A [`Session`] writes and reads; once the server or
//! the stream is gone all of its calls fail with [`CallError::Unavailable`], and the next session is another one. Large reads go by a
//! client of their own ([`Session::read_all`]), with its own id, so that they hold up nobody: bf_switchd serves one call of a client at a
//! time. What changes tables goes past a [`shunt_standby::Fence`].
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
