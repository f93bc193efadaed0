//! Layers told by the payload itself: VP8 (RFC 7741) and VP9 (RFC 9628) payload descriptors; and by frame marking (RFC 9626).

use crate::error::{MediaError, What};

/// A VP8 payload descriptor (RFC 7741 section 4.2). `None`: not in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vp8 {
    /// First packet of a frame (partition 0).
    pub start: bool,
    /// A key frame begins here.
    pub key: bool,
    /// No other frame depends on it (N).
    pub discardable: bool,
    /// 7 or 15 bits.
    pub picture_id: Option<u16>,
    pub tl0_picture: Option<u8>,
    pub temporal: Option<u8>,
    /// It depends on the base layer only (Y).
    pub sync: bool,
    /// Octets of the descriptor.
    pub size: usize,
}

/// A VP9 payload descriptor (RFC 9628 section 4.2). `None`: not in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vp9 {
    pub start: bool,
    pub end: bool,
    /// Inter-picture predicted (P).
    pub predicted: bool,
    /// 7 or 15 bits.
    pub picture_id: Option<u16>,
    pub temporal: Option<u8>,
    pub spatial: Option<u8>,
    /// Switching up point (U).
    pub switching: bool,
    pub tl0_picture: Option<u8>,
    /// Octets of the descriptor.
    pub size: usize,
}

/// A frame marking element (RFC 9626 section 3); the short form, one octet, has no layer id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMark {
    pub start: bool,
    pub end: bool,
    pub independent: bool,
    pub discardable: bool,
    /// It depends on the base layer only (B).
    pub base_sync: bool,
    pub temporal: u8,
    pub layer: Option<u8>,
    pub tl0_picture: Option<u8>,
}

/// Takes octets from the front.
struct Octets<'a> {
    data: &'a [u8],
    at: usize,
}

impl Octets<'_> {
    fn take(&mut self) -> Result<u8, MediaError> {
        let octet = self
            .data
            .get(self.at)
            .copied()
            .ok_or(MediaError::new(What::PayloadDescriptor, self.at))?;
        self.at += 1;
        Ok(octet)
    }

    /// 7 bits, or 15 when the first bit is set.
    fn picture_id(&mut self) -> Result<u16, MediaError> {
        let first = u16::from(self.take()?);
        if first & 0x80 == 0 {
            return Ok(first);
        }
        Ok((first & 0x7F) << 8 | u16::from(self.take()?))
    }
}

impl Vp8 {
    /// The descriptor at the start of a payload, and whether a key frame begins.
    ///
    /// # Errors
    /// It is cut short.
    pub fn parse(payload: &[u8]) -> Result<Self, MediaError> {
        let mut data = Octets { data: payload, at: 0 };
        let first = data.take()?;
        let extended = if first & 0x80 != 0 { data.take()? } else { 0 };
        let picture_id = (extended & 0x80 != 0).then(|| data.picture_id()).transpose()?;
        let tl0_picture = (extended & 0x40 != 0).then(|| data.take()).transpose()?;
        let (mut temporal, mut sync) = (None, false);
        if extended & 0x30 != 0 {
            let layer = data.take()?;
            if extended & 0x20 != 0 {
                (temporal, sync) = (Some(layer >> 6), layer & 0x20 != 0);
            }
        }
        let start = first & 0x10 != 0 && first & 0x07 == 0;
        let size = data.at;
        Ok(Self {
            start,
            key: start && payload.get(size).is_some_and(|octet| octet & 1 == 0),
            discardable: first & 0x20 != 0,
            picture_id,
            tl0_picture,
            temporal,
            sync,
            size,
        })
    }
}

impl Vp9 {
    /// The descriptor at the start of a payload.
    ///
    /// # Errors
    /// It is cut short, or names more than three reference frames.
    pub fn parse(payload: &[u8]) -> Result<Self, MediaError> {
        let mut data = Octets { data: payload, at: 0 };
        let first = data.take()?;
        let picture_id = (first & 0x80 != 0).then(|| data.picture_id()).transpose()?;
        let flexible = first & 0x10 != 0;
        let mut found = Self {
            start: first & 0x08 != 0,
            end: first & 0x04 != 0,
            predicted: first & 0x40 != 0,
            picture_id,
            temporal: None,
            spatial: None,
            switching: false,
            tl0_picture: None,
            size: 0,
        };
        if first & 0x20 != 0 {
            let layer = data.take()?;
            found.temporal = Some(layer >> 5);
            found.spatial = Some(layer >> 1 & 7);
            found.switching = layer & 0x10 != 0;
            if !flexible {
                found.tl0_picture = Some(data.take()?);
            }
        }
        if flexible && found.predicted {
            references(&mut data)?;
        }
        if first & 0x02 != 0 {
            scalability(&mut data)?;
        }
        found.size = data.at;
        Ok(found)
    }
}

fn references(data: &mut Octets) -> Result<(), MediaError> {
    for _ in 0..3 {
        if data.take()? & 1 == 0 {
            return Ok(());
        }
    }
    Err(MediaError::new(What::References, data.at))
}

/// Skip a scalability structure.
fn scalability(data: &mut Octets) -> Result<(), MediaError> {
    let first = data.take()?;
    if first & 0x10 != 0 {
        for _ in 0..4 * ((first >> 5) + 1) {
            data.take()?;
        }
    }
    if first & 0x08 != 0 {
        for _ in 0..data.take()? {
            for _ in 0..data.take()? >> 2 & 3 {
                data.take()?;
            }
        }
    }
    Ok(())
}

impl FrameMark {
    /// # Errors
    /// An element that has not 1 to 3 octets.
    pub fn parse(data: &[u8]) -> Result<Self, MediaError> {
        let (Some(first), true) = (data.first(), data.len() <= 3) else {
            return Err(MediaError::new(What::FrameMark, data.len()));
        };
        Ok(Self {
            start: first & 0x80 != 0,
            end: first & 0x40 != 0,
            independent: first & 0x20 != 0,
            discardable: first & 0x10 != 0,
            base_sync: first & 0x08 != 0,
            temporal: first & 7,
            layer: data.get(1).copied(),
            tl0_picture: data.get(2).copied(),
        })
    }
}
