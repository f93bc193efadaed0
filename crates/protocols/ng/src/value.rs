//! The tree of a body, and its two encodings.

use crate::error::{Fault, ParseError};
use crate::{bencode, json};
use std::borrow::Cow;

/// Lists and dictionaries inside each other.
pub const MAX_DEPTH: usize = 32;
/// Values and keys of one body.
pub const MAX_ELEMENTS: usize = 16_384;

/// How a body is written. rtpengine answers in the encoding of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Bencode,
    Json,
}

/// One value. A dictionary keeps the order of its keys, which are not sorted in this protocol.
///
/// JSON has more kinds of value. `true`, `false`, `null` and numbers that are not whole are texts here; rtpengine sends and reads none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a, I = i64> {
    Integer(I),
    Text(Cow<'a, [u8]>),
    List(Vec<Value<'a, I>>),
    Dictionary(Vec<(Cow<'a, [u8]>, Value<'a, I>)>),
}

/// An integer and where its digits stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub value: i64,
    pub at: usize,
    pub len: usize,
}

impl From<Placed> for i64 {
    fn from(placed: Placed) -> Self {
        placed.value
    }
}

impl<'a, I> Value<'a, I> {
    /// The value of the first key of this name.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value<'a, I>> {
        self.dictionary()
            .iter()
            .find(|(name, _)| name.as_ref() == key.as_bytes())
            .map(|(_, value)| value)
    }

    #[must_use]
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list; nothing for anything else.
    #[must_use]
    pub fn list(&self) -> &[Value<'a, I>] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The entries of a dictionary in their order; nothing for anything else.
    #[must_use]
    pub fn dictionary(&self) -> &[(Cow<'a, [u8]>, Value<'a, I>)] {
        match self {
            Self::Dictionary(entries) => entries,
            _ => &[],
        }
    }

    #[must_use]
    pub fn is_dictionary(&self) -> bool {
        matches!(self, Self::Dictionary(_))
    }
}

impl Value<'_> {
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// A number as rtpengine reads it: an integer, or a text of digits.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            Self::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// How much of a body may still be read.
pub(crate) struct Budget {
    elements: usize,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { elements: MAX_ELEMENTS }
    }

    pub(crate) fn take(&mut self, at: usize) -> Result<(), ParseError> {
        self.elements = self.elements.checked_sub(1).ok_or(ParseError::new(Fault::Elements, at))?;
        Ok(())
    }
}

/// Read a body. What follows a bencode dictionary is not looked at, as in rtpengine: some clients send a line end.
///
/// # Errors
/// It is no dictionary in either encoding, or over a limit.
pub fn decode(body: &[u8]) -> Result<(Encoding, Value<'_>), ParseError> {
    decode_as(body)
}

pub(crate) fn decode_as<I: From<Placed>>(body: &[u8]) -> Result<(Encoding, Value<'_, I>), ParseError> {
    match encoding_of(body)? {
        Encoding::Bencode => Ok((Encoding::Bencode, bencode::parse(body)?)),
        Encoding::Json => Ok((Encoding::Json, json::parse(body)?)),
    }
}

/// By the first byte, as rtpengine tells them apart.
pub(crate) fn encoding_of(body: &[u8]) -> Result<Encoding, ParseError> {
    match body.first() {
        Some(b'd') => Ok(Encoding::Bencode),
        Some(b'{') => Ok(Encoding::Json),
        _ => Err(ParseError::new(Fault::Format, 0)),
    }
}

/// Write a body. In JSON, bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn encode(value: &Value<'_>, encoding: Encoding) -> Vec<u8> {
    let mut out = Vec::new();
    match encoding {
        Encoding::Bencode => bencode::write(value, &mut out),
        Encoding::Json => json::write(value, &mut out),
    }
    out
}
