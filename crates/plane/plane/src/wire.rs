//! Encodes protobuf messages of a fixed shape from templates, and reads fields in place.
//!
//! Updates of one table differ in a few values only. All other bytes are encoded once for each session.

use bytes::{BufMut, Bytes, BytesMut};

const LEN: u32 = 2;

/// The bytes of a message, with holes for later values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part<S> {
    bytes: Vec<u8>,
    holes: Vec<(usize, usize, S)>,
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

impl<S: Copy> Part<S> {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// Adds a number; zero adds nothing, as in proto3.
    pub(crate) fn number(mut self, tag: u32, value: u64) -> Self {
        if value != 0 {
            put_varint(&mut self.bytes, u64::from(tag << 3));
            put_varint(&mut self.bytes, value);
        }
        self
    }

    pub(crate) fn bytes(mut self, tag: u32, value: &[u8]) -> Self {
        self.head(tag, value.len());
        self.bytes.extend_from_slice(value);
        self
    }

    /// Adds a byte string of this size, to be filled in.
    pub(crate) fn hole(mut self, tag: u32, size: usize, slot: S) -> Self {
        self.head(tag, size);
        self.holes.push((self.bytes.len(), size, slot));
        self.bytes.resize(self.bytes.len() + size, 0);
        self
    }

    /// Adds an embedded message.
    pub(crate) fn message(mut self, tag: u32, inner: &Self) -> Self {
        self.head(tag, inner.bytes.len());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&inner.bytes);
        self.holes
            .extend(inner.holes.iter().map(|(offset, size, slot)| (at + offset, *size, *slot)));
        self
    }

    fn head(&mut self, tag: u32, size: usize) {
        put_varint(&mut self.bytes, u64::from(tag << 3 | LEN));
        put_varint(&mut self.bytes, size as u64);
    }

    /// Builds the message. `fill` writes the value of each hole, which is zero before.
    pub(crate) fn fill(&self, arena: &mut BytesMut, mut fill: impl FnMut(S, &mut [u8])) -> Bytes {
        arena.reserve(self.bytes.len());
        arena.put_slice(&self.bytes);
        for (offset, size, slot) in &self.holes {
            if let Some(hole) = arena.get_mut(*offset..offset + size) {
                fill(*slot, hole);
            }
        }
        arena.split().freeze()
    }
}

/// A field as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(crate) fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => &[],
        }
    }

    pub(crate) fn as_number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }
}

/// Error: the bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is no protobuf message")]
pub(crate) struct Malformed;

/// Iterates over the fields of a message, in order.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let head = self.varint()?;
        let tag = u32::try_from(head >> 3).map_err(|_| Malformed)?;
        let value = match head & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let count = self.varint()?;
                Value::Bytes(self.take(count)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return Err(Malformed),
        };
        Ok((tag, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_template_is_the_message_that_prost_makes() {
        use prost::Message as _;
        use shunt_bfrt::pb;
        let key = pb::TableKey {
            fields: vec![shunt_bfrt::values::exact(3, [7, 8]), shunt_bfrt::values::exact(4, [9])],
        };
        let template = Part::new()
            .message(1, &Part::new().number(1, 3).message(2, &Part::new().hole(1, 2, 'a')))
            .message(1, &Part::new().number(1, 4).message(2, &Part::new().hole(1, 1, 'b')));
        let mut arena = BytesMut::new();
        let filled = template.fill(&mut arena, |slot, hole| {
            hole.copy_from_slice(if slot == 'a' { &[7, 8] } else { &[9] })
        });
        assert_eq!(filled, key.encode_to_vec());
    }

    #[test]
    fn a_message_that_is_cut_off_is_malformed() {
        assert_eq!(Fields(&[0x0a, 5, 1]).next(), Some(Err(Malformed)));
        assert_eq!(Fields(&[0x08, 0xff]).next(), Some(Err(Malformed)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let fields: Vec<_> = Fields(&bytes).collect();
            // Only the last item can be an error.
            prop_assert!(fields.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
