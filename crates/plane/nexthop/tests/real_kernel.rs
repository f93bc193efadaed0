//! Next hops against the real kernel: two network namespaces with two veth pairs between them. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod memory;

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memory::MemoryRows;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::unistd::Uid;
use shunt_nexthop::{Event, Kernel, Netlink, NextHops, Row, Rows, UNRESOLVED};

type Hops = NextHops<MemoryRows, Netlink>;

const ROWS: u32 = 4096;
const DEADLINE: Duration = Duration::from_secs(30);

const NEAR_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x10], [2, 0, 0, 0, 0, 0x11]];
const FAR_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x20], [2, 0, 0, 0, 0, 0x21]];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn sh(command: &[&str]) -> Result<String, String> {
    let done = Command::new(command[0])
        .args(&command[1..])
        .output()
        .map_err(|error| format!("{}: {error}", command[0]))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(format!("{}: {}", command.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}

/// `near`, where the test runs, and `far`, joined by n0-f0 (10.91.0.0/24, fd91::/64) and n1-f1 (10.92.0.0/24, fd92::/64).
struct Lab {
    near: String,
    far: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in [&self.near, &self.far] {
            let _ = sh(&["ip", "netns", "del", name]);
        }
    }
}

impl Lab {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nexthop-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let lab = Self {
            near: format!("{name}-near"),
            far: format!("{name}-far"),
        };
        for name in [&lab.near, &lab.far] {
            sh(&["ip", "netns", "add", name]).unwrap();
        }
        lab.near("link set lo up");
        for n in [0, 1] {
            lab.wire(n);
        }
        lab
    }

    /// Adds one veth pair with its addresses.
    fn wire(&self, n: usize) {
        let (near_mac, far_mac, far) = (text(NEAR_MACS[n]), text(FAR_MACS[n]), &self.far);
        self.near(&format!(
            "link add n{n} address {near_mac} type veth peer name f{n} address {far_mac} netns {far}"
        ));
        for (side, number) in [("n", 1), ("f", 2)] {
            let run = |command: &str| if side == "n" { self.near(command) } else { self.far(command) };
            run(&format!("address add 10.9{}.0.{number}/24 dev {side}{n}", n + 1));
            run(&format!("address add fd9{}::{number}/64 dev {side}{n} nodad", n + 1));
            run(&format!("link set {side}{n} up"));
        }
    }

    fn near(&self, command: &str) -> String {
        self.run(&self.near, command).unwrap()
    }

    fn far(&self, command: &str) -> String {
        self.run(&self.far, command).unwrap()
    }

    fn run(&self, namespace: &str, command: &str) -> Result<String, String> {
        let arguments: Vec<&str> = ["ip", "-n", namespace].into_iter().chain(command.split(' ')).collect();
        sh(&arguments)
    }

    /// Runs an arbitrary command in the far namespace.
    fn exec_far(&self, command: &[&str]) -> Result<String, String> {
        let arguments: Vec<&str> = ["ip", "netns", "exec", &self.far]
            .into_iter()
            .chain(command.iter().copied())
            .collect();
        sh(&arguments)
    }
}

/// Not by `eprintln!`, which the test harness keeps to itself.
fn skip(reason: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}

/// Runs a test in the near namespace, on a thread of its own.
fn in_lab(test: impl FnOnce(&Lab) + Send) {
    if !Uid::effective().is_root() {
        skip("network namespaces need root");
        return;
    }
    let lab = Lab::new();
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name(std::thread::current().name().unwrap_or_default().to_owned())
            .spawn_scoped(scope, || {
                setns(File::open(format!("/run/netns/{}", lab.near)).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
                test(&lab);
            })
            .unwrap()
            .join()
            .unwrap();
    });
}

fn open(rows: &MemoryRows) -> Hops {
    NextHops::new(rows.clone(), Netlink::new().unwrap(), ROWS, Instant::now()).unwrap()
}

fn fresh() -> (Hops, MemoryRows) {
    let rows = MemoryRows::new(ROWS as usize);
    let mut hops = open(&rows);
    hops.finish_adoption();
    (hops, rows)
}

const SRC: &str = "10.91.0.1";

/// The destination's row at present.
fn row(hops: &mut Hops, dst: &str) -> u16 {
    let src = if dst.contains(':') { ip("fd91::1") } else { ip(SRC) };
    let row = hops.acquire(ip(dst), src, 1).unwrap();
    hops.release(ip(dst), src);
    row
}

fn acquire(hops: &mut Hops, dst: &str) {
    let src = if dst.contains(':') { ip("fd91::1") } else { ip(SRC) };
    hops.acquire(ip(dst), src, 1).unwrap();
}

/// Handles events, as a caller would, until the condition holds.
#[track_caller]
fn until(hops: &mut Hops, what: &str, mut condition: impl FnMut(&mut Hops) -> bool) {
    let end = Instant::now() + DEADLINE;
    loop {
        let moved = hops.handle_events(Instant::now());
        hops.settle(moved);
        if condition(hops) {
            return;
        }
        assert!(Instant::now() < end, "{what}: not within {} s", DEADLINE.as_secs());
        let wait = if hops.is_pending() { 0u16 } else { 100 };
        poll(&mut [PollFd::new(hops.as_fd(), PollFlags::POLLIN)], PollTimeout::from(wait)).unwrap();
    }
}

/// Waits until the destination leaves by interface `near` to `mac`.
#[track_caller]
fn until_sent(hops: &mut Hops, rows: &MemoryRows, dst: &str, interface: &str, mac: [u8; 6]) -> Row {
    let mut found = None;
    until(hops, &format!("{dst} by {interface} to {}", text(mac)), |hops| {
        let index = row(hops, dst);
        let Some(ifindex) = hops.link_named(interface).map(|link| link.ifindex) else {
            return false;
        };
        found = rows.read(index.into()).filter(|row| (row.ifindex, row.dst_mac) == (ifindex, mac));
        found.is_some()
    });
    found.unwrap()
}

#[track_caller]
fn until_unresolved(hops: &mut Hops, rows: &MemoryRows, dst: &str) {
    until(hops, &format!("{dst} unresolved"), |hops| {
        let index = row(hops, dst);
        rows.read(index.into()).is_none()
    });
}

#[test]
fn neighbours_are_resolved_without_traffic_and_given_up_at_the_end() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        for (dst, interface, n) in [("10.91.0.2", "n0", 0), ("fd92::2", "n1", 1)] {
            acquire(&mut hops, dst);
            let found = until_sent(&mut hops, &rows, dst, interface, FAR_MACS[n]);
            assert_eq!((found.src_mac, found.vlan, found.mtu), (NEAR_MACS[n], 0, 1500));
            assert!(
                lab.near(&format!("neigh show {dst}")).contains("managed"),
                "the kernel keeps {dst} resolved (Linux 5.16)"
            );
            let link = hops.link_named(interface).unwrap().clone();
            assert_eq!(
                (hops.mac(link.ifindex), hops.kind(link.ifindex)),
                (Some(NEAR_MACS[n]), Some("veth"))
            );
            assert!(link.rx_queues >= 1);
        }
        hops.clear(&std::collections::HashMap::new());
        assert!(rows.resolved().is_empty());
        assert!(!lab.near("neigh show").contains("managed"));
        assert!(
            lab.near("neigh show 10.91.0.2").contains(&text(FAR_MACS[0])),
            "others may use what is known"
        );
    });
}

#[test]
fn neighbours_of_a_former_process_are_given_up_and_those_of_others_are_not() {
    in_lab(|lab| {
        lab.near("neigh replace 10.91.0.77 dev n0 managed");
        let (mut hops, rows) = fresh();
        for (dst, interface, n) in [("10.91.0.2", "n0", 0), ("fd92::2", "n1", 1)] {
            acquire(&mut hops, dst);
            until_sent(&mut hops, &rows, dst, interface, FAR_MACS[n]);
        }
        acquire(&mut hops, "10.91.0.99"); // nobody answers for it
        drop(hops);
        assert_eq!(lab.near("neigh show").matches("managed").count(), 4);
        Netlink::new().unwrap().unmanage_all().unwrap();
        let left = lab.near("neigh show");
        let managed: Vec<&str> = left.lines().filter(|line| line.contains("managed")).collect();
        assert!(managed.len() == 1 && managed[0].contains("10.91.0.77"), "{left}");
        assert!(left.contains(&text(FAR_MACS[0])), "others may use what is known");
    });
}

#[test]
fn a_neighbour_that_is_stale_changes_its_address_or_is_deleted() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        acquire(&mut hops, "10.91.0.2");
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", FAR_MACS[0]);
        let other = [2, 0, 0, 0, 0, 0xb9];
        // The host itself changes its address and says so by asking for ours.
        lab.far(&format!("link set f0 address {}", text(other)));
        lab.exec_far(&["bash", "-c", "echo > /dev/udp/10.91.0.1/9"]).unwrap();
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", other);
        lab.near(&format!("neigh replace 10.91.0.2 lladdr {} dev n0 nud stale", text(FAR_MACS[1])));
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", FAR_MACS[1]);
        lab.near(&format!(
            "neigh replace 10.91.0.2 lladdr {} dev n0 nud permanent",
            text(NEAR_MACS[1])
        ));
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", NEAR_MACS[1]);
        lab.near("neigh del 10.91.0.2 dev n0");
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", other);
    });
}

#[test]
fn a_silent_neighbour_is_unresolved_until_it_answers() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        acquire(&mut hops, "10.91.0.50");
        until_unresolved(&mut hops, &rows, "10.91.0.50");
        lab.far("address add 10.91.0.50/24 dev f0");
        until_sent(&mut hops, &rows, "10.91.0.50", "n0", FAR_MACS[0]);
    });
}

#[test]
fn route_changes_move_rows() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        for dst in ["198.51.100.9", "2001:db8::9"] {
            acquire(&mut hops, dst);
            assert_eq!(row(&mut hops, dst), UNRESOLVED);
        }
        lab.near("route add 198.51.100.0/24 via 10.91.0.2");
        lab.near("route add 2001:db8::/32 via fd91::2");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        until_sent(&mut hops, &rows, "2001:db8::9", "n0", FAR_MACS[0]);
        lab.near("route replace 198.51.100.0/24 via 10.92.0.2 mtu 1400");
        assert_eq!(until_sent(&mut hops, &rows, "198.51.100.9", "n1", FAR_MACS[1]).mtu, 1400);
        assert_eq!(until_sent(&mut hops, &rows, "2001:db8::9", "n0", FAR_MACS[0]).mtu, 1500);
        // By rule.
        lab.near("route add default via 10.91.0.2 table 100");
        lab.near("rule add from 10.91.0.1 table 100");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        lab.near("rule del from 10.91.0.1 table 100");
        // By nexthop object.
        lab.near("nexthop add id 7 via 10.91.0.2 dev n0");
        lab.near("route replace 198.51.100.0/24 nhid 7");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        lab.near("nexthop replace id 7 via 10.92.0.2 dev n1");
        until_sent(&mut hops, &rows, "198.51.100.9", "n1", FAR_MACS[1]);
        // An IPv4 route over an IPv6 router (RFC 8950).
        lab.near("route replace 198.51.100.0/24 via inet6 fd91::2 dev n0");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        // One of several.
        lab.near("route replace 198.51.100.0/24 nexthop via 10.92.0.2 nexthop via 10.92.0.3");
        lab.far("address add 10.92.0.3/24 dev f1");
        until_sent(&mut hops, &rows, "198.51.100.9", "n1", FAR_MACS[1]);
        lab.near("route del 198.51.100.0/24");
        until_unresolved(&mut hops, &rows, "198.51.100.9");
        assert_eq!(row(&mut hops, "198.51.100.9"), UNRESOLVED);
    });
}

#[test]
fn what_cannot_be_sent_to_is_row_0() {
    in_lab(|lab| {
        let (mut hops, _) = fresh();
        lab.near("route add default via 10.91.0.2");
        lab.near("route add blackhole 203.0.113.0/24");
        lab.near("route add unreachable 2001:db8:1::/48");
        lab.near("rule add from 10.91.0.1 to 198.51.100.0/24 unreachable");
        for dst in [
            "203.0.113.1",
            "2001:db8:1::1",
            "2001:db8:2::1",
            "198.51.100.1",
            "127.0.0.1",
            "10.91.0.1",
            "10.91.0.255",
            "224.0.0.1",
            "::1",
            "fd91::1",
        ] {
            assert_eq!(row(&mut hops, dst), UNRESOLVED, "{dst}");
        }
        assert_ne!(
            hops.acquire(ip("198.51.100.1"), ip("10.92.0.1"), 1),
            Ok(UNRESOLVED),
            "the rule is for another source"
        );
        assert_ne!(
            hops.acquire(ip("8.8.8.8"), ip("192.0.2.77"), 1),
            Ok(UNRESOLVED),
            "a source that is no address of this host does not matter"
        );
        assert_ne!(
            hops.acquire(ip("8.8.8.8"), ip("fd91::1"), 1),
            Ok(UNRESOLVED),
            "nor one of the other IP version"
        );
    });
}

#[test]
fn an_interface_goes_down_up_and_changes_its_address_and_mtu() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        lab.near("route add 198.51.100.0/24 via 10.91.0.2");
        acquire(&mut hops, "198.51.100.9");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        let mac = [2, 0, 0, 0, 0, 0xcc];
        lab.near(&format!("link set n0 address {}", text(mac)));
        lab.near("link set n0 mtu 1280");
        until(&mut hops, "address and MTU", |hops| {
            let index = row(hops, "198.51.100.9");
            rows.read(index.into()).is_some_and(|row| (row.src_mac, row.mtu) == (mac, 1280))
        });
        lab.near("link set n0 down");
        until_unresolved(&mut hops, &rows, "198.51.100.9");
        lab.near("link set n0 up");
        lab.near("route replace 198.51.100.0/24 via 10.91.0.2");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
        // The far end goes away: the neighbour stops answering, and comes back.
        lab.far("link set f0 down");
        until_unresolved(&mut hops, &rows, "198.51.100.9");
        lab.far("link set f0 up");
        until_sent(&mut hops, &rows, "198.51.100.9", "n0", FAR_MACS[0]);
    });
}

#[test]
fn an_interface_is_removed_and_made_again() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        for dst in ["10.91.0.2", "fd91::2"] {
            acquire(&mut hops, dst);
            until_sent(&mut hops, &rows, dst, "n0", FAR_MACS[0]);
        }
        let before = hops.link_named("n0").unwrap().ifindex;
        lab.near("link del n0");
        until(&mut hops, "n0 gone", |hops| {
            hops.link_named("n0").is_none() && hops.link(before).is_none()
        });
        for dst in ["10.91.0.2", "fd91::2"] {
            until_unresolved(&mut hops, &rows, dst);
        }
        lab.wire(0);
        for dst in ["10.91.0.2", "fd91::2"] {
            until_sent(&mut hops, &rows, dst, "n0", FAR_MACS[0]);
        }
        // An interface that leaves a bridge is still there.
        lab.near("link add br0 type bridge");
        lab.near("link set n1 master br0");
        lab.near("link set n1 nomaster");
        lab.near("link set n1 alias end");
        lab.near("link add last type veth peer name end");
        until(&mut hops, "the last interface", |hops| hops.link_named("last").is_some());
        assert!(hops.link_named("n1").is_some());
        assert_eq!(hops.kind(hops.link_named("br0").unwrap().ifindex), Some("bridge"));
    });
}

#[test]
fn a_vlan_interface_is_its_parent_and_a_tag() {
    in_lab(|lab| {
        if let Err(error) = lab.run(&lab.near, "link add link n0 name n0.300 type vlan id 300") {
            skip(&format!("this kernel has no 802.1Q interfaces ({error})"));
            return;
        }
        let (mut hops, rows) = fresh();
        lab.far("link add link f0 name f0.300 type vlan id 300");
        lab.near("address add 10.93.0.1/24 dev n0.300");
        lab.far("address add 10.93.0.2/24 dev f0.300");
        lab.near("link set n0.300 up mtu 1400");
        lab.far("link set f0.300 up");
        acquire(&mut hops, "10.93.0.2");
        let found = until_sent(&mut hops, &rows, "10.93.0.2", "n0", FAR_MACS[0]);
        assert_eq!((found.vlan, found.mtu), (300, 1400));
        lab.near("link set n0 down");
        until_unresolved(&mut hops, &rows, "10.93.0.2");
        lab.near("link set n0 up");
        until_sent(&mut hops, &rows, "10.93.0.2", "n0", FAR_MACS[0]);
    });
}

#[test]
fn ten_thousand_destinations_behind_one_gateway_use_one_row() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        lab.near("route add 198.18.0.0/15 via 10.91.0.2");
        let wanted: Vec<_> = (0..10_000u16)
            .map(|n| (IpAddr::from([198, 18, n.to_be_bytes()[0], n.to_be_bytes()[1]]), ip(SRC), 1))
            .collect();
        let found = hops.acquire_many(&wanted);
        assert!(found.iter().all(|row| *row == found[0]) && found[0] != Ok(UNRESOLVED));
        until_sent(&mut hops, &rows, "198.18.0.1", "n0", FAR_MACS[0]);
        assert_eq!(rows.resolved().len(), 1);
        // All of them follow.
        lab.near("route replace 198.18.0.0/15 via 10.92.0.2");
        until_sent(&mut hops, &rows, "198.18.0.0", "n1", FAR_MACS[1]);
        until(&mut hops, "the end of the pass", |hops| !hops.is_pending());
        assert_eq!(rows.resolved().len(), 1);
        for (dst, src, _) in wanted {
            hops.release(dst, src);
        }
        assert!(rows.resolved().is_empty());
    });
}

#[test]
fn routes_asked_for_many_at_a_time_are_those_asked_for_one_by_one() {
    in_lab(|lab| {
        lab.near("route add 192.0.2.0/24 via 10.91.0.9 mtu 1400");
        lab.near("route add 198.51.100.0/24 via 10.91.0.8");
        lab.near("route add blackhole 203.0.113.0/24");
        lab.near("route add 2001:db8::/32 via fd91::9");
        let sources = ["0.0.0.0", "10.91.0.1", "9.9.9.9", "fd91::1", "::"].map(ip);
        lab.near("rule add from 10.91.0.1 to 192.0.2.64/26 unreachable");
        let mut wanted = Vec::new();
        for n in 0..200u8 {
            for net in [
                [192, 0, 2, n],
                [198, 51, 100, n],
                [203, 0, 113, n],
                [10, 91, 0, n],
                [8, 8, 8, n],
                [127, 0, 0, n],
                [224, 0, 0, n],
            ] {
                wanted.push((IpAddr::from(net), sources[wanted.len() % 5]));
            }
            for net in ["2001:db8::", "fd91::", "2001:4860::", "::"] {
                wanted.push((ip(&format!("{net}{n:x}")), sources[wanted.len() % 5]));
            }
        }
        let mut kernel = Netlink::new().unwrap();
        let found = kernel.routes(&wanted).unwrap();
        for (pair, route) in wanted.iter().zip(&found) {
            assert_eq!(kernel.routes(&[*pair]).unwrap(), [*route], "{pair:?}");
        }
        let of = |dst: &str| found[wanted.iter().position(|(one, _)| *one == ip(dst)).unwrap()].map(|route| (route.gateway, route.mtu));
        assert_eq!(of("192.0.2.5"), Some((ip("10.91.0.9"), 1400)));
        assert_eq!(of("198.51.100.5"), Some((ip("10.91.0.8"), 0)));
        assert_eq!(of("2001:db8::5"), Some((ip("fd91::9"), 0)));
        assert_eq!(of("10.91.0.7"), Some((ip("10.91.0.7"), 0)));
        assert_eq!(
            (of("203.0.113.5"), of("8.8.8.8"), of("127.0.0.1"), of("224.0.0.1")),
            (None, None, None, None)
        );
        assert_eq!(kernel.routes(&[]).unwrap(), []);
    });
}

#[test]
fn a_path_mtu_is_of_one_destination_and_grows_again() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        lab.near("route add 198.51.100.0/24 via 10.91.0.2 mtu 1450");
        lab.near("route add 2001:db8::/32 via fd91::2");
        for dst in ["198.51.100.1", "198.51.100.2", "2001:db8::1", "2001:db8::2"] {
            acquire(&mut hops, dst);
            until_sent(&mut hops, &rows, dst, "n0", FAR_MACS[0]);
        }
        let now = Instant::now();
        for (dst, mtu) in [("198.51.100.1", 1300), ("2001:db8::1", 1280)] {
            let moved = hops.path_mtu(ip(dst), mtu, now);
            hops.settle(moved);
        }
        let mtus = |hops: &mut Hops| {
            ["198.51.100.1", "198.51.100.2", "2001:db8::1", "2001:db8::2"].map(|dst| {
                let index = row(hops, dst);
                rows.read(index.into()).map(|row| (row.dst_mac, row.mtu))
            })
        };
        let resolved = |mtus: [u16; 4]| mtus.map(|mtu| Some((FAR_MACS[0], mtu)));
        assert_eq!(mtus(&mut hops), resolved([1300, 1450, 1280, 1500]));
        assert_eq!(rows.resolved().len(), 4);
        let moved = hops.expire(now + Duration::from_secs(599));
        assert_eq!(moved, []);
        let moved = hops.expire(now + Duration::from_secs(600));
        assert_eq!(moved.len(), 2);
        hops.settle(moved);
        assert_eq!(mtus(&mut hops), resolved([1450, 1450, 1500, 1500]));
        assert_eq!(rows.resolved().len(), 2);
        let moved = hops.path_mtu(ip("198.51.100.1"), 1300, now);
        hops.settle(moved);
        lab.near("link set n0 mtu 1290");
        until(&mut hops, "the interface's MTU", |hops| {
            mtus(hops) == resolved([1290, 1290, 1290, 1290])
        });
    });
}

/// A router behind the gateway has a smaller MTU and says so to a socket of this host: the kernel caches that. The row keeps the MTU that is
/// configured, because the message was for one destination and may be forged.
#[test]
fn path_mtus_that_the_kernel_has_cached_do_not_count() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        lab.near("route add 198.51.100.0/24 via 10.91.0.2 mtu 1450");
        lab.near("route add 203.0.113.0/24 via 10.91.0.2");
        lab.near("route add 2001:db8::/32 via fd91::2");
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            lab.exec_far(&["sysctl", "-qw", setting]).unwrap();
        }
        lab.far("link add narrow type veth peer name end");
        lab.far("link set narrow up mtu 1300");
        lab.far("link set end up mtu 1300");
        for command in ["address add 10.94.0.1/24 dev narrow", "address add fd94::1/64 dev narrow nodad"] {
            lab.far(command);
        }
        let next = format!("lladdr {} dev narrow nud permanent", text([2, 0, 0, 0, 0, 0x40]));
        lab.far(&format!("neigh add 10.94.0.2 {next}"));
        lab.far(&format!("neigh add fd94::2 {next}"));
        for (prefix, via) in [
            ("198.51.100.0/24", "10.94.0.2"),
            ("203.0.113.0/24", "10.94.0.2"),
            ("2001:db8::/32", "fd94::2"),
        ] {
            lab.far(&format!("route add {prefix} via {via}"));
        }
        for (dst, own, configured) in [
            ("198.51.100.1", "0.0.0.0:0", 1450),
            ("203.0.113.1", "0.0.0.0:0", 1500),
            ("2001:db8::1", "[::]:0", 1500),
        ] {
            let socket = UdpSocket::bind(own).unwrap();
            let end = Instant::now() + DEADLINE;
            let shown = loop {
                let _ = socket.send_to(&[0; 1380], (ip(dst), 9));
                let shown = lab.near(&format!("route get {dst}"));
                if shown.contains("mtu 1300") {
                    break shown;
                }
                assert!(Instant::now() < end, "the kernel has no path MTU for {dst}: {shown}");
                std::thread::sleep(Duration::from_millis(20));
            };
            assert!(shown.contains("expires"), "{shown}");
            acquire(&mut hops, dst);
            let found = until_sent(&mut hops, &rows, dst, "n0", FAR_MACS[0]);
            assert_eq!(found.mtu, configured, "{dst}");
        }
    });
}

#[test]
fn a_restart_keeps_rows() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        lab.near("route add 198.51.100.0/24 via 10.91.0.2");
        lab.near("route add 203.0.113.0/24 via 10.92.0.2");
        let all = ["198.51.100.1", "198.51.100.2", "203.0.113.1", "fd91::2"];
        for dst in all {
            acquire(&mut hops, dst);
        }
        until(&mut hops, "resolved", |_| rows.resolved().len() == 3);
        let before: Vec<_> = all.iter().map(|dst| row(&mut hops, dst)).collect();
        drop(hops);
        lab.near("route replace 203.0.113.0/24 via 10.91.0.2");
        let mut hops = open(&rows);
        for (dst, index) in all.iter().zip(&before) {
            let src = if dst.contains(':') { ip("fd91::1") } else { ip(SRC) };
            assert_eq!(hops.adopt(ip(dst), src, 1, *index), *index);
        }
        hops.finish_adoption();
        let moved = hops.handle_events(Instant::now());
        assert_eq!(
            moved.iter().map(|moved| (moved.dst, moved.old(), moved.row())).collect::<Vec<_>>(),
            [(ip("203.0.113.1"), before[2], before[0])]
        );
        hops.settle(moved);
        assert_eq!(rows.resolved().len(), 2);
        for dst in all {
            let src = if dst.contains(':') { ip("fd91::1") } else { ip(SRC) };
            hops.release(ip(dst), src);
        }
        assert!(rows.resolved().is_empty());
    });
}

#[test]
fn an_interface_whose_far_end_cannot_receive_is_marked() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        acquire(&mut hops, "10.91.0.2");
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", FAR_MACS[0]);
        let ifindex = hops.link_named("n0").unwrap().ifindex;
        if Netlink::new().unwrap().xdp_transmit(ifindex).is_none() {
            skip("this kernel does not tell XDP features (before Linux 6.3)");
            return;
        }
        for (gro, sends) in [("on", true), ("off", false), ("on", true)] {
            if let Err(error) = lab.exec_far(&["ethtool", "-K", "f0", "gro", gro]) {
                skip(&error);
                return;
            }
            until(&mut hops, &format!("features with GRO {gro}"), |hops| {
                let index = row(hops, "10.91.0.2");
                rows.read(index.into()).is_some_and(|row| row.no_xmit != sends) && hops.sends(ifindex) == sends
            });
        }
    });
}

#[test]
fn lost_events_are_noticed_and_made_up_for() {
    in_lab(|lab| {
        let (mut hops, rows) = fresh();
        let mut other = Netlink::new().unwrap();
        acquire(&mut hops, "10.91.0.2");
        until_sent(&mut hops, &rows, "10.91.0.2", "n0", FAR_MACS[0]);
        let mut batch = String::new();
        for n in 0..40_000u32 {
            batch += &format!(
                "neigh replace 10.92.0.{} lladdr 02:00:00:00:01:{:02x} dev n1 nud permanent\n",
                10 + n % 100,
                n / 100 % 256
            );
        }
        // What is lost with the rest.
        batch += &format!("neigh replace 10.91.0.2 lladdr {} dev n0 nud permanent\n", text(NEAR_MACS[1]));
        batch += "link set n0 mtu 1400\n";
        let file = std::env::temp_dir().join(format!("{}.batch", lab.near));
        std::fs::write(&file, batch).unwrap();
        lab.near(&format!("-batch {}", file.display()));
        std::fs::remove_file(&file).unwrap();
        let events = other.events(usize::MAX);
        assert_eq!(events.list.first(), Some(&Event::Lost), "the buffer holds fewer than 40,000 events");
        let found = until_sent(&mut hops, &rows, "10.91.0.2", "n0", NEAR_MACS[1]);
        assert_eq!(found.mtu, 1400);
    });
}
