//! Kernel buffers of datagram sockets.

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::os::fd::AsFd;

/// Requested bytes: enough for the commands, or the replies, of a few thousand calls set up at once.
const SIZE: usize = 4 << 20;

/// Sets both buffers.
///
/// # Errors
/// As setsockopt(2).
pub fn enlarge(socket: &impl AsFd) -> io::Result<()> {
    // Without CAP_NET_ADMIN the kernel grants at most net.core.rmem_max.
    if setsockopt(socket, sockopt::RcvBufForce, &SIZE).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &SIZE)?;
    }
    // A reply that does not fit is lost: two of 60 kB fill the default buffer.
    Ok(setsockopt(socket, sockopt::SndBuf, &SIZE)?)
}
