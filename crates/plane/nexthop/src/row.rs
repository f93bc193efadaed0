//! One row of the next-hop table, and the trait that writes the shared table.

/// The row that never resolves: its packets are passed to the stack.
pub const UNRESOLVED: u16 = 0;

/// What the XDP programs need to send a packet to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Interface by which the frame leaves; for a VLAN sub-interface its parent.
    pub ifindex: u32,
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    /// 802.1Q tag, 0 for none.
    pub vlan: u16,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Whether the interface cannot send frames that native XDP redirects to it.
    pub no_xmit: bool,
}

impl Row {
    /// Returns whether both rows lead to the same neighbour.
    #[must_use]
    pub fn same_neighbour(&self, other: &Self) -> bool {
        (self.ifindex, self.dst_mac, self.vlan) == (other.ifindex, other.dst_mac, other.vlan)
    }
}

/// The shared table. Readers run at any time, so an implementation must make each write appear whole or not at all.
pub trait Rows {
    /// Writes row `index`; `None` marks it unresolved.
    fn write(&self, index: u32, row: Option<&Row>);

    /// Reads row `index`, perhaps written by an earlier process; `None` if unresolved.
    fn read(&self, index: u32) -> Option<Row>;
}
