//! Netlink messages whose body is kept as bytes: those of families that the packet libraries lack.

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

/// A message of any type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Raw {
    pub kind: u16,
    pub body: Vec<u8>,
}

impl NetlinkSerializable for Raw {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Raw {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

/// Returns the attributes of a message or of a nested attribute, with their types; a malformed rest is ignored.
pub(crate) fn attributes(mut data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` are not part of the type.
    const TYPE_MASK: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let (length, kind) = (u16_at(data, 0)?, u16_at(data, 2)?);
        let value = data.get(4..usize::from(length))?;
        data = data.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    })
}

/// Returns the first attribute of a type.
pub(crate) fn attribute(data: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(data).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Reads a big-endian number.
pub(crate) fn be32(data: &[u8], wanted: u16) -> Option<u32> {
    Some(u32::from_be_bytes(attribute(data, wanted)?.try_into().ok()?))
}

/// Reads a string, up to its terminating zero.
pub(crate) fn string(data: &[u8], wanted: u16) -> Option<String> {
    let bytes = attribute(data, wanted)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}
