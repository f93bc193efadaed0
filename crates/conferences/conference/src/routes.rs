//! The routes of a switch: where its packets to an address go.

use std::net::IpAddr;

/// Where packets to an address go: the device port by which they leave, the number of the next hop, and what that writes into their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub port: u32,
    pub number: u32,
    pub src_mac: [u8; 6],
    pub dst_mac: [u8; 6],
    pub vlan: Option<u16>,
}

/// The routes of a switch, as they were read.
pub trait Routes: Send + Sync {
    /// Where packets to an address go.
    ///
    /// # Errors
    /// The switch sends nothing there: why.
    fn next_hop(&self, addr: IpAddr) -> Result<NextHop, String>;
}
