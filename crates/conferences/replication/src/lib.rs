//! Conferences in the kernel: turns streams, copies and the packet replication engine's trees into lists of copies that the XDP programs
//! walk.
//!
//! Memory that a program may be reading is never overwritten. A change writes new records, switches each stream to its new list with one
//! store, and frees the old records after a grace period of the kernel. A change therefore loses no packet and copies none twice. Each
//! change succeeds as a whole or has no effect. After a kill, an adopting process finds it made or not made.
//!
//! # Waiting
//!
//! A grace period takes 10 to 30 ms, and no change waits for one. Records that a change replaces are retired. The owner of the tables runs
//! rounds in the background:
//!
//! 1. `begin()`, under the lock of the tables: returns the round, if one is needed.
//! 2. [`Round::run()`], without the lock: waits.
//! 3. `finish()`, under the lock again: frees records that were retired before `begin()`.
//!
//! A round also stocks empty device maps. A change that needs a new set of interfaces fills one of them, which takes no grace period. A
//! change waits itself only if a table is full, the stock is empty, or an interface is new that `prepare()` has not named; `inline_waits()`
//! counts these.
#![forbid(unsafe_code)]

mod adopt;
mod buddy;
mod checksum;
mod clear;
mod copies;
mod engine;
mod fault;
mod follow;
mod free;
mod hops;
mod interfaces;
mod layers;
mod lists;
mod maps;
mod outputs;
mod round;
mod saved;
mod sequences;
mod streams;
mod table;

pub use copies::{Name, PAYLOAD_TYPES, Rewrite};
pub use engine::{Engine, L2_XIDS, Member, Node, PORTS, Ports};
pub use fault::{Fault, Result};
pub use follow::Moves;
pub use hops::{Exhausted, Hops};
pub use layers::{Layer, Layers};
pub use lists::MAX_COPIES;
pub use maps::{MAPS, MAX_COPIES as MAX_REWRITES, Options, sizes, unpin};
pub use round::{Passed, Round};
pub use sequences::{TARGETS, TRACKS};
pub use streams::{Action, MAX_NUMBER, StreamKey};
pub use table::{AgentCounts, Replication, Usage};

/// Counters of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub packets: u64,
    /// IP packet lengths.
    pub bytes: u64,
    /// Packets of a stream without any copy, or copies without a next hop or too big for it.
    pub lost: u64,
    /// Ticks of the kernel since the last packet; streams only.
    pub idle_ticks: Option<u32>,
}
