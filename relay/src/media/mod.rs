//! Media: sockets, the threads that forward between them, and what they count.

mod contest;
mod counters;
mod held;
mod outgoing;
mod port;
mod sockets;
mod worker;

pub use counters::Shared;
pub use sockets::{MediaSettings, Sockets};
