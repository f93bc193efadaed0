//! Why bytes are no message, and no command or reply.

use thiserror::Error;

/// What is wrong with a message's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("no cookie")]
    NoCookie,
    /// There is a cookie and nothing after it; rtpengine answers with an error.
    #[error("no body after the cookie")]
    Empty,
    #[error("longer than a message may be")]
    TooLong,
    /// On a stream: where this message ends cannot be known, so nothing after it can be read either.
    #[error(transparent)]
    Body(#[from] ParseError),
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("neither a bencode nor a JSON dictionary")]
    Format,
    #[error("ends too early")]
    Truncated,
    #[error("not bencode")]
    Bencode,
    #[error("not JSON")]
    Json,
    #[error("a dictionary's key is not a text")]
    Key,
    #[error("nested too deeply")]
    Depth,
    #[error("too many elements")]
    Elements,
    #[error("no key {0:?}")]
    Missing(&'static str),
}

/// A body that is not what the protocol has there; `at` is the offset into what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} at byte {at}")]
pub struct ParseError {
    pub fault: Fault,
    pub at: usize,
}

impl ParseError {
    pub(crate) fn new(fault: Fault, at: usize) -> Self {
        Self { fault, at }
    }
}
