//! Any bytes: nothing panics, and what goes out is valid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, h261_packets, packet, qcif};
use proptest::prelude::*;
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::bits::{Reader, Writer};
use shunt_tiling::h261::mosaic::{Mosaic, Region};
use shunt_tiling::h261::payload;
use shunt_tiling::h261::picture::Picture;
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
