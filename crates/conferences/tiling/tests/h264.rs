//! H.264: parameter sets and slices read and written anew, pictures of a column.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, packet, units};
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::Refusal;
use shunt_tiling::h264::column::{Column, Region};
use shunt_tiling::h264::packets::Reader;
use shunt_tiling::h264::parameters::{Format, Picture, Sequence};
use shunt_tiling::h264::slice::{Frame, Slice};
use shunt_tiling::tiler::{Place, Tiler, Trial};
use std::time::Duration;

fn at(milliseconds: u64) -> Time {
    Time::from(Duration::from_millis(milliseconds))
}

fn sets(units: &[Vec<u8>]) -> (Sequence, Picture) {
    (Sequence::parse(&units[0]).unwrap(), Picture::parse(&units[1]).unwrap())
}

#[test]
fn a_columns_parameter_sets_are_those_of_its_sources_but_for_the_height() {
    for high in [false, true] {
        let (sequence, picture) = sets(&units(high));
        let format = Format::of(&sequence, &picture, 1).unwrap();
        assert_eq!((format.width, format.height, format.cabac), (11, 9, high));
        let (sequence, picture) = sets(&format.parameter_sets(16).unwrap());
        let column = Format::of(&sequence, &picture, 16).unwrap();
        assert_eq!(format.admits(&column), Ok(()));
        assert_eq!(Format::of(&sequence, &picture, 1).unwrap().height, 144);
        assert_eq!(format.parameter_sets(200), Err(Refusal::Level));
    }
}

#[test]
fn a_slice_keeps_its_data_at_another_place() {
    for high in [false, true] {
        let units = units(high);
        let (sequence, picture) = sets(&units);
        let format = Format::of(&sequence, &picture, 1).unwrap();
        let (other_sequence, other_picture) = sets(&format.parameter_sets(4).unwrap());
        for unit in units.iter().filter(|unit| matches!(unit[0] & 31, 1 | 5)) {
            let frame = Frame {
                idr: unit[0] & 31 == 5,
                number: 7,
                id: 1,
            };
            let slice = Slice::parse(unit, &sequence, &picture).unwrap();
            let moved = slice.unit(0, 198, frame);
            let read = Slice::parse(&moved, &other_sequence, &other_picture).unwrap();
            assert_eq!((read.first, read.intra), (198, slice.intra));
            // Back at its place it is the same as if it had never moved.
            assert_eq!(read.unit(198, 0, frame), slice.unit(0, 0, frame));
        }
    }
}

#[test]
fn a_tile_without_a_new_picture_repeats_and_its_packets_name_nobody() {
    let mut tiler = Tiler::new(Column::new(2), STREAM, Duration::from_millis(50));
    let region = Region {
        tile: 0,
        tiles: 1,
        predicted: true,
    };
    for source in [100, 101] {
        let place = Place {
            source,
            contributor: source,
            region,
        };
        tiler.join(source as usize - 100, place).unwrap();
    }
    let units = units(false);
    let mut sequence = 0;
    let mut send = |tiler: &mut Tiler<Column>, ssrc, units: &[Vec<u8>], now| {
        for (at, unit) in units.iter().enumerate() {
            sequence += 1;
            tiler.packet(&packet(ssrc, sequence, sequence.into(), at == units.len() - 1, unit), now);
        }
    };
    // Parameter sets, the first picture, and one that predicts from it.
    send(&mut tiler, 100, &units[..1], at(0));
    send(&mut tiler, 100, &units[1..2], at(0));
    send(&mut tiler, 100, &units[2..3], at(0));
    assert!(tiler.poll(at(10)).is_empty(), "it waits for the other tile");
    let kinds = |packets: &[Vec<u8>]| {
        let mut reader = Reader::default();
        let units = packets
            .iter()
            .flat_map(|packet| reader.take(Header::parse(packet).unwrap().payload).unwrap());
        units.map(|unit| unit[0] & 31).collect::<Vec<_>>()
    };
    let first = tiler.poll(at(50));
    assert_eq!(kinds(&first), [7, 8, 5, 5], "parameter sets, its IDR slice, and grey");
    send(&mut tiler, 100, &units[3..4], at(100));
    let second = tiler.poll(at(150));
    assert_eq!(kinds(&second), [1, 1]);
    assert_eq!(Header::parse(&second[0]).unwrap().csrcs().collect::<Vec<_>>(), [100]);
    assert_eq!(
        tiler.requests(at(160)),
        [101],
        "a tile that has shown nothing yet needs a key frame"
    );
    tiler.leave(0);
    let third = tiler.poll(at(200));
    assert_eq!(Header::parse(&third[0]).unwrap().csrcs().len(), 0, "the place becomes grey");
    assert!(tiler.poll(at(300)).is_empty(), "nothing is sent while nothing changes");
}

#[test]
fn a_packet_without_a_payload_is_no_picture() {
    let mut tiler = Tiler::new(Column::new(1), STREAM, Duration::from_millis(50));
    let region = Region {
        tile: 0,
        tiles: 1,
        predicted: true,
    };
    let place = Place {
        source: 100,
        contributor: 100,
        region,
    };
    tiler.join(0, place).unwrap();
    let units = units(false);
    let payloads: [(u32, &[u8]); 5] = [(1, &units[0]), (1, &units[1]), (1, &units[2]), (2, &[]), (3, &units[3])];
    for (sequence, (timestamp, payload)) in (1..).zip(payloads) {
        tiler.packet(
            &packet(100, sequence, timestamp, sequence == 3 || sequence == 5, payload),
            at(sequence.into()),
        );
    }
    let status = tiler.status(0).unwrap();
    assert_eq!((status.pictures, status.refused, status.refusal), (2, 0, None));
    assert!(!tiler.poll(at(10)).is_empty());
    assert_eq!(tiler.requests(at(20)), [0_u32; 0], "nothing is missing");
}

#[test]
fn a_source_is_sampled_once_and_shows_nothing_if_that_cannot_be_decoded() {
    let mut tiler = Tiler::new(Column::new(2), STREAM, Duration::from_millis(50));
    let region = Region {
        tile: 0,
        tiles: 1,
        predicted: true,
    };
    // The second is a participant of another mixer, which has tried it.
    for (place, source, contributor) in [(0, 100, 100), (1, 101, 7)] {
        let place_of = Place {
            source,
            contributor,
            region,
        };
        tiler.join(place, place_of).unwrap();
    }
    let units = units(false);
    let mut sequences = [0_u16; 2];
    let mut begin = |tiler: &mut Tiler<Column>, ssrc: u32, now| {
        for unit in &units[..3] {
            let sequence = &mut sequences[ssrc as usize - 100];
            *sequence += 1;
            tiler.packet(&packet(ssrc, *sequence, (*sequence).into(), true, unit), now);
        }
    };
    assert_eq!(tiler.sample(), None, "nothing has come");
    begin(&mut tiler, 100, at(0));
    begin(&mut tiler, 101, at(0));
    let trial = |tiler: &Tiler<Column>, place| tiler.status(place).unwrap().trial;
    assert_eq!((trial(&tiler, 0), trial(&tiler, 1)), (Trial::Pending, Trial::None));
    tiler.tried(100, Trial::Undecodable);
    assert_eq!(
        trial(&tiler, 0),
        Trial::Pending,
        "nothing has been taken that could have been decoded"
    );
    let stream: Vec<u8> = units[..3].iter().flat_map(|unit| [&[0, 0, 0, 1], &unit[..]].concat()).collect();
    assert_eq!(tiler.sample(), Some((100, stream)));
    assert!(!tiler.poll(at(10)).is_empty(), "its tile does not wait");
    begin(&mut tiler, 100, at(100));
    assert_eq!(tiler.sample(), None, "one picture is enough");
    tiler.tried(101, Trial::Undecodable);
    tiler.tried(100, Trial::Undecodable);
    let status = tiler.status(0).unwrap();
    assert_eq!((status.trial, status.refusal), (Trial::Undecodable, Some(Refusal::Undecodable)));
    assert_eq!((trial(&tiler, 1), tiler.status(1).unwrap().refusal), (Trial::None, None));
    let grey = tiler.poll(at(150));
    let contributors: Vec<u32> = grey
        .iter()
        .flat_map(|packet| Header::parse(packet).unwrap().csrcs().collect::<Vec<_>>())
        .collect();
    assert!(!grey.is_empty() && !contributors.contains(&100), "its place becomes grey");
    begin(&mut tiler, 100, at(200));
    let after = tiler.status(0).unwrap();
    assert_eq!((after.pictures - status.pictures, after.refused - status.refused), (1, 1));
    assert!(tiler.requests(at(210)).is_empty(), "no key frame helps");
    tiler.tried(100, Trial::Decoded);
    assert_eq!(trial(&tiler, 0), Trial::Undecodable, "the first word counts");
    // The same place anew.
    tiler.leave(0);
    let place = Place {
        source: 100,
        contributor: 100,
        region,
    };
    tiler.join(0, place).unwrap();
    begin(&mut tiler, 100, at(300));
    assert!(tiler.sample().is_some());
    tiler.tried(100, Trial::Unavailable);
    assert_eq!((trial(&tiler, 0), tiler.status(0).unwrap().refusal), (Trial::Unavailable, None));
}
