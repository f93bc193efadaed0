//! The pictures of one tile that wait for the next picture of the mosaic, and when that one is due.

use shunt_latch::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Between two pictures: the shortest that H.261's temporal reference tells apart.
const LEAST: Duration = Duration::from_nanos(33_366_667);

/// The oldest goes first.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    waiting: VecDeque<(Time, P)>,
    longest: usize,
}

impl<P> Queue<P> {
    /// For at most so many.
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            longest,
        }
    }

    /// Adds a picture. The oldest is dropped, and returned, when there are too many.
    pub(crate) fn put(&mut self, picture: P, now: Time) -> Option<P> {
        self.waiting.push_back((now, picture));
        if self.waiting.len() > self.longest { self.next() } else { None }
    }

    pub(crate) fn next(&mut self) -> Option<P> {
        self.waiting.pop_front().map(|(_, picture)| picture)
    }

    pub(crate) fn peek(&self) -> Option<&P> {
        self.waiting.front().map(|(_, picture)| picture)
    }

    /// How many wait, and since when the oldest does.
    pub(crate) fn waiting(&self) -> (usize, Option<Time>) {
        (self.waiting.len(), self.waiting.front().map(|(came, _)| *came))
    }
}

/// Decides when pictures are made. One is due when every tile has something new, when a tile has two pictures waiting, or when one has waited
/// for as long as the mosaic waits for the others.
#[derive(Debug)]
pub(crate) struct Pace {
    hold: Duration,
    last: Option<Time>,
}

impl Pace {
    pub(crate) fn new(hold: Duration) -> Self {
        Self { hold, last: None }
    }

    /// When the next picture is due, as far as can be told now; never, if nothing waits, and none is `wanted` anyway. `now` only says what
    /// "at once" is.
    pub(crate) fn due_at(&self, queues: impl Iterator<Item = (usize, Option<Time>)>, wanted: bool, now: Time) -> Option<Time> {
        let (mut oldest, mut all, mut two) = (None::<Time>, true, false);
        for (count, since) in queues {
            all &= count > 0;
            two |= count > 1;
            oldest = oldest.into_iter().chain(since).min();
        }
        let due = match oldest {
            Some(oldest) if !(all || two || wanted) => oldest + self.hold,
            None if !wanted => return None,
            _ => now,
        };
        Some(self.last.map_or(due, |last| due.max(last + LEAST)))
    }

    pub(crate) fn made(&mut self, now: Time) {
        self.last = Some(now);
    }
}
