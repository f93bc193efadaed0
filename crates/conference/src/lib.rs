//! Conferences without I/O: membership to rows of tables, trees, feedback, adaptation, sequence state.
#![forbid(unsafe_code)]

pub mod sequence;
