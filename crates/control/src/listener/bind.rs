//! Binding of control sockets that clients connect to.

use nix::sys::socket::{self as sys, AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, UnixAddr, sockopt};
use nix::unistd::{Gid, Group, chown};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const MODE: u32 = 0o660;
const WAITING: i32 = 128;

/// The file of a Unix socket: removed when it is dropped, unless another process has made it anew.
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A socket of IPv4, or of IPv6 alone.
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

/// # Errors
/// As bind(2) and listen(2).
pub fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = inet(address, SockType::Stream, SockProtocol::Tcp)?;
    sys::setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Connections inherit it: a host that died is noticed.
    sys::setsockopt(&fd, sockopt::KeepAlive, &true)?;
    sys::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    sys::listen(&fd, Backlog::new(WAITING)?)?;
    Ok(TcpListener::from(fd))
}

/// # Errors
/// Another process listens there, something else than a socket is there, or the file cannot be made.
pub fn unix(path: &Path, group: &str) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        // A socket that nobody listens on is the rest of a process that was killed.
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        fs::remove_file(path)?;
    }
    // Nobody may connect before the permissions are right.
    let fd: OwnedFd = sys::socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    sys::bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let file = SocketFile {
        path: path.to_owned(),
        inode: fs::symlink_metadata(path)?.ino(),
    };
    match Group::from_name(group) {
        Ok(Some(found)) if found.gid != Gid::effective() => {
            if let Err(error) = chown(path, None, Some(found.gid)) {
                tracing::warn!("{} does not get the group {group}: {error}", path.display());
            }
        }
        Ok(Some(_)) => {}
        _ => tracing::info!("there is no group {group}: only this process's own may use {}", path.display()),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    sys::listen(&fd, Backlog::new(WAITING)?)?;
    Ok((UnixListener::from(fd), file))
}
