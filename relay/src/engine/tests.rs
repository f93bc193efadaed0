//! Commands on sockets that are not there: replies, error numbers, repetitions, time-outs, the list of sessions, any bytes.

use super::*;
use crate::ports::{NoPort, Ports};
use crate::session::{TO_CALLEE, TO_CALLER};
use proptest::prelude::*;
use shunt_net::Endpoint;
use shunt_rtpproxy::listing;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

const RELAY: [u8; 4] = [127, 0, 0, 1];

/// Ports without sockets.
struct Fake {
    ports: Ports,
    open: HashMap<(SessionId, usize), (IpAddr, u16)>,
    last_packet: HashMap<SessionId, Time>,
    counts: Counts,
    signalled: Vec<(SessionId, usize, Option<Endpoint>, bool)>,
    answered: usize,
    tos: Vec<(usize, u8)>,
}

impl Media for Fake {
    fn open(&mut self, now: Time, id: SessionId, _call_id: &Arc<[u8]>, leg: usize, address: IpAddr) -> Result<u16, NoPort> {
        let next = Cell::new(0);
        let (port, ()) = self.ports.open(now, address, |_| next.replace(1), |_| Ok(()))?;
        if let Some((address, port)) = self.open.insert((id, leg), (address, port)) {
            self.ports.release(now, address, port);
        }
        Ok(port)
    }

    fn signalled(&mut self, _now: Time, session: &Session, leg: usize) {
        let party = &session.legs[leg];
        self.signalled.push((session.id, leg, party.signalled, party.asymmetric));
    }

    fn answered(&mut self, _now: Time, _id: SessionId) {
        self.answered += 1;
    }

    fn close(&mut self, now: Time, id: SessionId) -> Counts {
        for leg in [TO_CALLEE, TO_CALLER] {
            if let Some((address, port)) = self.open.remove(&(id, leg)) {
                self.ports.release(now, address, port);
            }
        }
        self.counts
    }

    fn set_tos(&mut self, _id: SessionId, leg: usize, tos: u8) -> bool {
        self.tos.push((leg, tos));
        true
    }

    fn counts(&self, _id: SessionId) -> Counts {
        self.counts
    }

    fn last_packet(&self, id: SessionId) -> Time {
        self.last_packet.get(&id).copied().unwrap_or_default()
    }

    fn learned(&self, _id: SessionId, leg: usize) -> Option<Endpoint> {
        (leg == TO_CALLER).then(|| Endpoint::new([192, 0, 2, 9], 9000))
    }

    fn totals(&self) -> Totals {
        Totals {
            received: 30,
            relayed: 20,
            discarded: 10,
        }
    }

    fn load(&mut self, _now: Time) -> f64 {
        1.5
    }

    fn can_bind(&self, ip: IpAddr) -> bool {
        ip.is_loopback()
    }

    fn local_address_towards(&self, ip: IpAddr) -> Option<IpAddr> {
        ip.is_loopback().then_some(ip)
    }
}

fn at(seconds: f64) -> Time {
    Duration::from_secs_f64(seconds).into()
}

fn engine(addresses: &[&str], ports: (u16, u16)) -> Engine<Fake> {
    let settings = Settings {
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ttl: Duration::from_secs(60),
        advertised: Vec::new(),
        setup_ttl: Duration::from_secs(60),
        asymmetric: false,
        notify: Permit::default(),
    };
    let media = Fake {
        ports: Ports::new(ports.0, ports.1, Duration::ZERO).unwrap(),
        open: HashMap::new(),
        last_packet: HashMap::new(),
        counts: Counts::default(),
        signalled: Vec::new(),
        answered: 0,
        tos: Vec::new(),
    };
    Engine::new(settings, media)
}

fn one() -> Engine<Fake> {
    engine(&["127.0.0.1"], (44000, 44999))
}

fn say_at(engine: &mut Engine<Fake>, seconds: f64, command: &str) -> String {
    // Bytes above 127 stand for themselves.
    let body: Vec<u8> = command.chars().map(|letter| letter as u8).collect();
    String::from_utf8(engine.execute(at(seconds), &body, Some(RELAY.into()))).unwrap()
}

fn say(engine: &mut Engine<Fake>, command: &str) -> String {
    say_at(engine, 1.0, command)
}

fn port(reply: &str) -> u16 {
    reply.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn errors_have_rtpproxys_numbers_and_leave_no_session() {
    let long = format!("U {} 1.2.3.4 6000 f", "c".repeat(9000));
    for (command, error) in [
        ("", "E5"),
        ("  ", "E5"),
        ("&&", "E5"),
        ("Z foo", "E0"),
        ("\u{ff}", "E0"),
        ("U c", "E1"),
        ("U c 1.2.3.4 6000", "E1"),
        ("L c 1.2.3.4 6000 f t x", "E1"),
        ("VF", "E1"),
        ("V 1", "E1"),
        ("Vx", "E2"),
        ("X1", "E2"),
        ("Sx c f", "E2"),
        ("D c f && S ttl=5", "E3"),
        ("U c 1.2.3.4 6000 f &&", "E3"),
        ("U c 1.2.3.4 6000 f && Q", "E3"),
        ("U c 1.2.3.4 6000 f && L 1.2.3.4 5", "E3"),
        ("Q c f && S ttl=0", "E3"),
        ("Q c f && S tos=256", "E3"),
        ("Q c f && S ttl=-1", "E3"),
        ("Q c f && M3:1 x", "E3"),
        ("Dx c f", "E8"),
        ("Ue c 1.2.3.4 6000 f", "E11"),
        ("UI c 1.2.3.4 6000 f", "E12"),
        ("UZ c 1.2.3.4 6000 f", "E13"),
        ("UZ0 c 1.2.3.4 6000 f", "E13"),
        ("UZ1000 c 1.2.3.4 6000 f", "E13"),
        ("Uc c 1.2.3.4 6000 f", "E14"),
        ("Uc0c8 c 1.2.3.4 6000 f", "E14"),
        ("Ul c 1.2.3.4 6000 f", "E15"),
        ("UR c 1.2.3.4 6000 f", "E16"),
        ("Ix", "E18"),
        ("I 5", "E1"),
        ("Is", "E1"),
        ("Is x", "E5"),
        ("Isl 0", "E18"),
        ("U? c 1.2.3.4 6000 f", "E35"),
        ("Ut c 1.2.3.4 6000 f", "E35"),
        ("Ut0 c 1.2.3.4 6000 f", "E35"),
        ("U6 c fd91::1 6000 f", "E36"),
        ("U6 c 1.2.3.4 6000 f", "E36"),
        ("U c 999.1.1.1 6000 f", "E37"),
        ("U c host.example 6000 f", "E37"),
        ("U c fd91::1234 6000 f", "E37"),
        ("U c 1.2.3.4 66000 f", "E37"),
        ("U c 1.2.3.4 x f", "E37"),
        ("Ul192.0.2.1 c 1.2.3.4 6000 f", "E72"),
        ("Ul{public} c 1.2.3.4 6000 f", "E31"),
        ("U c 1.2.3.4 6000 f tcp:1.2.3.4:5 a%zz", "E5"),
        ("U c\0 1.2.3.4 6000 f", "E5"),
        ("Q c f", "E50"),
        ("D c f", "E50"),
        ("P c x s f", "E50"),
        ("R c f", "E50"),
        ("C c x f", "E50"),
        ("S c f", "E50"),
        ("N c f", "E50"),
        ("L c 1.2.3.4 6000 f t", "0"),
        ("G bogus", "E68"),
        ("G rtpa_nlost", "E68"),
        (&long, "E5"),
    ] {
        let mut engine = one();
        assert_eq!(say(&mut engine, command), error, "{command:.80}");
        assert_eq!((engine.sessions(), engine.media.open.len()), (0, 0), "{command:.80}");
    }
}

#[test]
fn what_is_not_done_is_refused_without_harm_to_the_call() {
    let mut engine = one();
    assert!(say(&mut engine, "U c 1.2.3.4 6000 f;1 && M3:1 Dfoo").ends_with(" 127.0.0.1 && -1"));
    for (command, reply) in [
        ("P c /music session f;1 t;1", "E60"),
        ("R c f;1 t;1", "E65"),
        ("C c udp:1.2.3.4:5 f;1 t;1", "E65"),
        ("S c f;1 t;1", "0"),
        ("N c f;1 t;1", "0"),
        ("Q c f;1 t;1 rtpa_nlost", "E62"),
        ("Q c f;1 t;1", "60 0 0 0 0"),
    ] {
        assert_eq!(say(&mut engine, command), reply, "{command}");
    }
    assert!(say(&mut engine, "USZ20c0,8,101 d 1.2.3.4 6000 f;1").ends_with(" 127.0.0.1"));
}

#[test]
fn no_u_or_l_says_that_the_relay_is_broken() {
    let mut engine = engine(&["127.0.0.1"], (44000, 44001));
    assert_eq!(port(&say(&mut engine, "U c 1.2.3.4 6000 f")), 44000);
    assert_eq!(say(&mut engine, "U d 1.2.3.4 6000 f"), "E72");
    assert_eq!(say(&mut engine, "L c 1.2.3.4 6000 f t"), "E71");
    assert_eq!(engine.sessions(), 1);
    assert_eq!(say(&mut engine, "D c f"), "0");
    assert_eq!(port(&say(&mut engine, "U d 1.2.3.4 6000 f")), 44000);
}

#[test]
fn one_call_has_a_limited_number_of_sessions() {
    let mut engine = engine(&["127.0.0.1"], (10000, 20000));
    for n in 0..MOST_OF_A_CALL {
        port(&say(&mut engine, &format!("U c 1.2.3.4 6000 f;{n}")));
    }
    assert_eq!(say(&mut engine, "U c 1.2.3.4 6000 f;x"), "E98");
    assert_eq!(port(&say(&mut engine, "U other 1.2.3.4 6000 f;1")) % 2, 0);
    assert_eq!(say(&mut engine, "D c f"), "0");
    assert_eq!(engine.sessions(), 1);
}

#[test]
fn capabilities_are_those_that_work() {
    let mut engine = one();
    assert_eq!(say(&mut engine, "V"), "20040107");
    for (date, meaning) in capability::MEANINGS {
        let expected = if SUPPORTED.contains(&date) { "1" } else { "0" };
        assert_eq!(say(&mut engine, &format!("VF {date}")), expected, "{meaning}");
    }
    assert_eq!(
        (say(&mut engine, "VF x"), say(&mut engine, "VF 99999999999999")),
        ("0".into(), "0".into())
    );
}

#[test]
fn ports_stay_and_a_new_one_comes_on_modifier_n() {
    let mut engine = one();
    let offer = say(&mut engine, "U c 1.2.3.4 6000 f;1");
    let answer = say(&mut engine, "L c 1.2.3.5 7000 f;1 t;1");
    assert_ne!(port(&offer), port(&answer));
    assert_eq!(say(&mut engine, "U c 1.2.3.4 6002 f;1 t;1"), offer);
    assert_eq!(say(&mut engine, "L c 1.2.3.5 7002 f;1 t;1"), answer);
    assert_eq!(say(&mut engine, "U c 1.2.3.5 7004 t;1 f;1"), answer, "the callee's re-INVITE");
    assert_eq!(say(&mut engine, "L c 1.2.3.4 6000 t;1 f;1"), offer);
    assert_eq!(engine.media.answered, 1);
    assert_ne!(port(&say(&mut engine, "Ln c 1.2.3.5 7002 f;1 t;1")), port(&answer));
    assert_eq!(engine.media.open.len(), 2);
}

#[test]
fn what_signalling_says_goes_to_the_leg_of_the_party_it_describes() {
    let mut engine = one();
    say(&mut engine, "U c 1.2.3.4 6000 f;1");
    say(&mut engine, "LA c 1.2.3.5 7000 f;1 t;1");
    say(&mut engine, "U c 0.0.0.0 6000 f;1 t;1");
    let (caller, callee) = (Endpoint::new([1, 2, 3, 4], 6000), Endpoint::new([1, 2, 3, 5], 7000));
    let expected = [
        (TO_CALLER, Some(caller), false),
        (TO_CALLEE, Some(callee), true),
        (TO_CALLER, Some(caller), false),
    ];
    let said: Vec<_> = engine
        .media
        .signalled
        .iter()
        .map(|(_, leg, signalled, asymmetric)| (*leg, *signalled, *asymmetric))
        .collect();
    assert_eq!(said, expected);
}

#[test]
fn bridging_gives_each_side_its_address() {
    let mut engine = engine(&["127.0.0.1", "127.0.0.2"], (44000, 44999));
    assert!(say(&mut engine, "UIE c 1.2.3.4 6000 f;1").ends_with(" 127.0.0.2"));
    assert!(say(&mut engine, "LEI c 1.2.3.5 6000 f;1 t;1").ends_with(" 127.0.0.1"));
    assert!(say(&mut engine, "Ul127.0.0.9 d 1.2.3.4 6000 f;1").ends_with(" 127.0.0.9"));
    assert!(say(&mut engine, "UR127.0.0.8 e 1.2.3.4 6000 f;1").ends_with(" 127.0.0.8"));
    assert_eq!(say(&mut engine, "UR192.0.2.1 g 1.2.3.4 6000 f;1"), "E32");
    assert_eq!(say(&mut engine, "UIEI h 1.2.3.4 6000 f;1"), "E12");
}

#[test]
fn parties_are_told_the_advertised_address() {
    let mut engine = engine(&["127.0.0.1", "127.0.0.2"], (44000, 44999));
    engine.settings.advertised = ["203.0.113.1", "203.0.113.2"].map(|address| address.parse().unwrap()).to_vec();
    assert!(say(&mut engine, "UIE c 1.2.3.4 6000 f;1").ends_with(" 203.0.113.2"));
    let answer = say(&mut engine, "LEI c 1.2.3.5 6000 f;1 t;1");
    assert!(answer.ends_with(" 203.0.113.1"));
    assert_eq!(say(&mut engine, "LEI c 1.2.3.5 6000 f;1 t;1"), answer, "repeated");
    assert!(
        say(&mut engine, "Ul127.0.0.9 d 1.2.3.4 6000 f;1").ends_with(" 127.0.0.9"),
        "an address without another"
    );
}

#[test]
fn the_relays_address_has_the_packets_ip_version() {
    let mut engine = engine(&["127.0.0.1", "::1"], (44000, 44999));
    assert!(say(&mut engine, "U6 c FD91:1:0:0:0:0:0:2 6000 f;1").ends_with(" ::1 6"));
    assert!(say(&mut engine, "U d 1.2.3.4 6000 f;1").ends_with(" 127.0.0.1"));
}

#[test]
fn offer_and_answer_in_one_command() {
    let mut engine = one();
    let reply = say(&mut engine, "U c 1.2.3.4 6000 f;1 t;1 && L 1.2.3.5 7000 && S ttl=9");
    let parts: Vec<&str> = reply.split(" && ").collect();
    assert_eq!(parts.len(), 2, "{reply}");
    assert_eq!(say(&mut engine, "L c - 0 f;1 t;1"), parts[1]);
    assert_eq!(say(&mut engine, "Q c f;1 t;1"), "9 0 0 0 0");
    assert_eq!(say(&mut engine, "Q c f;1 t;1 && S tos=184 && SR tos=8"), "9 0 0 0 0");
    assert_eq!(engine.media.tos, [(TO_CALLER, 184), (TO_CALLEE, 8)]);
}

#[test]
fn repetitions_are_counted() {
    let mut engine = one();
    say(&mut engine, "V");
    engine.on_repetition();
    assert_eq!(say(&mut engine, "G ncmds_rcvd ncmds_rcvd_ndups"), "3 1");
}

#[test]
fn delete_with_tags_of_all_kinds() {
    let mut engine = one();
    let create = |engine: &mut Engine<Fake>, medias: &[u8]| {
        for n in medias {
            say(engine, &format!("U c 1.2.3.4 6000 f;{n}"));
            say(engine, &format!("L c 1.2.3.5 6000 f;{n} t;{n}"));
        }
    };
    let all = |engine: &mut Engine<Fake>, commands: &[&str]| commands.iter().map(|command| say(engine, command)).collect::<Vec<_>>();
    create(&mut engine, &[1, 2, 3]);
    assert_eq!(
        all(&mut engine, &["D c f;2 t;2", "Q c f;2 t;2", "Q c f;1 t;1"]),
        ["0", "E50", "60 0 0 0 0"]
    );
    assert_eq!(all(&mut engine, &["D c t f", "D c f t"]), ["0", "E50"]);
    assert_eq!(engine.sessions(), 0);
    create(&mut engine, &[1]);
    assert_eq!(
        all(&mut engine, &["D c t", "D c ff", "D c f;11", "D other f", "D c f"]),
        ["E50", "E50", "E50", "E50", "0"]
    );
    create(&mut engine, &[1]);
    say(&mut engine, "Uw c 1.2.3.4 6000 f;1");
    assert_eq!(
        all(&mut engine, &["D c f t", "Q c f;1 t;1", "Dw c t f", "Q c f;1 t;1"]),
        ["0", "60 0 0 0 0", "0", "E50"]
    );
    create(&mut engine, &[1]);
    assert_eq!(
        all(&mut engine, &["Q c f;1 && D && S tos=8 && S ttl=3", "Q c f;1"]),
        ["60 0 0 0 0 && 0 && -1", "E50"]
    );
    create(&mut engine, &[1, 2]);
    assert_eq!(all(&mut engine, &["X", "Q c f;1"]), ["0", "E50"]);
    assert_eq!((engine.sessions(), engine.media.open.len()), (0, 0));
}

#[test]
fn sessions_time_out_without_media_and_only_then() {
    let mut engine = one();
    say_at(&mut engine, 0.0, "U a 1.2.3.4 6000 f;1 tcp:127.0.0.1:9 T1");
    say_at(&mut engine, 0.0, "U b 1.2.3.4 6000 f;1");
    say_at(&mut engine, 0.0, "U c 1.2.3.4 6000 f;1 /run/opensips/n.sock T3");
    say_at(&mut engine, 0.0, "U d 1.2.3.4 6000 f;1 && S ttl=10");
    say_at(&mut engine, 0.0, "U e 1.2.3.4 6000 f;1 tcp:192.0.2.77:9 T5");
    engine.media.last_packet.insert(SessionId(2), at(30.0));
    let mut over = |seconds: f64| {
        engine
            .sweep(at(seconds))
            .iter()
            .map(|s| (s.call_id[0], s.notice.as_ref().map(|n| n.tag.clone())))
            .collect::<Vec<_>>()
    };
    assert_eq!(over(9.9), []);
    assert_eq!(over(10.5), [(b'd', None)]);
    assert_eq!(over(59.9), []);
    assert_eq!(
        over(60.1),
        [(b'a', Some(b"T1".to_vec())), (b'c', Some(b"T3".to_vec())), (b'e', None)]
    );
    assert_eq!(over(89.9), []);
    assert_eq!(over(90.1), [(b'b', None)]);
    assert_eq!(say(&mut engine, "G nsess_created nsess_timeout nsess_destroyed"), "5 5 5");
    assert_eq!(engine.media.open.len(), 0);
}

#[test]
fn a_keep_alive_puts_the_time_out_off() {
    let mut engine = one();
    say_at(&mut engine, 0.0, "U c 1.2.3.4 6000 f;1");
    say_at(&mut engine, 0.0, "L c 1.2.3.5 7000 f;1 t;1");
    assert_eq!(say_at(&mut engine, 50.0, "Q c f;1 t;1 && S ttl=100"), "10 0 0 0 0");
    assert!(engine.sweep(at(149.0)).is_empty());
    say_at(&mut engine, 149.0, "L c - 0 t;1 f;1");
    assert!(engine.sweep(at(248.0)).is_empty());
    assert_eq!(engine.sweep(at(250.0)).len(), 1);
    say_at(&mut engine, 300.0, "Ut7 c 1.2.3.4 6000 f;1");
    assert!(engine.sweep(at(306.0)).is_empty());
    assert_eq!(engine.sweep(at(308.0)).len(), 1);
}

#[test]
fn a_call_that_nobody_answers_has_the_time_out_of_set_up() {
    let mut engine = one();
    engine.settings.setup_ttl = Duration::from_secs(5);
    say_at(&mut engine, 0.0, "U a 1.2.3.4 6000 f;1");
    say_at(&mut engine, 0.0, "U b 1.2.3.4 6000 f;1");
    say_at(&mut engine, 0.0, "L b 1.2.3.5 7000 f;1 t;1");
    assert_eq!(engine.sweep(at(6.0)).len(), 1);
    assert!(engine.sweep(at(59.0)).is_empty());
    assert_eq!(engine.sweep(at(61.0)).len(), 1);
}

#[test]
fn statistics() {
    let mut engine = one();
    engine.media.counts = Counts {
        from_callee: 4,
        from_caller: 7,
        relayed: 11,
        dropped: 2,
        rtcp_from_caller: 1,
        ..Counts::default()
    };
    say(&mut engine, "U c 1.2.3.4 6000 f;1");
    say(&mut engine, "L c 1.2.3.5 7000 f;1 t;1");
    assert_eq!(say(&mut engine, "Q c f;1 t;1"), "60 7 4 11 2");
    assert_eq!(say(&mut engine, "Qv c t;1 f;1 npkts_ina ttl"), "npkts_ina=4 ttl=60");
    assert_eq!(
        say(&mut engine, "I"),
        "sessions created: 1\nactive sessions: 1\nactive streams: 2\npackets received: 30\npackets transmitted: 20"
    );
    assert!(say(&mut engine, "Ib").starts_with("sessions created: 1"));
    assert!(say(&mut engine, "IL").ends_with("\naverage load: 1.500000"));
    assert_eq!(say(&mut engine, "D c f"), "0");
    let names =
        "pps_in nsess_created nsess_destroyed nsess_complete nsess_nortp nsess_owrtp nsess_nortcp nsess_owrtcp npkts_rcvd npkts_discard";
    assert_eq!(say(&mut engine, &format!("G {names}")), "30.000000 1 1 1 0 0 0 1 30 10");
    assert_eq!(say_at(&mut engine, 11.0, "Gv pps_in"), "pps_in=0.000000");
    assert_eq!(say(&mut engine, "Gx nsess_created"), "E9");
    assert_eq!(say(&mut engine, "Qx c f"), "E50");
}

#[test]
fn the_list_has_every_session_in_pieces() {
    let mut engine = engine(&["127.0.0.1"], (20000, 60000));
    for n in 0..500 {
        say(
            &mut engine,
            &format!("U call-{n}@example.org 192.0.2.1 6000 from;1 tcp:127.0.0.1:9 T%20{n}"),
        );
        say(&mut engine, &format!("LA call-{n}@example.org 192.0.2.2 7000 from;1 to;1"));
    }
    let (mut names, mut after, mut pieces) = (Vec::new(), Some(0), 0);
    while let Some(number) = after {
        let reply = say(&mut engine, &String::from_utf8(listing::ask(number)).unwrap());
        let (next, records) = listing::read(reply.as_bytes()).unwrap();
        for record in &records {
            assert_eq!(
                (record.from, record.to, record.ttl, record.complete),
                (&b"from;1"[..], Some(&b"to;1"[..]), 60, true)
            );
            assert_eq!(record.caller.signalled, Some(Endpoint::new([192, 0, 2, 1], 6000)));
            assert_eq!(record.caller.learned, Some(Endpoint::new([192, 0, 2, 9], 9000)));
            assert_eq!((record.caller.asymmetric, record.callee.asymmetric), (false, true));
            assert_ne!(record.caller.relay, record.callee.relay);
            assert_eq!(record.notify.as_ref().map(|(socket, _)| &socket[..]), Some(&b"tcp:127.0.0.1:9"[..]));
        }
        names.extend(records.iter().map(|record| String::from_utf8_lossy(record.call_id).into_owned()));
        (after, pieces) = (next, pieces + 1);
    }
    assert_eq!(names, (0..500).map(|n| format!("call-{n}@example.org")).collect::<Vec<_>>());
    assert!(pieces > 3);
}

fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "U",
        "L",
        "D",
        "Q",
        "V",
        "VF",
        "I",
        "Is",
        "G",
        "X",
        "P",
        "S",
        "R",
        "C",
        "N",
        "&&",
        "Uc0,8",
        "LEI6",
        "Uw",
        "Dw",
        "Un",
        "Qv",
        "c",
        "d",
        "1.2.3.4",
        "-",
        "0",
        "6000",
        "65535",
        "f;1",
        "f",
        "t;1",
        "t",
        "ttl=5",
        "tos=8",
        "tcp:1.2.3.4:5",
        "T%20",
        "20050322",
        "ttl",
        "l127.0.0.1",
        "UR127.0.0.1",
        "::1",
        "\0",
        "é",
    ]);
    prop::collection::vec(word, 0..9).prop_map(|words| words.join(" ").into_bytes())
}

proptest! {
    #[test]
    fn any_bytes_get_a_reply_and_no_port_is_lost(commands in prop::collection::vec(prop_oneof![3 => words(), 1 => prop::collection::vec(any::<u8>(), 0..60)], 0..25)) {
        let mut engine = engine(&["127.0.0.1", "::1"], (44000, 44031));
        for (n, command) in commands.iter().enumerate() {
            let reply = engine.execute(at(n as f64), command, None);
            prop_assert!(!reply.ends_with(b"\n"));
            let legs = engine.table.after(SessionId(0)).flat_map(|session| &session.legs).filter(|leg| leg.port != 0).count();
            prop_assert_eq!(legs, engine.media.open.len());
        }
        engine.sweep(at(3e9));
        prop_assert_eq!((engine.sessions(), engine.media.open.len()), (0, 0));
    }
}
