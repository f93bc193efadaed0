//! Points in time, counted from a zero that the whole process shares and that may lie before its start.

use std::num::NonZeroU64;
use std::ops::Add;
use std::time::Duration;

/// A monotonic time, stored as nanoseconds since zero plus one, so that an `Option` of it takes no more space. A call has about a dozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

impl Default for Time {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

impl Time {
    /// Returns the time `nanoseconds` after zero.
    #[must_use]
    pub fn from_nanos(nanoseconds: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanoseconds))
    }

    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the time earlier by a duration.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self::from_nanos(self.as_nanos().saturating_sub(Self::from(duration).as_nanos()))
    }

    /// Returns the time passed since another time, or zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

impl From<Duration> for Time {
    fn from(since_start: Duration) -> Self {
        Self::from_nanos(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(Self::from(later).as_nanos()))
    }
}
