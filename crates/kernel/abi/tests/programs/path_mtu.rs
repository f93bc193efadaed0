//! Path MTU reports: which ICMP errors raise one, and what is in it.

use crate::frame::{TooBig, Udp, rtp};
use crate::plane::{Entry, PASS, Plane, Setup, words};
use crate::relaying::{relayed, sent, v4, v6};
use shunt_abi::relay::{path_mtu_report, reason};
use shunt_xdp::monotonic_ns;

fn plane() -> Option<Plane> {
    let mut plane = Plane::load(Setup::default())?;
    for entry in [v4(), v6()] {
        plane.insert(&entry);
        plane.insert(&entry.reverse());
    }
    plane.media("10.2.0.1", 16384, 32767);
    Some(plane)
}

/// A relayed packet as it left.
fn left(entry: &Entry, payload: usize) -> Udp {
    relayed(entry, &sent(entry).with(|packet| packet.payload = rtp(1, payload)))
}

fn fields(report: &path_mtu_report) -> ([u32; 4], [u32; 4], u32, u32) {
    (report.daddr, report.saddr, report.mtu, report.version)
}

/// Run an error through the program and take the reports.
fn reports(plane: &Plane, error: &TooBig) -> Vec<path_mtu_report> {
    let outcome = plane.run("native", &error.frame());
    assert_eq!(
        (outcome.verdict, outcome.frame),
        (PASS, error.frame()),
        "the kernel gets the error too"
    );
    plane.reports()
}

#[test]
fn errors_about_relayed_packets_are_reported() {
    let cases = [
        ("IPv4", v4(), 1200, 1100, 1100),
        ("IPv4, no more than the least MTU", v4(), 1200, 100, 576),
        ("IPv4, a router that tells no MTU", v4(), 1200, 0, 576),
        ("IPv6", v6(), 1300, 1280, 1280),
    ];
    for (what, entry, payload, mtu, expected) in cases {
        let Some(plane) = plane() else { return };
        let error = TooBig::about(
            &left(&entry, payload),
            if entry.src.is_ipv4() { "10.9.0.1" } else { "fd09::1" },
            mtu,
        );
        let found = reports(&plane, &error);
        let (daddr, saddr) = (words(entry.out_dst.ip()), words(entry.out_src.ip()));
        let version = if entry.src.is_ipv4() { 4 } else { 6 };
        assert_eq!(
            found.iter().map(fields).collect::<Vec<_>>(),
            [(daddr, saddr, expected, version)],
            "{what}"
        );
        assert_eq!(plane.counted()[reason::NOT_UDP.0 as usize], 1, "{what}");
    }
}

#[test]
fn entries_outside_of_slots_count_too() {
    let Some(mut plane) = Plane::load(Setup::default()) else { return };
    let first = Entry::new("10.3.0.2:6002", "10.2.0.1:20002", "10.1.0.1:20000", "10.1.0.2:4002");
    plane.insert(&first);
    plane.insert_overflow(&v4().reverse());
    assert_eq!(reports(&plane, &TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100)).len(), 1);
    let Some(mut plane) = Plane::load(Setup::default()) else { return };
    plane.insert_loose(&v4().reverse());
    assert_eq!(reports(&plane, &TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100)).len(), 1);
}

#[test]
fn nothing_else_raises_a_report() {
    let Some(plane) = plane() else { return };
    let right = TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100);
    let right6 = TooBig::about(&left(&v6(), 1300), "fd09::1", 1280);
    let about = |change: &dyn Fn(&mut Udp)| TooBig::about(&left(&v4(), 1200).with(change), "10.9.0.1", 1100);
    let quoting = |at: usize, byte: u8| right.with(|e| e.quoted[at] = byte);
    let cases = [
        ("another code", right.with(|e| e.code = 3)),
        ("another type", right.with(|e| e.kind = 11)),
        ("a wrong ICMP checksum", right.with(|e| e.error = 1)),
        ("a fragment", right.with(|e| e.fragment = 0x2000)),
        (
            "to another address than the packet came from",
            right.with(|e| e.dst = "10.1.0.1".parse().expect("an address")),
        ),
        (
            "about another destination",
            about(&|p| p.dst = "10.2.0.3:6000".parse().expect("an endpoint")),
        ),
        ("about another destination port", about(&|p| p.dst.set_port(6001))),
        ("about another relay port", about(&|p| p.src.set_port(20003))),
        (
            "about an address that is not a relay's",
            about(&|p| p.src = "10.2.0.77:20002".parse().expect("an endpoint")),
        ),
        (
            "about a packet that the MTU has room for",
            about(&|p| p.payload = rtp(1, 1100 - 40)),
        ),
        (
            "about a packet of the least MTU",
            TooBig::about(&left(&v4(), 576 - 40), "10.9.0.1", 400),
        ),
        ("about a TCP segment", quoting(9, 6)),
        ("about a packet with options", quoting(0, 0x46)),
        ("about a fragment", quoting(7, 9)),
        ("about IPv6 in IPv4", quoting(0, 0x65)),
        ("quoting too little", right.with(|e| e.quoted.truncate(27))),
        ("ICMPv6, another code", right6.with(|e| e.code = 1)),
        ("ICMPv6, another type", right6.with(|e| e.kind = 1)),
        ("ICMPv6, below the least MTU", right6.with(|e| e.mtu = 1279)),
        ("ICMPv6, a wrong checksum", right6.with(|e| e.error = 1)),
        ("ICMPv6, about a packet that the MTU has room for", right6.with(|e| e.mtu = 1400)),
        ("ICMPv6, about another upper layer", right6.with(|e| e.quoted[6] = 6)),
        (
            "ICMPv6, to another address than the packet came from",
            right6.with(|e| e.dst = "fd01::1".parse().expect("an address")),
        ),
        ("ICMPv6, about another port", right6.with(|e| e.quoted[43] ^= 1)),
        ("ICMPv6, quoting too little", right6.with(|e| e.quoted.truncate(47))),
    ];
    for (what, error) in cases {
        assert!(reports(&plane, &error).is_empty(), "{what}");
    }
    let mut damaged = right.frame();
    damaged[24] ^= 1; // the IPv4 header checksum
    plane.run("native", &damaged);
    let answer = plane.trace(&right.frame());
    assert_eq!(
        (answer, plane.reports().len()),
        ((PASS, reason::NOT_UDP.0), 0),
        "tracing reports nothing"
    );
    // What was wrong was not what the rate gate holds back: the right ones still come through.
    assert_eq!(reports(&plane, &right).len(), 1);
    assert_eq!(reports(&plane, &right6).len(), 1);
}

#[test]
fn an_entry_that_is_gone_raises_no_report() {
    let Some(mut plane) = plane() else { return };
    plane.remove(v4().reverse().dst);
    assert!(reports(&plane, &TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100)).is_empty());
}

#[test]
fn errors_behind_ip_options_are_read() {
    let Some(plane) = plane() else { return };
    let error = TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100).with(|e| e.options = vec![1; 8]);
    assert_eq!(reports(&plane, &error).len(), 1);
}

#[test]
fn a_destination_has_one_report_a_second() {
    let Some(plane) = plane() else { return };
    let error = TooBig::about(&left(&v4(), 1200), "10.9.0.1", 1100).frame();
    let second = || monotonic_ns() / 1_000_000_000;
    let first = second();
    for _ in 0..200 {
        plane.run("native", &error);
    }
    let found = plane.reports().len() as u64;
    assert!(found >= 1 && found <= second() - first + 1, "{found} reports");
}
