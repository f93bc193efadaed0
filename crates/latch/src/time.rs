//! Points in time, since a start that is the same for the whole process.

use std::ops::Add;
use std::time::Duration;

/// A monotonic time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// `nanoseconds` since the start.
    #[must_use]
    pub fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long this is after another time; nothing if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl From<Duration> for Time {
    fn from(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(Self::from(later).0))
    }
}
