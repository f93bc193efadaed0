//! The mixer's own RTP stream: its packets, with the contributing sources of each (RFC 3550 sections 5.1 and 7.3).

/// Contributing sources that a packet can name.
pub const CONTRIBUTORS: usize = 15;
const FIXED: usize = 12;

/// A payload, and whose bits it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    pub octets: Vec<u8>,
    pub contributors: Vec<u32>,
}

/// What the packets of a stream have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub ssrc: u32,
    pub payload_type: u8,
    /// Of the first packet; random (RFC 3550 section 5.1).
    pub sequence: u16,
    /// At time 0; random.
    pub timestamp: u32,
    /// Octets of a packet at most, from the RTP header on: what the path carries less IP and UDP. At least 1100 for H.261, whose macroblocks
    /// are not cut.
    pub size: usize,
}

/// Octets of the RTP header of a packet with so many contributing sources.
#[must_use]
pub fn header_size(contributors: usize) -> usize {
    FIXED + 4 * contributors.min(CONTRIBUTORS)
}

impl Stream {
    /// The next packet of the stream.
    pub(crate) fn packet(&mut self, payload: &Payload, timestamp: u32, marker: bool) -> Vec<u8> {
        let contributors = &payload.contributors[..payload.contributors.len().min(CONTRIBUTORS)];
        let mut packet = Vec::with_capacity(header_size(contributors.len()) + payload.octets.len());
        // At most 15.
        #[allow(clippy::cast_possible_truncation)]
        packet.extend([0x80 | contributors.len() as u8, u8::from(marker) << 7 | self.payload_type & 0x7F]);
        packet.extend(self.sequence.to_be_bytes());
        packet.extend(timestamp.to_be_bytes());
        packet.extend(self.ssrc.to_be_bytes());
        packet.extend(contributors.iter().flat_map(|contributor| contributor.to_be_bytes()));
        packet.extend_from_slice(&payload.octets);
        self.sequence = self.sequence.wrapping_add(1);
        packet
    }
}
