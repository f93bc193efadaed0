//! The replication tables in the form used for planning trees (docs/replication.md): rows, writes, and limits.
//!
//! These rows have names (conference, sender, stream, receiver) where the data plane's tables have addresses. [`crate::rows`] replaces the
//! names.

use crate::rewriting::Rewriting;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A name of a conference, a participant, or a stream.
pub type Name = Arc<str>;

/// Capacity of the replication engine. MGID 0, RID 0 and stream 0 mean none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub trees: u32,
    pub nodes: u32,
    /// RIDs of one tree.
    pub rids: u32,
    /// L2 exclusion sets, one for each port with senders; a Tofino 1 has 288.
    pub l2_xids: u32,
    /// Stream numbers that fit into the key of `copy`.
    pub streams: u32,
    /// Receivers with rewritten sequence numbers, for each stream.
    pub sequence_states: u32,
    /// Streams that S-LR can track.
    pub tracks: u32,
}

impl Default for Limits {
    /// Returns the limits of a Tofino (Scallop, section 6.3).
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

/// Capabilities of a target for conferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How the target rewrites numbers of receivers that get some layers.
    pub rewriting: Rewriting,
    /// Capacity of the tables.
    pub limits: Limits,
    /// The target keeps these numbers in registers, as a switch does. A track or a sequence state is cleared before it is allocated
    /// ([`crate::rows::Key::Track`], [`crate::rows::Key::SequenceState`]), and layers must be described by the dependency descriptor.
    pub registers: bool,
    /// The target sends packets by its own routes ([`crate::routes`]).
    pub routes: bool,
    /// Payload types that the target rewrites in one copy; 0: none.
    pub payload_types: usize,
}

/// One stream that a participant sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub conference: Name,
    pub sender: Name,
    pub stream: Name,
}

/// Data of a row of `conference`: the tree of layer n is `mgid + min(n, trees - 1)`, so one write moves all layers of a stream.
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
    /// `None` if there is no route to the participant.
    pub port: Option<u32>,
}

/// The receiver whose addresses a copy gets.
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
    /// By L2 XID. All rows exist from the start and are only modified.
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
    /// Wait until packets that arrived before have left (20 ms); writes nothing.
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
