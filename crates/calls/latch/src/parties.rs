//! Counts the parties of running calls at each address.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Addresses of the parties of running calls, and addresses that can never be a party's.
#[derive(Clone, Debug, Default)]
pub struct Parties {
    counts: HashMap<IpAddr, u32>,
    own: HashSet<IpAddr>,
}

impl Parties {
    /// Adds an address of a SIP server, proxy or relay. It names no party, because messages of all parties come from there.
    pub fn declare_own(&mut self, addr: IpAddr) {
        self.own.insert(addr);
    }

    #[must_use]
    pub fn is_own(&self, addr: IpAddr) -> bool {
        self.own.contains(&addr)
    }

    /// Adds a party at an address, once for all its streams. Returns whether it is the first one there.
    pub fn join(&mut self, addr: IpAddr) -> bool {
        let count = self.counts.entry(addr).or_default();
        *count = count.saturating_add(1);
        *count == 1
    }

    /// Removes a party whose call has ended, or that has moved.
    pub fn leave(&mut self, addr: IpAddr) {
        if let Some(count) = self.counts.get_mut(&addr) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&addr);
            }
        }
    }

    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.counts.contains_key(&addr)
    }

    /// Returns whether several parties are at an address.
    #[must_use]
    pub fn is_shared(&self, addr: IpAddr) -> bool {
        self.counts.get(&addr).is_some_and(|count| *count > 1)
    }
}
