//! One continuous stream out of several sources, one after the other: a receiver sees one SSRC whose numbers and timestamps go on.

use crate::numbers::{Restarts, after, unsigned};
use shunt_rtp::Window;
use std::collections::VecDeque;
use std::time::Duration;

/// After a silence a step beyond this is a pause: below it, a few packets of a slow stream were lost.
const GAP: i64 = 8;
/// Numbers begin here: what is reordered before the first packet still has one.
const FIRST: i64 = 1000;
/// Runs of packets that were left out and are remembered: far more than lie between a packet and its repetition.
const RUNS: usize = 128;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Forward {
        /// Extended by its rollover counter, which begins at 0.
        sequence: u64,
        timestamp: u32,
        /// The first of another source.
        switched: bool,
    },
    /// It is from another source than the one that goes on.
    Other,
    /// Its number is before the source's first, was given out already, or is too far back to tell. With the same number for two packets the
    /// cipher would use a nonce twice (RFC 7714 section 5).
    Old,
}

/// The source that goes on.
#[derive(Clone, Debug)]
struct Source {
    ssrc: u32,
    /// The highest number, extended; it begins somewhere in the middle so that earlier ones can be told.
    highest: i64,
    /// Its timestamp, if it was left out.
    left_out: Option<u32>,
    /// Added to the source's extended number.
    offset: i64,
    /// Earlier numbers: below the first, the second was added.
    before: VecDeque<(i64, i64)>,
    timestamp_offset: u32,
    /// Numbers below belong to the source before.
    floor: i64,
    restarts: Restarts,
}

impl Source {
    /// The outgoing number of one of the source; `None`: it was closed up, or belongs to the source before.
    fn number(&self, number: i64) -> Option<i64> {
        let at = self.before.partition_point(|(below, _)| *below <= number);
        let out = match self.before.get(at) {
            None => number + self.offset,
            Some((below, offset)) => {
                let next = self.before.get(at + 1).map_or(self.offset, |(_, offset)| *offset);
                Some(number + offset).filter(|out| *out < below + next)?
            }
        };
        (out >= self.floor).then_some(out)
    }
}

/// The state of one outgoing stream.
#[derive(Clone, Debug)]
pub struct Continuity {
    source: Option<Source>,
    /// Which numbers were given out.
    given: Window,
    /// The highest number and the last timestamp given out.
    highest: i64,
    timestamp: u32,
    last: Duration,
    silence: Duration,
}

impl Continuity {
    /// `silence`: how long the source must have been silent before another one goes on.
    #[must_use]
    pub fn new(silence: Duration) -> Self {
        Self {
            source: None,
            given: Window::default(),
            highest: FIRST - 1,
            timestamp: 0,
            last: Duration::ZERO,
            silence,
        }
    }

    /// The SSRC of the source that goes on.
    #[must_use]
    pub fn ssrc(&self) -> Option<u32> {
        self.source.as_ref().map(|source| source.ssrc)
    }

    /// Whether a packet of this SSRC would go on now.
    #[must_use]
    pub fn admits(&self, now: Duration, ssrc: u32) -> bool {
        self.source
            .as_ref()
            .is_none_or(|source| source.ssrc == ssrc || now.saturating_sub(self.last) >= self.silence)
    }

    /// The source has left: the next one goes on at once.
    pub fn leave(&mut self, ssrc: u32) {
        if self.ssrc() == Some(ssrc) {
            self.last = Duration::ZERO;
            self.source = None;
        }
    }

    /// Whether a source goes on after a pause: nothing came of it for as long as makes room for another one, and numbers are missing between. Of
    /// so many nobody is asked for again; what follows is as that of a new source.
    #[must_use]
    pub fn resumes(&self, now: Duration, ssrc: u32, sequence: u16) -> bool {
        self.source.as_ref().is_some_and(|source| {
            source.ssrc == ssrc && now.saturating_sub(self.last) >= self.silence && after(sequence, source.highest) > GAP
        })
    }

    /// Any source may go on now, whatever was before.
    pub fn release(&mut self) {
        self.source = None;
    }

    /// A packet came; `clock_rate` in Hz.
    pub fn packet(&mut self, now: Duration, ssrc: u32, sequence: u16, timestamp: u32, clock_rate: u32) -> Step {
        if let Some(source) = &mut self.source
            && source.ssrc == ssrc
        {
            let delta = after(sequence, source.highest);
            let number = source.highest + delta;
            let place = source.number(number).filter(|out| self.given.is_new(*out));
            if !source.restarts.packet(sequence, timestamp, delta, place.is_none()) {
                let Some(out) = place else {
                    return Step::Old;
                };
                self.given.note(out);
                if delta > 0 {
                    (source.highest, source.left_out) = (number, None);
                }
                self.last = now;
                let timestamp = timestamp.wrapping_add(source.timestamp_offset);
                if out > self.highest {
                    (self.highest, self.timestamp) = (out, timestamp);
                }
                return Step::Forward {
                    sequence: unsigned(out),
                    timestamp,
                    switched: false,
                };
            }
        } else if !self.admits(now, ssrc) {
            return Step::Other;
        }
        let first = self.highest < FIRST;
        let out = self.highest + 1;
        self.given.note(out);
        let number = i64::from(sequence) + (1 << 16);
        let ticks = now.saturating_sub(self.last).as_secs_f64() * f64::from(clock_rate);
        // The low 32 bits: a timestamp wraps.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let next = if first {
            timestamp
        } else {
            self.timestamp.wrapping_add((ticks as u64).max(1) as u32)
        };
        let restarts = self
            .source
            .as_ref()
            .filter(|source| source.ssrc == ssrc)
            .map_or_else(Restarts::default, |source| source.restarts);
        self.source = Some(Source {
            ssrc,
            highest: number,
            left_out: None,
            offset: out - number,
            before: VecDeque::new(),
            timestamp_offset: next.wrapping_sub(timestamp),
            floor: if first { 0 } else { out },
            restarts,
        });
        (self.highest, self.timestamp, self.last) = (out, next, now);
        Step::Forward {
            sequence: unsigned(out),
            timestamp: next,
            switched: true,
        }
    }

    /// A packet of the source that goes on is left out: the numbers after it close up. What is missing between it and one of the same timestamp that was
    /// left out just before is left out too. Where later numbers were given out already, its own is to be sent with nothing in it, so that nobody
    /// waits for it: its number and timestamp then.
    pub fn leave_out(&mut self, now: Duration, ssrc: u32, sequence: u16, timestamp: u32) -> Option<(u64, u32)> {
        let source = self.source.as_mut().filter(|source| source.ssrc == ssrc)?;
        let delta = after(sequence, source.highest);
        let number = source.highest + delta;
        let place = source.number(number).filter(|out| self.given.is_new(*out));
        if source.restarts.packet(sequence, timestamp, delta, place.is_none()) {
            // It begins anew with the next packet that goes on.
            self.source = None;
            return None;
        }
        self.last = now;
        if delta > 0 {
            let run = source.left_out == Some(timestamp);
            let closed = if run { delta } else { 1 };
            // A run has one entry.
            match source
                .before
                .back_mut()
                .filter(|(below, _)| source.left_out.is_some() && (run || delta == 1) && *below == source.highest + 1)
            {
                Some((below, _)) => *below = number + 1,
                None => {
                    if source.before.len() == RUNS {
                        // Numbers before it cannot be told any more.
                        let oldest = source.before.pop_front().map_or(0, |(below, _)| below);
                        let next = source.before.front().map_or(source.offset, |(_, offset)| *offset);
                        source.floor = source.floor.max(oldest + next);
                    }
                    source.before.push_back((number + 1, source.offset));
                }
            }
            source.offset -= closed;
            (source.highest, source.left_out) = (number, Some(timestamp));
            return None;
        }
        let out = place?;
        self.given.note(out);
        let timestamp = timestamp.wrapping_add(source.timestamp_offset);
        if out > self.highest {
            (self.highest, self.timestamp) = (out, timestamp);
        }
        Some((unsigned(out), timestamp))
    }

    /// The timestamp that a source's timestamp becomes; `None` if it is not the one that goes on.
    #[must_use]
    pub fn timestamp(&self, ssrc: u32, timestamp: u32) -> Option<u32> {
        let source = self.source.as_ref().filter(|source| source.ssrc == ssrc)?;
        Some(timestamp.wrapping_add(source.timestamp_offset))
    }
}
