//! What a receiver's downlink carries: from its estimates (REMB), its reports of loss, and what is sent to it.

use shunt_latch::Time;
use std::time::Duration;

/// A receiver without an estimate for so long is out; browsers send an estimate every 0.2 to 1 s.
pub const STALE: Duration = Duration::from_secs(5);
/// No estimate says more of a downlink than so many times what is sent.
pub const BEYOND: f64 = 1.5;

/// Shares of packets.
const FEW_LOST: f64 = 0.02;
const MANY_LOST: f64 = 0.1;
/// By so much the bound rises with a report of few losses.
const BOUND_RISE: f64 = 1.05;

/// What a receiver's reports of loss leave of its downlink (draft-ietf-rmcat-gcc-02, section 6), bit/s.
///
/// A receiver's own estimate is of delay alone: loss is for the sender of a call to judge, and in a conference for us.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossBound {
    /// `None`: nothing speaks for a bound.
    pub bitrate: Option<f64>,
}

impl LossBound {
    /// `lost`: share of the packets, 0 to 1; `sent`: bit/s that go to this receiver now. The bound goes when it has climbed beyond anything
    /// that an estimate says of what is sent. It never falls below what arrives: several reports come before less is sent.
    pub fn report(&mut self, lost: f64, sent: f64) {
        if lost > MANY_LOST {
            let bound = self.bitrate.map_or(sent, |bound| bound.min(sent)) * (1.0 - lost / 2.0);
            self.bitrate = Some(bound.max(sent * (1.0 - lost)));
        } else if lost < FEW_LOST {
            self.bitrate = self.bitrate.map(|bound| bound * BOUND_RISE).filter(|bound| *bound <= BEYOND * sent);
        }
    }
}

/// By so much more is sent to a receiver: its estimate, made of less, has to climb.
const GROWN: f64 = 1.1;
const RISE: f64 = 1.05;
const FALL: f64 = 0.95;
/// An estimate that falls below this share of what it was counts at once: more than one step of an encoder's burst.
const PLUNGE: f64 = 0.7;
/// A smaller fall has to last: a key frame for somebody who joins makes estimates dip for a moment.
const FALL_LASTS: Duration = Duration::from_secs(3);
/// So long an estimate may stand still while it has to climb.
pub const GRACE: Duration = Duration::from_secs(15);
/// What was sent so long ago counts no longer.
pub const RETRY: Duration = Duration::from_secs(30);

/// Whether a receiver's estimate is below what is sent because it only has to climb yet.
///
/// An estimate ends at about 1.5 times what arrived, and climbs some 8 % a second. So when more is sent, because somebody has joined or is
/// sent in a higher quality, it says nothing against that for as long as it climbs, or [`GRACE`] without climbing. One that falls does, until
/// more is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Climb {
    /// What was sent when it last had grown, bit/s, and when as much was last sent.
    sent: f64,
    sent_at: Option<Time>,
    /// The estimate that it must not fall below.
    base: f64,
    /// When it began to climb, or climbed last.
    since: Option<Time>,
    fell_at: Option<Time>,
    /// The highest estimate of the last [`STALE`]: what is sent is measured later than it arrives.
    peak: f64,
    peak_at: Option<Time>,
    later: bool,
}

impl Climb {
    /// What the receiver's downlink is taken to carry, from its estimate and from what is sent to it (bit/s).
    pub fn carries(&mut self, bitrate: f64, sent: f64, now: Time) -> f64 {
        if bitrate >= self.peak || self.peak_at.is_none_or(|at| now.since(at) > STALE) {
            (self.peak, self.peak_at) = (bitrate, Some(now));
        }
        if sent > GROWN * self.sent {
            self.later = self.sent > 0.0;
            (self.base, self.since, self.fell_at) = (self.peak, Some(now), None);
            (self.sent, self.sent_at) = (sent, Some(now));
        } else if sent >= self.sent {
            // Less than a step more: the step is reckoned from where the last one was, so that many small ones are one.
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
            // There is no room, and there was none before: nothing climbs.
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

    /// It climbs from nothing, as that of a receiver does who has just come.
    #[must_use]
    pub fn is_first(&self) -> bool {
        !self.later
    }
}

/// What each sender counts for in a receiver's downlink: the one place that says what a sender of unknown rate weighs.
///
/// It weighs nothing in what is sent, because the estimate was made without it, and so it takes nothing from the others. Its own share is
/// that of an average sender, besides.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    sent: Vec<f64>,
    total: f64,
    typical: f64,
}

impl Weights {
    /// `sent`: bit/s of each sender that goes to the receiver now; 0: not known.
    #[must_use]
    pub fn new(sent: Vec<f64>) -> Self {
        let known = sent.iter().filter(|rate| **rate > 0.0).count();
        let total: f64 = sent.iter().sum();
        let typical = if known > 0 { total / known as f64 } else { 1.0 };
        Self { sent, total, typical }
    }

    /// bit/s that go to the receiver now; 0: not known.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }

    /// The share of each sender in an estimate about all of them.
    #[must_use]
    pub fn split(&self, bitrate: f64) -> Vec<f64> {
        let total = if self.total > 0.0 { self.total } else { self.sent.len() as f64 };
        let weight = |rate: &f64| if *rate > 0.0 { *rate } else { self.typical };
        self.sent.iter().map(|rate| bitrate * weight(rate) / total).collect()
    }
}
