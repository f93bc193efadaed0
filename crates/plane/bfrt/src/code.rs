//! The codes of BF Runtime's errors, and the driver's words for them.

use std::fmt;

/// google.rpc.Code, as far as BF Runtime uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    Unknown = 2,
    Invalid = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    Exists = 6,
    Denied = 7,
    NoSpace = 8,
    FailedPrecondition = 9,
    Unsupported = 12,
    Internal = 13,
    Unavailable = 14,
}

impl Code {
    /// The driver's own words, in which every message of a BF Runtime server ends.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Unknown => "Unexpected error",
            Self::Invalid => "Invalid arguments",
            Self::DeadlineExceeded => "Not ready",
            Self::NotFound => "Object not found",
            Self::Exists => "Already exists",
            Self::Denied => "Permission denied",
            Self::NoSpace => "Not enough space",
            Self::FailedPrecondition => "Precondition failed",
            Self::Unsupported => "Operation not supported",
            Self::Internal => "Internal error",
            Self::Unavailable => "Not ready",
        }
    }

    /// The gRPC status of a call that fails as a whole.
    #[must_use]
    pub fn status(self) -> tonic::Code {
        tonic::Code::from_i32(self as i32)
    }
}

/// One failed update, entity or call, with the message that the client is given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BfrtError {
    pub code: Code,
    what: String,
}

impl BfrtError {
    pub fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into() }
    }
}

impl fmt::Display for BfrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.code.words())
    }
}

impl From<BfrtError> for tonic::Status {
    fn from(error: BfrtError) -> Self {
        Self::new(error.code.status(), error.to_string())
    }
}
