//! A map of bounded size that evicts the least recently used entries, approximately.

use std::collections::HashMap;
use std::hash::Hash;

/// Two maps. When the newer one is full, the older one is dropped and the newer one replaces it.
#[derive(Clone, Debug)]
pub(crate) struct Generations<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    most: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// Makes a map of at most `most` entries that keeps at least the latest half of them.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            newer: HashMap::new(),
            older: HashMap::new(),
            most,
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.newer.get(key).or_else(|| self.older.get(key))
    }

    /// Returns the value of a key, and inserts it if it is missing. The key counts as used.
    pub(crate) fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.newer.contains_key(&key) && self.newer.len() >= (self.most / 2).max(1) {
            self.older = std::mem::take(&mut self.newer);
        }
        let older = &mut self.older;
        match self.newer.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let value = older.remove(entry.key()).unwrap_or_else(make);
                entry.insert(value)
            }
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: V)
    where
        V: Copy,
    {
        *self.entry(key, || value) = value;
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.newer.remove(key);
        self.older.remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}
