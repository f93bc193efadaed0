//! Names of things in the book: sides, states, streams, relays, writes.

use serde::{Deserialize, Serialize};
use shunt_latch::Component;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

/// A party of a media line. The caller is whom the session's first U described, as in rtpproxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    Caller,
    Callee,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Caller, Self::Callee];

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Caller => Self::Callee,
            Self::Callee => Self::Caller,
        }
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self == Self::Callee)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "caller",
            Self::Callee => "callee",
        })
    }
}

/// Where a stream is: which of relay and data plane carries its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Allocated,
    Learning,
    Offloaded,
    Suspended,
    Released,
}

impl State {
    pub const ALL: [Self; 5] = [Self::Allocated, Self::Learning, Self::Offloaded, Self::Suspended, Self::Released];

    /// The word that logs, metrics and the admin API have.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Learning => "learning",
            Self::Offloaded => "offloaded",
            Self::Suspended => "suspended",
            Self::Released => "released",
        }
    }
}

/// A media line of a running call: one session of a relay. Never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineId(pub(crate) u64);

impl LineId {
    /// A later line has a higher one.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// By [`LineId`]: the book numbers lines itself, so nobody can choose numbers that collide, and a multiplication spreads them.
pub(crate) type ByLine<V> = HashMap<LineId, V, BuildHasherDefault<LineHasher>>;

/// Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A relay that was added to the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayId(pub(crate) usize);

/// A table write, for [`crate::Book::written`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub(crate) u64);

impl WriteId {
    /// For writes that no book asks for.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What one party sends of a media line: RTP, or RTCP on its own port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub line: LineId,
    pub sender: Side,
    pub component: Component,
}

pub(crate) const COMPONENTS: [Component; 2] = [Component::Rtp, Component::Rtcp];

pub(crate) fn component_index(component: Component) -> usize {
    usize::from(component == Component::Rtcp)
}

pub(crate) fn stream_index(sender: Side, component: Component) -> usize {
    2 * component_index(component) + sender.index()
}
