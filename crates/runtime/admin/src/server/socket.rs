//! The Unix socket's file.

use super::ServerError;
use nix::unistd::{Gid, Group};
use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Listen on a path, without blocking; returns the file's inode too. A socket file that nobody listens on is replaced.
///
/// # Errors
/// Somebody listens on it, something else is at the path, or the system says no.
pub fn bind_unix(path: &Path, mode: u32, group: Option<&str>) -> Result<(UnixListener, u64), ServerError> {
    let failed = |error| ServerError::Socket(path.to_owned(), error);
    let gid = group.map(|name| group_id(path, name)).transpose()?.flatten();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Until then only this user may connect.
    if let Some(gid) = gid {
        chown(path, None, Some(gid.as_raw())).map_err(failed)?;
    }
    set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
    Ok((listener, inode))
}

/// `None`: there is no such group, as on a host where Shunt runs without having been installed.
fn group_id(path: &Path, name: &str) -> Result<Option<Gid>, ServerError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(Some(group.gid)),
        Ok(None) => {
            tracing::info!("there is no group {name}: only this process's own may use {}", path.display());
            Ok(None)
        }
        Err(error) => Err(ServerError::Socket(path.to_owned(), error.into())),
    }
}

fn remove_stale(path: &Path) -> Result<(), ServerError> {
    let failed = |error| ServerError::Socket(path.to_owned(), error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(data) if !data.file_type().is_socket() => return Err(ServerError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => Err(ServerError::InUse(path.to_owned())),
    }
}

/// Remove the file if it is still this process's.
pub(super) fn remove(path: &Path, inode: u64) {
    if std::fs::symlink_metadata(path).is_ok_and(|data| data.ino() == inode)
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!("admin socket {}: cannot be removed: {error}", path.display());
    }
}
