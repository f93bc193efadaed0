//! Network namespaces of a test: a relay between two hosts, each on an interface pair of its own. They go with the test.

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, setsockopt, socket, sockopt,
};
use std::fs::File;
use std::io::IoSliceMut;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
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
        setsockopt(&made, sockopt::RcvBufForce, &(32 << 20)).unwrap();
        made
    }

    /// What arrives from now on.
    pub fn wire(&self) -> Wire {
        Wire::new(self)
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
        self.connect_as(letter, host, net, None);
    }

    /// The same, where the relay's end has this number.
    pub fn connect_as(&self, letter: &str, host: &Namespace, net: u8, number: Option<u32>) {
        let (relay, path) = (&self.relay, host.path());
        let index = number.map(|number| format!("index {number}")).unwrap_or_default();
        relay.run(&format!(
            "ip link add r{letter} {index} address 02:00:00:00:00:{letter}1 type veth peer name {letter}0 address 02:00:00:00:00:{letter}2 netns {path}"
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

/// Where the tag stands in struct tpacket_auxdata.
const TAG: usize = 16;

/// Whole frames that arrive in a namespace.
pub struct Wire(OwnedFd);

impl Wire {
    fn new(namespace: &Namespace) -> Self {
        let open = || socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
        let made = namespace.inside(open).unwrap();
        let on: nix::libc::c_int = 1;
        // SAFETY: the option is an integer, which outlives the call.
        let done = unsafe {
            nix::libc::setsockopt(
                made.as_raw_fd(),
                nix::libc::SOL_PACKET,
                nix::libc::PACKET_AUXDATA, // the kernel takes a tag out of the frame, and says so beside it
                std::ptr::from_ref(&on).cast(),
                size_of_val(&on) as u32,
            )
        };
        assert_eq!(done, 0);
        Self(made)
    }

    /// The 802.1Q tags of the frames that came to this UDP port; 0: untagged.
    pub fn tags(&self, port: u16) -> Vec<u16> {
        let mut found = Vec::new();
        loop {
            let mut frame = [0; 2048];
            let mut beside = nix::cmsg_space!([u8; 32]);
            let mut parts = [IoSliceMut::new(&mut frame)];
            let Ok(got) = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut beside), MsgFlags::empty()) else {
                return found;
            };
            let tag = got.cmsgs().unwrap().find_map(|message| match message {
                ControlMessageOwned::Unknown(data) => Some(u16::from_ne_bytes(data.data_bytes[TAG..TAG + 2].try_into().unwrap())),
                _ => None,
            });
            if frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == port.to_be_bytes() {
                found.push(tag.unwrap());
            }
        }
    }
}
