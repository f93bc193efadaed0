//! The boundary to the kernel: what next hops ask of it, and what it reports.

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
    /// Ethernet frames of interface `parent`, from an address of its own.
    Macvlan { parent: u32 },
    /// Anything else: tunnels, loopback, 802.1ad. Such packets are the kernel's to send.
    Other,
}

impl Framing {
    /// The interface below.
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
    /// In bytes, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    pub framing: Framing,
    /// As `ip -d link` names it (`veth`, `vlan`, `bond`); empty for hardware.
    pub kind: String,
    /// The bond, bridge or VRF that it belongs to.
    pub controller: Option<u32>,
    pub rx_queues: u32,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Link-layer address; none while it is not resolved. A stale entry is resolved.
    pub mac: Option<[u8; 6]>,
    /// Set by the administrator: the kernel does not probe it.
    pub permanent: bool,
    /// The kernel keeps it resolved by itself (`NTF_EXT_MANAGED`, Linux 5.16).
    pub managed: bool,
}

impl Neighbour {
    /// Whether the entry stays resolved without being asked for.
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
    /// The `mtu` metric of the route in bytes, 0 for the interface's MTU. Cached path MTUs do not count.
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
    /// Events were lost: what is known of the kernel may be outdated.
    Lost,
}

/// What [`Kernel::events`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub list: Vec<Event>,
    /// The limit was reached: there may be more to read.
    pub more: bool,
}

/// Why the kernel did not do as asked.
#[derive(Debug, Error)]
pub enum KernelError {
    #[error("netlink {call}: {source}")]
    Io { call: &'static str, source: io::Error },
    #[error("netlink: the kernel answered {source}")]
    Rejected { source: io::Error },
    #[error("netlink: an answer could not be read: {0}")]
    Malformed(String),
    #[error("netlink: no answer")]
    Timeout,
}

/// Requests to the kernel, and its events.
pub trait Kernel {
    /// All interfaces of the network namespace.
    ///
    /// # Errors
    /// When the kernel did not answer.
    fn links(&mut self) -> Result<Vec<Link>, KernelError>;

    /// Where packets for each (dst, src) leave; none when the destination has no route, is this host's, is not unicast, or is behind an
    /// encapsulation. A source that is no address of this host, or of the other IP version, does not matter.
    ///
    /// # Errors
    /// When the kernel did not answer all of them.
    fn routes(&mut self, wanted: &[(IpAddr, IpAddr)]) -> Result<Vec<Option<Route>>, KernelError>;

    /// The kernel's entry for a neighbour.
    ///
    /// # Errors
    /// When the kernel did not answer.
    fn neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<Option<Neighbour>, KernelError>;

    /// Makes the kernel keep a neighbour resolved. Kernels before 5.16 accept this and do nothing.
    ///
    /// # Errors
    /// When the kernel rejects it, for instance because the interface is down or the neighbour table is full.
    fn manage_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError>;

    /// Makes the kernel resolve a neighbour once.
    ///
    /// # Errors
    /// As [`Kernel::manage_neighbour`].
    fn probe_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError>;

    /// Ends [`Kernel::manage_neighbour`]; a resolved entry stays as stale, for others to use.
    ///
    /// # Errors
    /// When the kernel rejects it; an entry or interface that is gone is no error.
    fn unmanage_neighbour(&mut self, ifindex: u32, addr: IpAddr, mac: Option<[u8; 6]>) -> Result<(), KernelError>;

    /// Whether an interface sends what native XDP redirects to it (`NETDEV_XDP_ACT_NDO_XMIT`); none when the kernel does not say
    /// (before Linux 6.3).
    fn xdp_transmit(&mut self, ifindex: u32) -> Option<bool>;

    /// What has changed since the last call; reads at most `limit` messages. Does not wait.
    fn events(&mut self, limit: usize) -> Events;
}
