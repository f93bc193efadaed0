//! The replication tables as trees are planned for them (docs/replication.md): rows, writes, and limits.
//!
//! Where the data plane's tables have addresses, these rows have names (conference, sender, stream, receiver): [`crate::rows`] puts addresses
//! in their place.

use crate::rewriting::Rewriting;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A name of a conference, a participant, or a stream.
pub type Name = Arc<str>;

/// What the replication engine holds. MGID 0, RID 0 and stream 0 mean none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub trees: u32,
    pub nodes: u32,
    /// RIDs of one tree.
    pub rids: u32,
    /// L2 exclusion sets, one for each port that a sender is behind; a Tofino 1 has 288.
    pub l2_xids: u32,
    /// Numbers that the key of `copy` tells apart.
    pub streams: u32,
    /// Receivers with rewritten sequence numbers, for each stream.
    pub sequence_states: u32,
    /// Streams that S-LR follows.
    pub tracks: u32,
}

impl Default for Limits {
    /// A Tofino's (Scallop, section 6.3).
    fn default() -> Self {
        Self {
            trees: 65_536,
            nodes: 1 << 24,
            rids: 65_536,
            l2_xids: 288,
            streams: 1 << 24,
            sequence_states: 65_536,
            tracks: 65_536,
        }
    }
}

/// What a target offers to conferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How it gives receivers of some layers numbers of their own.
    pub rewriting: Rewriting,
    /// What there is room for.
    pub limits: Limits,
    /// It keeps these numbers in registers, as a switch does: before a track or a sequence state is given to somebody, it is cleared
    /// ([`crate::rows::Key::Track`], [`crate::rows::Key::SequenceState`]), and layers are told by the dependency descriptor or not at all.
    pub registers: bool,
    /// It sends packets by routes of its own ([`crate::routes`]).
    pub routes: bool,
    /// Payload types that it rewrites in one copy; 0: none.
    pub payload_types: usize,
}

/// One stream that a participant sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub conference: Name,
    pub sender: Name,
    pub stream: Name,
}

/// The data of a row of `conference`: the tree of layer n is `mgid + min(n, trees - 1)`, so one write moves all layers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicate {
    pub mgid: u32,
    pub trees: u32,
    pub l1_xid: u16,
    pub rid: u32,
    pub l2_xid: u32,
    pub stream: u32,
}

/// A node in a row of `$pre.mgid`; its L1 XID is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: u32,
    pub xid: u16,
}

/// The data of a row of `$pre.node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub rid: u32,
    /// None where no route leads to the participant.
    pub port: Option<u32>,
}

/// Whose addresses a copy gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyTo {
    pub source: Source,
    pub receiver: Name,
}

/// A table and a key in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    Node(u32),
    Tree(u32),
    /// By L2 XID. All rows are there from the start and are only modified.
    Prune(u32),
    Stream(Source),
    /// By stream number and RID.
    Copy(u32, u32),
    /// A relay entry of a two-party conference.
    Relay(Source),
}

/// The data of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Node(Node),
    Tree(Vec<Member>),
    Prune(BTreeSet<u32>),
    Stream(Replicate),
    Copy(CopyTo),
    /// The receiver.
    Relay(Name),
}

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Add(Row, Value),
    Modify(Row, Value),
    Delete(Row),
    /// Wait until packets that came in before have left (20 ms); writes nothing.
    Drain,
}

impl Write {
    #[must_use]
    pub fn row(&self) -> Option<&Row> {
        match self {
            Self::Add(row, _) | Self::Modify(row, _) | Self::Delete(row) => Some(row),
            Self::Drain => None,
        }
    }
}
