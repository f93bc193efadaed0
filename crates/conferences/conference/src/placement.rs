//! Places a conference in the engine: slots, nodes, and the resulting rows. A placement is complete or fails without effect.

use crate::allocation::{Room, Slot};
use crate::tables::{CopyTo, Name, Replicate, Source};
use crate::trees::{Design, Layers, Layout, LayoutError, Participant};
use std::collections::BTreeMap;

/// A tree, its half, and the participant of the node.
pub(crate) type Place = (u32, usize, Name);

#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub layout: Layout,
    pub design: Design,
    /// By sender (RA-SR), or `None`.
    pub slots: BTreeMap<Option<Name>, Slot>,
    pub nodes: BTreeMap<Place, u32>,
    pub relay: BTreeMap<Source, Name>,
    pub streams: BTreeMap<Source, Replicate>,
    pub copies: BTreeMap<(u32, u32), CopyTo>,
}

impl Placement {
    pub fn new(layout: Layout, design: Design) -> Self {
        Self {
            layout,
            design,
            slots: BTreeMap::new(),
            nodes: BTreeMap::new(),
            relay: BTreeMap::new(),
            streams: BTreeMap::new(),
            copies: BTreeMap::new(),
        }
    }

    /// Returns the ports of senders whose own copies are pruned.
    pub fn pruned_ports(&self) -> Vec<u32> {
        let pruned = matches!(self.design, Design::Nra | Design::RaR);
        self.layout.senders().filter(|_| pruned).filter_map(|sender| sender.port).collect()
    }
}

/// Allocated numbers, to be released if the rest of the placement fails.
enum Taken {
    Half(Slot),
    Node(u32),
    Exclusion(u32),
}

/// Places one layout. `old`: the present placement; `in_place`: whether its trees may be changed in place.
pub(crate) struct Placer<'a> {
    pub room: &'a mut Room,
    pub old: Option<&'a Placement>,
    pub in_place: bool,
    /// Whether a participant's port has changed.
    pub moved: bool,
    pub qualities: u32,
    taken: Vec<Taken>,
}

impl<'a> Placer<'a> {
    pub fn new(room: &'a mut Room, old: Option<&'a Placement>, layout: &Layout, design: Design, rebuild: bool, qualities: u32) -> Self {
        let port_of = |name: &Name| {
            old.and_then(|old| old.layout.participants.iter().find(|one| one.name == *name))
                .map(|one| one.port)
        };
        let moved = layout
            .participants
            .iter()
            .any(|one| port_of(&one.name).is_some_and(|port| port != one.port));
        Self {
            room,
            old,
            in_place: old.is_some_and(|old| old.design == design) && !rebuild && !moved,
            moved,
            qualities,
            taken: Vec::new(),
        }
    }

    /// # Errors
    /// There is no room; no number is allocated then.
    pub fn place(mut self, layout: Layout, design: Design) -> Result<Placement, LayoutError> {
        let conference = layout.conference.clone();
        let known = self.old.map(|old| old.layout.names()).unwrap_or_default();
        let mut placement = Placement::new(layout, design);
        let placed = self.fill(&mut placement);
        if let Err(error) = placed {
            for taken in self.taken.drain(..).rev() {
                match taken {
                    Taken::Half(slot) => self.room.give_half(slot),
                    Taken::Node(node) => self.room.give_node(node),
                    Taken::Exclusion(port) => {
                        self.room.drop_exclusion(port);
                    }
                }
            }
            self.room.forget(&conference, &known);
            return Err(error);
        }
        Ok(placement)
    }

    fn fill(&mut self, placement: &mut Placement) -> Result<(), LayoutError> {
        let layout = placement.layout.clone();
        for participant in &layout.participants {
            self.room.index(&layout.conference, &participant.name)?;
        }
        if placement.design == Design::TwoParty {
            two_party(placement);
            return Ok(());
        }
        let keys: Vec<Option<Name>> = match placement.design {
            Design::RaSr => layout.senders().map(|sender| Some(sender.name.clone())).collect(),
            _ => vec![None],
        };
        for key in keys {
            self.tree_set(placement, &layout, key)?;
        }
        for sender in layout.senders() {
            self.streams(placement, &layout, sender)?;
        }
        Ok(())
    }

    /// Allocates a set of trees with its nodes, for one sender or for all.
    fn tree_set(&mut self, placement: &mut Placement, layout: &Layout, key: Option<Name>) -> Result<(), LayoutError> {
        let trees = if placement.design == Design::Nra { 1 } else { self.qualities };
        let reused = self.old.filter(|_| self.in_place);
        let slot = match reused.and_then(|old| old.slots.get(&key)) {
            Some(slot) => *slot,
            None => {
                // RIDs stay the same, and with them the rows of `copy`. If the rows of `copy` depend on the port, a changed port needs new
                // RIDs, so that each copy has the row of its port.
                let half = self
                    .old
                    .and_then(|old| old.slots.values().next())
                    .map(|slot| slot.half ^ usize::from(self.moved));
                let slot = self.room.half(trees, half.filter(|_| key.is_none()))?;
                self.taken.push(Taken::Half(slot));
                slot
            }
        };
        for layer in (0..trees).filter(|layer| trees == 1 || layout.sends(key.as_ref(), *layer)) {
            for participant in layout
                .participants
                .iter()
                .filter(|one| in_tree(layout, key.as_ref(), &one.name, layer))
            {
                let place = (slot.base + layer, slot.half, participant.name.clone());
                let node = match reused.and_then(|old| old.nodes.get(&place)) {
                    Some(node) => *node,
                    None => {
                        let node = self.room.node()?;
                        self.taken.push(Taken::Node(node));
                        node
                    }
                };
                placement.nodes.insert(place, node);
            }
        }
        placement.slots.insert(key, slot);
        Ok(())
    }

    /// Adds the rows of a sender's streams and of their copies.
    fn streams(&mut self, placement: &mut Placement, layout: &Layout, sender: &Participant) -> Result<(), LayoutError> {
        let conference = &layout.conference;
        let key = (placement.design == Design::RaSr).then(|| sender.name.clone());
        let Some(slot) = placement.slots.get(&key).copied() else {
            return Ok(());
        };
        let mut l2_xid = 0;
        if let (None, Some(port)) = (&key, sender.port) {
            l2_xid = self.room.exclusion(port)?;
            self.taken.push(Taken::Exclusion(port));
        }
        for (name, layered) in &sender.streams {
            let source = Source {
                conference: conference.clone(),
                sender: sender.name.clone(),
                stream: name.clone(),
            };
            let stream = self.room.stream(&source)?;
            let rid = if l2_xid == 0 {
                0
            } else {
                self.room.rid(conference, &sender.name, slot.half)?
            };
            let reach = if *layered { Layers::MAX } else { 1 };
            let gets = |one: &&Participant| one.name != sender.name && layout.target(&sender.name, &one.name, Layers::MAX) & reach != 0;
            for receiver in layout.participants.iter().filter(gets) {
                let row = (stream, self.room.rid(conference, &receiver.name, slot.half)?);
                let copy = CopyTo {
                    source: source.clone(),
                    receiver: receiver.name.clone(),
                };
                placement.copies.insert(row, copy);
            }
            let replicate = Replicate {
                mgid: slot.base,
                trees: if *layered { slot.trees } else { 1 },
                l1_xid: 2 - slot.half as u16,
                rid,
                l2_xid,
                stream,
            };
            placement.streams.insert(source, replicate);
        }
        Ok(())
    }
}

fn two_party(placement: &mut Placement) {
    let layout = &placement.layout;
    for sender in layout.senders() {
        for receiver in layout.participants.iter().filter(|one| one.name != sender.name) {
            for (stream, _) in &sender.streams {
                let source = Source {
                    conference: layout.conference.clone(),
                    sender: sender.name.clone(),
                    stream: stream.clone(),
                };
                placement.relay.insert(source, receiver.name.clone());
            }
        }
    }
}

/// Returns whether a participant has a node in the tree of a layer. If senders share a tree, their own copies are pruned instead.
fn in_tree(layout: &Layout, sender: Option<&Name>, participant: &Name, layer: u32) -> bool {
    match sender {
        Some(sender) => layout.wants(sender, participant, true, layer),
        None => {
            let other = layout.senders().find(|other| other.name != *participant);
            other.is_some_and(|other| layout.wants(&other.name, participant, true, layer))
        }
    }
}
