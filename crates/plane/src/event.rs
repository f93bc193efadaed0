//! What the plane tells: plain data, in the order in which it happened.

use bytes::Bytes;
use shunt_calls::{Counters, Idle, MediaRange, Notice, Operation, Outcome, RelayEntry, WriteId};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// A data plane that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it is, for operators.
    pub name: String,
    /// Entries that it has room for.
    pub capacity: u64,
    /// What it does not offer, as sentences for operators.
    pub lacks: Vec<String>,
    /// It may store 5-tuples as hashes, so that [`crate::Plane::expect`] matters.
    pub stores_hashes: bool,
    /// It reports idle entries.
    pub reports_idle: bool,
    /// It knows when an entry last met a packet.
    pub knows_idle_times: bool,
    /// It can keep unknown sources from relay ports.
    pub filters_sources: bool,
    /// Addresses that a source filter has room for.
    pub filter_addresses: usize,
    /// Media ranges of a former configuration: entries there are this agent's, and a range goes with its last entry.
    pub former_media: Vec<FormerMedia>,
}

/// A media range that the data plane has and the configuration no longer has.
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
    /// Of an entry that was deleted: what was counted on it, read just before. `None` where nothing is known.
    pub counters: Option<Counters>,
    /// What the data plane said of a failure. Of [`Outcome::Unavailable`]: `None` says that nothing was sent.
    pub detail: Option<Arc<str>>,
    pub operation: Operation,
    /// From [`crate::Plane::write`] to the result.
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The data plane can be used. What it has is being read: [`Event::Table`] follows.
    Up(Arc<Facts>),
    /// It cannot be used, and why. Writes end as [`Outcome::Unavailable`].
    Down(String),
    Written(Vec<Written>),
    /// Packets that met no entry.
    Notices(Vec<Notice>),
    /// An entry has met no packet for [`crate::Settings::entry_idle`].
    Idle(FiveTuple),
    /// An entry that was idle meets packets again.
    Active(FiveTuple),
    /// The answer to [`crate::Plane::read_idle`].
    IdleTimes(Vec<Idle>),
    /// All relay entries at the media addresses, read in the background. `changed`: relay ports at which something was written meanwhile; what
    /// was read there says nothing.
    Table {
        entries: Vec<RelayEntry>,
        changed: HashSet<Endpoint>,
        /// Relay ports whose entry has another DSCP than the configured one.
        marked_otherwise: HashSet<Endpoint>,
    },
    /// Packets of `key`, which has no entry, would meet the entry of `holder`, which has the same hash: that has to go.
    Collision {
        key: FiveTuple,
        holder: FiveTuple,
    },
    /// Entries whose packets the host's policy leaves to the relay: they have to go.
    Held(Vec<FiveTuple>),
    /// Packets that the data plane copies to the agent (conferences), from the Ethernet header on.
    Packets(Vec<Bytes>),
}
