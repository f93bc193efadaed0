//! Commands and replies of our own.

use crate::value::{Encoding, Value, encode};
use crate::verb::Verb;
use std::borrow::Cow;

/// A body of texts and integers.
fn body(entries: Vec<(&'static str, Value<'_>)>, encoding: Encoding) -> Vec<u8> {
    let entries = entries.into_iter().map(|(key, value)| (Cow::Borrowed(key.as_bytes()), value));
    encode(&Value::Dictionary(entries.collect()), encoding)
}

fn text(bytes: &[u8]) -> Value<'_> {
    Value::Text(Cow::Borrowed(bytes))
}

fn command<'a>(verb: Verb, more: impl IntoIterator<Item = (&'static str, Value<'a>)>) -> Vec<u8> {
    let mut entries = vec![("command", text(verb.name().as_bytes()))];
    entries.extend(more);
    body(entries, Encoding::Bencode)
}

/// ping.
#[must_use]
pub fn ping() -> Vec<u8> {
    command(Verb::Ping, [])
}

/// query of a whole call.
#[must_use]
pub fn query(call_id: &[u8]) -> Vec<u8> {
    command(Verb::Query, [("call-id", text(call_id))])
}

/// list; rtpengine's own limit is 32 calls.
#[must_use]
pub fn list(limit: u32) -> Vec<u8> {
    command(Verb::List, [("limit", Value::Integer(limit.into()))])
}

/// statistics.
#[must_use]
pub fn statistics() -> Vec<u8> {
    command(Verb::Statistics, [])
}

/// delete of a whole call, or of what the tags name; after `delay` seconds, or after rtpengine's own.
#[must_use]
pub fn delete(call_id: &[u8], from_tag: Option<&[u8]>, to_tag: Option<&[u8]>, delay: Option<u32>) -> Vec<u8> {
    let mut entries = vec![("call-id", text(call_id))];
    entries.extend(from_tag.map(|tag| ("from-tag", text(tag))));
    entries.extend(to_tag.map(|tag| ("to-tag", text(tag))));
    entries.extend(delay.map(|delay| ("delete-delay", Value::Integer(delay.into()))));
    command(Verb::Delete, entries)
}

/// The reply to ping.
#[must_use]
pub fn pong(encoding: Encoding) -> Vec<u8> {
    body(vec![("result", text(b"pong"))], encoding)
}

/// An error reply.
#[must_use]
pub fn error(reason: &str, encoding: Encoding) -> Vec<u8> {
    body(
        vec![("result", text(b"error")), ("error-reason", text(reason.as_bytes()))],
        encoding,
    )
}
