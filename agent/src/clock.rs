//! Time: of the call state, which counts from the start, and of the world.

use shunt_latch::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The one clock of the process.
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
        self.start.elapsed().into()
    }

    /// When a time of the call state comes.
    #[must_use]
    pub fn instant(&self, at: Time) -> Instant {
        self.start + Duration::from_nanos(at.as_nanos())
    }

    /// When so much time has passed since the start.
    #[must_use]
    pub fn at(&self, uptime: Duration) -> Instant {
        self.start + uptime
    }

    /// Since 1970, by the system's clock.
    #[must_use]
    pub fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }
}
