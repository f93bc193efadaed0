//! Next hops: where the kernel would send each destination, kept in rows of a table that the XDP programs read.
//!
//! No packet pays for a route or neighbour lookup: an entry names a row, and [`NextHops`] keeps the rows in step with the kernel's own
//! route, neighbour and interface changes. All destinations behind one neighbour share a row, unless their MTU differs.
//!
//! [`NextHops`] does no I/O of its own and reads no clock. [`Rows`] writes the shared table, [`Kernel`] answers requests and reports events
//! ([`Netlink`] is the real one), and the caller passes the time in.
#![forbid(unsafe_code)]

// The kernel in memory is of the tests in `tests` and of those in here.
#[cfg(test)]
extern crate self as shunt_nexthop;

mod destinations;
mod kernel;
mod neighbours;
mod netlink;
mod nexthops;
mod path_mtu;
mod policy;
mod row;
mod table;
#[cfg(test)]
mod tests;

pub use kernel::{Event, Events, Framing, Kernel, KernelError, Link, Neighbour, Route};
pub use netlink::Netlink;
pub use nexthops::{Description, Moved, NextHops};
pub use policy::{Flow, HostPolicy};
pub use row::{Row, Rows, UNRESOLVED};
pub use table::Exhausted;
