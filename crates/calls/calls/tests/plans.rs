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
    let answer = ("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.say("Uc0 c1 0.0.0.0 6000 a;1 b;1", "36000 10.9.0.1");
    bench.say(answer.0, answer.1);
    assert!(bench.held.is_empty());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1 b;1", "36000 10.9.0.1");
    bench.say(answer.0, answer.1);
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
            "{command}: the relay gets it when the entries are out"
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

#[test]
fn a_sub_command_d_ends_the_session() {
    for command in [
        "Q c1 a;1 b;1 && D",
        "Lc0 c1 10.2.0.2 7000 a;1 b;1 && S tos=184 && d",
        "Q c1 b;1 a;1 npkts_ina && D",
    ] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        let (step, _) = bench.before(command);
        let Step::Pass { wait, .. } = step else { panic!("{step:?}") };
        assert!(
            wait.len() == 2 && bench.held.is_empty(),
            "{command}: the entries go before the relay's ports are free"
        );
        bench
            .after(command, if command.starts_with('Q') { "0" } else { "36002 10.9.0.1" })
            .unwrap();
        assert_eq!(
            (bench.ended.as_slice(), bench.book.call_count()),
            (&[Reason::Released][..], 0),
            "{command}"
        );
    }
}

#[test]
fn a_sub_command_d_that_the_relay_did_not_carry_out_ends_nothing() {
    for (command, reply) in [
        ("Q c1 a;1 b;1 && D", "E3"),
        ("Q c1 a;1 b;1 && S tos=184 && D", "60 0 0 0 0 && -1"),
        ("L c1 10.2.0.2 7000 a;1 b;1 && D", "0"),
        ("Q c1 a;1 b;1 && Dw", "60 0 0 0 0"),
    ] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        bench.say(command, reply);
        assert_eq!(
            (bench.held.len(), bench.reason("c1", Side::Caller)),
            (2, Reason::Offloaded),
            "{command}"
        );
    }
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.say("Q c1 a;1 b;1 && D", "E50");
    assert_eq!(bench.book.call_count(), 0, "the relay has no such session");
}

#[test]
fn an_answer_behind_other_sub_commands_has_its_own_part_of_the_reply() {
    let mut bench = Bench::new(Settings::default());
    let command = "Uc0 c1 10.1.0.2 6000 a;1 b;1 && S ttl=90 && L 10.2.0.2 7000";
    bench.say(command, "36000 10.9.0.1 && 0 && 36002 10.9.0.1");
    bench.talk(36000);
    assert_eq!(bench.held.len(), 2);
}

#[test]
fn a_time_out_of_the_sip_servers_own_takes_the_place_of_the_relays() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.pass(1_000);
    let before = bench.asked.len();
    bench.say("Q c1 a;1 b;1 && S ttl=600", "600 0 0 0 0");
    assert!(
        bench.asked[before..].iter().any(|(_, asked)| asked.ends_with(b"&& S ttl=3600")),
        "the relay sees nothing of the session: it is kept"
    );
    let silent = bench.now;
    bench.silent_since = Some(silent);
    while bench.ended.is_empty() && bench.now.since(silent) < Duration::from_secs(700) {
        bench.pass(100);
    }
    let after = bench.now.since(silent).as_secs_f64();
    assert!((600.0..605.0).contains(&after), "{after}");
}

#[test]
fn a_session_that_another_one_copies_stays_on_the_relay() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let command = "Uc0 copy 10.5.0.5 5000 x;1 y;1 && C c1 a;1 b;1";
    let (step, _) = bench.before(command);
    let Step::Pass { wait, .. } = step else { panic!("{step:?}") };
    assert!(wait.len() == 2 && bench.held.is_empty());
    bench.after(command, "36010 10.9.0.1").unwrap();
    for call in ["c1", "copy"] {
        assert_eq!(bench.reason(call, Side::Caller), Reason::Forwarding, "{call}");
    }
}

#[test]
fn what_the_relay_does_to_one_party_goes_on_when_it_stops_for_the_other() {
    let state = |commands: &[(&str, &str)]| {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        for (command, reply) in commands {
            bench.say(command, reply);
        }
        bench.reason("c1", Side::Caller)
    };
    let both = [("R c1 a;1 b;1", "0"), ("R c1 b;1 a;1", "0")];
    assert_eq!(state(&[both[0], both[1], ("N c1 a;1 b;1", "0")]), Reason::Recording);
    assert_eq!(
        state(&[both[0], both[1], ("N c1 a;1 b;1", "0"), ("N c1 b;1 a;1", "0")]),
        Reason::Offloaded
    );
    assert_eq!(state(&[both[0], both[1], ("Na c1 a;1 b;1", "0")]), Reason::Offloaded);
    // N stops what C has begun, too.
    assert_eq!(state(&[("C c1 x.a a;1 b;1", "0"), ("N c1 a;1 b;1", "0")]), Reason::Offloaded);
    // A second one is refused: the first goes on.
    assert_eq!(state(&[("Cs c1 x.a a;1 b;1", "0"), ("Cs c1 x.a a;1 b;1", "E9")]), Reason::Copy);
    assert_eq!(state(&[("C c1 x.a a;1 b;1", "E9")]), Reason::Offloaded);
    assert_eq!(
        state(&[("P c1 x 0 a;1 b;1", "0"), ("P c1 x 0 b;1 a;1", "0"), ("S c1 a;1 b;1", "0")]),
        Reason::Playback
    );
}

#[test]
fn a_session_ends_with_the_last_claim_to_it() {
    let left = |commands: &[&str]| {
        let mut bench = Bench::new(Settings::default());
        for command in commands {
            let reply = match command.as_bytes()[0] {
                b'U' => "36000 10.9.0.1",
                b'L' => "36002 10.9.0.1",
                _ => "0",
            };
            bench.say(command, reply);
        }
        bench.book.call_count()
    };
    let (offer, answer) = ("Uwc0 c1 10.1.0.2 6000 a;1", "Lwc0 c1 10.2.0.2 7000 a;1 b;1");
    // The claim of one party, and that of the other one, as rtpproxy has them: a D with w gives up that of who is named second.
    assert_eq!(left(&[offer, "Dw c1 a"]), 1);
    assert_eq!(left(&[offer, "Dw c1 b a"]), 0);
    assert_eq!(left(&[offer, answer, "Dw c1 b a"]), 1);
    assert_eq!(left(&[offer, answer, "Dw c1 b a", "Dw c1 a b"]), 0);
    assert_eq!(left(&[offer, "Uc0 c1 10.1.0.2 6000 a;1", "Dw c1 b a"]), 1);
    assert_eq!(left(&[offer, "Uc0 c1 10.1.0.2 6000 a;1", "Dw c1 b a", "D c1 a b"]), 0);
    assert_eq!(left(&[offer, "Q c1 a;1 && Dw"]), 1);
}
