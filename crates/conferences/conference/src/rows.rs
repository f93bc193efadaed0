//! Rows of a plan in the data plane's form: addresses instead of names (docs/replication.md).
//!
//! A row is not wanted until its receiver has an address.

use crate::adaptation::Medium;
use crate::diff::{Rank, Ranked, Step, diff};
use crate::membership::{Conference, TARGETS, stream_of};
use crate::rewriting::{LayerRow, Numbering};
use crate::tables::{CopyTo, Member, Name, Node, Replicate, Row, Source, Value};
use crate::trees::LayoutError;
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, BTreeSet};

/// A table and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `conference`, or `conference6`.
    Stream(FiveTuple, u32),
    /// `copy`: stream number and RID.
    Copy(u32, u32),
    /// `layer`: number of the stream's rows, template id.
    Layer(u32, u8),
    /// `$pre.mgid`.
    Tree(u32),
    /// `$pre.node`.
    Node(u32),
    /// `$pre.prune`.
    Prune(u32),
    /// A relay entry.
    Relay(FiveTuple),
    /// Not a row: a switch's register state of a track.
    Track(u32),
    /// The register state of a sequence state.
    SequenceState(u32),
}

/// The data of a row of `conference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub tree: Replicate,
    pub to_agent: bool,
    pub layers: u32,
    pub extension: u8,
    pub descriptor: u8,
    pub track: u32,
}

/// The data of a row of `copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub addresses: FiveTuple,
    pub nexthop: u32,
    pub target: usize,
    /// 0: the receiver gets the sender's numbers.
    pub sequence_state: u32,
    pub cadence: u8,
    /// (sender's payload type, receiver's payload type), where they differ.
    pub payload_types: Vec<(u8, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Stream(Stream),
    Copy(Copy),
    Layer(LayerRow),
    Tree(Vec<Member>),
    Node(Node),
    Prune(BTreeSet<u32>),
    /// New source and destination of a relay entry.
    Relay(FiveTuple),
    /// Cleared state of a track or sequence state: the next packet is the first.
    Cleared,
}

/// A row of `conference`, `copy` or `layer`, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub key: Key,
    pub packets: u64,
    pub octets: u64,
}

impl Data {
    /// Returns the track or sequence state that a row uses.
    #[must_use]
    pub fn memory(&self) -> Option<Key> {
        match self {
            Self::Stream(stream) if stream.track != 0 => Some(Key::Track(stream.track)),
            Self::Copy(copy) if copy.sequence_state != 0 => Some(Key::SequenceState(copy.sequence_state)),
            _ => None,
        }
    }
}

impl Ranked for Key {
    fn rank(&self) -> Rank {
        match self {
            Self::Node(_) | Self::Track(_) | Self::SequenceState(_) => Rank::Node,
            Self::Layer(..) => Rank::Layer,
            Self::Tree(_) => Rank::Tree,
            Self::Copy(..) => Rank::Copy,
            Self::Prune(_) => Rank::Prune,
            Self::Stream(..) => Rank::Stream,
            Self::Relay(_) => Rank::Relay,
        }
    }
}

/// Inputs for computing a conference's rows.
pub struct Resolver<'a> {
    pub conference: &'a Conference,
    pub numbering: &'a mut Numbering,
    /// Returns the next hop of copies to an address; `None`: no route; 0 if the data plane's kernel has the routes.
    pub nexthop: &'a dyn Fn(&Name, Endpoint) -> Option<u32>,
    /// Returns whether the agent is to get copies of a stream: those with a cache.
    pub copied: &'a dyn Fn(&Source) -> bool,
}

impl Resolver<'_> {
    /// Converts a row into the data plane's form; `None`: the row is not wanted, or lacks an address.
    ///
    /// # Errors
    /// All numbers of layer tables, tracks or sequence states are in use.
    pub fn row(&mut self, row: &Row, value: &Value) -> Result<Option<(Key, Data)>, LayoutError> {
        Ok(match (row, value) {
            (Row::Node(node), Value::Node(data)) => Some((Key::Node(*node), Data::Node(data.clone()))),
            (Row::Tree(mgid), Value::Tree(data)) => Some((Key::Tree(*mgid), Data::Tree(data.clone()))),
            (Row::Prune(xid), Value::Prune(data)) => Some((Key::Prune(*xid), Data::Prune(data.clone()))),
            (Row::Stream(source), Value::Stream(data)) => self.stream(source, *data)?,
            (Row::Copy(stream, rid), Value::Copy(data)) => self.copy(data)?.map(|copy| (Key::Copy(*stream, *rid), Data::Copy(copy))),
            (Row::Relay(source), Value::Relay(receiver)) => self.relay(source, receiver),
            _ => None,
        })
    }

    /// Converts all wanted rows of a plan, including those of `layer`.
    ///
    /// # Errors
    /// As of [`Resolver::row`].
    pub fn rows(&mut self, plan: &BTreeMap<Row, Value>) -> Result<BTreeMap<Key, Data>, LayoutError> {
        let mut wanted = BTreeMap::new();
        for (row, value) in plan {
            wanted.extend(self.row(row, value)?);
            if let Row::Stream(source) = row {
                let rows = self.numbering.rows(source);
                wanted.extend(rows.map(|((layers, template), row)| (Key::Layer(layers, template), Data::Layer(row))));
            }
        }
        let mixes = self.conference.mixes();
        wanted.extend(mixes.map(|(from, to)| (Key::Relay(from), Data::Relay(to))));
        Ok(wanted)
    }

    /// Returns the numbers of a stream's rows in `layer` and of its track; 0 if all its layers are always sent.
    fn layers(&mut self, source: &Source, medium: Medium, ssrc: u32) -> Result<(u32, u32), LayoutError> {
        let leg = self.conference.get(&source.sender).and_then(|one| one.leg(medium));
        let found = leg.and_then(|leg| {
            let place = (FiveTuple::new(leg.source?, leg.relay), ssrc);
            Some((place, leg.told.filter(|_| !leg.repair.contains(&ssrc))?))
        });
        match found {
            Some((place, told)) => {
                let tracked = self.conference.is_tracked(&source.sender, medium);
                self.numbering.stream(source, place, told, tracked)
            }
            None => Ok((0, 0)),
        }
    }

    fn stream(&mut self, source: &Source, mut tree: Replicate) -> Result<Option<(Key, Data)>, LayoutError> {
        let Some((medium, ssrc)) = stream_of(&source.stream) else {
            return Ok(None);
        };
        let Some(leg) = self.conference.get(&source.sender).and_then(|one| one.leg(medium)) else {
            return Ok(None);
        };
        let Some(from) = leg.source else { return Ok(None) };
        let (relay, told) = (leg.relay, leg.told);
        let (layers, track) = self.layers(source, medium, ssrc)?;
        if tree.trees > 1 {
            tree.mgid += medium.first_tree();
            tree.trees = if layers == 0 { 1 } else { TARGETS as u32 };
        }
        let told = told.filter(|_| layers != 0);
        let data = Stream {
            tree,
            to_agent: (self.copied)(source),
            layers,
            extension: told.map_or(0, |told| told.extension()),
            descriptor: told.map_or(0, |told| told.descriptor()),
            track,
        };
        Ok(Some((Key::Stream(FiveTuple::new(from, relay), ssrc), Data::Stream(data))))
    }

    fn copy(&mut self, copy: &CopyTo) -> Result<Option<Copy>, LayoutError> {
        let source = &copy.source;
        let Some((medium, ssrc)) = stream_of(&source.stream) else {
            return Ok(None);
        };
        if self.conference.is_kept_back(&source.sender, &copy.receiver, medium, ssrc) {
            return Ok(None);
        }
        // Receivers of tiled video are in no tree of the sources' video. Otherwise an audience of hundreds would fill the table with their
        // rows.
        let both = self.conference.get(&source.sender).zip(self.conference.get(&copy.receiver));
        if medium == Medium::Video && both.is_some_and(|(sender, receiver)| !self.conference.is_for(sender, receiver, medium)) {
            return Ok(None);
        }
        let leg = self
            .conference
            .get(&copy.receiver)
            .and_then(|one| one.leg_for_stream(&source.sender, medium, ssrc));
        let Some((leg, to)) = leg.filter(|leg| leg.receives).and_then(|leg| Some((leg, leg.source?))) else {
            return Ok(None);
        };
        let Some(nexthop) = (self.nexthop)(&copy.receiver, to) else {
            return Ok(None);
        };
        let mut made = Copy {
            addresses: FiveTuple::new(leg.relay, to),
            nexthop,
            target: 0,
            sequence_state: 0,
            cadence: 0,
            payload_types: self.conference.payload_types(&source.sender, &copy.receiver, medium).rewritten,
        };
        if let Some(target) = self.conference.target(&source.sender, &copy.receiver, medium)
            && self.layers(source, medium, ssrc)?.0 != 0
        {
            made.sequence_state = self.numbering.sequence_state(source, &copy.receiver, to);
            if made.sequence_state != 0 {
                (made.target, made.cadence) = (target, self.numbering.cadence(source, target));
            }
        }
        Ok(Some(made))
    }

    fn relay(&self, source: &Source, receiver: &Name) -> Option<(Key, Data)> {
        let (medium, ssrc) = stream_of(&source.stream)?;
        let from = self.conference.get(&source.sender)?.leg(medium)?;
        let to = self
            .conference
            .get(receiver)?
            .leg_for_stream(&source.sender, medium, ssrc)
            .filter(|leg| leg.receives)?;
        let key = FiveTuple::new(from.source?, from.relay);
        Some((Key::Relay(key), Data::Relay(FiveTuple::new(to.relay, to.source?))))
    }
}

/// Returns the steps from the written rows to the wanted rows ([`diff`]). `s_lr`: a sequence state starts with its target in force. A
/// receiver that has had all layers so far therefore first gets a row that says so, because the change must happen at a frame boundary.
#[must_use]
pub fn steps(wanted: &BTreeMap<Key, Data>, written: &BTreeMap<Key, Data>, s_lr: bool) -> Vec<Step<Key, Data>> {
    let mut made = Vec::new();
    for step in diff(wanted, written) {
        if let (Step::Modify(key, Data::Copy(copy)), true) = (&step, s_lr) {
            let before = written.get(key);
            let began = matches!(before, Some(Data::Copy(old)) if old.sequence_state != copy.sequence_state && copy.sequence_state != 0);
            if began && copy.target != TARGETS - 1 {
                let whole = Copy {
                    target: TARGETS - 1,
                    ..copy.clone()
                };
                made.push(Step::Modify(key.clone(), Data::Copy(whole)));
            }
        }
        made.push(step);
    }
    made
}
