//! Packets on a byte stream, each after its length in two octets (RFC 4571 section 2).

/// The longest accepted packet; browsers send less than 1,500 octets.
pub const MOST: usize = 4096;

/// Returns the two octets before a packet; `None` if it is too long.
#[must_use]
pub fn head(packet: &[u8]) -> Option<[u8; 2]> {
    u16::try_from(packet.len()).ok().map(u16::to_be_bytes)
}

/// Error: the stream announces a packet longer than [`MOST`], so the rest is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} octets")]
pub struct TooLong(pub usize);

/// Extracts packets from a stream.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    at: usize,
}

impl Frames {
    /// Adds received octets. At most [`MOST`] + 2 are kept once [`Self::take`] has returned `None`.
    pub fn push(&mut self, octets: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(octets);
    }

    /// Returns the next complete packet.
    ///
    /// # Errors
    /// A packet is longer than [`MOST`].
    pub fn take(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let rest = &self.buffer[self.at..];
        let Some((head, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*head));
        if length > MOST {
            return Err(TooLong(length));
        }
        let Some(packet) = rest.get(..length) else { return Ok(None) };
        self.at += 2 + length;
        Ok(Some(packet))
    }
}
