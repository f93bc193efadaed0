//! The fields of RTCP items.

use super::{Item, Kind, LEAST_RATE, SHUNT};
use crate::bytes::{u16_at, u32_at, u64_at, words};

/// A report block (RFC 3550 section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub ssrc: u32,
    /// Of 256.
    pub fraction_lost: u8,
    /// 24 bits, signed.
    pub cumulative_lost: i32,
    pub highest_sequence: u32,
    /// In units of the RTP clock.
    pub jitter: u32,
    /// The middle 32 bits of the last SR's NTP time.
    pub lsr: u32,
    /// Delay since that SR, in 1/65536 s.
    pub dlsr: u32,
}

/// The sender's part of an SR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderInfo {
    pub ssrc: u32,
    pub ntp: u64,
    pub rtp: u32,
    pub packets: u32,
    pub octets: u32,
}

/// A receiver's estimate (draft-alvestrand-rmcat-remb).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remb<'a> {
    pub sender_ssrc: u32,
    /// bit/s; what 64 bits do not hold is their largest.
    pub bitrate: u64,
    ssrcs: &'a [u8],
}

impl<'a> Remb<'a> {
    /// The streams that it is about.
    pub fn ssrcs(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        words(self.ssrcs)
    }
}

/// The lowest rate at which a stream can be of use to a receiver ([`least_rate`](super::least_rate)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastRate {
    pub media_ssrc: u32,
    /// bit/s.
    pub bitrate: u32,
}

/// A generic NACK (RFC 4585 section 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack<'a> {
    pub sender_ssrc: u32,
    pub media_ssrc: u32,
    entries: &'a [u8],
}

impl<'a> Nack<'a> {
    /// The missing sequence numbers, in the order of the packet.
    pub fn lost(&self) -> impl Iterator<Item = u16> + 'a {
        self.entries.chunks_exact(4).flat_map(|entry| {
            let (first, mask) = (u16_at(entry, 0), u16_at(entry, 2));
            let later = (0..16u16)
                .filter(move |bit| mask >> bit & 1 != 0)
                .map(move |bit| first.wrapping_add(bit + 1));
            std::iter::once(first).chain(later)
        })
    }
}

/// A wish for a key frame: PLI (RFC 4585 section 6.3.1), or one entry of a FIR (RFC 5104 section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFrameRequest {
    pub sender_ssrc: u32,
    pub media_ssrc: u32,
    /// The FIR's own number; `None` for a PLI.
    pub number: Option<u8>,
}

/// The head of transport-wide congestion feedback (draft-holmer-rmcat-transport-wide-cc-extensions-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twcc {
    pub sender_ssrc: u32,
    pub media_ssrc: u32,
    pub base_sequence: u16,
    /// How many packets it tells of.
    pub packets: u16,
    /// In 64 ms; 24 bits, signed.
    pub reference_time: i32,
    /// Counts the feedback packets.
    pub number: u8,
}

/// A signed number of 24 bits in the low bits of a word.
fn signed24(word: u32) -> i32 {
    i32::from_be_bytes((word << 8).to_be_bytes()) >> 8
}

impl<'a> Item<'a> {
    /// The SSRC of who sent the item; `None` where the kind has none there.
    #[must_use]
    pub fn sender_ssrc(&self) -> Option<u32> {
        (self.content.len() >= 8 && !matches!(self.kind, Kind::Sdes | Kind::Bye)).then(|| u32_at(self.content, 4))
    }

    /// The report blocks of an SR or RR.
    pub fn reports(&self) -> impl Iterator<Item = Report> + 'a {
        let blocks = match self.kind {
            Kind::Sr => &self.content[28..28 + 24 * usize::from(self.count)],
            Kind::Rr => &self.content[8..8 + 24 * usize::from(self.count)],
            _ => &[],
        };
        blocks.chunks_exact(24).map(|block| Report {
            ssrc: u32_at(block, 0),
            fraction_lost: block[4],
            cumulative_lost: signed24(u32_at(block, 4)),
            highest_sequence: u32_at(block, 8),
            jitter: u32_at(block, 12),
            lsr: u32_at(block, 16),
            dlsr: u32_at(block, 20),
        })
    }

    /// The sender's part of an SR.
    #[must_use]
    pub fn sender_info(&self) -> Option<SenderInfo> {
        let data = self.content;
        (self.kind == Kind::Sr).then(|| SenderInfo {
            ssrc: u32_at(data, 4),
            ntp: u64_at(data, 8),
            rtp: u32_at(data, 16),
            packets: u32_at(data, 20),
            octets: u32_at(data, 24),
        })
    }

    #[must_use]
    pub fn remb(&self) -> Option<Remb<'a>> {
        let data = self.content;
        (self.kind == Kind::Remb).then(|| {
            let mantissa = u64::from(u32_at(data, 16) & 0x3_FFFF);
            let exponent = u32::from(data[17] >> 2);
            let bitrate = if mantissa.leading_zeros() < exponent {
                u64::MAX
            } else {
                mantissa << exponent
            };
            Remb {
                sender_ssrc: u32_at(data, 4),
                bitrate,
                ssrcs: &data[20..20 + 4 * usize::from(data[16])],
            }
        })
    }

    #[must_use]
    pub fn least_rate(&self) -> Option<LeastRate> {
        let data = self.content;
        let ours = self.kind == Kind::App && usize::from(self.count) == LEAST_RATE && &data[8..12] == SHUNT && data.len() >= 20;
        ours.then(|| LeastRate {
            media_ssrc: u32_at(data, 12),
            bitrate: u32_at(data, 16),
        })
    }

    #[must_use]
    pub fn nack(&self) -> Option<Nack<'a>> {
        let data = self.content;
        (self.kind == Kind::Nack).then(|| Nack {
            sender_ssrc: u32_at(data, 4),
            media_ssrc: u32_at(data, 8),
            entries: &data[12..],
        })
    }

    #[must_use]
    pub fn twcc(&self) -> Option<Twcc> {
        let data = self.content;
        (self.kind == Kind::Twcc).then(|| Twcc {
            sender_ssrc: u32_at(data, 4),
            media_ssrc: u32_at(data, 8),
            base_sequence: u16_at(data, 12),
            packets: u16_at(data, 14),
            reference_time: signed24(u32_at(data, 16) >> 8),
            number: data[19],
        })
    }

    /// The wishes for key frames of a PLI or FIR.
    pub fn key_frame_requests(&self) -> impl Iterator<Item = KeyFrameRequest> + 'a {
        let (kind, data) = (self.kind, self.content);
        let entries = match kind {
            Kind::Pli => &data[4..12],
            Kind::Fir => &data[12..],
            _ => &[],
        };
        let sender_ssrc = u32_at(data, 4);
        entries.chunks_exact(8).map(move |entry| match kind {
            Kind::Pli => KeyFrameRequest {
                sender_ssrc,
                media_ssrc: u32_at(entry, 4),
                number: None,
            },
            _ => KeyFrameRequest {
                sender_ssrc,
                media_ssrc: u32_at(entry, 0),
                number: Some(entry[4]),
            },
        })
    }

    /// The SSRCs that leave with a BYE.
    pub fn byes(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        let end = if self.kind == Kind::Bye {
            4 + 4 * usize::from(self.count)
        } else {
            4
        };
        words(&self.content[4..end])
    }
}
