//! A bounded table that forgets values that have not been used recently.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Two generations: when the young one is full, the old one is dropped. A value that is used moves to the young one.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    most: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// `most`: entries of one generation.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            most,
        }
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(crate) fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if !self.young.contains_key(&key) && self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        let old = self.old.remove(&key);
        self.young.entry(key).or_insert_with(|| old.unwrap_or_else(new))
    }
}
