//! The journal: where calls outlive their agent, in an SQLite file or, for agents that take over from each other, in Redis.
//!
//! [`Journal::start`] cannot fail. A thread opens the file, moves a damaged one aside, writes what is handed over, and tries again when the disk
//! fails; the agent serves meanwhile. A second thread reads what was found, for [`Reader`]. [`Journal::start_shared`] does the same with Redis
//! once this agent is in charge; [`Grants`] asks Redis who is.
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
