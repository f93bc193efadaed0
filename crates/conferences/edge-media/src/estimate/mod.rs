//! Congestion control towards a browser by its feedback (draft-ietf-rmcat-gcc-02), with a trendline instead of the Kalman filter, and
//! probes that find a free link.
//!
//! The lower of two estimates applies: by delay ([`Trend`] detects growing queues, [`Rate`] follows), and by loss ([`Loss`]).

mod arrival;
mod loss;
mod probe;
mod rate;
mod trend;

use crate::transport::Outcome;
use arrival::{Arrivals, Throughput};
use loss::Loss;
pub use probe::Probe;
use probe::Probes;
use rate::Rate;
use std::time::Duration;
use trend::Trend;

/// Lower bound of every estimate, bit/s.
const LEAST: f64 = 50_000.0;
/// Time without feedback after which measurements are discarded.
const SILENCE: Duration = Duration::from_secs(2);

/// Use of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    Normal,
    /// Queues grow.
    Over,
    /// Queues drain.
    Under,
}

/// The estimate of one browser.
#[derive(Clone, Debug)]
pub struct Estimator {
    arrivals: Arrivals,
    throughput: Throughput,
    trend: Trend,
    rate: Rate,
    loss: Loss,
    probes: Probes,
    /// Time of the last feedback.
    told: Option<Duration>,
    /// The highest useful rate, bit/s.
    wanted: f64,
}

/// bit/s below 2^53.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

#[allow(clippy::cast_precision_loss)]
fn real(number: u64) -> f64 {
    number as f64
}

impl Estimator {
    /// `first`: the estimate before any measurement, bit/s.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self {
            arrivals: Arrivals::default(),
            throughput: Throughput::default(),
            trend: Trend::default(),
            rate: Rate::new(real(first)),
            loss: Loss::default(),
            probes: Probes::default(),
            told: None,
            wanted: 0.0,
        }
    }

    /// Returns the estimate, bit/s.
    #[must_use]
    pub fn estimate(&self) -> u64 {
        whole(self.bitrate())
    }

    fn bitrate(&self) -> f64 {
        self.loss.cap(self.rate.bitrate()).max(LEAST)
    }

    /// Returns whether the browser has sent feedback.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.told.is_some()
    }

    /// Sets the highest useful rate, bit/s: probes do not exceed it.
    pub fn set_wanted(&mut self, wanted: u64) {
        self.wanted = real(wanted);
    }

    /// Processes feedback. `rtt`: the round-trip time, if known.
    pub fn feedback(&mut self, now: Duration, rtt: Duration, outcomes: &[Outcome]) {
        if outcomes.is_empty() {
            return;
        }
        if self.told.is_some_and(|told| now.saturating_sub(told) > SILENCE) {
            self.arrivals = Arrivals::default();
            self.throughput = Throughput::default();
            self.trend = Trend::default();
        }
        self.told = Some(now);
        for outcome in outcomes {
            self.loss.packet(outcome.arrived.is_some());
            let Some(arrived) = outcome.arrived else { continue };
            self.throughput.packet(arrived, outcome.sent.octets);
            if let Some(group) = self.arrivals.packet(outcome.sent.at, arrived) {
                self.trend.group(&group);
            }
            self.probes.arrived(&outcome.sent, arrived);
        }
        let throughput = self.throughput.bitrate();
        self.rate.update(now, rtt, self.trend.usage(), throughput);
        self.loss.update(now, self.rate.bitrate(), throughput);
        if let Some(found) = self.probes.result(now, self.wanted)
            && self.trend.usage() != Usage::Over
        {
            self.rate.raise(found);
            self.loss.raise(found);
        }
    }

    /// Returns the probe to begin now, if any.
    pub fn probe(&mut self, now: Duration) -> Option<Probe> {
        let calm = self.trend.usage() == Usage::Normal && !self.loss.is_high();
        self.probes.begin(now, self.bitrate(), self.wanted, calm, self.rate.fell())
    }

    /// Returns when [`Self::probe`] may return a probe.
    #[must_use]
    pub fn next_probe(&self) -> Option<Duration> {
        (self.bitrate() < self.wanted).then(|| self.probes.next())
    }
}
