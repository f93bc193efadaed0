//! Sessions that a relay lists and that were set up past the agent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use shunt_calls::*;
use shunt_rtpproxy::listing::{Party, Record};

fn record<'a>() -> Record<'a> {
    Record {
        call_id: b"past",
        from: b"a;1",
        to: Some(b"b;1"),
        ttl: 60,
        complete: true,
        caller: Party {
            relay: Some(end("10.9.0.1:36002")),
            signalled: Some(end("192.168.1.5:6000")),
            learned: Some(end("10.1.0.2:6000")),
            asymmetric: false,
        },
        callee: Party {
            relay: Some(end("10.9.0.1:36000")),
            signalled: Some(end("10.2.0.2:7000")),
            learned: Some(end("10.2.0.2:7000")),
            asymmetric: false,
        },
        notify: Some((b"unix:/run/notify".to_vec(), b"tag%201".to_vec())),
    }
}

fn adopt(bench: &mut Bench, record: &Record) {
    let (now, relay) = (bench.now, bench.relay);
    let decisions = bench.book.adopt_session(now, relay, record);
    bench.carry_out(decisions);
}

#[test]
fn what_the_relay_has_latched_is_offloaded() {
    let mut bench = Bench::new(Settings::default());
    adopt(&mut bench, &record());
    assert_eq!(bench.reason("past", Side::Caller), Reason::Offloaded);
    assert_eq!(bench.reason("past", Side::Callee), Reason::Offloaded);
    let entry = bench.held[&end("10.9.0.1:36002")];
    assert_eq!(
        (entry.key().src, entry.new_source(), entry.new_destination()),
        (end("10.1.0.2:6000"), end("10.9.0.1:36000"), end("10.2.0.2:7000"))
    );
    // The SIP server hangs up through the agent again.
    bench.say("D past a b", "0");
    assert!(bench.held.is_empty());
    assert_eq!(bench.ended, [Reason::Released]);
}

#[test]
fn a_session_without_media_yet_is_learned_as_any_other() {
    let mut bench = Bench::new(Settings::default());
    let mut record = record();
    (record.caller.learned, record.callee.learned) = (None, None);
    adopt(&mut bench, &record);
    assert!(bench.held.is_empty());
    bench.packet("192.168.1.5:6000", "10.9.0.1:36002", 1);
    bench.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    assert_eq!(bench.reason("past", Side::Caller), Reason::Offloaded);
}

#[test]
fn one_that_is_known_is_left_alone() {
    let mut bench = Bench::new(Settings::default());
    bench.call("past", 36100);
    let mut other = record();
    other.caller.relay = Some(end("10.9.0.1:36202"));
    adopt(&mut bench, &other);
    assert_eq!(bench.line("past").leg(Side::Caller).relay, Some(end("10.9.0.1:36102")));
}

#[test]
fn a_port_that_another_call_holds_is_not_taken() {
    let mut bench = Bench::new(Settings::default());
    bench.call("mine", 36000);
    bench.talk(36000);
    adopt(&mut bench, &record());
    assert_eq!(bench.reason("mine", Side::Caller), Reason::Offloaded);
    assert_eq!(bench.book.lines_of_call(b"past").count(), 0);
}

#[test]
fn an_offer_alone_waits_for_its_answer() {
    let mut bench = Bench::new(Settings::default());
    let mut record = record();
    record.complete = false;
    record.caller.relay = None;
    record.callee.signalled = None;
    record.to = None;
    adopt(&mut bench, &record);
    assert_eq!(bench.reason("past", Side::Callee), Reason::WaitingForAnswer);
}

#[test]
fn an_answer_that_went_past_the_agent_is_taken_from_the_list() {
    let mut bench = Bench::new(Settings::default());
    bench.say("U past 192.168.1.5 6000 a;1", "36000 10.9.0.1");
    let mut ringing = record();
    (ringing.complete, ringing.to, ringing.caller.relay, ringing.callee.signalled) = (false, None, None, None);
    adopt(&mut bench, &ringing);
    assert_eq!(bench.reason("past", Side::Callee), Reason::WaitingForAnswer);
    adopt(&mut bench, &record());
    assert_eq!(bench.reason("past", Side::Caller), Reason::Offloaded);
    assert_eq!(bench.book.line_count(), 1);
}

#[test]
fn a_session_that_has_ended_is_not_adopted_from_an_older_list() {
    let mut bench = Bench::new(Settings::default());
    adopt(&mut bench, &record());
    bench.say("D past a b", "0");
    adopt(&mut bench, &record());
    assert_eq!(bench.book.line_count(), 0);
    assert_eq!(bench.ended, [Reason::Released]);
    // The same dialog begins again.
    bench.say("U past 192.168.1.5 6000 a;1", "36000 10.9.0.1");
    assert_eq!(bench.book.line_count(), 1);
}
