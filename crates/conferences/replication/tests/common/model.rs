//! The tables as plain collections, changes by chance, and what copies they call for, worked out naively.

use super::maps::Copies;
use super::{Chance, Process, Route, ip};
use shunt_net::{Endpoint, FiveTuple};
use shunt_replication::{Action, Fault, Layer, Member, Name, Replication, Rewrite, StreamKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

type Key = (u16, u8);

/// A change of one table.
#[derive(Clone, Debug)]
pub enum Change {
    InsertStream(u16, Action),
    ModifyStream(u16, Action),
    DeleteStream(u16),
    InsertCopy(Name, Rewrite),
    ModifyCopy(Name, Rewrite),
    DeleteCopy(Name),
    InsertNode(u32, u16, Vec<u32>),
    ModifyNode(u32, Vec<u32>),
    DeleteNode(u32),
    InsertTree(u16, Vec<Member>),
    ModifyTree(u16, Vec<Member>),
    DeleteTree(u16),
    SetPrune(u16, Vec<u32>),
    PutLayer(u16, u8, Layer),
    DeleteLayer(u16, u8),
}

/// All tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// By source port.
    pub streams: BTreeMap<u16, Action>,
    pub copies: BTreeMap<Name, Rewrite>,
    pub nodes: BTreeMap<u32, (u16, Option<u32>)>,
    pub trees: BTreeMap<u16, Vec<(u32, Option<u16>)>>,
    pub prunes: BTreeMap<u16, BTreeSet<u32>>,
    pub layers: BTreeMap<Key, (u8, u16)>,
}

/// The stream from a source port.
pub fn key(port: u16) -> StreamKey {
    let flow = FiveTuple::new(Endpoint::new([10, 1, 0, 2], port), Endpoint::new([10, 1, 0, 1], 6000));
    StreamKey { flow, ssrc: port.into() }
}

/// A destination behind one of `interfaces` networks.
pub fn destination(network: u32, host: u32) -> IpAddr {
    Ipv4Addr::new(10, 100 + network as u8, 0, 1 + host as u8).into()
}

/// Routes to the destinations of networks behind these interfaces.
pub fn routes(interfaces: &[u32]) -> HashMap<IpAddr, Route> {
    let mut found = HashMap::new();
    for (network, ifindex) in (0..).zip(interfaces) {
        for host in 0..4 {
            let route = Route {
                ifindex: *ifindex,
                to: [2, 0, 0, 0, 1, host as u8],
                from: [2, 0, 0, 0, 0, 1],
                vlan: 0,
            };
            found.insert(destination(network, host), route);
        }
    }
    found
}

const TREES: u32 = 4;
const NODES: u32 = 14;
const NUMBERS: u32 = 3;
const RIDS: u32 = 6;
const STREAMS: u32 = 7;
/// One more than there are interfaces: behind the last there is no route.
const NETWORKS: u32 = 6;

fn action(chance: &mut Chance) -> Action {
    Action {
        mgid: chance.below(TREES) as u16,
        l1_xid: chance.below(3) as u16,
        rid: chance.below(RIDS) as u16,
        l2_xid: chance.below(2) as u16,
        number: chance.below(NUMBERS),
        to_agent: chance.below(2) == 0,
        trees: chance.below(4) as u8,
        layers: chance.below(3) as u16,
        extension: chance.below(16) as u8,
        descriptor: chance.below(5) as u8,
        track: *chance.of(&[0, 1, 1, 2, 3]),
    }
}

fn rewrite(chance: &mut Chance) -> Rewrite {
    let dst = destination(chance.below(NETWORKS), chance.below(4));
    Rewrite {
        src: Endpoint::new(ip("10.2.0.1"), chance.below(1 << 16) as u16),
        dst: Endpoint::new(dst, chance.below(1 << 16) as u16),
        nexthop: chance.below(100) as u16,
        target: chance.below(4) as u8,
        sequence_state: chance.below(3),
        cadence: chance.below(200) as u8,
        payload_types: [
            (0, 0),
            (chance.below(60) as u8, chance.below(128) as u8),
            (96, chance.below(128) as u8),
            (0, 0),
        ],
    }
}

fn members(chance: &mut Chance) -> Vec<Member> {
    (0..chance.below(7))
        .map(|_| Member {
            node: chance.below(NODES),
            xid: (chance.below(2) == 0).then(|| chance.below(3) as u16),
        })
        .collect()
}

fn ports(chance: &mut Chance) -> Vec<u32> {
    (0..chance.below(2)).map(|_| chance.below(2)).collect()
}

/// A change by chance; most are possible.
pub fn change(chance: &mut Chance) -> Change {
    let port = 1000 + chance.below(STREAMS) as u16;
    let name = Name {
        number: chance.below(NUMBERS),
        rid: chance.below(RIDS) as u16,
    };
    let (node, tree) = (chance.below(NODES), chance.below(TREES + 2) as u16);
    match chance.below(26) {
        0..=2 => Change::InsertStream(port, action(chance)),
        3 | 4 => Change::ModifyStream(port, action(chance)),
        5 => Change::DeleteStream(port),
        6..=9 => Change::InsertCopy(name, rewrite(chance)),
        10 => Change::ModifyCopy(name, rewrite(chance)),
        11 => Change::DeleteCopy(name),
        12..=15 => Change::InsertNode(node, chance.below(RIDS) as u16, ports(chance)),
        16 => Change::ModifyNode(node, ports(chance)),
        17 => Change::DeleteNode(node),
        18 | 19 => Change::InsertTree(tree, members(chance)),
        20 | 21 => Change::ModifyTree(tree, members(chance)),
        22 => Change::DeleteTree(tree),
        23 => Change::SetPrune(chance.below(2) as u16, ports(chance)),
        24 => {
            let layer = Layer {
                layer: chance.below(3) as u8,
                switches: chance.below(16) as u16,
            };
            Change::PutLayer(1, chance.below(4) as u8, layer)
        }
        _ => Change::DeleteLayer(1, chance.below(4) as u8),
    }
}

/// Make a change of the real tables.
pub fn make(process: &mut Process, change: &Change) -> Result<(), Fault> {
    let (table, hops) = (&mut process.replication, &mut process.hops);
    match change.clone() {
        Change::InsertStream(port, action) => table.insert_stream(key(port), action, 0),
        Change::ModifyStream(port, action) => table.modify_stream(&key(port), action),
        Change::DeleteStream(port) => table.delete_stream(&key(port)),
        Change::InsertCopy(name, rewrite) => table.insert_copy(hops, name, rewrite),
        Change::ModifyCopy(name, rewrite) => table.modify_copy(hops, name, rewrite),
        Change::DeleteCopy(name) => table.delete_copy(name),
        Change::InsertNode(number, rid, ports) => table.insert_node(number, rid, &ports, &[]),
        Change::ModifyNode(number, ports) => table.modify_node(number, None, &ports, &[]),
        Change::DeleteNode(number) => table.delete_node(number),
        Change::InsertTree(mgid, members) => table.insert_tree(mgid, &members),
        Change::ModifyTree(mgid, members) => table.modify_tree(mgid, &members),
        Change::DeleteTree(mgid) => table.delete_tree(mgid),
        Change::SetPrune(l2_xid, ports) => table.set_prune(l2_xid, &ports),
        Change::PutLayer(layers, template, layer) => table.layers_mut().put(layers, template, layer, false),
        Change::DeleteLayer(layers, template) => table.layers_mut().delete(layers, template).map(drop),
    }
}

impl Model {
    /// Whether a tree may have these members.
    fn may_have(&self, mgid: u16, members: &[Member]) -> bool {
        let free = |node: u32| {
            self.trees
                .iter()
                .all(|(other, tree)| *other == mgid || tree.iter().all(|(one, _)| *one != node))
        };
        let different: BTreeSet<u32> = members.iter().map(|member| member.node).collect();
        different.len() == members.len() && different.iter().all(|node| self.nodes.contains_key(node) && free(*node))
    }

    /// Make a change; false, and nothing changed, when it is impossible.
    pub fn make(&mut self, change: &Change) -> bool {
        let leaves = |members: &[Member]| members.iter().map(|member| (member.node, member.xid)).collect();
        match change.clone() {
            Change::InsertStream(port, action) => !self.streams.contains_key(&port) && self.streams.insert(port, action).is_none(),
            Change::ModifyStream(port, action) => self.streams.contains_key(&port) && self.streams.insert(port, action).is_some(),
            Change::DeleteStream(port) => self.streams.remove(&port).is_some(),
            Change::InsertCopy(name, to) => !self.copies.contains_key(&name) && self.copies.insert(name, to).is_none(),
            Change::ModifyCopy(name, to) => self.copies.contains_key(&name) && self.copies.insert(name, to).is_some(),
            Change::DeleteCopy(name) => self.copies.remove(&name).is_some(),
            Change::InsertNode(number, rid, ports) => {
                !self.nodes.contains_key(&number) && self.nodes.insert(number, (rid, ports.first().copied())).is_none()
            }
            Change::ModifyNode(number, ports) => match self.nodes.get_mut(&number) {
                Some(node) => {
                    node.1 = ports.first().copied();
                    true
                }
                None => false,
            },
            Change::DeleteNode(number) => {
                self.trees.values_mut().for_each(|tree| tree.retain(|(one, _)| *one != number));
                self.nodes.remove(&number).is_some()
            }
            Change::InsertTree(mgid, members) => {
                !self.trees.contains_key(&mgid) && self.may_have(mgid, &members) && self.trees.insert(mgid, leaves(&members)).is_none()
            }
            Change::ModifyTree(mgid, members) => {
                self.trees.contains_key(&mgid) && self.may_have(mgid, &members) && self.trees.insert(mgid, leaves(&members)).is_some()
            }
            Change::DeleteTree(mgid) => self.trees.remove(&mgid).is_some(),
            Change::SetPrune(l2_xid, ports) => {
                self.prunes.remove(&l2_xid);
                if !ports.is_empty() {
                    self.prunes.insert(l2_xid, ports.into_iter().collect());
                }
                true
            }
            Change::PutLayer(layers, template, layer) => {
                self.layers.insert((layers, template), (layer.layer, layer.switches));
                true
            }
            Change::DeleteLayer(layers, template) => {
                self.layers.remove(&(layers, template));
                true
            }
        }
    }

    /// The copies that these tables call for, worked out anew: interface by destination.
    pub fn copies(&self, routes: &HashMap<IpAddr, Route>) -> Copies {
        let list = |action: &Action, mgid: u32| {
            let mut found = Vec::new();
            let tree = u16::try_from(mgid).ok().and_then(|mgid| self.trees.get(&mgid));
            for (number, xid) in tree.into_iter().flatten() {
                let (rid, port) = self.nodes[number];
                let Some(port) = port else { continue };
                let pruned = self.prunes.get(&action.l2_xid).is_some_and(|ports| ports.contains(&port));
                if *xid == Some(action.l1_xid) || (rid == action.rid && pruned) {
                    continue;
                }
                let name = Name {
                    number: action.number,
                    rid,
                };
                let Some(Rewrite { dst, .. }) = self.copies.get(&name) else {
                    continue;
                };
                if let Some(route) = routes.get(&dst.addr) {
                    found.push((route.ifindex, *dst));
                }
            }
            found.sort_by_key(|(ifindex, _)| *ifindex);
            found
        };
        let lists = |action: &Action| action.mgids().map(|mgid| list(action, mgid)).collect();
        self.streams.iter().map(|(port, action)| (*port, lists(action))).collect()
    }

    /// What the real tables hold.
    pub fn of(table: &Replication) -> Self {
        let engine = table.engine();
        let node = |number: u32, rid, port: Option<u16>| (number, (rid, port.map(u32::from)));
        let tree = |mgid: u16| {
            let members = engine.members(mgid).unwrap();
            (mgid, members.iter().map(|member| (member.node, member.xid)).collect())
        };
        let rewrite = |name: Name| (name, table.copy(name).unwrap());
        let prune = |l2_xid: u16| (l2_xid, engine.pruned_ports(l2_xid).into_iter().map(u32::from).collect());
        let layer = |(layers, template): Key| {
            let found = table.layers().get(layers, template).unwrap();
            ((layers, template), (found.layer, found.switches))
        };
        Self {
            streams: table.streams().map(|key| (key.flow.src.port, table.stream(key).unwrap())).collect(),
            copies: table.copies().map(rewrite).collect(),
            nodes: engine.nodes().map(|(number, found)| node(number, found.rid, found.port)).collect(),
            trees: engine.trees().map(tree).collect(),
            prunes: engine.prunes().map(prune).collect(),
            layers: table.layers().keys().map(layer).collect(),
        }
    }
}
