//! Audio that a mixer gets: packets of four participants in any order and at any time.

use shunt_mix::codec::Codec;
use shunt_mix::room::{Described, Format, Mix, Name, Room};
use shunt_rtp::Header;
use std::collections::BTreeMap;

const CODECS: [(u8, Codec); 4] = [(0, Codec::Pcmu), (8, Codec::Pcma), (9, Codec::G722), (111, Codec::Opus)];

fn described() -> BTreeMap<Name, Described> {
    let all = CODECS.iter().zip(0_u32..).map(|((number, codec), at)| {
        let mut formats: Vec<(u8, Format)> = CODECS.iter().map(|(number, codec)| (*number, Format::Audio(*codec))).collect();
        formats.extend([(101, Format::Keys), (13, Format::Silence)]);
        let mix = Mix {
            ssrc: 9000 + at,
            codec: *codec,
            payload_type: *number,
            levels_extension: Some(2),
        };
        let one = Described {
            ssrcs: vec![at],
            formats,
            level_extension: Some(1),
            muted: false,
            mix: Some(mix),
        };
        (Name::from(format!("p{at}")), one)
    });
    all.collect()
}

/// Each packet begins with how long after the one before it comes (ms), whose it is and how long it is.
pub fn room(data: &[u8]) {
    let mut room = Room::default();
    room.describe(&described());
    let (mut now, mut rest) = (1_000_000_u64, data);
    let mut ticked = now;
    while let [step, whose, length, more @ ..] = rest {
        let (payload, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        now += u64::from(*step) * 1000;
        let mut packet = payload.to_vec();
        if packet.len() >= 12 && whose & 4 == 0 {
            packet[0] = 0x80 | packet[0] & 0x3F;
            packet[8..12].copy_from_slice(&u32::from(whose & 3).to_be_bytes());
        }
        let _ = room.packet(now, &packet);
        while ticked <= now {
            let done = room.tick(ticked, |_, packet| {
                assert!(Header::parse(packet).is_ok_and(|header| header.csrcs().len() <= 15))
            });
            assert!(done.is_ok_and(|done| done.sent == 4));
            ticked += 20_000;
        }
    }
}
