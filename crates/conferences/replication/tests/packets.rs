//! Changes while packets come in: real programs on real interfaces, every packet accounted for. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::{Lab, MACS};
use common::{Pins, Process, Route, ip};
use shunt_net::{Endpoint, FiveTuple};
use shunt_replication::{Action, Layer, Member, Moves, Name, Rewrite, StreamKey};
use shunt_xdp::{Link, Mode};
use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NUMBER: u32 = 7;
const TREE: u16 = 5;
const SSRC: u32 = 0x1234;
const COPIES: usize = 1024;
const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];
const DEADLINE: Duration = Duration::from_secs(30);

/// A receiver of the streams with the number: its RID, and its node in the tree of the same number.
struct Receiver {
    rid: u16,
    socket: UdpSocket,
    here: Endpoint,
}

impl Receiver {
    /// Numbers of the packets that wait.
    fn numbers(&self) -> Vec<u32> {
        numbers(&self.socket)
    }
}

fn numbers(socket: &UdpSocket) -> Vec<u32> {
    socket.set_nonblocking(true).unwrap();
    let mut found = Vec::new();
    let mut packet = [0; 2048];
    while let Ok(length) = socket.recv(&mut packet) {
        assert!(length >= 16);
        found.push(u32::from_be_bytes(packet[12..16].try_into().unwrap()));
    }
    found
}

/// The second octets of the RTP headers that wait: marker bit and payload type.
fn heads(socket: &UdpSocket) -> Vec<u8> {
    socket.set_nonblocking(true).unwrap();
    let mut packet = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut packet).ok().map(|_| packet[1])).collect()
}

fn is_run(found: &[u32]) -> bool {
    found.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

/// A process with its programs on both interfaces, and a sender on host `a`.
struct Bridge {
    lab: Lab,
    pins: Pins,
    process: Process,
    links: Vec<Link>,
    mode: Mode,
    sender: UdpSocket,
    sent: AtomicU32,
    next_port: u16,
}

fn stream() -> StreamKey {
    let flow = FiveTuple::new(Endpoint::new(ip("10.1.0.2"), 5000), Endpoint::new(ip("10.1.0.1"), 6000));
    StreamKey { flow, ssrc: SSRC }
}

fn name(rid: u16) -> Name {
    Name { number: NUMBER, rid }
}

fn to(here: Endpoint, rid: u16) -> Rewrite {
    let from = if here.addr.is_ipv6() { ip("fd02::1") } else { ip("10.2.0.1") };
    Rewrite {
        src: Endpoint::new(from, 20_000 + rid),
        dst: here,
        nexthop: 0,
        target: 0,
        sequence_state: 0,
        cadence: 0,
        payload_types: Default::default(),
    }
}

fn members(nodes: impl IntoIterator<Item = u32>) -> Vec<Member> {
    nodes.into_iter().map(|node| Member { node, xid: None }).collect()
}

fn into(mgid: u16) -> Action {
    Action {
        mgid,
        number: NUMBER,
        ..Action::default()
    }
}

impl Bridge {
    fn new(mode: Mode) -> Self {
        let lab = Lab::new();
        lab.relay.enter();
        let mut routes = HashMap::new();
        for (letter, hosts, macs) in [("a", ["10.1.0.2", "fd01::2"], [0, 1]), ("b", ["10.2.0.2", "fd02::2"], [2, 3])] {
            let route = Route {
                ifindex: lab.relay.ifindex(&format!("r{letter}")),
                to: MACS[macs[1]],
                from: MACS[macs[0]],
                vlan: 0,
            };
            routes.extend(hosts.map(|host| (ip(host), route)));
        }
        let pins = Pins::new();
        let process = Process::start(&pins, COPIES, &routes);
        let sender = lab.a.socket(ip("10.1.0.2"), 5000);
        sender.connect("10.1.0.1:6000").unwrap();
        let mut made = Self {
            lab,
            pins,
            process,
            links: Vec::new(),
            mode,
            sender,
            sent: AtomicU32::new(0),
            next_port: 40_000,
        };
        for interface in ["ra", "rb"] {
            made.attach(interface);
        }
        made
    }

    fn attach(&mut self, interface: &str) {
        let program = match self.mode {
            Mode::Native => "replicate_native",
            Mode::Generic => "replicate_generic",
        };
        let program = self.process.loaded.program(program).unwrap();
        self.links
            .push(Link::attach(program, self.lab.relay.ifindex(interface), self.mode).unwrap());
    }

    /// A receiver, in no tree yet.
    fn receiver(&mut self, rid: u16, host: &str) -> Receiver {
        let (socket, here) = self.place(host);
        self.process
            .replication
            .insert_copy(&mut self.process.hops, name(rid), to(here, rid))
            .unwrap();
        self.process.replication.insert_node(rid.into(), rid, &[0], &[]).unwrap();
        Receiver { rid, socket, here }
    }

    fn place(&mut self, host: &str) -> (UdpSocket, Endpoint) {
        self.next_port += 1;
        let addr: IpAddr = ip(host);
        let namespace = if host.starts_with("10.1") || host.starts_with("fd01") {
            &self.lab.a
        } else {
            &self.lab.b
        };
        (namespace.socket(addr, self.next_port), Endpoint::new(addr, self.next_port))
    }

    fn packet(number: u32) -> Vec<u8> {
        let mut packet = vec![0x80, 96];
        packet.extend((number as u16).to_be_bytes());
        packet.extend((number * 160).to_be_bytes());
        packet.extend(SSRC.to_be_bytes());
        packet.extend(number.to_be_bytes());
        packet.resize(172, 0);
        packet
    }

    fn send(&self, count: u32) {
        for _ in 0..count {
            let number = self.sent.fetch_add(1, Ordering::Relaxed);
            self.sender.send(&Self::packet(number)).unwrap();
        }
        self.arrived();
    }

    /// A packet with each of these second octets.
    fn send_heads(&self, heads: &[u8]) {
        for head in heads {
            let mut packet = Self::packet(self.sent.fetch_add(1, Ordering::Relaxed));
            packet[1] = *head;
            self.sender.send(&packet).unwrap();
        }
        self.arrived();
    }

    fn change_copy(&mut self, rid: u16, rewrite: Rewrite) {
        let Process { replication, hops, .. } = &mut self.process;
        replication.modify_copy(hops, name(rid), rewrite).unwrap();
    }

    fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Wait until what was sent has been replicated.
    fn arrived(&self) {
        let begun = Instant::now();
        let table = &self.process.replication;
        while table.stream(&stream()).is_some() && table.count_stream(&stream(), 0).unwrap().packets < u64::from(self.sent()) {
            assert!(begun.elapsed() < DEADLINE, "packets do not arrive");
            std::thread::yield_now();
        }
        // Copies are handed over in the same poll; the far end takes them at once.
        std::thread::sleep(Duration::from_millis(50));
    }

    /// Change something while packets are sent without a pause; rounds are run after each change.
    fn while_talking(&mut self, change: impl FnOnce(&mut Self)) {
        let stop = AtomicBool::new(false);
        let sender = self.sender.try_clone().unwrap();
        let sent = AtomicU32::new(self.sent());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    sender.send(&Self::packet(number)).unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            change(self);
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        });
        self.sent.store(sent.into_inner(), Ordering::Relaxed);
        self.arrived();
    }

    /// Until some more packets have come.
    fn some_packets(&self) {
        let count = || self.process.replication.count_stream(&stream(), 0).unwrap().packets;
        let (before, begun) = (count(), Instant::now());
        while count() < before + 5 {
            assert!(begun.elapsed() < DEADLINE, "packets do not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn packets(&self, rid: u16) -> u64 {
        self.process.replication.count_copy(name(rid)).unwrap().packets
    }
}

#[test]
fn every_receiver_gets_every_packet_once_also_behind_both_interfaces() {
    for mode in MODES {
        let mut bridge = Bridge::new(mode);
        let hosts = ["10.2.0.2", "fd02::2", "10.1.0.2", "fd01::2"];
        let receivers: Vec<Receiver> = (1..=60).map(|rid| bridge.receiver(rid, hosts[usize::from(rid % 4)])).collect();
        let nodes = members(1..=60);
        let table = &mut bridge.process.replication;
        table.insert_tree(TREE, &nodes).unwrap();
        table.insert_stream(stream(), into(TREE), 0).unwrap();
        for _ in 0..20 {
            bridge.send(1);
        }
        for receiver in &receivers {
            assert_eq!(receiver.numbers(), (0..20).collect::<Vec<_>>(), "{mode}, {}", receiver.rid);
            let counted = bridge.process.replication.count_copy(name(receiver.rid)).unwrap();
            let header = if receiver.here.addr.is_ipv6() { 40 } else { 20 };
            assert_eq!((counted.packets, counted.bytes, counted.lost), (20, 20 * (header + 8 + 172), 0));
        }
        let counted = bridge.process.replication.count_stream(&stream(), 0).unwrap();
        assert_eq!((counted.packets, counted.bytes, counted.lost), (20, 20 * 200, 0));
        let (slot, _) = bridge.process.replication.reception(&stream()).unwrap();
        assert_eq!((slot.bytes, u32::from_be(slot.ssrc)), (20 * 200, SSRC));
    }
}

#[test]
fn joins_and_leaves_lose_and_double_nothing() {
    for mode in MODES {
        let mut bridge = Bridge::new(mode);
        let stay: Vec<Receiver> = (1..=3).map(|rid| bridge.receiver(rid, "10.2.0.2")).collect();
        let guests: Vec<Receiver> = (10..20).map(|rid| bridge.receiver(rid, "10.2.0.2")).collect();
        let table = &mut bridge.process.replication;
        table.insert_tree(TREE, &members(1..=3)).unwrap();
        table.insert_stream(stream(), into(TREE), 0).unwrap();
        let mut runs = 0;
        bridge.while_talking(|bridge| {
            for _ in 0..3 {
                for last in 10..20 {
                    bridge
                        .process
                        .replication
                        .modify_tree(TREE, &members((1..=3).chain(10..=last)))
                        .unwrap();
                    bridge.process.settle();
                }
                bridge.some_packets();
                for guest in &guests {
                    let rid = u32::from(guest.rid);
                    bridge
                        .process
                        .replication
                        .modify_tree(TREE, &members((1..=3).chain(rid + 1..20)))
                        .unwrap();
                    bridge.process.settle();
                    std::thread::sleep(Duration::from_millis(5));
                    let run = guest.numbers();
                    assert!(is_run(&run), "{mode}: a guest got {run:?}");
                    runs += usize::from(!run.is_empty());
                }
            }
        });
        assert_eq!(runs, 30, "each guest got a run each time");
        for receiver in &stay {
            assert_eq!(receiver.numbers(), (0..bridge.sent()).collect::<Vec<_>>(), "{mode}");
        }
        assert!(guests.iter().all(|guest| guest.numbers().is_empty()));
        assert_eq!(bridge.packets(1), u64::from(bridge.sent()));
        assert_eq!(bridge.process.replication.count_stream(&stream(), 0).unwrap().lost, 0);
    }
}

#[test]
fn a_migration_to_other_trees_loses_and_doubles_nothing() {
    for trees in [1u8, 3] {
        let mut bridge = Bridge::new(Mode::Native);
        let receivers: Vec<Receiver> = (1..=8).map(|rid| bridge.receiver(rid, "10.2.0.2")).collect();
        // Layers by the VP8 descriptor, which these packets lack: all go into the lowest layer's tree.
        let action = |mgid: u16| Action {
            trees,
            layers: 1,
            descriptor: if trees > 1 { 3 } else { 0 },
            ..into(mgid)
        };
        let build = |bridge: &mut Bridge, round: u32| {
            let first = TREE + round as u16 * u16::from(trees);
            for tree in 0..u32::from(trees) {
                let base = 1000 * (round * u32::from(trees) + tree + 1);
                for rid in 1..=8u16 {
                    bridge
                        .process
                        .replication
                        .insert_node(base + u32::from(rid), rid, &[0], &[])
                        .unwrap();
                }
                let nodes = members((1..=8).map(|rid| base + rid));
                bridge.process.replication.insert_tree(first + tree as u16, &nodes).unwrap();
            }
            first
        };
        let first = build(&mut bridge, 0);
        bridge.process.replication.layers_mut().put(1, 0, Layer::default(), false).unwrap();
        bridge.process.replication.insert_stream(stream(), action(first), 0).unwrap();
        bridge.while_talking(|bridge| {
            let mut before = first;
            for round in 1..=20 {
                let next = build(bridge, round);
                bridge.process.replication.modify_stream(&stream(), action(next)).unwrap();
                for tree in before..before + u16::from(trees) {
                    bridge.process.replication.delete_tree(tree).unwrap();
                }
                bridge.process.settle();
                before = next;
            }
            bridge.some_packets();
        });
        for receiver in &receivers {
            assert_eq!(receiver.numbers(), (0..bridge.sent()).collect::<Vec<_>>(), "{trees} trees");
        }
    }
}

#[test]
fn a_receiver_that_moves_gets_every_packet_at_one_place() {
    let mut bridge = Bridge::new(Mode::Native);
    let receivers: Vec<Receiver> = (1..=4).map(|rid| bridge.receiver(rid, "10.2.0.2")).collect();
    let table = &mut bridge.process.replication;
    table.insert_tree(TREE, &members(1..=4)).unwrap();
    table.insert_stream(stream(), into(TREE), 0).unwrap();
    let mut places = vec![receivers[0].socket.try_clone().unwrap()];
    bridge.while_talking(|bridge| {
        bridge.some_packets();
        for _ in 0..12 {
            let (socket, here) = bridge.place("10.2.0.2");
            let Process { replication, hops, .. } = &mut bridge.process;
            replication.modify_copy(hops, name(1), to(here, 1)).unwrap();
            places.push(socket);
            bridge.some_packets();
            if places.len() % 3 == 0 {
                bridge.process.settle();
            }
        }
    });
    let got: Vec<Vec<u32>> = places.iter().map(numbers).collect();
    assert!(got.iter().all(|run| !run.is_empty()));
    assert_eq!(got.concat(), (0..bridge.sent()).collect::<Vec<_>>());
    for receiver in &receivers[1..] {
        assert_eq!(receiver.numbers(), (0..bridge.sent()).collect::<Vec<_>>());
    }
    assert_eq!(bridge.packets(1), u64::from(bridge.sent()));
    bridge.process.settle();
    assert_eq!(bridge.packets(1), u64::from(bridge.sent()), "the counts of former records are kept");
    bridge.process.replication.reset_copy(name(1)).unwrap();
    assert_eq!(bridge.packets(1), 0);
}

#[test]
fn the_next_process_goes_on_without_a_gap_or_a_lost_count() {
    let mut bridge = Bridge::new(Mode::Native);
    let hosts = ["10.2.0.2", "fd02::2", "10.1.0.2"];
    let receivers: Vec<Receiver> = (1..=9).map(|rid| bridge.receiver(rid, hosts[usize::from(rid % 3)])).collect();
    let table = &mut bridge.process.replication;
    table.insert_tree(TREE, &members(1..=8)).unwrap();
    table.insert_stream(stream(), into(TREE), 0).unwrap();
    bridge.while_talking(|bridge| {
        for round in 0..6 {
            // Killed with records that still wait to be given back.
            let Process { replication, hops, .. } = &mut bridge.process;
            let rewrite = replication.copy(name(2)).unwrap();
            replication
                .modify_copy(hops, name(2), Rewrite { nexthop: round, ..rewrite })
                .unwrap();
            replication.modify_tree(TREE, &members((1..=8).rev())).unwrap();
            take(bridge, round % 2 == 1);
            // What a process has adopted it can also change.
            bridge.process.replication.modify_tree(TREE, &members(1..=9)).unwrap();
            bridge.process.replication.modify_tree(TREE, &members(1..=8)).unwrap();
            bridge.process.settle();
        }
        bridge.some_packets();
    });
    for receiver in &receivers[..8] {
        assert_eq!(receiver.numbers(), (0..bridge.sent()).collect::<Vec<_>>(), "{}", receiver.rid);
        assert_eq!(bridge.packets(receiver.rid), u64::from(bridge.sent()), "{}", receiver.rid);
    }
    let counted = bridge.process.replication.count_stream(&stream(), 0).unwrap();
    assert_eq!((counted.packets, counted.lost), (u64::from(bridge.sent()), 0));
}

const MARKER: u8 = 0x80;
const SENT: [u8; 6] = [96, MARKER | 96, 97, 0, MARKER | 8, 120];

/// With its checksum complete as it arrives, or left to the hardware. The receiver's kernel drops a packet with a wrong one.
#[test]
fn each_receiver_gets_its_own_payload_types() {
    let pairs = [(0, 0), (96, 120), (97, 124), (0, 8)];
    let mapped = [120, MARKER | 120, 124, 8, MARKER | 8, 120];
    for (mode, offload) in MODES.into_iter().flat_map(|mode| ["on", "off"].map(|offload| (mode, offload))) {
        let mut bridge = Bridge::new(mode);
        bridge.lab.a.run(&format!("ethtool -K a0 tx {offload}"));
        let hosts = ["10.2.0.2", "fd02::2", "10.1.0.2", "10.2.0.2"];
        let receivers: Vec<Receiver> = (1..=4).map(|rid| bridge.receiver(rid, hosts[usize::from(rid) - 1])).collect();
        let table = &mut bridge.process.replication;
        table.insert_tree(TREE, &members(1..=4)).unwrap();
        table.insert_stream(stream(), into(TREE), 0).unwrap();
        for receiver in &receivers[..3] {
            let rewrite = Rewrite {
                payload_types: pairs,
                ..to(receiver.here, receiver.rid)
            };
            bridge.change_copy(receiver.rid, rewrite);
        }
        bridge.send_heads(&SENT);
        for receiver in &receivers[..3] {
            assert_eq!(
                heads(&receiver.socket),
                mapped,
                "{mode}, checksums of the sender {offload}, {}",
                receiver.rid
            );
        }
        assert_eq!(heads(&receivers[3].socket), SENT, "{mode}, {offload}: no pairs");
    }
}

#[test]
fn payload_types_and_numbers_are_rewritten_in_one_copy() {
    for mode in MODES {
        let mut bridge = Bridge::new(mode);
        let receiver = bridge.receiver(1, "10.2.0.2");
        let rewrite = Rewrite {
            sequence_state: 1,
            target: 3,
            payload_types: [(96, 120), (0, 0), (0, 0), (0, 0)],
            ..to(receiver.here, 1)
        };
        bridge.change_copy(1, rewrite);
        let table = &mut bridge.process.replication;
        table.insert_tree(TREE, &members([1])).unwrap();
        let tracked = Action {
            layers: 1,
            descriptor: 3,
            track: 1,
            ..into(TREE)
        };
        table.insert_stream(stream(), tracked, 0).unwrap();
        bridge.send_heads(&[96, MARKER | 96, 97]);
        assert_eq!(heads(&receiver.socket), [120, MARKER | 120, 97], "{mode}");
    }
}

#[test]
fn payload_types_change_without_a_gap_and_outlive_the_process() {
    let mut bridge = Bridge::new(Mode::Native);
    let receiver = bridge.receiver(1, "10.2.0.2");
    let table = &mut bridge.process.replication;
    table.insert_tree(TREE, &members([1])).unwrap();
    table.insert_stream(stream(), into(TREE), 0).unwrap();
    let rewrite = |to_type: u8| Rewrite {
        payload_types: [(96, to_type), (0, 0), (0, 0), (0, 0)],
        ..to(receiver.here, 1)
    };
    bridge.while_talking(|bridge| {
        for to_type in 100..110 {
            bridge.change_copy(1, rewrite(to_type));
            bridge.some_packets();
        }
    });
    let found = heads(&receiver.socket);
    assert_eq!(found.len(), bridge.sent() as usize);
    assert!(found.is_sorted_by_key(|head| if *head == 96 { 0 } else { *head }), "{found:?}");
    assert!((100..110).all(|to_type| found.contains(&to_type)), "{found:?}");
    for reload in [false, true] {
        take(&mut bridge, reload);
        assert_eq!(bridge.process.replication.copy(name(1)), Some(rewrite(109)));
        bridge.send(1);
        assert_eq!(heads(&receiver.socket), [109]);
    }
    bridge.change_copy(1, to(receiver.here, 1));
    bridge.send(1);
    assert_eq!(heads(&receiver.socket), [96]);
}

/// Put another process in place of this one.
fn take(bridge: &mut Bridge, reload: bool) {
    let relay = std::mem::take(&mut bridge.process.relay);
    let loaded = std::mem::take(&mut bridge.process.loaded);
    let routes = bridge.process.hops.routes().clone();
    let loaded = if reload {
        let fresh = common::load(&shunt_xdp::Directory::open(&bridge.pins.0).unwrap(), COPIES, &relay);
        for link in &bridge.links {
            link.replace(fresh.program("replicate_native").unwrap()).unwrap();
        }
        fresh
    } else {
        loaded
    };
    bridge.process = Process::adopt(relay, loaded, &routes);
}

#[test]
fn receivers_behind_a_tagged_network_get_tagged_frames() {
    let mut bridge = Bridge::new(Mode::Native);
    let receiver = bridge.receiver(1, "10.2.0.2");
    let table = &mut bridge.process.replication;
    table.insert_tree(TREE, &members([1])).unwrap();
    table.insert_stream(stream(), into(TREE), 0).unwrap();
    let plain = bridge.process.hops.routes()[&receiver.here.addr];
    for (vlan, got) in [(0, vec![0, 1]), (7, vec![]), (0, vec![4, 5])] {
        let hops = &mut bridge.process.hops;
        hops.route(receiver.here.addr, Some(Route { vlan, ..plain }));
        hops.rewrite(receiver.here.addr);
        let wire = bridge.lab.b.wire();
        bridge.send(2);
        assert_eq!(receiver.numbers(), got, "tag {vlan}");
        if vlan != 0 {
            assert_eq!(wire.tags(receiver.here.port), [7, 7]);
        }
    }
    let counted = bridge.process.replication.count_copy(name(1)).unwrap();
    assert_eq!((counted.packets, counted.bytes, counted.lost), (6, 6 * 200, 0));
}

#[test]
fn copies_follow_a_route_from_one_interface_to_the_other() {
    let mut bridge = Bridge::new(Mode::Native);
    let near = bridge.receiver(1, "10.2.0.2");
    let far = ip("192.0.2.1");
    let port = 41_000;
    let found: Vec<UdpSocket> = [&bridge.lab.a, &bridge.lab.b]
        .map(|host| {
            host.run("ip address add 192.0.2.1/32 dev lo");
            host.socket(far, port)
        })
        .into();
    let Process { replication, hops, .. } = &mut bridge.process;
    replication.insert_copy(hops, name(2), to(Endpoint::new(far, port), 2)).unwrap();
    replication.insert_node(2, 2, &[0], &[]).unwrap();
    replication.insert_tree(TREE, &members([2, 1])).unwrap();
    replication.insert_stream(stream(), into(TREE), 0).unwrap();
    bridge.send(3);
    assert_eq!(near.numbers(), [0, 1, 2], "no route to the other");
    let ways = [ip("10.1.0.2"), ip("10.2.0.2")].map(|host| bridge.process.hops.routes()[&host]);
    bridge.while_talking(|bridge| {
        for (row, way) in [(100, 1), (101, 0), (102, 1)] {
            let Process { replication, hops, .. } = &mut bridge.process;
            hops.route(far, Some(ways[way]));
            let row = hops.move_to(far, row);
            let mut moves = Moves::new(HashMap::from([((far, ip("10.2.0.1")), row)]));
            while !replication.follow(hops, &mut moves, 1) {}
            bridge.process.settle();
            bridge.some_packets();
        }
    });
    let [a, b] = [&found[0], &found[1]].map(numbers);
    assert!(is_run(&a) && !a.is_empty() && b.len() > a.len());
    let mut all = [a, b].concat();
    all.sort_unstable();
    assert_eq!(all, (all[0]..bridge.sent()).collect::<Vec<_>>(), "each packet at one place");
    assert_eq!(near.numbers(), (3..bridge.sent()).collect::<Vec<_>>());
    // Without a route again.
    let Process { replication, hops, .. } = &mut bridge.process;
    hops.route(far, None);
    let row = hops.move_to(far, 103);
    let mut moves = Moves::new(HashMap::from([((far, ip("10.2.0.1")), row)]));
    while !replication.follow(hops, &mut moves, 100) {}
    let first = bridge.sent();
    bridge.send(3);
    assert_eq!(near.numbers(), (first..first + 3).collect::<Vec<_>>());
    assert!(found.iter().all(|socket| numbers(socket).is_empty()));
}

#[test]
fn an_interface_that_is_made_anew_is_used_again() {
    for same_number in [false, true] {
        let mut bridge = Bridge::new(Mode::Native);
        let near = bridge.receiver(1, "10.1.0.2");
        let receiver = bridge.receiver(2, "10.2.0.2");
        let table = &mut bridge.process.replication;
        table.insert_tree(TREE, &members([1, 2])).unwrap();
        table.insert_stream(stream(), into(TREE), 0).unwrap();
        bridge.send(2);
        assert_eq!((near.numbers(), receiver.numbers()), (vec![0, 1], vec![0, 1]));
        let number = bridge.lab.relay.ifindex("rb");
        let route = bridge.process.hops.routes()[&receiver.here.addr];
        let follow = |bridge: &mut Bridge, row: u16, route: Option<Route>| {
            let Process { replication, hops, .. } = &mut bridge.process;
            hops.route(receiver.here.addr, route);
            let row = hops.move_to(receiver.here.addr, row);
            let mut moves = Moves::new(HashMap::from([((receiver.here.addr, ip("10.2.0.1")), row)]));
            while !replication.follow(hops, &mut moves, 100) {}
            bridge.process.settle();
        };
        bridge.lab.relay.run("ip link del rb");
        follow(&mut bridge, 200, None);
        bridge.send(2);
        assert_eq!(near.numbers(), [2, 3]);
        bridge.lab.connect("b", &bridge.lab.b, 2);
        if same_number {
            bridge.lab.relay.run("ip link del rb");
            bridge.lab.connect_as("b", &bridge.lab.b, 2, Some(number));
        }
        let ifindex = bridge.lab.relay.ifindex("rb");
        assert_eq!(ifindex == number, same_number);
        follow(&mut bridge, 201, Some(Route { ifindex, ..route }));
        bridge.send(2);
        assert_eq!(
            (near.numbers(), receiver.numbers()),
            (vec![4, 5], vec![4, 5]),
            "same number: {same_number}"
        );
    }
}

#[test]
fn an_interface_that_is_made_anew_with_its_number_needs_no_change_of_a_route() {
    let mut bridge = Bridge::new(Mode::Native);
    let receiver = bridge.receiver(1, "10.2.0.2");
    let table = &mut bridge.process.replication;
    table.insert_tree(TREE, &members([1])).unwrap();
    table.insert_stream(stream(), into(TREE), 0).unwrap();
    bridge.process.settle();
    let number = bridge.lab.relay.ifindex("rb");
    bridge.lab.relay.run("ip link del rb");
    bridge.process.settle();
    bridge.send(2);
    bridge.lab.connect_as("b", &bridge.lab.b, 2, Some(number));
    bridge.process.settle();
    bridge.send(2);
    assert_eq!(receiver.numbers(), [2, 3]);
}
