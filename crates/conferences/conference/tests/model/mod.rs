//! A model of the replication engine: rows in force, and what becomes of a packet at each of its stages.
#![allow(dead_code)]

use shunt_conference::migration::{Allocator, Change, How};
use shunt_conference::tables::{CopyTo, Member, Name, Node, Replicate, Row, Source, Value, Write};
use shunt_conference::trees::{Layout, Participant};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables(pub HashMap<Row, Value>);

impl Tables {
    /// One write, refused as a data plane refuses it: adding what is there, changing or deleting what is not, dangling nodes.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Modify(row @ Row::Prune(_), value) => {
                if value == &Value::Prune(BTreeSet::new()) {
                    self.0.remove(row);
                } else {
                    self.0.insert(row.clone(), value.clone());
                }
            }
            Write::Add(row, value) => {
                self.check(value);
                assert!(self.0.insert(row.clone(), value.clone()).is_none(), "{row:?} is there");
            }
            Write::Modify(row, value) => {
                self.check(value);
                assert!(self.0.insert(row.clone(), value.clone()).is_some(), "{row:?} is not there");
            }
            Write::Delete(row) => {
                if let Row::Node(node) = row {
                    let named = self
                        .0
                        .values()
                        .any(|value| matches!(value, Value::Tree(members) if members.iter().any(|one| one.node == *node)));
                    assert!(!named, "a tree names node {node}");
                }
                assert!(self.0.remove(row).is_some(), "{row:?} is not there");
            }
            Write::Drain => {}
        }
    }

    fn check(&self, value: &Value) {
        if let Value::Tree(members) = value {
            let known = |member: &Member| self.0.contains_key(&Row::Node(member.node));
            assert!(members.iter().all(known), "a tree names a node that is not there");
        }
    }

    pub fn ingress(&self, source: &Source) -> Option<Value> {
        let relay = self.0.get(&Row::Relay(source.clone()));
        relay.or_else(|| self.0.get(&Row::Stream(source.clone()))).cloned()
    }

    /// RIDs of the copies that the engine makes of a packet of this layer.
    pub fn replicate(&self, action: &Replicate, layer: u32) -> Vec<u32> {
        let Some(Value::Tree(members)) = self.0.get(&Row::Tree(action.mgid + layer.min(action.trees - 1))) else {
            return Vec::new();
        };
        let pruned = match self.0.get(&Row::Prune(action.l2_xid)) {
            Some(Value::Prune(ports)) => ports.clone(),
            _ => BTreeSet::new(),
        };
        let node = |member: &Member| match self.0.get(&Row::Node(member.node)) {
            Some(Value::Node(Node { rid, port: Some(port) })) => Some((*rid, *port)),
            _ => None,
        };
        let others = members.iter().filter(|member| member.xid != action.l1_xid);
        let copies = others
            .filter_map(node)
            .filter(|(rid, port)| !(*rid == action.rid && pruned.contains(port)));
        copies.map(|(rid, _)| rid).collect()
    }

    pub fn egress(&self, stream: u32, rid: u32) -> Option<CopyTo> {
        match self.0.get(&Row::Copy(stream, rid)) {
            Some(Value::Copy(copy)) => Some(copy.clone()),
            _ => None,
        }
    }

    /// The receivers of a packet of this layer, one entry for each copy.
    pub fn receivers(&self, source: &Source, layer: u32) -> Vec<Name> {
        let mut all = journeys(std::slice::from_ref(self), source, layer);
        all.pop().unwrap_or_default()
    }
}

/// The receivers of a packet that may meet later tables at each stage of its way. Of moments at which a stage does the same, only the earliest
/// counts: all that can follow the others can follow it.
pub fn journeys(history: &[Tables], source: &Source, layer: u32) -> Vec<Vec<Name>> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for (i, tables) in history.iter().enumerate() {
        let action = tables.ingress(source);
        if seen.contains(&action) {
            continue;
        }
        seen.push(action.clone());
        match action {
            Some(Value::Relay(receiver)) => found.push(vec![receiver]),
            Some(Value::Stream(replicate)) => {
                let mut made: Vec<Vec<u32>> = Vec::new();
                for (j, tables) in history.iter().enumerate().skip(i) {
                    let copies = tables.replicate(&replicate, layer);
                    if made.contains(&copies) {
                        continue;
                    }
                    for tables in &history[j..] {
                        let copies: Vec<CopyTo> = copies.iter().filter_map(|rid| tables.egress(replicate.stream, *rid)).collect();
                        assert!(copies.iter().all(|copy| copy.source == *source), "a copy of another stream");
                        found.push(copies.into_iter().map(|copy| copy.receiver).collect());
                    }
                    made.push(copies);
                }
            }
            _ => found.push(Vec::new()),
        }
    }
    found
}

pub fn name(text: &str) -> Name {
    Name::from(text)
}

pub fn source(conference: &str, sender: &str, stream: &str) -> Source {
    Source {
        conference: name(conference),
        sender: name(sender),
        stream: name(stream),
    }
}

pub const TOP: u32 = 2;

/// Who gets what of a layout: by (source, layer).
pub fn wanted(layout: &Layout) -> BTreeMap<(Source, u32), BTreeSet<Name>> {
    let mut out = BTreeMap::new();
    for sender in layout.senders() {
        for (stream, layered) in &sender.streams {
            for layer in 0..if *layered { TOP + 1 } else { 1 } {
                let who = layout
                    .participants
                    .iter()
                    .filter(|one| layout.wants(&sender.name, &one.name, *layered, layer));
                out.insert(
                    (source(&layout.conference, &sender.name, stream), layer),
                    who.map(|one| one.name.clone()).collect(),
                );
            }
        }
    }
    out
}

pub fn participants(names: &str) -> Vec<Participant> {
    let one = |(at, letter): (usize, char)| Participant {
        name: name(&letter.to_string()),
        port: Some(at as u32 % 4),
        streams: vec![(name("audio"), false), (name("video"), true)],
    };
    names.chars().enumerate().map(one).collect()
}

pub fn layout(conference: &str, names: &str) -> Layout {
    Layout {
        participants: participants(names),
        ..Layout::empty(name(conference))
    }
}

pub fn assert_delivers(tables: &Tables, layouts: &[&Layout]) {
    for layout in layouts {
        for ((source, layer), receivers) in wanted(layout) {
            let mut got = tables.receivers(&source, layer);
            got.sort();
            assert_eq!(got, receivers.into_iter().collect::<Vec<_>>(), "{source:?} layer {layer}");
        }
    }
}

/// No packet, wherever the writes overtake it, is lost or doubled.
pub fn check_between(history: &[Tables], before: &Layout, after: &Layout) {
    let (old, new) = (wanted(before), wanted(after));
    let nobody = BTreeSet::new();
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).cloned().collect();
    for key in keys {
        let (source, layer) = &key;
        let (was, will) = (old.get(&key).unwrap_or(&nobody), new.get(&key).unwrap_or(&nobody));
        let both = before.names().contains(&source.sender) && after.names().contains(&source.sender);
        let always: BTreeSet<Name> = if both { was & will } else { BTreeSet::new() };
        let mut most = was | will;
        if !new.contains_key(&key) {
            // Last packets of a stream that ends may follow who is raised in the same change.
            most = &before.names() | &after.names();
            most.remove(&source.sender);
        }
        for receivers in journeys(history, source, *layer) {
            let got: BTreeSet<Name> = receivers.iter().cloned().collect();
            assert_eq!(got.len(), receivers.len(), "{key:?}: twice to somebody");
            assert!(
                always.is_subset(&got) && got.is_subset(&most),
                "{key:?}: {got:?}, not {always:?} to {most:?}"
            );
        }
    }
}

pub fn run(allocator: &mut Allocator, tables: &mut Tables, layout: &Layout, how: How) -> Vec<Write> {
    let mut change = allocator.change(layout.clone(), how).expect("there is room");
    finish(allocator, tables, &mut change)
}

pub fn finish(allocator: &mut Allocator, tables: &mut Tables, change: &mut Change) -> Vec<Write> {
    let mut done = Vec::new();
    while let Some(write) = allocator.next(change) {
        tables.apply(&write);
        done.push(write);
    }
    done
}

/// Carry a change out; packets may be under way across any writes, but not across the drain.
pub fn run_checked(
    allocator: &mut Allocator,
    tables: &mut Tables,
    before: &Layout,
    after: &Layout,
    others: &[&Layout],
    how: How,
) -> Vec<Write> {
    let mut change = allocator.change(after.clone(), how).expect("there is room");
    let (mut history, mut done) = (vec![tables.clone()], Vec::new());
    while let Some(write) = allocator.next(&mut change) {
        if write == Write::Drain {
            check_between(&history, before, after);
            assert_delivers(tables, &[after]);
            history = vec![tables.clone()];
        } else {
            tables.apply(&write);
            history.push(tables.clone());
            assert_delivers(tables, others);
        }
        done.push(write);
    }
    check_between(&history, after, after);
    assert_delivers(tables, &[after]);
    assert_delivers(tables, others);
    done
}
