//! Bencode: read without copying and without recursion.

use crate::error::{Fault, ParseError};
use crate::value::{Budget, MAX_DEPTH, Placed, Value};
use std::borrow::Cow;

/// A list or dictionary whose end has not come yet.
enum Open<'a, I> {
    List(Vec<Value<'a, I>>),
    Dictionary {
        entries: Vec<(Cow<'a, [u8]>, Value<'a, I>)>,
        key: Option<Cow<'a, [u8]>>,
    },
}

/// The value at the start of `data`.
pub(crate) fn parse<I: From<Placed>>(data: &[u8]) -> Result<Value<'_, I>, ParseError> {
    let mut open: Vec<Open<'_, I>> = Vec::new();
    let (mut at, mut budget) = (0, Budget::new());
    loop {
        let start = at;
        budget.take(at)?;
        let value = match token(data, at)? {
            Token::Begin(list) => {
                if open.len() >= MAX_DEPTH {
                    return Err(ParseError::new(Fault::Depth, at));
                }
                open.push(if list {
                    Open::List(Vec::new())
                } else {
                    Open::Dictionary {
                        entries: Vec::new(),
                        key: None,
                    }
                });
                at += 1;
                continue;
            }
            Token::End => {
                at += 1;
                match open.pop() {
                    Some(Open::List(items)) => Value::List(items),
                    Some(Open::Dictionary { entries, key: None }) => Value::Dictionary(entries),
                    _ => return Err(ParseError::new(Fault::Bencode, start)),
                }
            }
            Token::Integer { value, end } => {
                at = end;
                let digits = start + 1;
                Value::Integer(I::from(Placed {
                    value,
                    at: digits,
                    len: end - 1 - digits,
                }))
            }
            Token::Text { from, end } => {
                at = end;
                Value::Text(Cow::Borrowed(&data[from..end]))
            }
        };
        match open.last_mut() {
            None => return Ok(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Dictionary { entries, key }) => match (key.take(), value) {
                (Some(name), value) => entries.push((name, value)),
                (None, Value::Text(name)) => *key = Some(name),
                (None, _) => return Err(ParseError::new(Fault::Key, start)),
            },
        }
    }
}

/// How many bytes the value at the start of `data` takes; `None` while it is not complete.
pub(crate) fn length(data: &[u8]) -> Result<Option<usize>, ParseError> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        let step = match token(data, at) {
            Err(error) if error.fault == Fault::Truncated => return Ok(None),
            other => other?,
        };
        match step {
            Token::Begin(_) => {
                depth += 1;
                at += 1;
                if depth > MAX_DEPTH {
                    return Err(ParseError::new(Fault::Depth, at));
                }
            }
            Token::End => {
                depth = depth.checked_sub(1).ok_or(ParseError::new(Fault::Bencode, at))?;
                at += 1;
            }
            Token::Integer { end, .. } | Token::Text { end, .. } => at = end,
        }
        if depth == 0 {
            return Ok(Some(at));
        }
    }
}

enum Token {
    /// Of a list, else of a dictionary.
    Begin(bool),
    End,
    Integer {
        value: i64,
        end: usize,
    },
    Text {
        from: usize,
        end: usize,
    },
}

fn token(data: &[u8], at: usize) -> Result<Token, ParseError> {
    match data.get(at) {
        None => Err(ParseError::new(Fault::Truncated, at)),
        Some(b'd') => Ok(Token::Begin(false)),
        Some(b'l') => Ok(Token::Begin(true)),
        Some(b'e') => Ok(Token::End),
        Some(b'i') => {
            let (digits, end) = until(data, at + 1, b'e', 20)?;
            let value = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            let value = value.ok_or(ParseError::new(Fault::Bencode, at))?;
            Ok(Token::Integer { value, end: end + 1 })
        }
        Some(b'0'..=b'9') => {
            let (digits, colon) = until(data, at, b':', 9)?;
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<usize>().ok());
            let length = length.ok_or(ParseError::new(Fault::Bencode, at))?;
            let (from, end) = (colon + 1, colon + 1 + length);
            if end > data.len() {
                return Err(ParseError::new(Fault::Truncated, at));
            }
            Ok(Token::Text { from, end })
        }
        Some(_) => Err(ParseError::new(Fault::Bencode, at)),
    }
}

/// The digits from `from` to the mark, at most so many, and the mark's place.
fn until(data: &[u8], from: usize, mark: u8, most: usize) -> Result<(&[u8], usize), ParseError> {
    let rest = data.get(from..).unwrap_or_default();
    let length = rest.iter().take(most).take_while(|byte| matches!(byte, b'0'..=b'9' | b'-')).count();
    match rest.get(length) {
        Some(byte) if *byte == mark => Ok((&rest[..length], from + length)),
        Some(_) => Err(ParseError::new(Fault::Bencode, from + length)),
        None => Err(ParseError::new(Fault::Truncated, from + length)),
    }
}

/// Append a value.
pub(crate) fn write(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Integer(value) => out.extend_from_slice(format!("i{value}e").as_bytes()),
        Value::Text(bytes) => text(bytes, out),
        Value::List(items) => {
            out.push(b'l');
            items.iter().for_each(|item| write(item, out));
            out.push(b'e');
        }
        Value::Dictionary(entries) => {
            out.push(b'd');
            for (key, value) in entries {
                text(key, out);
                write(value, out);
            }
            out.push(b'e');
        }
    }
}

fn text(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(bytes);
}
