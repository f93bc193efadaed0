//! Who may send to a relay port before its stream is offloaded, and who is blocked altogether.

mod common;

use common::*;
use shunt_calls::*;
use shunt_latch::Found;
use std::net::IpAddr;
use std::time::Duration;

fn allowed(bench: &Bench, port: &str) -> Option<Vec<String>> {
    let allowed = bench.filters.get(&end(port))?;
    Some(allowed.iter().map(IpAddr::to_string).collect())
}

fn some(addresses: &[&str]) -> Option<Vec<String>> {
    Some(addresses.iter().map(ToString::to_string).collect())
}

#[test]
fn a_port_admits_nobody_until_the_answer_and_then_the_party() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    assert_eq!(
        allowed(&bench, "10.9.0.1:36000"),
        None,
        "a phone that answers at once meets an open port"
    );
    bench.pass(150);
    assert_eq!(allowed(&bench, "10.9.0.1:36000"), some(&[]));
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    assert_eq!(allowed(&bench, "10.9.0.1:36000"), some(&["10.2.0.2"]));
    assert_eq!(allowed(&bench, "10.9.0.1:36002"), some(&["10.1.0.2"]));
    bench.say("D c1 a b", "0");
    assert!(bench.filters.is_empty());
}

#[test]
fn whom_learning_admits_is_heard_beside_whom_signalling_names() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 192.168.50.2 6000 a;1", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    for _ in 0..6 {
        bench.now = bench.now + Duration::from_millis(20);
        bench.packet("198.51.100.1:5000", "10.9.0.1:36002", 1);
    }
    assert_eq!(bench.learned("c1", Side::Caller), Some(end("198.51.100.1:5000")));
    assert_eq!(allowed(&bench, "10.9.0.1:36002"), some(&["192.168.50.2", "198.51.100.1"]));
}

#[test]
fn an_asymmetric_leg_and_a_careful_relay_need_no_filter() {
    let mut bench = Bench::new(Settings::default());
    bench.say("UAc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    bench.say("LAc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.pass(1_000);
    assert!(bench.filters.is_empty(), "{:?}", bench.filters);
    let mut bench = Bench::new(Settings::default());
    let relay = Relay {
        name: "r2".into(),
        addresses: vec!["10.9.0.1".parse().unwrap()],
        ttl: Duration::from_secs(60),
        advertised: Vec::new(),
        setup_ttl: Duration::from_secs(60),
        symmetric_bridging: false,
        verifies_sources: true,
        keepalive: shunt_rtpproxy::capability::KeepAlive::TtlSubcommand,
        kind: shunt_calls::RelayKind::Rtpproxy,
        may_query: true,
    };
    bench.relay = bench.book.add_relay(relay);
    bench.call("c1", 36000);
    bench.pass(1_000);
    assert!(bench.filters.is_empty(), "{:?}", bench.filters);
}

#[test]
fn a_data_plane_that_is_not_configured_is_asked_for_no_filter() {
    let mut bench = Bench::new(Settings {
        enabled: false,
        ..Settings::default()
    });
    bench.call("c1", 36000);
    bench.pass(1_000);
    assert!(bench.filters.is_empty());
}

#[test]
fn a_source_that_scans_is_blocked_but_no_address_with_a_call() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    let scan = |bench: &mut Bench, source: &str| {
        for port in 0..60 {
            bench.packet(source, &format!("10.9.0.1:{}", 40_000 + 2 * port), 9);
        }
    };
    scan(&mut bench, "198.51.100.9:999");
    assert_eq!(bench.blocked, [Found::Source(end("198.51.100.9:999"))]);
    // From another port each time: the address, once what was missed has been known long enough to say that no stream goes there.
    bench.blocked.clear();
    for round in 0..40 {
        for place in 0..5 {
            let number = 5 * round + place;
            bench.packet(
                &format!("198.51.100.8:{}", 1_000 + number),
                &format!("10.9.0.1:{}", 42_000 + 2 * number),
                9,
            );
            bench.packet(
                &format!("10.1.0.2:{}", 10_000 + number),
                &format!("10.9.0.1:{}", 50_000 + 2 * number),
                9,
            );
        }
        bench.now = bench.now + Duration::from_millis(100);
    }
    assert!(
        bench.blocked.contains(&Found::Address("198.51.100.8".parse().unwrap())),
        "{:?}",
        bench.blocked
    );
    assert!(
        !bench.blocked.contains(&Found::Address("10.1.0.2".parse().unwrap())),
        "a party of a call is there"
    );
}
