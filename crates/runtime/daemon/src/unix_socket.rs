//! A Unix socket that clients of a daemon's group connect to, and its file.

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{Gid, Group, chown};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const MODE: u32 = 0o660;
const WAITING: i32 = 128;

/// The file of a Unix socket: removed when it is dropped, unless another process has made it anew.
#[derive(Debug)]
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

/// Listen at `path`, without blocking. A socket file that nobody listens on is replaced; where there is no group `group`, the file stays this
/// process's own.
///
/// # Errors
/// Another process listens there, something else than a socket is there, or the file cannot be made.
pub fn listen_unix(path: &Path, group: &str) -> io::Result<(UnixListener, SocketFile)> {
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
    let fd: OwnedFd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
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
    listen(&fd, Backlog::new(WAITING)?)?;
    Ok((UnixListener::from(fd), file))
}
