//! RTCP compounds, walked item by item.
//!
//! The first header alone does not classify a packet: browsers send RR+REMB+XR, NACK+REMB and PLI+REMB, reduced-size (RFC 5506), so what
//! comes first may be any of them.

mod build;
mod read;
mod ssrcs;

pub use build::{bye, fir, least_rate, nack, pli, receiver_report, remb};
pub use read::{KeyFrameRequest, LeastRate, Nack, Remb, Report, SenderInfo, Twcc};
pub use ssrcs::{media_ssrcs, rewrite_ssrcs};

use crate::bytes::u16_at;
use crate::error::{MediaError, What};
use std::ops::{BitOr, BitOrAssign};

pub(crate) const SR: u8 = 200;
pub(crate) const RR: u8 = 201;
pub(crate) const SDES: u8 = 202;
pub(crate) const BYE: u8 = 203;
pub(crate) const APP: u8 = 204;
pub(crate) const RTPFB: u8 = 205;
pub(crate) const PSFB: u8 = 206;
const XR: u8 = 207;
/// The name and the subtype of an APP packet of our own.
const SHUNT: &[u8; 4] = b"SHNT";
const LEAST_RATE: usize = 1;

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Sr = 1,
    Rr = 1 << 1,
    Sdes = 1 << 2,
    Bye = 1 << 3,
    App = 1 << 4,
    Nack = 1 << 5,
    Twcc = 1 << 6,
    Pli = 1 << 7,
    Fir = 1 << 8,
    Remb = 1 << 9,
    Xr = 1 << 10,
    Other = 1 << 11,
}

/// The kinds of a compound's items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    #[must_use]
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & kind as u16 != 0
    }
}

impl From<Kind> for Kinds {
    fn from(kind: Kind) -> Self {
        Self(kind as u16)
    }
}

impl BitOr for Kinds {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign<Kind> for Kinds {
    fn bitor_assign(&mut self, kind: Kind) {
        self.0 |= kind as u16;
    }
}

/// One RTCP packet of a compound. It is at least as long as its kind needs, so that reading its fields cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub kind: Kind,
    /// The five bits of the header: how many blocks, or which feedback format.
    pub count: u8,
    pub packet_type: u8,
    /// Offset in the compound.
    pub at: usize,
    /// With padding.
    pub bytes: &'a [u8],
    /// Without padding.
    pub(crate) content: &'a [u8],
}

/// The items of a compound. After an error there are no more.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    packet: &'a [u8],
    at: usize,
    done: bool,
}

/// Walk a compound.
#[must_use]
pub fn walk(packet: &[u8]) -> Walk<'_> {
    Walk {
        packet,
        at: 0,
        done: false,
    }
}

/// The union of the kinds of all items.
///
/// # Errors
/// An item is malformed.
pub fn classify(packet: &[u8]) -> Result<Kinds, MediaError> {
    let mut kinds = Kinds::default();
    for item in walk(packet) {
        kinds |= item?.kind;
    }
    Ok(kinds)
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Item<'a>, MediaError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || (self.at >= self.packet.len() && self.at > 0) {
            return None;
        }
        let item = item_at(self.packet, self.at);
        match item {
            Ok(item) => self.at += item.bytes.len(),
            Err(_) => self.done = true,
        }
        Some(item)
    }
}

fn item_at(packet: &[u8], at: usize) -> Result<Item<'_>, MediaError> {
    let rest = &packet[at..];
    let fail = |what| Err(MediaError::new(what, at));
    if rest.len() < 4 {
        return fail(What::RtcpShort);
    }
    let (first, packet_type) = (rest[0], rest[1]);
    if first >> 6 != 2 {
        return fail(What::RtcpVersion);
    }
    let Some(bytes) = rest.get(..4 * (usize::from(u16_at(rest, 2)) + 1)) else {
        return fail(What::RtcpLength);
    };
    if !(192..=223).contains(&packet_type) {
        return fail(What::RtcpType);
    }
    let mut content = bytes;
    if first & 0x20 != 0 {
        // RFC 3550 wants padding in whole words; Chromium pads TWCC by 1 to 3 bytes and says so in the last.
        let padding = usize::from(bytes[bytes.len() - 1]);
        if bytes.len() != rest.len() || padding == 0 || padding > bytes.len() - 4 {
            return fail(What::RtcpPadding);
        }
        content = &bytes[..bytes.len() - padding];
    }
    let count = first & 31;
    let kind = kind_of(packet_type, count, bytes);
    if content.len() < least(kind, count, bytes) {
        return fail(What::RtcpContent);
    }
    Ok(Item {
        kind,
        count,
        packet_type,
        at,
        bytes,
        content,
    })
}

fn kind_of(packet_type: u8, count: u8, bytes: &[u8]) -> Kind {
    match (packet_type, count) {
        (SR, _) => Kind::Sr,
        (RR, _) => Kind::Rr,
        (SDES, _) => Kind::Sdes,
        (BYE, _) => Kind::Bye,
        (APP, _) => Kind::App,
        (XR, _) => Kind::Xr,
        (RTPFB, 1) => Kind::Nack,
        (RTPFB, 15) => Kind::Twcc,
        (PSFB, 1) => Kind::Pli,
        (PSFB, 4) => Kind::Fir,
        (PSFB, 15) if bytes.len() >= 20 && &bytes[12..16] == b"REMB" => Kind::Remb,
        _ => Kind::Other,
    }
}

fn least(kind: Kind, count: u8, bytes: &[u8]) -> usize {
    let count = usize::from(count);
    match kind {
        Kind::Sr => 28 + 24 * count,
        Kind::Rr => 8 + 24 * count,
        Kind::Bye => 4 + 4 * count,
        Kind::Sdes => 4 + 8 * count,
        Kind::Nack => 16,
        Kind::Twcc | Kind::Fir => 20,
        Kind::Pli | Kind::App => 12,
        Kind::Remb => 20 + 4 * usize::from(bytes[16]),
        Kind::Xr => 8,
        Kind::Other => 4,
    }
}
