//! The book as a whole: generated sequences of events, the data plane as a table in memory, and who receives what.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_admin_model::{
    Codec, Conference, ConferenceSummary, Direction, Failure, Join, JoinMedium, Layers, Mixed, Participant, ParticipantUpdate, Quality,
    QualityChange, TargetChange,
};
use shunt_calls::Notice;
use shunt_conference::book::{Asked, Book, Decision, Kept, Next, Readings, Settings, Turn};
use shunt_conference::diff::Step;
use shunt_conference::rewriting::Rewriting;
use shunt_conference::rows::{Counted, Data, Key};
use shunt_conference::tables::{Limits, Offer};
use shunt_latch::{Facts, Policy, Time};
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::rtcp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const ROOM: &str = "room";
const MEDIA: [&str; 2] = ["audio", "video"];
const SECOND: Duration = Duration::from_secs(1);
/// Payload types of Opus: some participants number it in one way, others in the other.
const OPUS: [u8; 2] = [111, 109];

fn address() -> IpAddr {
    Ipv4Addr::new(198, 18, 0, 1).into()
}

fn settings() -> Settings {
    Settings {
        address: address(),
        ports: (20_000, 20_099),
        policy: Policy::default(),
        mixers: Vec::new(),
        tiling: None,
        announcements: false,
        seed: 7,
    }
}

/// The book, with those who would carry its decisions out.
struct World {
    book: Book,
    now: Time,
    rows: HashMap<Key, Data>,
    /// New copies are refused.
    full: bool,
    held: BTreeSet<Endpoint>,
    sent: Vec<(Endpoint, Endpoint, Vec<u8>)>,
    kept: BTreeMap<String, String>,
    told: Vec<(&'static str, Option<String>)>,
    asked: Vec<Asked>,
    /// The next number of each stream.
    sequences: HashMap<u32, u16>,
}

fn name(person: u8) -> String {
    format!("p{person}")
}

fn host(person: u8, moved: bool) -> IpAddr {
    Ipv4Addr::new(10, 0, u8::from(moved), person + 1).into()
}

fn ssrc(person: u8, medium: usize) -> u32 {
    0x1000 * (u32::from(person) + 1) + medium as u32
}

fn medium(person: u8, which: usize, direction: Direction) -> JoinMedium {
    let audio = Codec {
        payload_type: OPUS[usize::from(person % 2)],
        encoding: "opus".into(),
        clock_rate: 48_000,
        channels: Some(2),
        fmtp: None,
    };
    JoinMedium {
        medium: MEDIA[which].into(),
        transport: "RTP/AVP".into(),
        direction,
        codecs: if which == 0 { vec![audio] } else { Vec::new() },
        layers: (which == 1).then(|| Layers {
            by: "vp8".into(),
            extension_id: None,
        }),
        rtcp_mux: Some(true),
        destination: None,
    }
}

impl World {
    fn new() -> Self {
        let mut made = Self {
            book: Book::new(settings(), true),
            now: Time::from_nanos(1_000_000_000),
            rows: HashMap::new(),
            full: false,
            held: BTreeSet::new(),
            sent: Vec::new(),
            kept: BTreeMap::new(),
            told: Vec::new(),
            asked: Vec::new(),
            sequences: HashMap::new(),
        };
        made.act(|book, turn| book.set_data_plane(turn, None));
        made.bring();
        made.act(|book, turn| book.create(turn, ROOM)).unwrap();
        made
    }

    fn act<R>(&mut self, act: impl FnOnce(&mut Book, &mut Turn) -> R) -> R {
        let (result, decisions) = self.book.turn(self.now, 1, act);
        for decision in decisions {
            match decision {
                Decision::Store(kept) => drop(self.kept.insert(ROOM.into(), serde_json::to_string(&*kept).unwrap())),
                Decision::Forget(name) => drop(self.kept.remove(&*name)),
                Decision::Hold(relay) => assert!(self.held.insert(relay), "{relay} is held already"),
                Decision::Release(relay) => assert!(self.held.remove(&relay), "{relay} is not held"),
                Decision::Send { from, to, data } => {
                    let rtp = Endpoint::new(from.addr, from.port & !1);
                    assert!(self.held.contains(&rtp), "{from} is nobody's");
                    self.sent.push((from, to, data));
                }
                Decision::Publish(facts) => self.told.push((facts.what, facts.participant.map(|name| name.to_string()))),
                Decision::Ask(asked) => self.asked.push(asked),
                Decision::Estimated(_) | Decision::Write | Decision::Mix | Decision::Count(_) | Decision::Log(..) => {}
            }
        }
        result
    }

    /// Write until there is nothing to write.
    fn bring(&mut self) {
        for _ in 0..1000 {
            match self.act(|book, turn| book.next_rows(turn)) {
                Next::Idle => return,
                Next::Wait(time) => self.now = self.now + time,
                Next::Adopt => {
                    let offer = Offer {
                        rewriting: Rewriting::SLr,
                        limits: Limits::default(),
                        registers: false,
                        routes: false,
                        payload_types: 4,
                    };
                    let rows = self.rows.clone().into_iter().collect();
                    self.act(|book, turn| book.adopt(turn, offer, None, rows));
                }
                Next::Write { steps, .. } => {
                    let results = steps.iter().map(|step| self.write(step)).collect();
                    self.act(|book, turn| book.written(turn, results, Some(&Readings::new())));
                }
            }
        }
        panic!("there is always something to write");
    }

    /// Refuses what a data plane refuses: two rows of one key, changes of what is not there, and copies that it has no room for.
    fn write(&mut self, step: &Step<Key, Data>) -> Result<(), String> {
        match step {
            Step::Add(Key::Track(_) | Key::SequenceState(_), _) | Step::Drain => {}
            Step::Add(Key::Copy(..), _) if self.full => return Err("no room".into()),
            Step::Add(key, data) => assert!(self.rows.insert(key.clone(), data.clone()).is_none(), "{key:?} is there"),
            Step::Modify(key, data) => {
                let before = self.rows.insert(key.clone(), data.clone());
                assert!(before.is_some() || matches!(key, Key::Prune(_)), "no {key:?}");
            }
            Step::Delete(key) => assert!(self.rows.remove(key).is_some(), "no {key:?}"),
        }
        Ok(())
    }

    fn join(&mut self, person: u8, which: &[usize]) -> Result<Participant, Failure> {
        let join = Join {
            participant: name(person).as_str().into(),
            media: which.iter().map(|which| medium(person, *which, Direction::SendRecv)).collect(),
            signalled: vec![host(person, false)],
            ice: false,
            call: None,
            signalling: None,
            mixed: Mixed::No,
        };
        self.act(|book, turn| book.join(turn, ROOM, &join, None))
    }

    fn look(&self) -> Conference {
        self.book.look(ROOM, None, self.now).unwrap()
    }

    fn relay(&self, person: u8, which: usize) -> Option<Endpoint> {
        let look = self.look();
        let one = look.members.into_iter().find(|one| one.participant.to_string() == name(person))?;
        one.media.into_iter().find(|one| one.medium == MEDIA[which]).map(|one| one.address)
    }

    /// Packets to a participant's relay address that no row matches, until its source is latched.
    fn talk(&mut self, person: u8, which: usize, ssrc: u32, moved: bool) {
        let Some(relay) = self.relay(person, which) else { return };
        let source = Endpoint::new(host(person, moved), 5000 + 2 * which as u16);
        for _ in 0..8 {
            let sequence = self.sequences.entry(ssrc).or_default();
            *sequence = sequence.wrapping_add(1);
            let notice = Notice {
                key: FiveTuple::new(source, relay),
                media: Some(shunt_rtp::Source { ssrc, sequence: *sequence }),
                payload_type: Some(if which == 0 { OPUS[usize::from(person % 2)] } else { 96 }),
            };
            self.now = self.now + Duration::from_millis(100);
            self.act(|book, turn| book.noticed(turn, &notice));
            for asked in std::mem::take(&mut self.asked) {
                // Its old source has been silent all the time.
                let facts = Facts {
                    last_packet: Time::from_nanos(0),
                    sequence: None,
                };
                self.act(|book, turn| book.answered(turn, &asked, Some(facts)));
            }
        }
    }

    /// To whom a packet of each stream goes: from the tables alone. With the payload type that it has there, for packets of `opus`.
    fn received(&self) -> BTreeMap<(Endpoint, u32), BTreeMap<Endpoint, u8>> {
        let mut found = BTreeMap::new();
        for (key, data) in &self.rows {
            let (Key::Stream(flow, ssrc), Data::Stream(stream)) = (key, data) else {
                continue;
            };
            let tree = stream.tree;
            let members = match self.rows.get(&Key::Tree(tree.mgid)) {
                Some(Data::Tree(members)) => members.as_slice(),
                _ => &[],
            };
            let opus = OPUS[usize::from(*ssrc >> 12 & 1 == 0)];
            let mut to = BTreeMap::new();
            for member in members.iter().filter(|member| member.xid != tree.l1_xid) {
                let Some(Data::Node(node)) = self.rows.get(&Key::Node(member.node)) else {
                    panic!("a tree names a node that is not there")
                };
                if let Some(Data::Copy(copy)) = self.rows.get(&Key::Copy(tree.stream, node.rid)) {
                    let pruned = matches!(self.rows.get(&Key::Prune(tree.l2_xid)), Some(Data::Prune(ports)) if !ports.is_empty());
                    if pruned && copy.addresses.dst == flow.src {
                        continue;
                    }
                    let mapped = copy
                        .payload_types
                        .iter()
                        .find(|(from, _)| *from == opus)
                        .map_or(opus, |(_, to)| *to);
                    let twice = to.insert(copy.addresses.dst, mapped);
                    assert!(twice.is_none(), "{key:?} goes twice to {}", copy.addresses.dst);
                }
            }
            found.insert((flow.src, *ssrc), to);
        }
        found
    }

    /// What the API says has to be what the tables do.
    fn check(&self, people: &BTreeMap<u8, Person>, qualities: &BTreeMap<(u8, u8), Quality>) {
        let look = self.look();
        assert_eq!(look.summary.problem, None);
        let names: BTreeSet<String> = look.members.iter().map(|one| one.participant.to_string()).collect();
        assert_eq!(names, people.keys().map(|person| name(*person)).collect());
        let relays: BTreeSet<Endpoint> = look
            .members
            .iter()
            .flat_map(|one| one.media.iter().map(|one| one.address))
            .collect();
        assert_eq!(relays, self.held, "relay addresses that are held");
        let relayed: BTreeMap<FiveTuple, FiveTuple> = self
            .rows
            .iter()
            .filter_map(|(key, data)| match (key, data) {
                (Key::Relay(flow), Data::Relay(new)) => Some((*flow, *new)),
                _ => None,
            })
            .collect();
        let copied = self.received();
        let find = |person: u8| look.members.iter().find(|one| one.participant.to_string() == name(person)).unwrap();
        let here = people.keys().filter(|person| find(**person).present).count();
        for (from, sender) in people {
            for (which, kind) in MEDIA.iter().enumerate() {
                let Some(leg) = find(*from).media.iter().find(|leg| leg.medium == *kind) else {
                    continue;
                };
                assert_eq!(Some(&leg.direction), sender.directions.get(&which), "{from} {kind}");
                let Some(source) = leg.latched else { continue };
                for stream in &leg.streams {
                    let mut wanted = BTreeMap::new();
                    for (to, receiver) in people.iter().filter(|(to, _)| *to != from) {
                        let hears = receiver.directions.get(&which);
                        let hears = hears.is_some_and(|direction| matches!(direction, Direction::SendRecv | Direction::RecvOnly));
                        let permitted = which == 0 || qualities.get(&(*from, *to)) != Some(&Quality::Audio);
                        let to_leg = find(*to).media.iter().find(|leg| leg.medium == *kind);
                        if let Some(at) = to_leg.and_then(|leg| leg.latched)
                            && hears
                            && permitted
                            && stream.conflicts_with.is_none()
                        {
                            wanted.insert(at, OPUS[usize::from(*to % 2)]);
                        }
                    }
                    let made = copied.get(&(source, stream.ssrc)).cloned().unwrap_or_default();
                    let by_relay = relayed.get(&FiveTuple::new(source, leg.address));
                    let got: BTreeSet<Endpoint> = made.keys().copied().chain(by_relay.map(|new| new.dst)).collect();
                    let wish: BTreeSet<Endpoint> = wanted.keys().copied().collect();
                    assert_eq!(
                        got, wish,
                        "{from}'s {kind} {:x}, {here} are there, {}",
                        stream.ssrc, look.summary.design
                    );
                    assert!(made.is_empty() || by_relay.is_none(), "{from}'s {kind} goes both ways");
                    if which == 0 && stream.ssrc == ssrc(*from, 0) {
                        assert!(made.is_empty() || made == wanted, "payload types of {from}'s audio");
                    }
                }
            }
        }
    }

    /// The agent dies, and the next one carries on with what was kept and what the data plane holds.
    fn restart(&mut self) {
        let kept: Vec<Kept> = self.kept.values().map(|text| serde_json::from_str(text).unwrap()).collect();
        self.book = Book::new(settings(), true);
        self.held.clear();
        self.asked.clear();
        self.act(|book, turn| book.restore(turn, kept, true));
        self.act(|book, turn| book.set_data_plane(turn, None));
        self.bring();
    }
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
struct Person {
    directions: BTreeMap<usize, Direction>,
}

#[derive(Clone, Debug)]
enum Event {
    Join(u8, bool),
    Leave(u8),
    Turn(u8, usize, Direction),
    Talk(u8, usize),
    /// With the SSRC of somebody else.
    Mimic(u8, u8),
    Move(u8, usize),
    Quality(u8, u8, Quality),
    Rtcp(u8, usize, u8),
    Second,
    Restart,
    /// The data plane is away, and comes back with its rows or without.
    Away(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let person = 0..5_u8;
    let direction = prop::sample::select(vec![
        Direction::SendRecv,
        Direction::SendOnly,
        Direction::RecvOnly,
        Direction::Inactive,
    ]);
    let quality = prop::sample::select(vec![Quality::Audio, Quality::Screen]);
    let event = prop_oneof![
        5 => (person.clone(), any::<bool>()).prop_map(|(who, video)| Event::Join(who, video)),
        2 => person.clone().prop_map(Event::Leave),
        3 => (person.clone(), 0..2_usize, direction).prop_map(|(who, which, direction)| Event::Turn(who, which, direction)),
        8 => (person.clone(), 0..2_usize).prop_map(|(who, which)| Event::Talk(who, which)),
        1 => (person.clone(), person.clone()).prop_map(|(who, whose)| Event::Mimic(who, whose)),
        1 => (person.clone(), 0..2_usize).prop_map(|(who, which)| Event::Move(who, which)),
        2 => (person.clone(), person.clone(), quality).prop_map(|(from, to, quality)| Event::Quality(from, to, quality)),
        3 => (person.clone(), 0..2_usize, person).prop_map(|(who, which, about)| Event::Rtcp(who, which, about)),
        2 => Just(Event::Second),
        1 => Just(Event::Restart),
        1 => any::<bool>().prop_map(Event::Away),
    ];
    prop::collection::vec(event, 1..40)
}

fn run(events: &[Event]) {
    let mut world = World::new();
    let mut people: BTreeMap<u8, Person> = BTreeMap::new();
    let mut qualities: BTreeMap<(u8, u8), Quality> = BTreeMap::new();
    for event in events {
        match event {
            Event::Join(who, video) => {
                let which: &[usize] = if *video { &[0, 1] } else { &[0] };
                let joined = world.join(*who, which);
                assert_eq!(joined.is_ok(), !people.contains_key(who), "{joined:?}");
                if joined.is_ok() {
                    let directions = which.iter().map(|which| (*which, Direction::SendRecv)).collect();
                    people.insert(*who, Person { directions });
                }
            }
            Event::Leave(who) => {
                let keys = world.book.leaving(ROOM, &name(*who));
                assert_eq!(keys.is_ok(), people.remove(who).is_some());
                if let Ok(keys) = keys {
                    let read = Readings::new();
                    world
                        .act(|book, turn| book.leave(turn, ROOM, &name(*who), "bye", &keys, Some(&read)))
                        .unwrap();
                    qualities.retain(|(from, to), _| from != who && to != who);
                }
            }
            Event::Turn(who, which, direction) => {
                let Some(person) = people.get_mut(who).filter(|person| person.directions.contains_key(which)) else {
                    continue;
                };
                person.directions.insert(*which, *direction);
                let update = ParticipantUpdate {
                    media: Some(
                        person
                            .directions
                            .iter()
                            .map(|(which, direction)| medium(*who, *which, *direction))
                            .collect(),
                    ),
                    ..ParticipantUpdate::default()
                };
                world.act(|book, turn| book.update(turn, ROOM, &name(*who), &update, None)).unwrap();
            }
            Event::Talk(who, which) => world.talk(*who, *which, ssrc(*who, *which), false),
            Event::Mimic(who, whose) => world.talk(*who, 0, ssrc(*whose, 0), false),
            Event::Move(who, which) => world.talk(*who, *which, ssrc(*who, *which), true),
            Event::Quality(from, to, quality) => {
                let change = QualityChange {
                    sender: name(*from).as_str().into(),
                    receiver: name(*to).as_str().into(),
                    quality: *quality,
                };
                let set = world.act(|book, turn| book.set_quality(turn, ROOM, &change));
                assert_eq!(set.is_ok(), from != to && people.contains_key(from) && people.contains_key(to));
                if set.is_ok() {
                    qualities.insert((*from, *to), *quality);
                }
            }
            Event::Rtcp(who, which, about) => {
                let source = Endpoint::new(host(*who, false), 5000 + 2 * *which as u16);
                if let Some(relay) = world.relay(*who, *which) {
                    let lost = rtcp::nack(ssrc(*who, *which), ssrc(*about, *which), [1, 2]).unwrap();
                    let packet = [lost, rtcp::pli(ssrc(*who, *which), ssrc(*about, *which))].concat();
                    world.act(|book, turn| book.rtcp(turn, relay.port, source, &packet));
                }
            }
            Event::Second => {
                world.now = world.now + SECOND;
                world.act(|book, turn| book.tick(turn));
                world.act(|book, turn| book.consider(turn, false));
            }
            Event::Restart => world.restart(),
            Event::Away(empty) => {
                world.act(|book, turn| book.set_data_plane(turn, Some("gone")));
                if *empty {
                    world.rows.clear();
                }
                world.bring();
                world.act(|book, turn| book.set_data_plane(turn, None));
            }
        }
        world.bring();
        world.check(&people, &qualities);
        // What is sent goes to the address of somebody who takes part.
        let look = world.look();
        let known: BTreeSet<IpAddr> = look
            .members
            .iter()
            .flat_map(|one| one.media.iter().filter_map(|leg| Some(leg.latched?.addr)))
            .collect();
        for (from, to, _) in world.sent.drain(..) {
            assert!(known.contains(&to.addr), "from {from} to {to}, who is nobody");
        }
    }
    for who in people.keys() {
        let keys = world.book.leaving(ROOM, &name(*who)).unwrap();
        world
            .act(|book, turn| book.leave(turn, ROOM, &name(*who), "bye", &keys, None))
            .unwrap();
    }
    world.act(|book, turn| book.end(turn, ROOM));
    world.bring();
    world.rows.retain(|key, _| !matches!(key, Key::Prune(_)));
    assert!(world.rows.is_empty(), "rows are left: {:?}", world.rows);
    assert!(world.held.is_empty() && world.kept.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, and in whichever order: everybody receives what membership, directions, qualities and codecs say, once, and nothing else.
    #[test]
    fn everybody_receives_what_membership_says(events in events()) {
        run(&events);
    }
}

fn talking(count: u8) -> (World, BTreeMap<u8, Person>) {
    let (mut world, mut people) = (World::new(), BTreeMap::new());
    for who in 0..count {
        world.join(who, &[0, 1]).unwrap();
        let directions = [(0, Direction::SendRecv), (1, Direction::SendRecv)].into();
        people.insert(who, Person { directions });
        for which in 0..2 {
            world.talk(who, which, ssrc(who, which), false);
        }
        world.bring();
    }
    (world, people)
}

#[test]
fn who_finds_no_room_in_the_data_plane_is_told_of_and_tried_again() {
    let (mut world, mut people) = talking(3);
    world.check(&people, &BTreeMap::new());
    let before = world.received();
    let all: Vec<usize> = before.values().map(BTreeMap::len).collect();
    assert_eq!(all, [2; 6], "two streams of each of three go to the two others");
    world.full = true;
    world.join(3, &[0, 1]).unwrap();
    people.insert(
        3,
        Person {
            directions: [(0, Direction::SendRecv), (1, Direction::SendRecv)].into(),
        },
    );
    world.talk(3, 0, ssrc(3, 0), false);
    world.bring();
    assert!(world.look().summary.problem.unwrap().contains("no room"));
    assert!(world.told.iter().any(|(what, _)| *what == "no-room"));
    assert_eq!(world.received(), before, "the others go on as before");
    world.full = false;
    world.now = world.now + 6 * SECOND;
    world.act(|book, turn| book.tick(turn));
    world.bring();
    world.check(&people, &BTreeMap::new());
}

#[test]
fn an_update_that_cannot_be_changes_nothing() {
    let (mut world, people) = talking(3);
    let before = world.received();
    let mut media = vec![medium(0, 0, Direction::Inactive), medium(0, 1, Direction::SendRecv)];
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
    world.check(&people, &BTreeMap::new());
}

#[test]
fn decisions_of_a_policy_are_taken_over_all_or_none() {
    let (mut world, _) = talking(3);
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
    let mut world = World::new();
    let taken: Result<ConferenceSummary, Failure> = world.act(|book, turn| book.create(turn, ROOM));
    assert!(taken.unwrap_err().message.contains("already"));
    let join = |media: Vec<JoinMedium>| Join {
        participant: "ann".into(),
        media,
        signalled: Vec::new(),
        ice: false,
        call: None,
        signalling: None,
        mixed: Mixed::No,
    };
    let with = |change: &dyn Fn(&mut JoinMedium)| {
        let mut made = medium(0, 1, Direction::SendRecv);
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
        match world.join(who, &[0]) {
            Ok(_) => joined.push(who),
            Err(failure) => {
                assert!(failure.message.contains("all ports"), "{failure}");
                break;
            }
        }
    }
    assert_eq!((joined.len(), world.held.len()), (50, 50));
    let keys = world.book.leaving(ROOM, "p7").unwrap();
    world.act(|book, turn| book.leave(turn, ROOM, "p7", "bye", &keys, None)).unwrap();
    world.join(60, &[0]).unwrap();
}

#[test]
fn payload_types_that_cannot_be_rewritten_are_refused_by_name() {
    let mut world = World::new();
    let codec = |payload_type: u8, encoding: &str, fmtp: Option<&str>| Codec {
        payload_type,
        encoding: encoding.into(),
        clock_rate: 48_000,
        channels: Some(2),
        fmtp: fmtp.map(Into::into),
    };
    let mut join = |who: &str, transport: &str, codecs: Vec<Codec>| {
        let mut audio = medium(0, 0, Direction::SendRecv);
        (audio.codecs, audio.transport) = (codecs, transport.into());
        let join = Join {
            participant: who.into(),
            media: vec![audio],
            signalled: Vec::new(),
            ice: false,
            call: None,
            signalling: None,
            mixed: Mixed::No,
        };
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
    let (mut world, people) = talking(3);
    let quality = QualityChange {
        sender: "p0".into(),
        receiver: "p1".into(),
        quality: Quality::Audio,
    };
    world.act(|book, turn| book.set_quality(turn, ROOM, &quality)).unwrap();
    world.bring();
    let show = |world: &World| {
        let look = world.look();
        let members: Vec<String> = look
            .members
            .iter()
            .map(|one| {
                format!(
                    "{} {:?} {:?}",
                    one.participant,
                    one.mixed,
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
    assert_eq!(show(&world), before);
    world.check(&people, &[((0, 1), Quality::Audio)].into());
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
            let (relay, source) = (world.relay(who, 1).unwrap(), Endpoint::new(host(who, false), 5002));
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
    let (mut world, _) = talking(3);
    let mut seconds = 0;
    for people in [3, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9] {
        if world.relay(people - 1, 1).is_none() {
            world.join(people - 1, &[0, 1]).unwrap();
            for which in 0..2 {
                world.talk(people - 1, which, ssrc(people - 1, which), false);
            }
            world.bring();
        }
        // As a browser's: 1.5 times what arrives.
        watch(&mut world, &mut seconds, people, &|_| CAMERA * 3 / 2 * u64::from(people - 1));
    }
    assert_eq!(targets(&world), 0, "somebody gets less");
}

#[test]
fn an_estimate_takes_layers_away_and_gives_them_back() {
    let (mut world, _) = talking(3);
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
    for _ in 0..40 {
        watch(&mut world, &mut seconds, 3, &|_| 4 * CAMERA);
    }
    assert_eq!(level(&world), [Some(2); 2]);
}
