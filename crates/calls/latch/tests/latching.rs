//! Who is latched, and when: one case at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{PHONE, Port, STRANGER, at, ms, rtp};
use shunt_latch::{Component, Facts, Former, Ignored, Latch, Learner, Name, Names, Packet, Policy, Rank, Verdict};
use shunt_rtp::Source;
use std::time::Duration;

const NAMED: Verdict = Verdict::Latched;
const MISMATCH: Verdict = Verdict::Ignored(Ignored::Mismatch);

fn latched_at(verdicts: &[Verdict]) -> Option<usize> {
    verdicts.iter().position(|verdict| verdict.is_held())
}

#[test]
fn a_named_source_is_latched_by_its_first_packet() {
    for name in [Name::from(at(PHONE, 6000)), Name::address(PHONE)] {
        let mut port = Port::new(&[name]);
        assert_eq!(port.rtp(0, at(PHONE, 6000), 1, 1), NAMED);
        assert_eq!(port.rtp(20, at(PHONE, 6000), 1, 2), Verdict::Known);
    }
    let mut port = Port::new(&[at(PHONE, 6000).into()]);
    assert_eq!(port.rtp(0, at(PHONE, 40_000), 1, 1), NAMED, "its NAT has another port");
    assert_eq!(port.latch.rank(), Some(Rank::Address));
}

#[test]
fn every_named_address_counts_and_those_of_servers_do_not() {
    // SDP's connection address, the SIP source, and the SIP server that spoofs it.
    let names: [Name; 3] = [
        at([203, 0, 113, 5], 6000).into(),
        Name::address(PHONE),
        Name::address([10, 0, 0, 1]),
    ];
    for (source, named) in [([203, 0, 113, 5], true), (PHONE, true), ([10, 0, 0, 1], false)] {
        let mut port = Port::new(&[]);
        port.learner.parties.declare_own([10, 0, 0, 1].into());
        port.latch = port.learner.latch(ms(0), Component::Rtp, names.iter().copied().collect());
        assert_eq!(port.rtp(0, at(source, 7000), 1, 1) == NAMED, named, "{source:?}");
    }
}

#[test]
fn an_unknown_source_shows_five_packets_over_eighty_milliseconds() {
    let mut port = Port::new(&[]);
    let verdicts = port.talk(0, at(STRANGER, 1), 7, 65_533, 6);
    assert_eq!(latched_at(&verdicts), Some(4), "{verdicts:?}");
    let mut quick = Port::new(&[]);
    let burst: Vec<Verdict> = (0..9).map(|n| quick.rtp(u64::from(n), at(STRANGER, 1), 7, n)).collect();
    assert_eq!(latched_at(&burst), None, "a burst is no call");
    // Speech without pauses, discontinuous transmission, comfort noise, text.
    for each in [20, 120, 320, 400, 1000, 10_000] {
        let mut seldom = Port::new(&[]);
        let verdicts: Vec<Verdict> = (0u16..6).map(|n| seldom.rtp(each * u64::from(n), at(STRANGER, 1), 7, n)).collect();
        assert_eq!(latched_at(&verdicts), Some(4), "one packet each {each} ms");
    }
    let mut same = Port::new(&[]);
    let verdicts: Vec<Verdict> = (0..20).map(|n| same.rtp(20 * n, at(STRANGER, 1), 7, 5)).collect();
    assert_eq!(latched_at(&verdicts), None, "one packet again and again is no stream");
}

#[test]
fn reordered_packets_neither_count_nor_end_a_run() {
    let mut port = Port::new(&[]);
    let numbers = [10u16, 12, 11, 13, 14, 15];
    let verdicts: Vec<Verdict> = (0u64..)
        .step_by(20)
        .zip(numbers)
        .map(|(time, n)| port.rtp(time, at(STRANGER, 1), 7, n))
        .collect();
    assert_eq!(latched_at(&verdicts), Some(5));
}

#[test]
fn what_is_no_rtp_is_latched_like_an_unknown_source_and_gives_way_to_rtp() {
    let mut port = Port::new(&[]);
    let fax = |time| Packet {
        at: ms(time),
        source: at(STRANGER, 1),
        media: None,
    };
    let verdicts: Vec<Verdict> = (0..5).map(|n| port.packet(&fax(20 * n))).collect();
    assert_eq!(latched_at(&verdicts), Some(4));
    assert_eq!(latched_at(&port.talk(100, at(PHONE, 1), 7, 0, 5)), Some(4));
}

// -- rivals ----------------------------------------------------------------------------------------------------------

#[test]
fn two_packets_from_random_addresses_are_no_rivals() {
    let mut port = Port::new(&[]);
    for n in 0..20u8 {
        port.talk(u64::from(n), at([100, 0, 0, n], 1), u32::from(n), 5, 2);
    }
    assert_eq!(latched_at(&port.talk(30, at(STRANGER, 1), 7, 0, 5)), Some(4));
    assert!(!port.latch.is_contested());
}

#[test]
fn a_rival_makes_the_stream_contested_and_both_are_admitted_until_one_is_silent() {
    let (phone, attacker) = (at(PHONE, 1), at(STRANGER, 1));
    let mut port = Port::new(&[]);
    for n in 0..50u16 {
        port.rtp(20 * u64::from(n), phone, 1, n);
        port.rtp(20 * u64::from(n) + 1, attacker, 2, n);
    }
    assert!(port.latch.is_contested() && port.learned().is_none());
    let mut admitted = port.latch.admitted(&port.learner.policy, port.now, true);
    admitted.sort_unstable();
    assert_eq!(admitted, [phone, attacker]);
    // The rival's last packet was at 981 ms.
    let verdicts = port.talk(1000, phone, 1, 50, 150);
    let latched = latched_at(&verdicts).unwrap();
    assert!((99..=101).contains(&latched), "two seconds after the rival: packet {latched}");
    assert_eq!(port.latch.admitted(&port.learner.policy, port.now, true), [phone]);
}

#[test]
fn bursts_now_and_then_do_not_keep_a_stream_contested() {
    let mut port = Port::new(&[]);
    let mut latched = None;
    for n in 0..300u16 {
        let time = 20 * u64::from(n);
        if n % 90 < 3 {
            port.rtp(time + 1, at(STRANGER, n / 90 + 1), 2, n);
        }
        if port.rtp(time, at(PHONE, 1), 1, n).is_held() {
            latched = latched.or(Some(n));
        }
    }
    assert!(latched.unwrap() < 50, "{latched:?}");
}

#[test]
fn who_sends_more_than_a_call_has_no_better_claim() {
    let mut port = Port::new(&[]);
    for n in 0..3000u16 {
        port.rtp(u64::from(n), at(STRANGER, 1), 2, n);
        if n % 20 == 0 {
            port.rtp(u64::from(n), at(PHONE, 1), 1, n / 20);
        }
        assert!(n < 100 || port.learned().is_none(), "{n}");
    }
    assert!(port.latch.is_contested());
}

#[test]
fn unknown_rivals_are_none_to_a_named_address_even_a_shared_one() {
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.learner.parties.join(PHONE.into());
    port.learner.parties.join(PHONE.into());
    for n in 0..4u16 {
        assert_eq!(port.rtp(20 * u64::from(n), at(PHONE, 1), 1, n), Verdict::Waiting);
        port.rtp(20 * u64::from(n) + 1, at(STRANGER, 1), 2, n);
    }
    assert_eq!(port.rtp(80, at(PHONE, 1), 1, 4), NAMED);
    assert_eq!(port.latch.rank(), Some(Rank::Shared));
}

#[test]
fn a_neighbour_who_speaks_first_makes_the_stream_contested() {
    let (phone, neighbour) = (at(PHONE, 1), at(PHONE, 2));
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.talk(0, neighbour, 2, 0, 500);
    port.latch.answer_seen(ms(10_000));
    for n in 0..5u16 {
        let time = 10_000 + 20 * u64::from(n);
        port.rtp(time, neighbour, 2, 500 + n);
        port.rtp(time + 1, phone, 1, n);
    }
    assert!(port.latch.is_contested() && port.learned().is_none());
    let mut admitted = port.latch.admitted(&port.learner.policy, port.now, true);
    admitted.sort_unstable();
    assert_eq!(admitted, [phone, neighbour]);
}

#[test]
fn an_established_stream_is_not_contested() {
    let mut port = Port::new(&[Name::address(PHONE)]);
    for n in 0..600u16 {
        let time = 20 * u64::from(n);
        assert!(port.rtp(time, at(PHONE, 1), 1, n).is_held());
        if time > 6000 {
            let verdict = port.rtp(time + 1, at(PHONE, 2), 2, n);
            assert!(matches!(verdict, MISMATCH | Verdict::Waiting), "{verdict:?}");
        }
    }
    assert_eq!(port.learned(), Some(at(PHONE, 1)));
}

#[test]
fn where_there_is_nobody_to_leave_it_to_an_unknown_source_that_came_first_stays() {
    let mut port = Port::with(
        Policy {
            last_resort: true,
            ..Policy::default()
        },
        &[],
    );
    port.talk(0, at(PHONE, 1), 1, 0, 6);
    for n in 0..30u16 {
        assert_eq!(port.rtp(120 + 20 * u64::from(n), at(PHONE, 1), 1, 6 + n), Verdict::Known);
        assert!(!port.rtp(121 + 20 * u64::from(n), at(STRANGER, 1), 2, n).is_held());
    }
    assert!(!port.latch.is_contested());
}

// -- the signalled port at a shared address --------------------------------------------------------------------------

fn shared_port(names: &[Name]) -> Port {
    let mut port = Port::new(names);
    port.learner.parties.join(PHONE.into());
    port.learner.parties.join(PHONE.into());
    port
}

#[test]
fn at_a_shared_address_the_signalled_port_needs_three_packets_over_thirty_milliseconds() {
    let phone = at(PHONE, 6000);
    let mut port = shared_port(&[phone.into()]);
    let verdicts = port.talk(0, phone, 1, 0, 6);
    assert_eq!(latched_at(&verdicts), Some(2), "{verdicts:?}");
    assert_eq!(port.latch.rank(), Some(Rank::SharedPort));
    let mut burst = shared_port(&[phone.into()]);
    let verdicts: Vec<Verdict> = (0..9).map(|n| burst.rtp(u64::from(n), phone, 1, n)).collect();
    assert_eq!(latched_at(&verdicts), None, "a burst is no call");
    let mut same = shared_port(&[phone.into()]);
    let verdicts: Vec<Verdict> = (0..20).map(|n| same.rtp(20 * n, phone, 1, 5)).collect();
    assert_eq!(latched_at(&verdicts), None, "one packet again and again is no stream");
    for other in [at(PHONE, 6001), at(STRANGER, 6000)] {
        let mut port = shared_port(&[phone.into()]);
        assert_eq!(latched_at(&port.talk(0, other, 1, 0, 6)), Some(4), "{other:?}");
    }
}

#[test]
fn unknown_sources_do_not_make_the_signalled_port_s_run_longer() {
    let phone = at(PHONE, 6000);
    let mut port = shared_port(&[phone.into()]);
    port.talk(0, at(STRANGER, 1), 2, 0, 4);
    assert_eq!(latched_at(&port.talk(65, phone, 1, 0, 5)), Some(2));
}

#[test]
fn who_guesses_the_signalled_port_is_no_faster_while_the_party_sends_from_another_one() {
    // The party's NAT has given it another port than it signals; the attacker behind the same NAT has got that one.
    let (attacker, phone) = (at(PHONE, 6000), at(PHONE, 40_000));
    let mut port = shared_port(&[attacker.into()]);
    port.rtp(0, phone, 1, 0);
    let verdicts = port.talk(5, attacker, 2, 0, 4);
    assert_eq!(latched_at(&verdicts), None, "not before its fifth packet: {verdicts:?}");
    // One that holds a stream does not lose it any faster either.
    let mut port = shared_port(&[attacker.into()]);
    port.talk(0, phone, 1, 0, 100);
    assert_eq!(port.learned(), Some(phone));
    let verdicts = port.talk(2000, attacker, 2, 0, 4);
    assert_eq!(latched_at(&verdicts), None, "{verdicts:?}");
    assert!(port.rtp(2080, phone, 1, 104).is_held() || port.latch.is_contested());
}

#[test]
fn who_has_the_signalled_port_and_falls_silent_gives_way_to_the_party() {
    // A few packets before the call is answered, long after it was signalled.
    let (attacker, phone) = (at(PHONE, 6000), at(PHONE, 40_000));
    let mut port = shared_port(&[attacker.into()]);
    assert_eq!(latched_at(&port.talk(15_000, attacker, 2, 0, 5)), Some(2));
    port.latch.answer_seen(ms(20_000));
    let verdicts = port.talk(20_000, phone, 1, 0, 10);
    assert_eq!(latched_at(&verdicts), Some(4), "{verdicts:?}");
    assert!(!port.latch.is_contested());
    // One that goes on sending keeps the better claim.
    let mut port = shared_port(&[phone.into()]);
    for n in 0..500u16 {
        port.rtp(20 * u64::from(n), phone, 1, n);
        port.rtp(20 * u64::from(n) + 10, attacker, 2, n);
        assert!(n < 5 || port.learned() == Some(phone), "{n}");
    }
}

#[test]
fn two_sources_at_the_signalled_ports_of_one_party_are_contestants() {
    // SDP names one port and the command another one: the scanner has guessed the latter.
    let (phone, scanner) = (at(PHONE, 6000), at(PHONE, 7000));
    let mut port = shared_port(&[phone.into(), scanner.into()]);
    let mut held_by_scanner = 0;
    for n in 0..100u16 {
        port.rtp(20 * u64::from(n), scanner, 2, n);
        held_by_scanner += u32::from(port.learned() == Some(scanner));
        port.rtp(20 * u64::from(n) + 10, phone, 1, n);
    }
    assert_eq!((held_by_scanner, port.latch.is_contested()), (0, true));
    assert!(port.latch.admitted(&port.learner.policy, port.now, true).contains(&phone));
}

#[test]
fn a_scanner_at_the_signalled_port_shows_the_whole_run() {
    let phone = at(PHONE, 6000);
    let mut port = shared_port(&[phone.into()]);
    port.scan(0, at(PHONE, 9), 50);
    assert_eq!(
        latched_at(&port.talk(100, phone, 1, 0, 6)),
        Some(4),
        "somebody at its address scans"
    );
}

#[test]
fn no_run_is_longer_than_the_one_that_is_configured() {
    let policy = Policy {
        packets: 2,
        guard: Duration::ZERO,
        ..Policy::default()
    };
    let mut port = Port::with(policy, &[at(PHONE, 6000).into()]);
    port.learner.parties.join(PHONE.into());
    port.learner.parties.join(PHONE.into());
    assert_eq!(latched_at(&port.talk(0, at(PHONE, 6000), 1, 0, 3)), Some(1));
}

// -- better claims ---------------------------------------------------------------------------------------------------

#[test]
fn a_named_source_replaces_an_unknown_one_at_once() {
    let mut port = Port::new(&[at(PHONE, 6000).into()]);
    port.talk(0, at(STRANGER, 1), 2, 0, 10);
    assert_eq!(port.learned(), Some(at(STRANGER, 1)));
    assert_eq!(port.rtp(200, at(PHONE, 7), 1, 1), NAMED);
    assert_eq!(port.rtp(201, at(PHONE, 6000), 3, 1), NAMED, "the very port that signalling names");
    assert!(!port.rtp(202, at(PHONE, 7), 1, 2).is_held());
}

#[test]
fn an_asymmetric_leg_latches_nothing() {
    let mut port = Port::new(&[at(PHONE, 6000).into()]);
    port.latch.set_asymmetric(true);
    assert_eq!(port.rtp(0, at(PHONE, 1), 1, 1), Verdict::Known);
    assert_eq!(port.rtp(0, at(STRANGER, 1), 1, 1), Verdict::Ignored(Ignored::Asymmetric));
    assert_eq!(port.learned(), None);
}

// -- scanners --------------------------------------------------------------------------------------------------------

#[test]
fn a_scanner_at_the_signalled_address_gets_nothing_and_the_party_its_stream() {
    // 400 ports twice a second, from 0.6 s before the party's first packet.
    let (phone, scanner) = (at(PHONE, 1), at(PHONE, 2));
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.learner.parties.join(PHONE.into());
    let mut held_by_scanner = 0;
    let mut latched = None;
    for step in 0..8000u64 {
        // Each 1.25 ms another port; the call's is the first of them.
        let now = shunt_latch::Time::from(Duration::from_micros(1250 * step));
        let number = u16::try_from(step % 400).unwrap();
        if number == 0 {
            let packet = Packet {
                at: now,
                ..rtp(0, scanner, 9, u16::try_from(step / 400).unwrap())
            };
            port.packet(&packet);
        } else {
            let _ = port.learner.missed(now, scanner, 40_000 + number);
        }
        if step >= 480 && step % 16 == 0 {
            let n = u16::try_from((step - 480) / 16).unwrap();
            let packet = Packet {
                at: now,
                ..rtp(0, phone, 1, n)
            };
            if port.packet(&packet).is_held() {
                latched = latched.or(Some(n));
            }
            held_by_scanner += u32::from(port.learned() == Some(scanner));
        }
    }
    assert_eq!((latched, held_by_scanner), (Some(4), 0));
}

#[test]
fn a_scanner_with_a_new_port_for_each_packet_is_no_better_off() {
    let mut port = Port::new(&[Name::address(PHONE)]);
    assert_eq!(
        port.rtp(0, at(PHONE, 1000), 9, 1),
        NAMED,
        "nothing is known against the first packet"
    );
    for n in 0..200 {
        let _ = port.learner.missed(ms(u64::from(n)), at(PHONE, 1001 + n), 40_000 + 2 * n);
    }
    assert!(!port.rtp(590, at(PHONE, 2000), 9, 2).is_held());
    assert_eq!(latched_at(&port.talk(600, at(PHONE, 1), 1, 0, 10)), Some(4));
    assert!(!port.rtp(900, at(PHONE, 3000), 9, 3).is_held());
    assert_eq!(port.learned(), Some(at(PHONE, 1)));
}

#[test]
fn who_only_touches_a_port_holds_no_stream_against_its_party() {
    // Nothing is known of a scanner here but what comes to this port, twice a second.
    let (phone, scanner) = (at(PHONE, 1), at(PHONE, 2));
    let mut port = Port::new(&[Name::address(PHONE)]);
    for n in 0..4u16 {
        port.rtp(500 * u64::from(n), scanner, 9, n);
    }
    assert_eq!(port.learned(), Some(scanner));
    assert_eq!(latched_at(&port.talk(1510, phone, 1, 0, 10)), Some(4));
    assert!(!port.rtp(2000, scanner, 9, 4).is_held());
}

#[test]
fn a_source_that_touches_four_calls_is_ignored_but_where_it_is_named() {
    let mut learner = Learner::default();
    let source = at(STRANGER, 5);
    let latch = |learner: &Learner, names: &[Name]| learner.latch(ms(0), Component::Rtp, names.iter().copied().collect::<Names>());
    for n in 0..4u16 {
        let mut touched = latch(&learner, &[]);
        learner.observe(&mut touched, false, 36_000 + 2 * n, &rtp(u64::from(n), source, 1, n), None);
    }
    let mut another = latch(&learner, &[Name::address(STRANGER)]);
    assert_eq!(
        learner.observe(&mut another, false, 37_000, &rtp(10, source, 1, 9), None),
        Verdict::Ignored(Ignored::Scanner)
    );
    let mut own = latch(&learner, &[source.into()]);
    let verdicts: Vec<Verdict> = (0..5)
        .map(|n| learner.observe(&mut own, false, 38_000, &rtp(10 + 20 * n, source, 1, 9 + n as u16), None))
        .collect();
    assert_eq!(latched_at(&verdicts), Some(4), "it is named there, and has to show continuity");
    assert!(
        !learner.scanners.suspicion(ms(30_100), source).source,
        "after half a minute it is over"
    );
}

// -- rebinding -------------------------------------------------------------------------------------------------------

#[test]
fn a_nat_rebinding_costs_three_packets_at_most() {
    for names in [vec![], vec![Name::address(PHONE)]] {
        let mut port = Port::new(&names);
        port.talk(0, at(PHONE, 1), 1, 100, 300);
        let verdicts = port.talk(6000, at(STRANGER, 9), 1, 400, 5);
        assert_eq!(verdicts[..3], [Verdict::Waiting, Verdict::Waiting, Verdict::Moved], "{verdicts:?}");
        assert_eq!(port.rtp(6100, at(PHONE, 1), 1, 399), MISMATCH, "a late packet of the old path");
        assert_eq!(port.learned(), Some(at(STRANGER, 9)));
    }
}

#[test]
fn a_rebinding_with_a_sequence_that_does_not_go_on_takes_a_second_of_silence() {
    let mut port = Port::new(&[]);
    port.talk(0, at(PHONE, 1), 1, 100, 10);
    assert!(!port.talk(200, at(PHONE, 2), 1, 30_000, 45).iter().any(|verdict| verdict.is_held()));
    assert_eq!(
        latched_at(&port.talk(1100, at(PHONE, 2), 1, 30_045, 10)),
        Some(4),
        "the last packet was at 180 ms"
    );
}

#[test]
fn an_injector_who_knows_ssrc_and_numbers_gets_nothing_from_a_sender() {
    let mut port = Port::new(&[Name::address(PHONE)]);
    for n in 0..300u16 {
        let time = 20 * u64::from(n);
        assert!(port.rtp(time, at(PHONE, 1), 1, n).is_held(), "{n}");
        assert!(!port.rtp(time + 5, at(STRANGER, 1), 1, n + 1).is_held());
        assert!(!port.rtp(time + 10, at(STRANGER, 1), 1, n + 2).is_held());
    }
    assert_eq!(port.learned(), Some(at(PHONE, 1)));
}

#[test]
fn an_injection_into_a_pause_ends_with_the_pause_and_is_slow_the_next_time() {
    let (phone, attacker) = (at(PHONE, 1), at(STRANGER, 1));
    let mut port = Port::new(&[]);
    port.talk(0, phone, 1, 0, 300);
    let verdicts = port.talk(6060, attacker, 1, 302, 5);
    assert!(verdicts.contains(&Verdict::Moved));
    assert_eq!(port.rtp(6145, phone, 1, 306), Verdict::Restored);
    assert_eq!(port.rtp(6146, attacker, 1, 307), Verdict::Ignored(Ignored::Quarantined));
    let other = at(STRANGER, 2);
    port.talk(6160, phone, 1, 307, 10);
    assert!(
        !port.talk(6440, other, 1, 320, 40).iter().any(|verdict| verdict.is_held()),
        "not before a second of silence"
    );
}

#[test]
fn a_party_may_move_back() {
    let mut port = Port::new(&[]);
    port.talk(0, at(PHONE, 1), 1, 0, 300);
    assert!(port.talk(6000, at(PHONE, 2), 1, 300, 50).contains(&Verdict::Moved));
    assert_eq!(port.rtp(7000, at(PHONE, 1), 1, 350), Verdict::Restored);
    port.talk(7020, at(PHONE, 1), 1, 351, 50);
    assert_eq!(
        latched_at(&port.talk(9000, at(PHONE, 2), 1, 401, 10)),
        Some(2),
        "after a second of silence"
    );
}

#[test]
fn where_the_packets_are_not_seen_it_is_asked_when_the_source_was_heard() {
    let mut learner = Learner::default();
    let mut latch = learner.latch(ms(0), Component::Rtp, [Name::address(PHONE)].into_iter().collect());
    assert_eq!(learner.observe(&mut latch, false, 1, &rtp(0, at(PHONE, 1), 1, 100), None), NAMED);
    let mut send = |latch: &mut Latch, n: u16| {
        learner.observe(
            latch,
            false,
            1,
            &rtp(300_000 + 20 * u64::from(n), at(PHONE, 2), 1, 15_110 + n),
            None,
        )
    };
    assert_eq!(
        [0, 1, 2].map(|n| send(&mut latch, n)),
        [Verdict::Waiting, Verdict::Waiting, Verdict::Ask]
    );
    let policy = Policy::default();
    let sending = Facts {
        last_packet: ms(300_030),
        sequence: Some(15_105),
    };
    assert_eq!(latch.clone().answer(ms(300_045), &policy, at(PHONE, 2), sending), Verdict::Waiting);
    let silent = Facts {
        last_packet: ms(299_980),
        sequence: Some(15_109),
    };
    assert_eq!(latch.clone().answer(ms(300_045), &policy, at(PHONE, 2), silent), Verdict::Moved);
    let unknown = Facts {
        last_packet: ms(299_980),
        sequence: None,
    };
    assert_eq!(
        latch.answer(ms(300_045), &policy, at(PHONE, 2), unknown),
        MISMATCH,
        "five minutes on, the number proves nothing"
    );
}

#[test]
fn rtcp_follows_within_the_named_address_after_a_second_of_silence() {
    let mut learner = Learner::default();
    let mut latch = learner.latch(ms(0), Component::Rtcp, [Name::address(PHONE)].into_iter().collect());
    let facts = |last_packet| {
        Some(Facts {
            last_packet: ms(last_packet),
            sequence: None,
        })
    };
    assert_eq!(learner.observe(&mut latch, false, 1, &rtp(0, at(PHONE, 1), 1, 0), facts(0)), NAMED);
    assert_eq!(
        learner.observe(&mut latch, false, 1, &rtp(500, at(PHONE, 2), 1, 0), facts(0)),
        MISMATCH
    );
    assert_eq!(
        learner.observe(&mut latch, false, 1, &rtp(5000, at(STRANGER, 2), 1, 0), facts(0)),
        MISMATCH
    );
    assert_eq!(
        learner.observe(&mut latch, false, 1, &rtp(5000, at(PHONE, 2), 1, 0), facts(0)),
        Verdict::Moved
    );
    latch.add_name(at([203, 0, 113, 1], 9).into());
    assert_eq!(
        learner.observe(&mut latch, false, 1, &rtp(5001, at([203, 0, 113, 1], 9), 1, 0), facts(5000)),
        NAMED
    );
}

// -- signalling, quarantine ------------------------------------------------------------------------------------------

#[test]
fn a_stranger_follows_a_silent_source_only_after_signalling() {
    for (signalled, silent, follows) in [(true, 1000, true), (true, 100, false), (false, 1000, false)] {
        let mut port = Port::with(
            Policy {
                last_resort: true,
                ..Policy::default()
            },
            &[Name::address([10, 0, 0, 9])],
        );
        port.talk(0, at(PHONE, 1), 1, 0, 600);
        if signalled {
            port.latch.signal(ms(11_980), [Name::address([10, 0, 0, 9])].into_iter().collect());
        }
        let verdicts = port.talk(11_980 + silent, at(STRANGER, 1), 2, 0, 8);
        assert_eq!(
            verdicts.iter().any(|verdict| verdict.is_held()),
            follows,
            "{signalled} {silent}: {verdicts:?}"
        );
    }
}

#[test]
fn a_party_that_signalling_moves_is_learned_anew_and_its_old_source_is_quarantined() {
    let policy = Policy::default();
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.rtp(0, at(PHONE, 1), 1, 1);
    port.latch.forget(ms(1000), &policy, true);
    assert_eq!(port.rtp(1100, at(PHONE, 1), 1, 2), Verdict::Ignored(Ignored::Quarantined));
    let admitted = port.latch.admitted(&policy, ms(1100), false);
    assert_eq!(admitted, [at(PHONE, 1)], "the relay gets its packets meanwhile");
    assert_eq!(port.rtp(4000, at(PHONE, 1), 1, 3), NAMED);
}

#[test]
fn a_party_whose_media_stays_where_it_was_is_latched_again_by_its_first_packet_after_the_quarantine() {
    let policy = Policy::default();
    for each in [20, 400, 3000] {
        let mut port = Port::new(&[]);
        for n in 0..10u16 {
            port.rtp(each * u64::from(n), at(STRANGER, 1), 7, n);
        }
        assert_eq!(port.learned(), Some(at(STRANGER, 1)));
        let moved = each * 10;
        port.latch.forget(ms(moved), &policy, true);
        port.latch.signal(ms(moved), [Name::address(PHONE)].into_iter().collect());
        let mut verdicts = Vec::new();
        for n in 10..200u16 {
            let time = each * u64::from(n);
            verdicts.push((time, port.rtp(time, at(STRANGER, 1), 7, n)));
            assert!(
                port.latch.admitted(&policy, ms(time), false).contains(&at(STRANGER, 1)),
                "{each} {n}"
            );
        }
        let latched = verdicts.iter().find(|(_, verdict)| verdict.is_held()).map(|(time, _)| *time);
        assert!(latched.is_some_and(|time| time <= moved + 3000 + each), "{each}: {latched:?}");
    }
}

#[test]
fn the_phone_of_the_port_s_last_call_is_not_learned_but_its_next_call_is() {
    let policy = Policy::default();
    let mut before = Port::new(&[Name::address(PHONE)]);
    before.talk(0, at(PHONE, 1), 7, 1000, 50);
    let former = before.latch.former().unwrap();
    assert_eq!(
        former,
        Former {
            source: at(PHONE, 1),
            media: Some(Source { ssrc: 7, sequence: 1049 }),
            last: ms(980)
        }
    );
    for names in [vec![], vec![Name::address(PHONE)], vec![Name::from(at(PHONE, 1))]] {
        let mut port = Port::new(&names);
        port.latch.keep_out(ms(6000), &policy, former);
        // It has gone on sending for five seconds, and its NAT may have moved it.
        for verdict in port.talk(6000, at(PHONE, 1), 7, 1300, 100) {
            assert_eq!(verdict, Verdict::Ignored(Ignored::Former));
        }
        assert_eq!(port.rtp(8000, at(PHONE, 2), 7, 1401), Verdict::Ignored(Ignored::Former));
        let next_call = port.talk(8100, at(PHONE, 1), 8, 5, 5);
        assert!(next_call[4].is_held(), "{next_call:?}");
    }
    let mut same_ssrc = Port::new(&[Name::address(PHONE)]);
    same_ssrc.latch.keep_out(ms(6000), &policy, former);
    assert_eq!(
        same_ssrc.rtp(6000, at(PHONE, 1), 7, 40_000),
        NAMED,
        "a phone that has one SSRC for ever begins with another number"
    );
}

/// Two calls that play the same recording: SSRC and sequence numbers are the same.
#[test]
fn another_phone_with_the_former_stream_s_numbers_is_learned() {
    let policy = Policy::default();
    let gateway: [u8; 4] = [203, 0, 113, 9];
    for (names, source, addresses_shared) in [
        (vec![Name::from(at(PHONE, 8))], at(PHONE, 8), false),
        (vec![Name::address(gateway)], at(gateway, 40_000), false),
        // Behind the same NAT, from whatever port that has chosen.
        (vec![Name::from(at(PHONE, 8))], at(PHONE, 40_000), true),
        (vec![], at(gateway, 40_000), false),
    ] {
        // Both as the agent knows the former stream, to its end, and as a relay does, up to its offload.
        for known in [480, 8] {
            let mut before = Port::new(&[Name::address(PHONE)]);
            before.talk(0, at(PHONE, 1), 7, 1000, known);
            let mut port = Port::new(&names);
            if addresses_shared {
                port.learner.parties.join(PHONE.into());
                port.learner.parties.join(PHONE.into());
            }
            port.latch.keep_out(ms(15_000), &policy, before.latch.former().unwrap());
            let verdicts = port.talk(15_000, source, 7, 1000, 500);
            assert!(latched_at(&verdicts).is_some_and(|at| at <= 5), "{source:?}: {:?}", &verdicts[..8]);
            assert!(verdicts[6..].iter().all(|verdict| *verdict == Verdict::Known), "{source:?} {known}");
            // The former phone itself, which still sends, is kept out as before.
            let going_on = port.rtp(25_010, at(PHONE, 1), 7, 1000 + known + 600);
            assert_eq!(going_on, Verdict::Ignored(Ignored::Former), "{source:?} {known}");
        }
    }
}

#[test]
fn the_next_call_of_the_same_socket_may_have_the_former_stream_s_numbers() {
    let policy = Policy::default();
    let mut before = Port::new(&[Name::address(PHONE)]);
    before.talk(0, at(PHONE, 1), 7, 1000, 8);
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.latch.keep_out(ms(15_000), &policy, before.latch.former().unwrap());
    let verdicts = port.talk(15_000, at(PHONE, 1), 7, 1000, 30);
    assert_eq!(latched_at(&verdicts), Some(0), "{verdicts:?}");
    assert!(verdicts[1..].iter().all(|verdict| *verdict == Verdict::Known), "{verdicts:?}");
}

#[test]
fn what_another_process_had_latched_stays() {
    let mut port = Port::new(&[]);
    port.latch.adopt(ms(0), at(PHONE, 1), Some(Source { ssrc: 1, sequence: 0 }));
    assert_eq!(port.latch.ssrc(), Some(1));
    for n in 0..30u16 {
        assert_eq!(port.rtp(20 * u64::from(n), at(PHONE, 1), 1, n), Verdict::Known);
        assert!(!port.rtp(20 * u64::from(n), at(STRANGER, 1), 2, n).is_held());
    }
}

// -- defences that end by time ---------------------------------------------------------------------------------------

#[test]
fn the_only_source_that_sends_is_admitted_after_the_guard_time_unless_somebody_scans() {
    let policy = Policy::default();
    let admitted = |port: &Port, time: u64| {
        let quiet = port.learner.scanners.are_quiet(ms(time));
        port.latch.admitted(&policy, ms(time), quiet)
    };
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.rtp(0, at(STRANGER, 1), 7, 0);
    assert_eq!(admitted(&port, 79), []);
    assert_eq!(port.latch.review_due(&policy), Some(ms(80)));
    assert_eq!(admitted(&port, 80), [at(STRANGER, 1)]);
    assert_eq!(admitted(&port, 10_000), [at(STRANGER, 1)], "text may take ten seconds");
    // Somebody else sends too: then continuity counts.
    port.rtp(10_000, at(STRANGER, 1), 7, 1);
    port.rtp(10_010, at([203, 0, 113, 9], 1), 8, 0);
    assert_eq!(admitted(&port, 10_100), []);
    assert_eq!(
        admitted(&port, 11_001),
        [at([203, 0, 113, 9], 1)],
        "a packet of a second ago is no rival"
    );
    let mut port = Port::new(&[]);
    port.scan(0, at([203, 0, 113, 9], 1), 50);
    port.rtp(100, at(STRANGER, 1), 7, 0);
    assert_eq!(admitted(&port, 1000), []);
    assert_eq!(
        admitted(&port, 30_060),
        [at(STRANGER, 1)],
        "the defence ends by time, with the party's packet or without"
    );
}

#[test]
fn one_stream_at_both_ports_of_a_call_is_neither_partys() {
    let play = |named: bool, ssrc_of: fn(u16) -> u32| {
        let mut learner = Learner::default();
        let names = || Names::from_iter(named.then(|| Name::address(STRANGER)));
        let mut latches = [0, 1].map(|_| learner.latch(ms(0), Component::Rtp, names()));
        for n in 0..40u16 {
            let at_first = usize::from(n % 2);
            let packet = rtp(20 * u64::from(n), at(STRANGER, 1), ssrc_of(n), n);
            let elsewhere = latches[1 - at_first].has_met(&learner.policy, &packet);
            learner.observe(&mut latches[at_first], elsewhere, 36_000 + n % 2 * 2, &packet, None);
        }
        latches.map(|latch| latch.learned())
    };
    assert_eq!(play(false, |_| 7), [None; 2]);
    // A NAT may give two parties the same port; and signalling knows better.
    assert_eq!(play(false, |n| 7 + u32::from(n % 2)), [Some(at(STRANGER, 1)); 2]);
    assert_eq!(play(true, |_| 7), [Some(at(STRANGER, 1)); 2]);
}

#[test]
fn a_stream_that_is_latched_at_one_port_is_kept_from_the_other_however_late() {
    let play = |named: bool, ssrc: u32, pause: u64| {
        let mut learner = Learner::default();
        let names = Names::from_iter(named.then(|| Name::address(STRANGER)));
        let mut first = learner.latch(ms(0), Component::Rtp, names);
        let mut second = learner.latch(ms(0), Component::Rtp, Names::default());
        for n in 0..20u16 {
            learner.observe(&mut first, false, 36_000, &rtp(20 * u64::from(n), at(STRANGER, 1), 7, n), None);
        }
        assert_eq!(first.learned(), Some(at(STRANGER, 1)));
        for n in 20..60u16 {
            let packet = rtp(pause + 20 * u64::from(n), at(STRANGER, 1), ssrc, n);
            let elsewhere = first.has_met(&learner.policy, &packet);
            learner.observe(&mut second, elsewhere, 36_002, &packet, None);
        }
        second.learned()
    };
    for pause in [0, 29_000, 31_000, 3_600_000] {
        assert_eq!(play(false, 7, pause), None, "{pause}");
        // A NAT may give two parties the same port; and signalling knows the first one.
        assert_eq!(play(false, 8, pause), Some(at(STRANGER, 1)), "{pause}");
        assert_eq!(play(true, 7, pause), Some(at(STRANGER, 1)), "{pause}");
    }
}

#[test]
fn an_address_that_changes_its_port_displaces_no_other() {
    let mut learner = Learner::default();
    let mut latch = learner.latch(ms(0), Component::Rtp, Names::default());
    let met = |latch: &shunt_latch::Latch, learner: &Learner, source| latch.has_met(&learner.policy, &rtp(500, source, 7, 1));
    learner.observe(&mut latch, false, 36_000, &rtp(0, at(PHONE, 1), 7, 0), None);
    for port in 1..20u16 {
        learner.observe(&mut latch, false, 36_000, &rtp(u64::from(port), at(STRANGER, port), 7, port), None);
    }
    assert!(met(&latch, &learner, at(PHONE, 1)));
    let of_stranger: Vec<u16> = (1..20).filter(|port| met(&latch, &learner, at(STRANGER, *port))).collect();
    assert_eq!(of_stranger, [18, 19], "the latest");
}

#[test]
fn a_party_of_which_too_little_is_known_is_sent_to_at_its_named_address_while_it_is_alone() {
    let policy = Policy::default();
    let two = |source: shunt_net::Endpoint, answered: u64, sent: u64| {
        let mut port = Port::new(&[Name::address(PHONE)]);
        port.learner.parties.join(PHONE.into());
        port.learner.parties.join(PHONE.into());
        port.latch.answer_seen(ms(answered));
        port.rtp(sent, source, 7, 0);
        assert_eq!(port.latch.tentative(&policy, ms(sent.max(answered) + 100)), None, "one packet");
        port.rtp(sent + 20, source, 7, 1);
        port
    };
    let port = two(at(PHONE, 1), 1000, 1010);
    assert_eq!(port.latch.tentative(&policy, ms(1080)), None);
    assert_eq!(port.latch.tentative(&policy, ms(1090)), Some(at(PHONE, 1)));
    assert_eq!(port.latch.tentative(&policy, ms(11_000)), Some(at(PHONE, 1)));
    assert_eq!(port.latch.tentative(&policy, ms(16_100)), None, "it has sent nothing for 15 s");
    assert_eq!(two(at(STRANGER, 1), 1000, 1010).latch.tentative(&policy, ms(1100)), None, "no name");
    // Whoever is there as soon as the port is open has to wait for the answer, when the party sends.
    let mut raced = two(at(PHONE, 1), 1000, 10);
    assert_eq!(raced.latch.tentative(&policy, ms(1070)), None);
    raced.rtp(1075, at([203, 0, 113, 9], 1), 8, 0);
    assert_eq!(raced.latch.tentative(&policy, ms(1100)), None);
    assert_eq!(
        two(at(PHONE, 1), 1000, 12_000).latch.tentative(&policy, ms(12_200)),
        None,
        "long after the answer, continuity counts"
    );
}

#[test]
fn a_source_that_does_not_stay_put_is_unstable_and_a_rebinding_is_not() {
    for each in [1u16, 10] {
        let mut port = Port::new(&[Name::address(PHONE)]);
        let mut unstable = None;
        for n in 0..60u16 {
            port.rtp(20 * u64::from(n), at(PHONE, 1000 + n / each), 7, n);
            if port.latch.is_unstable(ms(20 * u64::from(n))) {
                unstable = unstable.or(Some(n));
            }
        }
        assert!(unstable.is_some_and(|n| n <= 2 * each + 2), "{each}: {unstable:?}");
        assert!(
            !port.latch.is_unstable(ms(1180 + 30_001)),
            "30 s after its last move it may be latched again"
        );
    }
    let mut port = Port::new(&[Name::address(PHONE)]);
    port.talk(0, at(PHONE, 1), 7, 0, 50);
    assert!(port.talk(1000, at(PHONE, 2), 7, 50, 50).contains(&Verdict::Moved));
    assert!(port.talk(10_000, at(PHONE, 3), 7, 500, 50).contains(&Verdict::Moved));
    assert!(!port.latch.is_unstable(ms(11_000)), "nine seconds apart");
    // Another's packets do not make a source unstable, from however many ports they come.
    let mut port = Port::new(&[Name::address(PHONE)]);
    for n in 0..200u16 {
        port.rtp(20 * u64::from(n), at(PHONE, 1), 7, n);
        port.rtp(20 * u64::from(n) + 5, at(STRANGER, 1000 + n), 8, n);
        port.rtp(20 * u64::from(n) + 6, at(STRANGER, 5000 + n), 7, n + 1);
        assert_eq!(
            (port.latch.is_unstable(ms(20 * u64::from(n) + 6)), port.learned()),
            (false, Some(at(PHONE, 1))),
            "{n}"
        );
    }
}
