//! The thread that carries media: sockets of browsers, plain sockets, and the sessions between them.

mod connections;
mod outgoing;
mod ports;
mod worker;

pub use outgoing::{Outgoing, Path};
pub use ports::PortLease;
pub use worker::{Command, Handle, start};
