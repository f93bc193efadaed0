//! Key frame requests of many receivers made one, for each sender.

use shunt_latch::Time;
use std::time::Duration;

/// Between two requests to one sender.
pub const LEAST: Duration = Duration::from_millis(500);

/// Requests to one sender for one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFrames {
    asked: Option<Time>,
    due: bool,
}

impl KeyFrames {
    /// Somebody needs a key frame; whether the request goes on now. One that does not is due at [`KeyFrames::due_at`].
    pub fn wanted(&mut self, now: Time) -> bool {
        if self.asked.is_some_and(|asked| now.since(asked) < LEAST) {
            self.due = true;
            return false;
        }
        (self.asked, self.due) = (Some(now), false);
        true
    }

    /// When a request that was held back goes on; call [`KeyFrames::due`] then.
    #[must_use]
    pub fn due_at(&self) -> Option<Time> {
        self.asked.filter(|_| self.due).map(|asked| asked + LEAST)
    }

    /// Whether a request that was held back goes on now.
    pub fn due(&mut self, now: Time) -> bool {
        self.due && self.wanted(now)
    }

    /// A key frame came: what was held back has been answered.
    pub fn seen(&mut self) {
        self.due = false;
    }
}
