//! Moves an unusable journal aside.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The files of a database in addition to the first one. The log is moved first: a new file must not find it.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Renames the file at `path` to an unused name with the time, and returns the name. The caller holds the journal's lock.
pub(crate) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut time = now.as_micros();
    let aside = loop {
        let candidate = with_suffix(path, &format!(".damaged-{time}"));
        let taken = COMPANIONS.iter().map(|end| with_suffix(&candidate, end)).any(|path| exists(&path));
        if !taken && !exists(&candidate) {
            break candidate;
        }
        time += 1;
    };
    for end in COMPANIONS {
        match fs::rename(with_suffix(path, end), with_suffix(&aside, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match fs::rename(path, &aside) {
        // Only its log existed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(aside),
        result => result.map(|()| aside),
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
