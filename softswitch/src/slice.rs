//! Limits how long one client's work may occupy the data plane.

use std::time::{Duration, Instant};

/// A small part of the 20 ms for which no client may be delayed.
const LENGTH: Duration = Duration::from_millis(2);

/// A slice of time, from its creation on.
pub struct Slice(Instant);

impl Slice {
    #[must_use]
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns whether time is left.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.0.elapsed() < LENGTH
    }
}

/// Yields between two slices. A task whose waits always complete at once keeps its worker from polling the sockets, and the other workers
/// may be asleep.
pub async fn pause() {
    tokio::task::yield_now().await;
}
