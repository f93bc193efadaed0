//! HEPv3 packets: hand-made, broken, and in streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use shunt_hep::{HepError, Packet, PayloadKind, next_frame};
use shunt_net::Endpoint;
use std::borrow::Cow;
use std::io::Write as _;

fn endpoint(text: &str) -> Option<Endpoint> {
    let address: std::net::SocketAddr = text.parse().unwrap();
    Some(Endpoint::new(address.ip(), address.port()))
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    hex.chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

fn packet(payload: &[u8]) -> Packet<'_> {
    Packet {
        source: endpoint("192.0.2.10:5060"),
        destination: endpoint("198.51.100.7:5062"),
        kind: PayloadKind::Sip,
        protocol: 6,
        seconds: 1_700_000_000,
        microseconds: 42,
        capture_id: 2001,
        correlation_id: b"x",
        payload: Cow::Borrowed(payload),
    }
}

#[test]
fn a_packet_survives_the_round_trip() {
    let four = packet(b"BYE");
    assert_eq!(Packet::decode(&four.encode().unwrap()).unwrap(), four);
    let six = Packet {
        source: endpoint("[2001:db8::1]:5060"),
        destination: endpoint("[2001:db8::2]:5061"),
        kind: PayloadKind::Rtcp,
        ..packet(b"{}")
    };
    assert_eq!(Packet::decode(&six.encode().unwrap()).unwrap(), six);
    let bare = Packet {
        source: None,
        destination: None,
        kind: PayloadKind::Other(100),
        correlation_id: b"",
        ..packet(b"")
    };
    assert_eq!(Packet::decode(&bare.encode().unwrap()).unwrap(), bare);
}

#[test]
fn bytes_are_those_of_the_specification() {
    let data = bytes("48455033 0027 0000000300 0a c000020a 0000000700 08 13c4 0000000b 0007 01 0000000f 0008 4142");
    let packet = Packet::decode(&data).unwrap();
    assert_eq!(
        (packet.source, packet.destination, packet.kind),
        (endpoint("192.0.2.10:5060"), None, PayloadKind::Sip)
    );
    assert_eq!(&*packet.payload, b"AB");
}

#[test]
fn unknown_chunks_and_those_of_other_vendors_are_passed_over() {
    // Vendor 7's chunk 3 is not an IPv4 address, and chunk 999 is unknown.
    let data = bytes("48455033 001c 000700030007ff 000003e70007ff 0000000f00084142");
    assert_eq!(&*Packet::decode(&data).unwrap().payload, b"AB");
}

#[test]
fn broken_packets_name_what_is_wrong() {
    let cases: [(&[u8], HepError); 12] = [
        (b"", HepError::Short(0)),
        (b"HEP3\x00", HepError::Short(5)),
        (b"HEP3\x00\x05", HepError::Length(5)),
        (b"XXXX\x00\x06", HepError::Magic),
        (b"\x02\x1c\x02\x11aaaaaaaaaaaa", HepError::Version(2)),
        (b"HEP3\x00\xff", HepError::Cut { announced: 255, held: 6 }),
        (b"HEP3\x00\x06", HepError::NoPayload),
        (b"HEP3\x00\x08\x00\x00", HepError::ChunkHeader { at: 6, left: 2 }),
        (
            b"HEP3\x00\x0c\x00\x00\x00\x0f\x00\x05",
            HepError::ChunkLength {
                kind: 15,
                at: 6,
                announced: 5,
                left: 6,
            },
        ),
        (
            b"HEP3\x00\x0c\x00\x00\x00\x0f\x00\x07",
            HepError::ChunkLength {
                kind: 15,
                at: 6,
                announced: 7,
                left: 6,
            },
        ),
        (
            b"HEP3\x00\x0d\x00\x00\x00\x03\x00\x07\x01",
            HepError::ChunkSize {
                kind: 3,
                at: 6,
                held: 1,
                wanted: 4,
            },
        ),
        (b"HEP3\x00\x0d\x00\x00\x00\x10\x00\x07\x01", HepError::Deflate),
    ];
    for (data, error) in cases {
        assert_eq!(Packet::decode(data), Err(error), "{}", data.escape_ascii());
    }
}

fn compressed(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(12 + content.len()).unwrap();
    let chunk = u16::try_from(6 + content.len()).unwrap();
    [b"HEP3", &length.to_be_bytes()[..], &[0, 0, 0, 16], &chunk.to_be_bytes(), content].concat()
}

#[test]
fn a_compressed_payload_is_bounded() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(b"BYE sip:x SIP/2.0").unwrap();
    assert_eq!(
        &*Packet::decode(&compressed(&gzip.finish().unwrap())).unwrap().payload,
        b"BYE sip:x SIP/2.0"
    );
    let zlib = |size: usize| {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&vec![b'a'; size]).unwrap();
        compressed(&zlib.finish().unwrap())
    };
    assert_eq!(Packet::decode(&zlib(65536)).unwrap().payload.len(), 65536);
    assert_eq!(Packet::decode(&zlib(65537)), Err(HepError::Inflated));
    let mut cut = zlib(1000);
    cut.pop();
    let length = u16::try_from(cut.len()).unwrap();
    cut[4..6].copy_from_slice(&length.to_be_bytes());
    cut[10..12].copy_from_slice(&(length - 6).to_be_bytes());
    assert_eq!(Packet::decode(&cut), Err(HepError::Deflate));
}

#[test]
fn what_cannot_be_encoded() {
    assert!(matches!(packet(&vec![0; 65535]).encode(), Err(HepError::Large(_))));
    let mixed = Packet {
        source: endpoint("[2001:db8::1]:1"),
        ..packet(b"x")
    };
    assert_eq!(mixed.encode(), Err(HepError::Families));
}

#[test]
fn a_mapped_address_becomes_ipv4() {
    let mapped = Packet {
        source: endpoint("[::ffff:192.0.2.10]:5060"),
        destination: endpoint("[2001:db8::2]:1"),
        ..packet(b"x")
    };
    assert_eq!(
        Packet::decode(&mapped.encode().unwrap()).unwrap().source,
        endpoint("192.0.2.10:5060")
    );
}

#[test]
fn a_stream_is_cut_into_packets_wherever_it_arrives() {
    let (first, second) = (packet(b"one").encode().unwrap(), packet(b"another").encode().unwrap());
    let stream = [&first[..], &second].concat();
    for length in 0..first.len() {
        assert_eq!(next_frame(&stream[..length]), Ok(None), "{length}");
    }
    assert_eq!(next_frame(&stream), Ok(Some((&first[..], first.len()))));
    assert_eq!(next_frame(&stream[first.len()..]), Ok(Some((&second[..], second.len()))));
    assert_eq!(next_frame(b"GE"), Err(HepError::Magic));
    assert_eq!(next_frame(b"HEP3\0\x05"), Err(HepError::Length(5)));
}
