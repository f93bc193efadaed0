//! The only writer of the data plane's tables, over BF Runtime.
//!
//! [`Plane::start`] connects in the background. Submits ([`Plane::write`], [`Plane::filter`] …) return at once and never fail. Their
//! results and the data plane's notices come as [`Event`]s. Questions ([`Plane::counters`], [`Plane::totals`] …) run in the caller's task.
//!
//! # Writes
//!
//! Writes of many calls share a batch. A single delete is sent at once, because a command may wait for it. Other writes are coalesced for
//! up to 4 ms. At most 20 batches are sent at once and 1,000 a second after that, with 8 outstanding. Writes to one relay port keep their
//! order. One read fetches the counters of entries before they are deleted.
//!
//! | answer | result |
//! | --- | --- |
//! | OK | done |
//! | already exists (6) on an insert | the entry is modified |
//! | not found (5) on a modify | the entry is inserted; on a delete: done |
//! | no space (8) | table full |
//! | not ready (14) | written again, up to five times |
//! | any other | rejected |
//! | none within 2 s | written again; after 5 s unavailable, and a new session |
//!
//! A write without an answer may still be executed. The tables are read after each connect, and continuously at a bounded rate
//! ([`Event::Table`]); the book compares them with the plan.
//!
//! # What the schema lacks
//!
//! All tables are found by name in the target's schema. A target without a relay table is rejected; any other missing part disables one
//! function ([`Facts::lacks`]).
#![forbid(unsafe_code)]

mod admission;
mod admission_tables;
mod audit;
mod batch;
mod collisions;
mod come_up;
mod conference;
mod drops;
mod engine;
mod error;
mod event;
mod former;
mod hash;
mod notice;
mod pace;
mod plane;
mod questions;
mod queue;
mod registers;
mod relay;
mod routes;
mod row;
mod rows;
mod sample_tables;
mod samples;
mod settings;
mod statistics;
mod tables;
mod tuple;
mod wire;

pub use drops::DROPPED;
pub use error::PlaneError;
pub use event::{Event, Facts, FormerMedia, Written};
pub use plane::Plane;
pub use questions::Trace;
pub use routes::Routes;
pub use rows::{Change, Row, TableWrite, Value};
pub use settings::{Settings, StoredHash};
pub use shunt_bfrt_client::{Target, Tls, UpdateError};
pub use statistics::Statistics;
