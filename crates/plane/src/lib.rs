//! The data plane as the agent uses it: the one writer of its tables, over BF Runtime.
//!
//! [`Plane::start`] connects in the background. Submits ([`Plane::write`], [`Plane::filter`] …) return at once and never fail; what becomes of
//! them, and what the data plane tells, comes as [`Event`]s. Questions ([`Plane::counters`], [`Plane::totals`] …) are asked in the caller's task.
//!
//! # Writes
//!
//! Writes of many calls go out together. A lone delete goes at once, since a command may wait for it; anything else waits up to 4 ms for
//! company. At most 20 batches go at once and 1,000 a second after that, 8 may be under way. Writes to one relay port stay in their order.
//! Before entries are deleted one read asks for their counters.
//!
//! | answer | what becomes of it |
//! | --- | --- |
//! | OK | done |
//! | already there (6) on an insert | the entry is modified |
//! | not found (5) on a modify | it is inserted; on a delete: done |
//! | no space (8) | table full |
//! | not ready (14) | written again, up to five times |
//! | anything else | rejected |
//! | none within 2 s | written again; after 5 s unavailable, and the session is made anew |
//!
//! A write without an answer may still be carried out. What the tables hold is read after each connect, and all the time at a bounded rate
//! ([`Event::Table`]); comparing that with the plan is the book's part.
//!
//! # What the schema lacks
//!
//! All tables are found by name in the target's schema. One without a relay table is refused; what else is missing switches one thing off
//! ([`Facts::lacks`]).
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
