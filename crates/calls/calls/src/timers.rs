//! Timers of lines: a queue ordered by time. Only a line's earliest entry counts.

use crate::ids::LineId;
use shunt_latch::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    queue: BinaryHeap<Reverse<(Time, LineId)>>,
}

impl Timers {
    /// Sets a line's timer. `queued` is the timer so far: only an earlier one is added, because the line itself checks what is due.
    pub(crate) fn set(&mut self, line: LineId, queued: &mut Option<Time>, at: Time) {
        if queued.is_none_or(|queued| at < queued) {
            *queued = Some(at);
            self.queue.push(Reverse((at, line)));
        }
    }

    /// Returns the next line whose timer may be due. The caller compares its time with the line's own.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, LineId)> {
        let Reverse((at, _)) = self.queue.peek()?;
        if *at > now {
            return None;
        }
        self.queue.pop().map(|Reverse(timer)| timer)
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }
}
