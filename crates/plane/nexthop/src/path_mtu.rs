//! Path MTUs of single destinations: bounded in number, each for a limited time.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a path MTU holds before larger packets are tried again (RFC 1191 section 6.3).
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);

/// The value that counts for a path MTU reported by ICMP, in bytes; none when it is to be ignored.
///
/// IPv4: every host accepts 576 bytes (RFC 791), less is taken for that; an old router's 0 (RFC 1191 section 5) too.
/// IPv6: a message that reports less than 1280 is discarded (RFC 8201 section 4).
pub(crate) fn acceptable(dst: IpAddr, mtu: u32) -> Option<u32> {
    match dst {
        IpAddr::V4(_) => Some(mtu.max(minimum(dst))),
        IpAddr::V6(_) => (mtu >= minimum(dst)).then_some(mtu),
    }
}

/// The smallest path MTU that is used, in bytes.
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

    /// In bytes.
    pub(crate) fn get(&self, dst: IpAddr) -> Option<u32> {
        self.by_dst.get(&dst).map(|found| found.mtu)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.by_dst.len() >= self.capacity
    }

    /// Sets the path MTU of a destination for [`LIFETIME`]; returns the oldest destination when that lost its own to make room.
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

    /// Removes up to `limit` path MTUs whose time has passed; returns their destinations.
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
