//! Single situations: what is refused, what is told, and what follows from RTCP.

use crate::world::{Person, RETRIED, ROOM, SECOND, World, credentials, end, host, joining, medium, name, picture, ssrc};
use shunt_admin_model::{
    Codec, ConferenceSummary, Direction, Failure, JoinMedium, Layers, ParticipantUpdate, Quality, QualityChange, TargetChange,
};
use shunt_conference::adaptation::OWN_SSRC;
use shunt_conference::rows::{Counted, Data, Key};
use shunt_conference::tables::Limits;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::rtcp;
use std::collections::BTreeMap;

/// Participants who hear and see each other.
fn talking(count: u8) -> World {
    let mut world = World::new(Limits::default());
    for who in 0..count {
        enter(&mut world, who);
    }
    world
}

fn enter(world: &mut World, who: u8) {
    world.join(who, &[0, 1], false).unwrap();
    for which in 0..2 {
        world.talk(who, which, ssrc(who, which), false);
    }
    world.bring();
}

/// The same, and the agent has copies of their video.
fn filmed(count: u8) -> World {
    let mut world = talking(count);
    world.second();
    world.bring();
    world
}

fn set_quality(world: &mut World, from: u8, to: u8, quality: Quality) {
    let change = QualityChange {
        sender: name(from).as_str().into(),
        receiver: name(to).as_str().into(),
        quality,
    };
    world.act(|book, turn| book.set_quality(turn, ROOM, &change)).unwrap();
    world.qualities.insert((from, to), quality);
    world.bring();
}

fn set_target(world: &mut World, from: u8, to: u8, target: Option<u8>) {
    decide_target(world, from, to, target);
    world.bring();
}

fn decide_target(world: &mut World, from: u8, to: u8, target: Option<u8>) {
    let decision = shunt_admin_model::Decision {
        sender: name(from).as_str().into(),
        receiver: name(to).as_str().into(),
        target,
    };
    let change = TargetChange {
        targets: vec![decision],
        hold_s: None,
    };
    world.act(|book, turn| book.set_targets(turn, ROOM, &change)).unwrap();
    if target.is_none() {
        world.paused.insert((from, to));
    } else {
        world.paused.remove(&(from, to));
    }
}

#[test]
fn who_finds_no_room_in_the_data_plane_is_told_of_and_tried_again() {
    let mut world = talking(3);
    world.check();
    let before = world.received();
    let all: Vec<usize> = before.values().map(BTreeMap::len).collect();
    assert_eq!(all, [2; 6], "two streams of each of three go to the two others");
    world.full = true;
    world.join(3, &[0, 1], false).unwrap();
    world.talk(3, 0, ssrc(3, 0), false);
    world.bring();
    assert!(world.look().summary.problem.unwrap().contains("no room"));
    assert!(world.told.iter().any(|(what, _)| *what == "no-room"));
    assert_eq!(world.received(), before, "the others go on as before");
    world.full = false;
    world.now = world.now + RETRIED;
    world.act(|book, turn| book.tick(turn));
    world.bring();
    world.check();
    assert_eq!(world.look().summary.problem, None);
}

#[test]
fn an_update_that_cannot_be_changes_nothing() {
    let mut world = talking(3);
    let before = world.received();
    let mut media = vec![medium(0, Direction::Inactive, 111), medium(1, Direction::SendRecv, 111)];
    media[0].codecs[0].encoding = "red".into();
    media[0].codecs[0].fmtp = Some("109/109".into());
    let update = ParticipantUpdate {
        media: Some(media),
        signalled: Some(vec![host(0, true)]),
        ..ParticipantUpdate::default()
    };
    let refused = world.act(|book, turn| book.update(turn, ROOM, &name(0), &update, None));
    assert!(refused.is_err(), "{refused:?}");
    world.bring();
    assert_eq!(world.received(), before);
    world.check();
}

#[test]
fn decisions_of_a_policy_are_taken_over_all_or_none() {
    let mut world = talking(3);
    let decision = |receiver: &str| shunt_admin_model::Decision {
        sender: "p0".into(),
        receiver: receiver.into(),
        target: None,
    };
    let change = |receivers: &[&str]| TargetChange {
        targets: receivers.iter().map(|receiver| decision(receiver)).collect(),
        hold_s: None,
    };
    let paused = |world: &World| {
        let look = world.look();
        let paused = look
            .subscriptions
            .iter()
            .filter(|one| one.medium == "video" && one.target.is_none());
        paused.count()
    };
    let wrong = world.act(|book, turn| book.set_targets(turn, ROOM, &change(&["p1", "nobody"])));
    assert!(wrong.unwrap_err().message.contains("nobody"));
    world.bring();
    let all = |world: &World| world.look().subscriptions.iter().all(|one| one.decided_by == "policy");
    assert!(paused(&world) == 0 && all(&world));
    world
        .act(|book, turn| book.set_targets(turn, ROOM, &change(&["p1", "p2"])))
        .unwrap();
    world.bring();
    assert!(!all(&world));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let mut world = World::new(Limits::default());
    let taken: Result<ConferenceSummary, Failure> = world.act(|book, turn| book.create(turn, ROOM));
    assert!(taken.unwrap_err().message.contains("already"));
    let join = |media: Vec<JoinMedium>| joining("ann", media, Vec::new());
    let with = |change: &dyn Fn(&mut JoinMedium)| {
        let mut made = medium(1, Direction::SendRecv, 111);
        change(&mut made);
        vec![made]
    };
    for (media, word) in [
        (Vec::new(), "no medium"),
        (with(&|one| one.medium = "smell".into()), "smell"),
        (with(&|one| one.transport = "UDP/TLS/RTP/SAVPF".into()), "DTLS"),
        (
            with(&|one| {
                one.layers = Some(Layers {
                    by: "dependency-descriptor".into(),
                    extension_id: None,
                });
            }),
            "extension_id",
        ),
        (with(&|one| one.medium = "video/2".into()), "the first video is missing"),
    ] {
        let refused = world.act(|book, turn| book.join(turn, ROOM, &join(media), None));
        let message = refused.unwrap_err().message;
        assert!(message.contains(word), "{message}");
    }
    assert!(world.look().members.is_empty() && world.held.is_empty());
    // All ports are taken one after the other, and come back.
    let mut joined = Vec::new();
    for who in 0..60 {
        match world.join(who, &[0], false) {
            Ok(_) => joined.push(who),
            Err(failure) => {
                assert!(failure.message.contains("all ports"), "{failure}");
                break;
            }
        }
    }
    assert_eq!((joined.len(), world.held.len()), (50, 50));
    world.leave(7).unwrap();
    world.join(60, &[0], false).unwrap();
}

#[test]
fn payload_types_that_cannot_be_rewritten_are_refused_by_name() {
    let mut world = World::new(Limits::default());
    let codec = |payload_type: u8, encoding: &str, fmtp: Option<&str>| Codec {
        payload_type,
        encoding: encoding.into(),
        clock_rate: 48_000,
        channels: Some(2),
        fmtp: fmtp.map(Into::into),
    };
    let mut join = |who: &str, transport: &str, codecs: Vec<Codec>| {
        let mut audio = medium(0, Direction::SendRecv, 111);
        (audio.codecs, audio.transport) = (codecs, transport.into());
        let join = joining(who, vec![audio], Vec::new());
        let joined = world.act(|book, turn| book.join(turn, ROOM, &join, None));
        joined.map(drop).map_err(|failure| failure.message)
    };
    let red = codec(63, "red", Some("111/111"));
    join("ann", "RTP/AVP", vec![codec(111, "opus", None), red.clone()]).unwrap();
    let other = codec(63, "red", Some("109/109"));
    let inside = join("bob", "RTP/AVP", vec![codec(109, "opus", None), other]).unwrap_err();
    assert!(inside.contains("red/48000/2 of ann has payload types in its payload"), "{inside}");
    let none = join("bob", "RTP/AVP", vec![codec(111, "opus", None)]).unwrap_err();
    assert!(none.contains("ann has payload type 63 for red/48000/2, and bob has none"), "{none}");
    let high = join("bob", "RTP/AVP", vec![codec(128, "opus", None), red]).unwrap_err();
    assert!(high.contains("payload_type 128"), "{high}");
    assert_eq!((world.look().members.len(), world.held.len()), (1, 1));
}

#[test]
fn a_restart_changes_nothing_that_the_api_shows() {
    let mut world = talking(3);
    set_quality(&mut world, 0, 1, Quality::Audio);
    let mut browser = joining("browser", vec![medium(1, Direction::RecvOnly, 111)], Vec::new());
    (browser.ice, browser.call) = (true, Some("abc@example".into()));
    world
        .act(|book, turn| book.join(turn, ROOM, &browser, Some(credentials(9))))
        .unwrap();
    world.act(|book, turn| book.create(turn, "over")).unwrap();
    world.act(|book, turn| book.end(turn, "over"));
    world.act(|book, turn| book.create(turn, "another")).unwrap();
    let show = |world: &World| {
        let look = world.look();
        let members: Vec<String> = look
            .members
            .iter()
            .map(|one| {
                format!(
                    "{} {:?} {:?} {:?} {:?}",
                    one.participant,
                    one.mixed,
                    one.ice,
                    one.call,
                    one.media
                        .iter()
                        .map(|leg| (leg.address, leg.latched, &leg.codecs))
                        .collect::<Vec<_>>()
                )
            })
            .collect();
        let pairs: Vec<String> = look
            .subscriptions
            .iter()
            .map(|one| format!("{} {} {} {:?}", one.sender, one.receiver, one.medium, one.quality))
            .collect();
        (members, pairs)
    };
    let before = show(&world);
    // Six pairs, two media, but for the one that is left out.
    assert_eq!(before.1.len(), 11);
    world.restart();
    world.bring();
    assert_eq!(show(&world), before);
    let names: Vec<String> = world.book.list().iter().map(|one| one.conference.to_string()).collect();
    assert_eq!(names, ["another", ROOM]);
}

/// Bit/s of a camera: a half in the lowest layer, a quarter in each of the two above.
const CAMERA: u64 = 400_000;

/// A second passes: the data plane counts what cameras send, and receivers say what they can take of each sender's video, in bit/s.
fn watch(world: &mut World, seconds: &mut u64, people: u8, takes: &dyn Fn(u8) -> u64) {
    *seconds += 1;
    let layered = world.rows.iter().filter_map(|(key, data)| {
        let share = match (key, data) {
            (Key::Stream(_, ssrc), _) if ssrc & 1 == 1 => 4,
            (Key::Layer(..), Data::Layer(row)) => [2, 1, 1][usize::from(row.layer.min(2))],
            _ => return None,
        };
        let octets = CAMERA / 8 * share / 4 * *seconds;
        let packets = octets / 1000;
        Some(Counted {
            key: key.clone(),
            packets,
            octets,
        })
    });
    let read = layered.collect();
    world.now = world.now + SECOND;
    world.act(|book, turn| book.counted(turn, read));
    world.act(|book, turn| book.consider(turn, false));
    world.act(|book, turn| book.tick(turn));
    for _ in 0..4 {
        world.now = world.now + SECOND / 5;
        for who in 0..people {
            let others: Vec<u32> = (0..people).filter(|other| *other != who).map(|other| ssrc(other, 1)).collect();
            let report = rtcp::receiver_report(ssrc(who, 1), &[]);
            let packet = [report, rtcp::remb(ssrc(who, 1), takes(who), &others).unwrap()].concat();
            let (relay, source) = (world.relay(who, 1).unwrap(), end(who, 1, false));
            world.act(|book, turn| book.rtcp(turn, relay.port, source, &packet));
        }
        world.bring();
    }
}

fn targets(world: &World) -> usize {
    world.told.iter().filter(|(what, _)| *what == "target").count()
}

#[test]
fn six_more_join_a_healthy_room_and_nobody_gets_less() {
    let mut world = talking(3);
    let mut seconds = 0;
    for people in [3, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9] {
        if world.relay(people - 1, 1).is_none() {
            enter(&mut world, people - 1);
        }
        // As a browser's: 1.5 times what arrives.
        watch(&mut world, &mut seconds, people, &|_| CAMERA * 3 / 2 * u64::from(people - 1));
    }
    assert_eq!(targets(&world), 0, "somebody gets less");
}

#[test]
fn an_estimate_takes_layers_away_and_gives_them_back() {
    let mut world = talking(3);
    let mut seconds = 0;
    let level = |world: &World| {
        let look = world.look();
        let found = look
            .subscriptions
            .iter()
            .filter(|one| one.receiver.to_string() == "p1" && one.medium == "video");
        found.map(|one| one.target).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        watch(&mut world, &mut seconds, 3, &|_| 4 * CAMERA);
    }
    assert_eq!(level(&world), [Some(2); 2]);
    for _ in 0..5 {
        watch(&mut world, &mut seconds, 3, &|who| {
            if who == 1 { CAMERA * 5 / 4 } else { 4 * CAMERA }
        });
    }
    assert!(
        level(&world).iter().all(|level| matches!(level, Some(0 | 1))),
        "{:?}",
        level(&world)
    );
    assert!(targets(&world) > 0);
    world.sent.clear();
    for _ in 0..40 {
        watch(&mut world, &mut seconds, 3, &|who| if who == 2 { 3 * CAMERA } else { 4 * CAMERA });
    }
    assert_eq!(level(&world), [Some(2); 2]);
    // Of all estimates a sender hears one receiver's, the best downlink.
    let heard = |to: Endpoint| -> Vec<u64> {
        let sent = world.sent.iter().filter(|(_, at, _)| *at == to);
        sent.flat_map(|(_, _, data)| {
            rtcp::walk(data)
                .filter_map(|item| Some(item.unwrap().remb()?.bitrate))
                .collect::<Vec<_>>()
        })
        .collect()
    };
    let heard = heard(end(0, 1, false));
    assert!(
        heard.len() > 8 && heard[heard.len() - 8..].iter().all(|rate| *rate > 7 * CAMERA / 4),
        "{heard:?}"
    );
}

/// To whom requests for a key frame of a stream go, with its SSRC.
fn key_frames(sent: &[(Endpoint, Endpoint, Vec<u8>)]) -> Vec<(Endpoint, u32)> {
    let mut found = Vec::new();
    for (_, to, data) in sent {
        for item in rtcp::walk(data) {
            found.extend(item.unwrap().key_frame_requests().map(|request| (*to, request.media_ssrc)));
        }
    }
    found
}

#[test]
fn key_frame_requests_of_many_are_one() {
    let mut world = talking(4);
    world.now = world.now + SECOND;
    world.sent.clear();
    let begun = world.now;
    for _ in 0..100 {
        for receiver in 1..4 {
            let (relay, source) = (world.relay(receiver, 1).unwrap(), world.latched(receiver, 1).unwrap());
            let wish = rtcp::pli(ssrc(receiver, 1), ssrc(0, 1));
            world.act(|book, turn| book.rtcp(turn, relay.port, source, &wish));
        }
        world.now = world.now + SECOND / 100;
        world.act(|book, turn| book.tick(turn));
    }
    assert_eq!(world.now, begun + SECOND);
    let asked = key_frames(&world.sent);
    assert_eq!(asked, [(end(0, 1, false), ssrc(0, 1)); 3], "at once, and once in half a second");
}

#[test]
fn who_gets_video_anew_gets_a_key_frame() {
    let mut world = talking(3);
    set_quality(&mut world, 0, 1, Quality::Audio);
    world.now = world.now + SECOND;
    world.sent.clear();
    set_quality(&mut world, 0, 1, Quality::Screen);
    assert_eq!(key_frames(&world.sent), [(end(0, 1, false), ssrc(0, 1))]);
    world.now = world.now + SECOND;
    world.sent.clear();
    enter(&mut world, 3);
    let asked: Vec<Endpoint> = key_frames(&world.sent).into_iter().map(|(to, _)| to).collect();
    for who in 0..4 {
        assert!(asked.contains(&end(who, 1, false)), "{who}: {asked:?}");
    }
}

#[test]
fn requests_go_to_the_one_sender_that_they_name_and_what_is_broken_nowhere() {
    let mut world = talking(3);
    world.now = world.now + SECOND;
    let (mine, whose) = (ssrc(2, 1), ssrc(1, 1));
    assert!(
        world.rtcp(2, 1, &rtcp::receiver_report(mine, &[])).is_empty(),
        "reports of a receiver are not passed on"
    );
    let mut transport = vec![0x8f, 205, 0, 5];
    transport.extend([mine.to_be_bytes(), whose.to_be_bytes()].concat());
    transport.extend([0; 12]);
    let wishes = [
        rtcp::receiver_report(mine, &[]),
        rtcp::pli(mine, whose),
        rtcp::fir(mine, whose, 7),
        transport,
    ]
    .concat();
    let sent = world.rtcp(2, 1, &wishes);
    assert_eq!(
        sent,
        [(world.relay(1, 1).unwrap(), end(1, 1, false), rtcp::pli(OWN_SSRC, whose))],
        "both wishes are one request"
    );
    let whole = rtcp::nack(mine, whose, [1]).unwrap();
    for size in 0..whole.len() {
        assert!(world.rtcp(2, 1, &whole[..size]).is_empty(), "cut to {size}");
    }
}

#[test]
fn who_only_listens_is_found_by_its_rtcp() {
    for (which, port) in [(0, 0), (1, 0), (0, 1)] {
        let mut world = talking(3);
        world.people.insert(3, Person::new(3, &[which], false));
        world.people.get_mut(&3).unwrap().directions.insert(which, Direction::RecvOnly);
        let join = joining(&name(3), world.people[&3].media(), vec![host(3, false)]);
        world.act(|book, turn| book.join(turn, ROOM, &join, None)).unwrap();
        let (relay, source) = (world.relay(3, which).unwrap(), end(3, which, false));
        let report = rtcp::receiver_report(ssrc(3, which), &[]);
        world.act(|book, turn| book.rtcp(turn, relay.port, end(3, which, true), &report));
        assert_eq!(world.latched(3, which), None, "an address that signalling does not name");
        // Beside its media, or one port above them.
        let from = Endpoint::new(source.addr, source.port + port);
        world.act(|book, turn| book.rtcp(turn, relay.port + port, from, &report));
        assert_eq!(world.latched(3, which), Some(source));
        world.bring();
        world.check();
        let served = world.received().into_values().filter(|to| to.contains_key(&source)).count();
        assert_eq!(served, 3);
    }
}

#[test]
fn who_was_paused_gets_again_what_it_was_sent_and_nothing_else() {
    // It gets pictures before the pause, or is paused from the start; and the data plane follows at once, or has not written the pause when it ends.
    for (before, written, target) in [(20, true, 2), (0, true, 2), (20, false, 2), (20, true, 0), (20, true, 1)] {
        let mut world = filmed(3);
        world.film(0, before, 96);
        let decide = |world: &mut World, target: Option<u8>, written: bool| {
            if written {
                set_target(world, 0, 1, target);
            } else {
                decide_target(world, 0, 1, target);
            }
        };
        decide(&mut world, None, written);
        let hole = if written { world.film(0, 20, 96) } else { Vec::new() };
        decide(&mut world, Some(target), true);
        let after = world.film(0, 20, 96);
        let lost = [&hole[..], &after[4..8]].concat();
        let sent = world.rtcp(1, 1, &rtcp::nack(ssrc(1, 1), ssrc(0, 1), lost).unwrap());
        let again: Vec<Vec<u8>> = sent
            .iter()
            .filter(|(_, to, _)| *to == end(1, 1, false))
            .map(|one| one.2.clone())
            .collect();
        // Whole video has the sender's numbers. Of fewer layers it is not certain which number is whose: nothing is sent that could be another's.
        let wanted: Vec<Vec<u8>> = if target == 2 {
            after[4..8].iter().map(|number| picture(ssrc(0, 1), 96, *number)).collect()
        } else {
            Vec::new()
        };
        assert_eq!(again, wanted, "{before} {written} {target}");
        for (_, to, data) in sent.iter().filter(|(_, to, _)| *to != end(1, 1, false)) {
            let is_nack = rtcp::walk(data).any(|item| item.unwrap().nack().is_some());
            assert!(*to == end(0, 1, false) && !is_nack, "to {to}: {data:?}");
        }
    }
}

/// Video with a payload type of one's own, and one of RTX or none.
fn pictures(payload_type: u8, repair: Option<u8>) -> JoinMedium {
    let codec = |payload_type, encoding: &str, fmtp: Option<String>| Codec {
        payload_type,
        encoding: encoding.into(),
        clock_rate: 90_000,
        channels: None,
        fmtp,
    };
    let mut made = medium(1, Direction::SendRecv, 111);
    made.codecs = vec![codec(payload_type, "VP8", None)];
    made.codecs
        .extend(repair.map(|repair| codec(repair, "rtx", Some(format!("apt={payload_type}")))));
    made
}

#[test]
fn retransmissions_have_the_receivers_payload_type() {
    let mut world = World::new(Limits::default());
    for (who, (payload_type, repair)) in [(96, Some(97)), (120, Some(124)), (100, None)].into_iter().enumerate() {
        let who = who as u8;
        let join = joining(&name(who), vec![pictures(payload_type, repair)], vec![host(who, false)]);
        world.act(|book, turn| book.join(turn, ROOM, &join, None)).unwrap();
        world.people.insert(who, Person::new(who, &[1], false));
        world.talk_as(who, 1, ssrc(who, 1), false, payload_type);
    }
    world.bring();
    world.second();
    world.bring();
    // Those of the agent's copies.
    let numbers = world.film(0, 10, 96);
    let nack = rtcp::nack(ssrc(1, 1), ssrc(0, 1), [numbers[4]]).unwrap();
    let sent = world.rtcp(1, 1, &nack);
    assert_eq!(
        sent,
        [(world.relay(1, 1).unwrap(), end(1, 1, false), picture(ssrc(0, 1), 120, numbers[4]))]
    );
    // Those of RTX (RFC 4588), which has an SSRC of its own. Who did not agree to it gets none.
    world.talk_as(0, 1, 0xabcd, false, 97);
    world.bring();
    let flow = FiveTuple::new(end(0, 1, false), world.relay(0, 1).unwrap());
    let Some(Data::Stream(stream)) = world.rows.get(&Key::Stream(flow, 0xabcd)) else {
        panic!("there is no row for the repair stream")
    };
    let copies = world.rows.iter().filter_map(|(key, data)| match (key, data) {
        (Key::Copy(number, _), Data::Copy(copy)) if *number == stream.tree.stream => Some(copy),
        _ => None,
    });
    let to: Vec<(Endpoint, Vec<(u8, u8)>)> = copies.map(|copy| (copy.addresses.dst, copy.payload_types.clone())).collect();
    assert_eq!(to.len(), 1, "{to:?}");
    assert!(to[0].0 == end(1, 1, false) && to[0].1.contains(&(97, 124)), "{to:?}");
}

#[test]
fn media_of_somebody_else_is_nobodys_where_checks_say_the_source() {
    let mut world = talking(2);
    world.join(2, &[0, 1], true).unwrap();
    world.talk(2, 0, ssrc(2, 0), false);
    assert!(!world.check_by_ice(2, 0, false, false), "somebody else's credentials");
    assert_eq!(world.latched(2, 0), None);
    for moved in [false, true] {
        assert!(world.check_by_ice(2, 0, moved, true));
        assert_eq!(world.latched(2, 0), Some(end(2, 0, moved)));
        world
            .people
            .get_mut(&2)
            .unwrap()
            .checked
            .as_mut()
            .unwrap()
            .insert(0, end(2, 0, moved));
        world.talk(2, 0, ssrc(2, 0), moved);
        world.talk(2, 0, ssrc(2, 0), !moved);
        world.bring();
        world.check();
    }
}
