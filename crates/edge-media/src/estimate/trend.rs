//! Whether queues grow: the slope of the delay over the last groups (a trendline), against a threshold that adapts (draft-ietf-rmcat-gcc-02
//! sections 4.3 and 4.4).

use super::Usage;
use super::arrival::Group;
use std::collections::VecDeque;

/// Groups that the line goes through.
const WINDOW: usize = 20;
/// How much of the smoothed delay stays.
const SMOOTHED: f64 = 0.9;
/// The slope is multiplied by as much, and by the number of groups up to the most.
const GAIN: f64 = 4.0;
const MOST: f64 = 60.0;
/// The threshold: where it begins, how fast it follows, and where it stays, ms.
const FIRST: f64 = 12.5;
const UP: f64 = 0.0087;
const DOWN: f64 = 0.039;
const BOUNDS: (f64, f64) = (6.0, 600.0);
const OUTLIER: f64 = 15.0;
/// Queues grow when the slope says so for so long, ms.
const SUSTAINED: f64 = 10.0;
/// And when they are there: of the last groups even the fastest took so much longer than packets take at best, ms. A receiver that was not
/// given the processor for a while delays groups too, but not each of them.
const STANDS: f64 = 10.0;
const RECENT: usize = 10;
/// A queue that is longer than this, ms, may not grow at all: the threshold, which rises with what grows slowly, is the lowest then.
const LONG: f64 = 100.0;
/// The best way is remembered for this to twice as long, ms: clocks drift apart, and paths change.
const BEST: f64 = 15_000.0;

#[derive(Clone, Debug)]
pub(super) struct Trend {
    /// Arrival and smoothed delay, ms.
    points: VecDeque<(f64, f64)>,
    ways: VecDeque<f64>,
    /// The best way of this and of the last period, and when this one began.
    best: (f64, f64),
    since: Option<f64>,
    first: f64,
    sum: f64,
    smoothed: f64,
    groups: f64,
    threshold: f64,
    updated: Option<f64>,
    /// For how long the slope has been above the threshold, ms, and how often.
    above: Option<(f64, u32)>,
    slope: f64,
    usage: Usage,
}

impl Default for Trend {
    fn default() -> Self {
        Self {
            points: VecDeque::with_capacity(WINDOW + 1),
            ways: VecDeque::with_capacity(RECENT + 1),
            best: (f64::INFINITY, f64::INFINITY),
            since: None,
            first: 0.0,
            sum: 0.0,
            smoothed: 0.0,
            groups: 0.0,
            threshold: FIRST,
            updated: None,
            above: None,
            slope: 0.0,
            usage: Usage::Normal,
        }
    }
}

impl Trend {
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// Another group arrived.
    pub(super) fn group(&mut self, group: &Group) {
        let elapsed = self.points.back().map_or(0.0, |(at, _)| group.arrived - self.first - at);
        if self.groups == 0.0 {
            self.first = group.arrived;
        }
        self.groups = (self.groups + 1.0).min(MOST);
        self.note_way(group);
        self.sum += group.delay;
        self.smoothed = SMOOTHED * self.smoothed + (1.0 - SMOOTHED) * self.sum;
        self.points.push_back((group.arrived - self.first, self.smoothed));
        if self.points.len() > WINDOW {
            self.points.pop_front();
        }
        let slope = if self.points.len() == WINDOW { self.line() } else { self.slope };
        self.detect(group.arrived, elapsed, slope);
        self.slope = slope;
    }

    fn note_way(&mut self, group: &Group) {
        if group.arrived - *self.since.get_or_insert(group.arrived) > BEST {
            self.best = (f64::INFINITY, self.best.0);
            self.since = Some(group.arrived);
        }
        self.best.0 = self.best.0.min(group.way);
        self.ways.push_back(group.way);
        if self.ways.len() > RECENT {
            self.ways.pop_front();
        }
    }

    /// How much longer even the fastest of the last groups took than the best one, ms.
    fn queue(&self) -> f64 {
        let fastest = self.ways.iter().copied().fold(f64::INFINITY, f64::min);
        fastest - self.best.0.min(self.best.1)
    }

    /// The slope of the line of least squares.
    fn line(&self) -> f64 {
        // At most WINDOW.
        #[allow(clippy::cast_precision_loss)]
        let count = self.points.len() as f64;
        let (x, y) = self.points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (x, y) = (x / count, y / count);
        let (mut numerator, mut denominator) = (0.0, 0.0);
        for (at, delay) in &self.points {
            numerator += (at - x) * (delay - y);
            denominator += (at - x) * (at - x);
        }
        if denominator > 0.0 { numerator / denominator } else { self.slope }
    }

    fn detect(&mut self, now: f64, elapsed: f64, slope: f64) {
        let scaled = self.groups * slope * GAIN;
        let threshold = if self.queue() > LONG { BOUNDS.0 } else { self.threshold };
        if scaled > threshold {
            let (time, times) = self.above.map_or((elapsed / 2.0, 0), |(time, times)| (time + elapsed, times));
            self.above = Some((time, times + 1));
            if time > SUSTAINED && times > 0 && slope >= self.slope && self.queue() > STANDS {
                self.above = Some((0.0, 0));
                self.usage = Usage::Over;
            }
        } else {
            self.above = None;
            self.usage = if scaled < -threshold { Usage::Under } else { Usage::Normal };
        }
        self.adapt(now, scaled.abs());
    }

    fn adapt(&mut self, now: f64, scaled: f64) {
        let elapsed = (now - self.updated.replace(now).unwrap_or(now)).clamp(0.0, 100.0);
        if scaled <= self.threshold + OUTLIER {
            let speed = if scaled < self.threshold { DOWN } else { UP };
            self.threshold = (self.threshold + speed * (scaled - self.threshold) * elapsed).clamp(BOUNDS.0, BOUNDS.1);
        }
    }
}
