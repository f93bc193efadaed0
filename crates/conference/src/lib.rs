//! Conferences without I/O: membership to rows of tables, trees, feedback, adaptation, sequence state.
#![forbid(unsafe_code)]

mod allocation;
pub mod capacity;
pub mod migration;
mod placement;
pub mod sequence;
pub mod tables;
pub mod trees;

pub use allocation::Numbers;
