//! The packet replication engine's tables as in P4 Studio's driver: nodes, trees, pruning. No I/O.
//!
//! Changes are rejected as the driver rejects them, with its codes: for example a node in two trees, or a missing node. A deleted node
//! leaves its tree, and a node keeps its RID.

use crate::fault::{Fault, Result};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// `$DEV_PORT` has nine bits.
pub const PORTS: u32 = 512;
/// L2 XIDs of a Tofino 1.
pub const L2_XIDS: u16 = 288;
/// Nodes that the driver can number.
pub const MAX_NODES: usize = 1 << 24;

/// An L1 node: at most one copy, with this RID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub rid: u16,
    pub port: Option<u16>,
    /// The tree that contains it.
    pub mgid: Option<u16>,
}

/// A node in a tree, with its L1 XID if that is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: u32,
    pub xid: Option<u16>,
}

/// The ports of an L2 XID, a bit each.
pub type Ports = [u64; PORTS as usize / 64];

/// A member with the fields of its node that replication reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf {
    node: u32,
    rid: u16,
    port: Option<u16>,
    xid: Option<u16>,
}

/// Reverts a change, if no other one has followed.
#[must_use]
#[derive(Debug)]
pub struct Undo(Step);

#[derive(Debug)]
enum Step {
    ForgetNode(u32),
    SetPort(u32, Option<u16>),
    RestoreNode(u32, Node, Option<(usize, Leaf)>),
    DropTree(u16),
    Refill(u16, Vec<Leaf>),
    Prune(u16, Ports),
}

/// Nodes, trees and prune sets. Every change returns its reversal; a rejected change has no effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    max_nodes: usize,
    nodes: HashMap<u32, Node>,
    trees: HashMap<u16, Vec<Leaf>>,
    prunes: BTreeMap<u16, Ports>,
}

impl Engine {
    #[must_use]
    pub fn new(max_nodes: usize) -> Self {
        Self {
            max_nodes,
            nodes: HashMap::new(),
            trees: HashMap::new(),
            prunes: BTreeMap::new(),
        }
    }

    // Nodes

    /// INSERT into `$pre.node`.
    ///
    /// # Errors
    /// `Exists`, `Invalid`, `Unsupported`, `NoSpace`.
    pub fn add_node(&mut self, number: u32, rid: u16, ports: &[u32], lags: &[u32]) -> Result<Undo> {
        if self.nodes.contains_key(&number) {
            return Err(Fault::Exists(format!("Error in adding PRE node id {number}; table:$pre.node")));
        }
        let port = one_port(ports, lags)?;
        if self.nodes.len() >= self.max_nodes {
            return Err(Fault::NoSpace(format!(
                "There is room for {} nodes; table:$pre.node",
                self.max_nodes
            )));
        }
        self.nodes.insert(number, Node { rid, port, mgid: None });
        Ok(Undo(Step::ForgetNode(number)))
    }

    /// MODIFY of `$pre.node`: sets its port.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Unsupported`.
    pub fn modify_node(&mut self, number: u32, rid: Option<u16>, ports: &[u32], lags: &[u32]) -> Result<Undo> {
        let node = *self.node(number)?;
        if rid.is_some_and(|rid| rid != node.rid) {
            let text = format!("The RID of node {number} is {} for as long as it exists; table:$pre.node", node.rid);
            return Err(Fault::Invalid(text));
        }
        let port = one_port(ports, lags)?;
        self.set_port(number, port);
        Ok(Undo(Step::SetPort(number, node.port)))
    }

    fn set_port(&mut self, number: u32, port: Option<u16>) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.port = port;
        if let Some(tree) = node.mgid.and_then(|mgid| self.trees.get_mut(&mgid)) {
            tree.iter_mut().filter(|leaf| leaf.node == number).for_each(|leaf| leaf.port = port);
        }
    }

    /// DELETE from `$pre.node`; a node in a tree leaves the tree.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn delete_node(&mut self, number: u32) -> Result<Undo> {
        let node = *self.node(number)?;
        self.nodes.remove(&number);
        let place = node.mgid.and_then(|mgid| self.trees.get_mut(&mgid)).and_then(|tree| {
            let at = tree.iter().position(|leaf| leaf.node == number)?;
            Some((at, tree.remove(at)))
        });
        Ok(Undo(Step::RestoreNode(number, node, place)))
    }

    /// Returns a node.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn node(&self, number: u32) -> Result<&Node> {
        self.nodes
            .get(&number)
            .ok_or_else(|| Fault::NotFound(format!("There is no node {number}; table:$pre.node")))
    }

    /// Returns all nodes by number.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().map(|(number, node)| (*number, node))
    }

    // Trees

    /// INSERT into `$pre.mgid`.
    ///
    /// # Errors
    /// `Exists` (the tree, or a node that is in another tree or is named twice), `NotFound` (a node).
    pub fn add_tree(&mut self, mgid: u16, members: &[Member]) -> Result<Undo> {
        if self.trees.contains_key(&mgid) {
            return Err(Fault::Exists(format!("Error in adding PRE MGID {mgid}; table:$pre.mgid")));
        }
        let leaves = self.check(mgid, members)?;
        self.fill(mgid, leaves);
        Ok(Undo(Step::DropTree(mgid)))
    }

    /// MODIFY of `$pre.mgid`: replaces all of its members.
    ///
    /// # Errors
    /// As `add_tree()`, and `NotFound` for the tree.
    pub fn modify_tree(&mut self, mgid: u16, members: &[Member]) -> Result<Undo> {
        self.tree(mgid)?;
        let leaves = self.check(mgid, members)?;
        let before = self.empty(mgid);
        self.fill(mgid, leaves);
        Ok(Undo(Step::Refill(mgid, before)))
    }

    /// DELETE from `$pre.mgid`; its nodes stay.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn delete_tree(&mut self, mgid: u16) -> Result<Undo> {
        self.tree(mgid)?;
        let before = self.empty(mgid);
        Ok(Undo(Step::Refill(mgid, before)))
    }

    fn tree(&self, mgid: u16) -> Result<&[Leaf]> {
        self.trees
            .get(&mgid)
            .map(Vec::as_slice)
            .ok_or_else(|| Fault::NotFound(format!("There is no MGID {mgid}; table:$pre.mgid")))
    }

    /// Returns the nodes of a tree with their L1 XIDs.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn members(&self, mgid: u16) -> Result<Vec<Member>> {
        let tree = self.tree(mgid)?;
        Ok(tree
            .iter()
            .map(|leaf| Member {
                node: leaf.node,
                xid: leaf.xid,
            })
            .collect())
    }

    /// Returns all trees.
    pub fn trees(&self) -> impl Iterator<Item = u16> {
        self.trees.keys().copied()
    }

    #[must_use]
    pub fn has_tree(&self, mgid: u16) -> bool {
        self.trees.contains_key(&mgid)
    }

    fn check(&self, mgid: u16, members: &[Member]) -> Result<Vec<Leaf>> {
        let mut seen = HashSet::with_capacity(members.len());
        let mut leaves = Vec::with_capacity(members.len());
        for member in members {
            let number = member.node;
            let Some(node) = self.nodes.get(&number) else {
                let text = format!("Error in getting node handle for node id {number} of MGID {mgid}; table:$pre.mgid");
                return Err(Fault::NotFound(text));
            };
            let other = if seen.insert(number) {
                node.mgid.filter(|other| *other != mgid)
            } else {
                Some(mgid)
            };
            if let Some(other) = other {
                let text =
                    format!("Failed to associate L1 node {number} with MGID {mgid}, already associated with {other}; table:$pre.mgid");
                return Err(Fault::Exists(text));
            }
            leaves.push(Leaf {
                node: number,
                rid: node.rid,
                port: node.port,
                xid: member.xid,
            });
        }
        Ok(leaves)
    }

    /// Adds a tree with these leaves, none of which is in another tree.
    fn fill(&mut self, mgid: u16, leaves: Vec<Leaf>) {
        for leaf in &leaves {
            if let Some(node) = self.nodes.get_mut(&leaf.node) {
                node.mgid = Some(mgid);
            }
        }
        self.trees.insert(mgid, leaves);
    }

    /// Removes a tree and returns its leaves.
    fn empty(&mut self, mgid: u16) -> Vec<Leaf> {
        let leaves = self.trees.remove(&mgid).unwrap_or_default();
        for leaf in &leaves {
            if let Some(node) = self.nodes.get_mut(&leaf.node) {
                node.mgid = None;
            }
        }
        leaves
    }

    // Pruning

    /// Sets the ports of an L2 XID. The driver does not distinguish INSERT, MODIFY and DELETE.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn set_prune(&mut self, l2_xid: u16, ports: &[u32]) -> Result<Undo> {
        if l2_xid >= L2_XIDS {
            let text = format!("The L2 XID {l2_xid} is not in 0..{}; table:$pre.prune", L2_XIDS - 1);
            return Err(Fault::Invalid(text));
        }
        let mut wanted = Ports::default();
        for port in ports {
            let port = check_port(*port)?;
            wanted[usize::from(port / 64)] |= 1 << (port % 64);
        }
        Ok(Undo(Step::Prune(l2_xid, self.put_prune(l2_xid, wanted))))
    }

    fn put_prune(&mut self, l2_xid: u16, wanted: Ports) -> Ports {
        let before = if wanted == Ports::default() {
            self.prunes.remove(&l2_xid)
        } else {
            self.prunes.insert(l2_xid, wanted)
        };
        before.unwrap_or_default()
    }

    /// Returns the ports of an L2 XID as bits.
    #[must_use]
    pub fn prune(&self, l2_xid: u16) -> Ports {
        self.prunes.get(&l2_xid).copied().unwrap_or_default()
    }

    /// Returns the ports of an L2 XID, ascending.
    #[must_use]
    pub fn pruned_ports(&self, l2_xid: u16) -> Vec<u16> {
        let bits = self.prune(l2_xid);
        (0..PORTS as u16).filter(|port| has(&bits, *port)).collect()
    }

    /// Returns the L2 XIDs with ports.
    pub fn prunes(&self) -> impl Iterator<Item = u16> {
        self.prunes.keys().copied()
    }

    // Reversal

    /// Reverts a change, which must be the last one.
    pub fn undo(&mut self, undo: Undo) {
        match undo.0 {
            Step::ForgetNode(number) => {
                self.nodes.remove(&number);
            }
            Step::SetPort(number, port) => self.set_port(number, port),
            Step::RestoreNode(number, node, place) => {
                self.nodes.insert(number, node);
                if let (Some((at, leaf)), Some(tree)) = (place, node.mgid.and_then(|mgid| self.trees.get_mut(&mgid))) {
                    tree.insert(at.min(tree.len()), leaf);
                }
            }
            Step::DropTree(mgid) => {
                self.empty(mgid);
            }
            Step::Refill(mgid, leaves) => {
                self.empty(mgid);
                self.fill(mgid, leaves);
            }
            Step::Prune(l2_xid, ports) => {
                self.put_prune(l2_xid, ports);
            }
        }
    }

    // Adoption

    /// Takes over a node of a former process.
    pub(crate) fn adopt_node(&mut self, number: u32, rid: u16, port: Option<u16>) {
        self.nodes.insert(number, Node { rid, port, mgid: None });
    }

    /// Takes over a tree of a former process. Returns whether all of its nodes exist; missing ones are left out.
    pub(crate) fn adopt_tree(&mut self, mgid: u16, members: &[Member]) -> bool {
        let mut leaves = Vec::with_capacity(members.len());
        for member in members {
            match self.nodes.entry(member.node) {
                Entry::Occupied(mut node) if node.get().mgid.is_none() => {
                    let node = node.get_mut();
                    node.mgid = Some(mgid);
                    leaves.push(Leaf {
                        node: member.node,
                        rid: node.rid,
                        port: node.port,
                        xid: member.xid,
                    });
                }
                _ => {}
            }
        }
        let all = leaves.len() == members.len();
        self.trees.insert(mgid, leaves);
        all
    }

    /// Takes over the ports of an L2 XID.
    pub(crate) fn adopt_prune(&mut self, l2_xid: u16, ports: Ports) {
        self.put_prune(l2_xid, ports);
    }

    // Replication

    /// Returns the RIDs of the copies of a packet with this metadata, in the tree's order.
    pub fn copies(&self, mgid: u16, l1_xid: u16, rid: u16, l2_xid: u16) -> impl Iterator<Item = u16> {
        let pruned = self.prunes.get(&l2_xid);
        let leaves = self.trees.get(&mgid).map_or(&[][..], Vec::as_slice);
        leaves.iter().filter_map(move |leaf| {
            let port = leaf.port?;
            let own = leaf.rid == rid && pruned.is_some_and(|ports| has(ports, port));
            (leaf.xid != Some(l1_xid) && !own).then_some(leaf.rid)
        })
    }
}

fn has(ports: &Ports, port: u16) -> bool {
    ports[usize::from(port / 64)] >> (port % 64) & 1 != 0
}

fn one_port(ports: &[u32], lags: &[u32]) -> Result<Option<u16>> {
    if !lags.is_empty() {
        let text = "There are no link aggregation groups here; table:$pre.node";
        return Err(Fault::Unsupported(text.into()));
    }
    if ports.len() > 1 {
        let text = "Copies leave by their next hops here, so a node has one port; table:$pre.node";
        return Err(Fault::Unsupported(text.into()));
    }
    ports.first().map(|port| check_port(*port)).transpose()
}

fn check_port(port: u32) -> Result<u16> {
    match u16::try_from(port) {
        Ok(found) if port < PORTS => Ok(found),
        _ => Err(Fault::Invalid(format!("There is no port {port}; table:$pre.node"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(node: u32, xid: impl Into<Option<u16>>) -> Member {
        Member { node, xid: xid.into() }
    }

    fn engine(count: u32) -> Engine {
        let mut made = Engine::new(10);
        for number in 0..count {
            let _ = made.add_node(number, 100 + number as u16, &[number % 2], &[]).unwrap();
        }
        made
    }

    fn copies(engine: &Engine, mgid: u16, l1_xid: u16, rid: u16, l2_xid: u16) -> Vec<u16> {
        engine.copies(mgid, l1_xid, rid, l2_xid).collect()
    }

    #[test]
    fn what_the_driver_rejects() {
        let mut made = engine(4);
        let _ = made.add_tree(1, &[member(0, None), member(1, 5)]).unwrap();
        let before = made.clone();
        let x = None;
        assert!(matches!(made.add_node(0, 1, &[0], &[]), Err(Fault::Exists(_))));
        assert!(matches!(made.add_node(9, 1, &[512], &[]), Err(Fault::Invalid(_))));
        assert!(matches!(made.add_node(9, 1, &[0, 1], &[]), Err(Fault::Unsupported(_))));
        assert!(matches!(made.add_node(9, 1, &[0], &[1]), Err(Fault::Unsupported(_))));
        assert!(matches!(made.modify_node(9, Some(1), &[0], &[]), Err(Fault::NotFound(_))));
        assert!(matches!(made.modify_node(0, Some(1), &[0], &[]), Err(Fault::Invalid(_)))); // the RID is the node's for life
        assert!(matches!(made.delete_node(9), Err(Fault::NotFound(_))));
        assert!(matches!(made.add_tree(1, &[]), Err(Fault::Exists(_))));
        assert!(matches!(made.add_tree(2, &[member(9, x)]), Err(Fault::NotFound(_))));
        assert!(matches!(made.add_tree(2, &[member(0, x)]), Err(Fault::Exists(_)))); // a node is in one tree
        assert!(matches!(made.add_tree(2, &[member(2, x), member(2, x)]), Err(Fault::Exists(_))));
        assert!(matches!(made.modify_tree(2, &[]), Err(Fault::NotFound(_))));
        assert!(matches!(
            made.modify_tree(1, &[member(0, x), member(9, x)]),
            Err(Fault::NotFound(_))
        ));
        assert!(matches!(made.delete_tree(2), Err(Fault::NotFound(_))));
        assert!(matches!(made.set_prune(288, &[0]), Err(Fault::Invalid(_))));
        assert!(matches!(made.set_prune(1, &[600]), Err(Fault::Invalid(_))));
        assert_eq!(made, before);
        assert_eq!(made.members(1).unwrap(), [member(0, None), member(1, 5)]);
        for number in 4..10 {
            let _ = made.add_node(number, 0, &[], &[]).unwrap();
        }
        assert!(matches!(made.add_node(10, 0, &[], &[]), Err(Fault::NoSpace(_))));
    }

    #[test]
    fn a_deleted_node_leaves_its_tree_and_a_tree_leaves_its_nodes() {
        let mut made = engine(4);
        let _ = made.add_tree(1, &[member(0, None), member(1, None), member(2, None)]).unwrap();
        let undo = made.delete_node(1).unwrap();
        assert_eq!(copies(&made, 1, 0, 0, 0), [100, 102]);
        made.undo(undo);
        assert_eq!(copies(&made, 1, 0, 0, 0), [100, 101, 102]);
        let _ = made.delete_tree(1).unwrap();
        assert_eq!((made.nodes().count(), copies(&made, 1, 0, 0, 0).len()), (4, 0));
        let _ = made.add_tree(2, &[member(1, None)]).unwrap();
    }

    #[test]
    fn pruning() {
        let mut made = engine(4);
        let _ = made.add_node(4, 104, &[], &[]).unwrap();
        let _ = made.set_prune(7, &[1]).unwrap();
        let members = [member(0, 1), member(1, 1), member(2, 2), member(3, None), member(4, None)];
        let _ = made.add_tree(1, &members).unwrap();
        // A node without a port makes no copy.
        assert_eq!(copies(&made, 1, 0, 0, 0), [100, 101, 102, 103]);
        // An L1 XID removes the nodes that have it, if it is valid.
        assert_eq!(copies(&made, 1, 2, 0, 0), [100, 101, 103]);
        // A RID with the L2 XID of its port removes its copy, but not one on another port.
        assert_eq!(copies(&made, 1, 2, 101, 7), [100, 103]);
        assert_eq!(copies(&made, 1, 2, 100, 7), [100, 101, 103]);
        assert_eq!(copies(&made, 1, 2, 101, 0), [100, 101, 103]);
        assert_eq!(made.pruned_ports(7), [1]);
    }

    #[derive(Clone, Debug)]
    enum Change {
        AddNode(u32, u16, Vec<u32>),
        ModifyNode(u32, u16, Vec<u32>),
        DeleteNode(u32),
        AddTree(u16, Vec<Member>),
        ModifyTree(u16, Vec<Member>),
        DeleteTree(u16),
        SetPrune(u16, Vec<u32>),
    }

    fn change() -> impl Strategy<Value = Change> {
        let ports = || proptest::collection::vec(0u32..2, 0..=1);
        let members = || {
            let xid = prop_oneof![Just(None), (0u16..3).prop_map(Some)];
            proptest::collection::vec((0u32..6, xid).prop_map(|(node, xid)| Member { node, xid }), 0..=4)
        };
        prop_oneof![
            (0u32..6, 0u16..4, ports()).prop_map(|(number, rid, ports)| Change::AddNode(number, rid, ports)),
            (0u32..6, 0u16..4, ports()).prop_map(|(number, rid, ports)| Change::ModifyNode(number, rid, ports)),
            (0u32..6).prop_map(Change::DeleteNode),
            (0u16..3, members()).prop_map(|(mgid, members)| Change::AddTree(mgid, members)),
            (0u16..3, members()).prop_map(|(mgid, members)| Change::ModifyTree(mgid, members)),
            (0u16..3).prop_map(Change::DeleteTree),
            (0u16..3, proptest::collection::vec(0u32..2, 0..3)).prop_map(|(xid, ports)| Change::SetPrune(xid, ports)),
        ]
    }

    fn make(engine: &mut Engine, change: &Change) -> Result<Undo> {
        match change {
            Change::AddNode(number, rid, ports) => engine.add_node(*number, *rid, ports, &[]),
            Change::ModifyNode(number, rid, ports) => engine.modify_node(*number, Some(*rid), ports, &[]),
            Change::DeleteNode(number) => engine.delete_node(*number),
            Change::AddTree(mgid, members) => engine.add_tree(*mgid, members),
            Change::ModifyTree(mgid, members) => engine.modify_tree(*mgid, members),
            Change::DeleteTree(mgid) => engine.delete_tree(*mgid),
            Change::SetPrune(xid, ports) => engine.set_prune(*xid, ports),
        }
    }

    proptest! {
        #[test]
        fn every_change_can_be_taken_back(changes in proptest::collection::vec(change(), 0..30), take_back in any::<bool>()) {
            let mut made = Engine::new(MAX_NODES);
            for change in changes {
                let before = made.clone();
                let Ok(undo) = make(&mut made, &change) else {
                    prop_assert_eq!(&made, &before, "what was rejected changed nothing");
                    continue;
                };
                if take_back {
                    let after = made.clone();
                    made.undo(undo);
                    prop_assert_eq!(&made, &before);
                    let _ = make(&mut made, &change).unwrap();
                    prop_assert_eq!(&made, &after);
                }
                for (mgid, tree) in &made.trees {
                    for leaf in tree {
                        let node = made.nodes[&leaf.node];
                        prop_assert_eq!((node.mgid, node.rid, node.port), (Some(*mgid), leaf.rid, leaf.port));
                    }
                }
                let in_trees = made.nodes.values().filter(|node| node.mgid.is_some()).count();
                prop_assert_eq!(in_trees, made.trees.values().map(Vec::len).sum::<usize>());
            }
        }
    }
}
