//! When a stream is offloaded and where to, and for which reason it is not.

mod common;

use common::*;
use shunt_calls::*;
use std::time::Duration;

#[test]
fn each_party_is_waited_for_with_its_own_reason() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    assert!(bench.held.is_empty());
    assert_eq!(bench.reason("c1", Side::Caller), Reason::WaitingForOtherParty);
    assert_eq!(bench.reason("c1", Side::Callee), Reason::WaitingForMedia);
}

#[test]
fn one_way_media_goes_to_the_signalled_address_after_a_while() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    for _ in 0..100 {
        bench.pass(100);
    }
    assert_eq!(bench.reason("c1", Side::Caller), Reason::OneWay);
    let [entry] = bench.held.values().collect::<Vec<_>>()[..] else {
        panic!("{:?}", bench.held)
    };
    assert_eq!(entry.new_destination().to_string(), "10.2.0.2:7000");
}

#[test]
fn media_goes_to_where_the_party_behind_its_nat_sends_from() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.packet("10.1.0.2:41234", "10.9.0.1:36002", 1);
    bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    assert_eq!(bench.held[&end("10.9.0.1:36000")].new_destination().to_string(), "10.1.0.2:41234");
}

#[test]
fn two_persistent_strangers_leave_the_stream_on_the_relay() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 192.168.50.2 6000 a;1", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    for _ in 0..20 {
        bench.now = bench.now + Duration::from_millis(20);
        bench.packet("198.51.100.1:5000", "10.9.0.1:36002", 1);
        bench.number -= 1;
        bench.packet("198.51.100.2:5000", "10.9.0.1:36002", 2);
    }
    assert_eq!(bench.reason("c1", Side::Caller), Reason::Contested);
    assert!(!bench.held.contains_key(&end("10.9.0.1:36002")));
}

#[test]
fn a_re_invite_of_the_callee_keeps_the_legs_apart() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.say("Uc0 c1 10.2.0.2 7200 b;1 a;1", "36002 10.9.0.1");
    bench.say("Lc0 c1 10.1.0.2 6000 b;1 a;1", "36000 10.9.0.1");
    bench.packet("10.2.0.2:7200", "10.9.0.1:36000", 2);
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    let ways: Vec<String> = bench
        .held
        .values()
        .map(|entry| format!("{} => {}", entry.key(), entry.new_destination()))
        .collect();
    assert_eq!(
        ways,
        [
            "10.2.0.2:7200 -> 10.9.0.1:36000 => 10.1.0.2:6000",
            "10.1.0.2:6000 -> 10.9.0.1:36002 => 10.2.0.2:7200"
        ]
    );
}

#[test]
fn a_hold_removes_both_entries_and_its_end_brings_them_back() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.say("Uc0 c1 0.0.0.0 6000 a;1 b;1", "36000 10.9.0.1");
    assert!(bench.held.is_empty());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1 b;1", "36000 10.9.0.1");
    bench.pass(4_000);
    bench.talk(36000);
    assert_eq!(bench.held.len(), 2);
}

#[test]
fn what_only_the_relay_can_do_keeps_the_stream_there() {
    for (command, reason) in [
        ("R c1 a;1 b;1", Reason::Recording),
        ("P c1 prompt 0 a;1 b;1", Reason::Playback),
        ("C c1 udp:10.0.0.1:9 a;1 b;1", Reason::Copy),
    ] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        let (step, _) = bench.before(command);
        let Step::Pass { wait, .. } = step else { panic!("{step:?}") };
        assert!(
            !wait.is_empty() && bench.held.is_empty(),
            "{command}: the relay hears of it when the entries are out"
        );
        bench.after(command, "0").unwrap();
        assert_eq!(bench.reason("c1", Side::Caller), reason);
    }
    let mut bench = Bench::new(Settings::default());
    bench.say("UZ20c0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    bench.say("LZ20c0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.talk(36000);
    assert_eq!((bench.held.len(), bench.reason("c1", Side::Caller)), (0, Reason::Resize));
}

#[test]
fn a_delete_ends_the_call_whatever_the_order_of_its_tags() {
    for tags in ["a b", "b a", "a"] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        bench.say(&format!("D c1 {tags}"), "0");
        assert_eq!((bench.held.len(), bench.book.call_count()), (0, 0), "{tags}");
    }
}

#[test]
fn an_asymmetric_party_is_sent_to_at_its_signalled_address_wherever_it_sends_from() {
    let mut bench = Bench::new(Settings::default());
    bench.say("UAc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    bench.say("LAc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    for _ in 0..10 {
        bench.packet("198.51.100.1:6000", "10.9.0.1:36002", 1);
        bench.pass(30);
    }
    assert!(!bench.held.contains_key(&end("10.9.0.1:36002")), "a stranger at another address");
    bench.packet("10.1.0.2:6111", "10.9.0.1:36002", 1);
    assert_eq!(bench.held[&end("10.9.0.1:36002")].key().src.to_string(), "10.1.0.2:6111");
    assert_eq!(bench.held[&end("10.9.0.1:36000")].new_destination().to_string(), "10.1.0.2:6000");
}

#[test]
fn a_port_that_no_media_range_has_is_given_as_the_reason() {
    let media = vec![MediaRange {
        addr: "10.9.0.1".parse().unwrap(),
        first_port: 36002,
        last_port: 36003,
    }];
    let mut bench = Bench::new(Settings {
        media,
        ..Settings::default()
    });
    bench.call("c1", 36000);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::WaitingForMedia);
    assert_eq!(bench.reason("c1", Side::Callee), Reason::OutsideMediaRanges);
}
