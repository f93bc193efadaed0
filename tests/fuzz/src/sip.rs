//! Copies of SIP messages: HEPv3 packets, and SIP with its SDP.

use shunt_hep::sip::{Message, Sdp};
use shunt_hep::{Packet, next_frame};

/// A HEP packet; what was read is written, and read to the same.
pub fn hep(data: &[u8]) {
    if let Ok(Some((frame, length))) = next_frame(data) {
        assert_eq!(frame.len(), length);
    }
    let Ok(packet) = Packet::decode(data) else { return };
    // Addresses of two IP versions, and payloads that are too long once they are inflated, cannot be written.
    let Ok(written) = packet.encode() else { return };
    assert_eq!(Packet::decode(&written).as_ref(), Ok(&packet));
}

/// A SIP message, however broken.
pub fn message(data: &[u8]) {
    let _ = Message::is_keepalive(data);
    if let Some(sdp) = Sdp::parse(data) {
        for media in &sdp.media {
            let _ = (media.rtp(), media.rtcp(), media.on_hold());
        }
    }
    let Ok(message) = Message::parse(data) else { return };
    assert!(!message.call_id().is_empty());
    let _ = (
        message.from_tag(),
        message.to_tag(),
        message.method(),
        message.status(),
        message.cseq(),
    );
    let _ = (message.via().and_then(|via| via.source()), message.vias(), message.record_routes());
    if let Some(sdp) = message.sdp() {
        assert!(sdp.media.iter().all(|media| media.rtp().is_none_or(|end| end.port > 0)));
    }
}
