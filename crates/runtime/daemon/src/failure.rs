//! Why a daemon did not start, or ended.

use crate::document::DocumentError;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// sysexits.h: the configuration does not fit the host.
const EX_CONFIG: u8 = 78;

/// Why a daemon did not start, or ended.
#[derive(Debug)]
pub enum Failure {
    /// Starting again changes nothing: exit code 78, which the units take for final.
    Config(String),
    /// Exit code 1.
    Other(String),
}

impl Failure {
    /// A configuration that could not be read from a file.
    #[must_use]
    pub fn document(path: &str, error: &DocumentError) -> Self {
        Self::Config(format!("{path}: {error}"))
    }

    /// An address or a file that cannot be bound. An address that this host does not have is a fault of the configuration.
    #[must_use]
    pub fn bind(what: &str, error: &io::Error) -> Self {
        let text = format!("cannot bind {what}: {error}");
        if error.kind() == io::ErrorKind::AddrNotAvailable {
            Self::Config(text)
        } else {
            Self::Other(text)
        }
    }

    /// The exit code; what failed is said on standard error, if anybody reads that.
    #[must_use]
    pub fn report(&self, daemon: &str) -> ExitCode {
        let (text, code) = match self {
            Self::Config(text) => (text, ExitCode::from(EX_CONFIG)),
            Self::Other(text) => (text, ExitCode::FAILURE),
        };
        let _ = writeln!(std::io::stderr(), "{daemon}: {text}");
        code
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}
