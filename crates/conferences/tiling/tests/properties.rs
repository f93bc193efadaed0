//! Any bytes: nothing panics, and what goes out is valid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, h261_packets, h265_units, packet, qcif, units};
use proptest::prelude::*;
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::bits::{Reader, Writer};
use shunt_tiling::h261::mosaic::{Mosaic, Region};
use shunt_tiling::h261::payload;
use shunt_tiling::h261::picture::Picture;
use shunt_tiling::h264::column::{self, Column};
use shunt_tiling::h264::packets::{Reader as Units, Unit, payloads};
use shunt_tiling::h264::parameters;
use shunt_tiling::h264::slice::Slice;
use shunt_tiling::h265::{self, grid::Grid};
use shunt_tiling::tiler::{Place, Tiler};
use std::time::Duration;

/// A recorded picture with some bytes changed, or noise.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let changed = (
        prop::sample::select(qcif()),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    )
        .prop_map(|(mut picture, changes)| {
            for (at, byte) in changes {
                let at = at.index(picture.len());
                picture[at] = byte;
            }
            picture
        });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 1..300), 4 => changed]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn h261_that_is_damaged_or_lost_leaves_a_stream_that_can_be_read(sent in prop::collection::vec((damaged(), any::<u8>()), 1..8)) {
        let mut tiler = Tiler::new(Mosaic::default(), STREAM, Duration::from_millis(10));
        for (place, region) in [Region::Whole, Region::Quarter(1), Region::Whole].into_iter().enumerate() {
            tiler.join(place, Place { source: place as u32 % 2, contributor: place as u32, region }).unwrap();
        }
        let mut out = Vec::new();
        let mut sequence = 0;
        for (number, (picture, lost)) in sent.iter().enumerate() {
            let now = Time::from(Duration::from_millis(50 * number as u64));
            for (at, packet) in h261_packets(number as u32 % 2, sequence, number as u32, picture).iter().enumerate() {
                sequence += 1;
                if lost >> (at % 8) & 1 == 0 {
                    tiler.packet(packet, now);
                }
            }
            out.push(tiler.poll(now + Duration::from_millis(49)));
        }
        for packets in out.iter().filter(|packets| !packets.is_empty()) {
            let mut bits = Writer::default();
            for packet in packets {
                prop_assert!(packet.len() <= STREAM.size);
                let (header, octets) = payload::Header::parse(Header::parse(packet).unwrap().payload).unwrap();
                bits.copy(octets, header.start.into(), octets.len() * 8 - usize::from(header.end));
            }
            let end = bits.len();
            let mut picture = Picture::default();
            prop_assert_eq!(picture.read(&bits.finish(), 0..end), Ok(()));
            prop_assert_eq!(picture.groups.len(), 12);
        }
    }

    #[test]
    fn any_payload(payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), 0u16..6, any::<bool>()), 1..12)) {
        let mut tiler = Tiler::new(Mosaic::default(), STREAM, Duration::from_millis(10));
        tiler.join(0, Place { source: 1, contributor: 1, region: Region::Whole }).unwrap();
        for (at, (payload, sequence, marker)) in payloads.iter().enumerate() {
            tiler.packet(&packet(1, *sequence, 0, *marker, payload), Time::from(Duration::from_millis(30 * at as u64)));
            let _ = (tiler.poll(Time::from(Duration::from_millis(30 * at as u64 + 29))), tiler.status(0));
        }
    }

    #[test]
    fn h264_that_is_damaged_or_lost_leaves_pictures_of_all_tiles(
        high in any::<bool>(),
        sent in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<(prop::sample::Index, u8)>>(), 0u8..10), 1..20),
    ) {
        const PLACES: usize = 3;
        let mut tiler = Tiler::new(Column::new(PLACES), STREAM, Duration::from_millis(10));
        let region = |predicted| column::Region { tile: 0, tiles: 1, predicted };
        for place in 0..2 {
            tiler.join(place, Place { source: place as u32, contributor: place as u32, region: region(place == 1) }).unwrap();
        }
        // Whole at first, so that there is something to damage.
        let recorded = units(high);
        let whole = recorded.iter().take(3).cloned();
        let damaged = sent.iter().map(|(unit, change, _)| {
            let mut unit = unit.get(&recorded).clone();
            if let Some((at, octet)) = change {
                let at = at.index(unit.len());
                unit[at] = *octet;
            }
            unit
        });
        let mut out = Vec::new();
        for (number, unit) in whole.chain(damaged).enumerate() {
            let now = Time::from(Duration::from_millis(50 * number as u64));
            for place in 0..2 {
                let lost = number > 2 && sent[number - 3].2 == place;
                if !lost {
                    tiler.packet(&packet(place.into(), number as u16, number as u32, true, &unit), now);
                }
            }
            out.push(tiler.poll(now + Duration::from_millis(49)));
        }
        let (mut sequence, mut picture) = (None, None);
        for packets in out.iter().filter(|packets| !packets.is_empty()) {
            let mut reader = Units::default();
            let mut first = Vec::new();
            let payloads = packets.iter().map(|packet| Header::parse(packet).unwrap().payload);
            for unit in payloads.filter(|payload| !payload.is_empty()).flat_map(|payload| reader.take(payload).unwrap()) {
                match unit[0] & 31 {
                    7 => sequence = Some(parameters::Sequence::parse(&unit).unwrap()),
                    8 => picture = Some(parameters::Picture::parse(&unit).unwrap()),
                    _ => first.push(Slice::parse(&unit, &sequence.unwrap(), &picture.unwrap()).unwrap().first),
                }
            }
            if !first.is_empty() {
                prop_assert_eq!(first, [0, 99, 198]);
            }
        }
    }

    #[test]
    fn h265_that_is_damaged_or_lost_leaves_pictures_of_all_tiles(
        intra in any::<bool>(),
        sent in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<(prop::sample::Index, u8)>>(), 0u8..10), 1..20),
    ) {
        let mut tiler = Tiler::new(Grid::new(2, 2), STREAM, Duration::from_millis(10));
        let region = |predicted| column::Region { tile: 0, tiles: 1, predicted };
        for place in 0..3 {
            tiler.join(place, Place { source: place as u32, contributor: place as u32, region: region(place == 1) }).unwrap();
        }
        // Whole at first, so that there is something to damage.
        let recorded = h265_units(intra);
        let whole = recorded.iter().take(4).cloned();
        let damaged = sent.iter().map(|(unit, change, _)| {
            let mut unit = unit.get(&recorded).clone();
            if let Some((at, octet)) = change {
                // Headers rather than data.
                let at = at.index(unit.len().min(40));
                unit[at] = *octet;
            }
            unit
        });
        let mut out = Vec::new();
        for (number, unit) in whole.chain(damaged).enumerate() {
            let now = Time::from(Duration::from_millis(50 * number as u64));
            for place in 0..3 {
                let lost = number > 3 && sent[number - 4].2 == place;
                if !lost {
                    tiler.packet(&packet(place.into(), number as u16, number as u32, true, &unit), now);
                }
            }
            out.push(tiler.poll(now + Duration::from_millis(49)));
        }
        let (mut sequence, mut picture) = (None, None);
        for packets in out.iter().filter(|packets| !packets.is_empty()) {
            let mut reader = h265::packets::Reader::default();
            let mut tiles = Vec::new();
            let payloads = packets.iter().map(|packet| Header::parse(packet).unwrap().payload);
            for unit in payloads.filter(|payload| !payload.is_empty()).flat_map(|payload| reader.take(payload).unwrap()) {
                match unit[0] >> 1 {
                    32 => {}
                    33 => sequence = Some(h265::parameters::Sequence::parse(&unit).unwrap()),
                    34 => picture = Some(h265::parameters::Picture::parse(&unit).unwrap()),
                    _ => {
                        let slice = h265::slice::Slice::parse(unit, sequence.as_ref().unwrap(), picture.as_ref().unwrap()).unwrap();
                        tiles.push((slice.tile, slice.first));
                    }
                }
            }
            if !tiles.is_empty() {
                prop_assert_eq!(tiles, [(0, 0), (1, 0), (2, 0), (3, 0)]);
            }
        }
    }

    #[test]
    fn h265_of_any_bytes(unit in prop::collection::vec(any::<u8>(), 0..80), intra in any::<bool>()) {
        let recorded = h265_units(intra);
        let sequence = h265::parameters::Sequence::parse(&recorded[1]).unwrap();
        let picture = h265::parameters::Picture::parse(&recorded[2]).unwrap();
        let _ = (h265::parameters::Sequence::parse(&unit), h265::parameters::Picture::parse(&unit), h265::packets::Reader::default().take(&unit));
        let _ = h265::slice::Slice::parse(unit, &sequence, &picture);
    }

    #[test]
    fn h264_of_any_bytes(unit in prop::collection::vec(any::<u8>(), 0..60), high in any::<bool>()) {
        let recorded = units(high);
        let (sequence, picture) = (parameters::Sequence::parse(&recorded[0]).unwrap(), parameters::Picture::parse(&recorded[1]).unwrap());
        let _ = (parameters::Sequence::parse(&unit), parameters::Picture::parse(&unit), Units::default().take(&unit));
        let _ = Slice::parse(&unit, &sequence, &picture);
    }

    #[test]
    fn nal_units_round_trip(sizes in prop::collection::vec((2usize..4000, 0u32..20), 0..30), size in 200usize..1500) {
        let sent = |header: &[u8]| -> Vec<Unit> {
            let unit = |(at, (length, contributor)): (usize, &(usize, u32))| Unit {
                octets: [header.to_vec(), vec![at as u8; length - header.len()]].concat(),
                contributor: (*contributor > 3).then_some(*contributor),
            };
            sizes.iter().enumerate().map(unit).collect()
        };
        let (first, second) = (sent(&[0x41]), sent(&[0x02, 0x01]));
        let (mut reader, mut other) = (Units::default(), h265::packets::Reader::default());
        let (mut received, mut others) = (Vec::new(), Vec::new());
        for packet in &payloads(&first, size) {
            prop_assert!(packet.octets.len() + 12 + 4 * packet.contributors.len() <= size && packet.contributors.len() <= 15);
            received.extend(reader.take(&packet.octets).unwrap());
        }
        for packet in &h265::packets::payloads(&second, size) {
            prop_assert!(packet.octets.len() + 12 + 4 * packet.contributors.len() <= size && packet.contributors.len() <= 15);
            others.extend(other.take(&packet.octets).unwrap());
        }
        prop_assert_eq!(received, first.into_iter().map(|unit| unit.octets).collect::<Vec<_>>());
        prop_assert_eq!(others, second.into_iter().map(|unit| unit.octets).collect::<Vec<_>>());
    }

    #[test]
    fn bits_round_trip(numbers in prop::collection::vec((any::<u32>(), 0u32..=32, any::<i16>()), 0..40), skip in 0usize..9) {
        let mut writer = Writer::default();
        for (value, count, signed) in &numbers {
            writer.put(*value, *count);
            writer.unsigned(value >> 1);
            writer.signed(i32::from(*signed));
        }
        let length = writer.len();
        let bytes = writer.finish();
        let mut reader = Reader::within(&bytes, 0, length);
        for (value, count, signed) in &numbers {
            let mask = if *count == 32 { u32::MAX } else { (1 << count) - 1 };
            prop_assert_eq!(reader.take(*count), Some(value & mask));
            prop_assert_eq!(reader.unsigned(), Some(value >> 1));
            prop_assert_eq!(reader.signed(), Some(i32::from(*signed)));
        }
        prop_assert_eq!((reader.left(), reader.take(1)), (0, None));
        let mut copied = Writer::default();
        copied.put(0, 3);
        copied.copy(&bytes, skip, length);
        let copied = copied.finish();
        let mut one = Reader::within(&copied, 3, usize::MAX);
        let mut other = Reader::within(&bytes, skip, length);
        while other.left() > 0 {
            prop_assert_eq!(one.take(1), other.take(1));
        }
    }
}
