//! One stream of several sources.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_edge_media::{Continuity, Step};
use std::collections::HashSet;
use std::time::Duration;

const SILENCE: Duration = Duration::from_millis(500);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn forward(step: Step) -> (u64, u32) {
    match step {
        Step::Forward { sequence, timestamp, .. } => (sequence, timestamp),
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_and_timestamps_go_on_over_a_change_of_the_source() {
    let mut stream = Continuity::new(SILENCE);
    let (first, start) = forward(stream.packet(ms(0), 1, 65_534, 1000, 90_000));
    assert_eq!(start, 1000);
    assert_eq!(
        forward(stream.packet(ms(33), 1, 0, 4000, 90_000)),
        (first + 2, 4000),
        "numbers wrap"
    );
    assert_eq!(
        forward(stream.packet(ms(34), 1, 65_535, 1000, 90_000)).0,
        first + 1,
        "what was reordered keeps its place"
    );
    assert_eq!(
        stream.packet(ms(100), 2, 7, 5, 90_000),
        Step::Other,
        "the source has not fallen silent"
    );
    let (next, timestamp) = forward(stream.packet(ms(1033), 2, 7, 5, 90_000));
    assert_eq!(next, first + 3);
    assert!((91_000..=95_000).contains(&timestamp), "a second later: {timestamp}");
    assert_eq!(
        stream.packet(ms(1034), 2, 6, 5, 90_000),
        Step::Old,
        "the number before was the other source's"
    );
    assert_eq!(forward(stream.packet(ms(1066), 2, 8, 3005, 90_000)), (first + 4, timestamp + 3000));
}

#[test]
fn a_source_that_leaves_makes_room_at_once() {
    let mut stream = Continuity::new(SILENCE);
    stream.packet(ms(0), 1, 1, 1, 48_000);
    stream.leave(9);
    assert_eq!(stream.packet(ms(1), 2, 1, 1, 48_000), Step::Other);
    stream.leave(1);
    forward(stream.packet(ms(2), 2, 1, 1, 48_000));
}

#[test]
fn a_source_that_was_paused_is_told_from_one_that_lost_packets() {
    let mut stream = Continuity::new(ms(500));
    stream.packet(ms(0), 1, 100, 0, 90_000);
    assert!(!stream.resumes(ms(400), 1, 200), "so many were lost at once");
    assert!(!stream.resumes(ms(900), 1, 103), "it is slow, and two were lost");
    assert!(!stream.resumes(ms(900), 1, 90), "it was late");
    assert!(!stream.resumes(ms(900), 2, 200), "it is another one");
    assert!(stream.resumes(ms(900), 1, 200));
    stream.release();
    let (first, _) = forward(stream.packet(ms(900), 1, 200, 81_000, 90_000));
    let (before, _) = forward(stream.clone().packet(ms(901), 1, 201, 81_000, 90_000));
    assert_eq!((first, before), (1001, 1002), "no number is missing");
}

#[test]
fn a_packet_that_comes_twice_goes_on_once() {
    let mut stream = Continuity::new(SILENCE);
    for sequence in 0..2000 {
        forward(stream.packet(ms(0), 1, sequence, 1, 48_000));
        assert_eq!(stream.packet(ms(0), 1, sequence, 1, 48_000), Step::Old);
    }
    assert_eq!(
        stream.packet(ms(0), 1, 900, 1, 48_000),
        Step::Old,
        "whether it came before cannot be told any more"
    );
}

#[test]
fn a_source_that_begins_anew_goes_on() {
    let mut stream = Continuity::new(SILENCE);
    let (first, _) = forward(stream.packet(ms(0), 1, 100, 1, 48_000));
    let (next, _) = forward(stream.packet(ms(20), 1, 40_000, 77, 48_000));
    assert_eq!(next, first + 1);
}

proptest! {
    /// Whatever comes in whatever order: no number is given to two packets.
    #[test]
    fn no_number_is_given_twice(packets in proptest::collection::vec((0u32..3, prop_oneof![0u16..300, any::<u16>()], 0u64..700), 1..400)) {
        let mut stream = Continuity::new(SILENCE);
        let (mut now, mut given) = (0, HashSet::new());
        for (ssrc, sequence, pause) in packets {
            now += pause;
            match stream.packet(ms(now), ssrc, sequence, 0, 90_000) {
                Step::Forward { sequence: number, .. } => prop_assert!(given.insert(number), "{number}"),
                Step::Other | Step::Old => {}
            }
        }
    }
}

#[test]
fn numbers_close_up_over_what_is_left_out() {
    let mut stream = Continuity::new(SILENCE);
    let mut send = |number: u16| forward(stream.packet(ms(0), 1, number, 90, 90_000)).0;
    let first = send(65_530);
    assert_eq!(stream.leave_out(ms(0), 1, 65_531, 90), None);
    assert_eq!(stream.leave_out(ms(0), 1, 65_532, 90), None);
    // 65,533 is missing between two of one picture that were left out, and so was left out too.
    assert_eq!(stream.leave_out(ms(0), 1, 65_534, 90), None);
    let mut send = |number: u16| forward(stream.packet(ms(0), 1, number, 180, 90_000)).0;
    assert_eq!(send(65_535), first + 1);
    // 0 to 2 are missing: 3 is left out, and of those nobody can tell.
    assert_eq!(stream.leave_out(ms(0), 1, 3, 180), None);
    let mut send = |number: u16| forward(stream.packet(ms(0), 1, number, 180, 90_000)).0;
    assert_eq!(send(4), first + 5);
    assert_eq!(send(1), first + 3, "what is late has the place that was kept for it");
    assert_eq!(
        stream.leave_out(ms(0), 1, 2, 180),
        Some((first + 4, 180)),
        "an empty packet takes its place"
    );
    assert_eq!(stream.leave_out(ms(0), 1, 2, 180), None, "and only once");
    assert_eq!(stream.leave_out(ms(0), 1, 65_533, 90), None, "its place was closed up");
    assert_eq!(stream.packet(ms(0), 1, 65_532, 90, 90_000), Step::Old);
    assert_eq!(stream.leave_out(ms(0), 9, 5, 90), None, "it is of another source");
    assert_eq!(forward(stream.packet(ms(0), 1, 5, 270, 90_000)).0, first + 6);
}

#[test]
fn of_long_ago_nothing_goes_on() {
    let mut stream = Continuity::new(SILENCE);
    let first = forward(stream.packet(ms(0), 1, 0, 0, 90_000)).0;
    // Of each three the first goes on, the second is late, the third is left out.
    for number in (3..900u16).step_by(3) {
        forward(stream.packet(ms(0), 1, number, u32::from(number), 90_000));
        assert_eq!(stream.leave_out(ms(0), 1, number + 2, u32::from(number)), None);
    }
    assert_eq!(stream.packet(ms(0), 1, 4, 3, 90_000), Step::Old);
    let (number, _) = forward(stream.packet(ms(0), 1, 895, 894, 90_000));
    let closed = (3..894).step_by(3).count() as u64;
    assert_eq!(number, first + 895 - closed);
}

#[test]
fn a_new_source_goes_on_after_the_place_of_an_empty_packet() {
    let mut stream = Continuity::new(SILENCE);
    let (first, _) = forward(stream.packet(ms(0), 1, 100, 90, 90_000));
    // Places are kept for 101 and 102.
    assert_eq!(stream.leave_out(ms(0), 1, 103, 180), None);
    assert_eq!(stream.leave_out(ms(0), 1, 102, 180), Some((first + 2, 180)));
    stream.release();
    let (number, timestamp) = forward(stream.packet(ms(1), 2, 7, 5, 90_000));
    assert_eq!((number, timestamp), (first + 3, 180 + 90));
}

proptest! {
    /// After a step back of any size the second packet in order is delivered, or the third where the step is small, and the outgoing numbers continue
    /// (RFC 3550 appendix A.1).
    #[test]
    fn a_sender_that_steps_back_loses_two_packets_at_most(
        first in any::<u16>(),
        steps in proptest::collection::vec((2u16..2999, 0u16..300), 1..6),
        follow in any::<bool>(),
    ) {
        let mut stream = Continuity::new(SILENCE);
        let (mut at, mut now, mut timestamp, mut highest) = (first, 0u64, 0u32, 0);
        for (back, further) in steps {
            let mut lost = 0;
            for _ in 0..back + further {
                match stream.packet(ms(now), 1, at, timestamp, 8000) {
                    Step::Forward { sequence, .. } => {
                        prop_assert!(sequence > highest, "{sequence} after {highest}");
                        highest = sequence;
                    }
                    _ => lost += 1,
                }
                (at, now, timestamp) = (at.wrapping_add(1), now + 20, timestamp.wrapping_add(160));
            }
            prop_assert!(lost <= 2, "{lost} of {}", back + further);
            at = at.wrapping_sub(back);
            // The timestamps follow the clock. Where the step is too large for reordering, they may follow the numbers.
            if follow && back > 102 {
                timestamp = timestamp.wrapping_sub(u32::from(back) * 160);
            }
        }
    }

    /// Packets that arrive out of order or twice, at most 100 late, are no restart: each is delivered once, at its place.
    #[test]
    fn late_packets_and_duplicates_keep_their_places(delays in proptest::collection::vec((0usize..90, any::<bool>()), 300..1500)) {
        let mut arrivals: Vec<(usize, u16)> = Vec::new();
        for (number, (delay, twice)) in delays.iter().enumerate() {
            let sequence = u16::try_from(number).unwrap().wrapping_sub(500);
            arrivals.push((number + if number == 0 { 0 } else { *delay }, sequence));
            if *twice {
                arrivals.push((number + 95, sequence));
            }
        }
        arrivals.sort_by_key(|(when, _)| *when);
        let mut stream = Continuity::new(SILENCE);
        let first = u16::MAX - 499;
        let mut base = None;
        for (when, sequence) in arrivals {
            if let Step::Forward { sequence: out, .. } = stream.packet(ms(u64::try_from(when).unwrap() * 2), 1, sequence, 0, 90_000) {
                let base = *base.get_or_insert(out);
                prop_assert_eq!(out - base, u64::from(sequence.wrapping_sub(first)));
            }
        }
    }
}

#[test]
fn a_burst_of_duplicates_costs_no_gap() {
    let mut stream = Continuity::new(SILENCE);
    let mut last = (0..1000u16)
        .map(|number| forward(stream.packet(ms(0), 1, number, 1, 90_000)).0)
        .last()
        .unwrap();
    for number in 700..720 {
        if let Step::Forward { sequence, .. } = stream.packet(ms(0), 1, number, 1, 90_000) {
            last = sequence;
        }
    }
    for number in 1000..1400 {
        let (out, _) = forward(stream.packet(ms(0), 1, number, 1, 90_000));
        assert_eq!(out, last + 1, "{number}");
        last = out;
    }
}

#[test]
fn a_step_back_into_numbers_that_never_came_is_a_restart_too() {
    let mut stream = Continuity::new(SILENCE);
    let (first, _) = forward(stream.packet(ms(0), 1, 0, 0, 8000));
    forward(stream.packet(ms(20), 1, 900, 160, 8000));
    let late = (300..340u16)
        .filter(|number| forward(stream.packet(ms(40), 1, *number, 320, 8000)).0 < first + 900)
        .count();
    assert!(late < 16, "{late}");
}
