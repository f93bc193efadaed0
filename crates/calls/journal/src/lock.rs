//! The lock that lets only one agent use a journal file.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Reason why the lock was not acquired.
#[derive(Debug, Error)]
pub(crate) enum LockError {
    #[error("another agent uses it: process {pid} holds {}", path.display())]
    Held { path: PathBuf, pid: String },
    #[error("lock {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Acquires the lock beside the journal at `journal`; its file names the holder's process.
pub(crate) fn take(journal: &Path) -> Result<Flock<File>, LockError> {
    let mut name = journal.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = match options.open(&path) {
        Ok(file) => file,
        Err(error) => return Err(LockError::Io { path, error }),
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            // Only for people, so a full disk does not prevent the lock.
            let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id()));
            Ok(lock)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            if file.read_to_string(&mut pid).is_err() || pid.is_empty() {
                pid = "unknown".to_owned();
            }
            Err(LockError::Held { path, pid })
        }
        Err((_, errno)) => Err(LockError::Io { path, error: errno.into() }),
    }
}
