//! UDP sockets that receive and send many packets by one system call (recvmmsg(2), sendmmsg(2)).
//!
//! A [`Batch`] holds what was received until it is sent on: payloads are not copied in between. Addresses stay as the kernel wrote them, so
//! that comparing two is comparing bytes.

mod address;
mod batch;
mod socket;

pub use address::Address;
pub use batch::{Batch, MOST};
pub use socket::Socket;
