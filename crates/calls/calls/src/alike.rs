//! Keeps one copy of a value that many calls share.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Capacity of the cache, in values.
const MOST: usize = 4096;

/// A cache of the values in use.
#[derive(Clone, Debug)]
pub(crate) struct Alike<T: ?Sized> {
    known: HashSet<Arc<T>>,
}

impl<T: ?Sized> Default for Alike<T> {
    fn default() -> Self {
        Self { known: HashSet::new() }
    }
}

impl<T: ?Sized + Eq + Hash> Alike<T> {
    /// Returns the shared copy of a value.
    pub(crate) fn shared<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(known) = self.known.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let value: Arc<T> = value.into();
        self.known.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        let mut alike = Alike::<[u8]>::default();
        let one = alike.shared(&b"c0,8"[..]);
        assert!(Arc::ptr_eq(&one, &alike.shared(b"c0,8".to_vec())));
        assert!(!Arc::ptr_eq(&one, &alike.shared(&b"c0"[..])));
        for number in 0..=MOST {
            alike.shared(number.to_string().into_bytes());
        }
        assert!(alike.known.len() <= MOST);
    }
}
