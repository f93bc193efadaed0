//! Packets of phones and browsers: RTP with the descriptors of video layers, RTCP, STUN.

use shunt_rtp::descriptor::{Descriptor, LayerTable, Mandatory, has_structure};
use shunt_rtp::payload::{FrameMark, Vp8, Vp9};
use shunt_rtp::rtcp::{classify, media_ssrcs, rewrite_ssrcs, walk};
use shunt_rtp::stun::Message;
use shunt_rtp::{Header, Source, demux};

/// A dependency descriptor of Chromium with the structure of L1T3.
const DESCRIPTOR: [u8; 22] = [
    0xc0, 0x00, 0x01, 0x80, 0x02, 0x14, 0xea, 0xa8, 0x60, 0x41, 0x4d, 0x14, 0x10, 0x20, 0x84, 0x27, 0x02, 0x7f, 0x01, 0x67, 0x00, 0x00,
];

/// Header, extensions, and every kind of descriptor that packets of a conference carry.
pub fn rtp(data: &[u8]) {
    let _ = (demux(data), Source::of_rtp(data), Source::of_rtcp(data));
    let mut elements = vec![data];
    if let Ok(header) = Header::parse(data) {
        assert!(header.csrcs().len() <= 15);
        elements = header
            .extension
            .iter()
            .flat_map(|extension| extension.elements())
            .filter_map(Result::ok)
            .map(|element| element.data)
            .collect();
        elements.push(header.payload);
    }
    let known = Descriptor::parse(&DESCRIPTOR[..20], None)
        .ok()
        .and_then(|descriptor| descriptor.structure);
    for element in elements {
        let _ = (
            Vp8::parse(element),
            Vp9::parse(element),
            FrameMark::parse(element),
            Mandatory::parse(element),
            has_structure(element),
        );
        let Ok(descriptor) = Descriptor::parse(element, known.as_ref()) else {
            continue;
        };
        if let Some(structure) = descriptor.structure {
            let mut table = LayerTable::default();
            assert!(table.see(structure).keys().all(|id| *id < 64));
        }
    }
}

/// A compound of RTCP: taken apart, its SSRCs replaced; what goes on can be read again.
pub fn rtcp(data: &[u8]) {
    let kinds = classify(data);
    for item in walk(data).map_while(Result::ok) {
        let _ = (item.sender_ssrc(), item.sender_info(), item.twcc(), media_ssrcs(&item));
        let _ = (item.reports().count(), item.key_frame_requests().count(), item.byes().len());
        let _ = item.least_rate();
        let _ = (
            item.remb().map(|remb| remb.ssrcs().len()),
            item.nack().map(|nack| nack.lost().count()),
        );
    }
    let mut rewritten = data.to_vec();
    if rewrite_ssrcs(&mut rewritten, |ssrc| (ssrc == 1).then_some(2)).is_ok() {
        assert_eq!(classify(&rewritten), kinds);
    }
}

/// A STUN message with its attributes.
pub fn stun(data: &[u8]) {
    let Ok(message) = Message::parse(data) else { return };
    assert!(message.attributes().all(|(_, value)| value.len() <= data.len()));
}
