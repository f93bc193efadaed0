//! Which layers a receiver gets: a replaceable policy over estimates, and the default one.
//!
//! A *level* is how many layers go: 0 is a paused stream, 1 the lowest frame rate, as many as there are rates everything.

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
    /// bit/s that each level from 1 on needs, all that lies below included.
    pub rates: &'a [f64],
}

impl Estimate<'_> {
    fn need(&self, level: usize) -> f64 {
        level.checked_sub(1).and_then(|at| self.rates.get(at)).copied().unwrap_or(0.0)
    }
}

/// Levels of which it is known when they were sent last.
const LEVELS: usize = 8;

/// What the estimates of one receiver for one sender have been.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trend {
    first: Option<Time>,
    /// When the level was changed last, and the first estimate since.
    pub level_since: Option<Time>,
    pub level_first: f64,
    /// The level before, and its last estimate (bit/s).
    pub before: Option<(usize, f64)>,
    last: Option<(usize, f64)>,
    /// The last time that the next level did not fit;
    next_unfit: Option<Time>,
    /// that the estimate was not as high as it can get with what is sent;
    unbound: Option<Time>,
    /// that the lowest level fitted, or another was sent.
    lowest_fit: Option<Time>,
    sent: [Option<Time>; LEVELS],
}

impl Trend {
    /// Whether something has held for so long, that last did not at `broken`.
    fn held(&self, broken: Option<Time>, long: Duration, now: Time) -> bool {
        let before = |at: Time| now.since(at) >= long;
        self.first.is_some_and(before) && broken.is_none_or(before)
    }

    /// Whether a level, or a higher one, was sent in the last `long`.
    fn was_sent(&self, level: usize, long: Duration, now: Time) -> bool {
        let recent = |at: &Option<Time>| at.is_some_and(|at| now.since(at) < long);
        self.sent.iter().skip(level).any(recent)
    }

    /// Take in what was said at a level.
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

/// Turns estimates into levels.
pub trait Policy {
    /// The level from now on. `trend` includes the new estimate.
    fn select(&self, level: usize, trend: &Trend, estimate: &Estimate) -> usize;
}

/// A higher level has to fit so many times,
const UP_ROOM: f64 = 1.1;
/// and for so long: an estimate that climbs may fall again.
const UP_AFTER: Duration = Duration::from_secs(3);
/// Browsers' estimates end at about 1.5 times what arrives: from here on an estimate says no more than that,
const BOUND: f64 = 1.3;
/// and after so long the next level is tried all the same, but not where it was sent in vain a short while ago.
const TRY_AFTER: Duration = Duration::from_secs(8);
/// A stream whose lowest layer has not fitted for so long is paused,
const PAUSE_AFTER: Duration = Duration::from_secs(3);
/// and stays so for so long, whatever is estimated: it made room itself.
const PAUSE_LASTS: Duration = Duration::from_secs(8);

/// Down at once to what fits, up by one when the next level has fitted for a while, or may well fit; paused when not even the lowest fits.
///
/// Down: the present level needs more than the estimate; at once, unless the receiver is new to it and its estimate only has to climb yet. Up:
/// the estimate has carried the next level for three seconds; or it has been as high as it can get with what is sent for eight, which is how a
/// receiver that gets little ever gets more.
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

/// A policy's answer that is no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("level {level} is not in 0..={top}")]
pub struct NoLevel {
    pub level: usize,
    pub top: usize,
}

/// One receiver of one sender: its level, from its estimates.
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

    /// Take an estimate in; the level before if it changes.
    ///
    /// # Errors
    /// The policy answered what is no level; nothing has changed.
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

    /// A paused stream whose receiver sends no estimates is tried again after a while: who gets nothing estimates nothing.
    pub fn retry(&mut self, now: Time) -> bool {
        let due = self.level == 0 && !self.trend.was_sent(1, RETRY, now);
        if due {
            self.level = 1;
        }
        due
    }
}
