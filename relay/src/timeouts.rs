//! When to look at which session next.

use crate::session::SessionId;
use shunt_latch::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Entries of no use that are not worth looking for.
const SLACK: usize = 1000;

/// Looks at sessions never later than their time-out can come, so that a sweep costs no more than the sessions that are due.
#[derive(Debug, Default)]
pub struct Timeouts {
    /// An entry counts only while `look_at` has the same time.
    heap: BinaryHeap<Reverse<(Time, SessionId)>>,
    look_at: HashMap<SessionId, Time>,
}

impl Timeouts {
    /// The session may time out then: look at it, unless that is to happen earlier anyway.
    pub fn look(&mut self, id: SessionId, due: Time) {
        let known = self.look_at.entry(id).or_insert(Time::from_nanos(u64::MAX));
        if due < *known {
            *known = due;
            self.heap.push(Reverse((due, id)));
            self.compact();
        }
    }

    /// Drop the entries that do not count any more when they are the most: their times may be far ahead.
    fn compact(&mut self) {
        if self.heap.len() > 2 * self.look_at.len() + SLACK {
            let look_at = &self.look_at;
            self.heap.retain(|Reverse((due, id))| look_at.get(id) == Some(due));
        }
    }

    pub fn forget(&mut self, id: SessionId) {
        self.look_at.remove(&id);
    }

    /// The next session to look at by now.
    pub fn next(&mut self, now: Time) -> Option<SessionId> {
        while let Some(&Reverse((due, id))) = self.heap.peek() {
            if due > now {
                return None;
            }
            self.heap.pop();
            if self.look_at.get(&id) == Some(&due) {
                self.look_at.remove(&id);
                return Some(id);
            }
        }
        None
    }

    /// Entries of the heap, those that do not count any more included.
    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_is_the_earliest_and_an_earlier_time_replaces_a_later_one() {
        let (mut timeouts, at) = (Timeouts::default(), |s: u64| Time::from_nanos(s * 1_000_000_000));
        timeouts.look(SessionId(1), at(10));
        timeouts.look(SessionId(2), at(5));
        timeouts.look(SessionId(1), at(7));
        timeouts.look(SessionId(1), at(9));
        timeouts.look(SessionId(3), at(6));
        timeouts.forget(SessionId(3));
        assert_eq!(timeouts.next(at(4)), None);
        assert_eq!(
            (timeouts.next(at(8)), timeouts.next(at(8)), timeouts.next(at(8))),
            (Some(SessionId(2)), Some(SessionId(1)), None)
        );
        assert_eq!(timeouts.next(at(20)), None);
    }

    #[test]
    fn sessions_that_end_long_before_their_time_leave_nothing() {
        let mut timeouts = Timeouts::default();
        for n in 0..100_000 {
            timeouts.look(SessionId(n), Time::from_nanos(u64::MAX - 1));
            timeouts.forget(SessionId(n));
        }
        assert!(timeouts.size() <= SLACK + 2);
    }
}
