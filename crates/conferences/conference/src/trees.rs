//! Replication trees: the designs of Scallop (section 6.1), and the selection of a conference's design.
//!
//! | design | | trees |
//! | --- | --- | --- |
//! | two-party | relay entries carry the media | none |
//! | NRA | no receiver is adapted | one, with a node for each participant; the sender's own copy is pruned |
//! | RA-R | each receiver has one target for all senders | one for each quality, with the receivers of that layer |
//! | RA-SR | targets differ by sender | one for each sender and quality |
//!
//! A tree has two halves, told apart by L1 XIDs 1 and 2. Two conferences (NRA, RA-R) or two senders (RA-SR) share a tree, and each packet
//! excludes the other half. The trees of a set have consecutive MGIDs, lowest layer first. RIDs are unique within a tree: two for each
//! participant of a conference, one for each half. RIDs and stream numbers keep their meaning while the participant is present, in any
//! tree. Most migrations therefore leave the rows of `copy` unchanged.

use crate::tables::Name;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Designs, in ascending order of capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Design {
    TwoParty,
    Nra,
    RaR,
    RaSr,
}

impl Design {
    /// Returns the name used in the paper.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TwoParty => "two-party",
            Self::Nra => "NRA",
            Self::RaR => "RA-R",
            Self::RaSr => "RA-SR",
        }
    }
}

/// A set of layers: bit n is layer n.
pub type Layers = u16;

/// Returns the layers 0 to `target`.
#[must_use]
pub fn up_to(target: u32) -> Layers {
    Layers::MAX >> (Layers::BITS - 1).saturating_sub(target)
}

/// A participant of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    pub name: Name,
    /// The data plane's port towards it; `None`: there is no route, and it gets no copies.
    pub port: Option<u32>,
    /// The streams that it sends, and whether each has layers. Empty: it is receive-only.
    pub streams: Vec<(Name, bool)>,
}

/// Input for building trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub conference: Name,
    pub participants: Vec<Participant>,
    /// The layers of a sender that a receiver gets, by (sender, receiver), if not all.
    pub targets: BTreeMap<(Name, Name), Layers>,
    /// The only layers that a receiver gets of any sender; only here may layer 0 be missing.
    pub limits: BTreeMap<Name, Layers>,
    /// Whether relay entries may carry a two-party conference. They match all packets, including those that the agent must see (STUN).
    pub relayed: bool,
    /// The layers that each sender sends; empty: unknown.
    pub sent: BTreeMap<Name, Layers>,
}

/// An impossible layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    #[error("conference {0}: layers {3:#b} of {1} for {2} are more than there are")]
    Target(Name, Name, Name, Layers),
    #[error("conference {0}: two participants of one name")]
    Name(Name),
    #[error("conference {0}: {1} cannot do what {2} has to")]
    Design(Name, &'static str, &'static str),
    #[error("conference {0} is being changed")]
    Changing(Name),
    #[error("all {count} {what} are taken")]
    Full { what: &'static str, count: u32 },
    #[error("conference {conference}: {rids} RIDs are for {participants} participants")]
    Rids { conference: Name, rids: u32, participants: u32 },
}

impl Layout {
    /// Makes a layout without participants.
    #[must_use]
    pub fn empty(conference: Name) -> Self {
        Self {
            conference,
            participants: Vec::new(),
            targets: BTreeMap::new(),
            limits: BTreeMap::new(),
            relayed: true,
            sent: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn names(&self) -> BTreeSet<Name> {
        self.participants.iter().map(|one| one.name.clone()).collect()
    }

    pub fn senders(&self) -> impl Iterator<Item = &Participant> {
        self.participants.iter().filter(|one| !one.streams.is_empty())
    }

    /// Returns the layers of this pair, or `all` by default. They include layer 0, because its tree also carries streams without layers,
    /// unless the receiver's limit excludes it.
    #[must_use]
    pub fn target(&self, sender: &Name, receiver: &Name, all: Layers) -> Layers {
        let target = self.targets.get(&(sender.clone(), receiver.clone())).copied().unwrap_or(all) | 1;
        target & self.limits.get(receiver).copied().unwrap_or(Layers::MAX)
    }

    /// Returns whether a receiver gets packets of this layer of a sender's stream.
    #[must_use]
    pub fn wants(&self, sender: &Name, receiver: &Name, layered: bool, layer: u32) -> bool {
        let layer = if layered { layer } else { 0 };
        sender != receiver && self.target(sender, receiver, Layers::MAX) >> layer & 1 != 0
    }

    /// Returns whether a sender has packets of a layer; `None`: whether any sender has.
    #[must_use]
    pub fn sends(&self, sender: Option<&Name>, layer: u32) -> bool {
        let has = |layers: &Layers| layers >> layer & 1 != 0;
        match sender {
            _ if self.sent.is_empty() => true,
            Some(name) => self.sent.get(name).is_some_and(has),
            None => self.sent.values().any(has),
        }
    }

    /// Returns the cheapest design that suffices. Two parties of which one is adapted need trees, because a relay entry drops no layers.
    ///
    /// # Errors
    /// Two participants have the same name, or layers exceed `qualities`.
    pub fn design(&self, qualities: u32) -> Result<Design, LayoutError> {
        let all = up_to(qualities - 1);
        if self.names().len() != self.participants.len() {
            return Err(LayoutError::Name(self.conference.clone()));
        }
        let mut by_receiver: BTreeMap<&Name, BTreeSet<Layers>> = BTreeMap::new();
        for sender in self.senders() {
            for receiver in self.participants.iter().filter(|one| one.name != sender.name) {
                let target = self.target(&sender.name, &receiver.name, all);
                if target & !all != 0 {
                    let (sender, receiver) = (sender.name.clone(), receiver.name.clone());
                    return Err(LayoutError::Target(self.conference.clone(), sender, receiver, target));
                }
                by_receiver.entry(&receiver.name).or_default().insert(target);
            }
        }
        if by_receiver.values().flatten().all(|target| *target == all) {
            return Ok(if self.participants.len() <= 2 && self.relayed {
                Design::TwoParty
            } else {
                Design::Nra
            });
        }
        let one_each = by_receiver.values().all(|targets| targets.len() == 1);
        Ok(if one_each { Design::RaR } else { Design::RaSr })
    }
}
