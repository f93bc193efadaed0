//! The journal: where calls outlive their agent, in an SQLite file.
//!
//! [`Journal::start`] cannot fail. A thread opens the file, moves a damaged one aside, writes what is handed over, and tries again when the disk
//! fails; the agent serves meanwhile. A second thread reads what was found, for [`Reader`].
#![forbid(unsafe_code)]

mod aside;
mod change;
mod journal;
mod lock;
mod reader;
mod store;
mod writer;

pub use journal::{Event, Journal, LONGEST_WAIT, Status};
pub use reader::Reader;
