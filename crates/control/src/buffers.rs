//! Kernel buffers of datagram sockets.

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::os::fd::AsFd;

/// Bytes asked for: the commands of a few thousand calls that are set up at once, or as many replies.
const SIZE: usize = 4 << 20;

/// # Errors
/// As setsockopt(2).
pub fn enlarge(socket: &impl AsFd) -> io::Result<()> {
    // Without CAP_NET_ADMIN the kernel grants no more than net.core.rmem_max.
    if setsockopt(socket, sockopt::RcvBufForce, &SIZE).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &SIZE)?;
    }
    // A reply that does not fit is lost: two of 60 kB fill the usual buffer.
    Ok(setsockopt(socket, sockopt::SndBuf, &SIZE)?)
}
