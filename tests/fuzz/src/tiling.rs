//! Packets of sources that a mixer tiles: whatever they send, the stream that goes out is valid.

use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_tiling::bits::Writer;
use shunt_tiling::h261::mosaic::{self, Mosaic as Quarters};
use shunt_tiling::h261::payload;
use shunt_tiling::h261::picture::Picture;
use shunt_tiling::h264::column::{self, Column};
use shunt_tiling::h264::packets::Reader;
use shunt_tiling::h264::{parameters, slice::Slice};
use shunt_tiling::h265::{self, grid::Grid};
use shunt_tiling::stream::Stream;
use shunt_tiling::tiler::{Mosaic, Place, Tiler, Trial};
use std::time::Duration;

const STREAM: Stream = Stream {
    ssrc: 9,
    payload_type: 96,
    sequence: 65_535,
    timestamp: 0,
    size: 1200,
};

/// Pictures that one input makes at most: one of the largest format takes milliseconds, and an input that makes a thousand of them takes longer than
/// libFuzzer waits.
const PICTURES: usize = 100;

/// Sends packets that begin with two octets each: length, and what is done; returns each picture's packets.
fn send<M: Mosaic>(tiler: &mut Tiler<M>, mut data: &[u8], unit: usize) -> Vec<Vec<Vec<u8>>> {
    let (mut sequence, mut timestamp, mut pictures) = (0u16, 0u32, Vec::new());
    let mut now = Time::default();
    while let [length, what, rest @ ..] = data {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length) * unit));
        data = rest;
        let mut packet = vec![0x80, (what & 1) << 7 | 96];
        packet.extend(sequence.to_be_bytes());
        packet.extend(timestamp.to_be_bytes());
        packet.extend(u32::from(what >> 1 & 1).to_be_bytes());
        packet.extend_from_slice(payload);
        tiler.packet(&packet, now);
        sequence = sequence.wrapping_add(if what & 4 == 0 { 1 } else { 3 });
        timestamp += u32::from(what & 1);
        if what & 8 != 0 {
            tiler.key_frame_wanted();
        }
        if what & 16 != 0 {
            tiler.leave(1);
        }
        now = now + Duration::from_millis(50);
        let packets = tiler.poll(now);
        let _ = (tiler.requests(now), tiler.due_at(now), tiler.status(0));
        if let Some((source, _)) = tiler.sample() {
            tiler.tried(source, if what & 32 == 0 { Trial::Decoded } else { Trial::Undecodable });
        }
        if !packets.is_empty() {
            pictures.push(packets);
        }
        if pictures.len() == PICTURES {
            break;
        }
    }
    pictures
}

fn place<R>(source: u32, contributor: u32, region: R) -> Place<R> {
    Place {
        source,
        contributor,
        region,
    }
}

/// Two H.261 sources, one a mixer: each picture that goes out has twelve groups of blocks.
pub fn h261(data: &[u8]) {
    let mut tiler = Tiler::new(Quarters::default(), STREAM, Duration::ZERO);
    assert_eq!(tiler.join(0, place(0, 10, mosaic::Region::Whole)), Ok(()));
    assert_eq!(tiler.join(1, place(1, 11, mosaic::Region::Quarter(1))), Ok(()));
    for packets in send(&mut tiler, data, 8) {
        let mut bits = Writer::default();
        for packet in &packets {
            assert!(packet.len() <= STREAM.size);
            let read = Header::parse(packet)
                .ok()
                .and_then(|header| payload::Header::parse(header.payload).ok());
            let (header, octets) = read.expect("a payload header");
            bits.copy(octets, header.start.into(), octets.len() * 8 - usize::from(header.end));
        }
        let end = bits.len();
        let mut picture = Picture::default();
        assert_eq!(picture.read(&bits.finish(), 0..end), Ok(()));
        assert_eq!(picture.groups.len(), 12);
    }
}

/// Two H.264 sources, one of which predicts: each picture that goes out has slices from the first tile to the last.
pub fn h264(data: &[u8]) {
    let mut tiler = Tiler::new(Column::new(3), STREAM, Duration::ZERO);
    let region = |predicted| column::Region {
        tile: 0,
        tiles: 1,
        predicted,
    };
    assert_eq!(tiler.join(0, place(0, 10, region(false))), Ok(()));
    assert_eq!(tiler.join(1, place(1, 11, region(true))), Ok(()));
    let (mut sequence, mut picture) = (None, None);
    for packets in send(&mut tiler, data, 8) {
        let (mut reader, mut first) = (Reader::default(), Vec::new());
        for packet in &packets {
            assert!(packet.len() <= STREAM.size);
            let header = Header::parse(packet).expect("a packet");
            if header.payload.is_empty() {
                first.extend([0, 0, 0]);
                continue;
            }
            let units = reader.take(header.payload).ok();
            for unit in units.expect("NAL units") {
                match unit[0] & 31 {
                    7 => sequence = parameters::Sequence::parse(&unit).ok(),
                    8 => picture = parameters::Picture::parse(&unit).ok(),
                    _ => {
                        let (sequence, picture) = (sequence.as_ref().expect("a set"), picture.as_ref().expect("a set"));
                        first.push(Slice::parse(&unit, sequence, picture).expect("a slice").first);
                    }
                }
            }
        }
        assert!(first.first() == Some(&0) && first.is_sorted() && first.len() >= 3);
    }
}

/// Three H.265 sources, one of which predicts and one of which is a mixer, in a grid of four: each picture that goes out has slices of each tile, in
/// order.
pub fn h265(data: &[u8]) {
    let mut tiler = Tiler::new(Grid::new(2, 2), STREAM, Duration::ZERO);
    let region = |predicted, tiles| column::Region {
        tile: tiles - 1,
        tiles,
        predicted,
    };
    assert_eq!(tiler.join(0, place(0, 10, region(false, 1))), Ok(()));
    assert_eq!(tiler.join(1, place(1, 11, region(true, 1))), Ok(()));
    assert_eq!(tiler.join(3, place(1, 12, region(true, 2))), Ok(()));
    let (mut sequence, mut picture) = (None, None);
    for packets in send(&mut tiler, data, 8) {
        let (mut reader, mut slices) = (h265::packets::Reader::default(), Vec::new());
        let mut silent = false;
        for packet in &packets {
            assert!(packet.len() <= STREAM.size);
            let header = Header::parse(packet).expect("a packet");
            silent |= header.payload.is_empty();
            if header.payload.is_empty() {
                continue;
            }
            let units = reader.take(header.payload).ok();
            for unit in units.expect("NAL units") {
                match unit[0] >> 1 {
                    32 => {}
                    33 => sequence = h265::parameters::Sequence::parse(&unit).ok(),
                    34 => picture = h265::parameters::Picture::parse(&unit).ok(),
                    _ => {
                        let (sequence, picture) = (sequence.as_ref().expect("a set"), picture.as_ref().expect("a set"));
                        let slice = h265::slice::Slice::parse(unit, sequence, picture).expect("a slice");
                        slices.push((slice.tile, slice.first));
                    }
                }
            }
        }
        let begun: Vec<u32> = slices.iter().filter(|(_, first)| *first == 0).map(|(tile, _)| *tile).collect();
        assert!(slices.is_sorted() && (begun == [0, 1, 2, 3] || silent && slices.is_empty()));
    }
}
