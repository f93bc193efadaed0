//! Detects growing queues: compares the slope of the delay over the last groups (a trendline) with an adaptive threshold
//! (draft-ietf-rmcat-gcc-02 sections 4.3 and 4.4).

use super::Usage;
use super::arrival::Group;
use std::collections::VecDeque;

/// Groups of the trendline.
const WINDOW: usize = 20;
/// Weight of the previous smoothed delay.
const SMOOTHED: f64 = 0.9;
/// Factor of the slope, and most groups by which it is also multiplied.
const GAIN: f64 = 4.0;
const MOST: f64 = 60.0;
/// The threshold: start value, speed of adaptation, and bounds, ms.
const FIRST: f64 = 12.5;
const UP: f64 = 0.0087;
const DOWN: f64 = 0.039;
const BOUNDS: (f64, f64) = (6.0, 600.0);
const OUTLIER: f64 = 15.0;
/// How long the slope must exceed the threshold, ms.
const SUSTAINED: f64 = 10.0;
/// Minimum excess of even the fastest recent group over the best transit time, ms. A receiver without processor time delays groups too, but
/// not each of them.
const STANDS: f64 = 10.0;
const RECENT: usize = 10;
/// With a queue longer than this, ms, the minimum threshold applies, because the threshold rises with slow growth.
const LONG: f64 = 100.0;
/// How long the best transit time is remembered, up to twice this, ms: clocks drift, and paths change.
const BEST: f64 = 15_000.0;

#[derive(Clone, Debug)]
pub(super) struct Trend {
    /// Arrival and smoothed delay, ms.
    points: VecDeque<(f64, f64)>,
    ways: VecDeque<f64>,
    /// The best transit times of this period and the last, and the start of this one.
    best: (f64, f64),
    since: Option<f64>,
    first: f64,
    sum: f64,
    smoothed: f64,
    groups: f64,
    threshold: f64,
    updated: Option<f64>,
    /// For how long the slope has exceeded the threshold, ms, and how often.
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

    /// Adds a group.
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

    /// Returns the excess of the fastest recent group over the best transit time, ms.
    fn queue(&self) -> f64 {
        let fastest = self.ways.iter().copied().fold(f64::INFINITY, f64::min);
        fastest - self.best.0.min(self.best.1)
    }

    /// Returns the slope of the least-squares line.
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
