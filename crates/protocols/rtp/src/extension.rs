//! RTP header extensions in their one-byte and two-byte forms (RFC 8285 section 4).

use crate::error::{MediaError, What};

const ONE_BYTE: u16 = 0xBEDE;
/// The low four bits, "appbits", are anything.
const TWO_BYTE: u16 = 0x1000;

/// The header extension of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// The 16 bits that RFC 3550 leaves to the profile: 0xBEDE for the one-byte form.
    pub profile: u16,
    pub data: &'a [u8],
    /// Offset of the data in the packet.
    pub at: usize,
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// The local id of SDP's extmap.
    pub id: u8,
    pub data: &'a [u8],
    /// Offset of the data in the packet.
    pub at: usize,
}

impl<'a> Extension<'a> {
    /// The elements in the order of the wire; none where the profile is neither form.
    #[must_use]
    pub fn elements(&self) -> Elements<'a> {
        let known = self.profile == ONE_BYTE || self.profile & 0xFFF0 == TWO_BYTE;
        Elements {
            data: if known { self.data } else { &[] },
            one_byte: self.profile == ONE_BYTE,
            base: self.at,
            at: 0,
        }
    }

    /// The data of the first element with an id.
    ///
    /// # Errors
    /// An element before it goes beyond the extension.
    pub fn find(&self, id: u8) -> Result<Option<&'a [u8]>, MediaError> {
        for element in self.elements() {
            let element = element?;
            if element.id == id {
                return Ok(Some(element.data));
            }
        }
        Ok(None)
    }
}

/// Iterator over elements; it ends at the first that goes beyond the extension.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    data: &'a [u8],
    one_byte: bool,
    base: usize,
    at: usize,
}

impl<'a> Elements<'a> {
    /// Id, and where the element's data begins and ends.
    fn head(&self) -> Option<(u8, usize, usize)> {
        let first = *self.data.get(self.at)?;
        if self.one_byte {
            let start = self.at + 1;
            Some((first >> 4, start, start + usize::from(first & 15) + 1))
        } else {
            let start = self.at + 2;
            let length = self.data.get(self.at + 1).map_or(usize::MAX - start, |length| usize::from(*length));
            Some((first, start, start + length))
        }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, MediaError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // Padding may stand anywhere.
            while self.data.get(self.at) == Some(&0) {
                self.at += 1;
            }
            let (id, start, end) = self.head()?;
            if self.one_byte && id == 15 {
                // RFC 8285 section 4.2: the list ends here.
                self.at = self.data.len();
                return None;
            }
            let Some(data) = self.data.get(start..end) else {
                let at = self.base + self.at;
                self.at = self.data.len();
                return Some(Err(MediaError::new(What::Element, at)));
            };
            self.at = end;
            // Id 0 with a length is padding that carries data.
            if id != 0 {
                return Some(Ok(Element {
                    id,
                    data,
                    at: self.base + start,
                }));
            }
        }
    }
}
