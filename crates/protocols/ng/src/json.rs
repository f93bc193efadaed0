//! JSON bodies: serde_json reads them, keeping the order of keys and the place of each number.

use crate::error::{Fault, ParseError};
use crate::value::{Budget, MAX_DEPTH, Placed, Value};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The document in `body`.
pub(crate) fn parse<I: From<Placed>>(body: &[u8]) -> Result<Value<'_, I>, ParseError> {
    let text = std::str::from_utf8(body).map_err(|error| ParseError::new(Fault::Json, error.valid_up_to()))?;
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| fault(&error, text))?;
    let mut reader = Reader {
        base: text,
        budget: Budget::new(),
    };
    reader.value(raw, 0)
}

/// How many bytes the document at the start of `data` takes; `None` while it is not complete.
pub(crate) fn length(data: &[u8]) -> Result<Option<usize>, ParseError> {
    let mut documents = serde_json::Deserializer::from_slice(data).into_iter::<IgnoredAny>();
    match documents.next() {
        None => Ok(None),
        Some(Ok(_)) => Ok(Some(documents.byte_offset())),
        // A number that is cut off is no number, but may yet become one.
        Some(Err(error)) => match place(&error, data) {
            at if error.is_eof() || at == data.len() => Ok(None),
            at => Err(ParseError::new(Fault::Json, at)),
        },
    }
}

struct Reader<'a> {
    base: &'a str,
    budget: Budget,
}

impl<'a> Reader<'a> {
    /// Recursive; [`MAX_DEPTH`] bounds it.
    fn value<I: From<Placed>>(&mut self, raw: &'a RawValue, depth: usize) -> Result<Value<'a, I>, ParseError> {
        let (text, at) = (raw.get(), self.place(raw.get()));
        self.budget.take(at)?;
        let first = text.as_bytes().first().copied().unwrap_or_default();
        if matches!(first, b'{' | b'[') && depth >= MAX_DEPTH {
            return Err(ParseError::new(Fault::Depth, at));
        }
        Ok(match first {
            b'{' => {
                let Entries(entries) = read(text, at)?;
                let mut values = Vec::with_capacity(entries.len().min(64));
                for (key, value) in entries {
                    self.budget.take(at)?;
                    values.push((bytes(key), self.value(value, depth + 1)?));
                }
                Value::Dictionary(values)
            }
            b'[' => {
                let items: Vec<&'a RawValue> = read(text, at)?;
                let items = items.into_iter().map(|item| self.value(item, depth + 1));
                Value::List(items.collect::<Result<_, _>>()?)
            }
            b'"' => {
                let Key(text) = read(text, at)?;
                Value::Text(bytes(text))
            }
            _ => match text.parse() {
                Ok(value) => Value::Integer(I::from(Placed {
                    value,
                    at,
                    len: text.len(),
                })),
                Err(_) => Value::Text(Cow::Borrowed(text.as_bytes())),
            },
        })
    }

    /// Where a part of the body begins.
    fn place(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.base.as_ptr() as usize)
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str, at: usize) -> Result<T, ParseError> {
    serde_json::from_str(text).map_err(|error| {
        let inner = fault(&error, text);
        ParseError::new(inner.fault, at + inner.at)
    })
}

fn fault(error: &serde_json::Error, text: &str) -> ParseError {
    let fault = if error.is_eof() { Fault::Truncated } else { Fault::Json };
    ParseError::new(fault, place(error, text.as_bytes()))
}

/// The offset of an error, which serde_json gives as line and column.
fn place(error: &serde_json::Error, data: &[u8]) -> usize {
    let before = data.split_inclusive(|&byte| byte == b'\n').take(error.line().saturating_sub(1));
    let at = before.map(<[u8]>::len).sum::<usize>() + error.column();
    at.min(data.len())
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// A text that is copied only where it has escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A dictionary's entries in their order.
struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a dictionary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// Append a value.
pub(crate) fn write(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Value::Text(bytes) => text(bytes, out),
        Value::List(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Dictionary(entries) => {
            out.push(b'{');
            for (index, (key, value)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                text(key, out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
    }
}

fn text(bytes: &[u8], out: &mut Vec<u8>) {
    let escaped = serde_json::Value::from(String::from_utf8_lossy(bytes).into_owned()).to_string();
    out.extend_from_slice(escaped.as_bytes());
}
