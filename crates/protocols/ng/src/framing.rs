//! Cookie and body: in a datagram, and where a message ends in a stream.

pub use crate::error::FrameError;
use crate::value::{Encoding, encoding_of};
use crate::{bencode, json};

/// The longest message in bytes: one UDP datagram.
pub const MAX_MESSAGE: usize = 65_535;

/// A message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub cookie: &'a [u8],
    pub body: &'a [u8],
}

/// The cookie and the body of a datagram, which are one blank apart.
///
/// # Errors
/// There is no cookie, or nothing after it.
pub fn split(data: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    match data.iter().position(|&byte| byte == b' ') {
        None | Some(0) => Err(FrameError::NoCookie),
        Some(blank) if blank + 1 == data.len() => Err(FrameError::Empty),
        Some(blank) => Ok((&data[..blank], &data[blank + 1..])),
    }
}

/// A message as it is sent, over UDP and in a stream.
#[must_use]
pub fn join(cookie: &[u8], body: &[u8]) -> Vec<u8> {
    [cookie, b" ", body].concat()
}

/// The first whole message of a stream's buffer and how many bytes it takes there; `None` if there is none yet.
///
/// A body delimits itself. Blanks and line ends before a cookie are passed over: some clients end a message with a line end.
///
/// # Errors
/// The stream cannot be read any further.
pub fn take(buffer: &[u8]) -> Result<Option<(Message<'_>, usize)>, FrameError> {
    let start = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let data = &buffer[start..];
    let found = match data.iter().position(|&byte| byte == b' ') {
        Some(blank) if blank + 1 < data.len() => length(&data[blank + 1..])?.map(|length| (blank, blank + 1 + length)),
        _ => None,
    };
    match found {
        Some((_, end)) if end > MAX_MESSAGE => Err(FrameError::TooLong),
        None if data.len() > MAX_MESSAGE => Err(FrameError::TooLong),
        None => Ok(None),
        Some((blank, end)) => {
            let (cookie, body) = (&data[..blank], &data[blank + 1..end]);
            Ok(Some((Message { cookie, body }, start + end)))
        }
    }
}

fn length(body: &[u8]) -> Result<Option<usize>, FrameError> {
    Ok(match encoding_of(body)? {
        Encoding::Bencode => bencode::length(body)?,
        Encoding::Json => json::length(body)?,
    })
}
