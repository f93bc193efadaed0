//! How long one client's work may keep the data plane to itself.

use std::time::{Duration, Instant};

/// A small part of the 20 ms for which nobody may be held up.
const LENGTH: Duration = Duration::from_millis(2);

/// A slice of time, from its making on.
pub struct Slice(Instant);

impl Slice {
    #[must_use]
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Whether there is more of it.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.0.elapsed() < LENGTH
    }
}

/// Let others go on between two slices. A task that only ever waits for what it gets at once keeps its worker from looking at the sockets,
/// and the other workers may be asleep.
pub async fn pause() {
    tokio::task::yield_now().await;
}
