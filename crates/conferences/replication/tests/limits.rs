//! What is rejected, and what happens where a table is full. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::Namespace;
use common::model::{Model, key};
use common::{Pins, Process, Route, ip, maps};
use shunt_abi::replicate::{conference_size, receiver, track};
use shunt_net::{Endpoint, FiveTuple};
use shunt_replication::{Action, Fault, Layer, Member, Name, Rewrite, StreamKey};
use shunt_xdp::Shared;
use std::collections::HashMap;
use std::net::Ipv4Addr;

const COPIES: usize = 700;

struct Bench {
    _namespace: Namespace,
    _pins: Pins,
    process: Process,
}

/// Interfaces `v0` to `v5`; 10.(100 + n).0.0/16 is behind each.
fn bench() -> Bench {
    let namespace = Namespace::new();
    for n in 0..6 {
        namespace.run(&format!("ip link add v{n} type veth peer name w{n}"));
    }
    namespace.enter();
    let mut routes = HashMap::new();
    for n in 0..6u8 {
        let route = Route {
            ifindex: namespace.ifindex(&format!("v{n}")),
            to: [2; 6],
            from: [2; 6],
            vlan: 0,
        };
        routes.insert(Ipv4Addr::new(10, 100 + n, 0, 1).into(), route);
    }
    let pins = Pins::new();
    let process = Process::start(&pins, COPIES, &routes);
    Bench {
        _namespace: namespace,
        _pins: pins,
        process,
    }
}

fn to(network: u8, port: u16) -> Rewrite {
    Rewrite {
        src: Endpoint::new(ip("10.2.0.1"), 9),
        dst: Endpoint::new([10, 100 + network, 0, 1], port),
        nexthop: 0,
        target: 0,
        sequence_state: 0,
        cadence: 0,
        payload_types: Default::default(),
    }
}

fn name(number: u32, rid: u16) -> Name {
    Name { number, rid }
}

fn members(nodes: impl IntoIterator<Item = u32>) -> Vec<Member> {
    nodes.into_iter().map(|node| Member { node, xid: None }).collect()
}

impl Bench {
    fn copy(&mut self, name: Name, rewrite: Rewrite) -> Result<(), Fault> {
        self.process.replication.insert_copy(&mut self.process.hops, name, rewrite)
    }

    /// Rejected with these words, and nothing has changed.
    fn rejected(&mut self, words: &str, change: impl FnOnce(&mut Process) -> Result<(), Fault>) -> Fault {
        let (tables, lists, usage) = self.state();
        let fault = change(&mut self.process).expect_err(words);
        assert!(fault.to_string().contains(words), "{fault} and not {words}");
        self.process.settle();
        let (tables_now, lists_now, usage_now) = self.state();
        assert_eq!((tables_now, lists_now), (tables, lists), "after {fault}");
        assert_eq!(usage_now, usage, "after {fault}");
        fault
    }

    fn state(&mut self) -> (Model, maps::Copies, shunt_replication::Usage) {
        self.process.settle();
        (
            Model::of(&self.process.replication),
            maps::copies(&self.process),
            self.process.replication.usage(),
        )
    }
}

#[test]
fn bad_input_is_rejected_and_changes_nothing() {
    let mut bench = bench();
    let six = Endpoint::new(ip("fd02::2"), 1);
    bench.copy(name(1, 1), to(0, 5)).unwrap();
    bench.process.replication.insert_node(1, 1, &[0], &[]).unwrap();
    bench.process.replication.insert_tree(5, &members([1])).unwrap();
    let good = Action {
        mgid: 5,
        number: 1,
        ..Action::default()
    };
    bench.process.replication.insert_stream(key(1), good, 0).unwrap();
    let tracks = COPIES as u32;
    let mut copy = |words: &str, name: Name, rewrite: Rewrite| {
        bench.rejected(words, |process| process.replication.insert_copy(&mut process.hops, name, rewrite))
    };
    assert!(matches!(
        copy("There is a rewrite for these copies", name(1, 1), to(0, 1)),
        Fault::Exists(_)
    ));
    let mixed = Rewrite { dst: six, ..to(0, 1) };
    assert!(matches!(copy("not both IPv4 or both IPv6", name(1, 2), mixed), Fault::Invalid(_)));
    assert!(matches!(copy("not in 0..16777215", name(1 << 24, 2), to(0, 1)), Fault::Invalid(_)));
    let far = Rewrite { target: 4, ..to(0, 1) };
    assert!(matches!(copy("The target 4 is not in 0..3", name(1, 2), far), Fault::Invalid(_)));
    let much = Rewrite {
        sequence_state: tracks + 1,
        ..to(0, 1)
    };
    assert!(matches!(copy("the sequence state is 701", name(1, 2), much), Fault::NoSpace(_)));
    let types = |payload_types| Rewrite { payload_types, ..to(0, 1) };
    let high = types([(0, 0), (96, 128), (0, 0), (0, 0)]);
    assert!(matches!(
        copy("The payload type 128 is not in 0..127", name(1, 2), high),
        Fault::Invalid(_)
    ));
    let twice = types([(96, 97), (0, 0), (96, 98), (0, 0)]);
    assert!(matches!(
        copy("The payload type 96 is rewritten to two others", name(1, 2), twice),
        Fault::Invalid(_)
    ));
    let fault = bench.rejected("There is no rewrite", |process| process.replication.delete_copy(name(2, 1)));
    assert!(matches!(fault, Fault::NotFound(_)));
    let fault = bench.rejected("There is no rewrite", |process| {
        process.replication.modify_copy(&mut process.hops, name(2, 1), to(0, 1))
    });
    assert!(matches!(fault, Fault::NotFound(_)));

    let mut stream =
        |words: &str, key: StreamKey, action: Action| bench.rejected(words, |process| process.replication.insert_stream(key, action, 0));
    let flow = FiveTuple::new(Endpoint::new(ip("10.1.0.2"), 1), six);
    assert!(matches!(
        stream("not both IPv4 or both IPv6", StreamKey { flow, ssrc: 1 }, good),
        Fault::Invalid(_)
    ));
    assert!(matches!(stream("replicated already", key(1), good), Fault::Exists(_)));
    let bad = [
        (Action { number: 1 << 24, ..good }, "not in 0..16777215"),
        (Action { descriptor: 5, ..good }, "The descriptor 5 is none of 0..4"),
        (
            Action {
                mgid: 65_535,
                trees: 2,
                ..good
            },
            "There is no tree 65536",
        ),
        (Action { extension: 16, ..good }, "at most 15"),
        (Action { trees: 16, ..good }, "at most 15"),
    ];
    for (action, words) in bad {
        assert!(matches!(stream(words, key(2), action), Fault::Invalid(_)));
    }
    let much = Action { track: tracks + 1, ..good };
    assert!(matches!(stream("the track is 701", key(2), much), Fault::NoSpace(_)));
    for change in [
        |process: &mut Process| process.replication.delete_stream(&key(2)),
        |process: &mut Process| process.replication.modify_stream(&key(2), Action::default()),
        |process: &mut Process| process.replication.reset_stream(&key(2), 0),
        |process: &mut Process| process.replication.reception(&key(2)).map(drop),
    ] {
        assert!(matches!(bench.rejected("The stream is not replicated", change), Fault::NotFound(_)));
    }
}

#[test]
fn a_change_that_one_list_has_no_room_for_changes_no_list() {
    let mut bench = bench();
    for rid in 1..=513 {
        bench.process.replication.insert_node(rid.into(), rid, &[0], &[]).unwrap();
        bench.copy(name(1, rid), to(0, rid)).unwrap();
    }
    for rid in 600..606 {
        bench.process.replication.insert_node(rid.into(), rid, &[0], &[]).unwrap();
        bench.copy(name(1, rid), to((rid - 600) as u8, rid)).unwrap();
    }
    bench.copy(name(2, 1), to(0, 1)).unwrap();
    bench.process.replication.insert_tree(5, &members(1..=3)).unwrap();
    // The first stream's list has room, the second's has not.
    for (port, number) in [(1, 2), (2, 1)] {
        let action = Action {
            mgid: 5,
            number,
            ..Action::default()
        };
        bench.process.replication.insert_stream(key(port), action, 0).unwrap();
    }
    let mut tree = |words: &str, nodes: Vec<Member>| {
        let fault = bench.rejected(words, |process| process.replication.modify_tree(5, &nodes));
        assert!(matches!(fault, Fault::NoSpace(_)));
    };
    tree("A packet has at most 512 copies, not 513", members(1..=513));
    tree("by at most 4 interfaces, not 5", members(600..605));
    bench.process.replication.modify_tree(5, &members(1..=512)).unwrap();
    bench.process.replication.modify_tree(5, &members(600..604)).unwrap();
    assert_eq!(maps::copies(&bench.process)[&2][0].len(), 4);
    // The rewrite that makes it five.
    bench.process.replication.modify_tree(5, &members([600, 601, 602, 603, 1])).unwrap();
    let fault = bench.rejected("by at most 4 interfaces, not 5", |process| {
        process.replication.modify_copy(&mut process.hops, name(1, 1), to(5, 1))
    });
    assert!(matches!(fault, Fault::NoSpace(_)));
}

#[test]
fn a_full_table_says_so_and_what_is_deleted_makes_room_at_once() {
    let mut bench = bench();
    for n in 0..COPIES as u16 {
        bench.copy(name(1, n), to(0, 9)).unwrap();
        let key = key(1000 + n);
        bench.process.replication.insert_stream(key, Action::default(), 0).unwrap();
    }
    let waits = bench.process.replication.inline_waits();
    let fault = bench.rejected("There is room for 700 rewrites", |process| {
        process.replication.insert_copy(&mut process.hops, name(2, 0), to(0, 9))
    });
    assert!(matches!(fault, Fault::NoSpace(_)));
    let fault = bench.rejected("There is room for 700 streams", |process| {
        process.replication.insert_stream(key(1), Action::default(), 0)
    });
    assert!(matches!(fault, Fault::NoSpace(_)));
    // It had to be waited for what may still be read.
    assert_eq!(bench.process.replication.inline_waits(), waits + 2);
    bench.process.replication.delete_copy(name(1, 5)).unwrap();
    bench.copy(name(2, 0), to(0, 9)).unwrap();
    bench.process.replication.delete_stream(&key(1005)).unwrap();
    bench.process.replication.insert_stream(key(1), Action::default(), 0).unwrap();
    assert_eq!(bench.process.replication.inline_waits(), waits + 4);
    bench.process.replication.delete_copy(name(1, 6)).unwrap();
    bench.process.settle();
    bench.copy(name(2, 1), to(0, 9)).unwrap();
    assert_eq!(bench.process.replication.inline_waits(), waits + 4);
}

#[test]
fn a_rewrite_needs_a_next_hop() {
    let mut bench = bench();
    bench.process.hops.most = 1;
    bench.copy(name(1, 1), to(0, 9)).unwrap();
    let fault = bench.rejected("all 1 rows of the next-hop table are in use", |process| {
        process.replication.insert_copy(&mut process.hops, name(1, 2), to(1, 9))
    });
    assert!(matches!(fault, Fault::NoSpace(_)));
    assert_eq!(
        bench.process.replication.destinations(),
        bench.process.hops.held().into_iter().collect()
    );
}

/// More different sets of interfaces and numbers of copies in turn than there are device maps: those that nobody uses make room.
#[test]
fn device_maps_are_used_again() {
    let mut bench = bench();
    let nodes: Vec<u32> = (0..200).collect();
    for node in &nodes {
        let rid = *node as u16;
        bench.process.replication.insert_node(*node, rid, &[0], &[]).unwrap();
        bench.copy(name(1, rid), to((node % 2) as u8, rid)).unwrap();
    }
    bench.process.replication.insert_tree(5, &[]).unwrap();
    let action = Action {
        mgid: 5,
        number: 1,
        ..Action::default()
    };
    bench.process.replication.insert_stream(key(1), action, 0).unwrap();
    let mut different = 0;
    for a in 0..100 {
        for b in (0..100).step_by(1 + a % 2) {
            let first = nodes.iter().filter(|node| *node % 2 == 0).take(a);
            let second = nodes.iter().filter(|node| *node % 2 == 1).take(b);
            let tree = members(first.chain(second).copied());
            bench.process.replication.modify_tree(5, &tree).unwrap();
            different += 1;
            if different % 50 == 0 {
                bench.process.settle();
            }
        }
    }
    assert!(different > conference_size::OUTPUTS.0 as usize);
    for a in (0..100).rev() {
        let first = nodes.iter().filter(|node| *node % 2 == 0).take(a);
        let second = nodes.iter().filter(|node| *node % 2 == 1).take(100 - a);
        let tree = members(first.chain(second).copied());
        bench.process.replication.modify_tree(5, &tree).unwrap();
        assert_eq!(maps::copies(&bench.process)[&1][0].len(), 100);
        bench.process.settle();
    }
}

#[test]
fn numbers_go_on_while_somebody_uses_their_row_and_over_restarts() {
    let mut bench = bench();
    let rows = COPIES + 1;
    let tracks = Shared::<track>::map(bench.process.map("c_tracks"), rows).unwrap();
    let receivers = Shared::<receiver>::map(bench.process.map("c_receivers"), rows).unwrap();
    let tracked = Action {
        track: 3,
        ..Action::default()
    };
    let dirty = |wanted: (u16, u16)| {
        let read = (tracks.load(3).of[1].offset, receivers.load(4).sequence_state.base);
        assert_eq!(read, wanted);
        let mut one = tracks.load(3);
        one.of[1].offset = 77;
        tracks.store(3, &one);
        let mut two = receivers.load(4);
        two.sequence_state.base = 88;
        receivers.store(4, &two);
    };
    let rewritten = Rewrite {
        sequence_state: 4,
        target: 2,
        ..to(0, 1)
    };
    bench.copy(name(1, 1), rewritten).unwrap();
    bench.process.replication.insert_stream(key(1), tracked, 0).unwrap();
    assert_eq!((tracks.load(3).of[0].used[0], receivers.load(4).sequence_state.target), (1, 2));
    dirty((0, 0));
    // A second user, and another address: they go on.
    bench.process.replication.insert_stream(key(2), tracked, 0).unwrap();
    bench.process.replication.delete_stream(&key(1)).unwrap();
    let Process { replication, hops, .. } = &mut bench.process;
    replication
        .modify_copy(
            hops,
            name(1, 1),
            Rewrite {
                dst: to(1, 2).dst,
                ..rewritten
            },
        )
        .unwrap();
    dirty((77, 88));
    bench.process = bench.process.restart();
    dirty((77, 88));
    // Adopted users count: the next one does not begin anew.
    bench.process.replication.insert_stream(key(3), tracked, 0).unwrap();
    bench.copy(name(1, 2), rewritten).unwrap();
    dirty((77, 88));
    // Nobody's: the next one begins anew.
    for port in [2, 3] {
        bench.process.replication.delete_stream(&key(port)).unwrap();
    }
    for rid in [1, 2] {
        bench.process.replication.delete_copy(name(1, rid)).unwrap();
    }
    bench.process.replication.insert_stream(key(4), tracked, 0).unwrap();
    bench.copy(name(1, 3), rewritten).unwrap();
    dirty((0, 0));
}

#[test]
fn counters_of_a_layer_go_on_until_they_are_reset() {
    let mut bench = bench();
    let map = shunt_xdp::Hash::<u32, shunt_abi::replicate::layer>::new(bench.process.map("c_layers")).unwrap();
    let one = Layer { layer: 1, switches: 3 };
    let layers = bench.process.replication.layers_mut();
    layers.put(9, 7, one, false).unwrap();
    let at = 9 << 8 | 7;
    let mut counted = map.get(&at).unwrap().unwrap();
    (counted.packets, counted.bytes) = (5, 500);
    map.put(&at, &counted).unwrap();
    let two = Layer { layer: 2, switches: 1 };
    layers.put(9, 7, two, false).unwrap();
    assert_eq!((layers.get(9, 7), layers.count(9, 7).unwrap().packets), (Some(two), 5));
    layers.put(9, 7, two, true).unwrap();
    assert_eq!((layers.count(9, 7).unwrap().bytes, layers.len()), (0, 1));
    assert!(layers.delete(9, 7).unwrap() && !layers.delete(9, 7).unwrap());
    assert_eq!((layers.get(9, 7), layers.count(9, 7).unwrap().packets), (None, 0));
    let most = map.capacity();
    for n in 0..most {
        layers.put((n >> 8) as u16, n as u8, one, false).unwrap();
    }
    let fault = layers.put(60_000, 1, one, false).unwrap_err();
    assert!(matches!(fault, Fault::NoSpace(_)), "{fault}");
}
