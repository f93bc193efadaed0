//! Builds the agent's own commands, without cookie.

use crate::error::{Fault, ParseError};
use crate::words::Words;
use std::fmt::Write as _;
use std::net::IpAddr;

/// The longest session time-out that was tried on a relay, s. A relay rejects 0 with E3.
const MOST_SECONDS: u32 = 2_000_000_000;

/// The session of a command to build.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub call_id: &'a [u8],
    /// As sent, with or without a media index.
    pub from: &'a [u8],
    pub to: Option<&'a [u8]>,
}

/// Checks that a text is one word and not `&&`.
fn word(text: &[u8]) -> Result<&[u8], ParseError> {
    let whole = Words::new(text).next().is_some_and(|(_, word)| word == text);
    if whole && text != b"&&" && !text.contains(&0) {
        Ok(text)
    } else {
        Err(ParseError::new(Fault::NotOneWord, 0))
    }
}

fn join(words: &[&[u8]]) -> Result<Vec<u8>, ParseError> {
    for text in words {
        word(text)?;
    }
    Ok(words.join(&b' '))
}

fn seconds(ttl: u32) -> Result<u32, ParseError> {
    if (1..=MOST_SECONDS).contains(&ttl) {
        Ok(ttl)
    } else {
        Err(ParseError::new(Fault::Ttl, 0))
    }
}

fn media(verb: u8, modifiers: &[u8], target: Target, address: Option<IpAddr>, port: u16) -> Result<Vec<u8>, ParseError> {
    let head = [&[verb], modifiers].concat();
    let address = address.map_or("-".to_owned(), |address| address.to_string());
    let port = port.to_string();
    let mut words = vec![&head, target.call_id, address.as_bytes(), port.as_bytes(), target.from];
    words.extend(target.to);
    join(&words)
}

/// U. `notify` is a socket and a URL-encoded tag.
///
/// # Errors
/// A part is not one word.
pub fn update(
    modifiers: &[u8],
    target: Target,
    address: Option<IpAddr>,
    port: u16,
    notify: Option<(&[u8], &[u8])>,
) -> Result<Vec<u8>, ParseError> {
    let mut out = media(b'U', modifiers, target, address, port)?;
    if let Some((socket, tag)) = notify {
        out.push(b' ');
        out.extend_from_slice(&join(&[socket, tag])?);
    }
    Ok(out)
}

/// L. Without an address it is the keep-alive `L callid - 0 from;N to;N`, which restarts the session's timer and does not restart latching.
/// `ttl` adds `&& T<seconds>` (relays with capability 20210524).
///
/// # Errors
/// A part is not one word, or the time-out is out of range.
pub fn lookup(modifiers: &[u8], target: Target, address: Option<IpAddr>, port: u16, ttl: Option<u32>) -> Result<Vec<u8>, ParseError> {
    let mut out = media(b'L', modifiers, target, address, port)?;
    if let Some(ttl) = ttl {
        out.extend_from_slice(format!(" && T{}", seconds(ttl)?).as_bytes());
    }
    Ok(out)
}

/// D: of all media if the tags have no index, otherwise of one.
///
/// # Errors
/// A part is not one word.
pub fn delete(target: Target, weak: bool) -> Result<Vec<u8>, ParseError> {
    let mut words: Vec<&[u8]> = vec![if weak { b"Dw" } else { b"D" }, target.call_id, target.from];
    words.extend(target.to);
    join(&words)
}

/// Q; `ttl` adds the sub-command that sets the session's time-out (see [`set_ttl`]).
///
/// # Errors
/// A part is not one word, the time-out is out of range, or counters are named without a to-tag (which the relay would misread).
pub fn query(target: Target, counters: &[&[u8]], verbose: bool, ttl: Option<u32>) -> Result<Vec<u8>, ParseError> {
    if target.to.is_none() && !counters.is_empty() {
        return Err(ParseError::new(Fault::CountersWithoutToTag, 0));
    }
    let mut words: Vec<&[u8]> = vec![if verbose { b"Qv" } else { b"Q" }, target.call_id, target.from];
    words.extend(target.to);
    words.extend(counters);
    let mut out = join(&words)?;
    if let Some(ttl) = ttl {
        out.extend_from_slice(b" && ");
        out.extend_from_slice(&set_ttl(ttl)?);
    }
    Ok(out)
}

/// The sub-command `S ttl=<seconds>`: the session's new time-out (relays with capability 20251015).
///
/// # Errors
/// The time-out is out of range.
pub fn set_ttl(ttl: u32) -> Result<Vec<u8>, ParseError> {
    Ok(format!("S ttl={}", seconds(ttl)?).into_bytes())
}

/// V: asks for the protocol's version.
#[must_use]
pub fn version() -> Vec<u8> {
    b"V".to_vec()
}

/// VF: asks whether the relay has the capability with a date (see [`crate::capability`]).
#[must_use]
pub fn capability(date: u32) -> Vec<u8> {
    let mut out = String::from("VF ");
    // Writing to a String cannot fail.
    let _ = write!(out, "{date:08}");
    out.into_bytes()
}
