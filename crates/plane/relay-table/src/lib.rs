//! The relay table in the kernel's maps.
//!
//! The maps are the only copy of the table. This crate derives its own state (which address owns which slots) from them when a process
//! adopts the maps of another. An entry lies in the slot of its relay address and port. Further sources of the same port lie in the
//! overflow table, a hash map with the 5-tuple as key.
#![forbid(unsafe_code)]

mod addresses;
mod checksum;
mod entry;
mod filter;
mod media;
mod stats;
mod table;
mod totals;

pub use addresses::chunk_count;
pub use entry::{Fault, RelayEntry, address, flow_of};
pub use filter::{Filters, TimedRow, TimedTable};
pub use media::{Media, MediaRange};
pub use stats::{Clock, Reception, StreamStats, stats_of, tick_table};
pub use table::{Cursor, Hops, Moves, RelayTable, Saved};
pub use totals::{REASONS, Totals, read_totals, reason_name};
