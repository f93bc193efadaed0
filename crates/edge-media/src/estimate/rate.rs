//! The rate by delay: it grows while queues do not, and falls below what arrives when they do (draft-ietf-rmcat-gcc-02 section 4.4).

use super::{LEAST, Usage};
use std::time::Duration;

/// What is left of what arrives.
const BETA: f64 = 0.85;
/// Growth in a second, far from where queues grew last.
const GROWTH: f64 = 1.08;
/// A rate is not raised above what arrives by more than this: what was not tried is not known.
const UNTRIED: (f64, f64) = (1.5, 10_000.0);
/// Near to where queues grew: within so many deviations of the mean.
const NEAR: f64 = 3.0;
const SMOOTHED: f64 = 0.95;
/// Bits of the largest packet, and frames a second: of an average packet one more is sent in a round trip then.
const PACKET: f64 = 1200.0 * 8.0;
const FRAMES: f64 = 30.0;
const LEAST_GROWTH: f64 = 4000.0;
/// After a fall, the next one takes as long as its effect does, beyond the round trip.
const EFFECT: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub(super) struct Rate {
    bitrate: f64,
    holds: bool,
    updated: Option<Duration>,
    fell: Option<Duration>,
    /// The mean and the variance, relative to the mean, of what arrived when queues grew.
    capacity: Option<(f64, f64)>,
}

impl Rate {
    pub(super) fn new(bitrate: f64) -> Self {
        Self {
            bitrate,
            holds: false,
            updated: None,
            fell: None,
            capacity: None,
        }
    }

    pub(super) fn bitrate(&self) -> f64 {
        self.bitrate
    }

    /// When it fell last.
    pub(super) fn fell(&self) -> Option<Duration> {
        self.fell
    }

    /// More was found by trying.
    pub(super) fn raise(&mut self, found: f64) {
        if found > self.bitrate {
            self.bitrate = found;
            self.capacity = None;
        }
    }

    /// `throughput`: what arrives, bit/s.
    pub(super) fn update(&mut self, now: Duration, rtt: Duration, usage: Usage, throughput: Option<f64>) {
        let elapsed = now.saturating_sub(self.updated.replace(now).unwrap_or(now)).as_secs_f64().min(1.0);
        match usage {
            Usage::Over => self.fall(now, rtt, throughput),
            // Queues drain: wait until they are empty.
            Usage::Under => self.holds = true,
            Usage::Normal if self.holds => self.holds = false,
            Usage::Normal => self.grow(elapsed, rtt, throughput),
        }
    }

    fn fall(&mut self, now: Duration, rtt: Duration, throughput: Option<f64>) {
        self.holds = true;
        let soon = self.fell.is_some_and(|fell| now.saturating_sub(fell) < rtt + EFFECT);
        let Some(throughput) = throughput.filter(|_| !soon) else { return };
        self.fell = Some(now);
        self.bitrate = self.bitrate.min(BETA * throughput).max(LEAST);
        let (mean, variance) = match self.capacity {
            Some((mean, variance)) if (throughput - mean).abs() <= NEAR * (variance * mean).sqrt() => (mean, variance),
            _ => (throughput, 0.4 * 1000.0),
        };
        let error = throughput - mean;
        let mean = SMOOTHED * mean + (1.0 - SMOOTHED) * throughput;
        let variance = SMOOTHED * variance + (1.0 - SMOOTHED) * error * error / mean.max(1.0);
        self.capacity = Some((mean, variance.clamp(400.0, 2500.0)));
    }

    fn grow(&mut self, elapsed: f64, rtt: Duration, throughput: Option<f64>) {
        let Some(throughput) = throughput else { return };
        let most = UNTRIED.0 * throughput + UNTRIED.1;
        if self.bitrate >= most {
            return;
        }
        if self
            .capacity
            .is_some_and(|(mean, variance)| throughput > mean + NEAR * (variance * mean).sqrt())
        {
            // There is more than there was.
            self.capacity = None;
        }
        let grown = if self.capacity.is_some() {
            let frame = self.bitrate / FRAMES;
            let packet = frame / (frame / PACKET).ceil();
            // Until growth shows in the delay: what the detector takes, and as long again.
            let response = 2.0 * (rtt.as_secs_f64() + 0.1);
            self.bitrate + (packet / response).max(LEAST_GROWTH) * elapsed
        } else {
            self.bitrate * GROWTH.powf(elapsed) + 1000.0 * elapsed
        };
        self.bitrate = grown.min(most);
    }
}
