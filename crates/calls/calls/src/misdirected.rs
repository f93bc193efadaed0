//! Destinations of sources that are latched nowhere: whether a party sends to a port other than the one it was given.

use crate::recent::Recent;
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Capacity in source addresses of each of two generations, and in sources of each address.
const MOST_ADDRESSES: usize = 1_000;
const MOST_SOURCES: usize = 4;

/// A source, and the relay port at which its last packet arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misdirected {
    pub source: Endpoint,
    pub port: Endpoint,
}

/// Packets of sources that are latched nowhere.
#[derive(Debug)]
pub(crate) struct Arrivals {
    seen: Recent<IpAddr, Vec<(Misdirected, Time)>>,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Self {
            seen: Recent::new(MOST_ADDRESSES),
        }
    }

    /// Notes a packet of `source` at relay port `port`.
    pub(crate) fn note(&mut self, now: Time, source: Endpoint, port: Endpoint) {
        let seen = self.seen.entry(source.addr, Vec::new);
        seen.retain(|(other, _)| other.source != source);
        if seen.len() >= MOST_SOURCES {
            seen.remove(0);
        }
        seen.push((Misdirected { source, port }, now));
    }

    /// Returns the sources at an address whose last packet arrived since `since` at a port other than `right`.
    pub(crate) fn elsewhere(&self, addr: IpAddr, right: Endpoint, since: Time) -> impl Iterator<Item = Misdirected> {
        let seen = self.seen.get(&addr).into_iter().flatten();
        seen.filter(move |(seen, at)| seen.port != right && *at >= since)
            .map(|(seen, _)| *seen)
    }
}
