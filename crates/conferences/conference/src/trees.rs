//! Replication trees: the designs of Scallop (section 6.1), and which one a conference needs.
//!
//! | design | | trees |
//! | --- | --- | --- |
//! | two-party | relay entries carry it | none |
//! | NRA | nobody is adapted | one, with a node for each participant; the sender's own copy is pruned |
//! | RA-R | each receiver has one target for all senders | one for each quality, with those who get that layer |
//! | RA-SR | targets differ by sender | for each sender one for each quality |
//!
//! A tree has two halves, told apart by L1 XIDs 1 and 2: two conferences (NRA, RA-R) or two senders (RA-SR) share it, and each packet excludes
//! the other half. The trees of a set have consecutive MGIDs, lowest layer first. RIDs are unique within a tree: two for each participant of
//! a conference, one for either half, and they mean the same participant for as long as it is there, in whatever tree; so do stream
//! numbers. That is why the rows of `copy` outlast most migrations.

use crate::tables::Name;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// In the order of what they can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Design {
    TwoParty,
    Nra,
    RaR,
    RaSr,
}

impl Design {
    /// The paper's name.
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

/// The layers 0 to `target`.
#[must_use]
pub fn up_to(target: u32) -> Layers {
    Layers::MAX >> (Layers::BITS - 1).saturating_sub(target)
}

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    pub name: Name,
    /// The data plane's port towards it; `None`: none leads there, and it gets no copies.
    pub port: Option<u32>,
    /// The streams that it sends, and whether each has layers. Empty: it only listens.
    pub streams: Vec<(Name, bool)>,
}

/// What trees are laid out for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub conference: Name,
    pub participants: Vec<Participant>,
    /// Which layers of a sender a receiver gets, by (sender, receiver), where they are not all.
    pub targets: BTreeMap<(Name, Name), Layers>,
    /// Layers beyond which a receiver gets nothing of anybody; only here layer 0 may be left out.
    pub limits: BTreeMap<Name, Layers>,
    /// Whether two may be carried by relay entries, which take all that comes, also what the agent has to see (STUN).
    pub relayed: bool,
    /// The layers that each sender has packets of; empty: anybody may have any.
    pub sent: BTreeMap<Name, Layers>,
}

/// A layout that cannot be.
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
    /// Nobody takes part.
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

    /// The layers of this pair, `all` where nothing else was said. Layer 0 is among them, since its tree carries streams without layers, too, unless the
    /// receiver is to get none of anybody.
    #[must_use]
    pub fn target(&self, sender: &Name, receiver: &Name, all: Layers) -> Layers {
        let target = self.targets.get(&(sender.clone(), receiver.clone())).copied().unwrap_or(all) | 1;
        target & self.limits.get(receiver).copied().unwrap_or(Layers::MAX)
    }

    /// Whether a receiver gets a packet of this layer of a sender's stream.
    #[must_use]
    pub fn wants(&self, sender: &Name, receiver: &Name, layered: bool, layer: u32) -> bool {
        let layer = if layered { layer } else { 0 };
        sender != receiver && self.target(sender, receiver, Layers::MAX) >> layer & 1 != 0
    }

    /// Whether a sender has packets of a layer; `None`: whether anybody has.
    #[must_use]
    pub fn sends(&self, sender: Option<&Name>, layer: u32) -> bool {
        let has = |layers: &Layers| layers >> layer & 1 != 0;
        match sender {
            _ if self.sent.is_empty() => true,
            Some(name) => self.sent.get(name).is_some_and(has),
            None => self.sent.values().any(has),
        }
    }

    /// The cheapest design that does what is asked. Two parties of whom one is adapted need trees: a relay entry drops no layers.
    ///
    /// # Errors
    /// Two participants of one name, or layers beyond `qualities`.
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
