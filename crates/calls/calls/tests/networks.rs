//! Networks as operators have them, against an oracle: what the relay alone would deliver. Shunt may lose five packets more, and no second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use proptest::prelude::*;
use shunt_calls::*;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::Source;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A relay that latches to the first packet at each of its ports, as rtpproxy does, and anew after signalling.
#[derive(Clone, Debug, Default)]
struct Latching {
    /// By port: the latched source, and where signalling says that the party is.
    latched: BTreeMap<u16, Endpoint>,
    signalled: BTreeMap<u16, Endpoint>,
    counts: BTreeMap<u16, u64>,
}

impl Latching {
    fn signal(&mut self, port: u16, party: Endpoint) {
        if self.signalled.insert(port, party) != Some(party) {
            self.latched.remove(&port);
        }
    }

    /// A packet at a port: where it goes.
    fn relay(&mut self, port: u16, other: u16, source: Endpoint) -> Option<Endpoint> {
        *self.counts.entry(port).or_default() += 1;
        let latched = *self.latched.entry(port).or_insert(source);
        // The same stream from another source is followed.
        if latched != source {
            self.latched.insert(port, source);
        }
        self.latched.get(&other).or(self.signalled.get(&other)).copied()
    }
}

/// A party: where it sends from, and how often.
#[derive(Clone, Debug)]
struct Party {
    at: Endpoint,
    port: u16,
    other: u16,
    every: u64,
    start: u64,
    ssrc: u32,
    sequence: u16,
    /// The data plane never sees its packets.
    beside: bool,
    media: bool,
    sent: usize,
    heard: [usize; 2],
}

const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9));
const TO_CALLEE: u16 = 36_002;
const TO_CALLER: u16 = 36_000;

fn party(at: &str, caller: bool, every: u64, start: u64) -> Party {
    let (port, other) = if caller { (TO_CALLEE, TO_CALLER) } else { (TO_CALLER, TO_CALLEE) };
    Party {
        at: end(at),
        port,
        other,
        every,
        start,
        ssrc: if caller { 1 } else { 2 },
        sequence: 100,
        beside: false,
        media: true,
        sent: 0,
        heard: [0; 2],
    }
}

/// A call with the relay alone, and with Shunt in front of it.
struct Call {
    bench: Bench,
    alone: Latching,
    behind: Latching,
    parties: [Party; 2],
    time: u64,
    /// Packets of the parties that the attacker got with Shunt.
    stolen: usize,
}

impl Call {
    fn new(parties: [Party; 2]) -> Self {
        Self {
            bench: Bench::new(Settings::default()),
            alone: Latching::default(),
            behind: Latching::default(),
            parties,
            time: 0,
            stolen: 0,
        }
    }

    fn offer(&mut self, caller: &str) {
        let at = end(caller);
        let tags = if self.alone.signalled.contains_key(&TO_CALLER) {
            "a;1 b;1"
        } else {
            "a;1"
        };
        self.signal(&format!("Uc0 c1 {} {} {tags}", at.addr, at.port), TO_CALLER, TO_CALLEE, at);
    }

    fn answer(&mut self, callee: &str) {
        let at = end(callee);
        self.signal(&format!("Lc0 c1 {} {} a;1 b;1", at.addr, at.port), TO_CALLEE, TO_CALLER, at);
    }

    /// A command about the party that sends to the other port than the one that the reply names.
    fn signal(&mut self, command: &str, reply: u16, party: u16, at: Endpoint) {
        self.alone.signal(party, at);
        self.behind.signal(party, at);
        self.bench.say(command, &format!("{reply} 10.9.0.1"));
    }

    /// Lets the parties send for the given milliseconds; `each` may change them before each step.
    fn run(&mut self, milliseconds: u64, mut each: impl FnMut(&mut [Party; 2], u64)) {
        for _ in 0..milliseconds / 10 {
            each(&mut self.parties, self.time);
            for at in 0..2 {
                let party = &self.parties[at];
                if self.time >= party.start && (self.time - party.start).is_multiple_of(party.every) {
                    self.send(at);
                }
            }
            self.time += 10;
            let now = self.bench.now;
            for entry in self.bench.held.values() {
                self.bench.met.entry(entry.key()).or_insert(now);
            }
            let counts = [TO_CALLEE, TO_CALLER].map(|port| self.behind.counts.get(&port).copied().unwrap_or(0));
            self.bench.counts = counts;
            self.bench.pass(10);
        }
    }

    fn send(&mut self, at: usize) {
        let party = &mut self.parties[at];
        party.sent += 1;
        party.sequence = party.sequence.wrapping_add(1);
        let party = party.clone();
        let wanted = self.parties[1 - at].at;
        let alone = self.alone.relay(party.port, party.other, party.at) == Some(wanted);
        let reached = self.pass(&party);
        let shunt = reached == Some(wanted);
        self.stolen += usize::from(reached.is_some_and(|end| end.addr == ATTACKER));
        let heard = &mut self.parties[at].heard;
        *heard = [heard[0] + usize::from(alone), heard[1] + usize::from(shunt)];
    }

    /// A packet at the data plane: where it ends.
    fn pass(&mut self, party: &Party) -> Option<Endpoint> {
        let port = Endpoint::new([10, 9, 0, 1], party.port);
        if party.beside {
            return self.behind.relay(party.port, party.other, party.at);
        }
        let key = FiveTuple::new(party.at, port);
        let entry = self.bench.held.get(&port).copied();
        if let Some(entry) = entry.filter(|entry| entry.key() == key) {
            self.bench.met.insert(key, self.bench.now);
            return Some(entry.new_destination());
        }
        let everybody: IpAddr = [255, 255, 255, 255].into();
        let admits = |allowed: &Vec<IpAddr>| allowed.contains(&everybody) || allowed.contains(&party.at.addr);
        let admitted = entry.is_none() && self.bench.filters.get(&port).is_none_or(admits);
        let out = if admitted {
            self.behind.relay(party.port, party.other, party.at)
        } else {
            None
        };
        let media = party.media.then_some(Source {
            ssrc: party.ssrc,
            sequence: party.sequence,
        });
        let notice = Notice {
            key,
            media,
            payload_type: media.map(|_| 0),
        };
        let decisions = self.bench.book.noticed(self.bench.now, &notice);
        self.bench.carry_out(decisions);
        out
    }

    fn check(&self) -> Result<(), TestCaseError> {
        self.check_but_for([0; 2])
    }

    /// `more`: packets of each party that may be lost besides.
    fn check_but_for(&self, more: [u64; 2]) -> Result<(), TestCaseError> {
        for (party, more) in self.parties.iter().zip(more) {
            let [alone, shunt] = party.heard.map(|heard| party.sent - heard);
            prop_assert!(
                shunt as u64 <= alone as u64 + 5 + more,
                "from {}: {} of {} lost, {} by the relay alone; {:?}",
                party.at,
                shunt,
                party.sent,
                alone,
                [Side::Caller, Side::Callee].map(|side| self.bench.reason("c1", side))
            );
        }
        Ok(())
    }
}

/// Packet times and pauses of senders, ms: speech, long frames, discontinuous transmission, comfort noise, text.
fn intervals() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![20, 30, 60, 120, 200, 320, 400, 1000, 3000, 10_000])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn parties_that_send_seldom_lose_no_more_than_with_the_relay_alone(
        every in intervals(), other in intervals(), start in 0u64..80, other_start in 0u64..80,
        named: bool, other_named: bool, neighbours in 0u16..3, media: bool,
    ) {
        let caller = if named { "10.1.0.2:6000" } else { "198.51.100.1:40000" };
        let callee = if other_named { "10.2.0.2:7000" } else { "198.51.100.2:40000" };
        let mut parties = [party(caller, true, every, 10 * start), party(callee, false, other, 10 * other_start)];
        parties[0].media = media;
        let mut call = Call::new(parties);
        // Other calls of the same gateway or NAT: the address is no identity.
        for n in 0..neighbours {
            let port = 37_000 + 10 * n;
            call.bench.say(&format!("Uc0 n{n} 10.1.0.2 {} x;1", 6100 + n), &format!("{port} 10.9.0.1"));
        }
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        call.run(800 + 12 * every.max(other), |_, _| {});
        // The relay gets the second packet of a party that nobody names, and does not know before where to send to.
        let until_second = |named: bool, every: u64, other: u64| if named { 0 } else { every.div_ceil(other) };
        call.check_but_for([until_second(other_named, other, every), until_second(named, every, other)])?;
    }

    #[test]
    fn two_phones_behind_one_address_lose_no_more_than_with_the_relay_alone(
        every in intervals(), other in intervals(), start in 0u64..80, other_start in 0u64..80, neighbours in 0u16..3,
    ) {
        let parties = [party("198.51.100.1:40000", true, every, 10 * start), party("198.51.100.1:40002", false, other, 10 * other_start)];
        let mut call = Call::new(parties);
        for n in 0..neighbours {
            let port = 37_000 + 10 * n;
            call.bench.say(&format!("Uc0 n{n} 192.168.1.7 {} x;1", 6100 + n), &format!("{port} 10.9.0.1"));
        }
        call.offer("192.168.1.7:6000");
        call.answer("192.168.1.8:7000");
        call.run(800 + 12 * every.max(other), |_, _| {});
        // As above: the relay gets the second packet of a party that nobody names.
        call.check_but_for([other.div_ceil(every), every.div_ceil(other)])?;
    }

    #[test]
    fn who_sprays_both_ports_of_a_call_with_a_silent_party_gets_nothing(
        every in intervals(), natted: bool, behind_nat: bool, callee_talks: bool, lead in 0u64..200, start in 0u64..200,
        rounds in prop::collection::vec((1u64..300, 0u64..30, any::<bool>()), 1..40), how in 0u8..4,
    ) {
        let (caller, callee) = (end(if natted { "198.51.100.1:40000" } else { "10.1.0.2:6000" }), end("10.2.0.2:7000"));
        let mut parties = [party(&caller.to_string(), true, every, 0), party(&callee.to_string(), false, every, 0)];
        let silent = usize::from(!callee_talks);
        parties[silent].start = u64::MAX;
        parties[1 - silent].start = 10 * (lead + start);
        let mut call = Call::new(parties);
        call.offer("10.1.0.2:6000");
        call.answer(if behind_nat { "192.168.1.7:7000" } else { "10.2.0.2:7000" });
        call.run(10 * lead, |_, _| {});
        let attacker = Endpoint::new(ATTACKER, 5000);
        let mut shots = 0u16;
        for (pause, apart, first) in rounds {
            for (at, gap) in [(usize::from(first), 10 * pause), (usize::from(!first), 10 * apart)] {
                shots += 1;
                // A stream to both ports, a new one with each packet, the same packet again and again, one stream to each.
                let (ssrc, sequence) = match how {
                    0 => (66, shots),
                    1 => (1000 + u32::from(shots), shots),
                    2 => (66, 1),
                    _ => (66 + at as u32, 1),
                };
                let mut shot = party(&attacker.to_string(), at == 0, 1, 0);
                (shot.ssrc, shot.sequence) = (ssrc, sequence);
                let drawn = call.pass(&shot);
                prop_assert!(drawn != Some(attacker));
                call.run(gap, |_, _| {});
                prop_assert_eq!(call.stolen, 0, "shot {}: {:?}", shots, [Side::Caller, Side::Callee].map(|side| call.bench.reason("c1", side)));
            }
        }
        call.run(2000 + 12 * every, |_, _| {});
        prop_assert_eq!(call.stolen, 0);
    }

    #[test]
    fn a_party_that_the_data_plane_never_sees_keeps_both_directions_on_the_relay(
        every in intervals(), other in intervals(), start in 0u64..300, elsewhere: bool,
    ) {
        let callee = if elsewhere { "10.9.0.77:7777" } else { "10.2.0.2:7000" };
        let mut parties = [party("10.1.0.2:6000", true, every, 0), party(callee, false, other, 10 * start)];
        parties[1].beside = true;
        let mut call = Call::new(parties);
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        let before = 10 * start;
        call.run(before, |_, _| {});
        // Once it sends, it is found out with the next question, which is at most a second away or a thirtieth of its silence.
        let heard = call.parties.clone().map(|party| party.sent);
        call.run(1200 + before / 20, |_, _| {});
        if before < 1000 {
            call.check()?;
        }
        prop_assert!(call.bench.held.is_empty() || other > 1000, "{:?} {:?}", call.bench.held, heard);
        call.parties.iter_mut().for_each(|party| (party.sent, party.heard) = (0, [0; 2]));
        call.run(12 * every.max(other), |_, _| {});
        if other <= 1000 {
            call.check()?;
            prop_assert_eq!(call.bench.reason("c1", Side::Callee), Reason::NotInDataPlane);
            prop_assert_eq!(call.bench.reason("c1", Side::Caller), Reason::NotInDataPlane);
        }
    }

    #[test]
    fn an_offer_that_is_refused_or_not_answered_costs_no_packet(
        every in intervals(), other in intervals(), natted: bool, of_callee: bool, again in 0u8..3, port in 6000u16..6004, elsewhere: bool,
    ) {
        let caller = if natted { "198.51.100.1:40000" } else { "10.1.0.2:6000" };
        let mut call = Call::new([party(caller, true, every, 0), party("10.2.0.2:7000", false, other, 0)]);
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        call.run(1000 + 8 * every.max(other), |_, _| {});
        call.parties.iter_mut().for_each(|party| (party.sent, party.heard) = (0, [0; 2]));
        for n in 0..=u16::from(again) {
            let host = if elsewhere { "10.1.0.9" } else { "10.1.0.2" };
            if of_callee {
                let address = Endpoint::new([10, 2, 0, 9], port + n);
                call.signal(&format!("Uc0 c1 {} {} b;1 a;1", address.addr, address.port), TO_CALLEE, TO_CALLER, address);
            } else {
                call.offer(&format!("{host}:{}", port + n));
            }
            call.run(500 + 4 * every.max(other), |_, _| {});
        }
        call.check()?;
    }

    #[test]
    fn a_party_that_an_answered_offer_moves_is_followed_and_one_whose_media_stays_is_not_lost(
        every in intervals(), other in intervals(), natted: bool, moves: bool, late in 0u64..20, early in 0u64..20,
    ) {
        let (before, after) = if natted { ("198.51.100.1:40000", "198.51.100.1:40002") } else { ("10.1.0.2:6000", "10.1.0.9:6100") };
        let mut call = Call::new([party(before, true, every, 0), party("10.2.0.2:7000", false, other, 0)]);
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        call.run(1000 + 8 * every.max(other), |_, _| {});
        call.parties.iter_mut().for_each(|party| (party.sent, party.heard) = (0, [0; 2]));
        call.offer("10.1.0.9:6100");
        call.run(10 * early, |_, _| {});
        call.answer("10.2.0.2:7000");
        call.run(10 * late, |_, _| {});
        if moves {
            (call.parties[0].at, call.parties[0].ssrc) = (end(after), 77);
        }
        call.run(4000 + 8 * every.max(other), |_, _| {});
        call.check()?;
    }

    #[test]
    fn a_source_that_does_not_stay_put_is_left_to_the_relay(packets in prop::sample::select(vec![1usize, 3, 10, 50]), every in prop::sample::select(vec![20u64, 60, 400])) {
        let mut call = Call::new([party("10.1.0.2:6000", true, every, 0), party("10.2.0.2:7000", false, 20, 0)]);
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        let time = every * 200.max(4 * packets as u64);
        call.run(time, |parties, _| {
            let sent = parties[0].sent;
            if sent > 0 && sent.is_multiple_of(packets) {
                parties[0].at.port = 6000 + u16::try_from(sent / packets).unwrap();
            }
        });
        let [alone, shunt] = call.parties[0].heard.map(|heard| call.parties[0].sent - heard);
        let sent = call.parties[0].sent;
        // Moves that are far apart are rebindings: each is followed, after three packets.
        let rare = every * packets as u64 > 4000;
        let most = if rare { 3 * (sent / packets) } else { 5 };
        prop_assert!(shunt <= alone + most, "{} lost, {} alone of {}", shunt, alone, sent);
        if !rare {
            prop_assert_eq!(call.bench.reason("c1", Side::Caller), Reason::UnstableSource);
        }
    }

    #[test]
    fn a_far_side_that_moves_in_mid_call_is_followed(shared: bool, at_port: bool, ssrc in prop::sample::select(vec![2u32, 99]), later in 200u64..1500) {
        let callee = if at_port { "10.2.0.2:7000" } else { "10.2.0.2:7444" };
        let mut call = Call::new([party("10.1.0.2:6000", true, 20, 0), party(callee, false, 20, 0)]);
        if shared {
            call.bench.say("Uc0 n1 10.2.0.2 7100 x;1", "37000 10.9.0.1");
        }
        call.offer("10.1.0.2:6000");
        call.answer("10.2.0.2:7000");
        call.run(10 * later, |_, _| {});
        (call.parties[1].at, call.parties[1].ssrc) = (end("10.2.0.2:7888"), ssrc);
        call.parties.iter_mut().for_each(|party| (party.sent, party.heard) = (0, [0; 2]));
        call.run(3000, |_, _| {});
        call.check()?;
    }
}

#[test]
fn a_port_that_comes_back_to_its_leg_keeps_nobody_out() {
    let mut call = Call::new([party("198.51.100.1:40000", true, 20, 0), party("10.2.0.2:7000", false, 20, 0)]);
    call.offer("10.1.0.2:6000");
    call.answer("10.2.0.2:7000");
    call.run(1000, |_, _| {});
    for port in [36_012, TO_CALLEE] {
        call.bench.say("Uc0 c1 10.2.0.2 7000 b;1 a;1", &format!("{port} 10.9.0.1"));
        call.bench.say("Lc0 c1 10.1.0.2 6000 b;1 a;1", "36000 10.9.0.1");
        let moved = end(&format!("10.9.0.1:{port}"));
        for _ in 0..5 {
            call.parties[0].sequence += 1;
            let notice = Notice {
                key: FiveTuple::new(call.parties[0].at, moved),
                media: Some(Source {
                    ssrc: 1,
                    sequence: call.parties[0].sequence,
                }),
                payload_type: Some(0),
            };
            let decisions = call.bench.book.noticed(call.bench.now, &notice);
            call.bench.carry_out(decisions);
            call.bench.pass(20);
        }
        assert_eq!(call.bench.learned("c1", Side::Caller), Some(call.parties[0].at), "at {port}");
        assert!(call.bench.filters[&moved].contains(&call.parties[0].at.addr));
    }
}
