//! Events of the plane: plain data, in the order in which they happened.

use bytes::Bytes;
use shunt_calls::{Counters, Idle, MediaRange, Notice, Operation, Outcome, RelayEntry, WriteId};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Facts about a connected data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name for operators.
    pub name: String,
    /// Its number of entries at most.
    pub capacity: u64,
    /// Functions that it lacks, as sentences for operators.
    pub lacks: Vec<String>,
    /// It may store 5-tuples as hashes, so that [`crate::Plane::expect`] matters.
    pub stores_hashes: bool,
    /// It reports idle entries.
    pub reports_idle: bool,
    /// It reports when an entry last matched a packet.
    pub knows_idle_times: bool,
    /// It can keep unknown sources from relay ports.
    pub filters_sources: bool,
    /// Addresses that a source filter holds.
    pub filter_addresses: usize,
    /// Media ranges of a former configuration. Entries there are this agent's, and a range is removed after its last entry.
    pub former_media: Vec<FormerMedia>,
}

/// A media range in the data plane that the configuration no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerMedia {
    pub range: MediaRange,
    /// Its `$MATCH_PRIORITY`.
    pub priority: u32,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub id: WriteId,
    pub outcome: Outcome,
    /// Counters of a deleted entry, read just before; `None` if unknown.
    pub counters: Option<Counters>,
    /// The data plane's reason for a failure. With [`Outcome::Unavailable`], `None` means that nothing was sent.
    pub detail: Option<Arc<str>>,
    pub operation: Operation,
    /// Time from [`crate::Plane::write`] to the result.
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The data plane is connected. Its table is being read; [`Event::Table`] follows.
    Up(Arc<Facts>),
    /// The data plane is unavailable, for this reason. Writes end as [`Outcome::Unavailable`].
    Down(String),
    Written(Vec<Written>),
    /// Packets without an entry.
    Notices(Vec<Notice>),
    /// An entry has matched no packet for [`crate::Settings::entry_idle`].
    Idle(FiveTuple),
    /// An idle entry matches packets again.
    Active(FiveTuple),
    /// The answer to [`crate::Plane::read_idle`].
    IdleTimes(Vec<Idle>),
    /// All relay entries at the media addresses, read in the background. `changed`: relay ports with writes meanwhile, for which the
    /// reading says nothing.
    Table {
        entries: Vec<RelayEntry>,
        changed: HashSet<Endpoint>,
        /// Relay ports whose entry has another DSCP than the configured one.
        marked_otherwise: HashSet<Endpoint>,
    },
    /// Packets of `key`, which has no entry, would match the entry of `holder`, which has the same hash and must be removed.
    Collision {
        key: FiveTuple,
        holder: FiveTuple,
    },
    /// Entries that must be removed, because a policy of the host applies to their packets.
    Held(Vec<FiveTuple>),
    /// Packets that the data plane copies to the agent (conferences), from the Ethernet header on.
    Packets(Vec<Bytes>),
}
