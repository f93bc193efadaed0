//! H.261: pictures read, put together and cut into packets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, h261_packets, qcif};
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::bits::Writer;
use shunt_tiling::h261::mosaic::{Mosaic, Region};
use shunt_tiling::h261::payload;
use shunt_tiling::h261::picture::{Picture, Size};
use shunt_tiling::tiler::{Place, Tiler};
use shunt_tiling::{Refusal, What};
use std::time::Duration;

const HOLD: Duration = Duration::from_millis(100);

fn at(milliseconds: u64) -> Time {
    Time::from(Duration::from_millis(milliseconds))
}

fn read(bits: &[u8]) -> Picture {
    let mut picture = Picture::default();
    picture.read(bits, 0..bits.len() * 8).unwrap();
    picture
}

fn place(source: u32) -> Place<Region> {
    Place {
        source,
        contributor: source,
        region: Region::Whole,
    }
}

/// The bits of a picture out of its packets.
fn joined(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut bits = Writer::default();
    for packet in packets {
        let payload = Header::parse(packet).unwrap().payload;
        let (header, octets) = payload::Header::parse(payload).unwrap();
        bits.copy(octets, usize::from(header.start), octets.len() * 8 - usize::from(header.end));
    }
    bits.finish()
}

#[test]
fn a_picture_down_to_its_macroblocks() {
    let pictures = qcif();
    let first = read(&pictures[0]);
    assert_eq!(first.size, Some(Size::Qcif));
    assert_eq!(first.groups.iter().map(|group| group.number).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(first.macroblocks.len(), 99);
    assert!(first.macroblocks.iter().all(|macroblock| macroblock.intra));
    assert!(read(&pictures[1]).macroblocks.iter().any(|macroblock| !macroblock.intra));
}

#[test]
fn a_fault_leaves_the_groups_before_it() {
    let bits = &qcif()[0];
    let group = read(bits).groups[1].clone();
    let mut picture = Picture::default();
    let fault = picture.read(bits, 0..group.bits.end - 9).unwrap_err();
    assert!(fault.at >= group.bits.start && fault.at < group.bits.end);
    assert_eq!((picture.groups.len(), picture.macroblocks.len()), (1, 33));
    let fault = Picture::default().read(&[0xFF; 20], 0..160).unwrap_err();
    assert_eq!((fault.what, fault.at), (What::GroupStart, 0));
}

#[test]
fn payload_headers_of_rfc_4587() {
    let header = payload::Header {
        start: 5,
        end: 2,
        intra: false,
        vectors: true,
        group: 12,
        address: 31,
        quantiser: 8,
        vector: (-15, 15),
    };
    // SBIT 101, EBIT 010, I 0, V 1, GOBN 1100, MBAP 11111, QUANT 01000, HMVD 10001, VMVD 01111.
    assert_eq!(header.bytes(), 0b1010_1001_1100_1111_1010_0010_0010_1111_u32.to_be_bytes());
    let packet = [&header.bytes()[..], &[1, 2]].concat();
    assert_eq!(payload::Header::parse(&packet).unwrap(), (header, &[1, 2][..]));
    assert_eq!(payload::Header::parse(&packet[..4]).unwrap_err().what, What::PayloadHeader);
}

#[test]
fn a_tile_keeps_its_bits_and_each_packet_says_where_it_begins() {
    let mut tiler = Tiler::new(Mosaic::default(), STREAM, HOLD);
    tiler.join(3, place(100)).unwrap();
    let source = &qcif()[0];
    for packet in h261_packets(100, 9, 0, source) {
        tiler.packet(&packet, at(5));
    }
    let packets = tiler.poll(at(5));
    let bits = joined(&packets);
    let (whole, alone) = (read(&bits), read(source));
    assert_eq!(whole.size, Some(Size::Cif));
    assert_eq!(
        whole.groups.iter().map(|group| group.number).collect::<Vec<_>>(),
        (1..=12).collect::<Vec<_>>()
    );
    for (number, own) in [8, 10, 12].into_iter().zip(&alone.groups) {
        let group = &whole.groups[number - 1];
        assert_eq!(group.bits.len(), own.bits.len());
        let cut = |data: &[u8], bits: std::ops::Range<usize>| {
            let mut out = Writer::default();
            out.copy(data, bits.start, bits.end);
            out.finish()
        };
        assert_eq!(cut(&bits, group.bits.clone()), cut(source, own.bits.clone()));
    }
    let mut position = 0;
    for (number, packet) in packets.iter().enumerate() {
        assert!(packet.len() <= STREAM.size);
        let rtp = Header::parse(packet).unwrap();
        assert_eq!(usize::from(rtp.sequence), (65_535 + number) & 0xFFFF);
        assert_eq!(rtp.marker, number == packets.len() - 1);
        let (header, octets) = payload::Header::parse(rtp.payload).unwrap();
        if let Some(macroblock) = whole
            .macroblocks
            .iter()
            .find(|macroblock| macroblock.at == position && header.group > 0)
        {
            let group = whole.groups.iter().find(|group| group.bits.contains(&position)).unwrap();
            assert_eq!((header.group, header.address + 1), (group.number, macroblock.previous));
            assert_eq!((header.quantiser, header.vector), (macroblock.quantiser, macroblock.reference));
        } else {
            assert_eq!((header.group, header.address, header.quantiser), (0, 0, 0));
        }
        position += octets.len() * 8 - usize::from(header.start + header.end);
    }
    assert!(packets.len() > 2);
    let contributors = |packet: &Vec<u8>| Header::parse(packet).unwrap().csrcs().collect::<Vec<_>>();
    assert_eq!(
        (contributors(&packets[0]), contributors(&packets[packets.len() - 1])),
        (vec![], vec![100])
    );
}

#[test]
fn after_a_loss_groups_wait_for_what_they_predict_from() {
    let mut tiler = Tiler::new(Mosaic::default(), STREAM, HOLD);
    tiler.join(0, place(100)).unwrap();
    assert_eq!(tiler.requests(at(0)), [100], "a new tile needs a key frame");
    let pictures = qcif();
    let mut sequence = 1;
    let mut shown = Vec::new();
    // The second picture is lost.
    for (number, source) in [0, 1, 2, 0].into_iter().enumerate() {
        let now = at(500 + 200 * number as u64);
        for packet in h261_packets(100, sequence, 18_000 * number as u32, &pictures[source]) {
            sequence += 1;
            if number != 1 {
                tiler.packet(&packet, now);
            }
        }
        let packets: Vec<_> = (0..10)
            .flat_map(|wait| tiler.poll(now + Duration::from_millis(10 * wait)))
            .collect();
        if !packets.is_empty() {
            let picture = read(&joined(&packets));
            shown.push(picture.groups[0].macroblocks.len());
        }
    }
    assert_eq!((shown[0], shown[2]), (33, 33));
    assert_eq!(shown[1], 0, "an empty group stands for one that predicts from what was lost");
    assert!(tiler.mosaic().held_back > 0);
    assert_eq!(tiler.requests(at(2000)), [] as [u32; 0], "the tile is intact again");
}

#[test]
fn places_are_given_once() {
    let mut tiler = Tiler::new(Mosaic::default(), STREAM, HOLD);
    tiler.join(0, place(100)).unwrap();
    assert_eq!(tiler.join(0, place(101)), Err(Refusal::Place));
    assert_eq!(tiler.join(4, place(101)), Err(Refusal::Place));
    assert_eq!(tiler.join(1, place(100)), Err(Refusal::Taken));
    tiler.leave(0);
    tiler.join(1, place(100)).unwrap();
    assert_eq!(tiler.places().keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn pictures_wait_for_each_other_no_longer_than_they_have_to() {
    let mut tiler = Tiler::new(Mosaic::default(), STREAM, HOLD);
    tiler.join(0, place(100)).unwrap();
    tiler.join(1, place(101)).unwrap();
    assert!(!tiler.poll(at(0)).is_empty(), "empty places become black");
    let send = |tiler: &mut Tiler<Mosaic>, ssrc, sequence, now| {
        let packets = h261_packets(ssrc, sequence, u32::from(sequence), &qcif()[0]);
        packets.iter().for_each(|packet| tiler.packet(packet, now));
        packets.len() as u16
    };
    let first = send(&mut tiler, 100, 1, at(400));
    assert_eq!(tiler.due_at(at(400)), Some(at(500)));
    assert!(tiler.poll(at(400)).is_empty());
    let other = send(&mut tiler, 101, 1, at(440));
    assert_eq!(tiler.due_at(at(440)), Some(at(440)), "all have come");
    assert!(!tiler.poll(at(440)).is_empty());
    send(&mut tiler, 100, 1 + first, at(450));
    send(&mut tiler, 100, 1 + 2 * first, at(451));
    let due = tiler.due_at(at(451)).unwrap();
    assert!(
        due > at(473) && due < at(474),
        "two of one tile wait only for the next number of the temporal reference"
    );
    assert!(!tiler.poll(due).is_empty());
    send(&mut tiler, 101, 1 + other, at(480));
    assert!(tiler.poll(at(480)).is_empty() && !tiler.poll(at(510)).is_empty());
}
