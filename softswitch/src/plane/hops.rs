//! Connects the crate that follows the kernel's routes with the next-hop map of the programs.

use shunt_abi::relay::{nexthop, nexthop_flag, size};
use shunt_nexthop::{Netlink, NextHops, Row, Rows};
use shunt_relay_table::Hops;
use shunt_xdp::Shared;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Rows of the next-hop table in the programs' map.
pub struct HopRows(pub Shared<nexthop>);

fn record(row: &Row) -> nexthop {
    let [a, b, c, d, e, f] = row.dst_mac;
    let [g, h, i, j, k, l] = row.src_mac;
    let flags = if row.no_xmit { nexthop_flag::NEXTHOP_NO_XMIT.0 } else { 0 };
    nexthop {
        generation: 0,
        ifindex: row.ifindex,
        macs: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        macs_end: u32::from_ne_bytes([i, j, k, l]),
        vlan: row.vlan,
        mtu: row.mtu,
        flags,
        plain_mtu: if row.vlan == 0 && flags == 0 { u32::from(row.mtu) } else { 0 },
    }
}

impl Rows for HopRows {
    fn write(&self, index: u32, row: Option<&Row>) {
        let index = index as usize;
        self.0.retire(index);
        if let Some(row) = row {
            self.0.store_range(index, &record(row), 4..size_of::<nexthop>());
            self.0.publish(index);
        }
    }

    fn read(&self, index: u32) -> Option<Row> {
        let index = index as usize;
        if self.0.generation(index) & 1 == 0 {
            return None;
        }
        let row = self.0.load(index);
        let [a, b, c, d, e, f, g, h] = row.macs.to_ne_bytes();
        let [i, j, k, l] = row.macs_end.to_ne_bytes();
        Some(Row {
            ifindex: row.ifindex,
            dst_mac: [a, b, c, d, e, f],
            src_mac: [g, h, i, j, k, l],
            vlan: row.vlan,
            mtu: row.mtu,
            no_xmit: row.flags & nexthop_flag::NEXTHOP_NO_XMIT.0 != 0,
        })
    }
}

/// Returns the number of rows of the table.
pub const ROWS: usize = size::NEXTHOPS.0 as usize;

/// The next hops of relay entries and of conference copies.
pub struct KernelHops(pub NextHops<HopRows, Netlink>);

impl Hops for KernelHops {
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Option<u16> {
        self.0.acquire(dst, src, 1).ok()
    }

    fn release(&mut self, dst: IpAddr, src: IpAddr) {
        self.0.release(dst, src);
    }

    fn adopt(&mut self, dst: IpAddr, src: IpAddr, users: u32, row: u16, _taken: &BTreeSet<u16>) -> u16 {
        self.0.adopt(dst, src, users, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_stand_as_in_a_frame() {
        let row = Row {
            ifindex: 3,
            dst_mac: [1, 2, 3, 4, 5, 6],
            src_mac: [7, 8, 9, 10, 11, 12],
            vlan: 0,
            mtu: 1500,
            no_xmit: false,
        };
        let record = record(&row);
        let mut frame = record.macs.to_ne_bytes().to_vec();
        frame.extend(record.macs_end.to_ne_bytes());
        assert_eq!(frame, (1..=12).collect::<Vec<u8>>());
        assert_eq!((record.plain_mtu, record.mtu), (1500, 1500));
    }
}
