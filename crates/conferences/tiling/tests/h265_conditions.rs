//! H.265: each condition on a source has a refusal of its own; bit streams are generated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{STREAM, packet};
use shunt_latch::Time;
use shunt_tiling::bits::Writer;
use shunt_tiling::h265::grid::{Grid, Region};
use shunt_tiling::tiler::{Place, Tiler};
use shunt_tiling::{Parameter, Refusal};
use std::time::Duration;

const SPS: u8 = 33;
const PPS: u8 = 34;
const IDR: u8 = 20;
const CRA: u8 = 21;
const RASL: u8 = 9;
const TRAIL: u8 = 1;

/// What a source's parameter sets and slices say; what is not here is as simple as can be.
#[derive(Clone)]
struct Source {
    profile: u32,
    compatible: u32,
    chroma_format: u32,
    width: u32,
    height: u32,
    cropped: bool,
    depth: u32,
    /// log2 of the least coding block less 3, and of the tree less that; transforms likewise, less 2; depths.
    blocks: [u32; 6],
    scaling: bool,
    asymmetric: bool,
    pcm: bool,
    temporal_vectors: bool,
    smoothing: bool,
    fields: bool,
    full_range: bool,
    extension: bool,
    dependent: bool,
    output: bool,
    sign_hiding: bool,
    constrained_intra: bool,
    transform_skip: bool,
    quantiser_depth: Option<u32>,
    chroma: [i32; 2],
    weighted: bool,
    lossless: bool,
    tiles: bool,
    wavefront: bool,
    lists: bool,
    merge_level: u32,
    picture_extension: bool,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            profile: 1,
            compatible: 0x6000_0000,
            chroma_format: 1,
            width: 256,
            height: 64,
            cropped: false,
            depth: 0,
            blocks: [0, 1, 0, 2, 0, 0],
            scaling: false,
            asymmetric: false,
            pcm: false,
            temporal_vectors: false,
            smoothing: false,
            fields: false,
            full_range: false,
            extension: false,
            dependent: false,
            output: false,
            sign_hiding: false,
            constrained_intra: false,
            transform_skip: false,
            quantiser_depth: None,
            chroma: [0; 2],
            weighted: false,
            lossless: false,
            tiles: false,
            wavefront: false,
            lists: false,
            merge_level: 2,
            picture_extension: false,
        }
    }
}

fn unit(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut unit = vec![kind << 1, 1];
    let mut zeros = 0;
    for octet in payload {
        if zeros >= 2 && *octet <= 3 {
            unit.push(3);
            zeros = 0;
        }
        zeros = if *octet == 0 { zeros + 1 } else { 0 };
        unit.push(*octet);
    }
    unit
}

impl Source {
    fn sequence(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.put(1, 8);
        out.put(self.profile, 8);
        out.put(self.compatible, 32);
        out.put(0, 32);
        out.put(93, 24);
        [0, self.chroma_format, self.width, self.height]
            .into_iter()
            .for_each(|number| out.unsigned(number));
        out.flag(self.cropped);
        if self.cropped {
            [0, 0, 0, 4].into_iter().for_each(|number| out.unsigned(number));
        }
        // Order of pictures with 4 bits.
        [self.depth, self.depth, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(true);
        [3, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        self.blocks.into_iter().for_each(|number| out.unsigned(number));
        out.flag(self.scaling);
        if self.scaling {
            out.flag(false);
        }
        out.flag(self.asymmetric);
        out.flag(true);
        out.flag(self.pcm);
        if self.pcm {
            out.put(0x77, 8);
            [0, 0].into_iter().for_each(|number| out.unsigned(number));
            out.flag(false);
        }
        // Sets of reference pictures: one before; from that, two before; and from that, one and three before.
        out.unsigned(3);
        [1, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(true);
        // Moved by -1: the picture before that one is used, itself it is not kept.
        out.put(0b11, 2);
        out.unsigned(0);
        out.put(0b100, 3);
        // Moved by -1: one more before is used, and the one before.
        out.put(0b11, 2);
        out.unsigned(0);
        out.put(0b11, 2);
        out.flag(false);
        out.flag(self.temporal_vectors);
        out.flag(self.smoothing);
        let usability = self.fields || self.full_range;
        out.flag(usability);
        if usability {
            out.put(0, 2);
            out.put(if self.full_range { 0b11_0110 } else { 0 }, if self.full_range { 6 } else { 1 });
            out.put(0, 2);
            out.flag(self.fields);
            out.put(0, 4);
        }
        out.flag(self.extension);
        if self.extension {
            out.put(0x80, 8);
        }
        unit(SPS, &out.trailing())
    }

    fn picture(&self) -> Vec<u8> {
        let mut out = Writer::default();
        [0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(self.dependent);
        out.flag(self.output);
        out.put(0, 3);
        out.flag(self.sign_hiding);
        out.flag(false);
        [0, 0, 0].into_iter().for_each(|number| out.unsigned(number));
        out.flag(self.constrained_intra);
        out.flag(self.transform_skip);
        out.flag(self.quantiser_depth.is_some());
        self.quantiser_depth.into_iter().for_each(|depth| out.unsigned(depth));
        self.chroma.into_iter().for_each(|offset| out.signed(offset));
        out.flag(false);
        out.flag(self.weighted);
        out.flag(false);
        out.flag(self.lossless);
        out.flag(self.tiles);
        out.flag(self.wavefront);
        if self.tiles {
            [0, 1].into_iter().for_each(|number| out.unsigned(number));
            out.put(0b10, 2);
        }
        // No filters across slices, no control of deblocking, no scaling lists.
        out.put(0, 3);
        out.flag(self.lists);
        out.unsigned(self.merge_level - 2);
        out.flag(false);
        out.flag(self.picture_extension);
        if self.picture_extension {
            out.put(0x80, 8);
        }
        unit(PPS, &out.trailing())
    }

    /// A slice at an address, of a picture with an order.
    fn slice(&self, kind: u8, address: u32, order: u32, slice: &SliceOf) -> Vec<u8> {
        let mut out = Writer::default();
        out.flag(address == 0);
        if kind >= 16 {
            out.flag(false);
        }
        out.unsigned(0);
        if address > 0 {
            if self.dependent {
                out.flag(slice.dependent);
            }
            let trees = (self.width / 16) * (self.height / 16);
            out.put(address, trees.next_power_of_two().trailing_zeros());
        }
        out.unsigned(slice.kind);
        if self.output {
            out.flag(slice.shown);
        }
        if kind != IDR {
            out.put(order, 4);
            out.flag(true);
            out.put(slice.references, 2);
            if self.temporal_vectors {
                out.flag(slice.temporal_vectors);
            }
        }
        out.put(0, 2);
        if slice.kind != 2 {
            let lists = if slice.kind == 0 { 2 } else { 1 };
            out.flag(slice.active > 1);
            if slice.active > 1 {
                (0..lists).for_each(|_| out.unsigned(slice.active - 1));
            }
            if self.lists && slice.references == 2 {
                (0..lists).for_each(|_| out.flag(true));
            }
            if slice.kind == 0 {
                // Differences of the second vector.
                out.flag(true);
            }
            out.unsigned(0);
        }
        out.signed(slice.quantiser);
        if self.tiles {
            out.unsigned(0);
        }
        unit(kind, &[out.trailing(), vec![0xAB; 9]].concat())
    }
}

#[derive(Clone)]
struct SliceOf {
    kind: u32,
    dependent: bool,
    shown: bool,
    references: u32,
    temporal_vectors: bool,
    active: u32,
    quantiser: i32,
}

const INTRA: SliceOf = SliceOf {
    kind: 2,
    dependent: false,
    shown: true,
    references: 0,
    temporal_vectors: false,
    active: 1,
    quantiser: 0,
};
const PREDICTED: SliceOf = SliceOf { kind: 1, ..INTRA };
const TWICE: SliceOf = SliceOf { kind: 0, ..INTRA };

/// Pictures of sources, one after the other, each with the number of its source.
fn refusal(predicted: bool, pictures: &[(u32, Vec<Vec<u8>>)]) -> Option<Refusal> {
    let mut tiler = Tiler::new(Grid::new(2, 1), STREAM, Duration::ZERO);
    let region = Region {
        tile: 0,
        tiles: 1,
        predicted,
    };
    for source in 0..2 {
        let place = Place {
            source,
            contributor: source,
            region,
        };
        tiler.join(source as usize, place).unwrap();
    }
    for (number, (source, units)) in pictures.iter().enumerate() {
        let now = Time::from(Duration::from_millis(100 * number as u64));
        for (at, unit) in units.iter().enumerate() {
            let last = at == units.len() - 1;
            let count = pictures[..number]
                .iter()
                .filter(|(other, _)| other == source)
                .map(|(_, units)| units.len());
            let sequence = count.sum::<usize>() as u16 + at as u16;
            tiler.packet(&packet(*source, sequence, number as u32, last, unit), now);
        }
        tiler.poll(now);
    }
    let last = pictures.last().unwrap().0;
    tiler.status(last as usize).unwrap().refusal
}

fn key(source: &Source) -> Vec<Vec<u8>> {
    vec![source.sequence(), source.picture(), source.slice(IDR, 0, 0, &INTRA)]
}

/// Of a source that sends one picture.
fn alone(change: impl Fn(&mut Source)) -> Option<Refusal> {
    let mut source = Source::default();
    change(&mut source);
    refusal(false, &[(0, key(&source))])
}

/// Of a source that comes second.
fn second(change: impl Fn(&mut Source)) -> Option<Refusal> {
    let mut source = Source::default();
    change(&mut source);
    refusal(false, &[(0, key(&Source::default())), (1, key(&source))])
}

/// Of a source that sends a picture after its first, with an order and reference pictures.
fn after(change: impl Fn(&mut Source), kind: u8, order: u32, slice: &SliceOf) -> Option<Refusal> {
    let mut source = Source::default();
    change(&mut source);
    let next = vec![source.slice(kind, 0, order, slice)];
    refusal(true, &[(0, key(&source)), (0, next)])
}

#[test]
fn what_is_as_simple_as_can_be_is_tiled() {
    assert_eq!(alone(|_| ()), None);
    assert_eq!(second(|_| ()), None);
    assert_eq!(after(|_| (), TRAIL, 1, &PREDICTED), None);
    assert_eq!(after(|_| (), TRAIL, 1, &TWICE), None, "from the same picture");
    assert_eq!(after(|_| (), CRA, 3, &INTRA), None);
    // A set of reference pictures that is told by another.
    let two = SliceOf {
        references: 1,
        ..PREDICTED
    };
    assert_eq!(after(|_| (), TRAIL, 2, &two), None);
    let temporal = |source: &mut Source| source.temporal_vectors = true;
    assert_eq!(after(temporal, TRAIL, 1, &PREDICTED), None, "there are none in the slice");
}

#[test]
fn parameter_sets_that_cannot_be_tiled() {
    let profile = |source: &mut Source| (source.profile, source.compatible) = (9, 0x0040_0000);
    assert_eq!(alone(profile), Some(Refusal::MainProfile(9)));
    assert_eq!(alone(|source| source.chroma_format = 2), Some(Refusal::Samples));
    assert_eq!(alone(|source| source.depth = 2), Some(Refusal::Samples));
    assert_eq!(alone(|source| source.height = 72), Some(Refusal::BlockSize(16)));
    assert_eq!(alone(|source| source.blocks[1] = 3), None);
    assert_eq!(alone(|source| source.width = 240), Some(Refusal::TileSize));
    assert_eq!(alone(|source| source.cropped = true), Some(Refusal::Cropped));
    assert_eq!(alone(|source| source.scaling = true), Some(Refusal::ScalingLists));
    assert_eq!(alone(|source| source.pcm = true), Some(Refusal::PulseCode));
    assert_eq!(alone(|source| source.fields = true), Some(Refusal::Interlaced));
    assert_eq!(alone(|source| source.extension = true), Some(Refusal::Extensions));
    assert_eq!(alone(|source| source.picture_extension = true), Some(Refusal::Extensions));
    assert_eq!(alone(|source| source.lossless = true), Some(Refusal::Lossless));
    assert_eq!(alone(|source| source.wavefront = true), Some(Refusal::Wavefront));
    let tiles = |source: &mut Source| (source.tiles, source.height) = (true, 128);
    assert_eq!(alone(tiles), Some(Refusal::Tiles));
    assert_eq!(alone(|source| (source.width, source.height) = (8192, 4096)), Some(Refusal::Level));
    let slice = Source::default().slice(IDR, 0, 0, &INTRA);
    assert_eq!(refusal(false, &[(0, vec![slice])]), Some(Refusal::NoParameters));
}

#[test]
fn what_sources_have_to_have_in_common() {
    let differs = |parameter| Some(Refusal::Differs(parameter));
    assert_eq!(second(|source| source.height = 128), Some(Refusal::PictureSize));
    assert_eq!(second(|source| source.blocks = [0, 1, 0, 1, 0, 0]), differs(Parameter::Blocks));
    assert_eq!(second(|source| source.blocks = [0, 2, 0, 2, 0, 0]), differs(Parameter::Blocks));
    assert_eq!(second(|source| source.asymmetric = true), differs(Parameter::Asymmetric));
    assert_eq!(second(|source| source.smoothing = true), differs(Parameter::Smoothing));
    assert_eq!(second(|source| source.sign_hiding = true), differs(Parameter::SignHiding));
    assert_eq!(
        second(|source| source.constrained_intra = true),
        differs(Parameter::ConstrainedIntra)
    );
    assert_eq!(second(|source| source.transform_skip = true), differs(Parameter::TransformSkip));
    assert_eq!(second(|source| source.quantiser_depth = Some(0)), differs(Parameter::Quantiser));
    assert_eq!(second(|source| source.chroma = [1, 0]), differs(Parameter::Chroma));
    assert_eq!(second(|source| source.merge_level = 3), differs(Parameter::MergeLevel));
    assert_eq!(second(|source| source.full_range = true), differs(Parameter::Colour));
}

#[test]
fn pictures_that_cannot_be_tiled() {
    let key = key(&Source::default());
    let predicted = Source::default().slice(TRAIL, 0, 1, &PREDICTED);
    assert_eq!(refusal(false, &[(0, key), (0, vec![predicted])]), Some(Refusal::Predicted));
    assert_eq!(after(|_| (), RASL, 1, &PREDICTED), Some(Refusal::Reordered));
    assert_eq!(after(|_| (), TRAIL, 15, &INTRA), Some(Refusal::Reordered));
    assert_eq!(after(|_| (), TRAIL, 2, &PREDICTED), Some(Refusal::References));
    let other = SliceOf {
        references: 2,
        ..PREDICTED
    };
    assert_eq!(after(|_| (), TRAIL, 1, &other), None, "the first of two is the one before");
    assert_eq!(after(|source| source.lists = true, TRAIL, 1, &other), Some(Refusal::References));
    let many = SliceOf { active: 2, ..PREDICTED };
    assert_eq!(after(|_| (), TRAIL, 1, &many), Some(Refusal::References));
    let many = SliceOf { active: 2, ..TWICE };
    assert_eq!(after(|_| (), TRAIL, 1, &many), Some(Refusal::References));
    assert_eq!(after(|_| (), TRAIL, 2, &TWICE), Some(Refusal::References));
    assert_eq!(
        after(|source| source.weighted = true, TRAIL, 1, &PREDICTED),
        Some(Refusal::WeightedPrediction)
    );
    let vectors = SliceOf {
        temporal_vectors: true,
        ..PREDICTED
    };
    let temporal = |source: &mut Source| source.temporal_vectors = true;
    assert_eq!(after(temporal, TRAIL, 1, &vectors), Some(Refusal::TemporalVectors));
    let hidden = SliceOf { shown: false, ..INTRA };
    assert_eq!(after(|source| source.output = true, TRAIL, 1, &hidden), Some(Refusal::Hidden));
    let quantiser = SliceOf { quantiser: 40, ..INTRA };
    assert!(matches!(after(|_| (), TRAIL, 1, &quantiser), Some(Refusal::Fault(_))));
}

#[test]
fn slices_of_a_picture() {
    let source = Source {
        dependent: true,
        ..Source::default()
    };
    let dependent = SliceOf { dependent: true, ..INTRA };
    let slices = |addresses: &[u32], slice: &SliceOf| {
        let mut units = vec![source.sequence(), source.picture()];
        units.extend(addresses.iter().map(|address| source.slice(IDR, *address, 0, slice)));
        refusal(false, &[(0, units)])
    };
    assert_eq!(slices(&[0, 5, 40], &INTRA), None);
    assert_eq!(slices(&[0, 5], &dependent), Some(Refusal::Dependent));
    assert_eq!(slices(&[0, 40, 5], &INTRA), Some(Refusal::SliceOrder));
    assert_eq!(slices(&[3, 5], &INTRA), Some(Refusal::SliceOrder));
    let many: Vec<u32> = (0..40).collect();
    assert_eq!(slices(&many, &INTRA), Some(Refusal::Slices));
    let two = vec![
        source.sequence(),
        source.picture(),
        source.slice(CRA, 0, 1, &INTRA),
        source.slice(CRA, 5, 2, &INTRA),
    ];
    assert_eq!(refusal(false, &[(0, two)]), Some(Refusal::SliceOrder), "of two pictures");
}

#[test]
fn a_grid_of_one_that_is_fed_with_its_own_stream_makes_the_same() {
    let source = Source {
        sign_hiding: true,
        quantiser_depth: Some(1),
        chroma: [2, -3],
        full_range: true,
        ..Source::default()
    };
    let quantiser = SliceOf { quantiser: -9, ..TWICE };
    let pictures = [
        key(&source),
        vec![source.slice(TRAIL, 0, 1, &PREDICTED)],
        vec![source.slice(TRAIL, 0, 2, &quantiser), source.slice(TRAIL, 5, 2, &PREDICTED)],
    ];
    let mut sent = Vec::new();
    for (number, units) in pictures.iter().enumerate() {
        let time = Time::from(Duration::from_millis(100 * number as u64));
        for (at, unit) in units.iter().enumerate() {
            let sequence = sent.len() as u16;
            sent.push((time, packet(9, sequence, number as u32, at == units.len() - 1, unit)));
        }
    }
    let through = |sent: &[(Time, Vec<u8>)], source| {
        let mut tiler = Tiler::new(Grid::new(1, 1), STREAM, Duration::ZERO);
        let region = Region {
            tile: 0,
            tiles: 1,
            predicted: true,
        };
        let place = Place {
            source,
            contributor: 9,
            region,
        };
        tiler.join(0, place).unwrap();
        let mut out = Vec::new();
        for (time, packet) in sent {
            tiler.packet(packet, *time);
            out.extend(tiler.poll(*time).into_iter().map(|packet| (*time, packet)));
        }
        assert_eq!(tiler.status(0).unwrap().refusal, None);
        out
    };
    let once = through(&sent, 9);
    let twice = through(&once, STREAM.ssrc);
    assert_eq!(once.iter().filter(|(_, packet)| packet[1] >> 7 == 1).count(), 3);
    assert_eq!(once, twice);
}
