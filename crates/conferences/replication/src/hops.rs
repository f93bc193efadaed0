//! The part of the next-hop table that conferences need.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The next-hop table has no free row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all {rows} rows of the next-hop table are in use")]
pub struct Exhausted {
    pub rows: u32,
}

/// Output of copies, as rows of the next-hop table. Each rewrite holds one reference to the row of its addresses.
pub trait Hops {
    /// Acquires a row for packets from `src` to `dst`.
    ///
    /// # Errors
    /// No row is free.
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Result<u16, Exhausted>;
    /// Releases one reference.
    fn release(&mut self, dst: IpAddr, src: IpAddr);
    /// Returns the output interface of this row (for a VLAN its parent); 0: none.
    fn output(&self, row: u16) -> u32;
    /// Takes over one reference of a former process, on `row` if possible. `taken`: rows not yet taken over.
    fn adopt(&mut self, dst: IpAddr, src: IpAddr, row: u16, taken: &BTreeSet<u16>) -> u16;
}
