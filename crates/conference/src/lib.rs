//! Conferences without I/O: membership to rows of tables, trees, feedback, adaptation, sequence state.
#![forbid(unsafe_code)]

pub mod adaptation;
mod allocation;
pub mod best_downlink;
pub mod capacity;
pub mod diff;
pub mod downlink;
pub mod key_frames;
pub mod membership;
pub mod migration;
pub mod packets;
pub mod participant;
pub mod payload_types;
mod placement;
pub mod policy;
pub mod repair;
pub mod reports;
pub mod rewriting;
pub mod rows;
pub mod sequence;
pub mod tables;
pub mod trees;

pub use allocation::{Numbers, Reserved};
