//! The journal: calls outlive their agent in an SQLite file or, for pairs of agents, in Redis.
//!
//! [`Journal::start`] retries instead of failing. A thread opens the file, moves a damaged one aside, writes submitted changes, and retries
//! while the disk fails; the agent serves meanwhile. A second thread reads the content for [`Reader`]. [`Journal::start_shared`] does the
//! same with Redis once this agent is active; [`Grants`] asks Redis which agent is.
#![forbid(unsafe_code)]

mod aside;
mod change;
mod journal;
mod lock;
mod reader;
mod shared;
mod store;
mod writer;

pub use journal::{Documents, Event, Journal, LONGEST_WAIT, Status};
pub use reader::Reader;
pub use shared::{Grants, SharedSettings};
