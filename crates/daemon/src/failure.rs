//! Why a daemon did not start, or ended.

use crate::document::DocumentError;
use std::io::Write as _;
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

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}
