//! Calls begin, move, hold and end while the data plane fails at random: what the book has of a stream is what the table has, and once all
//! is quiet the table is what is planned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::end;
use proptest::prelude::*;
use shunt_calls::*;
use shunt_latch::Policy;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::Source;
use shunt_rtpproxy::Command;
use shunt_rtpproxy::capability::KeepAlive;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

const CALLS: u16 = 4;

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    Full,
    Rejected,
    /// The data plane does not answer any more. The write has been done, or has not.
    Lost {
        done: bool,
    },
}

#[derive(Clone, Debug)]
enum Step {
    Offer {
        call: u16,
        move_to: u16,
    },
    Answer {
        call: u16,
    },
    Hold {
        call: u16,
    },
    Delete {
        call: u16,
    },
    Packets {
        call: u16,
    },
    /// The data plane comes to the writes that wait, in their order.
    Writes(Vec<Fate>),
    /// It answers again, with its table or without.
    Up {
        keep: bool,
    },
    Audit,
    Pass {
        milliseconds: u16,
    },
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Done),
        1 => Just(Fate::Full),
        1 => Just(Fate::Rejected),
        2 => any::<bool>().prop_map(|done| Fate::Lost { done }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..CALLS, 0..3_u16).prop_map(|(call, move_to)| Step::Offer { call, move_to }),
        3 => (0..CALLS).prop_map(|call| Step::Answer { call }),
        1 => (0..CALLS).prop_map(|call| Step::Hold { call }),
        1 => (0..CALLS).prop_map(|call| Step::Delete { call }),
        8 => (0..CALLS).prop_map(|call| Step::Packets { call }),
        8 => prop::collection::vec(fate(), 1..6).prop_map(Step::Writes),
        2 => prop::bool::weighted(0.8).prop_map(|keep| Step::Up { keep }),
        1 => Just(Step::Audit),
        3 => (0..4_000_u16).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ]
}

struct World {
    book: Book,
    relay: RelayId,
    now: Time,
    sequence: u16,
    table: BTreeMap<FiveTuple, RelayEntry>,
    waiting: VecDeque<Write>,
    up: bool,
    /// The data plane has lost entries of which no comparison has told the book yet.
    lossy: bool,
    confirmed: usize,
}

impl World {
    fn new() -> Self {
        let mut book = Book::new(Settings::default(), Policy::default());
        let relay = book.add_relay(Relay {
            name: "r1".into(),
            addresses: vec!["10.9.0.1".parse().unwrap()],
            ttl: Duration::from_secs(600),
            advertised: Vec::new(),
            setup_ttl: Duration::from_secs(600),
            symmetric_bridging: false,
            verifies_sources: false,
            keepalive: KeepAlive::TtlSubcommand,
            kind: shunt_calls::RelayKind::Rtpproxy,
            may_query: true,
        });
        let mut world = Self {
            book,
            relay,
            now: Time::from(Duration::from_secs(1000)),
            sequence: 0,
            table: BTreeMap::new(),
            waiting: VecDeque::new(),
            up: false,
            lossy: false,
            confirmed: 0,
        };
        world.come_up(true);
        world
    }

    fn carry_out(&mut self, decisions: Vec<Decision>) {
        let mut todo = VecDeque::from(decisions);
        while let Some(decision) = todo.pop_front() {
            match decision {
                Decision::Write(write) if self.up => self.waiting.push_back(write),
                Decision::Write(write) => todo.extend(self.book.written(self.now, write.id, Outcome::Unavailable, None, None)),
                Decision::ReadIdle(keys) => {
                    let read: Vec<Idle> = keys
                        .into_iter()
                        .map(|key| Idle {
                            key,
                            idle: Some(Duration::ZERO),
                            sequence: None,
                        })
                        .collect();
                    todo.extend(self.book.idle_times(self.now, &read));
                }
                Decision::AskRelay {
                    line, purpose, command, ..
                } if matches!(purpose, Purpose::Check | Purpose::KeepAlive) => {
                    todo.extend(self.book.relay_replied(self.now, line, purpose, &command, Some(b"3600 7 7 14 0")));
                }
                _ => {}
            }
        }
    }

    fn say(&mut self, text: &str, reply: &str) {
        let command = Command::parse(text.as_bytes()).unwrap();
        let (step, _, decisions) = self.book.command(self.now, &command);
        self.carry_out(decisions);
        if let shunt_calls::Step::Pass { .. } = step {
            let decisions = self
                .book
                .replied(self.now, None, self.relay, &command, Some(reply.as_bytes()))
                .unwrap();
            self.carry_out(decisions);
        }
    }

    fn do_write(&mut self, operation: Operation) {
        match operation {
            Operation::Insert(entry) | Operation::Modify(entry) => {
                self.table.insert(entry.key(), entry);
                let at_port = self.table.keys().filter(|key| key.dst == entry.port()).count();
                assert_eq!(at_port, 1, "two entries at {}", entry.port());
            }
            Operation::Delete(key) => {
                self.table.remove(&key);
            }
        }
    }

    fn next_write(&mut self, fate: Fate) {
        let Some(write) = self.waiting.pop_front() else { return };
        let is_delete = matches!(write.operation, Operation::Delete(_));
        let outcome = match fate {
            Fate::Full if !is_delete => Outcome::TableFull,
            Fate::Rejected if !is_delete => Outcome::Rejected,
            Fate::Lost { done } => {
                if done {
                    self.do_write(write.operation);
                }
                self.go_down(write);
                return;
            }
            _ => {
                self.do_write(write.operation);
                Outcome::Done
            }
        };
        let decisions = self.book.written(self.now, write.id, outcome, None, None);
        self.carry_out(decisions);
    }

    /// Without an answer to one write the session ends, and with it all that wait.
    fn go_down(&mut self, first: Write) {
        self.up = false;
        let ended: Vec<Write> = std::iter::once(first).chain(self.waiting.drain(..)).collect();
        for write in ended {
            let decisions = self.book.written(self.now, write.id, Outcome::Unavailable, None, None);
            self.carry_out(decisions);
        }
        let decisions = self.book.set_data_plane(false);
        self.carry_out(decisions);
        self.look_at_all();
    }

    fn come_up(&mut self, keep: bool) {
        if self.up {
            return;
        }
        if !keep {
            self.lossy |= !self.table.is_empty();
            self.table.clear();
        }
        self.up = true;
        let decisions = self.book.set_data_plane(true);
        self.carry_out(decisions);
        self.look_at_all();
        self.audit();
    }

    fn look_at_all(&mut self) {
        let lines = self.book.line_ids();
        let decisions = self.book.look_at(self.now, &lines);
        self.carry_out(decisions);
    }

    fn audit(&mut self) {
        if !self.up {
            return;
        }
        let present = self.table.values().copied().collect();
        let changed = self.waiting.iter().map(|write| port_of(&write.operation)).collect();
        let mut comparison = self.book.begin_compare(changed).with_entries(present);
        loop {
            let (more, decisions) = self.book.go_on_comparing(self.now, &mut comparison, 3);
            self.carry_out(decisions);
            if !more {
                break;
            }
        }
        self.lossy = false;
    }

    /// Each party that has a port and is not on hold sends from where signalling says.
    fn packets(&mut self, call: u16) {
        let name = format!("c{call}");
        let legs: Vec<(Endpoint, Endpoint)> = self
            .book
            .lines_of_call(name.as_bytes())
            .flat_map(|line| Side::BOTH.map(|side| (line.leg(side).signalled, line.leg(side).relay)))
            .filter_map(|(signalled, relay)| Some((signalled.filter(|end| !end.addr.is_unspecified())?, relay?)))
            .collect();
        for (source, port) in legs {
            self.sequence = self.sequence.wrapping_add(1);
            let notice = Notice {
                key: FiveTuple::new(source, port),
                media: Some(Source {
                    ssrc: u32::from(source.port),
                    sequence: self.sequence,
                }),
                payload_type: Some(0),
            };
            if !self.table.contains_key(&notice.key) {
                let decisions = self.book.noticed(self.now, &notice);
                self.carry_out(decisions);
            }
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now = self.now + Duration::from_millis(milliseconds);
        let decisions = self.book.tick(self.now, usize::MAX);
        self.carry_out(decisions);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Offer { call, move_to } => {
                let port = 6000 + 2 * move_to;
                let text = format!("Uc0 c{call} 10.1.0.{} {port} a;1", call + 1);
                self.say(&text, &format!("{} 10.9.0.1", 36_000 + 10 * call));
            }
            Step::Answer { call } => {
                let text = format!("Lc0 c{call} 10.2.0.{} 7000 a;1 b;1", call + 1);
                self.say(&text, &format!("{} 10.9.0.1", 36_002 + 10 * call));
            }
            Step::Hold { call } => {
                let text = format!("Uc0 c{call} 0.0.0.0 6000 a;1 b;1");
                self.say(&text, &format!("{} 10.9.0.1", 36_000 + 10 * call));
            }
            Step::Delete { call } => self.say(&format!("D c{call} a b"), "0"),
            Step::Packets { call } => self.packets(call),
            Step::Writes(fates) => fates.into_iter().for_each(|fate| self.next_write(fate)),
            Step::Up { keep } => self.come_up(keep),
            Step::Audit => self.audit(),
            Step::Pass { milliseconds } => self.pass(u64::from(milliseconds)),
        }
    }

    /// No stream at rest is taken to be in the data plane when it is not, or goes elsewhere there.
    fn check(&mut self) {
        if self.lossy {
            return;
        }
        let waiting: HashSet<Endpoint> = self.waiting.iter().map(|write| port_of(&write.operation)).collect();
        let planned: HashMap<StreamId, RelayEntry> = self.book.planned().collect();
        for line in self.book.lines() {
            for stream in line.streams().filter(|stream| stream.state == State::Offloaded) {
                let entry = planned[&stream.id];
                if !waiting.contains(&entry.port()) {
                    assert_eq!(self.table.get(&entry.key()), Some(&entry), "{:?}", stream.id);
                    self.confirmed += 1;
                }
            }
        }
    }

    /// Nothing fails any more.
    fn calm_down(&mut self) {
        for _ in 0..40 {
            self.come_up(true);
            while !self.waiting.is_empty() {
                self.next_write(Fate::Done);
            }
            (0..CALLS).for_each(|call| self.packets(call));
            self.pass(1_000);
        }
        self.audit();
        while !self.waiting.is_empty() {
            self.next_write(Fate::Done);
        }
    }
}

fn port_of(operation: &Operation) -> Endpoint {
    match operation {
        Operation::Insert(entry) | Operation::Modify(entry) => entry.port(),
        Operation::Delete(key) => key.dst,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn belief_and_table_agree_whatever_fails(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
            world.check();
        }
        world.calm_down();
        let planned: BTreeMap<FiveTuple, RelayEntry> = world.book.planned().map(|(_, entry)| (entry.key(), entry)).collect();
        prop_assert_eq!(&world.table, &planned);
        prop_assert_eq!(world.book.orphans().count(), 0);
        // Two parties who send to a call that is not on hold have their entries in the end.
        for line in world.book.lines() {
            let legs = Side::BOTH.map(|side| line.leg(side));
            if legs.iter().all(|leg| leg.signalled.is_some_and(|end| !end.addr.is_unspecified()) && leg.relay.is_some()) {
                for side in Side::BOTH {
                    prop_assert_eq!(line.stream(side, Component::Rtp).state, State::Offloaded, "{:?}", line.stream(side, Component::Rtp));
                }
            }
        }
    }
}

/// What the property says nothing about: that there is something to fail.
#[test]
fn streams_are_offloaded_and_lost() {
    let mut world = World::new();
    world.run(Step::Offer { call: 0, move_to: 0 });
    world.run(Step::Answer { call: 0 });
    world.run(Step::Packets { call: 0 });
    assert_eq!(world.waiting.len(), 2);
    world.run(Step::Writes(vec![Fate::Done, Fate::Lost { done: true }]));
    world.check();
    assert_eq!((world.confirmed, world.table.len(), world.up), (1, 2, false));
    world.calm_down();
    world.check();
    assert_eq!((world.confirmed, world.table.len()), (3, 2));
    assert_eq!(
        world.table.keys().map(|key| key.dst).collect::<Vec<_>>(),
        [end("10.9.0.1:36002"), end("10.9.0.1:36000")]
    );
}
