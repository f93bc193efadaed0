//! The key `rtpp-flags`: all flags of a command in one string, as newer Kamailio sends them.
//!
//! `trust-address ICE=remove codec=[transcode=[PCMA G729] strip=[all]]`: words, keys with a text, keys with a list or dictionary in brackets.

use crate::value::Value;
use std::borrow::Cow;

/// Brackets inside each other that are read; what is nested deeper stays one text.
const MAX_DEPTH: usize = 8;

/// The words of a string in their order: flags, and keys with their values.
#[must_use]
pub fn read(text: &[u8]) -> Vec<(&[u8], Option<Value<'_>>)> {
    entries(text, 0)
}

fn entries(mut text: &[u8], depth: usize) -> Vec<(&[u8], Option<Value<'_>>)> {
    let mut found = Vec::new();
    while let Some((word, rest)) = next(text) {
        text = rest;
        found.push(match word.iter().position(|&byte| byte == b'=') {
            Some(at) if at > 0 => (&word[..at], Some(value(&word[at + 1..], depth))),
            _ => (word, None),
        });
    }
    found
}

/// The next word, and what follows it. A bracket after `=` or at the start of a word holds blanks together.
fn next(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|&byte| byte != b' ')?;
    let text = &text[start..];
    let (mut depth, mut before) = (0_usize, b'=');
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b' ' if depth == 0 => return Some(text.split_at(at)),
            b'[' if depth > 0 || before == b'=' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = byte;
    }
    Some((text, &[]))
}

fn value(text: &[u8], depth: usize) -> Value<'_> {
    let inner = match text.strip_prefix(b"[") {
        Some(inner) if depth < MAX_DEPTH => inner.strip_suffix(b"]").unwrap_or(inner),
        _ => return Value::Text(Cow::Borrowed(text)),
    };
    let found = entries(inner, depth + 1);
    // Its first word says whether it is a list or a dictionary.
    if matches!(found.first(), Some((_, Some(_)))) {
        let with_value = |(key, value): (_, Option<_>)| value.map(|value| (Cow::Borrowed(key), value));
        return Value::Dictionary(found.into_iter().filter_map(with_value).collect());
    }
    Value::List(found.into_iter().map(|(word, _)| value(word, depth + 1)).collect())
}
