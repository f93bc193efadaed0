//! What the book tells of calls, for people: facts at the end, time to offload, silence, verdicts.

mod common;

use common::*;
use shunt_calls::*;
use shunt_hep::sip::Message;
use shunt_net::Endpoint;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn idle(bench: &mut Bench, port: u16, is_idle: bool) {
    let key = bench.held[&end(&format!("10.9.0.1:{port}"))].key();
    let decisions = if is_idle {
        bench.book.idle(bench.now, key)
    } else {
        bench.book.active(bench.now, key)
    };
    bench.carry_out(decisions);
}

fn read(bench: &mut Bench, port: u16, packets: u64, jitter_us: u32, idle: Duration) {
    let reading = Reading {
        key: bench.held[&end(&format!("10.9.0.1:{port}"))].key(),
        counters: Counters {
            packets,
            bytes: packets * 200,
            jitter_us: Some(jitter_us),
            ..Counters::default()
        },
        idle: Some(idle),
    };
    bench.book.counted(bench.now, &[reading]);
}

#[test]
fn a_call_ends_once_with_all_its_lines() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.say("Uc0 c1 10.1.0.9 6010 a;2", "36010 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.9 7010 a;2 b;2", "36012 10.9.0.1");
    bench.talk(36000);
    bench.pass(4_000);
    bench.say("D c1 a;2 b;2", "0");
    assert!(bench.calls.is_empty(), "one line goes on");
    bench.pass(1_000);
    bench.say("D c1 a b", "0");
    let [call] = bench.calls.as_slice() else {
        panic!("{:?}", bench.calls)
    };
    assert_eq!(
        (call.reason, bench.now.since(call.created)),
        (Reason::Released, Duration::from_secs(5))
    );
    let media: Vec<_> = call
        .lines
        .iter()
        .map(|line| (line.media, line.answered, line.caller.has_sent()))
        .collect();
    assert_eq!(media, [(Some(1), true, true), (Some(2), true, false)]);
    assert_eq!(
        (&*call.lines[0].tag, call.lines[0].other_tag.as_deref()),
        (&b"a"[..], Some(&b"b"[..]))
    );
}

#[test]
fn a_call_id_used_again_is_another_call() {
    let mut bench = Bench::new(Settings::default());
    for port in [36000, 36100] {
        bench.call("c1", port);
        bench.say("D c1 a b", "0");
    }
    assert_eq!(bench.calls.iter().map(|call| call.lines.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn time_to_offload_counts_from_both_parties_first_packet() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    bench.pass(300);
    // From an address that signalling does not name: five packets are needed.
    for _ in 0..5 {
        bench.packet("10.2.0.77:7000", "10.9.0.1:36000", 2);
        bench.pass(20);
    }
    bench.pass(500);
    let after: Vec<_> = bench.offloads.iter().filter_map(|(_, after)| *after).collect();
    assert_eq!(after.len(), 2, "{:?}", bench.offloads);
    assert!(
        after
            .iter()
            .all(|after| *after >= Duration::from_millis(80) && *after < Duration::from_millis(700)),
        "{after:?}"
    );
    assert_eq!(
        bench.line("c1").stream(Side::Caller, Component::Rtp).offloaded_after,
        Some(after[0])
    );
    bench.say("D c1 a b", "0");
    assert_eq!(bench.calls[0].lines[0].caller.offloaded_after, Some(after[0]));
}

#[test]
fn a_party_that_falls_silent_has_its_own_reason() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.pass(40_000);
    idle(&mut bench, 36002, true);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::Silent);
    assert_eq!(bench.reason("c1", Side::Callee), Reason::Offloaded);
    assert_eq!(bench.line("c1").stream(Side::Caller, Component::Rtp).state, State::Offloaded);
    let counts: Vec<_> = bench.book.stream_counts().collect();
    assert!(counts.contains(&(State::Offloaded, Reason::Silent, 1)), "{counts:?}");
    idle(&mut bench, 36002, false);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::Offloaded);
    let told: Vec<_> = bench
        .happened
        .iter()
        .filter(|what| matches!(what, Happening::Idle { .. } | Happening::Active { .. }))
        .collect();
    let [Happening::Idle { stream, silent }, Happening::Active { stream: again }] = told.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!((stream, *silent), (again, Duration::from_secs(30)));
}

#[test]
fn counters_have_an_age_and_the_last_packet() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    assert_eq!(bench.line("c1").stream(Side::Caller, Component::Rtp).counted_at, None);
    bench.pass(5_000);
    read(&mut bench, 36002, 100, 3_000, Duration::from_secs(2));
    let stream = bench.line("c1").stream(Side::Caller, Component::Rtp);
    assert_eq!((stream.counted_at, stream.counters.packets), (Some(bench.now), 100));
    assert_eq!(bench.now.since(stream.met_at.unwrap()), Duration::from_secs(2));
    read(&mut bench, 36002, 200, 1_000, Duration::ZERO);
    let counters = bench.line("c1").stream(Side::Caller, Component::Rtp).counters;
    assert_eq!((counters.jitter_us, counters.jitter_max_us), (Some(1_000), Some(3_000)));
    bench.say("D c1 a b", "0");
    let party = &bench.calls[0].lines[0].caller;
    assert_eq!((party.rtp.packets, party.rtp.jitter_max_us), (200, Some(3_000)));
}

#[test]
fn the_jitter_of_several_entries_is_their_mean_by_packets() {
    let of = |packets, jitter| Counters {
        packets,
        jitter_us: Some(jitter),
        ..Counters::default()
    };
    let sum = of(300, 1_000).plus(of(100, 5_000));
    assert_eq!((sum.jitter_us, sum.jitter_max_us), (Some(2_000), Some(5_000)));
    assert_eq!(Counters::default().plus(of(10, 7)).jitter_us, Some(7));
}

#[test]
fn each_packet_that_met_no_entry_has_a_verdict() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.packet("10.6.6.6:6000", "10.9.0.1:36002", 666);
    assert_eq!(
        bench.verdicts,
        [Verdict::Latched, Verdict::Latched, Verdict::Ignored(Ignored::Mismatch)]
    );
    assert_eq!(
        (bench.book.source_mismatches(), bench.line("c1").leg(Side::Caller).mismatches),
        (1, 1)
    );
}

#[test]
fn signalling_suspends_and_resumes() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.say("Uc0 c1 10.1.0.2 6100 a;1 b;1", "36000 10.9.0.1");
    bench.say("Lc0 c1 10.2.0.2 7000 a;1 b;1", "36002 10.9.0.1");
    assert_eq!(bench.happened, [Happening::Suspended(Reason::ReInvite), Happening::Resumed]);
}

#[test]
fn a_media_time_out_is_told_without_a_notify_socket() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.silent_since = Some(bench.now);
    for _ in 0..130 {
        bench.pass(500);
    }
    assert_eq!(bench.ended, [Reason::MediaTimeout]);
    assert!(bench.happened.contains(&Happening::MediaTimeout(LONG)), "{:?}", bench.happened);
}

#[test]
fn what_the_relay_counted_and_sdp_are_told_at_the_end() {
    let mut bench = Bench::new(Settings::default());
    let invite = b"INVITE sip:b@x SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.2\r\nFrom: <sip:a@x>;tag=a\r\nTo: <sip:b@x>\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\r\n\
        v=0\r\nc=IN IP4 10.1.0.2\r\nm=audio 6000 RTP/AVP 8\r\na=rtpmap:8 PCMA/8000\r\na=sendonly\r\n";
    let decisions = bench.book.sip(
        bench.now,
        end("10.1.0.2:5060"),
        end("10.9.0.9:5060"),
        &Message::parse(invite).unwrap(),
    );
    bench.carry_out(decisions);
    bench.call("c1", 36000);
    let id = bench.line("c1").id();
    let (_, question) = bench.book.count_question(id).unwrap();
    let decisions = bench
        .book
        .relay_replied(bench.now, id, Purpose::Count, &question, Some(b"60 7 9 16 0"));
    bench.carry_out(decisions);
    assert_eq!(bench.line("c1").leg(Side::Caller).relay_packets, Some((7, bench.now)));
    bench.book.queried(bench.now, id, true, b"Q c1 b;1 a;1", b"60 11 8 19 0");
    bench.say("D c1 a b", "0");
    let line = &bench.calls[0].lines[0];
    assert_eq!((line.caller.relay_packets, line.callee.relay_packets), (Some(8), Some(11)));
    let sdp = line.caller.sdp.as_ref().unwrap();
    assert_eq!(
        (&*sdp.kind.medium, sdp.port, sdp.direction),
        (&b"audio"[..], 6000, Direction::SendOnly)
    );
    assert_eq!(
        (&*sdp.kind.formats[0].encoding, sdp.kind.formats[0].clock_rate),
        (&b"PCMA"[..], 8000)
    );
    assert!(line.callee.sdp.is_none());
}

#[test]
fn what_was_told_is_in_the_journal_and_a_restored_line_is_no_news() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    bench.talk(36000);
    bench.packet("10.6.6.6:6000", "10.9.0.1:36002", 666);
    let id = bench.line("c1").id();
    let wall = Duration::from_secs(1_700_000_000);
    let row = bench.book.row(id, bench.now, wall).unwrap();
    let row: Row = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
    let mut next = Bench::new(Settings::default());
    next.book.restore(next.now, wall, &row).unwrap();
    let before = bench.line("c1").stream(Side::Caller, Component::Rtp).offloaded_after;
    assert!(before.is_some());
    assert_eq!(next.line("c1").stream(Side::Caller, Component::Rtp).offloaded_after, before);
    assert_eq!(next.line("c1").leg(Side::Caller).mismatches, 1);
    assert_eq!(next.line("c1").leg(Side::Caller).payload_types, [(0, 1)]);
    assert_eq!(next.reason("c1", Side::Caller), Reason::Offloaded);
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    let now = next.now;
    let decisions = next.compare(now, &present, std::collections::HashSet::new());
    assert_eq!(next.compared, (0, 0));
    assert!(
        !decisions.iter().any(|decision| matches!(decision, Decision::Changed { .. })),
        "{decisions:?}"
    );
}

#[test]
fn without_a_data_plane_nobody_says_that_no_packet_was_seen() {
    let mut bench = Bench::new(Settings::default());
    bench.call("c1", 36000);
    assert_eq!(bench.reason("c1", Side::Caller), Reason::WaitingForMedia);
    for (available, reason) in [(false, Reason::DataPlaneUnavailable), (true, Reason::WaitingForMedia)] {
        let mut decisions = bench.book.set_data_plane(available);
        decisions.extend(bench.book.look_at(bench.now, &bench.book.line_ids()));
        bench.carry_out(decisions);
        assert_eq!(bench.reason("c1", Side::Caller), reason);
    }
}

#[test]
fn a_silent_stream_is_looked_at_again_when_the_data_plane_is_back() {
    for resumed in [false, true] {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        bench.talk(36000);
        bench.pass(40_000);
        idle(&mut bench, 36002, true);
        let reason = |bench: &Bench| bench.reason("c1", Side::Caller);
        assert_eq!(reason(&bench), Reason::Silent);
        let key = bench.held[&end("10.9.0.1:36002")].key();
        // The notice that it meets packets again is lost: the data plane is away just then.
        let lines = bench.book.line_ids();
        bench.book.set_data_plane(false);
        let away = bench.book.look_at(bench.now, &lines);
        assert!(
            !away.iter().any(|decision| matches!(decision, Decision::ReadIdle(_))),
            "nobody answers"
        );
        bench.book.set_data_plane(true);
        let back = bench.book.look_at(bench.now, &lines);
        let asked: Vec<_> = back
            .iter()
            .filter_map(|decision| match decision {
                Decision::ReadIdle(keys) => Some(keys.as_slice()),
                _ => None,
            })
            .collect();
        assert_eq!(asked, [[key]]);
        let idle = Duration::from_millis(if resumed { 20 } else { 50_000 });
        let read = Idle {
            key,
            idle: Some(idle),
            sequence: None,
        };
        bench.book.idle_times(bench.now, &[read]);
        assert_eq!(reason(&bench) == Reason::Silent, !resumed);
    }
}

fn misdirected(bench: &Bench, side: Side) -> Option<(Endpoint, Endpoint)> {
    let seen = bench.line("c1").leg(side).misdirected?;
    Some((seen.source, seen.port))
}

#[test]
fn a_party_that_sends_to_a_wrong_port_is_seen_there() {
    let own = end("10.9.0.1:36002");
    // A port of no call, of the other party, of another call, of RTCP's parity; from the signalled port, or from another one of the address.
    for wrong in ["10.9.0.1:40000", "10.9.0.1:36000", "10.9.0.1:36100", "10.9.0.1:40001"] {
        for source in ["10.1.0.2:6000", "10.1.0.2:6999"] {
            let mut bench = Bench::new(Settings::default());
            bench.call("c1", 36000);
            assert_eq!(bench.line("c1").leg(Side::Caller).relay, Some(own));
            bench.say("Uc0 c2 10.3.0.9 6000 a", "36100 10.9.0.1");
            bench.say("Lc0 c2 10.4.0.9 7000 a b", "36102 10.9.0.1");
            assert_eq!(misdirected(&bench, Side::Caller), None);
            bench.packet(source, wrong, 5);
            assert_eq!(
                misdirected(&bench, Side::Caller),
                Some((end(source), end(wrong))),
                "{source} to {wrong}"
            );
            assert_eq!(misdirected(&bench, Side::Callee), None);
            // It has found its port.
            for _ in 0..8 {
                bench.packet("10.1.0.2:6000", "10.9.0.1:36002", 5);
            }
            assert_eq!(misdirected(&bench, Side::Caller), None);
        }
    }
}

#[test]
fn packets_before_a_call_and_of_others_are_not_its_party() {
    let mut bench = Bench::new(Settings::default());
    bench.packet("10.1.0.2:6000", "10.9.0.1:40000", 5);
    bench.pass(1_000);
    bench.call("c1", 36000);
    bench.packet("10.5.0.9:6000", "10.9.0.1:40000", 6);
    assert_eq!(
        misdirected(&bench, Side::Caller),
        None,
        "before the call, or from an address of nobody's"
    );
    for source in ["10.1.0.2:5000", "10.1.0.2:5002"] {
        bench.packet(source, "10.9.0.1:40000", 7);
    }
    assert_eq!(
        misdirected(&bench, Side::Caller),
        None,
        "two sources of the address: either may be the party"
    );
}
