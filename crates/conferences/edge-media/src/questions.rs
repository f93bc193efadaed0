//! The edge's own connectivity checks under way: when each is sent again (RFC 8489 section 6.2.1), and which one an answer belongs to.

use std::ops::Range;
use std::time::Duration;

/// The wait before the first retransmission. Each further wait is twice as long.
const FIRST: Duration = Duration::from_millis(100);
/// A check is given up, and its answer counts for nothing, after so long.
const LASTS: Duration = Duration::from_secs(3);
/// Checks under way at a time, each of another pair.
const PAIRS: usize = 4;
/// Where STUN has the transaction.
const TRANSACTION: Range<usize> = 8..20;

#[derive(Debug)]
struct Question<P> {
    pair: P,
    packet: Vec<u8>,
    begun: Duration,
    wait: Duration,
    due: Duration,
}

/// The checks under way, at most one for a pair.
#[derive(Debug)]
pub struct Questions<P> {
    open: Vec<Question<P>>,
}

impl<P> Default for Questions<P> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<P: Copy + PartialEq> Questions<P> {
    /// Returns whether a check of `pair` may begin: none is under way, and not too many others are.
    pub fn may_begin(&mut self, now: Duration, pair: P) -> bool {
        self.open.retain(|one| now < one.begun + LASTS);
        self.open.len() < PAIRS && self.open.iter().all(|one| one.pair != pair)
    }

    /// Takes the check that was sent to `pair`.
    pub fn begin(&mut self, now: Duration, pair: P, packet: Vec<u8>) {
        self.open.push(Question {
            pair,
            packet,
            begun: now,
            wait: FIRST,
            due: now + FIRST,
        });
    }

    /// Returns when [`Self::again`] has something to send.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let waiting = self.open.iter().filter(|one| one.due < one.begun + LASTS);
        waiting.map(|one| one.due).min()
    }

    /// Returns the checks to send again now, each with its pair.
    pub fn again(&mut self, now: Duration) -> impl Iterator<Item = (P, &[u8])> {
        self.open.retain(|one| now < one.begun + LASTS);
        self.open.iter_mut().filter(move |one| now >= one.due).map(move |one| {
            one.wait *= 2;
            one.due = now + one.wait;
            (one.pair, one.packet.as_slice())
        })
    }

    /// Returns whether a STUN message that came by `pair` has the transaction of the check under way there.
    #[must_use]
    pub fn is_answered_by(&self, now: Duration, pair: P, message: &[u8]) -> bool {
        let asked = self.open.iter().find(|one| one.pair == pair && now < one.begun + LASTS);
        asked.is_some_and(|one| message.len() >= TRANSACTION.end && one.packet.get(TRANSACTION) == message.get(TRANSACTION))
    }

    /// Gives up all checks.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}
