//! The directory in a BPF file system where programs, maps and links stay when the process ends.

use crate::{Error, Result};
use libbpf_rs::libbpf_sys;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/bpf";
/// The source of the file systems that are mounted here, by which they are found again.
const SOURCE: &str = "shunt";

/// Whether a path lies in a BPF file system.
#[must_use]
pub fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// A directory of pins with its lock: one process at a time writes the tables in it.
pub struct Directory {
    path: PathBuf,
    made: bool,
    _lock: Flock<File>,
}

impl Directory {
    /// Make the directory, mounting a BPF file system where there is none, and lock it.
    ///
    /// In a mount namespace of its own (as `ip netns exec` makes) such a mount, and every pin in it, ends with the
    /// namespace's last process.
    ///
    /// # Errors
    /// EBUSY when another process has the lock.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = failed(path);
        let nearest = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
        let made = !path.exists();
        if !is_bpffs(nearest) {
            let target = if nearest == Path::new(ROOT) { nearest } else { path };
            fs::create_dir_all(target).map_err(|error| failed("cannot make", error))?;
            mount(Some(SOURCE), target, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
                .map_err(|error| Error::new(format!("cannot mount a BPF file system on {}", target.display()), error))?;
        }
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)
            .map_err(|error| failed("cannot make", error))?;
        Self::lock(path, made)
    }

    /// Locks a directory that a former process has left; none when there is no such directory in a BPF file system.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open_left(path: &Path) -> Result<Option<Self>> {
        if !path.is_dir() || !is_bpffs(path) {
            return Ok(None);
        }
        Self::lock(path, false).map(Some)
    }

    fn lock(path: &Path, made: bool) -> Result<Self> {
        let file = File::open(path).map_err(|error| failed(path)("cannot open", error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self {
                path: path.to_owned(),
                made,
                _lock: lock,
            }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let text = format!("another process already controls the data plane pinned in {}", path.display());
                Err(Error::new(text, std::io::Error::from_raw_os_error(libc::EBUSY)))
            }
            Err((_, error)) => Err(failed(path)("cannot lock", error.into())),
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a map or program of this name is pinned. A BPF file system allows no dots in names.
    #[must_use]
    pub fn place(&self, name: &str) -> PathBuf {
        self.path.join(name.replace('.', "_").trim_start_matches('_'))
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.place(name).exists()
    }

    /// # Errors
    /// When the kernel pins nothing there.
    pub fn pin(&self, name: &str, fd: impl AsFd) -> Result<()> {
        let place = self.place(name);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(|error| Error::new(format!("cannot make {}", parent.display()), error))?;
        }
        let path = c_path(&place)?;
        // SAFETY: the path is a C string that outlives the call.
        let result = unsafe { libbpf_sys::bpf_obj_pin(fd.as_fd().as_raw_fd(), path.as_ptr()) };
        if result == 0 {
            Ok(())
        } else {
            Err(Error::last(format!("cannot pin {}", place.display())))
        }
    }

    /// Open what is pinned under a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<OwnedFd> {
        let place = self.place(name);
        let path = c_path(&place)?;
        // SAFETY: the path is a C string that outlives the call.
        let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
        if fd < 0 {
            return Err(Error::last(format!("cannot open pinned {}", place.display())));
        }
        // SAFETY: the kernel has just made this file descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Unpin a name, or a folder of pins; not an error when it is not there.
    pub fn remove(&self, name: &str) {
        let place = self.place(name);
        let gone = if place.is_dir() {
            fs::remove_dir_all(&place)
        } else {
            fs::remove_file(&place)
        };
        if let Err(error) = gone
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("cannot unpin {}: {error}", place.display());
        }
    }

    /// Writes a line under a name, which stays as long as the pins: the target of a symbolic link, the only text that a BPF file system holds.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn note(&self, name: &str, text: &str) -> Result<()> {
        let place = self.place(name);
        symlink(text, &place).map_err(|error| failed(&place)("cannot make", error))
    }

    /// The line that was written under a name.
    #[must_use]
    pub fn noted(&self, name: &str) -> Option<String> {
        let text = fs::read_link(self.place(name)).ok()?;
        text.to_str().map(str::to_owned)
    }

    /// The names that are pinned here.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        names_in(&self.path)
    }

    /// The names that are pinned in a folder of it.
    #[must_use]
    pub fn names_in(&self, folder: &str) -> Vec<String> {
        names_in(&self.place(folder))
    }

    /// Removes the directory itself, empty ones above it, and the file system that was mounted for it, when nothing is pinned in it and it was
    /// made here, or `always`.
    pub fn remove_if_empty(&self, always: bool) {
        if (self.made || always) && self.names().is_empty() {
            unmount_own(&self.path);
            // Only empty folders can be removed, and no mount point.
            let mut above = self.path.ancestors().skip(1).take_while(|above| is_bpffs(above));
            let _ = fs::remove_dir(&self.path).is_ok() && above.all(|above| fs::remove_dir(above).is_ok());
            unmount_own(Path::new(ROOT));
        }
    }
}

fn failed(path: &Path) -> impl Fn(&str, std::io::Error) -> Error {
    move |what, error| Error::new(format!("{what} {}", path.display()), error)
}

/// Unmounts an empty file system that [`Directory::open`] has mounted.
fn unmount_own(path: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The last one is on top of the others.
    let mut sources = mounts.lines().rev().filter_map(|line| {
        let (source, rest) = line.split_once(' ')?;
        (Path::new(rest.split(' ').next()?) == path).then_some(source)
    });
    if sources.next() == Some(SOURCE) && names_in(path).is_empty() {
        // The lock holds the directory open.
        let _ = umount2(path, MntFlags::MNT_DETACH);
    }
}

fn names_in(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    // The root of a BPF file system has files of its own: `maps.debug` and `progs.debug`.
    names.filter(|name| !name.contains('.')).collect()
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| Error::new(format!("{} is no path", path.display()), error))
}
