//! Identifiers in the book: sides, states, streams, relays, writes.

use serde::{Deserialize, Serialize};
use shunt_latch::Component;
use shunt_net::Endpoint;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU64;

/// A party of a media line. The caller is the party that the session's first U described, as in rtpproxy.
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

/// A stream's state: whether the relay or the data plane carries its packets.
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

    /// Returns the state's name in logs, metrics and the admin API.
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

/// A media line of a running call: one session of a relay. An id is never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineId(pub(crate) u64);

impl LineId {
    /// Returns the id's number, which increases with each line.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A map by [`LineId`], which the book assigns.
pub(crate) type ByLine<V> = HashMap<LineId, V, Quick>;
/// A map by relay port, which the relay assigns.
pub(crate) type ByPort<V> = HashMap<Endpoint, V, Quick>;
/// A multiplicative hash, for keys that an attacker cannot choose.
pub(crate) type Quick = BuildHasherDefault<QuickHasher>;

/// Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    /// The high bits depend on all of the key, and hash tables use the low ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// A relay in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayId(pub(crate) usize);

/// A table write, for [`crate::Book::written`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(NonZeroU64);

impl WriteId {
    /// Returns the id of the write with this number, from 0.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(number))
    }
}

/// One party's packets of a media line: RTP, or RTCP on its own port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub line: LineId,
    pub sender: Side,
    pub component: Component,
}

/// A [`StreamId`] in eight bytes, also as `Option`: each relay port has one or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedStreamId(NonZeroU64);

impl From<StreamId> for PackedStreamId {
    fn from(id: StreamId) -> Self {
        let index = stream_index(id.sender, id.component) as u64;
        // Starts at 1; 0 means none.
        Self(NonZeroU64::MIN.saturating_add(id.line.0 << 2 | index))
    }
}

impl From<PackedStreamId> for StreamId {
    fn from(packed: PackedStreamId) -> Self {
        let number = packed.0.get() - 1;
        Self {
            line: LineId(number >> 2),
            sender: Side::BOTH[(number & 1) as usize],
            component: COMPONENTS[(number >> 1 & 1) as usize],
        }
    }
}

pub(crate) const COMPONENTS: [Component; 2] = [Component::Rtp, Component::Rtcp];

pub(crate) fn component_index(component: Component) -> usize {
    usize::from(component == Component::Rtcp)
}

pub(crate) fn stream_index(sender: Side, component: Component) -> usize {
    2 * component_index(component) + sender.index()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_stream_is_the_same_stream() {
        for line in [0, 1, 1 << 40] {
            for (sender, component) in Side::BOTH
                .into_iter()
                .flat_map(|side| COMPONENTS.map(|component| (side, component)))
            {
                let line = LineId(line);
                let id = StreamId { line, sender, component };
                assert_eq!(StreamId::from(PackedStreamId::from(id)), id);
            }
        }
    }
}
