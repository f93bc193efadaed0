//! A party's last SDP, as far as it describes a media line.

use crate::alike::Alike;
use shunt_hep::sip::{Direction, SdpMedia};
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;

/// A media line of an SDP body (RFC 8866).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdp {
    pub kind: Arc<SdpKind>,
    pub address: Option<IpAddr>,
    /// 0: the line is rejected.
    pub port: u16,
    pub direction: Direction,
    pub ptime_ms: Option<u16>,
    pub rtcp_mux: bool,
}

impl Sdp {
    /// Returns the address for RTP; `None`: none.
    pub(crate) fn rtp(&self) -> Option<Endpoint> {
        let address = self.address.filter(|address| !address.is_unspecified())?;
        (self.port != 0).then(|| Endpoint::new(address, self.port))
    }
}

/// The medium and its formats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SdpKind {
    /// `audio`, `video`, …
    pub medium: Box<[u8]>,
    pub formats: Box<[SdpFormat]>,
}

/// A format of an m= line: of `a=rtpmap`, else of the static payload types (RFC 3551 section 6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SdpFormat {
    pub payload_type: u8,
    pub encoding: Box<[u8]>,
    /// Hz.
    pub clock_rate: u32,
}

impl Alike<SdpKind> {
    pub(crate) fn line(&mut self, media: &SdpMedia) -> Sdp {
        let formats = media.formats.iter().map(|format| SdpFormat {
            payload_type: format.payload_type,
            encoding: format.name.into(),
            clock_rate: format.clock_rate,
        });
        let kind = SdpKind {
            medium: media.kind.into(),
            formats: formats.collect(),
        };
        Sdp {
            kind: self.shared(kind),
            address: media.address,
            port: media.port,
            direction: media.direction,
            ptime_ms: media.ptime.and_then(|ptime| u16::try_from(ptime).ok()),
            rtcp_mux: media.rtcp_mux,
        }
    }
}
