//! What a party's last SDP said of a media line. Many calls have the same formats: those are kept once.

use shunt_hep::sip::{Direction, SdpMedia};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Lists of formats that are remembered.
const MOST_KINDS: usize = 4096;

/// A media line of an SDP body (RFC 8866).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdp {
    pub kind: Arc<SdpKind>,
    pub address: Option<IpAddr>,
    /// 0: rejected.
    pub port: u16,
    pub direction: Direction,
    pub ptime_ms: Option<u16>,
    pub rtcp_mux: bool,
}

/// The medium and its formats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SdpKind {
    /// `audio`, `video`, …
    pub medium: Box<[u8]>,
    pub formats: Box<[SdpFormat]>,
}

/// A format of `a=rtpmap`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SdpFormat {
    pub payload_type: u8,
    pub encoding: Box<[u8]>,
    /// Hz.
    pub clock_rate: u32,
}

/// The lists of formats in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct SdpKinds {
    known: HashSet<Arc<SdpKind>>,
}

impl SdpKinds {
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

    pub(crate) fn shared(&mut self, kind: SdpKind) -> Arc<SdpKind> {
        if let Some(known) = self.known.get(&kind) {
            return Arc::clone(known);
        }
        if self.known.len() >= MOST_KINDS {
            self.known.clear();
        }
        let kind = Arc::new(kind);
        self.known.insert(Arc::clone(&kind));
        kind
    }
}
