//! Limits repeated log lines to one in ten seconds, with the number of suppressed ones.

use shunt_latch::Time;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(10);

/// One kind of line.
#[derive(Debug, Default)]
pub struct Rare {
    next: Time,
    left_out: u64,
}

impl Rare {
    /// Returns how many lines were suppressed, if the line is to be written now.
    pub fn write(&mut self, now: Time) -> Option<u64> {
        if now < self.next {
            self.left_out += 1;
            return None;
        }
        self.next = now + PERIOD;
        Some(std::mem::take(&mut self.left_out))
    }
}
