//! Changes of a conference as an ordered list of table writes: first new rows, then moves, then deletes.
//!
//! The caller executes each write before it asks for the next one. A tree's row is composed at that moment, because another conference may
//! use the other half and change too. A write of one row is assumed to be atomic for packets, and a packet matches one row of `conference`
//! or `relay` and goes into one tree. Therefore no receiver ever gets two copies of a packet, or misses one that it gets before and after
//! the change. For the same reason a tree that stays is changed in place. Packets in transit still find their rows: nothing that they may
//! need is deleted before [`Write::Drain`].

use crate::allocation::{Reserved, Room, Slot};
use crate::placement::{Placement, Placer};
use crate::tables::{Limits, Member, Name, Node, Replicate, Row, Source, Value, Write};
use crate::trees::{Design, Layout, LayoutError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// Options of a change.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Use this design instead of the cheapest one.
    pub design: Option<Design>,
    /// Build new trees even if the old ones could be changed in place, for a data plane whose tree writes are not atomic.
    pub rebuild: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Write(Write),
    /// Set a conference's nodes in its half of a tree.
    Tree(u32, usize, Vec<Member>),
    /// Write the exclusion set of a port, unless it exists.
    Prune(u32, u32),
    GiveHalf(Slot),
    GiveNode(u32),
    DropExclusion(u32),
    /// Marks the point from which writes affect packets.
    Moves,
    Forget(BTreeSet<Name>),
}

/// A change in progress.
#[derive(Debug)]
pub struct Change {
    old: Placement,
    new: Placement,
    steps: VecDeque<Step>,
    begun: HashSet<Row>,
    moving: bool,
    abandoned: bool,
}

/// Places conferences in one engine. A conference has at most one change in progress; several conferences may change at the same time.
#[derive(Debug)]
pub struct Allocator {
    room: Room,
    qualities: u32,
    placements: HashMap<Name, Placement>,
    trees: HashMap<u32, [Vec<Member>; 2]>,
    excluding: HashSet<u32>,
    changing: HashSet<Name>,
}

impl Allocator {
    /// `qualities`: trees of a set, 1 to 16.
    #[must_use]
    pub fn new(limits: Limits, qualities: u32) -> Self {
        let qualities = qualities.clamp(1, 16);
        Self {
            room: Room::new(limits, qualities),
            qualities,
            placements: HashMap::new(),
            trees: HashMap::new(),
            excluding: HashSet::new(),
            changing: HashSet::new(),
        }
    }

    /// Reserves the numbers of rows found in the data plane, before anything is placed. New layouts avoid these numbers until the rows are
    /// deleted and [`Allocator::give_back`] is called.
    pub fn reserve<'a>(&mut self, found: impl Iterator<Item = &'a Row>) -> Reserved {
        self.room.reserve(found)
    }

    /// Releases the numbers of found rows after their deletion.
    pub fn give_back(&mut self, found: Reserved) {
        self.room.give_back(found);
    }

    /// Returns the design in force; `None` if the conference has no participants.
    #[must_use]
    pub fn design(&self, conference: &str) -> Option<Design> {
        self.placements.get(conference).map(|placement| placement.design)
    }

    /// Returns the layout that the conference has now.
    #[must_use]
    pub fn layout(&self, conference: &str) -> Option<&Layout> {
        self.placements.get(conference).map(|placement| &placement.layout)
    }

    /// Returns the streams in trees.
    pub fn streams(&self, conference: &str) -> impl Iterator<Item = (&Source, &Replicate)> {
        self.placements.get(conference).into_iter().flat_map(|placement| &placement.streams)
    }

    /// Starts a change of a conference to this layout; a layout without participants ends it. After an error nothing has changed.
    ///
    /// # Errors
    /// There is no room, the design cannot express the layout, or another change of the conference is in progress.
    pub fn change(&mut self, layout: Layout, how: How) -> Result<Change, LayoutError> {
        let name = layout.conference.clone();
        if self.changing.contains(&name) {
            return Err(LayoutError::Changing(name));
        }
        let cheapest = layout.design(self.qualities)?;
        let design = how.design.unwrap_or(cheapest);
        if design < cheapest {
            return Err(LayoutError::Design(name, design.name(), cheapest.name()));
        }
        let old = self.placements.get(&name);
        let placer = Placer::new(&mut self.room, old, &layout, design, how.rebuild, self.qualities);
        let new = placer.place(layout, design)?;
        let old = old
            .cloned()
            .unwrap_or_else(|| Placement::new(Layout::empty(name.clone()), Design::TwoParty));
        let steps = self.steps(&old, &new)?;
        self.changing.insert(name);
        Ok(Change {
            old,
            new,
            steps,
            begun: HashSet::new(),
            moving: false,
            abandoned: false,
        })
    }

    /// Returns the next write that does not affect packets; `None`: the next write from [`Allocator::next`] moves streams. Until then the
    /// change can be abandoned.
    pub fn next_new(&mut self, change: &mut Change) -> Option<Write> {
        while !change.moving && !matches!(change.steps.front(), None | Some(Step::Moves)) {
            let write = change.steps.pop_front().and_then(|step| self.carry_out(step, change));
            if let Some(row) = write.as_ref().and_then(Write::row) {
                change.begun.insert(row.clone());
                return write;
            }
        }
        None
    }

    /// Returns the next write of a change; `None` when the change is complete.
    pub fn next(&mut self, change: &mut Change) -> Option<Write> {
        while let Some(step) = change.steps.pop_front() {
            let write = self.carry_out(step, change);
            let Some(write) = write else { continue };
            if let Some(row) = write.row() {
                let undone = matches!(row, Row::Tree(_)) || change.begun.contains(row);
                if change.abandoned && !undone {
                    continue;
                }
                change.begun.insert(row.clone());
            }
            return Some(write);
        }
        let name = change.new.layout.conference.clone();
        if self.changing.remove(&name) && !change.abandoned {
            if change.new.layout.participants.is_empty() {
                self.placements.remove(&name);
            } else {
                self.placements.insert(name, change.new.clone());
            }
        }
        None
    }

    /// Handles a failed write: from now on [`Allocator::next`] undoes the change. Returns `false` if streams have already moved.
    pub fn abandon(&mut self, change: &mut Change) -> bool {
        if change.moving || change.abandoned {
            return false;
        }
        change.abandoned = true;
        let mut steps = VecDeque::new();
        free(&change.new, &change.old, &mut steps);
        steps.push_back(Step::Forget(change.old.layout.names()));
        change.steps = steps;
        true
    }

    fn steps(&mut self, old: &Placement, new: &Placement) -> Result<VecDeque<Step>, LayoutError> {
        let mut steps = VecDeque::new();
        self.build(old, new, &mut steps)?;
        steps.push_back(Step::Moves);
        moves(old, new, &mut steps);
        steps.push_back(Step::Write(Write::Drain));
        for source in old.streams.keys().filter(|source| new.relay.contains_key(source)) {
            steps.push_back(Step::Write(Write::Delete(Row::Stream(source.clone()))));
        }
        free(old, new, &mut steps);
        steps.push_back(Step::Forget(new.layout.names()));
        Ok(steps)
    }

    /// Plans new rows that do not affect packets.
    fn build(&mut self, old: &Placement, new: &Placement, steps: &mut VecDeque<Step>) -> Result<(), LayoutError> {
        let ports: BTreeMap<&Name, Option<u32>> = new.layout.participants.iter().map(|one| (&one.name, one.port)).collect();
        for (place, node) in new.nodes.iter().filter(|(place, node)| old.nodes.get(place) != Some(node)) {
            let (_, half, participant) = place;
            let value = Node {
                rid: self.room.rid(&new.layout.conference, participant, *half)?,
                port: ports.get(participant).copied().flatten(),
            };
            steps.push_back(Step::Write(Write::Add(Row::Node(*node), Value::Node(value))));
        }
        for (_, slot) in new.slots.iter().filter(|(key, slot)| old.slots.get(key) != Some(slot)) {
            fill(*slot, Some(new), steps);
        }
        for (row, copy) in new.copies.iter().filter(|(row, _)| !old.copies.contains_key(row)) {
            steps.push_back(Step::Write(Write::Add(Row::Copy(row.0, row.1), Value::Copy(copy.clone()))));
        }
        for (source, replicate) in new.streams.iter().filter(|(_, replicate)| replicate.l2_xid != 0) {
            if let Some(port) = ports.get(&source.sender).copied().flatten() {
                steps.push_back(Step::Prune(replicate.l2_xid, port));
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, step: Step, change: &mut Change) -> Option<Write> {
        match step {
            Step::Write(write) => return Some(write),
            Step::Tree(mgid, half, members) => return self.tree(mgid, half, members),
            Step::Prune(xid, port) => {
                let value = Value::Prune(BTreeSet::from([port]));
                return self.excluding.insert(xid).then_some(Write::Modify(Row::Prune(xid), value));
            }
            Step::DropExclusion(port) => {
                let xid = self.room.drop_exclusion(port)?;
                self.excluding.remove(&xid);
                return Some(Write::Modify(Row::Prune(xid), Value::Prune(BTreeSet::new())));
            }
            Step::GiveHalf(slot) => self.room.give_half(slot),
            Step::GiveNode(node) => self.room.give_node(node),
            Step::Moves => change.moving = true,
            Step::Forget(participants) => self.room.forget(&change.new.layout.conference, &participants),
        }
        None
    }

    fn tree(&mut self, mgid: u32, half: usize, members: Vec<Member>) -> Option<Write> {
        let halves = self.trees.entry(mgid).or_default();
        let existed = halves.iter().any(|half| !half.is_empty());
        let changed = halves[half] != members;
        halves[half] = members;
        let whole = halves.concat();
        if whole.is_empty() {
            self.trees.remove(&mgid);
        }
        match (changed, existed, whole.is_empty()) {
            (false, ..) => None,
            (_, _, true) => Some(Write::Delete(Row::Tree(mgid))),
            (_, true, _) => Some(Write::Modify(Row::Tree(mgid), Value::Tree(whole))),
            (_, false, _) => Some(Write::Add(Row::Tree(mgid), Value::Tree(whole))),
        }
    }
}

/// Plans the writes of a placement's nodes, or of none, to its half of a slot's trees.
fn fill(slot: Slot, placement: Option<&Placement>, steps: &mut VecDeque<Step>) {
    for mgid in slot.base..slot.base + slot.trees {
        let nodes = placement.into_iter().flat_map(|placement| &placement.nodes);
        let here = nodes.filter(|((tree, half, _), _)| (*tree, *half) == (mgid, slot.half));
        let members = here.map(|(_, node)| Member {
            node: *node,
            xid: slot.half as u16 + 1,
        });
        steps.push_back(Step::Tree(mgid, slot.half, members.collect()));
    }
}

/// Plans the moves. Each write moves whole packets of one stream, or of one tree that stays, from the old state to the new one.
fn moves(old: &Placement, new: &Placement, steps: &mut VecDeque<Step>) {
    let mut write = |write| steps.push_back(Step::Write(write));
    for source in old
        .streams
        .keys()
        .filter(|source| !new.streams.contains_key(source) && !new.relay.contains_key(source))
    {
        write(Write::Delete(Row::Stream(source.clone())));
    }
    for source in old
        .relay
        .keys()
        .filter(|source| !new.streams.contains_key(source) && !new.relay.contains_key(source))
    {
        write(Write::Delete(Row::Relay(source.clone())));
    }
    for (_, slot) in new.slots.iter().filter(|(key, slot)| old.slots.get(key) == Some(slot)) {
        fill(*slot, Some(new), steps);
    }
    let mut write = |row, value, there| {
        let made = if there { Write::Modify(row, value) } else { Write::Add(row, value) };
        steps.push_back(Step::Write(made));
    };
    for (source, value) in new.streams.iter().filter(|(source, value)| old.streams.get(source) != Some(value)) {
        write(Row::Stream(source.clone()), Value::Stream(*value), old.streams.contains_key(source));
    }
    for (source, receiver) in new
        .relay
        .iter()
        .filter(|(source, receiver)| old.relay.get(source) != Some(receiver))
    {
        write(
            Row::Relay(source.clone()),
            Value::Relay(receiver.clone()),
            old.relay.contains_key(source),
        );
    }
    // Until now the relay entry matched the packets first.
    for source in old.relay.keys().filter(|source| new.streams.contains_key(source)) {
        steps.push_back(Step::Write(Write::Delete(Row::Relay(source.clone()))));
    }
}

/// Plans the deletion of rows and numbers that only the old state needs.
fn free(gone: &Placement, stays: &Placement, steps: &mut VecDeque<Step>) {
    for row in gone.copies.keys().filter(|row| !stays.copies.contains_key(row)) {
        steps.push_back(Step::Write(Write::Delete(Row::Copy(row.0, row.1))));
    }
    for (_, slot) in gone.slots.iter().filter(|(key, slot)| stays.slots.get(key) != Some(slot)) {
        fill(*slot, None, steps);
        steps.push_back(Step::GiveHalf(*slot));
    }
    for (_, node) in gone.nodes.iter().filter(|(place, node)| stays.nodes.get(place) != Some(node)) {
        steps.push_back(Step::Write(Write::Delete(Row::Node(*node))));
        steps.push_back(Step::GiveNode(*node));
    }
    steps.extend(gone.pruned_ports().into_iter().map(Step::DropExclusion));
}
