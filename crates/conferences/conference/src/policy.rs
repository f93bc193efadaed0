//! Selects a receiver's layers from its estimates: an exchangeable policy, and the default policy.
//!
//! A *level* is the number of layers sent: 0 pauses the stream, 1 is the lowest frame rate, and the number of rates means all layers.

use crate::downlink::{GRACE, RETRY};
use shunt_latch::Time;
use std::time::Duration;
use thiserror::Error;

/// A receiver's share of its estimate, for one sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate<'a> {
    pub time: Time,
    /// bit/s.
    pub bitrate: f64,
    /// bit/s that each level from 1 on needs, including all lower levels.
    pub rates: &'a [f64],
}

impl Estimate<'_> {
    fn need(&self, level: usize) -> f64 {
        level.checked_sub(1).and_then(|at| self.rates.get(at)).copied().unwrap_or(0.0)
    }
}

/// Number of levels whose last use is remembered.
const LEVELS: usize = 8;

/// History of one receiver's estimates for one sender.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trend {
    first: Option<Time>,
    /// Time of the last level change, and the first estimate since then.
    pub level_since: Option<Time>,
    pub level_first: f64,
    /// The previous level, and its last estimate (bit/s).
    pub before: Option<(usize, f64)>,
    last: Option<(usize, f64)>,
    /// Last time that the next level did not fit.
    next_unfit: Option<Time>,
    /// Last time that the estimate was below the maximum that the rate sent allows.
    unbound: Option<Time>,
    /// Last time that the lowest level fitted, or that another level was sent.
    lowest_fit: Option<Time>,
    sent: [Option<Time>; LEVELS],
}

impl Trend {
    /// Returns whether a condition that last failed at `broken` has held for this long.
    fn held(&self, broken: Option<Time>, long: Duration, now: Time) -> bool {
        let before = |at: Time| now.since(at) >= long;
        self.first.is_some_and(before) && broken.is_none_or(before)
    }

    /// Returns whether this level or a higher one was sent in the last `long`.
    fn was_sent(&self, level: usize, long: Duration, now: Time) -> bool {
        let recent = |at: &Option<Time>| at.is_some_and(|at| now.since(at) < long);
        self.sent.iter().skip(level).any(recent)
    }

    /// Records an estimate at a level.
    fn take(&mut self, level: usize, estimate: &Estimate) {
        let now = estimate.time;
        self.first.get_or_insert(now);
        if self.last.is_none_or(|(last, _)| last != level) {
            self.before = self.last;
            (self.level_since, self.level_first) = (Some(now), estimate.bitrate);
            self.unbound = self.last.map(|_| now);
        }
        let next = level + 1;
        if next > estimate.rates.len() || estimate.bitrate < UP_ROOM * estimate.need(next) {
            self.next_unfit = Some(now);
        }
        if estimate.bitrate < BOUND * estimate.need(level) {
            self.unbound = Some(now);
        }
        if level != 1 || estimate.need(1) <= estimate.bitrate {
            self.lowest_fit = Some(now);
        }
        if let Some(sent) = self.sent.get_mut(level) {
            *sent = Some(now);
        }
        self.last = Some((level, estimate.bitrate));
    }
}

/// Maps estimates to levels.
pub trait Policy {
    /// Returns the new level. `trend` includes the new estimate.
    fn select(&self, level: usize, trend: &Trend, estimate: &Estimate) -> usize;
}

/// Factor by which an estimate must exceed a higher level,
const UP_ROOM: f64 = 1.1;
/// and for how long, because a climbing estimate may fall again.
const UP_AFTER: Duration = Duration::from_secs(3);
/// Browsers' estimates are limited to about 1.5 times the rate that arrives. Above this factor an estimate gives no further information,
const BOUND: f64 = 1.3;
/// and after this time the next level is tried anyway, unless it recently failed.
const TRY_AFTER: Duration = Duration::from_secs(8);
/// A stream is paused when its lowest layer has not fitted for this long,
const PAUSE_AFTER: Duration = Duration::from_secs(3);
/// and stays paused for this long, because the pause itself frees capacity and raises the estimates.
const PAUSE_LASTS: Duration = Duration::from_secs(8);

/// The default policy: falls at once to a level that fits, rises by one level when the next level fits or is worth a trial, and pauses when
/// no level fits.
///
/// Down: the present level needs more than the estimate. The level falls at once, unless it is new to the receiver and the estimate is
/// still climbing. Up: the estimate has been sufficient for the next level for three seconds, or it has been at its maximum for the rate
/// sent for eight seconds. Without the second condition a receiver at a low level would never rise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stepwise;

impl Policy for Stepwise {
    fn select(&self, level: usize, trend: &Trend, estimate: &Estimate) -> usize {
        let (now, top) = (estimate.time, estimate.rates.len());
        let level = level.min(top);
        if estimate.need(level) > estimate.bitrate {
            return lower(level, trend, estimate);
        }
        let above = level + 1;
        if above > top {
            return level;
        }
        let fits = trend.held(trend.next_unfit, UP_AFTER, now);
        let tried = |long| trend.was_sent(above, long, now);
        let bound = trend.held(trend.unbound, TRY_AFTER, now);
        if fits && !(level == 0 && tried(PAUSE_LASTS)) || bound && !tried(RETRY) {
            above
        } else {
            level
        }
    }
}

fn lower(level: usize, trend: &Trend, estimate: &Estimate) -> usize {
    let now = estimate.time;
    let fresh = trend.level_since.is_none_or(|since| now.since(since) < GRACE);
    let risen = trend.before.is_none_or(|(before, _)| before < level);
    let basis = trend.before.map_or(trend.level_first, |(_, bitrate)| bitrate);
    if fresh && risen && estimate.bitrate >= 0.95 * basis {
        return level;
    }
    let fitting = (1..level).rev().find(|lower| estimate.need(*lower) <= estimate.bitrate);
    let paused = level == 1 && trend.held(trend.lowest_fit, PAUSE_AFTER, now);
    fitting.unwrap_or(usize::from(!paused))
}

/// An invalid level from a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("level {level} is not in 0..={top}")]
pub struct NoLevel {
    pub level: usize,
    pub top: usize,
}

/// Level and history of one receiver for one sender.
#[derive(Clone, Debug, PartialEq)]
pub struct Receiver {
    pub level: usize,
    trend: Trend,
}

impl Receiver {
    #[must_use]
    pub fn new(level: usize) -> Self {
        Self {
            level,
            trend: Trend::default(),
        }
    }

    /// Records an estimate. Returns the previous level if the level changes.
    ///
    /// # Errors
    /// The policy returned an invalid level; nothing has changed.
    pub fn estimate(&mut self, policy: &dyn Policy, estimate: &Estimate) -> Result<Option<usize>, NoLevel> {
        let top = estimate.rates.len();
        self.level = self.level.min(top);
        self.trend.take(self.level, estimate);
        let level = policy.select(self.level, &self.trend, estimate);
        if level > top {
            return Err(NoLevel { level, top });
        }
        let before = std::mem::replace(&mut self.level, level);
        Ok((before != level).then_some(before))
    }

    /// Retries a paused stream after a while, because a receiver that gets nothing sends no estimates.
    pub fn retry(&mut self, now: Time) -> bool {
        let due = self.level == 0 && !self.trend.was_sent(1, RETRY, now);
        if due {
            self.level = 1;
        }
        due
    }
}
