//! Tags with the index of their media line: `tag;1`.

use crate::words::number;
use std::fmt;

/// A From or To tag as a command has it. The media index counts from 1, in the order of the SDP's m= lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag<'a> {
    /// As sent, with the index.
    pub raw: &'a [u8],
    /// Without the index.
    pub name: &'a [u8],
    pub media: Option<u32>,
}

impl<'a> Tag<'a> {
    /// Only plain decimal numbers of up to five digits are an index; anything else belongs to the tag.
    #[must_use]
    pub fn parse(raw: &'a [u8]) -> Self {
        if let Some(at) = raw.iter().rposition(|&byte| byte == b';') {
            let digits = &raw[at + 1..];
            let canonical = digits.first() != Some(&b'0') || digits.len() == 1;
            if let Some(media) = number(digits, 5)
                .filter(|_| canonical)
                .and_then(|number| u32::try_from(number).ok())
            {
                let name = &raw[..at];
                return Self {
                    raw,
                    name,
                    media: Some(media),
                };
            }
        }
        Self {
            raw,
            name: raw,
            media: None,
        }
    }
}

impl fmt::Debug for Tag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({})", self.raw.escape_ascii())
    }
}
