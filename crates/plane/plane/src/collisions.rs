//! The holder of each hash in a hashed build. While two 5-tuples of one hash are in use, neither may have an entry.
//!
//! The driver rejects the second entry only in the same stage and then tries another stage, so the packets of one 5-tuple would leave by
//! the other's entry. Even a single entry takes the other 5-tuple's packets. Therefore no 5-tuple of a shared hash gets an entry.

use crate::hash::LinearHash;
use shunt_net::FiveTuple;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a 5-tuple counts as in use after its last announcement: longer than the pause between tries of an insert.
const EXPECTED_FOR: Duration = Duration::from_secs(45);

/// The keys under one hash function that the chip may use.
#[derive(Debug)]
struct Holders {
    hash: LinearHash,
    by_hash: HashMap<u64, FiveTuple>,
    /// 5-tuples in use without an entry, and when that expires.
    expected: HashMap<u64, Vec<(FiveTuple, Instant)>>,
}

impl Holders {
    fn expect(&mut self, now: Instant, key: FiveTuple) {
        let value = self.hash.of(&key);
        let others = self.expected.entry(value).or_default();
        others.retain(|(other, until)| *other != key && *until > now);
        others.push((key, now + EXPECTED_FOR));
    }

    fn holder(&self, key: &FiveTuple) -> Option<FiveTuple> {
        self.by_hash.get(&self.hash.of(key)).copied().filter(|holder| holder != key)
    }

    fn rival(&self, now: Instant, key: &FiveTuple) -> Option<FiveTuple> {
        let others = self.expected.get(&self.hash.of(key))?;
        others
            .iter()
            .find(|(other, until)| other != key && *until > now)
            .map(|(other, _)| *other)
    }
}

/// The hashes in use in one table.
#[derive(Debug)]
pub(crate) struct Collisions {
    holders: Vec<Holders>,
    swept: Option<Instant>,
}

/// The reason why an entry cannot be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    pub(crate) other: FiveTuple,
    /// The other 5-tuple has an entry, which must be removed.
    pub(crate) holds: bool,
}

impl Collisions {
    pub(crate) fn new(hashes: Vec<LinearHash>) -> Self {
        let holders = hashes.into_iter().map(|hash| Holders {
            hash,
            by_hash: HashMap::new(),
            expected: HashMap::new(),
        });
        Self {
            holders: holders.collect(),
            swept: None,
        }
    }

    /// Claims the key's hash until [`Collisions::release`], or returns the 5-tuple that prevents it.
    pub(crate) fn claim(&mut self, now: Instant, key: FiveTuple) -> Option<Collision> {
        let held = self.holders.iter().find_map(|holders| holders.holder(&key));
        let other = held.or_else(|| self.holders.iter().find_map(|holders| holders.rival(now, &key)));
        if let Some(other) = other {
            self.expect(now, key);
            return Some(Collision {
                other,
                holds: held.is_some(),
            });
        }
        for holders in &mut self.holders {
            holders.by_hash.insert(holders.hash.of(&key), key);
        }
        None
    }

    /// Announces packets of a 5-tuple without an entry. Returns the key whose entry would take them, if there is one.
    pub(crate) fn expect(&mut self, now: Instant, key: FiveTuple) -> Option<FiveTuple> {
        if self.swept.is_none_or(|swept| now.duration_since(swept) > EXPECTED_FOR) {
            self.swept = Some(now);
            for holders in &mut self.holders {
                holders.expected.retain(|_, others| others.iter().any(|(_, until)| *until > now));
            }
        }
        for holders in &mut self.holders {
            holders.expect(now, key);
        }
        self.holders.iter().find_map(|holders| holders.holder(&key))
    }

    /// Releases a key whose entry is certainly removed.
    pub(crate) fn release(&mut self, key: &FiveTuple) {
        for holders in &mut self.holders {
            let value = holders.hash.of(key);
            if holders.by_hash.get(&value) == Some(key) {
                holders.by_hash.remove(&value);
            }
        }
    }

    /// Returns the keys that hold a hash.
    pub(crate) fn keys(&self) -> Vec<FiveTuple> {
        self.holders
            .first()
            .map_or_else(Vec::new, |holders| holders.by_hash.values().copied().collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::hash::from_context;
    use shunt_net::Endpoint;
    use std::net::Ipv4Addr;

    fn hash32() -> LinearHash {
        let context = include_bytes!("../../../../p4/generated/hash32.tofino1.context.json");
        from_context(context).unwrap()["Ingress.relay"][0].clone()
    }

    /// Two 5-tuples of one CRC-32: four address bytes can compensate any difference.
    fn colliding() -> (FiveTuple, FiveTuple) {
        let key = |addr: u32, port| {
            FiveTuple::new(
                Endpoint::new(Ipv4Addr::from(addr), port),
                Endpoint::new(Ipv4Addr::LOCALHOST, 10_000),
            )
        };
        let hash = hash32();
        let first = key(1, 1000);
        // Solve for the address by Gaussian elimination over its 32 bits.
        let mut wanted = hash.of(&first) ^ hash.of(&key(0, 1001));
        let mut basis: Vec<(u64, u32)> = Vec::new();
        for bit in 0..32 {
            let (mut column, mut bits) = (hash.of(&key(1 << bit, 1001)) ^ hash.of(&key(0, 1001)), 1_u32 << bit);
            for (other, combined) in &basis {
                if column ^ other < column {
                    (column, bits) = (column ^ other, bits ^ combined);
                }
            }
            if column != 0 {
                basis.push((column, bits));
                basis.sort_by_key(|(column, _)| std::cmp::Reverse(*column));
            }
        }
        let mut addr = 0;
        for (column, bits) in &basis {
            if wanted ^ column < wanted {
                (wanted, addr) = (wanted ^ column, addr ^ bits);
            }
        }
        assert_eq!(wanted, 0);
        (first, key(addr, 1001))
    }

    #[test]
    fn of_two_keys_of_one_hash_none_may_have_an_entry() {
        let (first, second) = colliding();
        let now = Instant::now();
        let mut collisions = Collisions::new(vec![hash32()]);
        assert_eq!(collisions.claim(now, first), None);
        assert_eq!(collisions.claim(now, first), None, "its own");
        let refused = collisions.claim(now, second).unwrap();
        assert_eq!((refused.other, refused.holds), (first, true));
        collisions.release(&first);
        assert!(!collisions.claim(now, first).unwrap().holds, "the second one is in use");
        assert!(collisions.claim(now, second).is_some());
        let later = now + EXPECTED_FOR;
        assert_eq!(collisions.claim(later, second), None, "the first one is no longer in use");
        assert_eq!(collisions.expect(later, first), Some(second));
    }
}
