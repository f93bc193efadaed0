//! One row of the next-hop table, and the trait that writes the shared table.

/// The row that never resolves: its packets go up to the kernel.
pub const UNRESOLVED: u16 = 0;

/// What the XDP programs need to send a packet to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Interface that the frame leaves by; for a VLAN sub-interface its parent.
    pub ifindex: u32,
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    /// 802.1Q tag, 0 for none.
    pub vlan: u16,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// The interface cannot send what native XDP redirects to it.
    pub no_xmit: bool,
}

impl Row {
    /// Whether both rows lead to the same neighbour.
    #[must_use]
    pub fn same_neighbour(&self, other: &Self) -> bool {
        (self.ifindex, self.dst_mac, self.vlan) == (other.ifindex, other.dst_mac, other.vlan)
    }
}

/// The shared table. Readers run at any time: an implementation has to make each write appear whole or not at all.
pub trait Rows {
    /// Writes row `index`; `None` marks it unresolved.
    fn write(&self, index: u32, row: Option<&Row>);

    /// Row `index` as it stands, perhaps written by an earlier process; `None` when unresolved.
    fn read(&self, index: u32) -> Option<Row>;
}
