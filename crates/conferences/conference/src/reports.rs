//! Selects RTCP to forward: a sender's reports to all receivers of its medium, a receiver's requests to the sender that they name.
//!
//! RTCP is forwarded in the same call, so a sender report is delayed only by the call's own duration.

use shunt_rtp::MediaError;
use shunt_rtp::rtcp::{Kind, walk};

/// Header of an SR: version 2, no report blocks, six more words.
const BARE_SR: [u8; 4] = [0x80, 200, 0, 6];

/// Returns the parts of a sender's compound for its receivers: SDES, BYE, and sender reports without report blocks, which concern streams
/// that the sender receives. Empty if there are none. `carried`: whether a stream with this SSRC has receivers.
///
/// # Errors
/// The compound is malformed.
pub fn for_receivers(packet: &[u8], carried: impl Fn(u32) -> bool) -> Result<Vec<u8>, MediaError> {
    let mut out = Vec::new();
    for item in walk(packet) {
        let item = item?;
        let ssrc = item.bytes.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        if !ssrc.is_some_and(&carried) {
            continue;
        }
        match item.kind {
            Kind::Sr => {
                out.extend(BARE_SR);
                out.extend(item.bytes.get(4..28).unwrap_or_default());
            }
            Kind::Sdes | Kind::Bye => out.extend(item.bytes),
            _ => {}
        }
    }
    Ok(out)
}

/// A receiver's request to a stream's sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Packets by number, as the receiver knows them.
    Nack { ssrc: u32, lost: Vec<u16> },
    /// PLI or FIR.
    KeyFrame { ssrc: u32 },
}

/// Returns the requests in a receiver's compound.
///
/// # Errors
/// The compound is malformed.
pub fn requests(packet: &[u8]) -> Result<Vec<Request>, MediaError> {
    let mut found = Vec::new();
    for item in walk(packet) {
        let item = item?;
        if let Some(nack) = item.nack() {
            found.push(Request::Nack {
                ssrc: nack.media_ssrc,
                lost: nack.lost().collect(),
            });
        }
        found.extend(
            item.key_frame_requests()
                .map(|request| Request::KeyFrame { ssrc: request.media_ssrc }),
        );
    }
    Ok(found)
}
