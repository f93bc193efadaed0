//! What conferences need of the next-hop table.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The next-hop table has no row left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all {rows} rows of the next-hop table are in use")]
pub struct Exhausted {
    pub rows: u32,
}

/// Where copies leave, by rows of the next-hop table. Each rewrite holds one reference to the row of its addresses.
pub trait Hops {
    /// A row for packets from src to dst.
    ///
    /// # Errors
    /// When there is no row left.
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Result<u16, Exhausted>;
    /// One reference fewer.
    fn release(&mut self, dst: IpAddr, src: IpAddr);
    /// The interface that frames by this row are handed to (of a VLAN's, its parent); 0: none.
    fn output(&self, row: u16) -> u32;
    /// Take over one reference of a former process; on row `row` if it can be. taken: rows not yet taken over.
    fn adopt(&mut self, dst: IpAddr, src: IpAddr, row: u16, taken: &BTreeSet<u16>) -> u16;
}
