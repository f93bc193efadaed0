//! STUN messages (RFC 8489 section 5), recognised and read. Integrity is not checked here.

use crate::bytes::{u16_at, u32_at};
use crate::error::{MediaError, What};

const HEADER: usize = 20;
const MAGIC: u32 = 0x2112_A442;

/// What kind of message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Request,
    Indication,
    Success,
    Error,
}

/// A STUN message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub class: Class,
    /// 1: Binding.
    pub method: u16,
    pub transaction: [u8; 12],
    attributes: &'a [u8],
}

impl<'a> Message<'a> {
    /// # Errors
    /// No magic cookie, or the length is not that of the packet.
    pub fn parse(packet: &'a [u8]) -> Result<Self, MediaError> {
        let Some(transaction) = packet.get(8..HEADER).and_then(|bytes| <[u8; 12]>::try_from(bytes).ok()) else {
            return Err(MediaError::new(What::StunShort, packet.len()));
        };
        let kind = u16_at(packet, 0);
        if kind >> 14 != 0 || u32_at(packet, 4) != MAGIC {
            return Err(MediaError::new(What::Stun, 0));
        }
        let attributes = &packet[HEADER..];
        if usize::from(u16_at(packet, 2)) != attributes.len() || !attributes.len().is_multiple_of(4) {
            return Err(MediaError::new(What::StunLength, 2));
        }
        let class = match (kind >> 8 & 1, kind >> 4 & 1) {
            (0, 0) => Class::Request,
            (0, _) => Class::Indication,
            (_, 0) => Class::Success,
            _ => Class::Error,
        };
        let method = kind & 0xF | kind >> 1 & 0x70 | kind >> 2 & 0xF80;
        Ok(Self {
            class,
            method,
            transaction,
            attributes,
        })
    }

    /// The attributes as (type, value), in their order; it ends at the first that goes beyond the message.
    pub fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.attributes;
        std::iter::from_fn(move || {
            let length = usize::from(u16_at(rest, 2));
            let value = rest.get(4..4 + length)?;
            let kind = u16_at(rest, 0);
            rest = rest.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        })
    }
}
