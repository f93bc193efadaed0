//! RTCP: fields, building, rewriting, hostile lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_rtp::rtcp::{self, Item, KeyFrameRequest, Kind, LeastRate, Report, SenderInfo};
use shunt_rtp::{MediaError, What};

const TWCC: &str = "afcd0009fa17fa17c9a3f4fc000100110151850020118909081a1815011001080c0908090c014e01";
const SR_SDES_XR: &str = "80c800064831c2abeeabffeb0775c8d9c22b93f60000002000003ccc81ca00064831c2ab01103944304668477a31784d412b6a484664000080cf00054831c2ab0500000300000001ffeb044f000002fb";
const RR_REMB_XR: &str = "82c9000d00000001b1c24039000000000000066c000000570000000000000000a325f70700000000000064390000000000000000000000008fce0006000000010000000052454d42020f7017a325f707b1c2403980cf00040000000104000002eeabffd8510fa58f";

fn bytes(hex: &str) -> Vec<u8> {
    let hex: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    hex.chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

fn items(packet: &[u8]) -> Vec<Item<'_>> {
    rtcp::walk(packet).map(Result::unwrap).collect()
}

#[test]
fn fields_of_what_chromium_sent() {
    let packet = bytes(RR_REMB_XR);
    let [report, estimate, _] = items(&packet)[..] else { panic!() };
    let first = report.reports().next().unwrap();
    let expected = Report {
        ssrc: 0xB1C2_4039,
        fraction_lost: 0,
        cumulative_lost: 0,
        highest_sequence: 0x66C,
        jitter: 0x57,
        lsr: 0,
        dlsr: 0,
    };
    assert_eq!((first, report.reports().count()), (expected, 2));
    let remb = estimate.remb().unwrap();
    assert_eq!(
        (remb.sender_ssrc, remb.bitrate, remb.ssrcs().collect::<Vec<_>>()),
        (1, 1_802_424, vec![0xA325_F707, 0xB1C2_4039])
    );
    let packet = bytes(SR_SDES_XR);
    let sender = items(&packet)[0].sender_info().unwrap();
    let expected = SenderInfo {
        ssrc: 0x4831_C2AB,
        ntp: 0xEEAB_FFEB_0775_C8D9,
        rtp: 0xC22B_93F6,
        packets: 32,
        octets: 15564,
    };
    assert_eq!(sender, expected);
    let packet = bytes(TWCC);
    let twcc = items(&packet)[0].twcc().unwrap();
    assert_eq!(
        (twcc.sender_ssrc, twcc.media_ssrc, twcc.base_sequence, twcc.packets),
        (0xFA17_FA17, 0xC9A3_F4FC, 1, 17)
    );
    assert_eq!((twcc.reference_time, twcc.number), (0x0001_5185, 0));
}

#[test]
fn kinds_that_chromium_did_not_send() {
    for (hex, kind) in [
        ("81cb000100000007", Kind::Bye),
        ("84cc0002000000016e616d65", Kind::App),
        ("80d00000", Kind::Other),
    ] {
        assert_eq!(items(&bytes(hex))[0].kind, kind);
    }
    assert_eq!(items(&rtcp::fir(1, 2, 3))[0].kind, Kind::Fir);
    assert_eq!(items(&rtcp::nack(1, 2, [3]).unwrap())[0].kind, Kind::Nack);
}

#[test]
fn a_negative_loss_count_and_a_fir_of_two() {
    let block = Report {
        ssrc: 5,
        fraction_lost: 7,
        cumulative_lost: -3,
        highest_sequence: 0x10001,
        jitter: 9,
        lsr: 1,
        dlsr: 2,
    };
    let packet = rtcp::receiver_report(1, &[block]);
    assert_eq!(items(&packet)[0].reports().collect::<Vec<_>>(), [block]);
    let fir = bytes("84ce0006 00000001 00000000 0000000a05000000 0000000b06000000");
    let request = |media_ssrc, number| KeyFrameRequest {
        sender_ssrc: 1,
        media_ssrc,
        number: Some(number),
    };
    assert_eq!(
        items(&fir)[0].key_frame_requests().collect::<Vec<_>>(),
        [request(10, 5), request(11, 6)]
    );
    let pli = rtcp::pli(1, 9);
    let expected = KeyFrameRequest {
        sender_ssrc: 1,
        media_ssrc: 9,
        number: None,
    };
    assert_eq!(items(&pli)[0].key_frame_requests().collect::<Vec<_>>(), [expected]);
    assert_eq!(items(&rtcp::bye(&[4, 5]))[0].byes().collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn the_least_rate_of_a_stream_is_an_app_packet_of_our_own() {
    let packet = rtcp::least_rate(7, 9, 123_456);
    let item = items(&packet)[0];
    let expected = LeastRate {
        media_ssrc: 9,
        bitrate: 123_456,
    };
    assert_eq!(
        (item.kind, item.sender_ssrc(), item.least_rate()),
        (Kind::App, Some(7), Some(expected))
    );
    let most = rtcp::least_rate(7, 9, 1 << 40);
    assert_eq!(items(&most)[0].least_rate().unwrap().bitrate, u32::MAX);
    for (at, octet) in [(0, 0x82), (8, b'X')] {
        let mut other = packet.clone();
        other[at] = octet;
        assert_eq!(items(&other)[0].least_rate(), None, "of another subtype, or name");
    }
    let mut short = packet[..16].to_vec();
    short[3] = 3;
    assert_eq!(items(&short)[0].least_rate(), None);
}

#[test]
fn what_cannot_be_built() {
    assert_eq!(rtcp::nack(1, 2, []).unwrap_err().what, What::EmptyNack);
    assert_eq!(rtcp::remb(1, 5, &[0; 256]).unwrap_err().what, What::LongRemb);
    assert_eq!(
        items(&rtcp::remb(1, u64::MAX, &[]).unwrap())[0].remb().unwrap().bitrate,
        u64::MAX - (u64::MAX >> 18)
    );
}

#[test]
fn every_ssrc_is_rewritten_wherever_it_stands() {
    let by_hand = bytes(&format!("81c8000c 00000001 {0} 00000001 {0}", "00".repeat(20)))
        .into_iter()
        .chain(bytes("82ca0005 00000001 01026162 00000000 00000001 00000000"))
        .chain(bytes("80cf0005 00000001 05000003 00000001 0000000100000001"));
    let mut packet: Vec<u8> = by_hand.collect();
    packet.extend(rtcp::nack(1, 1, [1]).unwrap());
    packet.extend(rtcp::pli(1, 1));
    packet.extend(rtcp::fir(1, 1, 1));
    packet.extend(rtcp::remb(1, 1000, &[1, 7, 1]).unwrap());
    packet.extend(rtcp::bye(&[1, 7]));
    let before = packet.clone();
    rtcp::rewrite_ssrcs(&mut packet, |ssrc| (ssrc == 1).then_some(0xC0_FFEE)).unwrap();
    let kinds: Vec<Kind> = items(&packet).iter().map(|item| item.kind).collect();
    assert_eq!(
        kinds,
        [
            Kind::Sr,
            Kind::Sdes,
            Kind::Xr,
            Kind::Nack,
            Kind::Pli,
            Kind::Fir,
            Kind::Remb,
            Kind::Bye
        ]
    );
    let count = packet.windows(4).filter(|word| *word == [0, 0xC0, 0xFF, 0xEE]).count();
    assert_eq!(count, 2 + 2 + 2 + 2 + 2 + 2 + 3 + 1);
    let nack = items(&packet)[3].nack().unwrap();
    assert_eq!(
        (nack.media_ssrc, nack.lost().collect::<Vec<_>>()),
        (0xC0_FFEE, vec![1]),
        "the number 1 is no SSRC"
    );
    assert_eq!(rtcp::media_ssrcs(&items(&packet)[6]), [0xC0_FFEE, 7, 0xC0_FFEE]);
    rtcp::rewrite_ssrcs(&mut packet, |ssrc| (ssrc == 0xC0_FFEE).then_some(1)).unwrap();
    assert_eq!(packet, before);
}

#[test]
fn hostile_lengths_are_named() {
    let cases = [
        ("80c9", What::RtcpShort, 0),
        ("80c90001", What::RtcpLength, 0),
        ("40c90000", What::RtcpVersion, 0),
        ("81c9000100000001", What::RtcpContent, 0),
        ("80c900010000000180", What::RtcpShort, 8),
        ("8080000000", What::RtcpType, 0),
        ("81ce000100000001", What::RtcpContent, 0),
        ("81cd00020000000000000000", What::RtcpContent, 0),
        ("a0c9000100000009", What::RtcpPadding, 0),
        ("a0c9000100000000", What::RtcpPadding, 0),
        ("a0c900010000000480c9000100000001", What::RtcpPadding, 0),
        ("83cb000100000001", What::RtcpContent, 0),
        ("a1cd0003000000000000000000000004", What::RtcpContent, 0),
        ("", What::RtcpShort, 0),
    ];
    for (hex, what, at) in cases {
        assert_eq!(rtcp::classify(&bytes(hex)), Err(MediaError { what, at }), "{hex}");
    }
}

#[test]
fn counts_that_lie() {
    let mut lying = rtcp::remb(1, 1000, &[1]).unwrap();
    lying[16] = 200;
    assert_eq!(rtcp::classify(&lying).unwrap_err().what, What::RtcpContent);
    for hex in ["81ca0002 00000001 01ff6162", "80cf0002 00000001 05000003"] {
        assert_eq!(
            rtcp::rewrite_ssrcs(&mut bytes(hex), |_| None).unwrap_err().what,
            What::RtcpContent,
            "{hex}"
        );
    }
}
