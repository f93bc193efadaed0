//! H.265: parameter sets and slices read and written anew, pictures of a grid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, h265_units, packet};
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::Refusal;
use shunt_tiling::coding::Area;
use shunt_tiling::h265::format::Format;
use shunt_tiling::h265::grid::{Grid, Region, columns};
use shunt_tiling::h265::packets::Reader;
use shunt_tiling::h265::parameters::{Picture, Sequence};
use shunt_tiling::h265::slice::Slice;
use shunt_tiling::tiler::{Place, Tiler};
use std::time::Duration;

const IDR: u8 = 20;
const CRA: u8 = 21;

fn at(milliseconds: u64) -> Time {
    Time::from(Duration::from_millis(milliseconds))
}

fn kind(unit: &[u8]) -> u8 {
    unit[0] >> 1 & 63
}

/// Of units that begin with VPS, SPS and PPS.
fn sets(units: &[Vec<u8>]) -> (Sequence, Picture) {
    (Sequence::parse(&units[1]).unwrap(), Picture::parse(&units[2]).unwrap())
}

/// A grid whose places have sources 100, 101 and so on.
fn tiler(columns: u8, rows: u8, sources: u32) -> Tiler<Grid> {
    let mut tiler = Tiler::new(Grid::new(columns, rows), STREAM, Duration::from_millis(50));
    let region = Region {
        tile: 0,
        tiles: 1,
        predicted: true,
    };
    for place in 0..sources {
        let joined = Place {
            source: 100 + place,
            contributor: 100 + place,
            region,
        };
        tiler.join(place as usize, joined).unwrap();
    }
    tiler
}

fn received(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut reader = Reader::default();
    let payloads = packets.iter().map(|packet| Header::parse(packet).unwrap().payload);
    payloads.flat_map(|payload| reader.take(payload).unwrap()).collect()
}

#[test]
fn a_grids_parameter_sets_are_those_of_its_sources_but_for_the_size_and_tiles() {
    for intra in [false, true] {
        let (sequence, picture) = sets(&h265_units(intra));
        let format = Format::of(&sequence, &picture, 1).unwrap();
        assert_eq!((format.size(), format.width), ((256, 192), if intra { 8 } else { 16 }));
        let (sequence, picture) = sets(&format.parameter_sets(4, 3).unwrap());
        assert_eq!(format.admits(&Format::of(&sequence, &picture, 12).unwrap()), Ok(()));
        assert_eq!(Format::of(&sequence, &picture, 1), Err(Refusal::Tiles));
        assert_eq!(Format::of(&sequence, &picture, 6), Err(Refusal::PictureSize));
        let (sequence, picture) = sets(&format.parameter_sets(1, 1).unwrap());
        assert_eq!(Format::of(&sequence, &picture, 1), Ok(format), "one tile is none");
        assert_eq!(format.parameter_sets(21, 1), Err(Refusal::Level));
        assert_eq!(format.slices(4, 4), Ok(4));
    }
}

#[test]
fn a_grid_is_no_higher_than_wide() {
    let found: Vec<u8> = [1, 2, 4, 5, 15, 16, 17, 255].into_iter().map(columns).collect();
    assert_eq!(found, [1, 2, 2, 3, 4, 4, 5, 16]);
}

#[test]
fn slices_keep_their_data_in_each_tile_and_key_frames_become_intra_slices() {
    let units = h265_units(false);
    let (sequence, picture) = sets(&units);
    let mut tiler = tiler(2, 2, 4);
    let mut shown = Vec::new();
    for (number, unit) in units.iter().enumerate() {
        let now = at(100 * number as u64);
        for source in 100..104 {
            tiler.packet(&packet(source, number as u16, number.max(3) as u32, number > 2, unit), now);
        }
        shown.extend(received(&tiler.poll(now)));
    }
    let (grid_sequence, grid_picture) = sets(&shown);
    let slices: Vec<&Vec<u8>> = shown[3..].iter().collect();
    assert_eq!(slices.len(), 4 * units[3..].len());
    for (group, unit) in slices.chunks(4).zip(&units[3..]) {
        let own = Slice::parse(unit.clone(), &sequence, &picture).unwrap();
        for (place, slice) in group.iter().enumerate() {
            let read = Slice::parse((*slice).clone(), &grid_sequence, &grid_picture).unwrap();
            assert_eq!((read.tile, read.first, read.begins), (place as u32, 0, place == 0));
            assert_eq!((read.intra(), read.data()), (own.intra(), own.data()));
        }
    }
    let kinds: Vec<u8> = slices.chunks(4).map(|group| kind(group[0])).collect();
    assert_eq!(units[3..].iter().map(|unit| kind(unit)).collect::<Vec<_>>(), [IDR, 1, CRA, 1]);
    assert_eq!(kinds, [IDR, 1, 1, 1]);
    let area = Area {
        x: 256,
        y: 192,
        width: 256,
        height: 192,
    };
    assert_eq!(tiler.mosaic().area(3), Some(area));
}

#[test]
fn a_tile_without_a_new_picture_repeats_and_its_packets_name_nobody() {
    let mut tiler = tiler(2, 1, 2);
    let units = h265_units(false);
    let mut sequence = 0;
    let mut send = |tiler: &mut Tiler<Grid>, units: &[Vec<u8>], now| {
        for unit in units {
            sequence += 1;
            tiler.packet(&packet(100, sequence, u32::from(sequence.max(4)), sequence > 3, unit), now);
        }
    };
    send(&mut tiler, &units[..4], at(0));
    assert!(tiler.poll(at(10)).is_empty(), "it waits for the other tile");
    let first = received(&tiler.poll(at(50)));
    assert_eq!(first.iter().map(|unit| kind(unit)).collect::<Vec<_>>(), [32, 33, 34, IDR, IDR]);
    send(&mut tiler, &units[4..5], at(100));
    let packets = tiler.poll(at(150));
    let second = received(&packets);
    assert_eq!(second.iter().map(|unit| kind(unit)).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(Header::parse(&packets[0]).unwrap().csrcs().collect::<Vec<_>>(), [100]);
    let (grid_sequence, grid_picture) = sets(&first);
    let repeated = Slice::parse(second[1].clone(), &grid_sequence, &grid_picture).unwrap();
    assert!(!repeated.intra() && repeated.data().len() < 20 && repeated.tile == 1);
    assert_eq!(
        tiler.requests(at(160)),
        [101],
        "a tile that has shown nothing yet needs a key frame"
    );
    tiler.leave(0);
    let third = tiler.poll(at(200));
    assert_eq!(Header::parse(&third[0]).unwrap().csrcs().len(), 0, "the place becomes grey");
    let slices = received(&third);
    assert!(Slice::parse(slices[0].clone(), &grid_sequence, &grid_picture).unwrap().intra());
    assert!(tiler.poll(at(300)).is_empty(), "nothing is sent while nothing changes");
}

#[test]
fn after_a_lost_picture_a_tile_waits_for_the_next_that_is_coded_intra() {
    let units = h265_units(false);
    for (lost, wanted) in [(4, vec![32, 33, 34, IDR, 1, 1]), (5, vec![32, 33, 34, IDR, 1])] {
        let mut tiler = tiler(1, 1, 1);
        let mut shown = Vec::new();
        for (number, unit) in units.iter().enumerate() {
            let now = at(100 * number as u64);
            if number != lost {
                tiler.packet(&packet(100, number as u16, number.max(3) as u32, number > 2, unit), now);
            }
            shown.extend(received(&tiler.poll(now + Duration::from_millis(60))).iter().map(|unit| kind(unit)));
        }
        assert_eq!((shown, tiler.status(0).unwrap().refused), (wanted, 0));
        assert_eq!(tiler.requests(at(1000)), if lost == 5 { vec![100] } else { vec![] });
    }
}

#[test]
fn a_picture_that_predicts_from_another_than_the_one_before_is_refused() {
    let units = h265_units(false);
    let mut tiler = tiler(1, 1, 1);
    // The CRA picture has never been sent: no number is missing.
    for (number, unit) in units[..5].iter().chain(&units[6..]).enumerate() {
        tiler.packet(
            &packet(100, number as u16, number.max(3) as u32, number > 2, unit),
            at(100 * number as u64),
        );
    }
    assert_eq!(tiler.status(0).unwrap().refusal, Some(Refusal::References));
}
