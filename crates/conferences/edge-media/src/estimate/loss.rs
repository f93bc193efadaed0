//! The rate limit by loss: above a tenth it falls, below a fiftieth it grows, and between it stays (draft-ietf-rmcat-gcc-02 section 5).

use std::time::Duration;

const HIGH: f64 = 0.1;
const LOW: f64 = 0.02;
const GROWTH: f64 = 1.08;
/// Minimum packets and time of a loss measurement.
const PACKETS: u32 = 20;
const TIME: Duration = Duration::from_millis(500);

/// `cap`: bit/s; `None` while loss is no limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss {
    cap: Option<f64>,
    received: u32,
    lost: u32,
    since: Option<Duration>,
    share: f64,
}

impl Loss {
    pub(super) fn packet(&mut self, arrived: bool) {
        if arrived {
            self.received += 1;
        } else {
            self.lost += 1;
        }
    }

    /// Returns the limited rate.
    pub(super) fn cap(&self, bitrate: f64) -> f64 {
        self.cap.map_or(bitrate, |cap| cap.min(bitrate))
    }

    pub(super) fn is_high(&self) -> bool {
        self.share > HIGH
    }

    /// Raises the limit after a probe.
    pub(super) fn raise(&mut self, found: f64) {
        self.cap = self.cap.map(|cap| cap.max(found));
    }

    /// Applies a measurement. `bitrate`: the rate by delay; `throughput`: the arriving rate.
    pub(super) fn update(&mut self, now: Duration, bitrate: f64, throughput: Option<f64>) {
        let since = *self.since.get_or_insert(now);
        let packets = self.received + self.lost;
        if packets < PACKETS || now.saturating_sub(since) < TIME {
            return;
        }
        self.share = f64::from(self.lost) / f64::from(packets);
        (self.received, self.lost, self.since) = (0, 0, Some(now));
        let before = self.cap(bitrate);
        if self.share > HIGH {
            let fallen = before * (1.0 - 0.5 * self.share);
            // The rate that arrives in spite of the loss can be sent.
            self.cap = Some(throughput.map_or(fallen, |throughput| fallen.max(throughput.min(before))));
        } else if self.share < LOW {
            self.cap = self.cap.map(|cap| cap * GROWTH).filter(|cap| *cap < bitrate);
        }
    }
}
