//! Spatial layers that are left out of what Chromium sent, with losses, repetitions and changes at any time: what goes on can be decoded, has numbers
//! without a gap, and tells where each picture ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::{ALL_LAYERS, Coding, Continuity, Layered, SpatialLayers, Step, Verdict};
use shunt_rtp::descriptor::{Descriptor, Structure};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

const SSRC: u32 = 7;
const STREAMS: [(Coding, &str); 6] = [
    (Coding::Vp9, include_str!("data/vp9_l2t3.txt")),
    (Coding::Vp9, include_str!("data/vp9_l3t3.txt")),
    (Coding::Vp9, include_str!("data/vp9_l3t3_key.txt")),
    (Coding::Av1, include_str!("data/av1_l2t3.txt")),
    (Coding::Av1, include_str!("data/av1_l3t3.txt")),
    (Coding::Av1, include_str!("data/av1_l3t3_key.txt")),
];

/// A packet, and what its descriptor says.
#[derive(Clone, Debug)]
struct Sent {
    sequence: u16,
    timestamp: u32,
    marker: bool,
    descriptor: Vec<u8>,
    payload: Vec<u8>,
    spatial: u8,
    frame: u16,
    references: Vec<u16>,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn stream(text: &str) -> Vec<Sent> {
    let mut known: Option<Structure> = None;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let descriptor = bytes(words[3]);
            let found = Descriptor::parse(&descriptor, known.as_ref()).unwrap();
            let frame = found.mandatory.frame_number;
            known = found.structure.or(known.take());
            Sent {
                sequence: words[0].parse().unwrap(),
                timestamp: words[1].parse().unwrap(),
                marker: words[2] == "1",
                payload: bytes(words[4]),
                spatial: found.template.spatial,
                frame,
                references: found
                    .template
                    .frame_differences
                    .iter()
                    .map(|one| frame.wrapping_sub(*one))
                    .collect(),
                descriptor,
            }
        })
        .collect()
}

/// What a receiver got.
#[derive(Default)]
struct Receiver {
    layers: SpatialLayers,
    /// By outgoing number: which packet, its marker, and whether it is empty.
    got: BTreeMap<u64, (usize, bool, bool)>,
}

struct Path {
    coding: Coding,
    numbers: Continuity,
    receiver: Receiver,
}

impl Path {
    fn new(coding: Coding) -> Self {
        Self {
            coding,
            numbers: Continuity::new(Duration::from_millis(500)),
            receiver: Receiver::default(),
        }
    }

    fn packet(&mut self, at: usize, packet: &Sent) {
        let now = Duration::from_secs(1);
        let (spatial, verdict) = self.receiver.layers.packet(&Layered {
            coding: self.coding,
            marker: packet.marker,
            timestamp: packet.timestamp,
            descriptor: Some(&packet.descriptor),
            payload: &packet.payload,
        });
        if let Some(spatial) = spatial {
            assert_eq!(spatial, packet.spatial, "packet {at}");
        }
        let (number, what) = match verdict {
            Verdict::Forward { marker } => {
                let step = self.numbers.packet(now, SSRC, packet.sequence, packet.timestamp, 90_000);
                let Step::Forward { sequence, .. } = step else {
                    panic!("packet {at}: {step:?}");
                };
                (sequence, (at, marker, false))
            }
            Verdict::LeftOut => match self.numbers.leave_out(now, SSRC, packet.sequence, packet.timestamp) {
                Some((sequence, _)) => (sequence, (at, false, true)),
                None => return,
            },
        };
        assert!(self.receiver.got.insert(number, what).is_none(), "{number} was given out twice");
    }
}

/// What has to hold of all that a receiver got; `lost`: packets that never came.
fn check(sent: &[Sent], path: &Path, lost: &BTreeSet<usize>) {
    let got = &path.receiver.got;
    let (first, last) = (*got.keys().next().unwrap(), *got.keys().next_back().unwrap());
    let gaps = last - first + 1 - got.len() as u64;
    assert!(
        gaps <= lost.len() as u64,
        "{gaps} numbers are missing, {} packets were lost",
        lost.len()
    );
    let order: Vec<usize> = got.values().map(|(at, ..)| *at).collect();
    assert!(
        order.windows(2).all(|pair| pair[0] < pair[1]),
        "numbers are in the order of the source"
    );
    let whole: BTreeMap<usize, bool> = got.values().filter(|one| !one.2).map(|(at, marker, _)| (*at, *marker)).collect();
    let mut frames: HashMap<u16, Vec<usize>> = HashMap::new();
    for (at, packet) in sent.iter().enumerate() {
        frames.entry(packet.frame).or_default().push(at);
    }
    let is_whole = |frame: u16| {
        frames
            .get(&frame)
            .is_none_or(|packets| packets.iter().all(|at| whole.contains_key(at) || lost.contains(at)))
    };
    let mut units: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for at in whole.keys() {
        let packet = &sent[*at];
        assert!(is_whole(packet.frame), "frame {} goes on in part", packet.frame);
        for reference in &packet.references {
            assert!(
                is_whole(*reference),
                "frame {} refers to {reference}, which was left out",
                packet.frame
            );
        }
        units.entry(packet.timestamp).or_default().push(*at);
    }
    for (timestamp, packets) in units {
        let marked: Vec<usize> = packets.iter().copied().filter(|at| whole[at]).collect();
        let last = *packets.last().unwrap();
        // Which packet is the last cannot be known where one is lost; and Chromium does not mark the end of a picture whose higher layers its encoder
        // has left out at last.
        let unit: Vec<usize> = (0..sent.len()).filter(|at| sent[*at].timestamp == timestamp).collect();
        if unit.iter().all(|at| !lost.contains(at)) && unit.iter().any(|at| sent[*at].marker) {
            assert_eq!(marked, [last], "the end of {timestamp}");
        } else {
            assert!(marked.iter().all(|at| *at == last), "{timestamp} goes on after its end");
        }
    }
}

fn layers_of(sent: &[Sent], path: &Path, timestamp: u32) -> BTreeSet<u8> {
    let whole = path.receiver.got.values().filter(|one| !one.2);
    whole
        .map(|(at, ..)| &sent[*at])
        .filter(|one| one.timestamp == timestamp)
        .map(|one| one.spatial)
        .collect()
}

#[test]
fn down_with_the_next_picture_and_up_with_a_key_frame() {
    for (coding, text) in STREAMS {
        let sent = stream(text);
        let top = sent.iter().map(|one| one.spatial).max().unwrap();
        let starts: Vec<usize> = (1..sent.len())
            .filter(|at| sent[*at].timestamp != sent[*at - 1].timestamp)
            .collect();
        let key = |at: usize| sent[at].spatial == 0 && sent[at].references.is_empty();
        let keys: Vec<usize> = starts.iter().copied().filter(|at| key(*at)).collect();
        let down = starts[12];
        assert!(keys.iter().any(|key| *key > down + 20), "a key frame after {down}");
        let mut path = Path::new(coding);
        for (at, packet) in sent.iter().enumerate() {
            // In the middle of a picture: it stays as it began.
            if at == down - 1 {
                path.receiver.layers.want(0);
            }
            if at == down + 10 {
                path.receiver.layers.want(ALL_LAYERS);
                assert!(path.receiver.layers.waits());
            }
            path.packet(at, packet);
        }
        check(&sent, &path, &BTreeSet::new());
        for (at, packet) in sent.iter().enumerate() {
            let highest = layers_of(&sent, &path, packet.timestamp).into_iter().max().unwrap();
            let before = sent
                .iter()
                .filter(|one| one.timestamp == packet.timestamp)
                .map(|one| one.spatial)
                .max()
                .unwrap();
            let low = at >= down && !keys.iter().any(|key| (down + 10..=at).contains(key));
            assert_eq!(highest, if low { 0 } else { before }, "packet {at}");
        }
        assert!(top > 0 && !path.receiver.layers.waits());
    }
}

#[test]
fn all_of_a_stream_that_tells_no_layers_goes_on_as_it_is() {
    let mut layers = SpatialLayers::default();
    layers.want(0);
    for (coding, payload) in [
        (Coding::Vp8, &[0x10, 0][..]),
        (Coding::H264, &[0x65]),
        (Coding::Av1, &[8]),
        (Coding::Vp9, &[0x8C, 1]),
    ] {
        for marker in [false, true] {
            let packet = Layered {
                coding,
                marker,
                timestamp: 1,
                descriptor: None,
                payload,
            };
            assert_eq!(layers.packet(&packet), (None, Verdict::Forward { marker }));
        }
    }
}

/// Numbers that only look random (Knuth).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_is_lost_and_wanted(which in 0..STREAMS.len(), seed in any::<u64>(), percent in 0u64..10, repaired in 0u64..=100) {
        let (coding, text) = STREAMS[which];
        let sent = stream(text);
        let mut dice = Dice(seed);
        let mut path = Path::new(coding);
        let mut lost = BTreeSet::new();
        let mut late: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, packet) in sent.iter().enumerate() {
            if dice.below(25) == 0 {
                path.receiver.layers.want([0, 1, ALL_LAYERS][dice.below(3) as usize]);
            }
            // The first packet begins the stream, as the edge has it.
            if at > 0 && dice.below(100) < percent {
                if dice.below(100) < repaired {
                    late.entry(at + 1 + dice.below(20) as usize).or_default().push(at);
                } else {
                    lost.insert(at);
                }
            } else {
                path.packet(at, packet);
            }
            for again in late.remove(&at).unwrap_or_default() {
                path.packet(again, &sent[again]);
            }
        }
        for again in late.into_values().flatten() {
            path.packet(again, &sent[again]);
        }
        check(&sent, &path, &lost);
    }

    #[test]
    fn anything_may_come(
        packets in proptest::collection::vec(
            (0..2usize, 0..4u8, any::<bool>(), 0..20u32, 0..60u16, proptest::collection::vec(any::<u8>(), 0..40), proptest::collection::vec(any::<u8>(), 0..12)),
            1..80,
        ),
    ) {
        let (mut layers, mut numbers, mut given) = (SpatialLayers::default(), Continuity::new(Duration::from_millis(500)), BTreeSet::new());
        for (coding, wanted, marker, timestamp, sequence, descriptor, payload) in packets {
            layers.want(wanted);
            let packet = Layered {
                coding: [Coding::Vp9, Coding::Av1][coding],
                marker,
                timestamp: timestamp * 3000,
                descriptor: Some(&descriptor),
                payload: &payload,
            };
            let number = match layers.packet(&packet).1 {
                Verdict::Forward { .. } => match numbers.packet(Duration::ZERO, SSRC, sequence, timestamp, 90_000) {
                    Step::Forward { sequence, .. } => Some(sequence),
                    _ => None,
                },
                Verdict::LeftOut => numbers.leave_out(Duration::ZERO, SSRC, sequence, timestamp).map(|(sequence, _)| sequence),
            };
            if let Some(number) = number {
                prop_assert!(given.insert(number), "{} was given out twice", number);
            }
        }
    }
}
