//! The monotonic time of the call state, and Unix time.

use shunt_latch::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The call state's time at the start. Calls of the journal began at most this long before.
const AT_START: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The clock of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Time {
        (AT_START + self.start.elapsed()).into()
    }

    /// Waits for a time of the call state.
    #[must_use]
    pub fn instant(&self, at: Time) -> Instant {
        self.start + Duration::from_nanos(at.as_nanos()).saturating_sub(AT_START)
    }

    /// Waits until this much time has passed since the start.
    #[must_use]
    pub fn at(&self, uptime: Duration) -> Instant {
        self.start + uptime
    }

    /// Returns the time since 1970 by the system's clock.
    #[must_use]
    pub fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_the_start_is_not_cut_off() {
        let clock = Clock::start();
        let now = clock.now();
        let earlier = Time::from_nanos(now.as_nanos() - 3_600_000_000_000);
        assert_eq!(now.since(earlier), Duration::from_secs(3600));
    }

    #[test]
    fn a_time_of_the_call_state_comes_at_its_instant() {
        let clock = Clock::start();
        let due = clock.now() + Duration::from_secs(5);
        let left = clock.instant(due).saturating_duration_since(Instant::now());
        assert!(left > Duration::from_secs(4) && left <= Duration::from_secs(5), "{left:?}");
        let past = clock.instant(Time::from_nanos(0));
        assert!(past <= Instant::now(), "a time before the start is due at once");
    }
}
