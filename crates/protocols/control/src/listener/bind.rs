//! Binds control sockets.

use nix::sys::socket::{self as sys, AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};

const WAITING: i32 = 128;

/// Makes a socket of IPv4, or of IPv6 only.
pub fn inet(address: SocketAddr, kind: SockType, protocol: SockProtocol) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    };
    let fd = sys::socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, protocol)?;
    if address.is_ipv6() {
        sys::setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

/// Binds and listens.
///
/// # Errors
/// As bind(2) and listen(2).
pub fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = inet(address, SockType::Stream, SockProtocol::Tcp)?;
    sys::setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Connections inherit it, so that a dead host is detected.
    sys::setsockopt(&fd, sockopt::KeepAlive, &true)?;
    sys::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    sys::listen(&fd, Backlog::new(WAITING)?)?;
    Ok(TcpListener::from(fd))
}
