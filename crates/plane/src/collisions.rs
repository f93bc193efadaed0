//! Who holds which hash in a hashed build: no two 5-tuples of one hash that are in use may have an entry.
//!
//! The driver refuses the second one in the same stage only, and then tries another stage: the packets of one of the two would leave by the
//! other's entry. And where only one is in, it takes the other's packets as well: so as long as more than one 5-tuple of a hash is in use, none
//! of them may have an entry.

use crate::hash::LinearHash;
use shunt_net::FiveTuple;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// For so long a 5-tuple counts as in use after it was last announced: longer than the pause after which an insert is tried again.
const EXPECTED_FOR: Duration = Duration::from_secs(45);

/// One function under which the chip may store its keys.
#[derive(Debug)]
struct Holders {
    hash: LinearHash,
    by_hash: HashMap<u64, FiveTuple>,
    /// 5-tuples in use that have no entry, with the time until which that is assumed.
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

/// Why an entry cannot go in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    pub(crate) other: FiveTuple,
    /// The other one has an entry, which has to go.
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

    /// Take the key's hash, for as long as its entry may be in; or what hinders it.
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

    /// Packets of this 5-tuple may come, and it has no entry; the result is the key whose entry would take them, if there is one.
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

    /// Its entry is out for certain.
    pub(crate) fn release(&mut self, key: &FiveTuple) {
        for holders in &mut self.holders {
            let value = holders.hash.of(key);
            if holders.by_hash.get(&value) == Some(key) {
                holders.by_hash.remove(&value);
            }
        }
    }

    /// The keys that hold a hash.
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
    use crate::hash::HASH32;
    use shunt_net::Endpoint;
    use std::net::Ipv4Addr;

    /// Two 5-tuples of one CRC-32: the bits of four address bytes can make up for any difference.
    fn colliding() -> (FiveTuple, FiveTuple) {
        let key = |addr: u32, port| {
            FiveTuple::new(
                Endpoint::new(Ipv4Addr::from(addr), port),
                Endpoint::new(Ipv4Addr::LOCALHOST, 10_000),
            )
        };
        let hash = LinearHash::of_crc(&HASH32, 12);
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
        let mut collisions = Collisions::new(vec![LinearHash::of_crc(&HASH32, 12)]);
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
