//! Network bytes as text: the one form that Call-IDs, tags and commands have in the API.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use thiserror::Error;

/// Bytes that mostly are UTF-8. In text a backslash is `\\`, and a byte outside UTF-8 is `\xNN`; all other characters are unchanged. Each
/// byte string has exactly one text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(pub Box<[u8]>);

/// Error: a text that encodes no bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("byte {0}: a backslash is followed by neither a backslash nor x and two hexadecimal digits")]
pub struct TextError(pub usize);

impl Text {
    /// Returns the first `most` bytes: events have a bounded size.
    #[must_use]
    pub fn cut(bytes: &[u8], most: usize) -> Self {
        Self(bytes[..bytes.len().min(most)].into())
    }

    /// Decodes a text.
    ///
    /// # Errors
    /// A backslash is not followed by a backslash or `xNN`.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        if !text.contains('\\') {
            return Ok(text.into());
        }
        let bytes = text.as_bytes();
        let mut found = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let (value, length) = match (byte, &bytes[at..]) {
                (b'\\', [_, b'\\', ..]) => (b'\\', 2),
                (b'\\', [_, b'x', high, low, ..]) => (
                    hexadecimal(*high)
                        .zip(hexadecimal(*low))
                        .map(|(high, low)| high << 4 | low)
                        .ok_or(TextError(at))?,
                    4,
                ),
                (b'\\', _) => return Err(TextError(at)),
                _ => (byte, 1),
            };
            found.push(value);
            at += length;
        }
        Ok(Self(found.into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_text(&self) -> Cow<'_, str> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.contains('\\') => Cow::Borrowed(text),
            _ => Cow::Owned(escaped(&self.0)),
        }
    }
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', r"\\"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_text())
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.as_text())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_byte_string_has_one_text(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = Text::from(bytes.as_slice());
            prop_assert_eq!(Text::parse(&text.as_text()), Ok(text));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\\\x0-9a-g]{0,12}") {
            if let Ok(read) = Text::parse(&text) {
                prop_assert!(read.0.len() <= text.len());
            }
        }
    }

    #[test]
    fn ordinary_text_stands_for_itself() {
        assert_eq!(
            Text::from("a84b4c76e66710@pc33.atlanta.com").as_text(),
            "a84b4c76e66710@pc33.atlanta.com"
        );
        assert_eq!(Text::from(&b"a\xff\\b"[..]).as_text(), r"a\xff\\b");
        assert_eq!(Text::parse(r"a\q"), Err(TextError(1)));
    }
}
