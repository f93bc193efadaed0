//! Reasons why a change was rejected.

/// A rejected change, which had no effect. The variants are the codes of BF Runtime's answers.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Exists(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unsupported(String),
    /// A call of the kernel failed that normally succeeds.
    #[error(transparent)]
    Kernel(#[from] shunt_xdp::Error),
}

pub type Result<T> = std::result::Result<T, Fault>;
