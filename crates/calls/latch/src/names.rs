//! The addresses that signalling names for a party, and the rank of each claim.

use shunt_net::Endpoint;
use std::net::IpAddr;

/// Most names kept for one party; the latest stay.
const MOST: usize = 8;

/// An address, or an address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub addr: IpAddr,
    /// `None` if only the address is known, as with a SIP source.
    pub port: Option<u16>,
}

impl Name {
    #[must_use]
    pub fn address(addr: impl Into<IpAddr>) -> Self {
        Self {
            addr: addr.into(),
            port: None,
        }
    }
}

impl From<Endpoint> for Name {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            addr: endpoint.addr,
            port: Some(endpoint.port),
        }
    }
}

/// Rank of a source's claim by signalling, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rank {
    /// Signalling does not name the address.
    Unknown,
    /// Signalling names the address, but several parties share it, or it scans.
    Shared,
    /// The same, with the signalled port.
    SharedPort,
    /// Signalling names the address.
    Address,
    /// Signalling names address and port.
    Port,
}

impl Rank {
    /// Returns whether a source with this claim is latched by its first packet.
    #[must_use]
    pub fn at_once(self) -> bool {
        self >= Self::Address
    }

    /// Returns whether signalling names the port.
    #[must_use]
    pub fn names_port(self) -> bool {
        matches!(self, Self::SharedPort | Self::Port)
    }
}

fn is_new(names: &[Name], name: &Name) -> bool {
    !name.addr.is_unspecified() && !names.contains(name)
}

/// The names of one party.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    names: Box<[Name]>,
}

impl Names {
    /// Adds a name, unless the address is null. Returns whether it was new.
    pub fn add(&mut self, name: Name) -> bool {
        if !is_new(&self.names, &name) {
            return false;
        }
        let oldest = (self.names.len() + 1).saturating_sub(MOST);
        self.names = self.names[oldest..].iter().copied().chain([name]).collect();
        true
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Name> {
        self.names.iter()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    #[must_use]
    pub fn has_address(&self, addr: IpAddr) -> bool {
        self.names.iter().any(|name| name.addr == addr)
    }

    /// Returns the rank of a source. `identity`: its address identifies one party.
    #[must_use]
    pub fn rank(&self, source: Endpoint, identity: bool) -> Rank {
        let exact = self.names.contains(&source.into());
        match (exact, exact || self.has_address(source.addr), identity) {
            (_, false, _) => Rank::Unknown,
            (false, true, false) => Rank::Shared,
            (true, true, false) => Rank::SharedPort,
            (false, true, true) => Rank::Address,
            (true, true, true) => Rank::Port,
        }
    }
}

impl<N: Into<Name>> FromIterator<N> for Names {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let mut kept: Vec<Name> = Vec::new();
        for name in names.into_iter().map(Into::into) {
            if is_new(&kept, &name) {
                kept.push(name);
            }
        }
        let oldest = kept.len().saturating_sub(MOST);
        Self {
            names: kept[oldest..].into(),
        }
    }
}
