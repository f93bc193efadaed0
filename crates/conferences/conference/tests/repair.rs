//! Packets read, and NACKs answered: over headers that Chromium sent and a data plane that runs the same algorithms.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_conference::packets::{MediaPacket, Reader, Told};
use shunt_conference::repair::{Answer, Begins, Cache};
use shunt_conference::reports::{Request, for_receivers, requests};
use shunt_conference::sequence::{Cadence, LowRetransmission, Outcome, Row, SequenceState, Verdict};
use shunt_conference::tables::Name;
use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_rtp::descriptor::Descriptor;
use shunt_rtp::rtcp::{Kind, bye, fir, nack, pli, receiver_report, walk};
use shunt_rtp::sequence::distance;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

const DESCRIPTOR: Told = Told::DependencyDescriptor(12);
const TARGETS: usize = 3;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

/// The headers of a capture, each with a payload of its own.
fn captured(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../../tests/vectors/conference/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let packet = |(at, line): (usize, &str)| [hex(line.split_whitespace().nth(1).unwrap()), at.to_be_bytes().to_vec()].concat();
    lines.enumerate().map(packet).collect()
}

fn number(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[2], packet[3]])
}

fn name(text: &str) -> Name {
    Name::from(text)
}

fn ms(milliseconds: u64) -> Time {
    Time::from(Duration::from_millis(milliseconds))
}

/// A data plane with one receiver of the stream: what it is given.
struct DataPlane {
    reader: Reader,
    rewriters: Vec<LowRetransmission>,
    sequence_state: SequenceState,
    wanted: usize,
}

impl DataPlane {
    fn new(target: usize) -> Self {
        Self {
            reader: Reader::new(DESCRIPTOR),
            rewriters: vec![LowRetransmission::default(); TARGETS],
            sequence_state: SequenceState::new(target),
            wanted: target,
        }
    }

    fn send(&mut self, packet: &[u8]) -> Option<u16> {
        let read = self.reader.read(packet).unwrap();
        let outcomes: Vec<Outcome> = self
            .rewriters
            .iter_mut()
            .enumerate()
            .map(|(target, one)| one.accept(read.row(target)))
            .collect();
        self.sequence_state
            .accept(self.wanted, read.changes(self.sequence_state.target(), self.wanted), &outcomes)
    }
}

#[test]
fn captures_at_15_and_7_5_frames_have_no_gap() {
    for capture in ["chromium_av1", "chromium_vp8"] {
        for (target, share) in [(0, 0.25), (1, 0.5), (2, 1.0)] {
            let (mut reader, mut rewriter) = (Reader::new(DESCRIPTOR), LowRetransmission::default());
            let (mut numbers, mut frames, mut all) = (Vec::new(), HashSet::new(), HashSet::new());
            for packet in captured(capture) {
                let read = reader.read(&packet).unwrap();
                all.insert(read.frame);
                let outcome = rewriter.accept(read.row(target));
                if outcome.verdict == Verdict::Forward {
                    numbers.push(outcome.position.unwrap());
                    frames.insert(read.frame);
                }
            }
            assert!(
                numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)),
                "{capture}, target {target}"
            );
            let got = frames.len() as f64 / all.len() as f64;
            assert!((got - share).abs() < 0.07, "{capture}, target {target}: {got}");
        }
    }
}

#[test]
fn after_changes_of_target_every_frame_has_the_frames_it_depends_on() {
    for capture in ["chromium_av1", "chromium_vp8"] {
        let mut plane = DataPlane::new(0);
        let (mut structure, mut forwarded, mut numbers, mut ups, mut state) = (None, HashSet::new(), Vec::new(), 0, 1u32);
        for packet in captured(capture) {
            let header = Header::parse(&packet).unwrap();
            let told = Descriptor::parse(header.extension.unwrap().find(12).unwrap().unwrap(), structure.as_ref()).unwrap();
            // One in eight packets, another target is wanted.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 29 == 0 {
                plane.wanted = (state >> 16) as usize % TARGETS;
            }
            let before = plane.sequence_state.target();
            if let Some(number) = plane.send(&packet) {
                ups += usize::from(plane.sequence_state.target() > before);
                let frame = told.mandatory.frame_number;
                for back in &told.template.frame_differences {
                    assert!(
                        forwarded.contains(&frame.wrapping_sub(*back)),
                        "{capture}: frame {frame} needs {back} back"
                    );
                }
                forwarded.insert(frame);
                numbers.push(number);
            }
            structure = told.structure.or(structure);
        }
        assert!(ups > 3, "{capture}: {ups}");
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{capture}");
    }
}

#[test]
fn payload_descriptors_and_frame_marking_tell_layers() {
    let rtp = |sequence: u16, timestamp: u32, payload: &str| {
        [
            &[0x80, 0xE0][..],
            &sequence.to_be_bytes(),
            &timestamp.to_be_bytes(),
            &[0, 0, 0, 9],
            &hex(payload),
        ]
        .concat()
    };
    let mut reader = Reader::new(Told::Vp8);
    let key = reader.read(&rtp(1, 10, "90a0010000")).unwrap();
    assert!(key.start && key.changes(0, 2), "everybody moves up at a key frame");
    let upper = reader.read(&rtp(2, 20, "90a0028001")).unwrap();
    assert_eq!((upper.needed_by & 7, upper.frame), (0b100, 1));
    let sync = reader.read(&rtp(3, 30, "90a0036001")).unwrap();
    assert!(sync.changes(0, 1) && !sync.changes(0, 2), "a sync frame is for its own layer");
    let late = reader.read(&rtp(2, 20, "90a0028001")).unwrap();
    assert_eq!(late.frame, 1);
    let mut reader = Reader::new(Told::Vp9);
    let up = reader.read(&rtp(1, 10, "ec0150000000")).unwrap();
    assert_eq!(up.needed_by & 7, 0b100);
    assert!(reader.read(&rtp(2, 20, "8c")).is_err());
    let mut reader = Reader::new(Told::FrameMarking(3));
    let plain = reader.read(&rtp(1, 10, "00")).unwrap();
    assert_eq!((plain.needed_by, plain.switches), (u32::MAX, 0), "without a mark it is everybody's");
}

/// A receiver of fewer layers that loses copies and NACKs: what it ends up with, by number; how many it asked for; how many were answered.
fn lossy(capture: &str, lose: impl Fn(usize) -> bool) -> (BTreeMap<u64, Vec<u8>>, usize, usize) {
    let (b, c) = (name("b"), name("c"));
    let mut plane = DataPlane::new(2);
    let mut cache = Cache::new(Some(DESCRIPTOR), TARGETS);
    cache.begin(&b, Begins::Before);
    cache.begin(&c, Begins::Before);
    let (mut got, mut asked, mut answered) = (BTreeMap::new(), 0, 0);
    let (mut highest, mut missing) = (None::<u64>, HashSet::<u16>::new());
    for (at, packet) in captured(capture).iter().enumerate() {
        if at == 40 {
            cache.retarget("c", 2, 1);
            plane.wanted = 1;
            cache.written("c");
        }
        let given = plane.send(packet);
        cache.take(packet).unwrap();
        let Some(given) = given.filter(|_| !lose(at)) else { continue };
        let unwrapped = highest.map_or(u64::from(given), |top| (top as i64 + i64::from(distance(given, top as u16))) as u64);
        if let Some(top) = highest {
            missing.extend((top + 1..unwrapped).map(|n| n as u16));
        }
        highest = Some(highest.map_or(unwrapped, |top| top.max(unwrapped)));
        let clash = got.insert(unwrapped, packet[12..].to_vec());
        assert!(clash.is_none(), "number {unwrapped} comes twice");
        let lost: Vec<u16> = missing.drain().collect();
        asked += lost.len();
        let answer = cache.nack("c", lost.into_iter(), ms(at as u64 * 10));
        assert!(answer.ask.is_empty() && !answer.key_frame, "{answer:?}");
        answered += answer.packets.len();
        for packet in answer.packets {
            let top = highest.unwrap();
            let place = (top as i64 + i64::from(distance(number(&packet), top as u16))) as u64;
            assert!(got.insert(place, packet[12..].to_vec()).is_none(), "number {place} comes twice");
        }
    }
    (got, asked, answered)
}

#[test]
fn a_receiver_of_fewer_layers_gets_all_that_it_lost_in_its_own_numbers() {
    for capture in ["chromium_av1", "chromium_vp8"] {
        let (whole, asked, _) = lossy(capture, |_| false);
        assert_eq!(asked, 0);
        let (repaired, asked, answered) = lossy(capture, |at| at > 2 && at % 9 == 0);
        assert!(asked > 10 && answered == asked, "{asked} asked, {answered} answered");
        let top = *repaired.keys().last().unwrap();
        let expected: BTreeMap<u64, Vec<u8>> = whole.into_iter().filter(|(number, _)| *number <= top).collect();
        assert_eq!(repaired, expected);
    }
}

/// Packets of one frame each, without layers.
fn plain(sequence: u16) -> Vec<u8> {
    [
        &[0x80, 96][..],
        &sequence.to_be_bytes(),
        &[0; 4],
        &[0, 0, 0, 9],
        &sequence.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn what_a_paused_receiver_was_not_sent_is_not_sent_again() {
    let mut cache = Cache::new(None, TARGETS);
    cache.begin(&name("c"), Begins::Before);
    for n in 0..50 {
        cache.take(&plain(n)).unwrap();
    }
    cache.pause("c");
    assert_eq!(cache.nack("c", 0..50, ms(0)), Answer::default(), "it gets nothing now");
    for n in 50..306 {
        cache.take(&plain(n)).unwrap();
    }
    cache.begin(&name("c"), Begins::Now);
    assert_eq!(cache.first("c"), None);
    for n in 306..310 {
        cache.take(&plain(n)).unwrap();
    }
    assert_eq!(cache.first("c"), Some(306));
    assert_eq!(
        cache.nack("c", 50..306, ms(1)),
        Answer::default(),
        "256 numbers that it was never to get"
    );
    assert_eq!(
        cache.nack("c", 307..309, ms(1)).packets.len(),
        2,
        "what it lost since is sent again"
    );
}

#[test]
fn packets_that_nobody_got_are_asked_of_the_sender_in_its_numbers() {
    let mut cache = Cache::new(None, TARGETS);
    cache.begin(&name("b"), Begins::Before);
    for n in (100..120).filter(|n| !(110..113).contains(n)) {
        cache.take(&plain(n)).unwrap();
    }
    let answer = cache.nack("b", [105, 110, 111, 112].into_iter(), ms(0));
    assert_eq!((answer.packets.len(), answer.ask), (1, vec![110, 111, 112]));
    assert_eq!(
        cache.nack("b", [99].into_iter(), ms(0)).ask,
        [99],
        "it had the stream before the cache began"
    );
    assert_eq!(cache.nack("nobody", [105].into_iter(), ms(0)), Answer::default());
}

#[test]
fn two_nacks_of_one_loss_are_answered_once() {
    let mut cache = Cache::new(None, TARGETS);
    cache.begin(&name("b"), Begins::Before);
    cache.take(&plain(7)).unwrap();
    let mut answers = |at| cache.nack("b", [7].into_iter(), ms(at)).packets.len();
    assert_eq!([answers(0), answers(20), answers(60)], [1, 0, 1]);
}

#[test]
fn numbers_that_are_not_certain_are_not_used() {
    let packets = captured("chromium_av1");
    let mut cache = Cache::new(Some(DESCRIPTOR), TARGETS);
    for receiver in ["b", "c", "d"] {
        cache.begin(&name(receiver), Begins::Before);
    }
    cache.retarget("c", 2, 1);
    cache.written("c");
    cache.retarget("d", 2, 1);
    for packet in &packets[..20] {
        cache.take(packet).unwrap();
    }
    let lost = number(&packets[0]);
    assert!(
        cache.nack("d", [lost].into_iter(), ms(0)).key_frame,
        "a frame came while the change was being written"
    );
    assert_eq!(cache.nack("c", [lost].into_iter(), ms(0)).packets.len(), 1);
    cache.missed();
    assert_eq!(
        cache.nack("c", [lost].into_iter(), ms(99)),
        Answer {
            key_frame: true,
            ..Answer::default()
        }
    );
    assert_eq!(
        cache.nack("b", [lost].into_iter(), ms(99)).packets.len(),
        1,
        "the sender's numbers need no state"
    );
}

#[test]
fn a_cache_is_bounded() {
    let mut cache = Cache::new(None, TARGETS);
    cache.begin(&name("b"), Begins::Before);
    for n in 0..5000u16 {
        cache.take(&plain(n)).unwrap();
    }
    let answered = |cache: &mut Cache, n: u16| cache.nack("b", [n].into_iter(), ms(0)).packets.len();
    assert_eq!((answered(&mut cache, 4999 - 511), answered(&mut cache, 4999 - 512)), (1, 0));
}

#[test]
fn a_senders_reports_go_on_without_their_blocks() {
    let mut report = vec![0x81, 200, 0, 12, 0, 0, 0, 9];
    report.extend([7; 20]);
    report.extend([5; 24]);
    let compound = [report, pli(9, 4), bye(&[9])].concat();
    let out = for_receivers(&compound, |ssrc| ssrc == 9).unwrap();
    let items: Vec<_> = walk(&out).map(Result::unwrap).collect();
    assert_eq!(items.iter().map(|item| item.kind).collect::<Vec<_>>(), [Kind::Sr, Kind::Bye]);
    assert_eq!(
        (items[0].reports().count(), items[0].sender_info().unwrap().ntp),
        (0, 0x0707_0707_0707_0707)
    );
    assert!(for_receivers(&compound, |_| false).unwrap().is_empty());
    assert!(for_receivers(&receiver_report(9, &[]), |_| true).unwrap().is_empty());
}

#[test]
fn requests_name_their_stream() {
    let compound = [receiver_report(9, &[]), nack(9, 4, [7, 8]).unwrap(), pli(9, 5), fir(9, 6, 1)].concat();
    let expected = [
        Request::Nack { ssrc: 4, lost: vec![7, 8] },
        Request::KeyFrame { ssrc: 5 },
        Request::KeyFrame { ssrc: 6 },
    ];
    assert_eq!(requests(&compound).unwrap(), expected);
    assert!(requests(&compound[..compound.len() - 2]).is_err());
}

/// Any rows: steps of number and frame, and flags.
type Step = (i32, i32, bool, bool, bool, bool);

fn rows() -> impl Strategy<Value = (u16, Vec<Step>)> {
    let near = (-6..12i32, -2..6i32, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let far = (0..65536i32, 0..65536i32, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (any::<u16>(), proptest::collection::vec(prop_oneof![5 => near, 1 => far], 0..80))
}

/// Fail when two packets get one number, or one in order does not get the highest yet.
fn never_twice(start: u16, steps: &[Step], mut accept: impl FnMut(Row) -> Outcome) {
    let (mut sequence, mut frame) = (start, 0u16);
    let (mut top, mut highest, mut given) = (None::<i64>, i64::MIN, HashMap::new());
    for step in steps {
        sequence = sequence.wrapping_add(step.0 as u16);
        frame = frame.wrapping_add(step.1 as u16);
        let row = Row {
            sequence,
            frame,
            start: step.2,
            end: step.3,
            keep: step.4,
            key: step.5,
        };
        let outcome = accept(row);
        let Some(position) = outcome.position else {
            assert!(!outcome.in_order);
            continue;
        };
        let unwrapped = top.map_or(i64::from(position), |top| top + i64::from(distance(position, top as u16)));
        if outcome.in_order {
            assert!(top.is_none_or(|top| unwrapped >= top));
            top = Some(unwrapped);
        }
        if outcome.verdict == Verdict::Forward {
            assert!(given.insert(unwrapped, row).is_none(), "{row:?}");
            assert!(!outcome.in_order || unwrapped > highest);
            highest = highest.max(unwrapped);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_rows_whatever_get_one_number_twice((start, steps) in rows(), resume_at in 0..80usize) {
        for options in [(true, 0, 16), (true, 8, 256), (false, 0, 16)] {
            let (learn, history, window) = options;
            let cadence = (!learn).then_some(Cadence { mask: 0b1010, base: 0 });
            let mut rewriter = LowRetransmission::new(cadence, shunt_conference::sequence::Options { learn, history, window });
            let mut count = 0;
            never_twice(start, &steps, |row| {
                count += 1;
                if count == resume_at {
                    rewriter.resume();
                }
                rewriter.accept(row)
            });
        }
    }

    #[test]
    fn changes_of_target_under_loss_and_reordering_never_give_a_number_twice(
        losses in proptest::collection::vec(0..10u8, 400), late in proptest::collection::vec(0..12u8, 400), wishes in proptest::collection::vec(0..60usize, 400),
    ) {
        let packets = captured("chromium_av1");
        let mut order: Vec<(usize, &Vec<u8>)> = packets.iter().enumerate().filter(|(at, _)| losses[at % 400] != 0).map(|(at, packet)| {
            (at + if late[at % 400] == 0 { 4 } else { 0 }, packet)
        }).collect();
        order.sort_by_key(|(at, _)| *at);
        let mut plane = DataPlane::new(2);
        let (mut given, mut top) = (HashSet::new(), None::<i64>);
        for (at, packet) in order {
            if wishes[at % 400] < TARGETS {
                plane.wanted = wishes[at % 400];
            }
            let Some(number) = plane.send(packet) else { continue };
            let unwrapped = top.map_or(i64::from(number), |top| top + i64::from(distance(number, top as u16)));
            top = Some(top.map_or(unwrapped, |top| top.max(unwrapped)));
            prop_assert!(given.insert(unwrapped), "number {unwrapped} is given out twice");
        }
        prop_assert!(given.len() > 20);
    }

    #[test]
    fn noise_is_an_error_and_changes_nothing(data in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut cache = Cache::new(Some(DESCRIPTOR), TARGETS);
        let _ = cache.take(&data);
        let readers = [DESCRIPTOR, Told::FrameMarking(3), Told::Vp8, Told::Vp9].map(|told| Reader::new(told).read(&data));
        prop_assert!(readers.iter().all(|read: &Result<MediaPacket, _>| read.is_err() || data.len() >= 12));
        let _ = requests(&data);
    }
}
