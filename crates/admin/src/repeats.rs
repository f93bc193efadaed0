//! Things of one kind come in any number: the first is an event, those of the next moment are counted. No clock: time comes in.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// Counts like things within a window, with what is to be said of those after the first. It holds a bounded number of them.
#[derive(Debug)]
pub struct Repeats<K, V> {
    window: Duration,
    most: usize,
    counts: HashMap<K, Option<(V, u32)>>,
    /// When each window ends, the next one first.
    ends: VecDeque<(Duration, K)>,
    /// What found no place.
    others: u64,
}

impl<K: Clone + Eq + Hash, V> Repeats<K, V> {
    /// `most`: how many different things may have a window at a time.
    #[must_use]
    pub fn new(window: Duration, most: usize) -> Self {
        Self {
            window,
            most,
            counts: HashMap::new(),
            ends: VecDeque::new(),
            others: 0,
        }
    }

    /// One more; true: it is the first of its window and an event of its own. `make`: what is to be said of the others, made at the first of them.
    /// `now` never goes back.
    pub fn admit(&mut self, now: Duration, key: &K, make: impl FnOnce() -> V) -> bool {
        if let Some(repeated) = self.counts.get_mut(key) {
            let (_, count) = repeated.get_or_insert_with(|| (make(), 0));
            *count = count.saturating_add(1);
            return false;
        }
        if self.counts.len() >= self.most {
            self.others += 1;
            return false;
        }
        self.counts.insert(key.clone(), None);
        self.ends.push_back((now + self.window, key.clone()));
        true
    }

    /// What is to be said of things whose window has ended, with how often they were repeated in it; `None`: there is none. Those without
    /// repetition are passed over.
    pub fn take_ended(&mut self, now: Duration) -> Option<(V, u32)> {
        while self.ends.front().is_some_and(|(end, _)| *end <= now) {
            let (_, key) = self.ends.pop_front()?;
            if let Some(repeated) = self.counts.remove(&key).flatten() {
                return Some(repeated);
            }
        }
        None
    }

    /// How many things found no place since this was last asked.
    pub fn take_others(&mut self) -> u64 {
        std::mem::take(&mut self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_is_an_event_or_counted_once(steps in proptest::collection::vec((0u64..400, 0u8..6), 0..200), most in 1usize..6) {
            let mut repeats = Repeats::new(Duration::from_millis(1_000), most);
            let (mut now, mut events, mut counted) = (Duration::ZERO, 0u64, 0u64);
            for (pause, key) in &steps {
                now += Duration::from_millis(*pause);
                while let Some((_, count)) = repeats.take_ended(now) {
                    counted += u64::from(count);
                }
                events += u64::from(repeats.admit(now, key, || ()));
                prop_assert!(repeats.counts.len() <= most && repeats.ends.len() == repeats.counts.len());
            }
            while let Some((_, count)) = repeats.take_ended(Duration::MAX) {
                counted += u64::from(count);
            }
            prop_assert_eq!(events + counted + repeats.take_others(), steps.len() as u64);
            prop_assert!(repeats.ends.is_empty());
        }
    }

    #[test]
    fn a_window_begins_with_an_event() {
        let mut repeats = Repeats::new(Duration::from_secs(1), 10);
        assert!(repeats.admit(Duration::ZERO, &"a", || "first"));
        assert!(!repeats.admit(Duration::from_millis(500), &"a", || "second"));
        assert!(!repeats.admit(Duration::from_millis(999), &"a", || "third"));
        assert_eq!(repeats.take_ended(Duration::from_millis(999)), None);
        assert_eq!(repeats.take_ended(Duration::from_secs(1)), Some(("second", 2)));
        assert!(repeats.admit(Duration::from_secs(1), &"a", || "fourth"));
    }
}
