//! Invariants for any order of packets: attackers who never see the media, and phones that send as phones do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{PHONE, Port, at, ms, rtp};
use proptest::prelude::*;
use shunt_latch::{Component, Found, Learner, Name, Packet, Policy, Rank, Scanners, Verdict};
use shunt_net::Endpoint;
use std::collections::HashMap;
use std::time::Duration;

/// The genuine stream: one SSRC that no attacker knows.
const SSRC: u32 = 0xFEED_BEEF;

#[derive(Clone, Debug)]
struct Shot {
    /// Milliseconds after the last one.
    gap: u64,
    source: Endpoint,
    ssrc: u32,
    sequence: u16,
    media: bool,
}

fn sources(near: bool) -> impl Strategy<Value = Endpoint> {
    let far = (0u8..6, 1u16..4).prop_map(|(host, port)| at([198, 51, 100, host], port));
    let neighbour = (100u16..104).prop_map(|port| at(PHONE, port));
    if near {
        prop_oneof![2 => far, 1 => neighbour].boxed()
    } else {
        far.boxed()
    }
}

/// Attackers' packets: steady streams, sprays and repetitions. `near`: some come from the party's own address.
fn shots(near: bool) -> impl Strategy<Value = Vec<Shot>> {
    let noise = (0u64..40, sources(near), 1u32..4, any::<u16>(), any::<bool>()).prop_map(|(gap, source, ssrc, sequence, media)| {
        vec![Shot {
            gap,
            source,
            ssrc,
            sequence,
            media,
        }]
    });
    let stream = (0u64..30, sources(near), 1u32..4, any::<u16>(), 1u16..40).prop_map(|(gap, source, ssrc, start, count)| {
        (0..count)
            .map(|n| Shot {
                gap,
                source,
                ssrc,
                sequence: start.wrapping_add(n),
                media: true,
            })
            .collect()
    });
    prop::collection::vec(prop_oneof![noise, stream], 0..25).prop_map(|parts| parts.concat())
}

/// Merge the attackers' packets with the party's, one each 20 ms from `start` on.
fn play(port: &mut Port, shots: &[Shot], start: u64, count: u16, mut check: impl FnMut(&Port, u64, u16, Verdict)) {
    let phone = at(PHONE, 1);
    let (mut now, mut sent) = (0, 0u16);
    let mut speak = |port: &mut Port, until: u64, sent: &mut u16| {
        while *sent < count && start + 20 * u64::from(*sent) <= until {
            let verdict = port.rtp(start + 20 * u64::from(*sent), phone, SSRC, *sent);
            *sent += 1;
            check(port, start + 20 * u64::from(*sent - 1), *sent, verdict);
        }
    };
    for shot in shots {
        now += shot.gap;
        speak(port, now, &mut sent);
        let packet = rtp(now, shot.source, shot.ssrc, shot.sequence);
        port.packet(&Packet {
            media: packet.media.filter(|_| shot.media),
            ..packet
        });
    }
    speak(port, u64::MAX, &mut sent);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn an_off_path_attacker_is_never_latched_beside_a_party_at_its_named_address(shots in shots(false), start in 0u64..1500) {
        let mut port = Port::new(&[at(PHONE, 1).into()]);
        play(&mut port, &shots, start, 200, |port, time, _, _| {
            assert_eq!(port.learned(), Some(at(PHONE, 1)), "at {time} ms");
        });
    }

    #[test]
    fn nor_where_the_named_address_is_shared_once_the_party_has_shown_continuity(shots in shots(false), start in 0u64..1500) {
        let mut port = Port::new(&[Name::address(PHONE)]);
        port.learner.parties.join(PHONE.into());
        port.learner.parties.join(PHONE.into());
        play(&mut port, &shots, start, 200, |port, time, sent, _| {
            assert!(sent < 5 || port.learned() == Some(at(PHONE, 1)), "at {time} ms after {sent} packets: {:?}", port.learned());
        });
    }

    #[test]
    fn an_attacker_at_the_party_s_own_address_is_never_latched_beside_it(shots in shots(true), start in 0u64..1500, shared: bool) {
        let mut port = Port::new(&[Name::address(PHONE)]);
        port.learner.parties.join(PHONE.into());
        if shared {
            port.learner.parties.join(PHONE.into());
        }
        // The answer comes as the party begins to speak.
        port.latch.answer_seen(ms(start));
        play(&mut port, &shots, start, 500, |port, time, sent, _| {
            // A rival leaves the stream contested; it is never the attacker's.
            let learned = port.learned();
            assert!(sent <= 5 || learned.is_none() || learned == Some(at(PHONE, 1)), "at {time} ms after {sent} packets: {learned:?}");
        });
        prop_assert_eq!(port.learned(), Some(at(PHONE, 1)), "it has been over for long");
    }

    #[test]
    fn a_party_at_its_signalled_port_is_latched_whoever_else_sends_and_stays(shots in shots(true), start in 0u64..1500) {
        let mut port = Port::new(&[at(PHONE, 1).into()]);
        port.learner.parties.join(PHONE.into());
        port.learner.parties.join(PHONE.into());
        let least = if shots.is_empty() { 3 } else { 5 };
        play(&mut port, &shots, start, 200, |port, time, sent, _| {
            assert!(sent < least || port.learned() == Some(at(PHONE, 1)), "at {time} ms after {sent} packets: {:?}", port.learned());
        });
    }

    #[test]
    fn who_guesses_the_signalled_port_gains_nothing_by_the_shorter_run(lead in 0u64..400, gap in 4u64..80, count in 1u16..80) {
        // Behind one NAT: the party sends from a port that the NAT has chosen, the attacker has got the one that signalling names.
        let (phone, attacker, start) = (at(PHONE, 1), at(PHONE, 6000), 200);
        let attack: Vec<Shot> = (0..count)
            .map(|n| Shot { gap: if n == 0 { lead } else { gap }, source: attacker, ssrc: 3, sequence: n, media: true })
            .collect();
        let held = |policy: Policy| {
            let mut port = Port::with(policy, &[attacker.into()]);
            port.learner.parties.join(PHONE.into());
            port.learner.parties.join(PHONE.into());
            let mut held = Vec::new();
            play(&mut port, &attack, start, 200, |port, time, _, _| held.push((time, port.learned())));
            held
        };
        let whole_run = Policy { port_packets: u32::MAX, port_guard: Duration::MAX, ..Policy::default() };
        let (shorter, longer) = (held(Policy::default()), held(whole_run));
        // Whoever has sent less than the shorter run when the party begins is latched no sooner than by the whole run.
        if start < lead + 2 * gap {
            prop_assert_eq!(&shorter, &longer);
        }
        let over = lead + gap * u64::from(count - 1) + 500;
        for ((time, source), (_, by_whole_run)) in shorter.iter().zip(&longer).filter(|((time, _), _)| *time > over.max(start + 100)) {
            prop_assert!(
                *source == Some(phone) || *by_whole_run != Some(phone),
                "at {} ms, while the whole run has latched the party; the attack was over at {} ms", time, over
            );
        }
    }

    #[test]
    fn a_party_that_nobody_names_is_admitted_after_its_run_whatever_is_sprayed(shots in shots(false), start in 0u64..1500) {
        let mut port = Port::new(&[]);
        let phone = at(PHONE, 1);
        play(&mut port, &shots, start, 500, |port, time, sent, _| {
            let admitted = port.latch.admitted(&port.learner.policy, port.now, true);
            let held_by_another = port.learned().is_some_and(|source| source != phone);
            assert!(sent < 6 || held_by_another || admitted.contains(&phone), "at {time} ms after {sent} packets: {admitted:?}");
        });
        let attacked_long_before = port.learned().is_some_and(|source| source != phone);
        prop_assert!(attacked_long_before || port.learned() == Some(phone));
    }

    #[test]
    fn nobody_unnamed_is_latched_without_a_run_over_the_guard_time(shots in shots(true)) {
        let mut port = Port::new(&[]);
        let policy = Policy::default();
        let mut seen: HashMap<Endpoint, Vec<u64>> = HashMap::new();
        let mut now = 0;
        for shot in &shots {
            now += shot.gap;
            let times = seen.entry(shot.source).or_default();
            times.push(now);
            let packet = rtp(now, shot.source, shot.ssrc, shot.sequence);
            if port.packet(&Packet { media: packet.media.filter(|_| shot.media), ..packet }) == Verdict::Latched {
                prop_assert!(times.len() >= policy.packets as usize);
                prop_assert!(u128::from(now - times[0]) >= policy.guard.as_millis());
            }
            prop_assert!(port.latch.candidate_count() <= policy.candidates);
        }
    }

    #[test]
    fn a_rebinding_is_followed_within_five_packets_and_an_injection_into_it_is_undone(
        sent in 10u16..2000, lost in 0u16..5, delay in 20u64..120, injected in 0u16..8,
    ) {
        let mut port = Port::new(&[]);
        let (phone, moved, attacker) = (at(PHONE, 1), at(PHONE, 2), at([203, 0, 113, 9], 9));
        port.talk(0, phone, SSRC, 0, sent);
        let last = 20 * u64::from(sent - 1);
        // Somebody without the SSRC uses the gap.
        for n in 0..injected {
            port.rtp(last + 1 + u64::from(n), attacker, 3, n);
        }
        let first = sent + lost;
        let verdicts = port.talk(last + delay, moved, SSRC, first, 8);
        let taken = verdicts.iter().position(|verdict| verdict.is_held());
        prop_assert!(taken.is_some_and(|taken| taken < 5), "{:?}", verdicts);
        // The old source had not gone after all.
        prop_assert_eq!(port.rtp(last + delay + 150, phone, SSRC, first + 9), Verdict::Restored);
        prop_assert_eq!(port.learned(), Some(phone));
    }

    #[test]
    fn nothing_panics_at_any_time_and_for_any_component(
        shots in prop::collection::vec((any::<u64>(), 0u8..3, any::<u16>(), 0u32..3, any::<u16>(), any::<bool>(), 0u8..8), 0..80), rtcp: bool,
    ) {
        let mut learner = Learner::default();
        let mut latch = learner.latch(ms(0), if rtcp { Component::Rtcp } else { Component::Rtp }, [Name::address(PHONE)].into_iter().collect());
        for (nanos, host, port, ssrc, sequence, media, action) in shots {
            let now = shunt_latch::Time::from_nanos(nanos);
            let source = at([192, 0, 2, 9 + host], port);
            let packet = Packet { at: now, source, media: media.then_some(shunt_rtp::Source { ssrc, sequence }) };
            let facts = shunt_latch::Facts { last_packet: now, sequence: media.then_some(sequence) };
            match action {
                0 => latch.forget(now, &learner.policy, media),
                1 => latch.signal(now, [Name::from(source)].into_iter().collect()),
                2 => latch.sync(now, &learner.policy, shunt_rtp::Source { ssrc, sequence }),
                3 => { latch.answer(now, &learner.policy, source, facts); }
                4 => { latch.former().into_iter().for_each(|former| latch.keep_out(now, &learner.policy, former)); }
                5 => { learner.missed(now, source, port); }
                _ => { learner.observe(&mut latch, false, port, &packet, media.then_some(facts)); }
            }
            prop_assert!(latch.rank().is_none_or(|rank| rank <= Rank::Port));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn the_scanner_tables_are_bounded(packets in prop::collection::vec((any::<u32>(), any::<u16>(), any::<u16>(), 0u64..3), 0..3000)) {
        let mut scanners = Scanners::default();
        let mut now = 0;
        for (address, from, to, gap) in packets {
            now += gap;
            let source = Endpoint::new(std::net::Ipv4Addr::from(address), from);
            scanners.touched(ms(now), source, to);
            if let Some(found) = scanners.missed(ms(now), source, to, false) {
                prop_assert!(matches!(found, Found::Source(_)), "no address has missed forty ports: {:?}", found);
            }
        }
        prop_assert!(scanners.size() <= 100_400);
    }
}
