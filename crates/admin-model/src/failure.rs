//! Why the agent does not do what was asked.

use thiserror::Error;

/// What kind of failure an answer says; each has an HTTP status of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// 400: a value cannot be used.
    Invalid,
    /// 404: there is no such call, conference or participant.
    NotFound,
    /// 409: the state of things does not allow it now, as a second participant of one name.
    Conflict,
    /// 501: this agent's configuration does not have it.
    NotConfigured,
    /// 503: a data plane, a relay or the agent's loop does not answer, or this agent stands by.
    Unavailable,
}

/// Why the agent does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// Names what was wrong.
    pub message: String,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    #[must_use]
    pub fn no_conferences() -> Self {
        Self::new(FailureKind::NotConfigured, "conferences are not configured (section conference)")
    }
}
