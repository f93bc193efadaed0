//! Limits the rate of batches.

use std::time::{Duration, Instant};

/// Batches per second in the long run. A batch costs as much processor time as a hundred of its operations.
const INTERVAL: Duration = Duration::from_millis(1);
/// Batches at once after a pause.
const BURST: u32 = 20;

/// A token bucket (as the generic cell rate algorithm, ITU-T I.371).
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the bucket is full again.
    full: Option<Instant>,
}

impl Pace {
    /// Returns when the next batch may be sent.
    pub(crate) fn allowed(&self, now: Instant) -> Instant {
        let tolerance = INTERVAL * (BURST - 1);
        self.full.and_then(|full| full.checked_sub(tolerance)).map_or(now, |at| at.max(now))
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.full = Some(self.full.map_or(now, |full| full.max(now)) + INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_one_each_interval() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(pace.allowed(now), now);
            pace.sent(now);
        }
        for _ in 0..5 {
            assert_eq!(pace.allowed(now), now + INTERVAL);
            now += INTERVAL;
            pace.sent(now);
        }
        now += INTERVAL * BURST;
        assert_eq!(pace.allowed(now), now);
    }
}
