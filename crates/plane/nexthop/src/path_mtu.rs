//! Path MTUs of single destinations: limited in number, each with an expiry time.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Lifetime of a path MTU, after which larger packets are tried again (RFC 1191 section 6.3).
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);

/// Returns the value to use for a path MTU that ICMP reported, in bytes; `None` if it must be ignored.
///
/// IPv4: every host accepts 576 bytes (RFC 791), so lower values count as 576, including an old router's 0 (RFC 1191 section 5). IPv6: a
/// message that reports less than 1280 is discarded (RFC 8201 section 4).
pub(crate) fn acceptable(dst: IpAddr, mtu: u32) -> Option<u32> {
    match dst {
        IpAddr::V4(_) => Some(mtu.max(minimum(dst))),
        IpAddr::V6(_) => (mtu >= minimum(dst)).then_some(mtu),
    }
}

/// Returns the smallest path MTU that is used, in bytes.
pub(crate) fn minimum(dst: IpAddr) -> u32 {
    if dst.is_ipv4() { 576 } else { 1280 }
}

struct PathMtu {
    mtu: u32,
    expires: (Instant, u64),
}

/// Path MTUs by destination, oldest first.
pub(crate) struct PathMtus {
    by_dst: HashMap<IpAddr, PathMtu>,
    by_age: BTreeMap<(Instant, u64), IpAddr>,
    count: u64,
    capacity: usize,
}

impl PathMtus {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            by_dst: HashMap::new(),
            by_age: BTreeMap::new(),
            count: 0,
            capacity,
        }
    }

    /// Returns the path MTU in bytes.
    pub(crate) fn get(&self, dst: IpAddr) -> Option<u32> {
        self.by_dst.get(&dst).map(|found| found.mtu)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.by_dst.len() >= self.capacity
    }

    /// Sets the path MTU of a destination for [`LIFETIME`]. Returns the oldest destination if it was removed to make space.
    pub(crate) fn set(&mut self, dst: IpAddr, mtu: u32, now: Instant) -> Option<IpAddr> {
        self.count += 1;
        let expires = (now + LIFETIME, self.count);
        if let Some(before) = self.by_dst.insert(dst, PathMtu { mtu, expires }) {
            self.by_age.remove(&before.expires);
        }
        self.by_age.insert(expires, dst);
        if self.by_dst.len() <= self.capacity {
            return None;
        }
        let (_, oldest) = self.by_age.pop_first()?;
        self.by_dst.remove(&oldest);
        Some(oldest)
    }

    /// Removes up to `limit` expired path MTUs; returns their destinations.
    pub(crate) fn expire(&mut self, now: Instant, limit: usize) -> Vec<IpAddr> {
        let mut expired = Vec::new();
        while expired.len() < limit {
            let Some(first) = self.by_age.first_entry() else { break };
            if first.key().0 > now {
                break;
            }
            let dst = first.remove();
            self.by_dst.remove(&dst);
            expired.push(dst);
        }
        expired
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.by_age.first_key_value().map(|(&(expires, _), _)| expires)
    }
}
