//! The routes of a switch: where its packets to an address go.

use std::net::IpAddr;

/// Next hop of packets to an address: the outgoing device port, the number of the next hop, and the values that it writes into the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub port: u32,
    pub number: u32,
    pub src_mac: [u8; 6],
    pub dst_mac: [u8; 6],
    pub vlan: Option<u16>,
}

/// The routes of a switch, as last read.
pub trait Routes: Send + Sync {
    /// Returns the next hop of packets to an address.
    ///
    /// # Errors
    /// The reason why the switch cannot send there.
    fn next_hop(&self, addr: IpAddr) -> Result<NextHop, String>;
}
