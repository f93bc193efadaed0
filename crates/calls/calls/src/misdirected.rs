//! Where sources have sent media to: whether a party sends to another port than the one it was told.

use crate::recent::Recent;
use shunt_latch::Time;
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Source addresses that are remembered, in each of two generations, and sources of each.
const MOST_ADDRESSES: usize = 1_000;
const MOST_SOURCES: usize = 4;

/// A source, and the port of the relay that its last packet arrived at.
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

    /// The sources at an address whose last packet arrived elsewhere than at `right`, and not before `since`.
    pub(crate) fn elsewhere(&self, addr: IpAddr, right: Endpoint, since: Time) -> impl Iterator<Item = Misdirected> {
        let seen = self.seen.get(&addr).into_iter().flatten();
        seen.filter(move |(seen, at)| seen.port != right && *at >= since)
            .map(|(seen, _)| *seen)
    }
}
