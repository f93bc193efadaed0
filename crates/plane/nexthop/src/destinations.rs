//! The destinations in use, and the pass over them after a route change.

use std::collections::HashMap;
use std::net::IpAddr;

use indexmap::IndexMap;
use indexmap::map::Entry;

/// Destination and source address of packets.
pub(crate) type Pair = (IpAddr, IpAddr);

/// The row by which packets of one pair leave.
pub(crate) struct Destination {
    pub users: u32,
    pub row: u16,
    /// The row is what a former process chose; its route has not been looked up yet.
    pub adopted: bool,
}

/// All pairs in use. A pass visits them in batches, from the last to the first. Pairs may be added and removed meanwhile: a removal moves
/// the last pair, which has been visited, into the gap.
#[derive(Default)]
pub(crate) struct Destinations {
    by_pair: IndexMap<Pair, Destination>,
    /// Number of pairs with this source. There are as many sources as the relay has addresses.
    sources: HashMap<IpAddr, u32>,
    /// Pairs before this position have not been visited yet.
    unvisited: usize,
    /// Another pass follows the present one.
    again: bool,
}

impl Destinations {
    /// Reserves space for this total number of pairs.
    pub(crate) fn reserve(&mut self, pairs: usize) {
        self.by_pair.reserve(pairs.saturating_sub(self.by_pair.len()));
    }

    pub(crate) fn get(&self, pair: &Pair) -> Option<&Destination> {
        self.by_pair.get(pair)
    }

    pub(crate) fn get_mut(&mut self, pair: &Pair) -> Option<&mut Destination> {
        self.by_pair.get_mut(pair)
    }

    /// Returns the destination of a pair, and creates it if it is missing.
    pub(crate) fn get_or_insert_with(&mut self, pair: Pair, make: impl FnOnce() -> Destination) -> &mut Destination {
        match self.by_pair.entry(pair) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                *self.sources.entry(pair.1).or_default() += 1;
                entry.insert(make())
            }
        }
    }

    pub(crate) fn remove(&mut self, pair: &Pair) -> Option<Destination> {
        let removed = self.by_pair.swap_remove(pair)?;
        self.unvisited = self.unvisited.min(self.by_pair.len());
        if let Some(count) = self.sources.get_mut(&pair.1) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&pair.1);
            }
        }
        Some(removed)
    }

    /// Returns all pairs of one destination address.
    pub(crate) fn pairs_of(&self, dst: IpAddr) -> Vec<Pair> {
        self.sources
            .keys()
            .map(|&src| (dst, src))
            .filter(|pair| self.by_pair.contains_key(pair))
            .collect()
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.by_pair.keys()
    }

    /// Starts a pass over all pairs. A pass under way is finished first, so that rapid changes leave no pair unvisited.
    pub(crate) fn start_pass(&mut self) {
        if self.unvisited == 0 {
            self.unvisited = self.by_pair.len();
        } else {
            self.again = true;
        }
    }

    /// Returns the next pairs of the pass, at most `limit`.
    pub(crate) fn next_batch(&mut self, limit: usize) -> Vec<Pair> {
        let first = self.unvisited.saturating_sub(limit);
        let batch = (first..self.unvisited)
            .rev()
            .filter_map(|at| self.by_pair.get_index(at))
            .map(|(&pair, _)| pair)
            .collect();
        self.unvisited = first;
        if first == 0 && self.again {
            self.again = false;
            self.unvisited = self.by_pair.len();
        }
        batch
    }

    pub(crate) fn in_pass(&self) -> bool {
        self.unvisited > 0
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Pair, &Destination)> {
        self.by_pair.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn pair(n: u8) -> Pair {
        (Ipv4Addr::new(192, 0, 2, n).into(), Ipv4Addr::new(10, 0, 0, n % 3).into())
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8),
        Remove(u8),
        Start,
        Batch(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..30).prop_map(Step::Insert),
            (0u8..30).prop_map(Step::Remove),
            Just(Step::Start),
            (1usize..6).prop_map(Step::Batch),
        ]
    }

    proptest! {
        /// A pair that is in use from the start of a pass to its end is visited after the start.
        #[test]
        fn a_pass_leaves_out_nobody(steps in proptest::collection::vec(step(), 0..200)) {
            let mut all = Destinations::default();
            let mut owed: HashSet<Pair> = HashSet::new();
            for step in steps {
                match step {
                    Step::Insert(n) => {
                        all.get_or_insert_with(pair(n), || Destination { users: 1, row: 0, adopted: false });
                    }
                    Step::Remove(n) => {
                        all.remove(&pair(n));
                        owed.remove(&pair(n));
                    }
                    Step::Start => {
                        all.start_pass();
                        owed = all.pairs().copied().collect();
                    }
                    Step::Batch(limit) => {
                        let batch = all.next_batch(limit);
                        prop_assert!(batch.len() <= limit);
                        for visited in batch {
                            owed.remove(&visited);
                        }
                    }
                }
                prop_assert!(all.in_pass() || owed.is_empty());
            }
            let mut batches = 0;
            while all.in_pass() {
                for visited in all.next_batch(4) {
                    owed.remove(&visited);
                }
                batches += 1;
                prop_assert!(batches < 100);
            }
            prop_assert!(owed.is_empty());
            for dst in 0..30 {
                let found = all.pairs_of(pair(dst).0);
                prop_assert_eq!(!found.is_empty(), all.get(&pair(dst)).is_some());
            }
        }
    }
}
