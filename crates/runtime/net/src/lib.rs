//! Addresses with ports, and 5-tuples of UDP.
#![forbid(unsafe_code)]

mod text;

use std::fmt;
use std::net::IpAddr;

/// An IP address and a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    pub addr: IpAddr,
    pub port: u16,
}

impl Endpoint {
    #[must_use]
    pub fn new(addr: impl Into<IpAddr>, port: u16) -> Self {
        Self { addr: addr.into(), port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            IpAddr::V4(addr) => write!(f, "{addr}:{}", self.port),
            IpAddr::V6(addr) => write!(f, "[{addr}]:{}", self.port),
        }
    }
}

/// Source and destination of a UDP flow. Both addresses are of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiveTuple {
    pub src: Endpoint,
    pub dst: Endpoint,
}

impl FiveTuple {
    #[must_use]
    pub fn new(src: Endpoint, dst: Endpoint) -> Self {
        Self { src, dst }
    }

    /// Whether the flow is IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.dst.addr.is_ipv6()
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.src, self.dst)
    }
}

/// The bytes of an address in network order, four or sixteen.
#[must_use]
pub fn octets(addr: IpAddr) -> Octets {
    match addr {
        IpAddr::V4(addr) => Octets {
            bytes: {
                let mut all = [0; 16];
                all[..4].copy_from_slice(&addr.octets());
                all
            },
            len: 4,
        },
        IpAddr::V6(addr) => Octets {
            bytes: addr.octets(),
            len: 16,
        },
    }
}

/// An address as bytes; an IPv4 address is padded with zeros in `padded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Octets {
    bytes: [u8; 16],
    len: usize,
}

impl Octets {
    /// The sixteen bytes that map keys hold.
    #[must_use]
    pub fn padded(&self) -> &[u8; 16] {
        &self.bytes
    }
}

impl std::ops::Deref for Octets {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
