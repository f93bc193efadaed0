//! The stream that one receiver gets: RTP with the mix's contributing sources (RFC 3550 section 7) and their levels (RFC 6465).

use crate::codec::Codec;
use crate::level::octet;

/// The CC field has four bits.
pub const CONTRIBUTING: usize = 15;
/// Frames in a second.
const FRAMES: u32 = 50;

/// A source that is in a mix, and its level, dBov.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contribution {
    pub ssrc: u32,
    pub level: f32,
}

#[derive(Clone, Debug)]
pub struct Output {
    pub ssrc: u32,
    pub codec: Codec,
    pub payload_type: u8,
    /// The id of the mixer-to-client level extension, where it was agreed on.
    pub levels_extension: Option<u8>,
    sequence: u16,
    timestamp: u32,
    begun: bool,
    /// Packets, and octets of their payload; they wrap, as in reports.
    pub packets: u32,
    pub octets: u32,
}

impl Output {
    /// Numbers begin where the SSRC says: it is random, and so they are.
    #[must_use]
    pub fn new(ssrc: u32, codec: Codec, payload_type: u8, levels_extension: Option<u8>) -> Self {
        let mixed = u64::from(ssrc).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bytes = mixed.to_be_bytes();
        Self {
            ssrc,
            codec,
            payload_type,
            levels_extension: levels_extension.filter(|id| (1..=14).contains(id)),
            sequence: u16::from_be_bytes([bytes[0] & 0x7F, bytes[1]]),
            timestamp: u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
            begun: false,
            packets: 0,
            octets: 0,
        }
    }

    /// The timestamp of the next frame.
    #[must_use]
    pub fn timestamp(&self) -> u32 {
        self.timestamp
    }

    /// A frame passes, with or without a packet.
    pub fn skip(&mut self) {
        self.timestamp = self.timestamp.wrapping_add(self.codec.clock_rate() / FRAMES);
    }

    /// The packet of a frame.
    pub fn packet(&mut self, payload: &[u8], contributing: &[Contribution], packet: &mut Vec<u8>) {
        let named = &contributing[..contributing.len().min(CONTRIBUTING)];
        let extension = self.levels_extension.filter(|_| !named.is_empty());
        packet.clear();
        packet.push(0x80 | if extension.is_some() { 0x10 } else { 0 } | named.len() as u8);
        packet.push(self.payload_type & 0x7F | if self.begun { 0 } else { 0x80 });
        packet.extend(self.sequence.to_be_bytes());
        packet.extend(self.timestamp.to_be_bytes());
        packet.extend(self.ssrc.to_be_bytes());
        named.iter().for_each(|one| packet.extend(one.ssrc.to_be_bytes()));
        if let Some(id) = extension {
            // One-byte form (RFC 8285 section 4.2): one element, and padding up to a word.
            let words = (1 + named.len()).div_ceil(4);
            packet.extend([0xBE, 0xDE, 0, words as u8]);
            let end = packet.len() + 4 * words;
            packet.push(id << 4 | (named.len() - 1) as u8);
            packet.extend(named.iter().map(|one| octet(one.level)));
            packet.resize(end, 0);
        }
        packet.extend_from_slice(payload);
        self.begun = true;
        self.packets = self.packets.wrapping_add(1);
        // Some hundred.
        self.octets = self.octets.wrapping_add(payload.len() as u32);
        self.sequence = self.sequence.wrapping_add(1);
        self.skip();
    }
}
