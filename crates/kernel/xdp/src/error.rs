//! The error of a system call: what was done, on what, and what the kernel said.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation of the data plane. The text names the operation and its object.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}{}", hint(.source))]
pub struct Error {
    what: String,
    #[source]
    source: io::Error,
}

impl Error {
    pub fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self {
            what: what.into(),
            source: source.into(),
        }
    }

    /// The error of the last system call of this thread.
    pub fn last(what: impl Into<String>) -> Self {
        Self::new(what, io::Error::last_os_error())
    }

    /// The kernel's error number, 0 when there was none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

fn hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        " (needs CAP_BPF and CAP_NET_ADMIN)"
    } else {
        ""
    }
}

/// libbpf-rs does not hand out the number, only its kind and text.
pub(crate) fn from_libbpf(what: impl Into<String>, error: &libbpf_rs::Error) -> Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        libbpf_rs::ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    Error::new(what, io::Error::new(kind, format!("{error:#}")))
}
