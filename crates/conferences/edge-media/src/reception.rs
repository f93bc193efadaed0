//! Reception of a stream: loss and jitter for reports (RFC 3550 sections 6.4.1 and A.8), and numbers to request again.

use crate::numbers::{Restarts, after, low};
use shunt_rtp::rtcp::Report;
use std::collections::VecDeque;
use std::time::Duration;

/// Most numbers per request; of a larger gap the latest.
const MISSING: i64 = 128;
const FEW: usize = 128;
/// How long a gap counts as reordering.
const REORDERED: Duration = Duration::from_millis(5);
/// Interval of repeated requests, and their number.
const AGAIN: Duration = Duration::from_millis(40);
const TRIES: u8 = 4;

#[derive(Clone, Copy, Debug)]
struct Missing {
    sequence: i64,
    due: Duration,
    tries: u8,
}

/// The state of one stream.
#[derive(Clone, Debug)]
pub struct Reception {
    pub ssrc: u32,
    base: i64,
    highest: i64,
    received: i64,
    expected_before: i64,
    received_before: i64,
    transit: Option<f64>,
    jitter: f64,
    missing: VecDeque<Missing>,
    report: Option<(u64, Duration)>,
    restarts: Restarts,
    /// Packets that filled a gap.
    pub repaired: u64,
}

impl Reception {
    #[must_use]
    pub fn new(ssrc: u32, sequence: u16) -> Self {
        let first = i64::from(sequence) + (1 << 16);
        Self {
            ssrc,
            base: first,
            highest: first - 1,
            received: 0,
            expected_before: 0,
            received_before: 0,
            transit: None,
            jitter: 0.0,
            missing: VecDeque::new(),
            report: None,
            restarts: Restarts::default(),
            repaired: 0,
        }
    }

    /// Processes a packet.
    pub fn packet(&mut self, now: Duration, sequence: u16, timestamp: u32, clock_rate: u32) {
        let delta = after(sequence, self.highest);
        let number = self.highest + delta;
        let fills = self.missing.iter().position(|one| one.sequence == number);
        if self.restarts.packet(sequence, timestamp, delta, fills.is_none()) {
            *self = Self {
                report: self.report,
                restarts: self.restarts,
                ..Self::new(self.ssrc, sequence)
            };
            self.packet(now, sequence, timestamp, clock_rate);
            return;
        }
        self.received += 1;
        if delta > 0 {
            for sequence in (self.highest + 1).max(number - MISSING)..number {
                if self.missing.len() == FEW {
                    self.missing.pop_front();
                }
                self.missing.push_back(Missing {
                    sequence,
                    due: now + REORDERED,
                    tries: 0,
                });
            }
            self.highest = number;
            let arrival = now.as_secs_f64() * f64::from(clock_rate);
            let transit = arrival - f64::from(timestamp);
            if let Some(before) = self.transit {
                let difference = (transit - before).abs();
                // A timestamp that wrapped, or a changed clock, is no jitter.
                if difference < f64::from(clock_rate) {
                    self.jitter += (difference - self.jitter) / 16.0;
                }
            }
            self.transit = Some(transit);
        } else if let Some(at) = fills {
            self.missing.remove(at);
            self.repaired += 1;
        }
    }

    /// Processes a sender report.
    pub fn sender_report(&mut self, now: Duration, ntp: u64) {
        self.report = Some((ntp, now));
    }

    /// Returns the packets missing so far.
    #[must_use]
    pub fn lost(&self) -> i64 {
        self.highest - self.base + 1 - self.received
    }

    /// In units of the clock.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        self.jitter
    }

    /// Returns the numbers to request now.
    pub fn due(&mut self, now: Duration) -> Vec<u16> {
        let mut due = Vec::new();
        self.missing.retain_mut(|one| {
            if one.due > now {
                return true;
            }
            if one.tries == TRIES {
                return false;
            }
            one.tries += 1;
            one.due = now + AGAIN;
            due.push(low(one.sequence));
            true
        });
        due
    }

    /// Returns when [`Self::due`] may return numbers.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.missing.iter().map(|one| one.due).min()
    }

    /// Returns a report block; losses count from the last one.
    pub fn block(&mut self, now: Duration) -> Report {
        let expected = self.highest - self.base + 1;
        let expected_now = expected - self.expected_before;
        let received_now = self.received - self.received_before;
        (self.expected_before, self.received_before) = (expected, self.received);
        let lost_now = (expected_now - received_now).max(0);
        // lost_now <= expected_now, so it is at most 255 of 256.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let fraction_lost = if expected_now > 0 {
            (lost_now * 256 / expected_now).min(255) as u8
        } else {
            0
        };
        let (lsr, dlsr) = self.report.map_or((0, 0), |(ntp, at)| {
            let since = now.saturating_sub(at).as_secs_f64() * 65536.0;
            // The middle 32 bits; and a delay of less than 18 hours.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            ((ntp >> 16) as u32, since as u32)
        });
        // Fields of 24 and 32 bits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Report {
            ssrc: self.ssrc,
            fraction_lost,
            cumulative_lost: self.lost().clamp(-(1 << 23), (1 << 23) - 1) as i32,
            highest_sequence: (self.highest - (1 << 16)) as u32,
            jitter: self.jitter as u32,
            lsr,
            dlsr,
        }
    }
}
