//! The journal: where calls outlive their agent, in an SQLite file.

mod lock;
mod sqlite;
mod writer;

pub use lock::LockError;
pub use sqlite::{OpenError, Opened, open};
pub use writer::{Journal, LONGEST_WAIT};
