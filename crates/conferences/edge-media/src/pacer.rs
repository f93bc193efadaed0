//! A leaky bucket: decides which packets are sent at once and which wait.

use std::time::Duration;

/// Factor of the estimate at which the bucket leaks, so that waiting packets leave soon.
const FASTER: f64 = 2.5;
/// Time whose share of the estimate may leave at once: a frame of an even stream, so that nothing waits while the rate is below the
/// estimate.
const AT_ONCE: f64 = 0.04;
/// Time within which waiting packets must leave, whatever the estimate.
const LONGEST: f64 = 0.5;

/// `level`: octets in the bucket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacer {
    level: f64,
    at: Duration,
}

/// Octets of less than 2^53.
#[allow(clippy::cast_precision_loss)]
fn real(octets: u64) -> f64 {
    octets as f64
}

impl Pacer {
    /// Returns the octets per second that leave the bucket. `bitrate`: the estimate, bit/s; `waiting`: waiting octets.
    fn leak(bitrate: u64, waiting: u64) -> f64 {
        (real(bitrate) / 8.0 * FASTER).max(real(waiting) / LONGEST)
    }

    /// Returns whether a packet may leave now.
    pub fn admits(&mut self, now: Duration, bitrate: u64, waiting: u64) -> bool {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.level = (self.level - elapsed * Self::leak(bitrate, waiting)).max(0.0);
        self.level <= real(bitrate) / 8.0 * AT_ONCE
    }

    /// Counts a sent packet.
    pub fn sent(&mut self, octets: usize) {
        self.level += real(octets as u64);
    }

    /// Returns when the next packet may leave.
    #[must_use]
    pub fn next(&self, bitrate: u64, waiting: u64) -> Duration {
        let above = self.level - real(bitrate) / 8.0 * AT_ONCE;
        self.at + Duration::from_secs_f64((above / Self::leak(bitrate, waiting).max(1.0)).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_waits_below_the_estimate(bitrate in 100_000u64..20_000_000, per_frame in 1u64..20, fps in 25u64..60) {
            let mut pacer = Pacer::default();
            let octets = usize::try_from((bitrate / 8 / fps / per_frame).min(1200)).unwrap();
            for frame in 0..200 {
                let now = Duration::from_micros(1_000_000 / fps * frame);
                for _ in 0..per_frame {
                    prop_assert!(pacer.admits(now, bitrate, 0));
                    pacer.sent(octets);
                }
            }
        }

        #[test]
        fn what_waits_leaves_in_time(bitrate in 50_000u64..20_000_000, packets in 1u64..400) {
            let mut pacer = Pacer::default();
            let mut now = Duration::ZERO;
            let mut waiting = packets * 1200;
            while waiting > 0 {
                if pacer.admits(now, bitrate, waiting) {
                    pacer.sent(1200);
                    waiting -= 1200;
                } else {
                    let next = pacer.next(bitrate, waiting);
                    prop_assert!(next >= now);
                    now = next.max(now + Duration::from_micros(1));
                }
            }
            // The bucket leaks slower as less waits: a few times as long at most.
            prop_assert!(now < Duration::from_secs(4), "{:?}", now);
        }
    }
}
