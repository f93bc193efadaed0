//! Conferences in the kernel: streams, copies and the packet replication engine's trees, made into lists of copies that the XDP
//! programs walk.
//!
//! Nothing that a program may be reading is written over. A change writes new records, turns each stream over to its new list with
//! one store, and gives the old records back after a grace period of the kernel. So no packet is lost to a change, or copied
//! twice. Each change succeeds whole or changes nothing, and a process that adopts the maps after a kill finds it made or not made.
//!
//! # Waiting
//!
//! A grace period takes 10 to 30 ms, and no change waits for one. What a change replaces is retired. Whoever owns the tables runs
//! rounds in the background:
//!
//! 1. `begin()`, under the lock of the tables: what there is to wait for, if anything.
//! 2. [`Round::run()`], without the lock: waits.
//! 3. `finish()`, under the lock again: gives back what was retired before `begin()`.
//!
//! A round also puts empty device maps into stock. A change that needs a set of interfaces that no list had before fills one of them in,
//! which takes no grace period. A change waits itself only when a table is full, when the stock is used up, or when an interface is new that
//! `prepare()` has not named; `inline_waits()` counts these.
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

/// What an entry has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub packets: u64,
    /// IP packet lengths.
    pub bytes: u64,
    /// Packets of a stream without any copy; copies without a next hop or too big for it.
    pub lost: u64,
    /// Ticks of the kernel since the last packet, of streams.
    pub idle_ticks: Option<u32>,
}
