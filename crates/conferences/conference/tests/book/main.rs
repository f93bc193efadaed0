//! The book as a whole: sequences of events, the data plane as a table in memory, and who receives what.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generated;
mod scenes;
mod stun;
mod world;
