//! The rate by delay: it grows while queues do not, and falls below the arriving rate when they do (draft-ietf-rmcat-gcc-02 section 4.4).

use super::{LEAST, Usage};
use std::time::Duration;

/// Factor of the arriving rate after a fall.
const BETA: f64 = 0.85;
/// Growth per second, far from the rate of the last congestion.
const GROWTH: f64 = 1.08;
/// Upper bound as a multiple of the arriving rate, because higher rates are untested.
const UNTRIED: (f64, f64) = (1.5, 10_000.0);
/// Deviations from the mean within which a rate is near the last congestion.
const NEAR: f64 = 3.0;
const SMOOTHED: f64 = 0.95;
/// Bits of the largest packet, and frames per second. One more average packet is sent in each round-trip time near the last congestion.
const PACKET: f64 = 1200.0 * 8.0;
const FRAMES: f64 = 30.0;
const LEAST_GROWTH: f64 = 4000.0;
/// Pause after a fall in addition to the round-trip time, until its effect shows.
const EFFECT: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub(super) struct Rate {
    bitrate: f64,
    holds: bool,
    updated: Option<Duration>,
    fell: Option<Duration>,
    /// Mean, and variance relative to the mean, of the arriving rate at congestion.
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

    /// Time of the last fall.
    pub(super) fn fell(&self) -> Option<Duration> {
        self.fell
    }

    /// Raises the rate after a probe.
    pub(super) fn raise(&mut self, found: f64) {
        if found > self.bitrate {
            self.bitrate = found;
            self.capacity = None;
        }
    }

    /// `throughput`: the arriving rate, bit/s.
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
            // The path carries more than before.
            self.capacity = None;
        }
        let grown = if self.capacity.is_some() {
            let frame = self.bitrate / FRAMES;
            let packet = frame / (frame / PACKET).ceil();
            // Until growth shows in the delay: twice the time of the detector.
            let response = 2.0 * (rtt.as_secs_f64() + 0.1);
            self.bitrate + (packet / response).max(LEAST_GROWTH) * elapsed
        } else {
            self.bitrate * GROWTH.powf(elapsed) + 1000.0 * elapsed
        };
        self.bitrate = grown.min(most);
    }
}
