//! Things of one kind come in any number: the first is an event, those of the next moment are counted. No clock: time comes in.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// Things like one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated<V> {
    /// What is to be said of them.
    pub value: V,
    pub count: u32,
    /// When the last one came.
    pub last: Duration,
}

/// Counts like things within a window, with what is to be said of those after the first. It holds a bounded number of them.
#[derive(Debug)]
pub struct Repeats<K, V> {
    window: Duration,
    most: usize,
    counts: HashMap<K, Option<Repeated<V>>>,
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
            let repeated = repeated.get_or_insert_with(|| Repeated {
                value: make(),
                count: 0,
                last: now,
            });
            repeated.count = repeated.count.saturating_add(1);
            repeated.last = now;
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

    /// Things whose window has ended; `None`: there is none. Those without repetition are passed over.
    pub fn take_ended(&mut self, now: Duration) -> Option<Repeated<V>> {
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
                while let Some(repeated) = repeats.take_ended(now) {
                    prop_assert!(repeated.last <= now);
                    counted += u64::from(repeated.count);
                }
                events += u64::from(repeats.admit(now, key, || ()));
                prop_assert!(repeats.counts.len() <= most && repeats.ends.len() == repeats.counts.len());
            }
            while let Some(repeated) = repeats.take_ended(Duration::MAX) {
                counted += u64::from(repeated.count);
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
        let repeated = Repeated {
            value: "second",
            count: 2,
            last: Duration::from_millis(999),
        };
        assert_eq!(
            repeats.take_ended(Duration::from_secs(3)),
            Some(repeated),
            "the time is the last packet's"
        );
        assert!(repeats.admit(Duration::from_secs(1), &"a", || "fourth"));
    }
}
