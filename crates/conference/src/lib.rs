//! Conferences without I/O: membership to rows of tables, trees, feedback, adaptation, sequence state.
#![forbid(unsafe_code)]

pub mod adaptation;
mod allocation;
pub mod best_downlink;
pub mod capacity;
pub mod downlink;
pub mod key_frames;
pub mod migration;
pub mod packets;
mod placement;
pub mod policy;
pub mod repair;
pub mod reports;
pub mod sequence;
pub mod tables;
pub mod trees;

pub use allocation::Numbers;
