//! The interface to the kernel: requests of next hops, and events.

use std::io;
use std::net::IpAddr;

use thiserror::Error;

/// How frames leave an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Ethernet frames.
    Ethernet,
    /// Ethernet frames of interface `parent`, with an 802.1Q tag.
    Vlan { tag: u16, parent: u32 },
    /// Ethernet frames of interface `parent`, with a separate address.
    Macvlan { parent: u32 },
    /// Anything else: tunnels, loopback, 802.1ad. The kernel has to send such packets.
    Other,
}

impl Framing {
    /// Returns the interface below.
    #[must_use]
    pub fn parent(self) -> Option<u32> {
        match self {
            Self::Vlan { parent, .. } | Self::Macvlan { parent } => Some(parent),
            Self::Ethernet | Self::Other => None,
        }
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub ifindex: u32,
    pub name: String,
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    pub framing: Framing,
    /// Kind as `ip -d link` names it (`veth`, `vlan`, `bond`); empty for hardware.
    pub kind: String,
    /// Bond, bridge or VRF that the interface belongs to.
    pub controller: Option<u32>,
    pub rx_queues: u32,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Link-layer address; `None` while unresolved. A stale entry is resolved.
    pub mac: Option<[u8; 6]>,
    /// Set by the administrator: the kernel does not probe it.
    pub permanent: bool,
    /// The kernel keeps the entry resolved (`NTF_EXT_MANAGED`, Linux 5.16).
    pub managed: bool,
}

impl Neighbour {
    /// Returns whether the entry stays resolved without requests.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.managed || self.permanent
    }
}

/// Where the kernel would send packets for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    pub ifindex: u32,
    /// The router, or the destination itself on a connected network.
    pub gateway: IpAddr,
    /// The `mtu` metric of the route in bytes; 0: the interface's MTU. Cached path MTUs are ignored.
    pub mtu: u32,
}

/// A change that the kernel reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Link(Link),
    LinkGone(u32),
    Neighbour {
        ifindex: u32,
        addr: IpAddr,
        neighbour: Neighbour,
    },
    NeighbourGone {
        ifindex: u32,
        addr: IpAddr,
    },
    /// A route, rule, nexthop object or own address changed.
    Routes,
    /// The XDP features of some interface changed.
    Features,
    /// Events were lost: what is known about the kernel may be outdated.
    Lost,
}

/// The result of [`Kernel::events`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub list: Vec<Event>,
    /// The limit was reached: more events may be waiting.
    pub more: bool,
}

/// The reason why a request to the kernel failed.
#[derive(Debug, Error)]
pub enum KernelError {
    #[error("netlink {call}: {source}")]
    Io { call: &'static str, source: io::Error },
    #[error("netlink: the kernel rejected the request: {source}")]
    Rejected { source: io::Error },
    #[error("netlink: an answer could not be read: {0}")]
    Malformed(String),
    #[error("netlink: the kernel did not answer")]
    Timeout,
}

/// Requests to the kernel, and its events.
pub trait Kernel {
    /// Returns all interfaces of the network namespace.
    ///
    /// # Errors
    /// The kernel did not answer.
    fn links(&mut self) -> Result<Vec<Link>, KernelError>;

    /// Returns where packets for each (dst, src) leave. The result is `None` if the destination has no route, belongs to this host, is not
    /// unicast, or is behind an encapsulation. A source that is no address of this host, or has the other IP version, is ignored.
    ///
    /// # Errors
    /// The kernel did not answer all of them.
    fn routes(&mut self, wanted: &[(IpAddr, IpAddr)]) -> Result<Vec<Option<Route>>, KernelError>;

    /// Returns the kernel's entry for a neighbour.
    ///
    /// # Errors
    /// The kernel did not answer.
    fn neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<Option<Neighbour>, KernelError>;

    /// Makes the kernel keep a neighbour resolved. Kernels before 5.16 accept this and do nothing.
    ///
    /// # Errors
    /// The kernel rejects it, for instance because the interface is down or the neighbour table is full.
    fn manage_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError>;

    /// Makes the kernel resolve a neighbour once.
    ///
    /// # Errors
    /// As [`Kernel::manage_neighbour`].
    fn probe_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError>;

    /// Ends [`Kernel::manage_neighbour`]. A resolved entry becomes stale and stays usable for other programs.
    ///
    /// # Errors
    /// The kernel rejects it; a missing entry or interface is no error.
    fn unmanage_neighbour(&mut self, ifindex: u32, addr: IpAddr, mac: Option<[u8; 6]>) -> Result<(), KernelError>;

    /// Returns whether an interface sends frames that native XDP redirects to it (`NETDEV_XDP_ACT_NDO_XMIT`); `None` if the kernel does not
    /// tell (before Linux 6.3).
    fn xdp_transmit(&mut self, ifindex: u32) -> Option<bool>;

    /// Returns the changes since the last call, from at most `limit` messages. Does not block.
    fn events(&mut self, limit: usize) -> Events;
}
