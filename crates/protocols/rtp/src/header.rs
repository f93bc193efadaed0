//! RTP headers (RFC 3550 section 5.1).

use crate::bytes::{u16_at, u32_at, words};
use crate::error::{MediaError, What};
use crate::extension::Extension;

const FIXED: usize = 12;

/// Where a packet says it comes from: the fields that learning needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub ssrc: u32,
    pub sequence: u16,
}

impl Source {
    /// SSRC and sequence number of what looks like RTP: version 2, twelve bytes.
    #[must_use]
    pub fn of_rtp(packet: &[u8]) -> Option<Self> {
        let plausible = packet.len() >= FIXED && packet[0] >> 6 == 2;
        plausible.then(|| Self {
            ssrc: u32_at(packet, 8),
            sequence: u16_at(packet, 2),
        })
    }

    /// The sender's SSRC of what looks like RTCP: version 2, a packet type of RFC 5761, eight bytes. RTCP has no sequence number: 0.
    #[must_use]
    pub fn of_rtcp(packet: &[u8]) -> Option<Self> {
        let plausible = packet.len() >= 8 && packet[0] >> 6 == 2 && (192..=223).contains(&packet[1]);
        plausible.then(|| Self {
            ssrc: u32_at(packet, 4),
            sequence: 0,
        })
    }
}

/// An RTP header and where its packet's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The M bit.
    pub marker: bool,
    pub payload_type: u8,
    pub sequence: u16,
    pub timestamp: u32,
    pub ssrc: u32,
    csrcs: &'a [u8],
    pub extension: Option<Extension<'a>>,
    /// Without the padding.
    pub payload: &'a [u8],
    /// Offset of the payload in the packet.
    pub payload_at: usize,
}

impl<'a> Header<'a> {
    /// # Errors
    /// Not version 2, cut short, or padding longer than the payload.
    pub fn parse(packet: &'a [u8]) -> Result<Self, MediaError> {
        let size = packet.len();
        if size < FIXED {
            return Err(MediaError::new(What::RtpShort, size));
        }
        let first = packet[0];
        if first >> 6 != 2 {
            return Err(MediaError::new(What::RtpVersion, 0));
        }
        let mut at = FIXED + 4 * usize::from(first & 15);
        let csrcs = packet.get(FIXED..at).ok_or(MediaError::new(What::RtpShort, size))?;
        let mut extension = None;
        if first & 0x10 != 0 {
            if size < at + 4 {
                return Err(MediaError::new(What::RtpExtension, at));
            }
            let (start, end) = (at + 4, at + 4 + 4 * usize::from(u16_at(packet, at + 2)));
            let data = packet.get(start..end).ok_or(MediaError::new(What::RtpExtension, at))?;
            extension = Some(Extension {
                profile: u16_at(packet, at),
                data,
                at: start,
            });
            at = end;
        }
        let mut payload = &packet[at..];
        if first & 0x20 != 0 {
            let padding = payload.last().map_or(0, |last| usize::from(*last));
            if padding == 0 || padding > payload.len() {
                return Err(MediaError::new(What::RtpPadding, size - 1));
            }
            payload = &payload[..payload.len() - padding];
        }
        Ok(Self {
            marker: packet[1] & 0x80 != 0,
            payload_type: packet[1] & 0x7f,
            sequence: u16_at(packet, 2),
            timestamp: u32_at(packet, 4),
            ssrc: u32_at(packet, 8),
            csrcs,
            extension,
            payload,
            payload_at: at,
        })
    }

    /// The contributing sources of a mixer.
    pub fn csrcs(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        words(self.csrcs)
    }
}
