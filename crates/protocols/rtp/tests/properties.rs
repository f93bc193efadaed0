//! Any bytes: nothing panics; what is built reads back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_rtp::sequence::{Extender, distance, follows};
use shunt_rtp::stun::Message;
use shunt_rtp::{Header, Source, demux, rtcp};

fn recorded() -> Vec<Vec<u8>> {
    let lines = include_str!("data/chromium.txt").lines().filter(|line| !line.starts_with('#'));
    let hex = |word: &str| {
        (0..word.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&word[at..at + 2], 16).unwrap())
            .collect()
    };
    lines.map(|line| hex(line.split(' ').next_back().unwrap())).collect()
}

/// Noise, or a recorded packet with some bytes changed, cut or with more behind it.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let changed = (
        prop::sample::select(recorded()),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        0usize..40,
        any::<bool>(),
    )
        .prop_map(|(mut packet, changes, cut, longer)| {
            for (at, byte) in changes {
                let at = at.index(packet.len());
                packet[at] = byte;
            }
            if longer {
                packet.extend(vec![0x81; cut]);
            } else {
                packet.truncate(packet.len().saturating_sub(cut));
            }
            packet
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..100), changed]
}

fn read_everything(packet: &[u8]) {
    let _ = (demux(packet), Source::of_rtp(packet), Source::of_rtcp(packet));
    if let Ok(header) = Header::parse(packet) {
        let _ = header.csrcs().count();
        if let Some(extension) = header.extension {
            for element in extension.elements().filter_map(Result::ok) {
                assert_eq!(&packet[element.at..element.at + element.data.len()], element.data);
            }
            let _ = extension.find(3);
        }
    }
    if let Ok(message) = Message::parse(packet) {
        let _ = message.attributes().count();
    }
    for item in rtcp::walk(packet).filter_map(Result::ok) {
        let _ = (item.sender_ssrc(), item.sender_info(), item.twcc(), rtcp::media_ssrcs(&item));
        let _ = (item.reports().count(), item.byes().count(), item.key_frame_requests().count());
        let _ = item.least_rate();
        let _ = (
            item.nack().map(|nack| nack.lost().count()),
            item.remb().map(|remb| remb.ssrcs().count()),
        );
    }
    let mut copy = packet.to_vec();
    if rtcp::rewrite_ssrcs(&mut copy, |ssrc| Some(!ssrc)).is_err() {
        assert_eq!(copy, packet);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes(packet in packets()) {
        read_everything(&packet);
    }

    #[test]
    fn nack_round_trip(mut numbers in prop::collection::vec(any::<u16>(), 1..60)) {
        let packet = rtcp::nack(1, 2, numbers.iter().copied()).unwrap();
        let lost = |packet: &[u8]| rtcp::walk(packet).next().unwrap().unwrap().nack().unwrap().lost().collect::<Vec<_>>();
        let mut read = lost(&packet);
        read.sort_unstable();
        read.dedup();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(&read, &numbers);
        prop_assert_eq!(lost(&rtcp::nack(1, 2, numbers.iter().copied()).unwrap()), numbers);
    }

    #[test]
    fn remb_round_trip(bitrate in 0u64..1 << 45, ssrcs in prop::collection::vec(any::<u32>(), 0..6)) {
        let packet = rtcp::remb(1, bitrate, &ssrcs).unwrap();
        let remb = rtcp::walk(&packet).next().unwrap().unwrap().remb().unwrap();
        prop_assert_eq!(remb.ssrcs().collect::<Vec<_>>(), ssrcs);
        prop_assert!(remb.bitrate <= bitrate && bitrate - remb.bitrate <= bitrate >> 17);
    }

    #[test]
    fn a_number_within_the_gap_follows(start: u16, gap in 0u16..3000) {
        prop_assert!(follows(start.wrapping_add(gap), start, 3000, 100));
        prop_assert!(!follows(start.wrapping_add(30000), start, 3000, 100));
        prop_assert_eq!(distance(start.wrapping_add(gap), start), i32::from(gap));
    }

    #[test]
    fn extended_numbers_keep_their_low_bits_and_their_steps(start: u16, steps in prop::collection::vec(-3000i64..3000, 1..50)) {
        let mut extender = Extender::default();
        let mut at = extender.extend(start);
        for step in steps {
            let next = at + step;
            let extended = extender.extend(next.rem_euclid(65536).try_into().unwrap());
            prop_assert_eq!(extended, next);
            at = at.max(next);
        }
    }
}
