//! Makes one continuous stream of successive sources: a receiver sees one SSRC with continuous numbers and timestamps.

use crate::numbers::{Restarts, after, unsigned};
use shunt_rtp::Window;
use std::collections::VecDeque;
use std::time::Duration;

/// Step of a number after a silence from which on it is a pause; a smaller step means lost packets of a slow stream.
const GAP: i64 = 8;
/// First number, so that packets reordered before the first one still have a number.
const FIRST: i64 = 1000;
/// Remembered runs of removed packets: far more than lie between a packet and its retransmission.
const RUNS: usize = 128;

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Forward {
        /// Extended by its rollover counter, which begins at 0.
        sequence: u64,
        timestamp: u32,
        /// Whether it is the first packet of another source.
        switched: bool,
    },
    /// It belongs to another source than the present one.
    Other,
    /// Its number is before the source's first, was used already, or is too old to decide. Two packets with one number would reuse a nonce
    /// of the cipher (RFC 7714 section 5).
    Old,
}

/// The present source.
#[derive(Clone, Debug)]
struct Source {
    ssrc: u32,
    /// The highest number, extended; it starts in the middle, so that earlier numbers are positive.
    highest: i64,
    /// Its timestamp, if it was removed.
    left_out: Option<u32>,
    /// Added to the source's extended number.
    offset: i64,
    /// Earlier numbers: the second value was added below the first.
    before: VecDeque<(i64, i64)>,
    timestamp_offset: u32,
    /// Numbers below belong to the source before.
    floor: i64,
    restarts: Restarts,
}

impl Source {
    /// Returns the outgoing number; `None`: the packet was removed, or belongs to the source before.
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
    /// The used numbers.
    given: Window,
    /// The highest number and the last timestamp used.
    highest: i64,
    timestamp: u32,
    last: Duration,
    silence: Duration,
}

impl Continuity {
    /// `silence`: how long the source must be silent before another one replaces it.
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

    /// Returns the SSRC of the present source.
    #[must_use]
    pub fn ssrc(&self) -> Option<u32> {
        self.source.as_ref().map(|source| source.ssrc)
    }

    /// Returns whether a packet of this SSRC would be forwarded now.
    #[must_use]
    pub fn admits(&self, now: Duration, ssrc: u32) -> bool {
        self.source
            .as_ref()
            .is_none_or(|source| source.ssrc == ssrc || now.saturating_sub(self.last) >= self.silence)
    }

    /// Ends the source: the next one replaces it at once.
    pub fn leave(&mut self, ssrc: u32) {
        if self.ssrc() == Some(ssrc) {
            self.last = Duration::ZERO;
            self.source = None;
        }
    }

    /// Returns whether a source resumes after a pause: no packet came for so long that another source could replace it, and numbers are
    /// missing. So many are not requested again; the rest is treated as a new source.
    #[must_use]
    pub fn resumes(&self, now: Duration, ssrc: u32, sequence: u16) -> bool {
        self.source.as_ref().is_some_and(|source| {
            source.ssrc == ssrc && now.saturating_sub(self.last) >= self.silence && after(sequence, source.highest) > GAP
        })
    }

    /// Lets any source be the next one.
    pub fn release(&mut self) {
        self.source = None;
    }

    /// Processes a packet; `clock_rate` in Hz.
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
        // The low 32 bits, because a timestamp wraps.
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

    /// Removes a packet of the present source: the numbers after it leave no gap. Numbers missing between it and a packet removed just
    /// before with the same timestamp are removed too. If later numbers were used already, returns its own number and timestamp: an empty
    /// packet with them must be sent, so that no receiver waits for it.
    pub fn leave_out(&mut self, now: Duration, ssrc: u32, sequence: u16, timestamp: u32) -> Option<(u64, u32)> {
        let source = self.source.as_mut().filter(|source| source.ssrc == ssrc)?;
        let delta = after(sequence, source.highest);
        let number = source.highest + delta;
        let place = source.number(number).filter(|out| self.given.is_new(*out));
        if source.restarts.packet(sequence, timestamp, delta, place.is_none()) {
            // It starts anew with the next forwarded packet.
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
                        // Numbers before it cannot be decided any more.
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

    /// Converts a source's timestamp; `None` if it is not the present source.
    #[must_use]
    pub fn timestamp(&self, ssrc: u32, timestamp: u32) -> Option<u32> {
        let source = self.source.as_ref().filter(|source| source.ssrc == ssrc)?;
        Some(timestamp.wrapping_add(source.timestamp_offset))
    }
}
