//! The state machine against a kernel in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/memory/mod.rs"]
mod memory;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Description, Exhausted, Framing, Kernel, Link, Moved, Neighbour, NextHops, Row, Rows, UNRESOLVED};
use memory::{MemoryKernel, MemoryRows};

type Hops = NextHops<MemoryRows, MemoryKernel>;

const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A kernel with two interfaces, a default route over the first and its gateway, and a connected network on each.
fn kernel() -> MemoryKernel {
    let kernel = MemoryKernel::default();
    kernel.set_link(MemoryKernel::ethernet(1));
    kernel.set_link(MemoryKernel::ethernet(2));
    kernel.set_route(ip("10.1.0.0"), 16, 1, None, 0);
    kernel.set_route(ip("10.2.0.0"), 16, 2, None, 0);
    kernel.set_route(ip("fd01::"), 64, 1, None, 0);
    kernel.set_route(ip("192.0.2.0"), 24, 1, Some(ip("10.1.0.1")), 0);
    kernel.set_route(ip("2001:db8::"), 32, 1, Some(ip("fd01::1")), 0);
    kernel.set_host(1, ip("10.1.0.1"), Some(GATEWAY_MAC));
    kernel.set_host(1, ip("fd01::1"), Some(GATEWAY_MAC));
    kernel.set_host(2, ip("10.2.0.1"), Some(OTHER_MAC));
    kernel.set_transmits(1, true);
    kernel.set_transmits(2, true);
    kernel
}

struct Lab {
    kernel: MemoryKernel,
    rows: MemoryRows,
    hops: Hops,
    now: Instant,
}

const SRC: &str = "10.1.0.100";

impl Lab {
    fn with_rows(count: u32) -> Self {
        let (kernel, rows, now) = (kernel(), MemoryRows::new(count as usize), Instant::now());
        let mut hops = NextHops::new(rows.clone(), kernel.clone(), count, now).unwrap();
        hops.finish_adoption();
        let mut lab = Self { kernel, rows, hops, now };
        lab.follow();
        lab
    }

    fn new() -> Self {
        Self::with_rows(100)
    }

    /// As a process that starts anew on the same table.
    fn restart(&mut self) {
        self.hops = NextHops::new(self.rows.clone(), self.kernel.clone(), 100, self.now).unwrap();
    }

    /// Handles events until there is nothing left; returns the new rows of what has moved.
    fn follow(&mut self) -> HashMap<IpAddr, u16> {
        let mut found = HashMap::new();
        loop {
            let moved = self.hops.handle_events(self.now);
            found.extend(moved.iter().map(|moved| (moved.dst, moved.row())));
            self.hops.settle(moved);
            if !self.hops.is_pending() {
                self.hops.check(&[]);
                return found;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn acquire(&mut self, dst: &str) -> u16 {
        self.hops.acquire(ip(dst), ip(SRC), 1).unwrap()
    }

    fn release(&mut self, dst: &str) {
        self.hops.release(ip(dst), ip(SRC));
    }

    fn read(&self, row: u16) -> Option<Row> {
        self.rows.read(row.into())
    }

    fn mtu(&self, row: u16) -> u16 {
        self.read(row).unwrap().mtu
    }

    fn path_mtu(&mut self, dst: &str, mtu: u32) -> Vec<(IpAddr, u16)> {
        let moved = self.hops.path_mtu(ip(dst), mtu, self.now);
        self.settle(moved)
    }

    fn expire(&mut self) -> Vec<(IpAddr, u16)> {
        let moved = self.hops.expire(self.now);
        self.settle(moved)
    }

    fn settle(&mut self, moved: Vec<Moved>) -> Vec<(IpAddr, u16)> {
        let found = moved.iter().map(|moved| (moved.dst, moved.row())).collect();
        self.hops.settle(moved);
        self.hops.check(&[]);
        found
    }
}

#[test]
fn destinations_behind_one_gateway_share_a_row() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    assert_eq!(lab.acquire("192.0.2.2"), row);
    assert_eq!(lab.acquire("192.0.2.1"), row);
    let expected = Row {
        ifindex: 1,
        dst_mac: GATEWAY_MAC,
        src_mac: [2, 0, 0, 0, 0, 1],
        vlan: 0,
        mtu: 1500,
        no_xmit: false,
    };
    assert_eq!(lab.read(row), Some(expected));
    assert_eq!(
        lab.hops.describe(row),
        Some(Description {
            ifindex: 1,
            neighbour: Some(ip("10.1.0.1")),
            row: Some(expected)
        })
    );
    assert_eq!(lab.kernel.managed(), [(1, ip("10.1.0.1"))]);
    lab.release("192.0.2.1");
    lab.release("192.0.2.2");
    assert_eq!(lab.read(row), Some(expected), "192.0.2.1 has a second reference");
    lab.release("192.0.2.1");
    assert_eq!(lab.read(row), None);
    assert_eq!(lab.hops.describe(row), None);
    assert!(lab.kernel.managed().is_empty());
    lab.release("192.0.2.1");
    lab.hops.check(&[]);
}

#[test]
fn no_route_is_row_0_until_there_is_one() {
    let mut lab = Lab::new();
    assert_eq!(lab.acquire("203.0.113.1"), UNRESOLVED);
    assert_eq!(lab.hops.describe(UNRESOLVED), None);
    lab.kernel.set_route(ip("203.0.113.0"), 24, 1, Some(ip("10.1.0.1")), 0);
    let row = lab.follow()[&ip("203.0.113.1")];
    assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
    lab.kernel.remove_route(ip("203.0.113.0"), 24);
    assert_eq!(lab.follow()[&ip("203.0.113.1")], UNRESOLVED);
    assert!(lab.rows.resolved().is_empty());
}

#[test]
fn the_old_row_of_a_move_stays_until_it_is_settled() {
    let mut lab = Lab::new();
    let old = lab.acquire("192.0.2.1");
    lab.kernel.set_route(ip("192.0.2.0"), 24, 2, Some(ip("10.2.0.1")), 0);
    let moved = lab.hops.handle_events(lab.now);
    assert_eq!(
        moved.iter().map(|moved| (moved.dst, moved.src, moved.old())).collect::<Vec<_>>(),
        [(ip("192.0.2.1"), ip(SRC), old)]
    );
    lab.hops.check(&[old]);
    assert_eq!(lab.read(old).unwrap().dst_mac, GATEWAY_MAC);
    assert_eq!(lab.read(moved[0].row()).unwrap().dst_mac, OTHER_MAC);
    // Released and acquired in between: counted on the new row.
    lab.release("192.0.2.1");
    lab.settle(moved);
    assert!(lab.rows.resolved().is_empty());
}

#[test]
fn a_neighbour_is_followed() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    let silent = lab.acquire("10.1.0.50");
    assert_eq!(lab.read(silent), None);
    assert_eq!(
        lab.hops.describe(silent),
        Some(Description {
            ifindex: 1,
            neighbour: Some(ip("10.1.0.50")),
            row: None
        })
    );
    lab.kernel.set_host(1, ip("10.1.0.1"), Some(OTHER_MAC));
    lab.kernel.set_host(1, ip("10.1.0.50"), Some(GATEWAY_MAC));
    assert!(lab.follow().is_empty());
    assert_eq!(
        (lab.read(row).unwrap().dst_mac, lab.read(silent).unwrap().dst_mac),
        (OTHER_MAC, GATEWAY_MAC)
    );
    // Deleted by somebody: asked for again.
    lab.kernel.set_neighbour(1, ip("10.1.0.1"), None);
    lab.follow();
    assert_eq!(lab.read(row).unwrap().dst_mac, OTHER_MAC);
    // Set by an administrator: his, and not ours to give up.
    let permanent = Neighbour {
        mac: Some(GATEWAY_MAC),
        permanent: true,
        managed: false,
    };
    lab.kernel.set_neighbour(1, ip("10.1.0.1"), Some(permanent));
    lab.follow();
    assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
    lab.release("192.0.2.1");
    assert_eq!(lab.kernel.clone().neighbour(1, ip("10.1.0.1")).unwrap(), Some(permanent));
}

#[test]
fn neighbours_are_probed_where_the_kernel_does_not_keep_them() {
    let mut lab = Lab::new();
    lab.kernel.set_manages(false);
    let row = lab.acquire("192.0.2.1");
    assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
    lab.kernel.set_host(1, ip("10.1.0.1"), Some(OTHER_MAC));
    lab.pass(Duration::from_secs(4));
    lab.follow();
    assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
    lab.pass(Duration::from_secs(1));
    lab.follow();
    assert_eq!(lab.read(row).unwrap().dst_mac, OTHER_MAC);
}

#[test]
fn an_interface_goes_down_and_comes_back_under_another_number() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    lab.kernel.set_link(Link {
        up: false,
        ..MemoryKernel::ethernet(1)
    });
    assert_eq!(lab.follow()[&ip("192.0.2.1")], UNRESOLVED);
    assert_eq!(lab.read(row), None);
    lab.kernel.set_link(MemoryKernel::ethernet(1));
    let row = lab.follow()[&ip("192.0.2.1")];
    assert_eq!(lab.read(row).unwrap().ifindex, 1);
    let changes = lab.hops.link_changes();
    lab.kernel.remove_link(1);
    assert_eq!(lab.follow()[&ip("192.0.2.1")], UNRESOLVED);
    assert_eq!((lab.hops.link(1), lab.hops.link_changes()), (None, changes + 1));
    lab.kernel.set_link(Link {
        name: "eth1".into(),
        ..MemoryKernel::ethernet(7)
    });
    lab.kernel.set_route(ip("192.0.2.0"), 24, 7, Some(ip("10.1.0.1")), 0);
    lab.kernel.set_host(7, ip("10.1.0.1"), Some(GATEWAY_MAC));
    let row = lab.follow()[&ip("192.0.2.1")];
    assert_eq!(lab.read(row).unwrap().ifindex, 7);
    assert_eq!(
        (lab.hops.link_named("eth1").unwrap().ifindex, lab.hops.mac(7), lab.hops.kind(7)),
        (7, Some([2, 0, 0, 0, 0, 7]), Some(""))
    );
}

#[test]
fn the_interface_s_own_address_and_mtu_are_followed() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    lab.kernel.set_link(Link {
        mac: Some([2, 0, 0, 0, 0, 0xaa]),
        mtu: 9000,
        ..MemoryKernel::ethernet(1)
    });
    assert!(lab.follow().is_empty());
    assert_eq!((lab.read(row).unwrap().src_mac, lab.mtu(row)), ([2, 0, 0, 0, 0, 0xaa], 9000));
    lab.kernel.set_link(Link {
        mtu: 100_000,
        ..MemoryKernel::ethernet(1)
    });
    lab.follow();
    assert_eq!(lab.mtu(row), u16::MAX);
    lab.kernel.set_link(Link {
        framing: Framing::Other,
        ..MemoryKernel::ethernet(1)
    });
    lab.follow();
    assert_eq!(lab.read(row), None);
}

#[test]
fn behind_a_tunnel_is_row_0() {
    let mut lab = Lab::new();
    let ethernet = lab.acquire("192.0.2.1");
    assert!(lab.read(ethernet).is_some());
    lab.kernel.set_link(Link {
        framing: Framing::Other,
        ..MemoryKernel::ethernet(1)
    });
    assert_eq!(lab.follow()[&ip("192.0.2.1")], UNRESOLVED);
    assert_eq!(lab.acquire("10.1.0.9"), UNRESOLVED);
    assert_eq!(lab.hops.describe(ethernet), None, "no row is spent on it");
    assert!(lab.kernel.managed().is_empty());
    lab.kernel.set_link(MemoryKernel::ethernet(1));
    assert_eq!(lab.follow().len(), 2);
}

#[test]
fn next_hops_may_move_to_another_thread() {
    fn check<T: Send>() {}
    check::<NextHops<MemoryRows, crate::Netlink>>();
}

#[test]
fn a_vlan_interface_is_its_parent_and_a_tag() {
    let mut lab = Lab::new();
    let vlan = Link {
        framing: Framing::Vlan { tag: 300, parent: 2 },
        kind: "vlan".into(),
        mtu: 1400,
        mac: Some([2, 0, 0, 0, 0, 0x33]),
        ..MemoryKernel::ethernet(9)
    };
    lab.kernel.set_link(vlan.clone());
    lab.kernel.set_route(ip("10.9.0.0"), 16, 9, None, 0);
    lab.kernel.set_host(9, ip("10.9.0.1"), Some(OTHER_MAC));
    lab.follow();
    let row = lab.acquire("10.9.0.1");
    let expected = Row {
        ifindex: 2,
        dst_mac: OTHER_MAC,
        src_mac: [2, 0, 0, 0, 0, 0x33],
        vlan: 300,
        mtu: 1400,
        no_xmit: false,
    };
    assert_eq!(lab.read(row), Some(expected));
    assert_eq!(lab.hops.describe(row).unwrap().ifindex, 9);
    lab.kernel.set_link(Link {
        up: false,
        ..MemoryKernel::ethernet(2)
    });
    lab.follow();
    assert_eq!(lab.read(row), None);
    lab.kernel.set_link(MemoryKernel::ethernet(2));
    lab.follow();
    assert_eq!(lab.read(row), Some(expected));
    // A tag on a tag is not for XDP.
    lab.kernel.set_link(Link {
        framing: Framing::Vlan { tag: 4, parent: 1 },
        ..MemoryKernel::ethernet(2)
    });
    lab.follow();
    assert_eq!(lab.read(row), None);
}

#[test]
fn a_macvlan_is_what_is_below_it_with_an_address_of_its_own() {
    let mut lab = Lab::new();
    let (vmac, vlan) = ([0, 0, 0x5e, 0, 1, 0x33], [2, 0, 0, 0, 0, 0x44]);
    let stacked = |ifindex: u32, framing, mac, kind: &str| Link {
        framing,
        kind: kind.into(),
        mac: Some(mac),
        ..MemoryKernel::ethernet(ifindex)
    };
    lab.kernel.set_link(stacked(8, Framing::Macvlan { parent: 2 }, vmac, "macvlan"));
    lab.kernel.set_route(ip("10.8.0.0"), 16, 8, None, 0);
    lab.kernel.set_host(8, ip("10.8.0.1"), Some(OTHER_MAC));
    lab.follow();
    let row = lab.acquire("10.8.0.1");
    let (content, out) = (lab.read(row).unwrap(), |row: &Row| (row.ifindex, row.src_mac, row.vlan));
    assert_eq!(out(&content), (2, vmac, 0));
    // Above a VLAN, which is above a bond of interface 1.
    lab.kernel.set_link(Link {
        controller: Some(3),
        ..MemoryKernel::ethernet(1)
    });
    lab.kernel.set_link(stacked(3, Framing::Ethernet, [2, 0, 0, 0, 0, 1], "bond"));
    lab.kernel.set_link(stacked(7, Framing::Vlan { tag: 5, parent: 3 }, vlan, "vlan"));
    lab.kernel.set_link(stacked(8, Framing::Macvlan { parent: 7 }, vmac, "macvlan"));
    lab.follow();
    assert_eq!(out(&lab.read(row).unwrap()), (3, vmac, 5));
    assert_eq!(lab.hops.lowest(8), 3);
    // Frames to any of them come by interface 1: the bond has its address.
    assert_eq!(lab.hops.macs_above(1), [vmac, vlan].into());
    assert_eq!(lab.hops.macs_above(2), [].into());
    assert!(lab.hops.is_above(8, 1) && lab.hops.is_above(8, 7) && !lab.hops.is_above(1, 8) && !lab.hops.is_above(2, 1));
    // The kernel has told of half a change: no loop.
    lab.kernel.set_link(stacked(7, Framing::Macvlan { parent: 8 }, vlan, "macvlan"));
    lab.follow();
    assert_eq!(lab.read(row), None);
    assert!(!lab.hops.is_above(8, 1));
}

#[test]
fn an_interface_that_cannot_transmit_is_marked() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    lab.kernel.set_transmits(1, false);
    lab.follow();
    assert!(lab.read(row).unwrap().no_xmit);
    lab.kernel.set_transmits(1, true);
    lab.follow();
    assert!(!lab.read(row).unwrap().no_xmit);
}

#[test]
fn before_linux_6_3_an_interface_with_the_program_can_transmit_unless_it_is_a_veth() {
    let kernel = MemoryKernel::default();
    kernel.set_link(MemoryKernel::ethernet(1));
    kernel.set_link(Link {
        kind: "veth".into(),
        ..MemoryKernel::ethernet(2)
    });
    let mut hops = NextHops::new(MemoryRows::new(10), kernel, 10, Instant::now()).unwrap();
    assert!(!hops.sends(1));
    hops.attached([1, 2]);
    assert!(hops.sends(1) && !hops.sends(2));
}

#[test]
fn lost_events_mean_that_everything_is_read_anew() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    let wide = lab.acquire("2001:db8::1");
    lab.kernel.set_link(Link {
        mtu: 1400,
        ..MemoryKernel::ethernet(1)
    });
    lab.kernel.set_host(1, ip("fd01::1"), Some(OTHER_MAC));
    lab.kernel.set_route(ip("192.0.2.0"), 24, 2, Some(ip("10.2.0.1")), 0);
    lab.kernel.lose_events();
    // The kernel does not answer at first.
    lab.kernel.set_answers(false);
    lab.follow();
    assert_eq!(lab.mtu(row), 1500);
    lab.kernel.set_answers(true);
    lab.pass(Duration::from_secs(5));
    let moved = lab.follow();
    assert_eq!(lab.read(moved[&ip("192.0.2.1")]).unwrap().dst_mac, OTHER_MAC);
    assert_eq!((lab.read(wide).unwrap().dst_mac, lab.mtu(wide)), (OTHER_MAC, 1400));
}

#[test]
fn an_answer_that_does_not_come_is_asked_for_again() {
    let mut lab = Lab::new();
    lab.kernel.set_answers(false);
    assert_eq!(lab.acquire("192.0.2.1"), UNRESOLVED);
    lab.kernel.set_answers(true);
    assert!(lab.follow().is_empty());
    lab.pass(Duration::from_secs(5));
    let row = lab.follow()[&ip("192.0.2.1")];
    assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
}

#[test]
fn a_full_table_is_an_error_and_what_moves_then_waits_for_a_row() {
    let mut lab = Lab::with_rows(3);
    lab.acquire("192.0.2.1");
    lab.acquire("10.2.0.1");
    assert_eq!(lab.hops.acquire(ip("10.2.0.2"), ip(SRC), 1), Err(Exhausted { rows: 2 }));
    lab.hops.check(&[]);
    assert_eq!(lab.kernel.managed().len(), 2);
    let unresolved = lab.acquire("203.0.113.1");
    lab.kernel.set_route(ip("203.0.113.1"), 32, 2, None, 0);
    assert!(lab.follow().is_empty());
    lab.release("10.2.0.1");
    assert!(lab.follow().is_empty());
    lab.pass(Duration::from_secs(5));
    assert_ne!(lab.follow()[&ip("203.0.113.1")], unresolved);
}

#[test]
fn many_are_asked_for_in_one_go() {
    let mut lab = Lab::new();
    let wanted: Vec<_> = (0..=255).map(|n| (IpAddr::from([192, 0, 2, n]), ip(SRC), 1)).collect();
    let before = lab.kernel.routes_asked();
    let rows = lab.hops.acquire_many(&[wanted.clone(), wanted.clone()].concat());
    assert!(rows.iter().all(|row| *row == rows[0]) && rows[0].is_ok());
    assert_eq!(lab.kernel.routes_asked() - before, 256);
    assert_eq!(lab.rows.resolved().len(), 1);
    // What was asked for before a change does not count after it.
    lab.hops.look_ahead([(ip("192.0.2.1"), ip("10.1.0.200"))]);
    lab.kernel.set_route(ip("192.0.2.0"), 24, 2, Some(ip("10.2.0.1")), 0);
    lab.follow();
    let row = lab.hops.acquire(ip("192.0.2.1"), ip("10.1.0.200"), 1).unwrap();
    assert_eq!(lab.read(row).unwrap().dst_mac, OTHER_MAC);
}

#[test]
fn a_pass_over_many_destinations_comes_in_parts() {
    let mut lab = Lab::new();
    for n in 0..5000u16 {
        lab.hops
            .acquire(
                IpAddr::from([192, 0, 2, 1]),
                IpAddr::from([10, 3, n.to_be_bytes()[0], n.to_be_bytes()[1]]),
                1,
            )
            .unwrap();
    }
    lab.kernel.set_route(ip("192.0.2.0"), 24, 2, Some(ip("10.2.0.1")), 0);
    let mut parts = Vec::new();
    loop {
        let moved = lab.hops.handle_events(lab.now);
        parts.push(moved.len());
        lab.hops.settle(moved);
        if !lab.hops.is_pending() {
            break;
        }
    }
    assert_eq!(parts, [1000; 5]);
    lab.hops.check(&[]);
    assert_eq!(lab.rows.resolved().len(), 1);
}

#[test]
fn clear_keeps_what_it_is_told_to() {
    let mut lab = Lab::new();
    lab.acquire("192.0.2.1");
    let row = lab.hops.acquire(ip("10.2.0.1"), ip(SRC), 5).unwrap();
    lab.hops.clear(&HashMap::from([((ip("10.2.0.1"), ip(SRC)), 2)]));
    lab.hops.check(&[]);
    assert_eq!(lab.rows.resolved(), [usize::from(row)]);
    lab.release("10.2.0.1");
    assert!(lab.read(row).is_some());
    lab.release("10.2.0.1");
    assert!(lab.rows.resolved().is_empty() && lab.kernel.managed().is_empty());
}

// Path MTUs

#[test]
fn the_path_mtu_of_one_destination_leaves_another_behind_the_same_gateway_alone() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    lab.acquire("192.0.2.2");
    let second = lab.hops.acquire(ip("192.0.2.1"), ip("10.1.0.200"), 1).unwrap();
    assert_eq!(second, row);
    let moved = lab.path_mtu("192.0.2.1", 1300);
    assert_eq!(
        moved.iter().map(|(dst, _)| *dst).collect::<Vec<_>>(),
        [ip("192.0.2.1"); 2],
        "from both sources"
    );
    let small = moved[0].1;
    assert_eq!((lab.mtu(small), lab.mtu(row)), (1300, 1500));
    assert_eq!((lab.acquire("192.0.2.1"), lab.acquire("192.0.2.2")), (small, row));
    // It never grows by a message, and the neighbour is followed in both rows.
    assert!(lab.path_mtu("192.0.2.1", 1400).is_empty());
    assert!(lab.path_mtu("192.0.2.2", 1500).is_empty());
    assert!(lab.path_mtu("192.0.2.2", 9000).is_empty());
    lab.kernel.set_host(1, ip("10.1.0.1"), Some(OTHER_MAC));
    assert!(lab.follow().is_empty());
    assert_eq!(
        (lab.read(small).unwrap().dst_mac, lab.read(row).unwrap().dst_mac),
        (OTHER_MAC, OTHER_MAC)
    );
    // It shrinks, and grows again after ten minutes.
    lab.pass(Duration::from_secs(300));
    let smaller = lab.path_mtu("192.0.2.1", 1200)[0].1;
    assert_eq!((lab.mtu(smaller), lab.read(small)), (1200, None));
    lab.pass(Duration::from_secs(599));
    assert!(lab.expire().is_empty());
    lab.pass(Duration::from_secs(1));
    assert!(lab.hops.next_expiry().unwrap() <= lab.now);
    assert_eq!(lab.expire().iter().map(|(_, row)| *row).collect::<Vec<_>>(), [row, row]);
    assert_eq!(lab.hops.next_expiry(), None);
    assert_eq!(lab.rows.resolved(), [usize::from(row)]);
}

#[test]
fn a_path_mtu_outlives_route_changes_and_the_last_reference() {
    let mut lab = Lab::new();
    lab.acquire("192.0.2.1");
    lab.path_mtu("192.0.2.1", 1300);
    lab.kernel.set_route(ip("192.0.2.0"), 24, 2, Some(ip("10.2.0.1")), 1450);
    let moved = lab.follow();
    assert_eq!(lab.mtu(moved[&ip("192.0.2.1")]), 1300);
    lab.release("192.0.2.1");
    let row = lab.acquire("192.0.2.1");
    assert_eq!(lab.mtu(row), 1300);
    lab.pass(Duration::from_secs(600));
    let row = lab.expire()[0].1;
    assert_eq!(lab.mtu(row), 1450);
}

#[test]
fn path_mtus_have_bounds() {
    let mut lab = Lab::new();
    lab.acquire("192.0.2.1");
    lab.acquire("2001:db8::1");
    let row = lab.path_mtu("192.0.2.1", 0)[0].1;
    assert_eq!(lab.mtu(row), 576);
    assert!(lab.path_mtu("2001:db8::1", 1279).is_empty());
    let row = lab.path_mtu("2001:db8::1", 1280)[0].1;
    assert_eq!(lab.mtu(row), 1280);
    // Nobody sends there: nothing to remember.
    assert!(lab.path_mtu("192.0.2.9", 1300).is_empty());
    let row = lab.acquire("192.0.2.9");
    assert_eq!(lab.mtu(row), 1500);
    // An interface with a smaller MTU counts for all.
    lab.kernel.set_link(Link {
        mtu: 1000,
        ..MemoryKernel::ethernet(1)
    });
    lab.follow();
    assert_eq!(lab.mtu(row), 1000);
    assert!(lab.path_mtu("192.0.2.9", 1200).is_empty());
}

#[test]
fn the_oldest_path_mtu_makes_room() {
    let mut lab = Lab::new();
    let dst = |n: u32| IpAddr::from((0xc000_0201 + n).to_be_bytes());
    lab.kernel.set_route(ip("192.0.0.0"), 8, 1, Some(ip("10.1.0.1")), 0);
    lab.follow();
    for n in 0..65_536 {
        lab.hops.acquire(dst(n), ip(SRC), 1).unwrap();
        let moved = lab.hops.path_mtu(dst(n), 1300, lab.now);
        assert_eq!(moved.len(), 1);
        lab.hops.settle(moved);
    }
    // Renewed, the first is the youngest.
    assert!(lab.hops.path_mtu(dst(0), 1300, lab.now).is_empty());
    lab.hops.acquire(dst(65_536), ip(SRC), 1).unwrap();
    let moved = lab.hops.path_mtu(dst(65_536), 1300, lab.now);
    let mut found: Vec<_> = moved.iter().map(|moved| (moved.dst, lab.mtu(moved.row()))).collect();
    found.sort_unstable();
    assert_eq!(found, [(dst(1), 1500), (dst(65_536), 1300)]);
    lab.settle(moved);
    // They expire in parts.
    lab.pass(Duration::from_secs(600));
    assert_eq!(lab.expire().len(), 1000);
    assert!(lab.hops.next_expiry().unwrap() <= lab.now);
}

// Adoption

#[test]
fn adoption_keeps_rows_and_asks_for_no_route() {
    let mut lab = Lab::new();
    let all = ["192.0.2.1", "192.0.2.2", "10.2.0.1", "2001:db8::1", "10.1.0.77"];
    let rows: HashMap<&str, u16> = all.iter().map(|&dst| (dst, lab.acquire(dst))).collect();
    lab.path_mtu("192.0.2.2", 1300);
    let rows = HashMap::from([("192.0.2.2", lab.acquire("192.0.2.2"))])
        .into_iter()
        .chain(rows.into_iter().filter(|(dst, _)| *dst != "192.0.2.2"));
    let rows: HashMap<&str, u16> = rows.collect();
    let before: Vec<_> = (0..100).map(|row| lab.read(row)).collect();
    // One is gone before the next process starts.
    let asked = lab.kernel.routes_asked();
    lab.restart();
    for &dst in all.iter().filter(|dst| **dst != "10.2.0.1") {
        assert_eq!(lab.hops.adopt(ip(dst), ip(SRC), 1, rows[dst]), rows[dst]);
    }
    assert_eq!(lab.kernel.routes_asked(), asked);
    // New ones before the end of the adoption take no row that may be in use, and share where that is sure.
    let fresh = lab.acquire("10.2.0.9");
    assert!(!rows.values().any(|row| *row == fresh));
    assert_eq!(lab.acquire("192.0.2.9"), rows["192.0.2.1"]);
    lab.release("10.2.0.9");
    lab.release("192.0.2.9");
    lab.hops.finish_adoption();
    assert_eq!(lab.read(rows["10.2.0.1"]), None);
    assert!(lab.follow().is_empty());
    let after: Vec<_> = (0..100).map(|row| lab.read(row)).collect();
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| before == after || before.unwrap().dst_mac == OTHER_MAC)
    );
    assert_eq!(lab.mtu(rows["192.0.2.2"]), 1300);
    lab.pass(Duration::from_secs(600));
    assert_eq!(lab.expire(), [(ip("192.0.2.2"), rows["192.0.2.1"])]);
    for dst in all {
        lab.release(dst);
    }
    lab.hops.check(&[]);
    assert!(lab.rows.resolved().is_empty());
    assert_eq!(
        lab.kernel.managed(),
        [(2, ip("10.2.0.1"))],
        "the former process managed it, and nobody has adopted it"
    );
}

#[test]
fn what_changed_while_nobody_looked_moves_after_the_adoption() {
    for order in [["192.0.2.1", "192.0.2.2"], ["192.0.2.2", "192.0.2.1"]] {
        let mut lab = Lab::new();
        let row = lab.acquire("192.0.2.1");
        lab.acquire("192.0.2.2");
        lab.kernel.set_route(ip("192.0.2.1"), 32, 2, Some(ip("10.2.0.1")), 0);
        lab.restart();
        for dst in order {
            assert_eq!(lab.hops.adopt(ip(dst), ip(SRC), 1, row), row);
        }
        assert_eq!(
            lab.hops.describe(row).unwrap(),
            Description {
                ifindex: 1,
                neighbour: None,
                row: lab.read(row)
            }
        );
        lab.hops.finish_adoption();
        let moved = lab.hops.handle_events(lab.now);
        assert_eq!(
            moved.iter().map(|moved| moved.dst).collect::<Vec<_>>(),
            [ip("192.0.2.1")],
            "the other stays"
        );
        assert_eq!(lab.read(moved[0].row()).unwrap().dst_mac, OTHER_MAC);
        assert_eq!(lab.read(row).unwrap().dst_mac, GATEWAY_MAC);
        lab.settle(moved);
    }
}

/// The router has one Ethernet address for IPv4 and IPv6, so that two rows say the same.
#[test]
fn rows_of_both_ip_versions_are_told_apart() {
    let all = ["192.0.2.1", "2001:db8::1"];
    for order in [[0, 1], [1, 0]] {
        for fresh in [None, Some("192.0.2.9"), Some("2001:db8::9")] {
            let mut lab = Lab::new();
            let rows = all.map(|dst| lab.acquire(dst));
            assert_eq!(lab.read(rows[0]), lab.read(rows[1]));
            lab.restart();
            for n in order {
                assert_eq!(lab.hops.adopt(ip(all[n]), ip(SRC), 1, rows[n]), rows[n]);
            }
            if let Some(fresh) = fresh {
                assert_eq!(lab.acquire(fresh), rows[usize::from(fresh.contains(':'))]);
            }
            lab.hops.finish_adoption();
            assert!(lab.follow().is_empty());
        }
    }
}

#[test]
fn a_row_released_during_the_adoption_stays_for_those_still_to_be_adopted() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    let before = lab.read(row);
    lab.restart();
    lab.hops.adopt(ip("192.0.2.1"), ip(SRC), 1, row);
    lab.release("192.0.2.1");
    assert_eq!(lab.read(row), before);
    assert_eq!(lab.hops.adopt(ip("192.0.2.2"), ip(SRC), 1, row), row);
    lab.hops.finish_adoption();
    assert!(lab.follow().is_empty());
    assert_eq!(lab.read(row), before);
    lab.release("192.0.2.2");
    assert!(lab.rows.resolved().is_empty());
}

#[test]
fn rows_that_cannot_be_adopted_are_row_0() {
    let mut lab = Lab::new();
    assert_eq!(lab.hops.adopt(ip("192.0.2.1"), ip(SRC), 1, 100), UNRESOLVED);
    assert_eq!(lab.hops.adopt(ip("192.0.2.2"), ip(SRC), 1, UNRESOLVED), UNRESOLVED);
    lab.hops.finish_adoption();
    let moved = lab.follow();
    assert_eq!(moved.len(), 2);
    assert!(moved.values().all(|row| lab.read(*row).unwrap().dst_mac == GATEWAY_MAC));
}

#[test]
fn an_adopted_row_follows_its_interface_before_its_neighbour_is_known() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    lab.restart();
    lab.hops.adopt(ip("192.0.2.1"), ip(SRC), 1, row);
    lab.kernel.set_transmits(1, false);
    lab.hops.attached([1]);
    assert!(lab.read(row).unwrap().no_xmit);
    lab.kernel.set_transmits(1, true);
    lab.kernel.lose_events();
    lab.follow();
    assert!(!lab.read(row).unwrap().no_xmit);
    lab.kernel.set_link(Link {
        up: false,
        ..MemoryKernel::ethernet(1)
    });
    lab.follow();
    assert_eq!(lab.read(row), None);
}

// Any order of events

#[derive(Clone, Debug)]
enum Step {
    Acquire(u8, u8, u32),
    AcquireMany(Vec<u8>),
    Release(u8, u8),
    Route { prefix: u8, to: Option<u8>, mtu: u32 },
    Host { gateway: u8, mac: Option<u8> },
    Forget(u8),
    Link { ifindex: u32, state: u8 },
    Lose,
    Answers(bool),
    Handle,
    Settle,
    PathMtu(u8, u32),
    Time(u64),
    Expire,
    Clear(Vec<u8>),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..24, 0u8..2, 1u32..3).prop_map(|(dst, src, users)| Step::Acquire(dst, src, users)),
        1 => proptest::collection::vec(0u8..24, 0..6).prop_map(Step::AcquireMany),
        6 => (0u8..24, 0u8..2).prop_map(|(dst, src)| Step::Release(dst, src)),
        4 => (0u8..6, proptest::option::of(0u8..4), prop_oneof![Just(0), Just(1400)]).prop_map(|(prefix, to, mtu)| Step::Route { prefix, to, mtu }),
        3 => (0u8..4, proptest::option::of(0u8..4)).prop_map(|(gateway, mac)| Step::Host { gateway, mac }),
        1 => (0u8..4).prop_map(Step::Forget),
        2 => (1u32..3, 0u8..4).prop_map(|(ifindex, state)| Step::Link { ifindex, state }),
        1 => Just(Step::Lose),
        1 => any::<bool>().prop_map(Step::Answers),
        6 => Just(Step::Handle),
        3 => Just(Step::Settle),
        4 => (0u8..24, 500u32..1600).prop_map(|(dst, mtu)| Step::PathMtu(dst, mtu)),
        3 => prop_oneof![Just(1u64), Just(5), Just(300), Just(600)].prop_map(Step::Time),
        2 => Just(Step::Expire),
        1 => proptest::collection::vec(0u8..24, 0..4).prop_map(Step::Clear),
        1 => Just(Step::Restart),
    ]
}

/// Six prefixes of four addresses; each prefix may be routed by one of four gateways, two on each interface.
fn address(n: u8) -> IpAddr {
    IpAddr::from([198, 51, n / 4, n % 4])
}

fn source(n: u8) -> IpAddr {
    IpAddr::from([10, 1, 0, 100 + n])
}

fn gateway(n: u8) -> (u32, IpAddr) {
    (1 + u32::from(n / 2), IpAddr::from([10, 1 + n / 2, 0, n % 2]))
}

type Pair = (IpAddr, IpAddr);

/// What the entries of a caller would say: references and row of each pair.
#[derive(Default)]
struct Entries {
    users: HashMap<Pair, u32>,
    rows: HashMap<Pair, u16>,
    unsettled: Vec<Moved>,
}

impl Entries {
    fn take(&mut self, moved: Vec<Moved>) {
        for moved in &moved {
            assert_eq!(
                self.rows.insert((moved.dst, moved.src), moved.row()),
                Some(moved.old()),
                "a move from a row that was not in use"
            );
        }
        self.unsettled.extend(moved);
    }

    fn acquired(&mut self, pair: Pair, users: u32, row: Result<u16, Exhausted>) {
        if let Ok(row) = row {
            *self.users.entry(pair).or_default() += users;
            assert_eq!(
                *self.rows.entry(pair).or_insert(row),
                row,
                "the row of a pair changes by moves only"
            );
        }
    }
}

const ROWS: u32 = 9;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Whatever happens, references stay balanced, no row serves two neighbours, and once all is quiet each row says what the kernel says.
    #[test]
    fn rows_follow_the_kernel(steps in proptest::collection::vec(step(), 0..80)) {
        let kernel = MemoryKernel::default();
        kernel.set_link(MemoryKernel::ethernet(1));
        kernel.set_link(MemoryKernel::ethernet(2));
        let rows = MemoryRows::new(ROWS as usize);
        let mut now = Instant::now();
        let mut hops = NextHops::new(rows.clone(), kernel.clone(), ROWS, now).unwrap();
        hops.finish_adoption();
        let mut entries = Entries::default();
        for step in steps {
            match step {
                Step::Acquire(dst, src, users) => {
                    let pair = (address(dst), source(src));
                    let row = hops.acquire(pair.0, pair.1, users);
                    entries.acquired(pair, users, row);
                }
                Step::AcquireMany(dsts) => {
                    let wanted: Vec<_> = dsts.into_iter().map(|dst| (address(dst), source(0), 1)).collect();
                    for (&(dst, src, users), row) in wanted.iter().zip(hops.acquire_many(&wanted)) {
                        entries.acquired((dst, src), users, row);
                    }
                }
                Step::Release(dst, src) => {
                    let pair = (address(dst), source(src));
                    hops.release(pair.0, pair.1);
                    if let Some(users) = entries.users.get_mut(&pair) {
                        *users -= 1;
                        if *users == 0 {
                            entries.users.remove(&pair);
                            entries.rows.remove(&pair);
                        }
                    }
                }
                Step::Route { prefix, to, mtu } => {
                    let network = IpAddr::from([198, 51, prefix, 0]);
                    match to.map(gateway) {
                        Some((ifindex, addr)) => kernel.set_route(network, 24, ifindex, Some(addr), mtu),
                        None => kernel.remove_route(network, 24),
                    }
                }
                Step::Host { gateway: n, mac } => {
                    let (ifindex, addr) = gateway(n);
                    kernel.set_host(ifindex, addr, mac.map(|mac| [2, 0, 0, 0, 9, mac]));
                }
                Step::Forget(n) => kernel.set_neighbour(gateway(n).0, gateway(n).1, None),
                Step::Link { ifindex, state } => match state {
                    0 => kernel.remove_link(ifindex),
                    1 => kernel.set_link(Link { up: false, ..MemoryKernel::ethernet(ifindex) }),
                    2 => kernel.set_link(Link { mtu: 1350, ..MemoryKernel::ethernet(ifindex) }),
                    _ => kernel.set_link(MemoryKernel::ethernet(ifindex)),
                },
                Step::Lose => kernel.lose_events(),
                Step::Answers(answers) => kernel.set_answers(answers),
                Step::Handle => entries.take(hops.handle_events(now)),
                Step::Settle => hops.settle(std::mem::take(&mut entries.unsettled)),
                Step::PathMtu(dst, mtu) => entries.take(hops.path_mtu(address(dst), mtu, now)),
                Step::Time(seconds) => now += Duration::from_secs(seconds),
                Step::Expire => entries.take(hops.expire(now)),
                Step::Clear(kept) => {
                    let kept: HashMap<Pair, u32> = kept.into_iter().map(|dst| ((address(dst), source(0)), 1)).collect();
                    hops.clear(&kept);
                    entries.users.retain(|pair, users| kept.get(pair).is_some_and(|kept| { *users = *kept; true }));
                    entries.rows.retain(|pair, _| kept.contains_key(pair));
                }
                Step::Restart => {
                    kernel.set_answers(true);
                    entries.unsettled.clear();
                    hops = NextHops::new(rows.clone(), kernel.clone(), ROWS, now).unwrap();
                    // As a new process: the events are those from now on.
                    let _ = kernel.clone().events(usize::MAX);
                    for (pair, row) in &mut entries.rows {
                        let adopted = hops.adopt(pair.0, pair.1, entries.users[pair], *row);
                        prop_assert!(adopted == *row || rows.read((*row).into()).is_none());
                        *row = adopted;
                    }
                    hops.finish_adoption();
                }
            }
            let unsettled: Vec<u16> = entries.unsettled.iter().map(Moved::old).collect();
            hops.check(&unsettled);
        }

        // All is quiet.
        kernel.set_answers(true);
        now += Duration::from_secs(600);
        while hops.next_expiry().is_some() {
            entries.take(hops.expire(now));
        }
        hops.settle(std::mem::take(&mut entries.unsettled));
        for _ in 0..3 {
            now += Duration::from_secs(5);
            loop {
                entries.take(hops.handle_events(now));
                hops.settle(std::mem::take(&mut entries.unsettled));
                if !hops.is_pending() {
                    break;
                }
            }
        }
        // An adopted row may have brought back a path MTU.
        now += Duration::from_secs(600);
        entries.take(hops.expire(now));
        hops.settle(std::mem::take(&mut entries.unsettled));
        hops.check(&[]);
        let mut asked = kernel.clone();
        let links: HashMap<u32, Link> = asked.links().unwrap().into_iter().map(|link| (link.ifindex, link)).collect();
        let mut gateways: HashMap<u16, (u32, IpAddr)> = HashMap::new();
        for (&(dst, src), &row) in &entries.rows {
            let route = asked.routes(&[(dst, src)]).unwrap()[0];
            let Some(route) = route else {
                prop_assert_eq!(row, UNRESOLVED);
                continue;
            };
            prop_assert_ne!(row, UNRESOLVED, "8 rows are enough for 4 gateways with 2 MTUs each");
            prop_assert_eq!(*gateways.entry(row).or_insert((route.ifindex, route.gateway)), (route.ifindex, route.gateway));
            let link = &links[&route.ifindex];
            let mac = asked.neighbour(route.ifindex, route.gateway).unwrap().and_then(|neighbour| neighbour.mac);
            let expected = mac.map(|dst_mac| Row {
                ifindex: route.ifindex,
                dst_mac,
                src_mac: link.mac.unwrap(),
                vlan: 0,
                mtu: u16::try_from(if route.mtu == 0 { link.mtu } else { link.mtu.min(route.mtu) }).unwrap(),
                no_xmit: true,
            });
            prop_assert_eq!(rows.read(row.into()), expected);
        }
        // The last reference frees the row.
        for (pair, users) in entries.users {
            for _ in 0..users {
                prop_assert!(entries.rows[&pair] == UNRESOLVED || hops.describe(entries.rows[&pair]).is_some());
                hops.release(pair.0, pair.1);
            }
        }
        hops.check(&[]);
        prop_assert!(rows.resolved().is_empty());
    }
}

#[test]
fn events_are_taken_in_parts() {
    let mut lab = Lab::new();
    let row = lab.acquire("192.0.2.1");
    for n in 0..2500u32 {
        lab.kernel.set_link(Link {
            mtu: 1000 + n % 8,
            ..MemoryKernel::ethernet(1)
        });
    }
    assert!(lab.hops.handle_events(lab.now).is_empty());
    assert!(lab.hops.is_pending());
    lab.follow();
    assert_eq!(u32::from(lab.mtu(row)), 1003);
}
