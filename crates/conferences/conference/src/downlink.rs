//! Estimates the capacity of a receiver's downlink from its estimates (REMB), its loss reports, and the rate sent to it.

use shunt_latch::Time;
use std::time::Duration;

/// An estimate older than this is ignored; browsers send one every 0.2 to 1 s.
pub const STALE: Duration = Duration::from_secs(5);
/// An estimate proves no more capacity than this multiple of the rate sent.
pub const BEYOND: f64 = 1.5;

/// Shares of lost packets.
const FEW_LOST: f64 = 0.02;
const MANY_LOST: f64 = 0.1;
/// Factor by which the bound rises after a report with few losses.
const BOUND_RISE: f64 = 1.05;

/// Bound on a receiver's downlink that follows from its loss reports (draft-ietf-rmcat-gcc-02, section 6), bit/s.
///
/// A receiver's own estimate reflects only delay. In a call the sender evaluates loss; in a conference the agent does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossBound {
    /// `None`: no bound.
    pub bitrate: Option<f64>,
}

impl LossBound {
    /// `lost`: share of the packets, 0 to 1; `sent`: bit/s that go to this receiver now. The bound is removed once it exceeds what an
    /// estimate can prove at the present rate. It never falls below the rate that arrives, because several reports arrive before the rate
    /// falls.
    pub fn report(&mut self, lost: f64, sent: f64) {
        if lost > MANY_LOST {
            let bound = self.bitrate.map_or(sent, |bound| bound.min(sent)) * (1.0 - lost / 2.0);
            self.bitrate = Some(bound.max(sent * (1.0 - lost)));
        } else if lost < FEW_LOST {
            self.bitrate = self.bitrate.map(|bound| bound * BOUND_RISE).filter(|bound| *bound <= BEYOND * sent);
        }
    }
}

/// Factor by which the rate sent must grow before the estimate is given time to climb.
const GROWN: f64 = 1.1;
const RISE: f64 = 1.05;
const FALL: f64 = 0.95;
/// An estimate below this share of its former value counts at once, because it is more than one burst of an encoder.
const PLUNGE: f64 = 0.7;
/// A smaller fall must last this long, because the key frame for a new participant makes estimates dip briefly.
const FALL_LASTS: Duration = Duration::from_secs(3);
/// How long an estimate may stand still while it is expected to climb.
pub const GRACE: Duration = Duration::from_secs(15);
/// How long a rate sent in the past counts.
pub const RETRY: Duration = Duration::from_secs(30);

/// Detects whether a receiver's estimate is below the rate sent only because it is still climbing.
///
/// An estimate is limited to about 1.5 times the rate that arrived, and climbs by about 8 % per second. After the rate sent grows, because
/// a participant has joined or the quality was raised, the estimate is not a limit while it climbs, or for [`GRACE`] without climbing. A
/// falling estimate is a limit until the rate sent grows again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Climb {
    /// The rate sent when it last grew, bit/s, and when this rate was last sent.
    sent: f64,
    sent_at: Option<Time>,
    /// The estimate must not fall below this value.
    base: f64,
    /// When the estimate started to climb, or last climbed.
    since: Option<Time>,
    fell_at: Option<Time>,
    /// The highest estimate of the last [`STALE`], because the rate sent is measured later than it arrives.
    peak: f64,
    peak_at: Option<Time>,
    later: bool,
}

impl Climb {
    /// Returns the assumed capacity of the downlink, from the receiver's estimate and the rate sent to it (bit/s).
    pub fn carries(&mut self, bitrate: f64, sent: f64, now: Time) -> f64 {
        if bitrate >= self.peak || self.peak_at.is_none_or(|at| now.since(at) > STALE) {
            (self.peak, self.peak_at) = (bitrate, Some(now));
        }
        if sent > GROWN * self.sent {
            self.later = self.sent > 0.0;
            (self.base, self.since, self.fell_at) = (self.peak, Some(now), None);
            (self.sent, self.sent_at) = (sent, Some(now));
        } else if sent >= self.sent {
            // A growth below one step keeps the former reference, so that many small steps add up to one.
            self.sent_at = Some(now);
        } else if self.sent_at.is_none_or(|at| now.since(at) > RETRY) {
            (self.sent, self.sent_at) = (sent, Some(now));
        }
        self.judge(bitrate, now);
        let climbing = self.since.is_some_and(|since| now.since(since) < GRACE);
        if climbing { bitrate.max(1.001 * sent) } else { bitrate }
    }

    fn judge(&mut self, bitrate: f64, now: Time) {
        if bitrate <= 0.0 {
            // The downlink had no room before, so the estimate will not climb.
            self.since = None;
        } else if bitrate >= RISE * self.base {
            (self.base, self.since, self.fell_at) = (bitrate, Some(now), None);
        } else if bitrate >= FALL * self.base {
            self.fell_at = None;
        } else {
            let fell_at = *self.fell_at.get_or_insert(now);
            if bitrate < PLUNGE * self.base || now.since(fell_at) >= FALL_LASTS {
                self.since = None;
            }
        }
    }

    /// Returns whether the estimate climbs from zero, as for a new receiver.
    #[must_use]
    pub fn is_first(&self) -> bool {
        !self.later
    }
}

/// Weights of the senders in a receiver's downlink, including senders of unknown rate.
///
/// A sender of unknown rate has no weight in the rate sent, because the estimate was made without it. It therefore takes no share from the
/// others. Its own share, in addition, is that of an average sender.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    sent: Vec<f64>,
    total: f64,
    typical: f64,
}

impl Weights {
    /// `sent`: bit/s of each sender that go to the receiver now; 0: unknown.
    #[must_use]
    pub fn new(sent: Vec<f64>) -> Self {
        let known = sent.iter().filter(|rate| **rate > 0.0).count();
        let total: f64 = sent.iter().sum();
        let typical = if known > 0 { total / known as f64 } else { 1.0 };
        Self { sent, total, typical }
    }

    /// Returns the bit/s that go to the receiver now; 0: unknown.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns each sender's share of an estimate that covers all of them.
    #[must_use]
    pub fn split(&self, bitrate: f64) -> Vec<f64> {
        let total = if self.total > 0.0 { self.total } else { self.sent.len() as f64 };
        let weight = |rate: &f64| if *rate > 0.0 { *rate } else { self.typical };
        self.sent.iter().map(|rate| bitrate * weight(rate) / total).collect()
    }
}
