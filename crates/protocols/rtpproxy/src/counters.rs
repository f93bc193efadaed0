//! The counters in a reply to Q.

use crate::command::{Command, Request};
use crate::error::{Fault, ParseError};
use crate::reply::Reply;
use crate::words::{Words, number};

/// The counters of a Q without names, in the order of its reply.
pub const DEFAULT_COUNTERS: [&[u8]; 5] = [b"ttl", b"npkts_ina", b"npkts_ino", b"nrelayed", b"ndropped"];

/// One counter of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter<'a> {
    pub name: &'a [u8],
    /// As sent: a whole number, or a fraction (`longest_ipi`).
    pub text: &'a [u8],
    /// Offset of the text in the reply.
    pub at: usize,
}

impl Counter<'_> {
    /// The value; `None` for a fraction.
    #[must_use]
    pub fn value(&self) -> Option<u64> {
        number(self.text, 19)
    }

    fn is_number(&self) -> bool {
        let mut parts = self.text.splitn(2, |&byte| byte == b'.');
        parts.all(|part| number(part, 19).is_some())
    }
}

/// The counters of a reply to Q, by the requested names, the default five, or `name=value` (modifier v).
///
/// # Errors
/// The command is not Q, or the reply does not fit it, such as an error reply.
pub fn query_counters<'a>(command: &Command<'a>, reply: &'a [u8]) -> Result<Vec<Counter<'a>>, ParseError> {
    let Request::Query(_) = command.request else {
        return Err(ParseError::new(Fault::Counters, 0));
    };
    let names: &[&[u8]] = if command.arguments.is_empty() {
        &DEFAULT_COUNTERS
    } else {
        &command.arguments
    };
    let verbose = command.has_modifier(b'V');
    let mut counters = Vec::with_capacity(names.len());
    for (at, word) in Words::new(reply).take_while(|(_, word)| *word != b"&&") {
        let misfit = ParseError::new(Fault::Counters, at);
        let name = names.get(counters.len()).ok_or(misfit)?;
        let counter = if verbose {
            let equals = word.iter().position(|&byte| byte == b'=').ok_or(misfit)?;
            Counter {
                name: &word[..equals],
                text: &word[equals + 1..],
                at: at + equals + 1,
            }
        } else {
            Counter { name, text: word, at }
        };
        if !counter.is_number() {
            return Err(ParseError::new(Fault::Counters, counter.at));
        }
        counters.push(counter);
    }
    if counters.len() == names.len() {
        Ok(counters)
    } else {
        Err(ParseError::new(Fault::Counters, reply.len()))
    }
}

/// Adds counts to a reply to Q in any form. All other bytes stay. `add` gives the amount by the counter's name.
///
/// Error replies and fractions stay unchanged.
///
/// # Errors
/// The reply does not fit the command; it can be forwarded unchanged.
pub fn add_counts(command: &Command, reply: &[u8], add: impl Fn(&[u8]) -> u64) -> Result<Vec<u8>, ParseError> {
    if Reply::new(reply).error().is_some() {
        return Ok(reply.to_vec());
    }
    let mut out = Vec::with_capacity(reply.len() + 16);
    let mut done = 0;
    for counter in query_counters(command, reply)? {
        if let (more @ 1.., Some(value)) = (add(counter.name), counter.value()) {
            out.extend_from_slice(&reply[done..counter.at]);
            out.extend_from_slice(value.saturating_add(more).to_string().as_bytes());
            done = counter.at + counter.text.len();
        }
    }
    out.extend_from_slice(&reply[done..]);
    Ok(out)
}
