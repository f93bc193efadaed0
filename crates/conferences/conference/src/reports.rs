//! Which RTCP goes where: reports of a sender to all who get its medium, requests of a receiver to the one sender that they name.
//!
//! Nothing here waits for anything: what comes in goes on in the same call, so a sender report is as late as the call is.

use shunt_rtp::MediaError;
use shunt_rtp::rtcp::{Kind, walk};

/// Version 2, no report blocks, SR, six more words.
const BARE_SR: [u8; 4] = [0x80, 200, 0, 6];

/// The items of a sender's compound that go to its receivers: sender reports without their report blocks, which are about its own receptions,
/// SDES and BYE. Empty where there are none. `carried`: whether a stream of this SSRC goes to anybody.
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

/// What a receiver asks of the sender of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Packets by their numbers, as the receiver knows them.
    Nack { ssrc: u32, lost: Vec<u16> },
    /// PLI or FIR.
    KeyFrame { ssrc: u32 },
}

/// The requests in a receiver's compound.
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
