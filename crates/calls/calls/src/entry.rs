//! Entries of the relay table, and the results of writes.

use shunt_net::{Endpoint, FiveTuple};
use std::time::Duration;
use thiserror::Error;

/// One entry: packets that match the key leave from `new_source` to `new_destination`, whose IP version may differ from the key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayEntry {
    key: FiveTuple,
    new_source: Endpoint,
    new_destination: Endpoint,
}

/// Why two ends of a flow make no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EntryError {
    #[error("{0} and {1} have different IP versions")]
    Family(Endpoint, Endpoint),
    #[error("{0} is not an address that packets can be sent from or to")]
    Unusable(Endpoint),
}

impl RelayEntry {
    /// # Errors
    /// The two ends of one flow have different IP versions, or one of them has a null address or port 0.
    pub fn new(key: FiveTuple, new_source: Endpoint, new_destination: Endpoint) -> Result<Self, EntryError> {
        for (source, destination) in [(key.src, key.dst), (new_source, new_destination)] {
            if let Some(end) = [source, destination]
                .into_iter()
                .find(|end| end.addr.is_unspecified() || end.port == 0)
            {
                return Err(EntryError::Unusable(end));
            }
            if source.addr.is_ipv4() != destination.addr.is_ipv4() {
                return Err(EntryError::Family(source, destination));
            }
        }
        Ok(Self {
            key,
            new_source,
            new_destination,
        })
    }

    /// Recreates an entry that has been validated before.
    pub(crate) fn again(key: FiveTuple, new_source: Endpoint, new_destination: Endpoint) -> Self {
        Self {
            key,
            new_source,
            new_destination,
        }
    }

    #[must_use]
    pub fn key(&self) -> FiveTuple {
        self.key
    }

    /// Returns the relay address and port at which its packets arrive.
    #[must_use]
    pub fn port(&self) -> Endpoint {
        self.key.dst
    }

    #[must_use]
    pub fn new_source(&self) -> Endpoint {
        self.new_source
    }

    #[must_use]
    pub fn new_destination(&self) -> Endpoint {
        self.new_destination
    }
}

/// A change of the relay table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The key has no entry.
    Insert(RelayEntry),
    /// The key has an entry with another rewrite.
    Modify(RelayEntry),
    /// Deletes an entry; a missing one is no error.
    Delete(FiveTuple),
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, also if a delete found no entry.
    Done,
    TableFull,
    HashCollision,
    /// The host's output path does not allow it.
    HostPolicy,
    Rejected,
    /// No answer: whether the write was done is unknown.
    Unavailable,
}

/// What the data plane has counted for an entry since its installation. `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets: u64,
    pub bytes: u64,
    pub lost: Option<u64>,
    pub reordered: Option<u64>,
    pub duplicates: Option<u64>,
    /// Latest jitter, µs (RFC 3550 section 6.4.1); for several entries the mean, weighted by packets.
    pub jitter_us: Option<u32>,
    /// The largest of the readings, µs.
    pub jitter_max_us: Option<u32>,
}

impl Counters {
    /// Adds the counts of a later entry of the same stream.
    #[must_use]
    pub fn plus(self, later: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
        };
        Self {
            packets: self.packets.saturating_add(later.packets),
            bytes: self.bytes.saturating_add(later.bytes),
            lost: sum(self.lost, later.lost),
            reordered: sum(self.reordered, later.reordered),
            duplicates: sum(self.duplicates, later.duplicates),
            jitter_us: mean((self.jitter_us, self.packets), (later.jitter_us, later.packets)),
            jitter_max_us: self.largest_jitter().max(later.largest_jitter()),
        }
    }

    /// Merges a later reading of the same entry.
    #[must_use]
    pub(crate) fn read_again(self, later: Self) -> Self {
        Self {
            jitter_max_us: self.largest_jitter().max(later.largest_jitter()),
            ..later
        }
    }

    fn largest_jitter(&self) -> Option<u32> {
        self.jitter_max_us.max(self.jitter_us)
    }
}

/// Returns the mean of two values, weighted by packets; an unknown value is ignored.
fn mean(one: (Option<u32>, u64), other: (Option<u32>, u64)) -> Option<u32> {
    let (Some(a), Some(b)) = (one.0, other.0) else {
        return one.0.or(other.0);
    };
    let (weight_a, weight_b) = (u128::from(one.1.max(1)), u128::from(other.1.max(1)));
    let sum = u128::from(a) * weight_a + u128::from(b) * weight_b;
    u32::try_from(sum / (weight_a + weight_b)).ok()
}

/// One reading of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub key: FiveTuple,
    pub counters: Counters,
    /// Time since a packet last matched it; `None` if the data plane cannot tell.
    pub idle: Option<Duration>,
}

/// When an entry last matched a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    pub key: FiveTuple,
    /// Time since a packet last matched it; `None` if the data plane cannot tell, or has no such entry.
    pub idle: Option<Duration>,
    /// Latest RTP sequence number, if the data plane reports it.
    pub sequence: Option<u16>,
}
