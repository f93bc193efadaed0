//! RTP headers, extensions, STUN and sequence numbers: vectors by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_rtp::sequence::{Extender, distance, follows};
use shunt_rtp::stun::Message;
use shunt_rtp::{Header, MediaError, Packet, Source, What, demux};

/// Version 2, extension, payload type 46, number 1747.
const HEAD: &str = "902e06d38c9a9a8bf8576f4f";

fn bytes(hex: &str) -> Vec<u8> {
    let hex: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    hex.chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

fn packet(profile: &str, extension: &str) -> Vec<u8> {
    let data = bytes(extension);
    assert_eq!(data.len() % 4, 0);
    [
        bytes(HEAD),
        bytes(profile),
        vec![0, u8::try_from(data.len() / 4).unwrap()],
        data,
        vec![0],
    ]
    .concat()
}

fn found(packet: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, MediaError> {
    let header = Header::parse(packet)?;
    header
        .extension
        .unwrap()
        .elements()
        .map(|element| element.map(|element| (element.id, element.data.to_vec())))
        .collect()
}

fn elements(profile: &str, extension: &str) -> Vec<(u8, Vec<u8>)> {
    found(&packet(profile, extension)).unwrap()
}

#[test]
fn a_header_with_everything() {
    let packet = bytes("b2ee06d38c9a9a8bf8576f4f 00000001 00000002 bede0001 10aa0000 c0ffee 000003");
    let header = Header::parse(&packet).unwrap();
    assert!(header.marker);
    assert_eq!(
        (header.payload_type, header.sequence, header.timestamp, header.ssrc),
        (110, 0x06D3, 0x8C9A_9A8B, 0xF857_6F4F)
    );
    assert_eq!(header.csrcs().collect::<Vec<_>>(), [1, 2]);
    assert_eq!((header.payload, header.payload_at), (&[0xc0, 0xff, 0xee][..], 28));
    assert_eq!(found(&packet).unwrap(), [(1, vec![0xaa])]);
    let extension = header.extension.unwrap();
    assert_eq!((extension.find(1).unwrap(), extension.find(2).unwrap()), (Some(&[0xaa][..]), None));
}

#[test]
fn the_one_byte_form_with_padding_between_and_in_any_order() {
    let twelve = (12, vec![0xc0, 0, 1]);
    assert_eq!(
        elements("bede", "22010203 00 c2c00001 00 40ff"),
        [(2, vec![1, 2, 3]), twelve.clone(), (4, vec![0xff])]
    );
    assert_eq!(elements("bede", "c2c00001 22010203"), [twelve.clone(), (2, vec![1, 2, 3])]);
    assert_eq!(elements("bede", "10aa f0 c2c00001 00"), [(1, vec![0xaa])], "id 15 ends the list");
    assert_eq!(
        elements("bede", "01aabb c2c00001 00"),
        [twelve],
        "id 0 that carries data is skipped"
    );
}

#[test]
fn the_two_byte_form_with_long_and_empty_elements() {
    let long = "c00001800214eaa860414d1410208427027f0167";
    let expected = [(12, bytes(long)), (2, vec![]), (13, vec![1])];
    assert_eq!(elements("1000", &format!("0c14{long}0200 00000d0101 000000")), expected);
    assert_eq!(
        elements("100f", "0c03c00001 000000"),
        [(12, vec![0xc0, 0, 1])],
        "appbits are anybody's"
    );
    assert_eq!(elements("beef", "0c03c00001 000000"), [], "neither form");
}

#[test]
fn bad_headers_are_named() {
    let rest = &HEAD[2..];
    let cases = [
        ("80".to_owned(), What::RtpShort, 1),
        (format!("40{rest}"), What::RtpVersion, 0),
        (format!("90{rest}"), What::RtpExtension, 12),
        (format!("90{rest} bede0002 00000000"), What::RtpExtension, 12),
        (format!("8f{rest}"), What::RtpShort, 12),
        (format!("a0{rest} 0000"), What::RtpPadding, 13),
        (format!("a0{rest} 0004"), What::RtpPadding, 13),
        (format!("a0{rest}"), What::RtpPadding, 11),
    ];
    for (hex, what, at) in cases {
        assert_eq!(Header::parse(&bytes(&hex)), Err(MediaError { what, at }), "{hex}");
    }
}

#[test]
fn an_element_beyond_the_extension_is_refused() {
    for (profile, extension, at) in [
        ("bede", "22000000 000000c3", 23),
        ("1000", "0c08c000 01000000", 16),
        ("1000", "0000000c", 19),
    ] {
        assert_eq!(
            found(&packet(profile, extension)),
            Err(MediaError { what: What::Element, at }),
            "{extension}"
        );
    }
}

#[test]
fn protocols_are_told_apart_by_two_bytes() {
    let cases = [
        ("0001", Packet::Stun),
        ("1000", Packet::Zrtp),
        ("16fe", Packet::Dtls),
        ("4000", Packet::TurnChannel),
        ("8000", Packet::Rtp),
        ("80bf", Packet::Rtp),
        ("80c0", Packet::Rtcp),
        ("bfdf", Packet::Rtcp),
        ("80e0", Packet::Rtp),
        ("c000", Packet::Other),
        ("05", Packet::Other),
        ("", Packet::Other),
    ];
    for (hex, expected) in cases {
        assert_eq!(demux(&bytes(hex)), expected, "{hex}");
    }
}

#[test]
fn sources_of_what_looks_like_media() {
    let rtp = bytes("8000002a 00000000 0000beef");
    assert_eq!(
        Source::of_rtp(&rtp),
        Some(Source {
            ssrc: 0xbeef,
            sequence: 42
        })
    );
    assert_eq!(Source::of_rtp(&rtp[..11]), None);
    assert_eq!(Source::of_rtp(&bytes("4000002a 00000000 0000beef")), None);
    assert_eq!(
        Source::of_rtcp(&bytes("80c80006 0000beef")),
        Some(Source { ssrc: 0xbeef, sequence: 0 })
    );
    assert_eq!((Source::of_rtcp(&rtp), Source::of_rtcp(&bytes("80c80006 0000be"))), (None, None));
}

#[test]
fn stun_is_what_has_cookie_and_length() {
    let good = bytes("0101000c 2112a442 000102030405060708090a0b 0020 0005 0102030405 000000");
    let message = Message::parse(&good).unwrap();
    assert_eq!(message.attributes().collect::<Vec<_>>(), [(0x20, &[1, 2, 3, 4, 5][..])]);
    let mut bad = good.clone();
    bad[7] = 0;
    assert_eq!(Message::parse(&bad).unwrap_err().what, What::Stun);
    assert_eq!(Message::parse(&good[..28]).unwrap_err().what, What::StunLength);
    assert_eq!(Message::parse(&good[..19]).unwrap_err().what, What::StunShort);
    bad = good;
    bad[23] = 200;
    assert_eq!(Message::parse(&bad).unwrap().attributes().count(), 0);
}

#[test]
fn sequence_numbers_wrap() {
    assert_eq!((distance(3, 65534), distance(65534, 3), distance(0x8000, 0)), (5, -5, -32768));
    assert!(follows(3, 65534, 5, 0) && !follows(3, 65534, 4, 0) && follows(65534, 3, 0, 5) && follows(7, 7, 0, 0));
    let mut extender = Extender::default();
    let extended: Vec<i64> = [65534, 65535, 0, 65533, 2].map(|number| extender.extend(number)).into();
    assert_eq!(extended, [65534, 65535, 65536, 65533, 65538]);
}
