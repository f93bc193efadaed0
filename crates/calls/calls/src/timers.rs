//! Timers of lines: a queue by time, in which a line's earliest entry counts.

use crate::ids::LineId;
use shunt_latch::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    queue: BinaryHeap<Reverse<(Time, LineId)>>,
}

impl Timers {
    /// `queued` is the line's timer so far: only an earlier one is entered, since a line looks for itself what is due.
    pub(crate) fn set(&mut self, line: LineId, queued: &mut Option<Time>, at: Time) {
        if queued.is_none_or(|queued| at < queued) {
            *queued = Some(at);
            self.queue.push(Reverse((at, line)));
        }
    }

    /// The next line whose timer may be due. Its time has to be compared with the line's own.
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
