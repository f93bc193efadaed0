//! Merges the key frame requests of a sender's receivers.

use shunt_latch::Time;
use std::time::Duration;

/// Minimum time between two requests to one sender.
pub const LEAST: Duration = Duration::from_millis(500);

/// Requests to one sender for one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFrames {
    asked: Option<Time>,
    due: bool,
}

impl KeyFrames {
    /// Records that a receiver needs a key frame. Returns whether to send the request now; otherwise it is due at [`KeyFrames::due_at`].
    pub fn wanted(&mut self, now: Time) -> bool {
        if self.asked.is_some_and(|asked| now.since(asked) < LEAST) {
            self.due = true;
            return false;
        }
        (self.asked, self.due) = (Some(now), false);
        true
    }

    /// Returns when a request that was held back is due; call [`KeyFrames::due`] then.
    #[must_use]
    pub fn due_at(&self) -> Option<Time> {
        self.asked.filter(|_| self.due).map(|asked| asked + LEAST)
    }

    /// Returns whether a request that was held back is to be sent now.
    pub fn due(&mut self, now: Time) -> bool {
        self.due && self.wanted(now)
    }

    /// Records a key frame, which satisfies requests that were held back.
    pub fn seen(&mut self) {
        self.due = false;
    }
}
