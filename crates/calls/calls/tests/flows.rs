//! Calls from the first command to the last, as plain functions over time.

mod common;

use common::*;
use shunt_calls::*;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtpproxy::Command;
use shunt_rtpproxy::capability::KeepAlive;
use std::collections::HashSet;
use std::time::Duration;

#[test]
fn a_call_is_offloaded_in_both_directions_and_ends() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::WaitingForMedia);
    bench.talk(36000);
    let mut keys: Vec<String> = bench.held.values().map(|entry| entry.key().to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["10.1.0.2:6000 -> 10.9.0.1:36002", "10.2.0.2:7000 -> 10.9.0.1:36000"]);
    let to_callee = bench.held.values().find(|entry| entry.port().port == 36002).unwrap();
    assert_eq!(to_callee.new_source().to_string(), "10.9.0.1:36000");
    assert_eq!(to_callee.new_destination().to_string(), "10.2.0.2:7000");
    assert_eq!(bench.reason("c1", Side::Caller), Reason::Offloaded);
    bench.rtcp(36000);
    assert_eq!(bench.held.len(), 4);
    bench.say("D c1 a b", "0");
    assert!(bench.held.is_empty() && bench.book.planned_count() == 0 && bench.book.call_count() == 0);
    assert_eq!(bench.ended, [Reason::Released]);
    bench.say("D c1 a b", "E50");
    assert_eq!(bench.ended.len(), 1, "delete is idempotent");
}

#[test]
fn both_ip_versions_are_bridged() {
    let mut bench = Bench::new(Settings::default());
    bench.say("USIEc0 c1 10.1.0.2 6000 a;1", "36000 fd91:2::1 6");
    bench.say("LSEI6c0 c1 FD91:2:0:0:0:0:0:2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    bench.packet("[fd91:2::2]:7000", "[fd91:2::1]:36000", 2);
    assert_eq!(bench.held.len(), 2);
    let six = bench.held.values().find(|entry| entry.key().is_v6()).unwrap();
    assert_eq!(
        (six.new_source().to_string(), six.new_destination().to_string()),
        ("10.9.0.1:36002".into(), "10.1.0.2:6000".into())
    );
}

#[test]
fn an_offer_moves_the_media_to_the_relay_and_its_answer_the_party() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let (step, refusal) = bench.before("Uc0 c1 10.1.0.2 6100 a;1 b;1");
    let Step::Pass { wait, .. } = step else { panic!("{step:?}") };
    assert!(refusal.is_none() && wait.len() == 2 && bench.held.is_empty(), "{wait:?}");
    assert_eq!(bench.reason("c1", Side::Caller), Reason::ReInvite);
    bench.after("Uc0 c1 10.1.0.2 6100 a;1 b;1", "36000 10.9.0.1").unwrap();
    assert_eq!(bench.reason("c1", Side::Caller), Reason::ReInvite);
    assert_eq!(
        bench.learned("c1", Side::Caller),
        Some(end("10.1.0.2:6000")),
        "an offer is not an agreement"
    );
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    assert!(
        bench.held.values().all(|entry| entry.port().port != 36002),
        "the old source is quarantined"
    );
    bench.packet("10.1.0.2:6100", "10.9.0.1:36002", 5);
    assert_eq!(bench.held.len(), 2);
}

#[test]
fn after_an_offer_without_an_answer_the_media_is_offloaded_as_before() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let before = bench.held.clone();
    bench.say("Uc0 c1 10.1.0.9 6100 a;1 b;1", "36000 10.9.0.1");
    let allowed = &bench.filters[&end("10.9.0.1:36002")];
    assert_eq!(
        allowed.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.0.2", "10.1.0.9"]
    );
    bench.pass(4_100);
    assert_eq!(bench.held, before);
}

#[test]
fn a_hold_with_the_null_address_makes_no_filter() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    assert!(bench.filters.contains_key(&end("10.9.0.1:36002")));
    bench.say("Uc0 c1 0.0.0.0 6000 a;1 b;1", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    assert!(!bench.filters.contains_key(&end("10.9.0.1:36002")), "{:?}", bench.filters);
    assert_eq!(bench.reason("c1", Side::Callee), Reason::OnHold);
}

#[test]
fn a_wildcard_address_stands_for_the_configured_one() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1", "36000");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 0.0.0.0");
    bench.talk(36000);
    assert_eq!(bench.held.len(), 2);
}

/// rtpproxy with `-l 0.0.0.0 -6 /::` replies with the port alone, and gives out the same number in both IP versions.
#[test]
fn a_reply_without_an_address_has_the_ip_version_of_its_command() {
    let ports = |offer: &str, answer: &str| {
        let mut bench = Bench::new(Settings::default());
        bench.say(offer, "36000");
        bench.say(answer, "36002");
        let line = bench.book.lines_of_call(b"c1").next().unwrap();
        [Side::Callee, Side::Caller].map(|side| line.leg(side).relay.unwrap().to_string())
    };
    let (v4, v6) = (["10.9.0.1:36000", "10.9.0.1:36002"], ["[fd91:2::1]:36000", "[fd91:2::1]:36002"]);
    assert_eq!(ports("Uc0 c1 10.1.0.2 6000 a;1", "Lc0 c1 10.2.0.2 7000 a;1 b;1"), v4);
    assert_eq!(ports("U6c0 c1 fd91::2 6000 a;1", "L6c0 c1 fd91::3 7000 a;1 b;1"), v6);
    assert_eq!(ports("Uc0 c1 10.1.0.2 6000 a;1", "L6c0 c1 fd91::3 7000 a;1 b;1"), [v4[0], v6[1]]);
    assert_eq!(ports("U6c0 c1 fd91::2 6000 a;1", "Lc0 c1 10.2.0.2 7000 a;1 b;1"), v6);
    let mut bench = Bench::new(Settings::default());
    bench.say("U6c0 c1 fd91::2 6000 a;1", "36000");
    bench.say("Uc0 c2 10.1.0.2 6000 a;1", "36000");
    assert_eq!(bench.book.call_count(), 2, "they are two ports");
}

#[test]
fn the_end_of_a_lost_fork_leaves_the_call_to_the_winner() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.say("Lc0 c1 10.3.0.3 7300 a;1 x;1", "36002 10.9.0.1");
    let (step, _) = bench.before("D c1 a x");
    assert_eq!(step, Step::Answer(b"0".to_vec()));
    assert_eq!(bench.asked.last().unwrap().1, b"Lc0 c1 10.2.0.2 7000 a;1 b;1");
    let (line, _) = bench.asked.last().cloned().unwrap();
    let now = bench.now;
    let decisions = bench.book.relay_replied(now, line, Purpose::Restore, b"L", Some(b"36002 10.9.0.1"));
    bench.carry_out(decisions);
    bench.talk(36000);
    assert_eq!(bench.held.len(), 2);
    bench.say("D c1 a b", "0");
    assert_eq!(bench.ended, [Reason::Released]);
}

#[test]
fn a_port_of_another_call_is_not_taken() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.before("Uc0 c2 10.1.0.3 6000 a;1");
    let held = bench.after("Uc0 c2 10.1.0.3 6000 a;1", "36000 10.9.0.1").unwrap_err();
    assert_eq!(held.holder.as_deref(), Some(&b"c1"[..]));
    assert_eq!((bench.held.len(), bench.book.call_count()), (2, 1));
}

#[test]
fn a_port_handed_out_again_does_not_learn_the_former_sender() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.say("D c1 a b", "0");
    bench.say("Uc0 c2 10.1.0.2 6500 a;1", "36000 10.9.0.1");
    bench.say("Lc0 c2 10.2.0.2 7500 a;1 b;1", "36002 10.9.0.1");
    bench.number = 2;
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    assert_eq!(bench.learned("c2", Side::Caller), None);
    bench.packet("10.1.0.2:6500", "10.9.0.1:36002", 9);
    assert_eq!(bench.learned("c2", Side::Caller), Some(end("10.1.0.2:6500")));
}

#[test]
fn limits_have_errors_of_their_own() {
    let limits = Limits {
        legs_per_call: 4,
        sessions_per_source: Some(Rate { burst: 3, per_second: 1 }),
    };
    let mut bench = Bench::new(Settings {
        limits,
        ..Settings::default()
    });
    for tag in ["a", "b"] {
        let port = if tag == "a" { 36000 } else { 36010 };
        bench.say(&format!("Uc0 c1 10.1.0.2 6000 {tag};1"), &format!("{port} 10.9.0.1"));
    }
    let (step, refusal) = bench.before("Uc0 c1 10.1.0.2 6000 c;1");
    assert_eq!((step, refusal), (Step::Answer(b"E90".to_vec()), Some(Refusal::LegsOfCall(4))));
    assert!(matches!(bench.before("Uc0 c2 10.1.0.2 6000 a;1").0, Step::Pass { .. }));
    assert_eq!(bench.before("Uc0 c3 10.1.0.2 6000 a;1").0, Step::Answer(b"E91".to_vec()));
    assert!(matches!(bench.before("Uc0 c3 10.1.0.9 6000 a;1").0, Step::Pass { .. }));
}

#[test]
fn a_silent_call_is_timed_out_after_its_time() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1 /run/n.sock T1.a", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.talk(36000);
    let silent = bench.now;
    bench.silent_since = Some(silent);
    while bench.ended.is_empty() && bench.now.since(silent) < Duration::from_secs(90) {
        bench.pass(100);
    }
    let after = bench.now.since(silent).as_secs_f64();
    assert!((60.0..65.0).contains(&after), "{after}");
    assert_eq!(
        (bench.ended.as_slice(), bench.notified.as_slice()),
        (&[Reason::MediaTimeout][..], &[b"T1.a\n".to_vec()][..])
    );
    assert!(bench.asked.iter().any(|(_, command)| command == b"Q c1 a;1 b;1 && S ttl=3600"));
    assert!(bench.held.is_empty());
}

#[test]
fn a_call_that_nobody_answers_is_timed_out_after_the_time_of_set_up() {
    for may_query in [false, true] {
        let mut bench = Bench::new(Settings::default());
        bench.relay = bench.book.add_relay(Relay {
            name: "r2".into(),
            addresses: vec!["10.9.0.1".parse().unwrap()],
            ttl: Duration::from_secs(60),
            advertised: Vec::new(),
            setup_ttl: Duration::from_secs(30),
            symmetric_bridging: false,
            verifies_sources: false,
            keepalive: KeepAlive::Lookup,
            kind: RelayKind::Rtpproxy,
            may_query,
        });
        bench.say("Uc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
        bench.gone = true;
        let offered = bench.now;
        while bench.ended.is_empty() && bench.now.since(offered) < Duration::from_secs(90) {
            bench.pass(100);
        }
        let after = bench.now.since(offered).as_secs_f64();
        assert!((30.0..35.0).contains(&after), "{after} {may_query}");
        assert_eq!(bench.ended, [Reason::RelayTimeout]);
        // Once it is answered, the other one counts.
        bench.call("c2", 36010);
        bench.pass(45_000);
        assert_eq!((bench.ended.len(), bench.book.call_count()), (1, 1));
    }
}

#[test]
fn rtpproxy_has_one_copy_of_each_stream_and_the_first_recorder_has_it() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    for (target, tags) in [
        ("udp:10.5.0.1:4000", "a;1 b;1"),
        ("udp:10.5.0.1:4002", "b;1 a;1"),
        ("udp:10.5.0.2:4000", "a;1 b;1"),
    ] {
        bench.say(&format!("C c1 {target} {tags}"), "0");
    }
    let line = bench.line("c1");
    let told: Vec<_> = line.holds().iter().map(|hold| (line.side_of(hold), hold.to.clone())).collect();
    let expected = [
        (Some(Side::Caller), vec![end("10.5.0.1:4000")]),
        (Some(Side::Callee), vec![end("10.5.0.1:4002")]),
    ];
    assert_eq!(told, expected);
    assert_eq!(recorders(&line.holds()), 1, "both streams go to one recorder");
}

#[test]
fn a_call_with_media_goes_on() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    for _ in 0..2000 {
        bench.pass(100);
    }
    assert_eq!((bench.held.len(), bench.ended.len()), (2, 0));
}

#[test]
fn rows_bring_a_call_back() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let id = bench.book.lines().next().unwrap().id();
    let wall = Duration::from_secs(1_800_000_000);
    let row = bench.book.row(id, bench.now, wall).unwrap();
    let json = serde_json::to_string(&row).unwrap();
    let row: Row = serde_json::from_str(&json).unwrap();
    let mut next = Bench::new(Settings::default());
    next.book.restore(next.now, wall, &row).unwrap();
    assert_eq!(next.book.restore(next.now, wall, &row), Err(RestoreError::Present));
    assert_eq!(next.book.planned_count(), 2);
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    let now = next.now;
    let decisions = next.compare(now, &present[..1], HashSet::new());
    next.carry_out(decisions);
    assert_eq!(next.held.len(), 1, "only what the data plane has lost is written: {:?}", next.held);
    next.say("D c1 a b", "0");
    assert_eq!((next.book.planned_count(), next.book.call_count()), (0, 0));
}

#[test]
fn an_entry_with_another_dscp_than_the_configured_one_is_written_again() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    let compare = |bench: &mut Bench, ports: HashSet<Endpoint>| {
        let mut comparison = bench
            .book
            .begin_compare(HashSet::new())
            .with_entries(present.clone())
            .with_marked_otherwise(ports);
        bench.go_on_comparing(bench.now, &mut comparison)
    };
    let decisions = compare(&mut bench, HashSet::from([present[1].port()]));
    let written = decisions.iter().filter_map(|decision| match decision {
        Decision::Write(write) => Some(write.operation),
        _ => None,
    });
    assert_eq!(written.collect::<Vec<_>>(), [Operation::Modify(present[1])]);
    bench.carry_out(decisions);
    assert!(compare(&mut bench, HashSet::new()).is_empty());
}

#[test]
fn entries_that_no_row_names_go_with_a_call_that_ends_before_they_are_seen() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    let id = bench.book.lines().next().unwrap().id();
    let wall = Duration::from_secs(1_800_000_000);
    let row = bench.book.row(id, bench.now, wall).unwrap();
    bench.talk(36000);
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    assert_eq!(present.len(), 2);
    // The agent dies before its row names them. The next one gets the D first.
    let mut next = Bench::new(Settings::default());
    next.book.restore(next.now, wall, &row).unwrap();
    next.say("D c1 a b", "0");
    let now = next.now;
    let decisions = next.compare(now, &present, HashSet::new());
    next.carry_out(decisions);
    let keys: HashSet<FiveTuple> = present.iter().map(RelayEntry::key).collect();
    assert_eq!(
        (next.deleted.iter().copied().collect::<HashSet<_>>(), next.book.orphans().count()),
        (keys, 0)
    );
    // Later, what no call claims may be one of a call that nothing tells of yet.
    let decisions = next.compare(now, &present, HashSet::new());
    assert_eq!((decisions, next.book.orphans().count()), (Vec::new(), 2));
}

#[test]
fn a_line_that_the_callee_has_added_ends_with_the_call() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.say("Uc96 c1 10.2.0.2 7002 b;2 a;2", "36010 10.9.0.1");
    bench.say("Lc96 c1 10.1.0.2 6002 b;2 a;2", "36012 10.9.0.1");
    assert_eq!(bench.book.lines().count(), 2);
    bench.say("D c1 a b", "0");
    assert_eq!((bench.book.call_count(), bench.ended.len()), (0, 1));
}

#[test]
fn a_lost_fork_takes_along_what_is_its_own_alone() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    // The winner has a second medium; the loser has answered the first one, and added one of its own.
    bench.say("Uc96 c1 10.1.0.2 6002 a;2", "36010 10.9.0.1");
    bench.say("Lc96 c1 10.2.0.2 7002 a;2 b;2", "36012 10.9.0.1");
    bench.say("Lc0 c1 10.3.0.3 7300 a;1 x;1", "36002 10.9.0.1");
    bench.say("Uc0 c1 10.3.0.3 7304 x;3 a;3", "36020 10.9.0.1");
    let (step, _) = bench.before("D c1 a x");
    assert_eq!(step, Step::Answer(b"0".to_vec()));
    let mut left: Vec<_> = bench.book.lines().map(|line| line.media()).collect();
    left.sort_unstable();
    assert_eq!(left, [Some(1), Some(2)]);
    assert!(
        bench.asked.iter().any(|(_, asked)| asked.starts_with(b"D c1 x;3")),
        "{:?}",
        bench.asked
    );
}

#[test]
fn what_commands_have_set_outlives_a_restart() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uwc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    bench.say("Lwc0 c1 10.2.0.2 7000 a;1 b;1 && S ttl=600", "36002 10.9.0.1");
    bench.say("R c1 a;1 b;1", "0");
    bench.say("R c1 b;1 a;1", "0");
    let id = bench.book.lines().next().unwrap().id();
    let wall = Duration::from_secs(1_800_000_000);
    let row = bench.book.row(id, bench.now, wall).unwrap();
    let row: Row = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
    assert_eq!(row.ttl, Some(600));
    let mut next = Bench::new(Settings::default());
    next.book.restore(next.now, wall, &row).unwrap();
    next.say("N c1 a;1 b;1", "0");
    assert_eq!(
        next.reason("c1", Side::Caller),
        Reason::Recording,
        "the other party's media is recorded still"
    );
    next.say("N c1 b;1 a;1", "0");
    next.say("Dw c1 a b", "0");
    assert_eq!(next.reason("c1", Side::Caller), Reason::WaitingForMedia);
    next.say("Dw c1 b a", "0");
    assert_eq!(next.book.call_count(), 0);
}

#[test]
fn a_failed_write_is_tried_again() {
    let mut bench = Bench::new(Settings::default());
    bench.outcome = Outcome::TableFull;
    bench.call("c1", 36000);
    bench.talk(36000);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::TableFull);
    bench.outcome = Outcome::Done;
    for _ in 0..60 {
        bench.pass(100);
    }
    assert_eq!(bench.held.len(), 2);
}

/// IPsec and the like: the host forbids the entry, at the first write or in mid-call.
#[test]
fn what_the_hosts_policy_forbids_stays_on_the_relay_and_comes_back() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    assert_eq!(bench.held.len(), 2);
    let key = bench.held.values().next().unwrap().key();
    bench.outcome = Outcome::HostPolicy;
    let decisions = bench.book.held_back(bench.now, &[key, key]);
    bench.carry_out(decisions);
    assert_eq!(bench.held.len(), 1, "the other direction goes on");
    let reasons = Side::BOTH.map(|side| bench.reason("c1", side));
    assert!(
        reasons.contains(&Reason::HostPolicy) && reasons.contains(&Reason::Offloaded),
        "{reasons:?}"
    );
    for _ in 0..400 {
        bench.pass(100);
    }
    assert_eq!(bench.held.len(), 1, "it is forbidden still");
    bench.outcome = Outcome::Done;
    for _ in 0..400 {
        bench.pass(100);
    }
    assert_eq!(bench.held.len(), 2);
    let decisions = bench.book.held_back(bench.now, &[FiveTuple::new(end("192.0.2.1:1"), key.dst)]);
    bench.carry_out(decisions);
    assert_eq!(bench.held.len(), 2, "an entry that is another one by now");
}

/// rtpproxy `-l A -A B`: the reply names B, and packets arrive at A.
#[test]
fn an_advertised_address_stands_for_the_relays_own() {
    for told in ["203.0.113.7", "10.9.0.1"] {
        let mut bench = Bench::new(Settings {
            media: vec![MediaRange {
                addr: "10.9.0.1".parse().unwrap(),
                first_port: 36_000,
                last_port: 36_999,
            }],
            ..Settings::default()
        });
        bench.relay = bench.book.add_relay(Relay {
            name: "r2".into(),
            addresses: vec!["10.9.0.1".parse().unwrap()],
            advertised: vec![("203.0.113.7".parse().unwrap(), "10.9.0.1".parse().unwrap())],
            ttl: Duration::from_secs(60),
            setup_ttl: Duration::from_secs(60),
            symmetric_bridging: false,
            verifies_sources: false,
            keepalive: KeepAlive::TtlSubcommand,
            kind: RelayKind::Rtpproxy,
            may_query: true,
        });
        bench.say("Uc0 c1 10.1.0.2 6000 a;1", &format!("36000 {told}"));
        bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", &format!("36002 {told}"));
        bench.talk(36000);
        let reasons = Side::BOTH.map(|side| bench.reason("c1", side));
        assert_eq!(reasons, [Reason::Offloaded, Reason::Offloaded], "{told}");
        let own = |port: &shunt_net::Endpoint| port.addr.to_string() == "10.9.0.1";
        assert!(bench.held.keys().all(own), "{told}: {:?}", bench.held);
    }
}

#[test]
fn the_cost_of_a_command_does_not_grow_with_tags() {
    let limits = Limits {
        legs_per_call: 100_000,
        sessions_per_source: None,
    };
    let mut bench = Bench::new(Settings {
        limits,
        ..Settings::default()
    });
    for number in 0..5000u16 {
        bench.say(
            &format!("Uc0 c1 10.1.0.2 6000 t{number};1"),
            &format!("{} 10.9.0.1", 10_000 + 4 * number),
        );
    }
    let stored = bench.stored;
    bench.say("Uc0 c1 10.1.0.2 6002 t77;1", "10308 10.9.0.1");
    assert_eq!(bench.stored, stored + 1, "one row");
}

#[test]
fn reasons_have_one_word_everywhere() {
    for reason in Reason::ALL {
        assert_eq!(serde_json::to_string(reason).unwrap(), format!("\"{reason}\""));
        assert!(reason.explanation().ends_with('.'));
    }
}

#[test]
fn a_contested_port_admits_the_contestants() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    for _ in 0..20 {
        bench.now = bench.now + Duration::from_millis(20);
        bench.packet("198.51.100.1:5000", "10.9.0.1:36002", 1);
        bench.number -= 1;
        bench.packet("198.51.100.2:5000", "10.9.0.1:36002", 2);
    }
    assert_eq!(bench.reason("c1", Side::Caller), Reason::Contested);
    let allowed = &bench.filters[&end("10.9.0.1:36002")];
    for addr in ["198.51.100.1", "198.51.100.2", "10.1.0.2"] {
        assert!(allowed.contains(&addr.parse().unwrap()), "{allowed:?}");
    }
}

#[test]
fn a_collision_sends_the_stream_back_to_the_relay_for_a_while() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c", 36000);
    bench.talk(36000);
    let key = bench.held[&end("10.9.0.1:36002")].key();
    let decisions = bench.book.collided(bench.now, key);
    bench.carry_out(decisions);
    assert!(!bench.held.contains_key(&end("10.9.0.1:36002")));
    assert_eq!(bench.reason("c", Side::Caller), Reason::HashCollision);
    assert_eq!(bench.reason("c", Side::Callee), Reason::Offloaded);
    bench.pass(31_000);
    assert_eq!(bench.reason("c", Side::Caller), Reason::Offloaded, "it is tried again");
}

#[test]
fn what_changes_during_a_comparison_is_left_alone() {
    let mut bench = Bench::new(Settings::default());
    bench.call("first", 36000);
    bench.talk(36000);
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    let mut comparison = bench.book.begin_compare(HashSet::new()).with_entries(present.clone());
    // One call ends and another one comes, whose entries were not there when the table was read.
    bench.say("D first a b", "0");
    bench.call("second", 36100);
    bench.talk(36100);
    assert_eq!(bench.held.len(), 2);
    let now = bench.now;
    assert_eq!(bench.go_on_comparing(now, &mut comparison), []);
    assert_eq!(bench.book.orphans().count(), 0);
    // An older comparison ends when another one begins.
    let mut older = bench.book.begin_compare(HashSet::new()).with_entries(Vec::new());
    let mut newer = bench.book.begin_compare(HashSet::new()).with_entries(present);
    assert_eq!(bench.go_on_comparing(now, &mut older), []);
    assert!(older.was_superseded());
    let writes = |decisions: &[Decision]| decisions.iter().filter(|decision| matches!(decision, Decision::Write(_))).count();
    let decisions = bench.go_on_comparing(now, &mut newer);
    assert_eq!((writes(&decisions), bench.book.orphans().count()), (2, 2), "{decisions:?}");
}

#[test]
fn what_was_written_while_the_table_was_read_is_not_compared() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c", 36000);
    bench.talk(36000);
    let before = bench.held.clone();
    // Read before the caller's entry was written.
    let missing = end("10.9.0.1:36002");
    let present: Vec<RelayEntry> = before.values().filter(|entry| entry.port() != missing).copied().collect();
    let now = bench.now;
    assert!(bench.compare(now, &present, HashSet::from([missing])).is_empty());
    let decisions = bench.compare(now, &present, HashSet::new());
    assert_eq!(bench.compared, (1, 0));
    let written: Vec<Operation> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Write(write) => Some(write.operation),
            _ => None,
        })
        .collect();
    assert_eq!(written, [Operation::Insert(before[&missing])]);
}

#[test]
fn a_call_that_its_relay_has_ended_past_the_agent_goes_once_its_entries_are_idle() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let line = bench.book.lines().next().unwrap().id();
    let gone = |bench: &mut Bench| {
        let decisions = bench.book.relay_replied(bench.now, line, Purpose::Check, b"Q c1 a b", Some(b"E50"));
        bench.carry_out(decisions);
    };
    gone(&mut bench);
    assert_eq!(bench.held.len(), 2, "a relay that has died forgets calls that go on");
    bench.asked.clear();
    let keys: Vec<_> = bench.held.values().map(|entry| entry.key()).collect();
    for (number, key) in keys.into_iter().enumerate() {
        assert!(bench.asked.is_empty(), "{number}");
        let decisions = bench.book.idle(bench.now, key);
        bench.carry_out(decisions);
    }
    assert_eq!(bench.asked.len(), 1, "the relay is asked when nothing meets a packet any more");
    gone(&mut bench);
    assert_eq!((bench.held.len(), &*bench.ended), (0, &[Reason::RelayTimeout][..]));
}

#[test]
fn a_call_that_is_over_leaves_the_journal_at_once() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let command = Command::parse(b"D c1 a b").unwrap();
    let (_, _, decisions) = bench.book.command(bench.now, &command);
    let forgets = |decisions: &[Decision]| decisions.iter().filter(|decision| matches!(decision, Decision::Forget(_))).count();
    assert_eq!(forgets(&decisions), 1, "its entries are still on their way out: {decisions:?}");
    assert!(!decisions.iter().any(|decision| matches!(decision, Decision::Store(_))));
}

#[test]
fn rtcp_at_a_shared_address_is_latched_beside_its_rtp() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    // Another call of the same two gateways.
    bench.say("Uc0 c2 10.1.0.2 6100 a;1", "37000 10.9.0.1");
    bench.say("Lc0 c2 10.2.0.2 7100 a;1 b;1", "37002 10.9.0.1");
    bench.rtcp(36000);
    assert!(bench.held.is_empty(), "nothing is known of its RTP");
    for _ in 0..3 {
        bench.talk(36000);
        bench.pass(20);
    }
    assert_eq!(bench.held.len(), 2, "the shorter run of the signalled ports");
    bench.packet("10.1.0.2:6103", "10.9.0.1:36003", 1);
    bench.packet("10.1.0.9:6001", "10.9.0.1:36003", 1);
    assert_eq!(bench.held.len(), 2, "neighbours, and unknown sources");
    bench.rtcp(36000);
    assert_eq!(bench.held.len(), 4, "{:?}", bench.held.keys());
    assert_eq!(bench.held[&end("10.9.0.1:36003")].key().src, end("10.1.0.2:6001"));
}

#[test]
fn rtcp_to_a_party_behind_a_nat_waits_for_its_own() {
    // The agent could only guess its port; the relay follows it.
    for shared in [false, true] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        if shared {
            bench.say("Uc0 c2 10.1.0.2 6100 a;1", "37000 10.9.0.1");
        }
        for _ in 0..6 {
            bench.packet("10.1.0.2:40000", "10.9.0.1:36002", 1);
            bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
            bench.pass(20);
        }
        assert_eq!(bench.held.len(), 2, "{shared}");
        bench.packet("10.2.0.2:7001", "10.9.0.1:36001", 2);
        assert_eq!(bench.held.len(), 2, "{shared}");
        bench.packet("10.1.0.2:50001", "10.9.0.1:36003", 1);
        assert_eq!(bench.held.len(), if shared { 2 } else { 4 }, "{shared}");
        if let Some(entry) = bench.held.get(&end("10.9.0.1:36001")) {
            assert_eq!(entry.new_destination(), end("10.1.0.2:50001"));
        }
    }
}

#[test]
fn a_re_offer_without_a_notify_socket_cancels_the_notice() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1 /run/n.sock T1.a", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.say("Uc0 c1 10.1.0.2 6000 a;1 b;1", "36000 10.9.0.1");
    bench.pass(4_000);
    bench.talk(36000);
    let silent = bench.now;
    bench.silent_since = Some(silent);
    while bench.ended.is_empty() && bench.now.since(silent) < Duration::from_secs(90) {
        bench.pass(100);
    }
    assert_eq!((bench.ended.as_slice(), bench.notified.len()), (&[Reason::MediaTimeout][..], 0));
}

#[test]
fn one_party_that_sends_keeps_the_call() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let key = bench.held[&end("10.9.0.1:36002")].key();
    let decisions = bench.book.idle(bench.now, key);
    bench.carry_out(decisions);
    for _ in 0..1200 {
        bench.pass(100);
    }
    assert_eq!((bench.held.len(), bench.ended.len()), (2, 0));
}
