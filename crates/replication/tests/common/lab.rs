//! Network namespaces of a test: a relay between two hosts, each on an interface pair of its own. They go with the test.

use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Command;

pub const MACS: [[u8; 6]; 4] = [
    [2, 0, 0, 0, 0, 0xa1],
    [2, 0, 0, 0, 0, 0xa2],
    [2, 0, 0, 0, 0, 0xb1],
    [2, 0, 0, 0, 0, 0xb2],
];

/// A network namespace.
pub struct Namespace(File);

fn here() -> Namespace {
    Namespace(File::open("/proc/thread-self/ns/net").unwrap())
}

impl Namespace {
    pub fn new() -> Self {
        let home = here();
        unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
        let made = here();
        setns(&home.0, CloneFlags::CLONE_NEWNET).unwrap();
        made.run("ip link set lo up");
        made
    }

    /// Do something in the namespace, on this thread.
    pub fn inside<T>(&self, what: impl FnOnce() -> T) -> T {
        let home = here();
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
        let done = what();
        setns(&home.0, CloneFlags::CLONE_NEWNET).unwrap();
        done
    }

    /// Move this thread into the namespace for good.
    pub fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Run a command in the namespace; words are separated by blanks.
    pub fn run(&self, command: &str) {
        let mut words = command.split_whitespace();
        let done = self.inside(|| Command::new(words.next().unwrap()).args(words).output().unwrap());
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// How other commands of this process name it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A UDP socket with room for many packets.
    pub fn socket(&self, addr: IpAddr, port: u16) -> UdpSocket {
        let made = self.inside(|| UdpSocket::bind((addr, port)).unwrap());
        nix::sys::socket::setsockopt(&made, nix::sys::socket::sockopt::RcvBufForce, &(32 << 20)).unwrap();
        made
    }

    pub fn ifindex(&self, name: &str) -> u32 {
        self.inside(|| nix::net::if_::if_nametoindex(name).unwrap())
    }
}

/// `ra`-`a0` and `rb`-`b0` with 10.1.0.1-2, fd01::1-2, 10.2.0.1-2, fd02::1-2.
pub struct Lab {
    pub relay: Namespace,
    pub a: Namespace,
    pub b: Namespace,
}

impl Lab {
    pub fn new() -> Self {
        let made = Self {
            relay: Namespace::new(),
            a: Namespace::new(),
            b: Namespace::new(),
        };
        made.connect("a", &made.a, 1);
        made.connect("b", &made.b, 2);
        made
    }

    /// Make the interface pair to a host.
    pub fn connect(&self, letter: &str, host: &Namespace, net: u8) {
        let (relay, path) = (&self.relay, host.path());
        relay.run(&format!(
            "ip link add r{letter} address 02:00:00:00:00:{letter}1 type veth peer name {letter}0 address 02:00:00:00:00:{letter}2 netns {path}"
        ));
        // Without it an interface of this kind does not take what native XDP redirects to it.
        host.run(&format!("ethtool -K {letter}0 gro on"));
        relay.run(&format!("ip link set r{letter} up"));
        host.run(&format!("ip link set {letter}0 up"));
        relay.run(&format!("ip address add 10.{net}.0.1/24 dev r{letter}"));
        relay.run(&format!("ip address add fd0{net}::1/64 dev r{letter} nodad"));
        host.run(&format!("ip address add 10.{net}.0.2/24 dev {letter}0"));
        host.run(&format!("ip address add fd0{net}::2/64 dev {letter}0 nodad"));
        for addr in [format!("10.{net}.0.1"), format!("fd0{net}::1")] {
            host.run(&format!(
                "ip neigh replace {addr} lladdr 02:00:00:00:00:{letter}1 dev {letter}0 nud permanent"
            ));
        }
    }
}
