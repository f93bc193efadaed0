//! Allocates lists of different lengths in one array: blocks of powers of two, split and joined again. No I/O.

use std::collections::BTreeSet;

/// Words of the smallest block.
const LEAST: u32 = 4;

/// Allocates positions in an array of words, except position 0.
#[derive(Clone, Debug)]
pub struct Buddy {
    size: u32,
    used: u32,
    /// Free blocks by order; those of order 0 have `LEAST` words.
    free: Vec<BTreeSet<u32>>,
}

impl Buddy {
    /// Makes an allocator for `size` words; `None` unless that is a power of two and at least two blocks.
    #[must_use]
    pub fn new(size: u32) -> Option<Self> {
        if !size.is_power_of_two() || size < 2 * LEAST {
            return None;
        }
        let orders = (size / LEAST).trailing_zeros() as usize + 1;
        let mut free = vec![BTreeSet::new(); orders];
        free[orders - 1].insert(0);
        let mut made = Self { size, used: 0, free };
        made.claim(0, LEAST);
        Some(made)
    }

    /// Returns the words of the array.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the words in allocated blocks, including the one at position 0.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the order of the blocks for this many words; `None` if no block is large enough.
    fn order(&self, words: u32) -> Option<usize> {
        let blocks = words.max(1).div_ceil(LEAST).checked_next_power_of_two()?;
        let order = blocks.trailing_zeros() as usize;
        (order < self.free.len()).then_some(order)
    }

    /// Allocates a block of at least `words` words and returns its position; `None` if none is free.
    pub fn take(&mut self, words: u32) -> Option<u32> {
        let wanted = self.order(words)?;
        let mut order = (wanted..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let at = self.free[order].pop_first()?;
        while order > wanted {
            order -= 1;
            self.free[order].insert(at + (LEAST << order));
        }
        self.used += LEAST << wanted;
        Some(at)
    }

    /// Frees a block that was allocated with this many words.
    pub fn give(&mut self, at: u32, words: u32) {
        let Some(mut order) = self.order(words) else { return };
        self.used -= LEAST << order;
        let mut at = at;
        while order < self.free.len() - 1 {
            let other = at ^ (LEAST << order);
            if !self.free[order].remove(&other) {
                break;
            }
            at &= other;
            order += 1;
        }
        self.free[order].insert(at);
    }

    /// Allocates the block at this position. Returns false if it is not wholly free, or is not a block.
    pub fn claim(&mut self, at: u32, words: u32) -> bool {
        let Some(wanted) = self.order(words) else { return false };
        if !at.is_multiple_of(LEAST << wanted) {
            return false;
        }
        let head_of = |order: usize| at & !((LEAST << order) - 1);
        let Some(mut order) = (wanted..self.free.len()).find(|order| self.free[*order].contains(&head_of(*order))) else {
            return false;
        };
        let mut head = head_of(order);
        self.free[order].remove(&head);
        while order > wanted {
            order -= 1;
            let half = LEAST << order;
            if at & half != 0 {
                self.free[order].insert(head);
                head += half;
            } else {
                self.free[order].insert(head + half);
            }
        }
        self.used += LEAST << wanted;
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn room_is_never_given_out_twice(steps in proptest::collection::vec((any::<bool>(), 1u32..=100), 0..60)) {
            let mut room = Buddy::new(256).unwrap();
            let mut held: BTreeMap<u32, u32> = BTreeMap::new();
            for (take, number) in steps {
                if take {
                    if let Some(at) = room.take(number) {
                        prop_assert!(at > 0 && at + number <= 256);
                        for (other, words) in &held {
                            prop_assert!(at + number <= *other || other + words <= at);
                        }
                        held.insert(at, number);
                    }
                } else if !held.is_empty() {
                    let at = *held.keys().nth(number as usize % held.len()).unwrap();
                    room.give(at, held.remove(&at).unwrap());
                }
            }
            // Another process finds the same blocks.
            let mut again = Buddy::new(256).unwrap();
            for (at, words) in &held {
                prop_assert!(again.claim(*at, *words));
            }
            prop_assert_eq!(again.used(), room.used());
            for (at, words) in &held {
                prop_assert!(!again.claim(*at, *words));
            }
            for (at, words) in held {
                room.give(at, words);
            }
            prop_assert_eq!(room.used(), LEAST);
            prop_assert_eq!(room.take(128), Some(128));
        }
    }

    #[test]
    fn an_array_of_a_wrong_size_is_rejected() {
        assert!(Buddy::new(100).is_none() && Buddy::new(4).is_none() && Buddy::new(0).is_none());
        assert!(Buddy::new(8).is_some());
    }

    #[test]
    fn more_words_than_there_are_get_none() {
        let mut room = Buddy::new(64).unwrap();
        assert_eq!((room.take(65), room.take(u32::MAX), room.take(64)), (None, None, None));
        assert!(!room.claim(0, u32::MAX) && !room.claim(2, 4) && !room.claim(64, 4));
    }
}
