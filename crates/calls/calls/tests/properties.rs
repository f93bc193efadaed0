//! Any order of commands, notices and times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use proptest::prelude::*;
use shunt_calls::*;
use shunt_net::FiveTuple;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Debug)]
enum Step {
    Offer { call: u8, tag: u8, host: u8, port: u8 },
    Answer { call: u8, tag: u8, to: u8, host: u8, port: u8 },
    Delete { call: u8, tag: u8, to: u8 },
    Packet { host: u8, port: u8, ssrc: u8 },
    Idle { port: u8 },
    Pass { milliseconds: u16 },
    Fail { how: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3u8, 0..2u8, 0..4u8, 0..12u8).prop_map(|(call, tag, host, port)| Step::Offer { call, tag, host, port }),
        3 => (0..3u8, 0..2u8, 0..3u8, 0..4u8, 0..12u8).prop_map(|(call, tag, to, host, port)| Step::Answer { call, tag, to, host, port }),
        1 => (0..3u8, 0..2u8, 0..3u8).prop_map(|(call, tag, to)| Step::Delete { call, tag, to }),
        6 => (0..4u8, 0..13u8, 0..3u8).prop_map(|(host, port, ssrc)| Step::Packet { host, port, ssrc }),
        1 => (0..13u8).prop_map(|port| Step::Idle { port }),
        2 => (0..40_000u16).prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => (0..4u8).prop_map(|how| Step::Fail { how }),
    ]
}

fn run(bench: &mut Bench, step: &Step) {
    match *step {
        Step::Offer { call, tag, host, port } => {
            bench.say(
                &format!("Uc0 c{call} 10.1.0.{host} 6000 t{tag};1"),
                &format!("{} 10.9.0.1", 36000 + u16::from(port)),
            );
        }
        Step::Answer { call, tag, to, host, port } => {
            bench.say(
                &format!("Lc0 c{call} 10.1.0.{host} 7000 t{tag};1 u{to};1"),
                &format!("{} 10.9.0.1", 36000 + u16::from(port)),
            );
        }
        Step::Delete { call, tag, to } => {
            bench.say(&format!("D c{call} t{tag} u{to}"), "0");
            let ended = bench.ended.len();
            let planned = bench.book.planned_count();
            if bench
                .book
                .lines_of_call(format!("c{call}").as_bytes())
                .all(|line| line.tag() != format!("t{tag}").as_bytes())
            {
                bench.say(&format!("D c{call} t{tag} u{to}"), "E50");
                assert_eq!(
                    (ended, planned),
                    (bench.ended.len(), bench.book.planned_count()),
                    "delete is idempotent"
                );
            }
        }
        Step::Packet { host, port, ssrc } => {
            for sport in [6000, 7000] {
                bench.packet(
                    &format!("10.1.0.{host}:{sport}"),
                    &format!("10.9.0.1:{}", 36000 + u16::from(port)),
                    u32::from(ssrc),
                );
            }
        }
        Step::Idle { port } => {
            let keys: Vec<FiveTuple> = bench
                .held
                .values()
                .filter(|entry| entry.port().port == 36000 + u16::from(port))
                .map(RelayEntry::key)
                .collect();
            for key in keys {
                let now = bench.now;
                let decisions = bench.book.idle(now, key);
                bench.carry_out(decisions);
            }
        }
        Step::Pass { milliseconds } => bench.pass(u64::from(milliseconds)),
        Step::Fail { how } => {
            bench.outcome = [Outcome::Done, Outcome::TableFull, Outcome::Rejected, Outcome::Unavailable][usize::from(how)];
        }
    }
}

/// What holds at any time. That no port has two entries, the bench asserts at each write.
fn check(bench: &Bench) {
    let mut ports = HashSet::new();
    for (stream, entry) in bench.book.planned() {
        assert!(ports.insert(entry.port()), "two streams at {}", entry.port());
        let line = bench.book.line(stream.line).expect("no entry outlives its line");
        assert!(line.released().is_none(), "its delete is answered at once");
        assert_eq!(bench.book.stream_at(entry.port()), Some(stream), "the port is the stream's own");
    }
    for entry in bench.held.values() {
        assert!(ports.contains(&entry.port()), "the data plane has only what is planned");
    }
    let indexed: usize = bench.book.lines().filter(|line| line.released().is_none()).count();
    assert_eq!(bench.book.call_count() == 0, indexed == 0);
    let counted: HashMap<_, usize> = bench
        .book
        .stream_counts()
        .map(|(state, reason, count)| ((state, reason), count))
        .collect();
    let mut streams = HashMap::new();
    for line in bench.book.lines() {
        for stream in line.streams().filter(|stream| stream.id.component == Component::Rtp) {
            *streams.entry((stream.state, stream.reason)).or_insert(0) += 1;
        }
    }
    assert_eq!(counted, streams);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_plan_is_sound(steps in proptest::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(Settings::default());
        for step in &steps {
            run(&mut bench, step);
            check(&bench);
        }
        bench.outcome = Outcome::Done;
        bench.say("X", "0");
        let now = bench.now;
        let decisions = bench.book.set_data_plane(true);
        bench.carry_out(decisions);
        let lines = bench.book.line_ids();
        let decisions = bench.book.look_at(now, &lines);
        bench.carry_out(decisions);
        prop_assert_eq!((bench.book.planned_count(), bench.book.call_count(), bench.held.len()), (0, 0, 0));
        prop_assert_eq!(bench.book.lines().count(), 0);
        prop_assert!(bench.filters.is_empty());
    }

    #[test]
    fn rows_are_restored_as_they_were(steps in proptest::collection::vec(step(), 1..60)) {
        let mut bench = Bench::new(Settings::default());
        for step in &steps {
            run(&mut bench, step);
        }
        let wall = std::time::Duration::from_secs(1_800_000_000);
        let mut next = Bench::new(Settings::default());
        next.now = bench.now;
        let ids: Vec<LineId> = bench.book.lines().map(|line| line.id()).collect();
        for id in ids {
            let Some(row) = bench.book.row(id, bench.now, wall) else { continue };
            let json = serde_json::to_string(&row).unwrap();
            let read: Row = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(&read, &row);
            if let Ok(id) = next.book.restore(next.now, wall, &row) {
                let again = next.book.row(id, next.now, wall).unwrap();
                prop_assert_eq!((again.key, again.caller.relay, again.callee.relay), (row.key, row.caller.relay, row.callee.relay));
            }
        }
        let present: Vec<RelayEntry> = bench.held.values().copied().collect();
        next.held = bench.held.clone();
        let now = next.now;
        let decisions = next.compare(now, &present, HashSet::new());
        next.carry_out(decisions);
        let mut ports = HashSet::new();
        for (_, entry) in next.book.planned() {
            prop_assert!(ports.insert(entry.port()));
        }
    }
}
