//! Reception, presentation, framing, limits, plain packets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::{
    Coding, Frames, Limit, Limits, MOST_FRAME, Plain, Presentation, Reception, Sent, cname, cname_item, head, ntp_of_unix, sender_report,
    starts_key_frame,
};
use shunt_rtp::rtcp::{SenderInfo, walk};
use shunt_rtp::{Header, Packet, demux};
use std::time::Duration;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Loss is counted from the restart on, and none of the numbers between is requested.
#[test]
fn a_sender_that_steps_back_has_lost_nothing() {
    let mut stream = Reception::new(1, 1000);
    let mut now = 0;
    for number in (1000..1600u16).chain(1200..1900) {
        now += 20;
        stream.packet(ms(now), number, u32::try_from(now).unwrap() * 8, 8000);
        assert_eq!(stream.due(ms(now)), Vec::<u16>::new());
    }
    assert_eq!(stream.lost(), 0);
}

#[test]
fn what_is_missing_is_asked_for_a_few_times() {
    let mut stream = Reception::new(7, 65_534);
    for (at, sequence) in [(0, 65_534), (20, 65_535), (40, 2)] {
        stream.packet(ms(at), sequence, 0, 48_000);
    }
    assert_eq!(stream.due(ms(40)), [], "it may only be late");
    assert_eq!(stream.due(ms(50)), [0, 1]);
    assert_eq!(stream.due(ms(60)), [], "the answer takes a while");
    stream.packet(ms(70), 0, 0, 48_000);
    assert_eq!((stream.repaired, stream.lost()), (1, 1));
    let again: Vec<Vec<u16>> = (0..10)
        .map(|n| stream.due(ms(100 + 50 * n)))
        .filter(|due| !due.is_empty())
        .collect();
    assert_eq!(again, [[1], [1], [1]], "and then no more");
    assert_eq!(stream.next_due(), None);
}

#[test]
fn a_report_says_what_was_lost_since_the_last() {
    let mut stream = Reception::new(7, 100);
    for sequence in (100..200).filter(|sequence| sequence % 4 != 0 || *sequence == 100) {
        stream.packet(ms(0), sequence, 0, 90_000);
    }
    stream.sender_report(ms(0), 0x0001_0002_0003_0004);
    let report = stream.block(ms(500));
    assert_eq!(
        (report.cumulative_lost, report.highest_sequence, report.lsr),
        (24, 199, 0x0002_0003)
    );
    assert_eq!((report.fraction_lost, report.dlsr), (61, 32_768));
    for sequence in 200..210 {
        stream.packet(ms(600), sequence, 0, 90_000);
    }
    assert_eq!(stream.block(ms(700)).fraction_lost, 0);
}

#[test]
fn audio_and_video_of_one_sender_have_one_clock() {
    let mut senders = Presentation::default();
    let ntp = |seconds: f64| ntp_of_unix(Duration::from_secs_f64(1_700_000_000.0 + seconds));
    senders.report(ms(5000), 1, ntp(0.0), 48_000);
    assert_eq!(senders.sampled(ms(5000), 1, 48_000, 48_000), None, "whose it is is not known");
    senders.cname(ms(5000), 1, "ann");
    senders.report(ms(5040), 2, ntp(0.1), 900);
    senders.cname(ms(5040), 2, "ann");
    let audio = senders.sampled(ms(5200), 1, 48_000 + 4800, 48_000).unwrap();
    let video = senders.sampled(ms(5200), 2, 900, 90_000).unwrap();
    assert!(
        audio.abs_diff(video) < ms(1),
        "both were sampled 100 ms after the first report: {audio:?}, {video:?}"
    );
    assert!(audio < ms(5200));
    senders.report(ms(6000), 2, ntp(5000.0), 900);
    assert_eq!(senders.sampled(ms(6000), 2, 900, 90_000), None, "a clock that was set says nothing");
}

#[test]
fn rtcp_of_our_own_is_read_by_the_others() {
    let info = SenderInfo {
        ssrc: 1,
        ntp: 2 << 32 | 3,
        rtp: 4,
        packets: 5,
        octets: 6,
    };
    let mut compound = sender_report(&info);
    compound.extend(cname_item(1, "a-name"));
    assert_eq!(demux(&compound), Packet::Rtcp);
    let items: Vec<_> = walk(&compound).map(Result::unwrap).collect();
    assert_eq!(items[0].sender_info(), Some(info));
    assert_eq!(cname(&items[1]), Some((1, "a-name")));
}

#[test]
fn frames_come_out_as_they_went_in() {
    let packets = [vec![1; 3], vec![], vec![2; 1500]];
    let stream: Vec<u8> = packets
        .iter()
        .flat_map(|packet| [&head(packet).unwrap()[..], packet].concat())
        .collect();
    let mut frames = Frames::default();
    let mut out = Vec::new();
    for piece in stream.chunks(7) {
        frames.push(piece);
        while let Some(packet) = frames.take().unwrap() {
            out.push(packet.to_vec());
        }
    }
    assert_eq!(out, packets);
    frames.push(&u16::try_from(MOST_FRAME + 1).unwrap().to_be_bytes());
    assert!(frames.take().is_err());
}

#[test]
fn an_address_that_has_shown_no_key_may_send_so_much() {
    let mut limit = Limit::new(Limits {
        rate: 10.0,
        burst: 20.0,
        addresses: 2,
    });
    let address = |text: &str| text.parse().unwrap();
    let admitted = (0..50).filter(|_| limit.admits(ms(0), address("192.0.2.1"))).count();
    assert_eq!(admitted, 20);
    assert!(limit.admits(ms(100), address("192.0.2.1")));
    assert!(!limit.admits(ms(100), address("192.0.2.1")));
    assert!(limit.admits(ms(100), address("2001:db8::1")));
    assert!(limit.admits(ms(100), address("2001:db8::2")), "a network is one address");
    assert!(!limit.admits(ms(100), address("192.0.2.3")), "as many are remembered as may be");
    assert!(limit.admits(ms(10_000), address("192.0.2.3")), "the others have been silent");
    assert_eq!(limit.addresses(), 1);
}

#[test]
fn key_frames_are_told_by_their_first_packet() {
    for (coding, payload, key) in [
        (Coding::Vp8, &[0x10, 0x00][..], true),
        (Coding::Vp8, &[0x10, 0x01], false),
        (Coding::Vp8, &[0x00, 0x00], false),
        (Coding::H264, &[0x65], true),
        (Coding::H264, &[0x41], false),
        (Coding::H264, &[24, 0, 1, 0x09, 0, 2, 0x67, 0], true),
        (Coding::H264, &[24, 0, 9], false),
        (Coding::H264, &[28, 0x85], true),
        (Coding::H264, &[28, 0x05], false),
        (Coding::Av1, &[0x18], true),
        (Coding::Av1, &[0x10], false),
        (Coding::Vp9, &[0x08, 0], true),
        (Coding::Vp9, &[0x48, 0], false),
    ] {
        assert_eq!(starts_key_frame(coding, payload), key, "{coding:?} {payload:?}");
    }
}

#[test]
fn sent_packets_are_kept_for_a_while() {
    let mut sent = Sent::new(1);
    sent.slot(3).extend_from_slice(b"three");
    assert_eq!(sent.packet(3), Some(&b"three"[..]));
    assert_eq!(sent.packet(4), None);
    sent.slot(3 + 512).extend_from_slice(b"later");
    assert_eq!(sent.packet(3), None);
}

proptest! {
    /// Plain packets read back as they were meant, with extensions of either form.
    #[test]
    fn plain_packets_read_back(
        marker: bool, payload_type in 0u8..128, sequence: u16, timestamp: u32, ssrc: u32,
        elements in proptest::collection::vec((1u8..=14, proptest::collection::vec(any::<u8>(), 0..40)), 0..4),
        payload in proptest::collection::vec(any::<u8>(), 1..100),
    ) {
        let borrowed: Vec<(u8, &[u8])> = elements.iter().map(|(id, data)| (*id, data.as_slice())).collect();
        let mut packet = Vec::new();
        Plain { marker, payload_type, sequence, timestamp, ssrc, elements: &borrowed, payload: &payload }.write(&mut packet);
        let header = Header::parse(&packet).unwrap();
        prop_assert_eq!((header.marker, header.payload_type, header.sequence), (marker, payload_type, sequence));
        prop_assert_eq!((header.timestamp, header.ssrc, header.payload), (timestamp, ssrc, payload.as_slice()));
        let read: Vec<(u8, Vec<u8>)> = header.extension.map(|extension| {
            extension.elements().map(|element| { let element = element.unwrap(); (element.id, element.data.to_vec()) }).collect()
        }).unwrap_or_default();
        prop_assert_eq!(read, elements);
    }

    /// Nothing that comes as a stream, as RTCP or as a payload ends in anything but a value.
    #[test]
    fn anything_may_come(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut frames = Frames::default();
        frames.push(&bytes);
        while let Ok(Some(_)) = frames.take() {}
        for item in walk(&bytes).flatten() {
            let _ = cname(&item);
        }
        for coding in [Coding::Vp8, Coding::Vp9, Coding::H264, Coding::Av1] {
            let _ = starts_key_frame(coding, &bytes);
        }
    }

    /// Numbers in any order give reports, and requests, of sane size.
    #[test]
    fn reception_takes_any_order(numbers in proptest::collection::vec((any::<u16>(), any::<u32>(), 0u64..100), 1..100)) {
        let mut stream = Reception::new(1, numbers[0].0);
        let mut now = 0;
        for (sequence, timestamp, pause) in numbers {
            now += pause;
            stream.packet(ms(now), sequence, timestamp, 90_000);
            prop_assert!(stream.due(ms(now)).len() <= 128);
            let _ = stream.block(ms(now));
        }
    }
}
