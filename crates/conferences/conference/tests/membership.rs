//! Membership to rows: who gets what, listeners, pauses, payload types; and the way from the rows that are there to the wanted ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::{Tables, assert_delivers, check_between, name, run};
use proptest::prelude::*;
use shunt_conference::adaptation::Medium;
use shunt_conference::diff::{Step, diff};
use shunt_conference::jobs::Job;
use shunt_conference::membership::{Conference, MembershipError, TARGETS, TREES, stream_name, stream_of};
use shunt_conference::migration::{Allocator, How};
use shunt_conference::mixing::Mixed;
use shunt_conference::packets::Told;
use shunt_conference::participant::{Leg, Participant, Shown};
use shunt_conference::payload_types::{self, PayloadType, PayloadTypesDiffer, Translation};
use shunt_conference::rewriting::{Former, LayerRow, Numbering, Rewriting, Whole};
use shunt_conference::rows::{Copy, Data, Key, Resolver, Stream, steps};
use shunt_conference::tables::{Limits, Name, Row, Source, Value, Write};
use shunt_conference::tiles::{Shape, Tiles};
use shunt_conference::tiling::Tiling;
use shunt_conference::trees::{Design, Layout};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;

fn at(host: u8, port: u16) -> Endpoint {
    Endpoint::new(Ipv4Addr::new(10, 0, 0, host), port)
}

/// A participant with audio and video in layers, latched, who sends.
fn person(text: &str, number: u8) -> Participant {
    let mut one = Participant::new(name(text));
    for (medium, offset) in [(Medium::Audio, 0), (Medium::Video, 2)] {
        let mut leg = Leg::new(at(1, 20_000 + u16::from(number) * 10 + offset));
        leg.source = Some(at(100 + number, 5000 + offset));
        leg.ssrcs = vec![u32::from(number) * 10 + u32::from(offset)];
        leg.told = (medium == Medium::Video).then_some(Told::DependencyDescriptor(12));
        one.legs.insert((medium, 0), leg);
    }
    one
}

fn conference(names: &str) -> Conference {
    let mut made = Conference::new(name("m"));
    for (at, letter) in names.chars().enumerate() {
        made.join(person(&letter.to_string(), at as u8 + 1)).unwrap();
    }
    made.settle();
    made
}

fn layout(conference: &Conference) -> Layout {
    conference.layout(|_| Some(1))
}

/// The agent's part: trees, numbers, and what is written.
struct Plane {
    allocator: Allocator,
    plan: BTreeMap<Row, Value>,
    numbering: Numbering,
    written: BTreeMap<Key, Data>,
}

impl Plane {
    fn new() -> Self {
        let limits = Limits::default();
        Self {
            allocator: Allocator::new(limits, TREES),
            plan: BTreeMap::new(),
            numbering: Numbering::new(Rewriting::SLr, &limits),
            written: BTreeMap::new(),
        }
    }

    /// Bring the rows to what the conference is; the steps taken.
    fn bring(&mut self, conference: &Conference) -> Vec<Step<Key, Data>> {
        let mut change = self.allocator.change(layout(conference), How::default()).unwrap();
        while let Some(write) = self.allocator.next(&mut change) {
            match write {
                Write::Add(row, value) | Write::Modify(row, value) => drop(self.plan.insert(row, value)),
                Write::Delete(row) => drop(self.plan.remove(&row)),
                Write::Drain => {}
            }
        }
        let mut resolver = Resolver {
            conference,
            numbering: &mut self.numbering,
            nexthop: &|_, _| Some(0),
            copied: &|_| false,
        };
        let wanted = resolver.rows(&self.plan).unwrap();
        let made = steps(&wanted, &self.written, true);
        self.written = wanted;
        made
    }

    /// Where packets of a layer of a stream go: the destinations of the copies.
    fn receivers(&self, ssrc: u32, layer: u32) -> Vec<Endpoint> {
        let (_, stream) = self.stream(ssrc);
        let tree = stream.tree;
        let Some(Data::Tree(members)) = self.written.get(&Key::Tree(tree.mgid + layer.min(tree.trees - 1))) else {
            return Vec::new();
        };
        let others = members.iter().filter(|member| member.xid != tree.l1_xid);
        let rid = |node: u32| match &self.written[&Key::Node(node)] {
            Data::Node(node) => node.rid,
            _ => panic!("no node"),
        };
        let rids = others.map(|member| rid(member.node)).filter(|rid| *rid != tree.rid);
        let mut found: Vec<Endpoint> = rids
            .filter_map(|rid| self.copy(tree.stream, rid))
            .map(|copy| copy.addresses.dst)
            .collect();
        found.sort();
        found
    }

    fn stream(&self, ssrc: u32) -> (&Key, Stream) {
        let found = self
            .written
            .iter()
            .find(|(key, _)| matches!(key, Key::Stream(_, one) if *one == ssrc));
        let (key, Data::Stream(stream)) = found.expect("the stream has a row") else {
            panic!("no stream")
        };
        (key, *stream)
    }

    fn copy(&self, stream: u32, rid: u32) -> Option<&Copy> {
        match self.written.get(&Key::Copy(stream, rid)) {
            Some(Data::Copy(copy)) => Some(copy),
            _ => None,
        }
    }
}

/// The video of participant number n.
fn video(number: u32) -> u32 {
    number * 10 + 2
}

#[test]
fn who_only_listens_gets_all_and_is_sent_nothing_of_its_own() {
    let mut conference = conference("abc");
    let listener = conference.get_mut("c").unwrap();
    for leg in listener.legs.values_mut() {
        (leg.sends, leg.ssrcs) = (false, Vec::new());
    }
    conference.settle();
    let mut plane = Plane::new();
    plane.bring(&conference);
    assert_eq!(plane.allocator.design("m"), Some(Design::Nra));
    assert_eq!(plane.receivers(video(1), 2), [at(102, 5002), at(103, 5002)]);
    let two = layout(&self::conference("a"));
    assert!(two.participants.len() == 1 && two.design(TREES) == Ok(Design::TwoParty));
}

#[test]
fn a_lower_level_writes_trees_first_and_the_row_before_the_receiver_leaves_them() {
    let mut conference = conference("abc");
    let mut plane = Plane::new();
    plane.bring(&conference);
    let (a, c) = (name("a"), name("c"));
    conference.set_level(&a, &c, Medium::Video, 1).unwrap();
    let made = plane.bring(&conference);
    assert_eq!(
        plane.allocator.design("m"),
        Some(Design::Nra),
        "held: c stays in all trees until its numbers have changed over"
    );
    let targets: Vec<usize> = made
        .iter()
        .filter_map(|step| match step {
            Step::Modify(Key::Copy(..), Data::Copy(copy)) if copy.sequence_state != 0 => Some(copy.target),
            _ => None,
        })
        .collect();
    assert_eq!(targets, [TARGETS - 1, 0], "the sequence state begins as one that gets everything");
    assert!(conference.let_go(&a, &c, Medium::Video));
    plane.bring(&conference);
    assert_eq!(plane.allocator.design("m"), Some(Design::RaSr));
    let of = |plane: &Plane, layer| plane.receivers(video(1), layer).contains(&at(103, 5002));
    assert_eq!([of(&plane, 0), of(&plane, 1), of(&plane, 2)], [true, false, false]);
    assert_eq!(plane.receivers(10, 0).len(), 2, "audio goes on to both");
    conference.set_level(&a, &c, Medium::Video, 3).unwrap();
    plane.bring(&conference);
    assert_eq!([of(&plane, 0), of(&plane, 1), of(&plane, 2)], [true, true, true]);
    assert_eq!(
        conference.target(&a, &c, Medium::Video),
        Some(TARGETS - 1),
        "its numbers are its own to the end"
    );
}

#[test]
fn a_paused_stream_goes_to_nobody_who_paused_it_and_comes_back() {
    let mut conference = conference("abc");
    let mut plane = Plane::new();
    plane.bring(&conference);
    let (a, c) = (name("a"), name("c"));
    conference.set_level(&a, &c, Medium::Video, 0).unwrap();
    plane.bring(&conference);
    for layer in 0..3 {
        assert_eq!(plane.receivers(video(1), layer), [at(102, 5002)], "layer {layer}");
    }
    assert_eq!(
        (plane.receivers(10, 0).len(), plane.receivers(video(2), 2).len()),
        (2, 2),
        "audio, and b's video, go on"
    );
    conference.set_level(&a, &c, Medium::Video, 1).unwrap();
    plane.bring(&conference);
    assert_eq!(plane.receivers(video(1), 0).len(), 2);
    assert_eq!(
        conference.set_level(&a, &c, Medium::Video, 4),
        Err(MembershipError::Level(4, "video"))
    );
    assert_eq!(
        conference.set_level(&a, &a, Medium::Video, 1),
        Err(MembershipError::Itself(a.clone()))
    );
    conference.get_mut("a").unwrap().encrypted = true;
    assert_eq!(conference.set_level(&a, &c, Medium::Video, 2), Err(MembershipError::Encrypted(a)));
}

#[test]
fn a_quality_leaves_media_out_and_leaving_forgets_it() {
    let mut conference = conference("abc");
    let mut plane = Plane::new();
    conference.set_quality(&name("a"), &name("b"), Medium::Audio).unwrap();
    plane.bring(&conference);
    assert_eq!(plane.receivers(video(1), 0), [at(103, 5002)]);
    conference.leave("b").unwrap();
    assert!(conference.qualities.is_empty());
    assert_eq!(
        conference.leave("b").unwrap_err().to_string(),
        "conference m has no participant \"b\""
    );
    plane.bring(&conference);
    conference.leave("a").unwrap();
    conference.leave("c").unwrap();
    plane.bring(&conference);
    let left: Vec<&Key> = plane.written.keys().filter(|key| !matches!(key, Key::Prune(_))).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_ssrc_is_the_first_ones_who_sent_it() {
    let mut conference = conference("abc");
    conference.learn("b", Medium::Video, video(1), false).unwrap();
    assert_eq!(conference.conflict(&name("b"), Medium::Video, video(1)), Some(&name("a")));
    let streams = &layout(&conference).participants[1].streams;
    assert!(
        !streams.iter().any(|(stream, _)| *stream == stream_name(Medium::Video, video(1))),
        "{streams:?}"
    );
    conference.leave("a").unwrap();
    assert_eq!(conference.conflict(&name("b"), Medium::Video, video(1)), None);
    assert_eq!(stream_of(&stream_name(Medium::Screen, 7)), Some((Medium::Screen, 7)));
}

#[test]
fn repair_streams_do_not_go_to_who_has_other_numbers() {
    let mut conference = conference("abc");
    conference.learn("a", Medium::Video, 99, true).unwrap();
    conference.set_level(&name("a"), &name("c"), Medium::Video, 2).unwrap();
    conference.let_go(&name("a"), &name("c"), Medium::Video);
    let mut plane = Plane::new();
    plane.bring(&conference);
    assert_eq!(plane.receivers(99, 0), [at(102, 5002)]);
}

#[test]
fn further_legs_bring_one_sender_each() {
    let mut conference = conference("abc");
    let viewer = conference.get_mut("c").unwrap();
    let mut leg = Leg::new(at(1, 29_000));
    leg.source = Some(at(103, 7000));
    viewer.legs.insert((Medium::Video, 1), leg);
    conference.settle();
    let mut plane = Plane::new();
    plane.bring(&conference);
    let places: Vec<Endpoint> = [1, 2]
        .into_iter()
        .flat_map(|n| plane.receivers(video(n), 0))
        .filter(|to| to.addr == at(103, 0).addr)
        .collect();
    assert_eq!(places, [at(103, 5002), at(103, 7000)]);
}

#[test]
fn a_leg_that_only_sends_brings_nobody() {
    let mut conference = conference("abc");
    let viewer = conference.get_mut("c").unwrap();
    viewer.legs.get_mut(&(Medium::Video, 0)).unwrap().receives = false;
    let mut leg = Leg::new(at(1, 29_000));
    leg.source = Some(at(103, 7000));
    viewer.legs.insert((Medium::Video, 1), leg);
    conference.settle();
    let shows = &conference.get("c").unwrap().shows;
    assert_eq!(shows.get(&(Medium::Video, 1)), Some(&whole("a")), "{shows:?}");
    assert_eq!(shows.len(), 1);
}

fn payload_type(number: u8, codec: &str, parameters: &str) -> PayloadType {
    PayloadType {
        number,
        codec: codec.to_owned(),
        parameters: parameters.to_owned(),
    }
}

#[test]
fn payload_types_are_those_of_the_receiver() {
    let sender = [
        payload_type(111, "opus/48000/2", "minptime=10"),
        payload_type(96, "VP8/90000", ""),
        payload_type(97, "rtx/90000", "apt=96"),
        payload_type(0, "PCMU/8000", ""),
    ];
    let receiver = [
        payload_type(109, "OPUS/48000/2", ""),
        payload_type(120, "VP8/90000", ""),
        payload_type(124, "rtx/90000", "apt=120"),
        payload_type(0, "PCMU/8000/1", ""),
    ];
    let found = Translation::between(&sender, &receiver);
    assert_eq!(found.rewritten, [(111, 109), (96, 120), (97, 124)]);
    assert!(found.unknown.is_empty());
    assert_eq!(Translation::between(&sender, &receiver[..1]).unknown, [96, 97, 0]);
    let conference = with_types([&sender[..1], &receiver[..1]]);
    assert!(!layout(&conference).relayed, "a relay entry rewrites no payload types");
    let mut plane = Plane::new();
    plane.bring(&conference);
    let rewritten: HashSet<Vec<(u8, u8)>> = plane
        .written
        .values()
        .filter_map(|data| match data {
            Data::Copy(copy) => Some(copy.payload_types.clone()),
            _ => None,
        })
        .collect();
    assert!(
        rewritten.contains(&vec![(111, 109)]) && rewritten.contains(&vec![(109, 111)]),
        "{rewritten:?}"
    );
}

fn with_types(types: [&[PayloadType]; 2]) -> Conference {
    let mut conference = conference("ab");
    for (who, types) in ["a", "b"].into_iter().zip(types) {
        let leg = conference.get_mut(who).unwrap().legs.get_mut(&(Medium::Audio, 0)).unwrap();
        leg.payload_types = types.to_vec();
    }
    conference
}

#[test]
fn who_cannot_be_given_the_others_payload_types_is_told_why() {
    let opus = |number| payload_type(number, "opus/48000/2", "");
    let red = |number, parameters: &str| payload_type(number, "red/48000/2", parameters);
    let tones = |number| payload_type(number, "telephone-event/8000", "0-16");
    let rtx = |number, parameters: &str| payload_type(number, "rtx/90000", parameters);
    let why = |types: [&[PayloadType]; 2], room: usize| {
        let found = with_types(types).check_payload_types(&name("b"), room);
        found.map_err(|differ| differ.to_string()).err().unwrap_or_default()
    };
    assert_eq!(why([&[opus(111)], &[opus(109)]], 4), "");
    let not_rewritten = "audio: a has payload type 111 for what b has 109 for, and the data plane does not rewrite payload types";
    assert_eq!(why([&[opus(111)], &[opus(109)]], 0), not_rewritten);
    assert_eq!(why([&[opus(111)], &[opus(111)]], 0), "");
    assert_eq!(why([&[opus(111)], &[]], 0), "", "of who names no codecs nothing is known");
    let pcmu = payload_type(0, "PCMU/8000", "");
    assert_eq!(
        why([&[opus(111), pcmu.clone()], &[opus(109)]], 4),
        "audio: a has payload type 0 for PCMU/8000, and b has none"
    );
    assert_eq!(
        why([&[opus(109)], &[opus(111), pcmu.clone()]], 4),
        "audio: b has payload type 0 for PCMU/8000, and a has none",
        "also of who joins"
    );
    let two = [opus(111), pcmu];
    let other = [opus(109), payload_type(8, "PCMU/8000", "")];
    assert_eq!(
        why([&two, &other], 1),
        "audio: 2 payload types of a are others for b, and the data plane rewrites 1 in one copy"
    );
    let inside = why([&[opus(111), red(63, "111/111")], &[opus(109), red(63, "109/109")]], 4);
    assert!(
        inside.starts_with("audio: red/48000/2 of a has payload types in its payload"),
        "{inside}"
    );
    assert_eq!(
        why([&[opus(111), red(63, "111/111")], &[opus(111), red(62, "111/111")]], 4),
        "",
        "its own number is none of them"
    );
    assert_eq!(
        why([&[opus(111), tones(101), rtx(97, "apt=111")], &[opus(109)]], 4),
        "",
        "these can be done without"
    );
    assert_eq!(
        why([&[opus(111), tones(109)], &[opus(109)]], 4),
        "audio: a has payload type 109 for telephone-event/8000, and b has none",
        "it would be taken for opus"
    );
    let mut encrypted = with_types([&[opus(111)], &[opus(109)]]);
    encrypted.get_mut("a").unwrap().encrypted = true;
    let error = encrypted.check_payload_types(&name("b"), 4).unwrap_err().to_string();
    assert!(error.ends_with("and SRTP authenticates it"), "{error}");
}

#[test]
fn who_only_listens_need_not_know_what_others_could_send_to_it_nor_they_its_codecs() {
    let (opus, pcmu) = (payload_type(111, "opus/48000/2", ""), payload_type(0, "PCMU/8000", ""));
    let codecs = [opus, pcmu];
    let mut conference = with_types([&codecs[..1], &codecs]);
    let direction = |conference: &mut Conference, sends, receives| {
        let leg = conference.get_mut("b").unwrap().legs.get_mut(&(Medium::Audio, 0)).unwrap();
        (leg.sends, leg.receives) = (sends, receives);
    };
    assert!(conference.check_payload_types(&name("b"), 4).is_err());
    direction(&mut conference, false, true);
    conference.check_payload_types(&name("b"), 4).unwrap();
    direction(&mut conference, false, false);
    assert!(conference.check_payload_types(&name("b"), 4).is_err(), "on hold it comes back");
}

#[test]
fn a_receiver_without_rtx_gets_none() {
    let vp8 = |number| payload_type(number, "VP8/90000", "");
    let rtx = payload_type(97, "rtx/90000", "apt=96");
    for (theirs, kept_back) in [
        (vec![vp8(120)], true),
        (vec![vp8(120), payload_type(124, "rtx/90000", "apt=120")], false),
        (vec![], false),
    ] {
        let mut conference = with_types([&[vp8(96), rtx.clone()], &theirs]);
        let leg = conference.get_mut("a").unwrap().legs.get_mut(&(Medium::Audio, 0)).unwrap();
        (leg.ssrcs, leg.repair) = (vec![1, 2], vec![2]);
        let found = [1, 2].map(|ssrc| conference.is_kept_back(&name("a"), &name("b"), Medium::Audio, ssrc));
        assert_eq!(found, [false, kept_back], "{theirs:?}");
    }
}

#[test]
fn a_packet_of_the_cache_gets_the_receivers_payload_type() {
    let pairs = [(96, 120), (97, 96)];
    for (before, after) in [(96, 120), (0x80 | 96, 0x80 | 120), (97, 96), (120, 120)] {
        let mut packet = vec![0x80, before, 0, 1];
        payload_types::rewrite(&mut packet, &pairs);
        assert_eq!(packet, [0x80, after, 0, 1]);
    }
    payload_types::rewrite(&mut [0x80], &pairs);
}

#[test]
fn template_structures_become_rows_of_layer() {
    let line = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/vectors/conference/chromium_av1.txt"
    ))
    .unwrap();
    let head = line.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap();
    let packet: Vec<u8> = (0..head.len() / 2)
        .map(|at| u8::from_str_radix(&head[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let source = Source {
        conference: name("m"),
        sender: name("a"),
        stream: name("video:1"),
    };
    for (rewriting, switches, cadences) in [(Rewriting::SLr, 0b111, [0, 0]), (Rewriting::SLm, 0, [0b1110, 0b1010])] {
        let (mut numbering, there) = (Numbering::new(rewriting, &Limits::default()), at(3, 6000));
        let place = (FiveTuple::new(at(2, 5000), at(1, 20_000)), 1);
        assert_eq!(
            numbering.stream(&source, place, Told::DependencyDescriptor(12), false).unwrap(),
            (1, 0)
        );
        assert!(numbering.awaits_structure(&source) && numbering.sequence_state(&source, &name("c"), there) == 0);
        assert!(numbering.see(&source, &packet).unwrap() && !numbering.see(&source, &packet).unwrap());
        let rows: BTreeMap<_, _> = numbering.rows(&source).collect();
        let layers: Vec<u8> = (0..5).map(|template| rows[&(1, template)].layer).collect();
        assert_eq!((layers, rows[&(1, 0)].switches), (vec![0, 0, 1, 2, 2], switches));
        // The captured key frame has number 1.
        let turned = |mask: u8| (mask << 1 | mask >> 3) & 0xF;
        assert_eq!([0, 1].map(|target| numbering.cadence(&source, target)), cadences.map(turned));
        let (_, track) = numbering.stream(&source, place, Told::DependencyDescriptor(12), true).unwrap();
        assert_eq!(track != 0, rewriting == Rewriting::SLr);
        assert_eq!(numbering.sequence_state(&source, &name("c"), there), 1);
        numbering.forget(&name("m"), &HashSet::new(), &HashSet::new());
        assert_eq!((numbering.room(), numbering.whole(&source)), (65_536, None::<Whole>));
    }
}

#[test]
fn streams_and_receivers_go_on_with_the_numbers_that_were_found() {
    let source = Source {
        conference: name("m"),
        sender: name("a"),
        stream: name("video:1"),
    };
    let (place, there) = ((FiveTuple::new(at(2, 5000), at(1, 20_000)), 1), at(3, 6000));
    let former = Former {
        layers: 3,
        track: 7,
        rows: BTreeMap::from([(5, LayerRow { layer: 1, switches: 0 })]),
        sequence_states: HashMap::from([(there, 9), (at(4, 6000), 2)]),
    };
    let mut numbering = Numbering::new(Rewriting::SLr, &Limits::default());
    numbering.remember(HashMap::from([
        (place, former.clone()),
        (
            (place.0, 2),
            Former {
                layers: 1,
                ..Former::default()
            },
        ),
    ]));
    let told = Told::DependencyDescriptor(12);
    assert_eq!(numbering.stream(&source, place, told, true).unwrap(), (3, 7));
    assert_eq!(numbering.sequence_state(&source, &name("b"), there), 9);
    assert_eq!(
        numbering
            .rows(&source)
            .map(|((layers, template), _)| (layers, template))
            .collect::<Vec<_>>(),
        [(3, 5)]
    );
    // Until what was found is gone, its numbers are nobody else's.
    assert!(![2, 9].contains(&numbering.sequence_state(&source, &name("c"), at(5, 6000))));
    numbering.give_back();
    assert_eq!(numbering.room(), 65_536 - 2);
    let other = Source {
        stream: name("video:2"),
        ..source
    };
    assert_eq!(numbering.stream(&other, (place.0, 2), told, false).unwrap().0, 1);
}

fn members() -> impl Strategy<Value = (Vec<usize>, bool)> {
    (
        proptest::sample::subsequence((0..5usize).collect::<Vec<_>>(), 0..=5).prop_shuffle(),
        any::<bool>(),
    )
}

fn planned((members, adapted): &(Vec<usize>, bool)) -> Layout {
    let names: String = members.iter().map(|at| ["a", "b", "c", "d", "e"][*at]).collect();
    let mut made = model::layout("m", &names);
    if let (true, [first, second, ..]) = (*adapted, &made.participants[..]) {
        made.targets.insert((first.name.clone(), second.name.clone()), 1);
    }
    made
}

/// The rows of a plan as a data plane has them.
fn rows_of(tables: &Tables) -> BTreeMap<Row, Value> {
    tables.0.iter().map(|(row, value)| (row.clone(), value.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn the_writes_of_a_diff_lead_to_the_new_rows_and_misdeliver_nothing_on_the_way(found in members(), wanted in members()) {
        let (before, after) = (planned(&found), planned(&wanted));
        let mut old = Tables::default();
        run(&mut Allocator::new(Limits::default(), 3), &mut old, &before, How::default());
        // An agent that comes back lays everything out beside what it found.
        let mut allocator = Allocator::new(Limits::default(), 3);
        let reserved = allocator.reserve(old.0.keys());
        let mut new = Tables::default();
        run(&mut allocator, &mut new, &after, How::default());
        let (mut tables, mut history, mut drained) = (old.clone(), vec![old.clone()], false);
        for step in diff(&rows_of(&new), &rows_of(&old)) {
            match step {
                Step::Add(row @ Row::Prune(_), value) => tables.apply(&Write::Modify(row, value)),
                Step::Add(row, value) => tables.apply(&Write::Add(row, value)),
                Step::Modify(row, value) => tables.apply(&Write::Modify(row, value)),
                Step::Delete(row @ Row::Prune(_)) => tables.apply(&Write::Modify(row, Value::Prune(Default::default()))),
                Step::Delete(row) => tables.apply(&Write::Delete(row)),
                Step::Drain => {
                    check_between(&history, &before, &after);
                    history.clear();
                    drained = true;
                }
            }
            history.push(tables.clone());
        }
        check_between(&history, if drained { &after } else { &before }, &after);
        assert_delivers(&tables, &[&after]);
        prop_assert_eq!(&tables, &new);
        allocator.give_back(reserved);
        run(&mut allocator, &mut tables, &Layout::empty(Name::from("m")), How::default());
        prop_assert!(tables.0.is_empty());
    }
}

/// A telephone: one description of audio, of this codec.
fn phone(text: &str, number: u8, codec: &str) -> Participant {
    let mut one = person(text, number);
    one.legs.remove(&(Medium::Video, 0));
    let payload_type = PayloadType {
        number: 8,
        codec: codec.to_owned(),
        parameters: String::new(),
    };
    one.legs.get_mut(&(Medium::Audio, 0)).unwrap().payload_types = vec![payload_type];
    one
}

/// Audio goes to this participant of a mixer's.
fn mixer() -> Participant {
    let mut one = Participant::new(name("#mixer"));
    one.mixer = Some(Job::Mixes);
    let mut leg = Leg::new(at(1, 29_998));
    (leg.source, leg.sends) = (Some(at(200, 30_000)), false);
    one.legs.insert((Medium::Audio, 0), leg);
    one
}

/// Where copies of a stream go.
fn copies_of(plane: &Plane, leg: &Leg, ssrc: u32) -> BTreeSet<Endpoint> {
    let flow = FiveTuple::new(leg.source.unwrap(), leg.relay);
    let Some(Data::Stream(stream)) = plane.written.get(&Key::Stream(flow, ssrc)) else {
        panic!("{flow:?} has no row");
    };
    let Some(Data::Tree(members)) = plane.written.get(&Key::Tree(stream.tree.mgid)) else {
        return BTreeSet::new(); // a tree without members has no row
    };
    let copies = members
        .iter()
        .filter(|member| member.xid != stream.tree.l1_xid)
        .filter_map(|member| {
            let Some(Data::Node(node)) = plane.written.get(&Key::Node(member.node)) else {
                panic!("no node");
            };
            match plane.written.get(&Key::Copy(stream.tree.stream, node.rid)) {
                Some(Data::Copy(copy)) if node.rid != stream.tree.rid => Some(copy.addresses.dst),
                _ => None,
            }
        });
    copies.collect()
}

/// Where copies of a participant's audio go.
fn audio_of(plane: &Plane, sender: &Conference, who: &str) -> BTreeSet<Endpoint> {
    let leg = sender.get(who).unwrap().leg(Medium::Audio).unwrap();
    copies_of(plane, leg, leg.ssrcs[0])
}

#[test]
fn telephones_get_the_mix_and_others_copies() {
    let mut made = conference("ab");
    made.mixing = true;
    made.join(phone("p", 3, "PCMA/8000")).unwrap();
    made.join(phone("q", 4, "PCMA/8000")).unwrap();
    made.settle();
    assert!(
        made.get("p").unwrap().mixed && !made.get("a").unwrap().mixed,
        "who named no codec gets no mix"
    );
    let mut plane = Plane::new();
    plane.bring(&made);
    // No mixer is there yet: all get copies.
    assert_eq!(audio_of(&plane, &made, "a"), [at(102, 5000), at(103, 5000), at(104, 5000)].into());
    made.join(mixer()).unwrap();
    made.settle();
    plane.bring(&made);
    assert_eq!(audio_of(&plane, &made, "a"), [at(102, 5000), at(200, 30_000)].into());
    assert_eq!(audio_of(&plane, &made, "p"), [at(101, 5000), at(102, 5000), at(200, 30_000)].into());
    let relays: BTreeMap<&Key, &Data> = plane.written.iter().filter(|(key, _)| matches!(key, Key::Relay(_))).collect();
    assert_eq!(relays.len(), 2);
    for (number, to) in [(3, at(103, 5000)), (4, at(104, 5000))] {
        let relay = at(1, 20_000 + number * 10);
        assert_eq!(
            relays.get(&Key::Relay(FiveTuple::new(at(200, 30_000), relay))),
            Some(&&Data::Relay(FiveTuple::new(relay, to)))
        );
    }
    // The mixer gets no pictures: no copy goes to it but audio, from its one relay address.
    let to_mixer = plane
        .written
        .values()
        .filter(|data| matches!(data, Data::Copy(copy) if copy.addresses.dst == at(200, 30_000)));
    assert_eq!(to_mixer.count(), 4);
    made.leave("#mixer").unwrap();
    plane.bring(&made);
    assert_eq!(audio_of(&plane, &made, "a"), [at(102, 5000), at(103, 5000), at(104, 5000)].into());
    assert!(!plane.written.keys().any(|key| matches!(key, Key::Relay(_))));
}

/// All streams of a sender.
fn whole(sender: &str) -> Shown {
    Shown {
        sender: name(sender),
        ssrc: None,
    }
}

/// Video comes to this participant of a mixer's, and tiled streams or a column from it.
fn tiler(job: Job, number: u8) -> Participant {
    let mut one = Participant::new(job.participant());
    one.mixer = Some(job);
    let mut leg = Leg::new(at(1, 29_900 + 2 * u16::from(number)));
    leg.source = Some(at(201 + number, 30_002));
    one.legs.insert((Medium::Video, 0), leg);
    one
}

/// Tiles of all these people's video.
fn tiles_of(made: &Conference, names: &str, shape: Shape) -> Tiles {
    let mut tiles = Tiles::new(shape);
    let sources: Vec<_> = names
        .chars()
        .map(|letter| {
            let one = made.get(&letter.to_string()).unwrap();
            (one.name.clone(), Ok(one.leg(Medium::Video).unwrap().picture().unwrap()))
        })
        .collect();
    let mut next = 7000;
    let mut fresh = || {
        next += 1;
        next
    };
    tiles.assign(&sources, &mut fresh, shunt_latch::Time::default());
    tiles
}

const QUARTERS: Shape = Shape { places: 4, columns: None };

fn h261(number: u8) -> PayloadType {
    PayloadType {
        number,
        codec: "H261/90000".to_owned(),
        parameters: String::new(),
    }
}

/// Whose video goes to an address.
fn video_to(plane: &Plane, made: &Conference, to: Endpoint) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for one in &made.participants {
        let Some(leg) = one.leg(Medium::Video) else { continue };
        for ssrc in &leg.ssrcs {
            if copies_of(plane, leg, *ssrc).contains(&to) {
                found.insert(one.name.to_string());
            }
        }
    }
    found
}

#[test]
fn who_gets_tiled_streams_gets_no_other_video_and_nobody_else_gets_them() {
    let mut made = conference("abc");
    made.tiling = Some(Tiling {
        payload_type: h261(31),
        receivers: Some([name("b"), name("c")].into()),
        tiles: tiles_of(&made, "abc", QUARTERS),
    });
    made.settle();
    let video = |number: u8| at(100 + number, 5002);
    let mixer = at(201, 30_002);
    let mut plane = Plane::new();
    plane.bring(&made);
    assert_eq!(video_to(&plane, &made, video(1)), ["b".to_owned(), "c".to_owned()].into());
    assert_eq!(video_to(&plane, &made, video(2)), [].into(), "no mixer makes them yet");
    made.join(tiler(Job::Tiles, 0)).unwrap();
    made.settle();
    plane.bring(&made);
    assert_eq!(video_to(&plane, &made, video(1)), ["b".to_owned(), "c".to_owned()].into());
    for number in [2, 3] {
        assert_eq!(video_to(&plane, &made, video(number)), ["#tiles".to_owned()].into());
    }
    assert_eq!(
        video_to(&plane, &made, mixer),
        ["a".to_owned(), "b".to_owned(), "c".to_owned()].into()
    );
    assert_eq!(
        audio_of(&plane, &made, "a"),
        [at(102, 5000), at(103, 5000)].into(),
        "audio goes on, and not to the mixer"
    );
    // No row is kept for what nobody gets: a's audio and video for b and c, theirs for each other and for a, and the mixer's.
    let rows = |plane: &Plane, to: Endpoint| {
        plane
            .written
            .values()
            .filter(|data| matches!(data, Data::Copy(copy) if copy.addresses.dst == to))
            .count()
    };
    assert_eq!([video(1), video(2), video(3), mixer].map(|to| rows(&plane, to)), [2, 1, 1, 3]);
    // Another receiver: everybody gets what is new, and nothing twice.
    made.tiling.as_mut().unwrap().receivers = None;
    made.settle();
    plane.bring(&made);
    for number in [1, 2, 3] {
        assert_eq!(video_to(&plane, &made, video(number)), ["#tiles".to_owned()].into());
    }
    made.tiling = None;
    made.settle();
    plane.bring(&made);
    let others = BTreeSet::from(["a".to_owned(), "c".to_owned()]);
    assert_eq!(video_to(&plane, &made, video(2)), others, "nobody gets tiles any more");
    made.leave("#tiles").unwrap();
    plane.bring(&made);
    assert_eq!(video_to(&plane, &made, video(2)), others);
}

#[test]
fn each_tiled_stream_has_a_leg_of_its_own_as_far_as_there_are_enough() {
    let mut made = conference("abc");
    let alone = Shape { places: 1, columns: None };
    let tile = |made: &mut Conference, sources: &str| {
        made.tiling = Some(Tiling {
            payload_type: h261(31),
            receivers: Some([name("b"), name("c")].into()),
            tiles: tiles_of(made, sources, alone),
        });
        made.settle();
    };
    tile(&mut made, "a");
    let tiled = |n: u16| at(1, 29_000 + 2 * n);
    let receiver = made.get_mut("c").unwrap();
    receiver.legs.get_mut(&(Medium::Video, 0)).unwrap().receives = false;
    for further in [1, 2] {
        let mut leg = Leg::new(tiled(further));
        leg.source = Some(at(103, 7000 + further));
        receiver.legs.insert((Medium::Video, u8::try_from(further).unwrap()), leg);
    }
    made.join(tiler(Job::Tiles, 0)).unwrap();
    made.settle();
    let mut plane = Plane::new();
    plane.bring(&made);
    let video = |made: &Conference, plane: &Plane, ssrc| copies_of(plane, made.get("#tiles").unwrap().leg(Medium::Video).unwrap(), ssrc);
    let (b, first, second) = (at(102, 5002), at(103, 7001), at(103, 7002));
    assert_eq!(video(&made, &plane, 7001), [b, first].into());
    tile(&mut made, "ab");
    plane.bring(&made);
    assert_eq!(video(&made, &plane, 7001), [b, first].into(), "what has a leg keeps it");
    assert_eq!(video(&made, &plane, 7002), [b, second].into(), "who has one leg gets all by that");
    let brings = made.get("c").unwrap();
    let relay = |ssrc| brings.leg_for_stream(&name("#tiles"), Medium::Video, ssrc).unwrap().relay;
    assert_eq!((relay(7001), relay(7002)), (tiled(1), tiled(2)));
    assert_eq!(brings.leg_for(&name("#tiles"), Medium::Video).unwrap().relay, tiled(1));
    // One stream too many has none: the first leg only sends.
    tile(&mut made, "abc");
    plane.bring(&made);
    assert_eq!(video(&made, &plane, 7003), [b].into());
    // Without tiles legs bring senders again.
    made.tiling = None;
    made.leave("#tiles").unwrap();
    let shows: Vec<&Shown> = made.get("c").unwrap().shows.values().collect();
    assert_eq!(shows, [&whole("a"), &whole("b")]);
}

#[test]
fn of_two_levels_each_mixer_gets_what_it_works_on_and_receivers_get_what_is_joined() {
    let mut made = conference("abcde");
    let shape = Shape {
        places: 2,
        columns: Some(2),
    };
    made.tiling = Some(Tiling {
        payload_type: h261(96),
        receivers: Some([name("e")].into()),
        tiles: tiles_of(&made, "abcd", shape),
    });
    for (number, job) in (0..).zip([Job::Tiles, Job::Column(0), Job::Column(1)]) {
        made.join(tiler(job, number)).unwrap();
    }
    made.settle();
    let mut plane = Plane::new();
    plane.bring(&made);
    let names = |list: &[&str]| -> BTreeSet<String> { list.iter().map(|name| (*name).to_owned()).collect() };
    let (joins, first, second) = (at(201, 30_002), at(202, 30_002), at(203, 30_002));
    let (a, e) = (at(101, 5002), at(105, 5002));
    assert_eq!(video_to(&plane, &made, first), names(&["a", "b"]));
    assert_eq!(video_to(&plane, &made, second), names(&["c", "d"]));
    assert_eq!(video_to(&plane, &made, joins), names(&["#tiles:0", "#tiles:1"]));
    assert_eq!(video_to(&plane, &made, e), names(&["#tiles"]));
    assert_eq!(
        video_to(&plane, &made, a),
        names(&["b", "c", "d", "e"]),
        "who gets no tiles gets no columns either"
    );
    // Who sends video and gets none has no node in anybody's trees of video.
    let wanted = |made: &Conference| layout(made).target(&name("b"), &name("a"), u16::MAX) & 2 != 0;
    assert!(wanted(&made));
    made.get_mut("a").unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap().receives = false;
    assert!(!wanted(&made));
    made.get_mut("a").unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap().receives = true;
    // The mixer of a column is gone: its sources go nowhere, and the other column goes on.
    made.leave("#tiles:0").unwrap();
    plane.bring(&made);
    assert_eq!(video_to(&plane, &made, first), names(&[]));
    assert_eq!(video_to(&plane, &made, joins), names(&["#tiles:1"]));
    assert_eq!(video_to(&plane, &made, e), names(&["#tiles"]));
    // So it is when that which joins them is.
    made.leave("#tiles").unwrap();
    plane.bring(&made);
    assert_eq!(video_to(&plane, &made, second), names(&["c", "d"]));
    assert_eq!(video_to(&plane, &made, e), names(&[]));
}

#[test]
fn who_has_joined_for_tiles_gets_no_video_that_it_cannot_play_when_they_are_over() {
    let mut made = conference("abc");
    made.tiling = Some(Tiling {
        payload_type: h261(31),
        receivers: None,
        tiles: Tiles::new(QUARTERS),
    });
    let mut types = |who: &str, kind: PayloadType| {
        made.get_mut(who).unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap().payload_types = vec![kind];
    };
    types("a", h261(31));
    types("b", h261(97));
    types("c", payload_type(96, "VP8/90000", ""));
    made.settle();
    assert_eq!(made.check_payload_types(&name("a"), 4), made.check_payload_types(&name("c"), 4));
    made.tiling = None;
    made.settle();
    made.check_video(4);
    let differing = |made: &Conference| -> Vec<String> {
        let pairs = made.differing.keys();
        pairs.map(|(sender, receiver)| format!("{sender}>{receiver}")).collect()
    };
    assert_eq!(
        differing(&made),
        ["a>c", "b>c", "c>a", "c>b"],
        "a and b have one codec under two numbers"
    );
    assert_eq!(
        made.differing[&(name("c"), name("a"))].to_string(),
        "video: c has payload type 96 for VP8/90000, and a has none"
    );
    assert_eq!(
        made.check_payload_types(&name("a"), 4),
        Ok(()),
        "what is known hinders nobody from staying"
    );
    let mut plane = Plane::new();
    plane.bring(&made);
    let video = |number: u8| at(100 + number, 5002);
    assert_eq!(video_to(&plane, &made, video(1)), ["b".to_owned()].into());
    assert_eq!(video_to(&plane, &made, video(3)), [].into());
    // A re-INVITE names the codec; who leaves is forgotten.
    let leg = made.get_mut("c").unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap();
    leg.payload_types = vec![h261(31)];
    made.settle();
    assert_eq!(differing(&made), [""; 0]);
    made.check_video(0);
    assert_eq!(differing(&made), ["a>b", "b>a", "b>c", "c>b"], "a data plane that rewrites nothing");
    made.leave("b").unwrap();
    assert_eq!(differing(&made), [""; 0]);
}

#[test]
fn tiled_streams_are_for_those_who_can_play_them() {
    let mut made = conference("abcd");
    made.tiling = Some(Tiling {
        payload_type: h261(31),
        receivers: None,
        tiles: Tiles::new(QUARTERS),
    });
    let video = |made: &mut Conference, who: &str| made.get_mut(who).unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap().clone();
    for (who, change) in [
        (
            "a",
            Box::new(|leg: &mut Leg| leg.payload_types = vec![h261(98)]) as Box<dyn Fn(&mut Leg)>,
        ),
        (
            "b",
            Box::new(|leg: &mut Leg| {
                leg.payload_types = vec![PayloadType {
                    codec: "VP8/90000".to_owned(),
                    ..h261(96)
                }]
            }),
        ),
        ("c", Box::new(|leg: &mut Leg| leg.receives = false)),
    ] {
        let mut leg = video(&mut made, who);
        change(&mut leg);
        made.get_mut(who).unwrap().legs.insert((Medium::Video, 0), leg);
    }
    made.join(tiler(Job::Tiles, 0)).unwrap();
    made.settle();
    let tiled: Vec<&str> = made.participants.iter().filter(|one| one.tiled).map(|one| &*one.name).collect();
    assert_eq!(tiled, ["a", "d"], "a has another number for the codec, d has named none");
    assert_eq!(made.payload_types(&name("#tiles"), &name("a"), Medium::Video).rewritten, [(31, 98)]);
    assert_eq!(made.payload_types(&name("a"), &name("#tiles"), Medium::Video).rewritten, []);
    assert!(made.check_payload_types(&name("a"), 0).is_err(), "b gets what a sends");
    let leg = made.get_mut("b").unwrap().legs.get_mut(&(Medium::Video, 0)).unwrap();
    leg.receives = false;
    assert_eq!(made.check_payload_types(&name("a"), 0), Ok(()), "a gets nothing of b");
    made.get_mut("d").unwrap().encrypted = true;
    made.settle();
    assert!(!made.get("d").unwrap().tiled);
}

#[test]
fn who_cannot_play_what_another_sends_gets_the_mix_unless_it_is_told_not_to() {
    let mut made = Conference::new(name("m"));
    made.mixing = true;
    made.join(phone("p", 1, "PCMA/8000")).unwrap();
    let mut browser = phone("b", 2, "opus/48000/2");
    browser.ice = true;
    made.join(browser).unwrap();
    made.settle();
    assert!(made.get("p").unwrap().mixed && made.get("b").unwrap().mixed);
    assert_eq!(made.check_payload_types(&name("b"), 4), Ok(()));
    made.get_mut("b").unwrap().wish = Mixed::No;
    made.settle();
    assert!(!made.get("b").unwrap().mixed);
    assert!(matches!(
        made.check_payload_types(&name("b"), 4),
        Err(PayloadTypesDiffer::Unknown { .. })
    ));
    // Of those who send the same it gets copies.
    made.get_mut("b").unwrap().wish = Mixed::Auto;
    made.leave("p").unwrap();
    made.join(phone("o", 3, "opus/48000/2")).unwrap();
    made.settle();
    assert!(!made.get("b").unwrap().mixed && made.get("o").unwrap().mixed);
    made.get_mut("o").unwrap().wish = Mixed::No;
    made.settle();
    assert!(!made.get("o").unwrap().mixed);
    // Nothing can be mixed of what is encrypted, or where there are no mixers.
    made.get_mut("o").unwrap().wish = Mixed::Yes;
    made.get_mut("o").unwrap().encrypted = true;
    made.settle();
    assert!(!made.get("o").unwrap().mixed);
    made.get_mut("o").unwrap().encrypted = false;
    made.mixing = false;
    made.settle();
    assert!(!made.get("o").unwrap().mixed);
}
