//! Next hops: where the kernel would send packets for each destination, in rows of a table that the XDP programs read.
//!
//! The XDP programs look up no route and no neighbour: each entry names a row, and [`NextHops`] updates the rows when the kernel's routes,
//! neighbours or interfaces change. All destinations behind one neighbour share a row, unless their MTUs differ.
//!
//! [`NextHops`] has no I/O and no clock. [`Rows`] writes the shared table, and [`Kernel`] answers requests and reports events ([`Netlink`]
//! implements it). The caller passes the time in.
#![forbid(unsafe_code)]

// The in-memory kernel serves `tests` and the unit tests of this crate.
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
