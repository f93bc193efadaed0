//! Any bytes: no panic; packets read back; a BYE is found in any context.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_hep::sip::Message;
use shunt_hep::{Packet, PayloadKind, next_frame};
use shunt_net::Endpoint;
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

const INVITE: &[u8] = b"INVITE sip:b@x SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.10;rport=5;received=192.0.2.9, SIP/2.0/TCP [::1]:5\r\n\
    From: \"A\" <sip:a@x>;tag=1\r\nTo: <sip:b@x>\r\nCall-ID: c1@x\r\nCSeq: 1 INVITE\r\nRecord-Route: <sip:p>\r\n\r\n\
    v=0\r\nc=IN IP4 192.0.2.10\r\na=ptime:20\r\nm=audio 6000/2 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=rtcp:6101 IN IP4 192.0.2.7\r\n\
    m=video 7000 RTP/AVP 96\r\nc=IN IP6 2001:db8::5\r\na=sendonly\r\na=rtcp-mux\r\n";
const BYE: &str = "BYE sip:bob@x SIP/2.0\r\nFrom: <sip:a@x>;tag=aa\r\nTo: <sip:b@x>;tag=bb\r\nCall-ID: c1\r\nCSeq: 2 BYE\r\n\r\n";

fn changed(whole: Vec<u8>, changes: Vec<(prop::sample::Index, u8, u8)>) -> Vec<u8> {
    let mut data = whole;
    for (at, kind, byte) in changes {
        let at = at.index(data.len());
        match kind % 3 {
            0 => data[at] = byte,
            1 => {
                let end = data.len().min(at + usize::from(byte % 20));
                data.drain(at..end);
                data.push(b'\n');
            }
            _ => data.insert(at, byte),
        }
    }
    data
}

fn read_everything(data: &[u8]) {
    if let Ok(message) = Message::parse(data) {
        assert!(!message.call_id().is_empty());
        assert!(message.method().is_none() != message.status().is_none());
        let _ = (
            message.from_tag(),
            message.to_tag(),
            message.cseq(),
            message.cseq_method(),
            message.vias(),
            message.record_routes(),
        );
        let _ = message.via().and_then(|via| via.source());
        for media in message.sdp().iter().flat_map(|sdp| &sdp.media) {
            let _ = (media.rtp(), media.rtcp(), media.on_hold());
        }
    }
    let _ = next_frame(data);
    if let Ok(packet) = Packet::decode(data) {
        let _ = Message::parse(&packet.payload);
    }
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec(any::<(prop::sample::Index, u8, u8)>(), 0..8)
}

fn endpoints() -> impl Strategy<Value = (Option<Endpoint>, Option<Endpoint>)> {
    let four = prop::option::of(any::<(Ipv4Addr, u16)>().prop_map(|(address, port)| Endpoint::new(address, port)));
    let six = prop::option::of(any::<(Ipv6Addr, u16)>().prop_map(|(address, port)| Endpoint::new(address.to_canonical(), port)));
    prop_oneof![(four.clone(), four), (six.clone(), six)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        read_everything(&data);
        let length = u16::try_from(data.len() + 6).unwrap();
        read_everything(&[b"HEP3", &length.to_be_bytes()[..], &data].concat());
    }

    #[test]
    fn mutated_messages_and_packets(changes in changes(), more in changes()) {
        let message = changed(INVITE.to_vec(), changes);
        read_everything(&message);
        let packet = Packet {
            source: Some(Endpoint::new([192, 0, 2, 1], 5060)),
            destination: None,
            kind: PayloadKind::Sip,
            protocol: 17,
            seconds: 1,
            microseconds: 2,
            capture_id: 3,
            correlation_id: b"c",
            payload: Cow::Borrowed(&message),
        };
        read_everything(&changed(packet.encode().unwrap(), more));
    }

    #[test]
    fn packets_read_back(
        (source, destination) in endpoints(), kind: u8, protocol: u8, seconds: u32, microseconds: u32, capture_id: u32,
        correlation in prop::collection::vec(any::<u8>(), 0..20), payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let packet = Packet {
            source, destination, kind: kind.into(), protocol, seconds, microseconds, capture_id,
            correlation_id: &correlation,
            payload: Cow::Borrowed(&payload),
        };
        // IPv4-mapped addresses are read as IPv4, so the two addresses may have different versions.
        prop_assume!(packet.encode().is_ok());
        let bytes = packet.encode().unwrap();
        prop_assert_eq!(Packet::decode(&bytes).unwrap(), packet);
        prop_assert_eq!(next_frame(&bytes), Ok(Some((&bytes[..], bytes.len()))));
    }

    #[test]
    fn a_bye_is_seen_whatever_another_header_holds(value in "[^\r\n]{0,60}", noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let noise: Vec<u8> = noise.into_iter().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
        let (head, _) = BYE.split_at(BYE.len() - 2);
        let data = [head.as_bytes(), b"X-Odd: ", value.as_bytes(), b"\r\nq", &noise, b"\r\n\r\n"].concat();
        let message = Message::parse(&data).unwrap();
        prop_assert_eq!(message.method(), Some(&b"BYE"[..]));
        prop_assert_eq!((message.call_id(), message.from_tag(), message.to_tag()), (&b"c1"[..], &b"aa"[..], Some(&b"bb"[..])));
    }
}
