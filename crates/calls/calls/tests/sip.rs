//! What copies of SIP tell the book.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use shunt_calls::*;
use shunt_hep::sip::Message;
use std::time::Duration;

fn copy(bench: &mut Bench, source: &str, first: &str, tags: (&str, &str), cseq: &str, sdp: &str) {
    passed_on(bench, (source, "10.9.0.9:5060"), first, tags, cseq, sdp);
}

fn passed_on(bench: &mut Bench, (source, destination): (&str, &str), first: &str, tags: (&str, &str), cseq: &str, sdp: &str) {
    let (from, to) = tags;
    let to = if to.is_empty() { String::new() } else { format!(";tag={to}") };
    let text = format!(
        "{first}\r\nVia: SIP/2.0/UDP 10.1.0.2\r\nFrom: <sip:a@x>;tag={from}\r\nTo: <sip:b@x>{to}\r\nCall-ID: c1\r\nCSeq: 1 {cseq}\r\n\r\n{sdp}"
    );
    let now = bench.now;
    let message = Message::parse(text.as_bytes()).unwrap();
    let decisions = bench.book.sip(now, end(source), end(destination), &message);
    bench.carry_out(decisions);
}

fn sdp(address: &str, port: u16, more: &str) -> String {
    format!("v=0\r\nc=IN IP4 {address}\r\nm=audio {port} RTP/AVP 0\r\n{more}")
}

#[test]
fn the_address_of_sdp_may_send_from_the_first_packet_on() {
    let mut bench = Bench::new(Settings::default());
    copy(
        &mut bench,
        "10.1.0.2:5060",
        "INVITE sip:b@x SIP/2.0",
        ("a", ""),
        "INVITE",
        &sdp("10.1.0.77", 6000, ""),
    );
    bench.call("c1", 36000);
    let allowed = &bench.filters[&end("10.9.0.1:36002")];
    assert!(allowed.contains(&"10.1.0.77".parse().unwrap()), "{allowed:?}");
    bench.packet("10.1.0.77:6000", "10.9.0.1:36002", 1);
    assert_eq!(bench.learned("c1", Side::Caller), Some(end("10.1.0.77:6000")));
}

/// An INVITE of the caller, as the SIP server passes it on.
fn called(bench: &mut Bench, callee: &str) {
    bench.book.declare_own("10.9.0.9".parse().unwrap());
    passed_on(bench, ("10.9.0.9:5060", callee), "INVITE sip:b@x SIP/2.0", ("a", ""), "INVITE", "");
}

#[test]
fn who_is_called_may_send_before_the_answer_whenever_the_copy_comes() {
    for early in [false, true] {
        let mut bench = Bench::new(Settings::default());
        if early {
            called(&mut bench, "10.2.0.2:5060");
        }
        bench.say("U c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
        if !early {
            called(&mut bench, "10.2.0.2:5060");
        }
        let allowed = |bench: &Bench| bench.filters[&end("10.9.0.1:36000")].clone();
        assert_eq!(allowed(&bench), ["10.2.0.2".parse::<std::net::IpAddr>().unwrap()], "{early}");
        // The offer again, and the end of the time in which the port is open.
        bench.say("U c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
        bench.pass(500);
        assert_eq!(allowed(&bench), ["10.2.0.2".parse::<std::net::IpAddr>().unwrap()], "{early}");
        bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 1);
        assert_eq!(bench.learned("c1", Side::Callee), Some(end("10.2.0.2:7000")));
    }
}

#[test]
fn the_callee_of_another_dialog_is_not_this_one_s() {
    let mut bench = Bench::new(Settings::default());
    bench.book.declare_own("10.9.0.9".parse().unwrap());
    let there = ("10.9.0.9:5060", "10.2.0.2:5060");
    passed_on(&mut bench, there, "INVITE sip:b@x SIP/2.0", ("other", ""), "INVITE", "");
    bench.say("U c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    bench.pass(500);
    assert!(bench.filters[&end("10.9.0.1:36000")].is_empty());
}

#[test]
fn the_addresses_of_parties_are_allowed_as_soon_as_they_are_known() {
    let mut bench = Bench::new(Settings::default());
    bench.say("U c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    // The caller's own port comes with the answer, and its first packet at once after that.
    assert_eq!(bench.allowed, ["10.1.0.2".parse::<std::net::IpAddr>().unwrap()]);
    called(&mut bench, "10.2.0.2:5060");
    bench.say("L c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    bench.say("U c2 10.1.0.2 6002 a;1", "36004 10.9.0.1");
    let parties: Vec<std::net::IpAddr> = vec!["10.1.0.2".parse().unwrap(), "10.2.0.2".parse().unwrap()];
    assert_eq!(bench.allowed, parties, "each once");
}

#[test]
fn muxed_rtcp_has_no_entries_of_its_own() {
    let mut bench = Bench::new(Settings::default());
    copy(
        &mut bench,
        "10.1.0.2:5060",
        "INVITE sip:b@x SIP/2.0",
        ("a", ""),
        "INVITE",
        &sdp("10.1.0.2", 6000, "a=rtcp-mux\r\n"),
    );
    copy(
        &mut bench,
        "10.2.0.2:5060",
        "SIP/2.0 200 OK",
        ("a", "b"),
        "INVITE",
        &sdp("10.2.0.2", 7000, "a=rtcp-mux\r\n"),
    );
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.rtcp(36000);
    assert_eq!(bench.held.len(), 2);
    assert_eq!(bench.line("c1").stream(Side::Caller, Component::Rtcp).reason, Reason::RtcpMuxed);
}

#[test]
fn a_bye_removes_the_entries_until_media_is_heard_again() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    copy(&mut bench, "10.1.0.2:5060", "BYE sip:b@x SIP/2.0", ("a", "other"), "BYE", "");
    assert_eq!(bench.held.len(), 2, "of another dialog");
    copy(&mut bench, "10.1.0.2:5060", "BYE sip:b@x SIP/2.0", ("a", "b"), "BYE", "");
    assert!(bench.held.is_empty());
    assert_eq!(bench.reason("c1", Side::Caller), Reason::ByeSeen);
    bench.now = bench.now + Duration::from_secs(9);
    bench.talk(36000);
    bench.pass(1500);
    assert_eq!(bench.held.len(), 2, "the BYE was rejected");
}

#[test]
fn the_winner_of_a_fork_is_who_had_a_2xx() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    copy(&mut bench, "10.2.0.2:5060", "SIP/2.0 200 OK", ("a", "b"), "INVITE", "");
    let (step, _) = bench.before("D c1 a loser");
    assert_eq!(step, Step::Answer(b"0".to_vec()));
    assert_eq!(bench.book.call_count(), 1);
}

#[test]
fn what_copies_have_told_of_a_party_outlives_them() {
    let mut bench = Bench::new(Settings::default());
    let offer = sdp("10.1.0.77", 6000, "a=rtcp-mux\r\n");
    copy(&mut bench, "10.1.0.5:5060", "INVITE sip:b@x SIP/2.0", ("a", ""), "INVITE", &offer);
    bench.call("c1", 36000);
    let allowed = bench.filters[&end("10.9.0.1:36002")].clone();
    assert_eq!(allowed.len(), 3, "{allowed:?}");
    let (line, wall) = (bench.line("c1").id(), Duration::from_secs(1_700_000_000));
    let row = bench.book.row(line, bench.now, wall).unwrap();
    // An agent after this one has seen no copy; the offer comes again.
    let mut after = Bench::new(Settings::default());
    let line = after.book.restore(after.now, wall, &row).unwrap();
    after.say("Uc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    assert_eq!(after.filters[&end("10.9.0.1:36002")], allowed);
    assert!(after.book.row(line, after.now, wall).unwrap().caller.muxes);
}

#[test]
fn what_copies_have_told_of_one_callee_is_not_another_one_s() {
    let mut bench = Bench::new(Settings::default());
    bench.say("Uc0 c1 10.1.0.2 6000 a;1", "36000 10.9.0.1");
    let answer = sdp("10.2.0.77", 7000, "");
    copy(&mut bench, "10.2.0.5:5060", "SIP/2.0 183 Progress", ("a", "b"), "INVITE", &answer);
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    assert_eq!(bench.filters[&end("10.9.0.1:36000")].len(), 3);
    bench.say("Lc0 c1 10.3.0.2 7000 a;1 c;1", "36002 10.9.0.1");
    assert_eq!(
        bench.filters[&end("10.9.0.1:36000")],
        ["10.3.0.2".parse::<std::net::IpAddr>().unwrap()]
    );
}
