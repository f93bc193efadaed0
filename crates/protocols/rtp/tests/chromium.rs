//! What Chromium sent, read as another reader counted it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_rtp::rtcp::{self, Kind};
use shunt_rtp::stun::{Class, Message};
use shunt_rtp::{Header, Packet, Source, demux};

const DATAGRAMS: &str = include_str!("data/chromium.txt");

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn lines(kind: &str) -> Vec<(Vec<&'static str>, Vec<u8>)> {
    let wanted = DATAGRAMS.lines().filter(|line| line.split(' ').next() == Some(kind));
    let lines: Vec<_> = wanted
        .map(|line| {
            let mut words: Vec<&str> = line.split(' ').skip(1).collect();
            let packet = bytes(words.pop().unwrap());
            (words, packet)
        })
        .collect();
    assert!(!lines.is_empty());
    lines
}

#[test]
fn rtp_headers_and_their_extensions() {
    for (words, packet) in lines("rtp") {
        let header = Header::parse(&packet).unwrap();
        let numbers = [
            u32::from(header.payload_type),
            u32::from(header.sequence),
            header.payload.len().try_into().unwrap(),
        ];
        let expected = [words[0], words[1], words[4]].map(|word| word.parse::<u32>().unwrap());
        assert_eq!(numbers, expected, "{words:?}");
        assert_eq!(format!("{:08x}", header.ssrc), words[2]);
        let elements: Vec<_> = header.extension.unwrap().elements().map(Result::unwrap).collect();
        let ids: Vec<String> = elements.iter().map(|element| element.id.to_string()).collect();
        assert_eq!(ids.join(","), words[3]);
        for element in &elements {
            assert_eq!(&packet[element.at..element.at + element.data.len()], element.data);
        }
        assert_eq!(demux(&packet), Packet::Rtp);
        assert_eq!(
            Source::of_rtp(&packet),
            Some(Source {
                ssrc: header.ssrc,
                sequence: header.sequence
            })
        );
    }
}

#[test]
fn rtcp_compounds() {
    for (words, packet) in lines("rtcp") {
        let items: Vec<_> = rtcp::walk(&packet).map(Result::unwrap).collect();
        let kinds: Vec<String> = items.iter().map(|item| format!("{:?}", item.kind).to_uppercase()).collect();
        assert_eq!(kinds.join("+"), words[0]);
        assert_eq!(items.iter().flat_map(|item| item.bytes.to_vec()).collect::<Vec<u8>>(), packet);
        let union = rtcp::classify(&packet).unwrap();
        assert!(items.iter().all(|item| union.contains(item.kind)) && !union.contains(Kind::App));
        assert_eq!(demux(&packet), Packet::Rtcp);
        assert_eq!(Source::of_rtcp(&packet).unwrap().ssrc, items[0].sender_ssrc().unwrap());
    }
}

#[test]
fn stun_messages() {
    for (words, packet) in lines("stun") {
        let message = Message::parse(&packet).unwrap();
        let class = if words[1] == "request" { Class::Request } else { Class::Success };
        assert_eq!((message.method, message.class), (1, class));
        let types: Vec<String> = message.attributes().map(|(kind, _)| format!("{kind:04x}")).collect();
        assert_eq!(types.join(","), words[2]);
        assert_eq!(demux(&packet), Packet::Stun);
    }
}
