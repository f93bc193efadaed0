//! The relay table in the kernel's maps.
//!
//! The maps are the only copy of the table. What this crate keeps beside them (which address owns which slots) is read from them
//! again when a process adopts what another has left. An entry lies in the slot of its relay address and port; further sources of the
//! same port lie in the overflow table, a hash map keyed on the 5-tuple.
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
