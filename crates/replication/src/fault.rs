//! Why a change was not made.

/// A rejected change; it has changed nothing. The variants are the codes that BF Runtime answers with.
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
    /// The kernel did not do what it always can.
    #[error(transparent)]
    Kernel(#[from] shunt_xdp::Error),
}

pub type Result<T> = std::result::Result<T, Fault>;
