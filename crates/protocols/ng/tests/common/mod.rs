//! Reader of recorded NG traffic in `tests/data/traces/ng`.
//!
//! Line formats (TIME is epoch seconds, BYTES a Python bytes literal):
//!     TIME UDP SRC > DST --> relay len=N BYTES      a command, seen on the wire; `<--` is a reply
//!     TIME >> BYTES   and   TIME << BYTES           the same, of a client that speaks to rtpengine directly; `TCP>>` and `TCP<<` on a stream
//!     TCP NG notify << BYTES                        a notification
//!           = cookie=COOKIE {KEY: VALUE, …}         the message before, decoded by another implementation
#![allow(dead_code)]

use shunt_ng::Value;
use shunt_ng::framing::split;
use std::fmt::Write;
use std::path::PathBuf;

/// One message.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// `NAME:LINE`.
    pub place: String,
    /// A command, else a reply or a notification.
    pub is_command: bool,
    pub is_stream: bool,
    pub bytes: Vec<u8>,
    /// What the recording says that it means.
    pub decoded: Option<String>,
}

impl Recorded {
    pub fn cookie(&self) -> &[u8] {
        split(&self.bytes).unwrap().0
    }

    pub fn body(&self) -> &[u8] {
        split(&self.bytes).unwrap().1
    }

    /// Whether this is the reply to a query, or to a delete that names a party.
    pub fn describes(&self) -> bool {
        !self.is_command && self.bytes.windows(4).any(|window| window == b"tags") && self.bytes.windows(6).any(|window| window == b"totals")
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data/traces/ng")
}

/// Every recording's name and messages.
pub fn recordings() -> Vec<(String, Vec<Recorded>)> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    let with_messages = |name: String| {
        let messages = recording(&name);
        (name, messages)
    };
    names.into_iter().map(with_messages).collect()
}

/// The reply with this cookie.
pub fn reply(name: &str, cookie: &str) -> Recorded {
    let is_it = |message: &Recorded| !message.is_command && message.cookie() == cookie.as_bytes();
    recording(name)
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("{name}: no reply to {cookie}"))
}

/// The command with this cookie.
pub fn command(name: &str, cookie: &str) -> Recorded {
    let is_it = |message: &Recorded| message.is_command && message.cookie() == cookie.as_bytes();
    recording(name)
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("{name}: no command {cookie}"))
}

/// The messages of one recording.
pub fn recording(name: &str) -> Vec<Recorded> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    let mut messages: Vec<Recorded> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(decoded) = line.strip_prefix("      = ") {
            messages.last_mut().unwrap().decoded = Some(decoded.to_owned());
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (arrow, literal) = split_line(line).unwrap_or_else(|| panic!("{name}:{}: not a message", number + 1));
        let bytes = unescape(literal);
        if let Some((_, rest)) = line.split_once(" relay len=") {
            assert!(
                rest.starts_with(&format!("{} ", bytes.len())),
                "{name}:{}: {} bytes",
                number + 1,
                bytes.len()
            );
        }
        messages.push(Recorded {
            place: format!("{name}:{}", number + 1),
            is_command: matches!(arrow, "-->" | ">>" | "TCP>>"),
            is_stream: arrow.starts_with("TCP"),
            bytes,
            decoded: None,
        });
    }
    messages
}

fn split_line(line: &str) -> Option<(&str, &str)> {
    let start = line.find(" b'").into_iter().chain(line.find(" b\"")).min()?;
    let (head, literal) = (&line[..start], &line[start + 3..line.len() - 1]);
    let arrow = ["-->", "<--", "TCP>>", "TCP<<", ">>", "<<"]
        .into_iter()
        .find(|arrow| head.contains(arrow))?;
    Some((arrow, literal))
}

fn unescape(literal: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (literal.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        at += 2;
        out.push(match bytes[at - 1] {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                at += 2;
                u8::from_str_radix(&literal[at - 2..at], 16).unwrap()
            }
            other => other,
        });
    }
    out
}

/// A value as the recordings write it.
pub fn render(value: &Value<'_>) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

fn write_value(value: &Value<'_>, out: &mut String) {
    match value {
        Value::Integer(value) => write!(out, "{value}").unwrap(),
        Value::Text(text) => write_text(std::str::from_utf8(text).unwrap(), out),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Dictionary(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write!(out, "{}: ", std::str::from_utf8(key).unwrap()).unwrap();
                write_value(value, out);
            }
            out.push('}');
        }
    }
}

/// As Python's `repr`.
fn write_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\r' => out.push_str("\\r"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => write!(out, "\\{character}").unwrap(),
            _ => out.push(character),
        }
    }
    out.push(quote);
}
