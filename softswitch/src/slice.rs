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
