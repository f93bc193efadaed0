//! Limits the packets of an address before it has shown a session's key.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// A token bucket for each address.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Packets per second.
    pub rate: f64,
    /// Packets at once.
    pub burst: f64,
    /// Most remembered addresses.
    pub addresses: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

/// The buckets. If no more addresses fit, an unknown one is rejected.
#[derive(Debug)]
pub struct Limit {
    limits: Limits,
    buckets: HashMap<IpAddr, Bucket>,
    swept: Duration,
}

impl Limit {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            buckets: HashMap::new(),
            swept: Duration::ZERO,
        }
    }

    /// Returns whether a packet of an address may be processed. An IPv6 address counts by its first 64 bits.
    pub fn admits(&mut self, now: Duration, address: IpAddr) -> bool {
        let limits = self.limits;
        let key = network(address);
        if !self.buckets.contains_key(&key) && self.buckets.len() >= limits.addresses && !self.sweep(now) {
            return false;
        }
        let bucket = self.buckets.entry(key).or_insert(Bucket {
            tokens: limits.burst,
            at: now,
        });
        let filled = bucket.tokens + now.saturating_sub(bucket.at).as_secs_f64() * limits.rate;
        (bucket.tokens, bucket.at) = (filled.min(limits.burst), now);
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Removes full buckets, at most every second. Returns whether there is space then.
    fn sweep(&mut self, now: Duration) -> bool {
        let limits = self.limits;
        if now.saturating_sub(self.swept) >= Duration::from_secs(1) {
            self.swept = now;
            self.buckets
                .retain(|_, bucket| bucket.tokens + now.saturating_sub(bucket.at).as_secs_f64() * limits.rate < limits.burst);
        }
        self.buckets.len() < limits.addresses
    }

    /// Returns the number of remembered addresses.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.buckets.len()
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address @ IpAddr::V4(_) => address,
    }
}
