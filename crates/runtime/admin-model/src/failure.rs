//! Reasons why the agent rejects a request.

use thiserror::Error;

/// The kind of failure; each has its own HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// 400: a value cannot be used.
    Invalid,
    /// 404: no such call, conference or participant.
    NotFound,
    /// 409: the present state does not allow it, for example a second participant with one name.
    Conflict,
    /// 501: not in this agent's configuration.
    NotConfigured,
    /// 503: a data plane, a relay or the agent's loop does not answer, or this agent is a standby.
    Unavailable,
}

/// The reason why the agent rejects a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// Names the part that is wrong.
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
