//! A book with everything around it in memory: the data plane's tables, relay addresses, what is kept, and participants who send.

use crate::stun;
use shunt_admin_model::{Codec, Conference, Direction, Failure, Join, JoinMedium, Layers, Mixed, Participant, Quality};
use shunt_calls::Notice;
use shunt_conference::book::{Asked, Book, Decision, Kept, Next, Readings, Settings, Turn};
use shunt_conference::diff::Step;
use shunt_conference::frames;
use shunt_conference::ice::Credentials;
use shunt_conference::planner::Steps;
use shunt_conference::rewriting::Rewriting;
use shunt_conference::routes::NextHop;
use shunt_conference::rows::{Data, Key};
use shunt_conference::tables::{Limits, Offer};
use shunt_latch::{Facts, Policy, Time};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub const ROOM: &str = "room";
pub const MEDIA: [&str; 2] = ["audio", "video"];
pub const SECOND: Duration = Duration::from_secs(1);
/// Longer than the book waits before it tries again what found no room.
pub const RETRIED: Duration = Duration::from_secs(6);
/// Payload types of Opus that participants choose from.
pub const OPUS: [u8; 3] = [111, 109, 96];
const VIDEO: u8 = 96;
/// Temporal layers of L1T3.
const PATTERN: [u8; 4] = [0, 2, 1, 2];

/// A stream: where its packets come from and go to, and its SSRC.
pub type Flow = (FiveTuple, u32);

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

pub fn name(person: u8) -> String {
    format!("p{person}")
}

pub fn host(person: u8, moved: bool) -> IpAddr {
    Ipv4Addr::new(10, 0, u8::from(moved), person + 1).into()
}

/// Where a participant sends a medium from.
pub fn end(person: u8, which: usize, moved: bool) -> Endpoint {
    Endpoint::new(host(person, moved), 5000 + 2 * which as u16)
}

pub fn ssrc(person: u8, medium: usize) -> u32 {
    0x1000 * (u32::from(person) + 1) + medium as u32
}

pub fn credentials(person: u8) -> Credentials {
    Credentials::of([person; 32])
}

/// What a participant wants.
#[derive(Clone, Debug)]
pub struct Person {
    pub directions: BTreeMap<usize, Direction>,
    /// Its payload type of Opus.
    pub opus: u8,
    /// Where its checks say that media comes from; `None`: it has no ICE.
    pub checked: Option<BTreeMap<usize, Endpoint>>,
}

impl Person {
    pub fn new(person: u8, which: &[usize], ice: bool) -> Self {
        Self {
            directions: which.iter().map(|which| (*which, Direction::SendRecv)).collect(),
            opus: OPUS[usize::from(person % 2)],
            checked: ice.then(BTreeMap::new),
        }
    }

    fn hears(&self, which: usize) -> bool {
        let direction = self.directions.get(&which);
        direction.is_some_and(|direction| matches!(direction, Direction::SendRecv | Direction::RecvOnly))
    }

    /// What its signalling says.
    pub fn media(&self) -> Vec<JoinMedium> {
        let media = self.directions.iter();
        media.map(|(which, direction)| medium(*which, *direction, self.opus)).collect()
    }
}

pub fn medium(which: usize, direction: Direction, opus: u8) -> JoinMedium {
    let audio = Codec {
        payload_type: opus,
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

pub fn joining(participant: &str, media: Vec<JoinMedium>, signalled: Vec<IpAddr>) -> Join {
    Join {
        participant: participant.into(),
        media,
        signalled,
        ice: false,
        call: None,
        signalling: None,
        mixed: Mixed::No,
    }
}

fn at_relay(((flow, ssrc), to): (Flow, Endpoint)) -> ((Endpoint, u32), Endpoint) {
    ((flow.dst, ssrc), to)
}

/// A packet of VP8 in three temporal layers.
pub fn picture(ssrc: u32, payload_type: u8, sequence: u16) -> Vec<u8> {
    let layer = PATTERN[usize::from(sequence % 4)];
    let mut packet = vec![0x80, 0x80 | payload_type];
    packet.extend(sequence.to_be_bytes());
    packet.extend((u32::from(sequence) * 900).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0x90, 0xA0]);
    packet.extend((0x8000 | sequence & 0x7fff).to_be_bytes());
    packet.extend([layer << 6 | 0x20, 1, 2, 3]);
    packet
}

/// The book, and the agent, data plane and participants around it.
pub struct World {
    pub book: Book,
    pub now: Time,
    limits: Limits,
    pub rows: HashMap<Key, Data>,
    /// New copies are refused.
    pub full: bool,
    /// Steps that the writer is about to write.
    writing: Option<Steps>,
    pub held: BTreeSet<Endpoint>,
    pub sent: Vec<(Endpoint, Endpoint, Vec<u8>)>,
    pub kept: BTreeMap<String, String>,
    pub told: Vec<(&'static str, Option<String>)>,
    asked: Vec<Asked>,
    /// The next number of each stream.
    sequences: HashMap<u32, u16>,
    pub people: BTreeMap<u8, Person>,
    pub qualities: BTreeMap<(u8, u8), Quality>,
    /// Sender and receiver whose video is paused.
    pub paused: BTreeSet<(u8, u8)>,
    /// Who may get a packet of a stream at a relay address, wherever it comes from, and who must, while rows change.
    allowed: BTreeSet<((Endpoint, u32), Endpoint)>,
    steady: BTreeSet<(Flow, Endpoint)>,
}

impl World {
    pub fn new(limits: Limits) -> Self {
        let mut made = Self {
            book: Book::new(settings(), true),
            now: Time::from_nanos(1_000_000_000),
            limits,
            rows: HashMap::new(),
            full: false,
            writing: None,
            held: BTreeSet::new(),
            sent: Vec::new(),
            kept: BTreeMap::new(),
            told: Vec::new(),
            asked: Vec::new(),
            sequences: HashMap::new(),
            people: BTreeMap::new(),
            qualities: BTreeMap::new(),
            paused: BTreeSet::new(),
            allowed: BTreeSet::new(),
            steady: BTreeSet::new(),
        };
        made.act(|book, turn| book.set_data_plane(turn, None));
        made.bring();
        made.act(|book, turn| book.create(turn, ROOM)).unwrap();
        made
    }

    pub fn act<R>(&mut self, act: impl FnOnce(&mut Book, &mut Turn) -> R) -> R {
        let (result, decisions) = self.book.turn(self.now, 1, act);
        for decision in decisions {
            match decision {
                Decision::Store(kept) => drop(
                    self.kept
                        .insert(kept.conference.to_string(), serde_json::to_string(&*kept).unwrap()),
                ),
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

    // -- the writer and the data plane --------------------------------------------------------------

    /// The writer asks what is next, or writes what it has been told. Returns whether there is something to do.
    pub fn step(&mut self) -> bool {
        if let Some(steps) = self.writing.take() {
            let results = steps.iter().map(|step| self.write(step)).collect();
            self.act(|book, turn| book.written(turn, results, Some(&Readings::new())));
            return true;
        }
        match self.act(|book, turn| book.next_rows(turn)) {
            Next::Idle => return false,
            Next::Wait(time) => self.now = self.now + time,
            Next::Adopt => {
                let offer = Offer {
                    rewriting: Rewriting::SLr,
                    limits: self.limits,
                    registers: false,
                    routes: false,
                    payload_types: 4,
                };
                let rows = self.rows.clone().into_iter().collect();
                self.act(|book, turn| book.adopt(turn, offer, None, rows));
            }
            Next::Write { steps, .. } => self.writing = Some(steps),
        }
        true
    }

    /// Write until there is nothing to write.
    pub fn bring(&mut self) {
        self.note();
        for _ in 0..2000 {
            if !self.step() {
                return;
            }
        }
        panic!("there is always something to write");
    }

    /// Refuses what a data plane refuses: two rows of one key, changes of what is not there, and copies that it has no room for.
    fn write(&mut self, step: &Step<Key, Data>) -> Result<(), String> {
        match step {
            Step::Add(Key::Track(_) | Key::SequenceState(_), _) | Step::Drain => return Ok(()),
            Step::Add(Key::Copy(..), _) if self.full => return Err("no room".into()),
            Step::Add(key, data) => assert!(self.rows.insert(key.clone(), data.clone()).is_none(), "{key:?} is there"),
            Step::Modify(key, data) => {
                let before = self.rows.insert(key.clone(), data.clone());
                assert!(before.is_some() || matches!(key, Key::Prune(_)), "no {key:?}");
            }
            Step::Delete(key) => assert!(self.rows.remove(key).is_some(), "no {key:?}"),
        }
        self.check_under_way(step);
        Ok(())
    }

    /// The writer ends halfway.
    fn break_off(&mut self) -> bool {
        let Some(steps) = self.writing.take() else { return false };
        for step in steps.iter().take(steps.len() / 2) {
            // Whoever wrote it does not hear of it any more.
            let _ = self.write(step);
        }
        true
    }

    /// What the data plane holds is laid out anew beside what is there: without room for both, media has a gap.
    fn lay_out_anew(&mut self) {
        if self.limits != Limits::default() {
            self.steady.clear();
        }
    }

    /// The data plane takes no copies more, or takes them again. One that refuses a copy in the middle of a round is read again: media has a gap.
    pub fn fill(&mut self, full: bool) {
        self.full = full;
        self.steady.clear();
    }

    /// The agent dies, and the next one carries on with what was kept and what the data plane holds.
    pub fn restart(&mut self) {
        self.break_off();
        self.lay_out_anew();
        let kept: Vec<Kept> = self.kept.values().map(|text| serde_json::from_str(text).unwrap()).collect();
        self.book = Book::new(settings(), true);
        self.held.clear();
        self.asked.clear();
        self.act(|book, turn| book.restore(turn, kept, true));
        self.act(|book, turn| book.set_data_plane(turn, None));
    }

    /// The data plane is away, and comes back with its rows or without.
    pub fn go_away(&mut self, empty: bool) {
        let broken = self.break_off();
        self.act(|book, turn| book.set_data_plane(turn, Some("gone")));
        if broken {
            self.act(|book, turn| book.broken(turn, "gone"));
        }
        if empty {
            self.rows.clear();
            self.steady.clear();
        }
        while self.step() {}
        self.lay_out_anew();
        self.act(|book, turn| book.set_data_plane(turn, None));
    }

    // -- participants -------------------------------------------------------------------------------

    pub fn join(&mut self, person: u8, which: &[usize], ice: bool) -> Result<Participant, Failure> {
        let one = Person::new(person, which, ice);
        let mut join = joining(&name(person), one.media(), vec![host(person, false)]);
        join.ice = ice;
        let joined = self.act(|book, turn| book.join(turn, ROOM, &join, ice.then(|| credentials(person))));
        if joined.is_ok() {
            self.people.insert(person, one);
        }
        joined
    }

    pub fn leave(&mut self, person: u8) -> Result<(), Failure> {
        let keys = self.book.leaving(ROOM, &name(person))?;
        let read = Readings::new();
        self.act(|book, turn| book.leave(turn, ROOM, &name(person), "bye", &keys, Some(&read)))?;
        self.people.remove(&person);
        self.qualities.retain(|(from, to), _| *from != person && *to != person);
        Ok(())
    }

    pub fn look(&self) -> Conference {
        self.book.look(ROOM, None, self.now).unwrap()
    }

    fn leg(&self, person: u8, which: usize) -> Option<(Endpoint, Option<Endpoint>)> {
        let look = self.look();
        let one = look.members.into_iter().find(|one| one.participant.to_string() == name(person))?;
        let leg = one.media.into_iter().find(|one| one.medium == MEDIA[which])?;
        Some((leg.address, leg.latched))
    }

    pub fn relay(&self, person: u8, which: usize) -> Option<Endpoint> {
        self.leg(person, which).map(|(relay, _)| relay)
    }

    pub fn latched(&self, person: u8, which: usize) -> Option<Endpoint> {
        self.leg(person, which)?.1
    }

    fn next_number(&mut self, ssrc: u32) -> u16 {
        let sequence = self.sequences.entry(ssrc).or_default();
        *sequence = sequence.wrapping_add(1);
        *sequence
    }

    /// Packets to a participant's relay address that no row matches, until its source is latched.
    pub fn talk(&mut self, person: u8, which: usize, ssrc: u32, moved: bool) {
        let opus = self.people.get(&person).map_or(OPUS[0], |one| one.opus);
        self.talk_as(person, which, ssrc, moved, if which == 0 { opus } else { VIDEO });
    }

    pub fn talk_as(&mut self, person: u8, which: usize, ssrc: u32, moved: bool, payload_type: u8) {
        let Some(relay) = self.relay(person, which) else { return };
        for _ in 0..8 {
            let sequence = self.next_number(ssrc);
            let notice = Notice {
                key: FiveTuple::new(end(person, which, moved), relay),
                media: Some(shunt_rtp::Source { ssrc, sequence }),
                payload_type: Some(payload_type),
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

    /// A participant sends pictures; the agent gets copies where the data plane says so. Returns their numbers.
    pub fn film(&mut self, person: u8, count: usize, payload_type: u8) -> Vec<u16> {
        let ssrc = ssrc(person, 1);
        let Some((relay, Some(source))) = self.leg(person, 1) else {
            return Vec::new();
        };
        let flow = FiveTuple::new(source, relay);
        let hop = NextHop {
            port: 0,
            number: 0,
            src_mac: [2; 6],
            dst_mac: [4; 6],
            vlan: None,
        };
        let made = (0..count).map(|_| {
            let sequence = self.next_number(ssrc);
            self.now = self.now + Duration::from_millis(10);
            if self.is_copied(&(flow, ssrc)) {
                let frame = frames::build(&flow, &picture(ssrc, payload_type, sequence), &hop).unwrap();
                self.act(|book, turn| book.copied(turn, &frame));
            }
            sequence
        });
        made.collect()
    }

    pub fn is_copied(&self, (flow, ssrc): &Flow) -> bool {
        matches!(self.rows.get(&Key::Stream(*flow, *ssrc)), Some(Data::Stream(stream)) if stream.to_agent)
    }

    /// RTCP from where a participant's media comes from. Returns what is sent for it.
    pub fn rtcp(&mut self, person: u8, which: usize, packet: &[u8]) -> Vec<(Endpoint, Endpoint, Vec<u8>)> {
        let Some((relay, Some(source))) = self.leg(person, which) else {
            return Vec::new();
        };
        self.sent.clear();
        self.act(|book, turn| book.rtcp(turn, relay.port, source, packet));
        std::mem::take(&mut self.sent)
    }

    /// A connectivity check; whether it is answered.
    pub fn check_by_ice(&mut self, person: u8, which: usize, moved: bool, right: bool) -> bool {
        let Some(relay) = self.relay(person, which) else { return false };
        let packet = stun::check(&credentials(if right { person } else { person + 1 }));
        self.sent.clear();
        self.act(|book, turn| book.checked(turn, relay.port, end(person, which, moved), &packet));
        let sent = std::mem::take(&mut self.sent);
        assert!(
            sent.iter().all(|(from, to, _)| (*from, *to) == (relay, end(person, which, moved))),
            "{sent:?}"
        );
        sent.len() == 1
    }

    /// A second passes.
    pub fn second(&mut self) {
        self.now = self.now + SECOND;
        self.act(|book, turn| book.tick(turn));
        self.act(|book, turn| book.consider(turn, false));
    }

    // -- who receives what --------------------------------------------------------------------------

    /// To whom a packet of each stream goes, and with which payload type: from the tables alone.
    pub fn received(&self) -> BTreeMap<Flow, BTreeMap<Endpoint, u8>> {
        let streams = self.rows.keys().filter_map(|key| match key {
            Key::Stream(flow, ssrc) => Some((*flow, *ssrc)),
            _ => None,
        });
        streams.map(|flow| (flow, self.copies(&flow))).collect()
    }

    /// What a packet of a stream has for a payload type.
    fn payload_type(&self, (flow, _): &Flow) -> u8 {
        let IpAddr::V4(addr) = flow.src.addr else { return 0 };
        let person = self.people.get(&(addr.octets()[3] - 1));
        if flow.src.port == end(0, 0, false).port {
            person.map_or(OPUS[0], |one| one.opus)
        } else {
            VIDEO
        }
    }

    fn copies(&self, flow: &Flow) -> BTreeMap<Endpoint, u8> {
        let mut to = BTreeMap::new();
        let Some(Data::Stream(stream)) = self.rows.get(&Key::Stream(flow.0, flow.1)) else {
            return to;
        };
        let (tree, own) = (stream.tree, self.payload_type(flow));
        let members = match self.rows.get(&Key::Tree(tree.mgid)) {
            Some(Data::Tree(members)) => members.as_slice(),
            _ => &[],
        };
        for member in members.iter().filter(|member| member.xid != tree.l1_xid) {
            let Some(Data::Node(node)) = self.rows.get(&Key::Node(member.node)) else {
                panic!("a tree names a node that is not there")
            };
            if let Some(Data::Copy(copy)) = self.rows.get(&Key::Copy(tree.stream, node.rid)) {
                let pruned = matches!(self.rows.get(&Key::Prune(tree.l2_xid)), Some(Data::Prune(ports)) if !ports.is_empty());
                if pruned && copy.addresses.dst == flow.0.src {
                    continue;
                }
                let mapped = copy.payload_types.iter().find(|(from, _)| *from == own).map_or(own, |(_, to)| *to);
                let twice = to.insert(copy.addresses.dst, mapped);
                assert!(twice.is_none(), "{flow:?} goes twice to {}", copy.addresses.dst);
            }
        }
        to
    }

    fn relayed(&self, flow: &Flow) -> BTreeMap<Endpoint, u8> {
        match self.rows.get(&Key::Relay(flow.0)) {
            Some(Data::Relay(new)) => [(new.dst, self.payload_type(flow))].into(),
            _ => BTreeMap::new(),
        }
    }

    /// To whom each stream is to go: what membership, directions, qualities and codecs say of those whose source is known.
    pub fn wished(&self) -> BTreeMap<Flow, BTreeMap<Endpoint, u8>> {
        let look = self.look();
        let find = |person: u8| look.members.iter().find(|one| one.participant.to_string() == name(person)).unwrap();
        let mut wished = BTreeMap::new();
        for from in self.people.keys() {
            for (which, kind) in MEDIA.iter().enumerate() {
                let Some(leg) = find(*from).media.iter().find(|leg| leg.medium == *kind) else {
                    continue;
                };
                let Some(source) = leg.latched else { continue };
                for stream in &leg.streams {
                    let mut to = BTreeMap::new();
                    for (receiver, one) in self.people.iter().filter(|(receiver, _)| *receiver != from) {
                        let pair = (*from, *receiver);
                        let permitted = which == 0 || self.qualities.get(&pair) != Some(&Quality::Audio) && !self.paused.contains(&pair);
                        let there = find(*receiver).media.iter().find(|leg| leg.medium == *kind);
                        if let Some(at) = there.and_then(|leg| leg.latched)
                            && one.hears(which)
                            && permitted
                            && stream.conflicts_with.is_none()
                        {
                            to.insert(at, if which == 0 { one.opus } else { VIDEO });
                        }
                    }
                    wished.insert((FiveTuple::new(source, leg.address), stream.ssrc), to);
                }
            }
        }
        wished
    }

    /// Something has happened: while rows follow, who got a stream before and is to get it now loses nothing, and nobody else gets it.
    pub fn note(&mut self) {
        if self.book.look(ROOM, None, self.now).is_err() {
            return;
        }
        let pairs = |wished: BTreeMap<Flow, BTreeMap<Endpoint, u8>>| -> BTreeSet<(Flow, Endpoint)> {
            wished
                .into_iter()
                .flat_map(|(flow, to)| to.into_keys().map(move |to| (flow, to)))
                .collect()
        };
        let now = pairs(self.wished());
        self.steady.retain(|pair| now.contains(pair));
        self.allowed.extend(now.into_iter().map(at_relay));
    }

    fn check_under_way(&self, step: &Step<Key, Data>) {
        for flow in self.received().keys() {
            for to in self.copies(flow).keys() {
                assert!(
                    self.allowed.contains(&at_relay((*flow, *to))),
                    "{flow:?} goes to {to} after {step:?}"
                );
            }
        }
        for (flow, to) in &self.steady {
            let got = self.copies(flow).contains_key(to) || self.relayed(flow).contains_key(to);
            assert!(got, "{flow:?} does not go to {to} any more after {step:?}");
        }
    }

    /// Everything is written: who receives what is what membership says.
    pub fn check(&mut self) {
        let look = self.look();
        let names: BTreeSet<String> = look.members.iter().map(|one| one.participant.to_string()).collect();
        assert_eq!(names, self.people.keys().map(|person| name(*person)).collect());
        let legs = look.members.iter().flat_map(|one| &one.media);
        assert_eq!(
            legs.map(|leg| leg.address).collect::<BTreeSet<_>>(),
            self.held,
            "relay addresses that are held"
        );
        for (person, one) in &self.people {
            let member = look
                .members
                .iter()
                .find(|member| member.participant.to_string() == name(*person))
                .unwrap();
            for (which, direction) in &one.directions {
                let leg = member.media.iter().find(|leg| leg.medium == MEDIA[*which]).unwrap();
                assert_eq!(leg.direction, *direction, "{person} {}", MEDIA[*which]);
                if let Some(checked) = &one.checked {
                    assert_eq!(
                        leg.latched,
                        checked.get(which).copied(),
                        "{person}'s checks say where its media comes from"
                    );
                }
            }
        }
        if look.summary.problem.is_some() {
            // Without room a conference stays as it was: nobody gets what it was never to get, which each write has shown.
            return;
        }
        let wished = self.wished();
        for (flow, wish) in &wished {
            let (copied, relayed) = (self.copies(flow), self.relayed(flow));
            assert!(copied.is_empty() || relayed.is_empty(), "{flow:?} goes both ways");
            let got = if copied.is_empty() { relayed } else { copied };
            assert_eq!(&got, wish, "{flow:?}, {}", look.summary.design);
        }
        for (flow, got) in self.received() {
            assert!(
                got.is_empty() || wished.contains_key(&flow),
                "{flow:?} is nobody's and goes to {got:?}"
            );
        }
        let pairs = wished.into_iter().flat_map(|(flow, to)| to.into_keys().map(move |to| (flow, to)));
        self.steady = pairs.collect();
        self.allowed = self.steady.iter().copied().map(at_relay).collect();
        if self.full {
            self.steady.clear();
        }
    }
}
