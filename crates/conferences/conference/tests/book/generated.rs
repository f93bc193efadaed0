//! Generated sequences of events, at any point of the writer's rounds.

use crate::world::{MEDIA, OPUS, RETRIED, ROOM, World, end, name, picture, ssrc};
use proptest::prelude::*;
use shunt_admin_model::{Direction, ParticipantUpdate, Quality, QualityChange};
use shunt_conference::rows::Key;
use shunt_conference::tables::Limits;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::rtcp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Clone, Debug)]
enum Event {
    /// With video or without, by ICE or without.
    Join(u8, bool, bool),
    Leave(u8),
    Turn(u8, usize, Direction),
    /// Opus has another payload type from now on.
    Renumber(u8, u8),
    Talk(u8, usize),
    /// With the SSRC of somebody else.
    Mimic(u8, u8),
    Move(u8, usize),
    /// From where it was or from elsewhere, with its own credentials or others.
    Check(u8, usize, bool, bool),
    Quality(u8, u8, Quality),
    Rtcp(u8, usize, u8),
    /// A sender report.
    Report(u8, usize),
    /// Some of a sender's pictures do not arrive at a receiver.
    Loss(u8, u8),
    Second,
    Restart,
    /// The data plane is away, and comes back with its rows or without.
    Away(bool),
    /// The data plane takes no copies more, or takes them again.
    Full(bool),
}

/// Each with the number of the writer's steps before the next one; `None`: all that there are.
fn events() -> impl Strategy<Value = Vec<(Event, Option<usize>)>> {
    let person = 0..5_u8;
    let direction = prop::sample::select(vec![
        Direction::SendRecv,
        Direction::SendOnly,
        Direction::RecvOnly,
        Direction::Inactive,
    ]);
    let quality = prop::sample::select(vec![Quality::Audio, Quality::Screen]);
    let leg = || (person.clone(), 0..2_usize);
    let event = prop_oneof![
        6 => (person.clone(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(who, video, ice)| Event::Join(who, video, ice)),
        2 => person.clone().prop_map(Event::Leave),
        3 => (leg(), direction).prop_map(|((who, which), direction)| Event::Turn(who, which, direction)),
        1 => (person.clone(), prop::sample::select(OPUS.to_vec())).prop_map(|(who, number)| Event::Renumber(who, number)),
        8 => leg().prop_map(|(who, which)| Event::Talk(who, which)),
        1 => (person.clone(), person.clone()).prop_map(|(who, whose)| Event::Mimic(who, whose)),
        1 => leg().prop_map(|(who, which)| Event::Move(who, which)),
        2 => (leg(), any::<bool>(), prop::bool::weighted(0.7)).prop_map(|((who, which), moved, right)| Event::Check(who, which, moved, right)),
        2 => (person.clone(), person.clone(), quality).prop_map(|(from, to, quality)| Event::Quality(from, to, quality)),
        2 => (leg(), person.clone()).prop_map(|((who, which), about)| Event::Rtcp(who, which, about)),
        2 => leg().prop_map(|(who, which)| Event::Report(who, which)),
        3 => (person.clone(), person.clone()).prop_map(|(who, whose)| Event::Loss(who, whose)),
        2 => Just(Event::Second),
        1 => Just(Event::Restart),
        1 => any::<bool>().prop_map(Event::Away),
        1 => prop::bool::weighted(0.3).prop_map(Event::Full),
    ];
    let steps = prop_oneof![3 => Just(None), 2 => (0..6_usize).prop_map(Some)];
    prop::collection::vec((event, steps), 1..50)
}

fn limits() -> impl Strategy<Value = Limits> {
    let (most, few) = (Limits::default(), 1..12_u32);
    prop_oneof![
        4 => Just(most),
        1 => few.clone().prop_map(move |nodes| Limits { nodes, ..most }),
        1 => few.clone().prop_map(move |streams| Limits { streams, ..most }),
        1 => few.prop_map(move |trees| Limits { trees, ..most }),
    ]
}

fn update(world: &mut World, who: u8) {
    let update = ParticipantUpdate {
        media: Some(world.people[&who].media()),
        ..ParticipantUpdate::default()
    };
    world.act(|book, turn| book.update(turn, ROOM, &name(who), &update, None)).unwrap();
}

/// Participants of whom a source is known.
fn present(world: &World) -> usize {
    let look = world.look();
    look.members
        .iter()
        .filter(|one| one.media.iter().any(|leg| leg.latched.is_some()))
        .count()
}

/// A sender report goes to all who may get the medium, without its report blocks; between two it goes as it is.
fn report(world: &mut World, who: u8, which: usize) {
    let look = world.look();
    let own = ssrc(who, which);
    let find = |person: u8| look.members.iter().find(|one| one.participant.to_string() == name(person));
    let latched = |person: u8| find(person)?.media.iter().find(|leg| leg.medium == MEDIA[which])?.latched;
    let carries = |person: u8| {
        let streams = find(person).into_iter().flat_map(|one| &one.media).flat_map(|leg| &leg.streams);
        streams
            .filter(|stream| stream.ssrc == own)
            .map(|stream| stream.conflicts_with.is_none())
            .collect::<Vec<_>>()
    };
    let elsewhere = world.people.keys().any(|other| *other != who && !carries(*other).is_empty());
    if latched(who).is_none() || elsewhere || carries(who) != [true] {
        return;
    }
    let mut packet = vec![0x81, 200, 0, 12];
    packet.extend(own.to_be_bytes());
    packet.extend([5; 20]);
    packet.extend([6; 24]);
    let mut bare = vec![0x80, 200, 0, 6];
    bare.extend(&packet[4..28]);
    let present = present(world);
    let wanted: BTreeSet<(Endpoint, Vec<u8>)> = world
        .people
        .keys()
        .filter(|to| **to != who && (present <= 2 || which == 0 || world.qualities.get(&(who, **to)) != Some(&Quality::Audio)))
        .filter_map(|to| Some((latched(*to)?, if present <= 2 { packet.clone() } else { bare.clone() })))
        .collect();
    let sent = world.rtcp(who, which, &packet);
    let sent: BTreeSet<(Endpoint, Vec<u8>)> = sent.into_iter().map(|(_, to, data)| (to, data)).collect();
    assert_eq!(sent, wanted, "the report of {who}'s {}", MEDIA[which]);
}

/// Who misses pictures that it was sent gets each again, once and alone; who was not sent them gets nothing.
fn lose(world: &mut World, who: u8, whose: u8) {
    let (Some(own), Some(at), Some(relay)) = (world.latched(whose, 1), world.latched(who, 1), world.relay(whose, 1)) else {
        return;
    };
    let flow = (FiveTuple::new(own, relay), ssrc(whose, 1));
    let is_between_two = present(world) <= 2;
    if who == whose || is_between_two || !world.is_copied(&flow) {
        return;
    }
    let gets = world.received()[&flow].contains_key(&at);
    let numbers = world.film(whose, 20, 96);
    let lost = [numbers[5], numbers[9], numbers[10]];
    let sent = world.rtcp(who, 1, &rtcp::nack(ssrc(who, 1), flow.1, lost).unwrap());
    let from = world.relay(who, 1).unwrap();
    let again = |number: &u16| (from, at, picture(flow.1, 96, *number));
    let wanted: Vec<_> = lost.iter().filter(|_| gets).map(again).collect();
    assert_eq!(sent, wanted, "{who} misses {lost:?} of {whose}, gets: {gets}");
}

fn happen(world: &mut World, event: &Event) {
    match event {
        Event::Join(who, video, ice) => {
            let is_new = !world.people.contains_key(who);
            let joined = world.join(*who, if *video { &[0, 1] } else { &[0] }, *ice);
            assert_eq!(joined.is_ok(), is_new, "{joined:?}");
        }
        Event::Leave(who) => {
            let is_there = world.people.contains_key(who);
            assert_eq!(world.leave(*who).is_ok(), is_there);
        }
        Event::Turn(who, which, direction) => {
            if let Some(wanted) = world.people.get_mut(who).and_then(|one| one.directions.get_mut(which)) {
                *wanted = *direction;
                update(world, *who);
            }
        }
        Event::Renumber(who, number) => {
            if let Some(one) = world.people.get_mut(who) {
                one.opus = *number;
                update(world, *who);
            }
        }
        Event::Talk(who, which) => world.talk(*who, *which, ssrc(*who, *which), false),
        Event::Mimic(who, whose) => world.talk(*who, 0, ssrc(*whose, 0), false),
        Event::Move(who, which) => world.talk(*who, *which, ssrc(*who, *which), true),
        Event::Check(who, which, moved, right) => {
            let answered = world.check_by_ice(*who, *which, *moved, *right);
            let one = world.people.get_mut(who).filter(|one| one.directions.contains_key(which));
            let checked = one.and_then(|one| one.checked.as_mut());
            assert_eq!(answered, checked.is_some() && *right, "{who}'s check");
            if let (Some(checked), true) = (checked, answered) {
                checked.insert(*which, end(*who, *which, *moved));
            }
        }
        Event::Quality(from, to, quality) => {
            let change = QualityChange {
                sender: name(*from).as_str().into(),
                receiver: name(*to).as_str().into(),
                quality: *quality,
            };
            let set = world.act(|book, turn| book.set_quality(turn, ROOM, &change));
            let there = world.people.contains_key(from) && world.people.contains_key(to);
            assert_eq!(set.is_ok(), from != to && there);
            if set.is_ok() {
                world.qualities.insert((*from, *to), *quality);
            }
        }
        Event::Rtcp(who, which, about) => {
            let lost = rtcp::nack(ssrc(*who, *which), ssrc(*about, *which), [1, 2]).unwrap();
            let packet = [lost, rtcp::pli(ssrc(*who, *which), ssrc(*about, *which))].concat();
            let sent = world.rtcp(*who, *which, &packet);
            let look = world.look();
            let legs = look.members.iter().flat_map(|one| &one.media);
            let known: BTreeSet<IpAddr> = legs.filter_map(|leg| Some(leg.latched?.addr)).collect();
            for (from, to, _) in sent {
                assert!(known.contains(&to.addr), "from {from} to {to}, who is nobody");
            }
        }
        Event::Report(who, which) => report(world, *who, *which),
        Event::Loss(..) => {}
        Event::Second => world.second(),
        Event::Restart => world.restart(),
        Event::Away(empty) => world.go_away(*empty),
        Event::Full(full) => world.fill(*full),
    }
}

fn run(limits: Limits, events: &[(Event, Option<usize>)]) {
    let mut world = World::new(limits);
    for (event, steps) in events {
        happen(&mut world, event);
        world.note();
        match steps {
            Some(steps) => {
                for _ in 0..*steps {
                    world.step();
                }
            }
            None => {
                world.bring();
                world.check();
            }
        }
        if let Event::Loss(who, whose) = event {
            world.bring();
            world.check();
            if world.look().summary.problem.is_none() {
                lose(&mut world, *who, *whose);
            }
        }
    }
    world.fill(false);
    world.now = world.now + RETRIED;
    world.act(|book, turn| book.tick(turn));
    world.bring();
    world.check();
    if limits == Limits::default() {
        assert_eq!(world.look().summary.problem, None, "there is room again");
    }
    for who in world.people.keys().copied().collect::<Vec<u8>>() {
        world.leave(who).unwrap();
        world.note();
    }
    world.act(|book, turn| book.end(turn, ROOM));
    world.people = BTreeMap::new();
    world.bring();
    world.rows.retain(|key, _| !matches!(key, Key::Prune(_)));
    assert!(world.rows.is_empty(), "rows are left: {:?}", world.rows);
    assert!(world.held.is_empty() && world.kept.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, in whichever order, and between any two of the writer's steps: everybody receives what membership, directions, qualities, codecs and
    /// capacity say, once, and nothing else; and whoever goes on receiving a stream misses nothing while rows change.
    #[test]
    fn everybody_receives_what_membership_says(limits in limits(), events in events()) {
        run(limits, &events);
    }
}
