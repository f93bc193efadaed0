//! The latched source: where its sequence numbers are, and what it was before a rebinding.

use crate::names::Rank;
use crate::policy::Policy;
use crate::time::Time;
use shunt_net::Endpoint;
use shunt_rtp::{Source, sequence};
use std::time::Duration;

/// Packets per second that are reckoned with until more is known.
const USUAL_RATE: f32 = 50.0;
/// The rate of one that sends less often.
const SLOWEST_RATE: f32 = 0.1;
/// The mean intervals without a packet after which a source is silent.
const PAUSE: u32 = 3;
const SHORT_PAUSE: u32 = 2;
/// Over how long a rate is measured at least.
const MEASURED: Duration = Duration::from_millis(100);
/// How far a new source may begin behind the last number known, and how far ahead beyond what the rate says.
const BEHIND: u16 = 64;
const AHEAD: f32 = 100.0;
/// A window of numbers that is larger proves nothing.
const WIDEST: f32 = 20_000.0;

/// The source before a rebinding, which comes back if that was an injection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Previous {
    pub(crate) source: Endpoint,
    pub(crate) ssrc: u32,
    /// The first number of the run that took over: a packet of the old source with this number or a later one was sent after it.
    pub(crate) from: u16,
}

/// The latched source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holder {
    pub(crate) source: Endpoint,
    pub(crate) rank: Rank,
    /// SSRC and sequence number when it was last looked at.
    pub(crate) media: Option<Source>,
    pub(crate) seen: Time,
    /// Packets per second, from the steps of the sequence number since the mark.
    rate: f32,
    marked: Time,
    marked_sequence: u16,
    measured: bool,
    /// Packets in a row, as far as they are seen here, and whether they have been enough once.
    run: u32,
    steady: bool,
    /// When it was latched; `None`: long ago.
    pub(crate) since: Option<Time>,
    pub(crate) previous: Option<Box<Previous>>,
}

impl Holder {
    pub(crate) fn new(source: Endpoint, rank: Rank, media: Option<Source>, now: Time) -> Self {
        Self {
            source,
            rank,
            media,
            seen: now,
            rate: USUAL_RATE,
            marked: now,
            marked_sequence: media.map_or(0, |media| media.sequence),
            measured: false,
            run: 1,
            steady: false,
            since: Some(now),
            previous: None,
        }
    }

    /// A packet of the latched source, or what is known of its numbers from elsewhere.
    pub(crate) fn sync(&mut self, policy: &Policy, now: Time, media: Source) {
        let same = self.media.is_some_and(|before| before.ssrc == media.ssrc);
        let goes_on = same && now.since(self.seen) <= policy.max_gap;
        self.run = if goes_on { self.run.saturating_add(1) } else { 1 };
        self.steady |= self.run >= policy.rival_packets;
        if !same {
            (self.rate, self.marked, self.marked_sequence, self.measured) = (USUAL_RATE, now, media.sequence, false);
        }
        let elapsed = now.since(self.marked);
        if elapsed >= MEASURED {
            let steps = sequence::distance(media.sequence, self.marked_sequence);
            if let Ok(steps) = u16::try_from(steps) {
                self.measure(f32::from(steps) / elapsed.as_secs_f32());
            }
            (self.marked, self.marked_sequence) = (now, media.sequence);
        }
        let newer = self
            .media
            .is_none_or(|before| sequence::distance(media.sequence, before.sequence) > 0);
        if newer || !same || elapsed >= MEASURED {
            self.media = Some(media);
        }
        self.seen = now;
    }

    fn measure(&mut self, rate: f32) {
        self.rate = if self.measured { (self.rate + rate) / 2.0 } else { rate };
        self.measured = true;
    }

    /// What its run as a candidate says of how often it sends.
    pub(crate) fn sends_each(&mut self, interval: Duration) {
        if interval > MEASURED {
            self.measure(interval.as_secs_f32().recip());
        }
    }

    /// The mean time between its packets.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f32(self.rate.max(SLOWEST_RATE).recip())
    }

    /// How long it must send nothing to count as silent: at least this time, and longer if it sends seldom.
    pub(crate) fn patience(&self, least: Duration) -> Duration {
        least.max(PAUSE * self.interval())
    }

    /// The same where a mistake costs nothing, because the relay gets both sources then.
    pub(crate) fn short_patience(&self, least: Duration) -> Duration {
        least.max(SHORT_PAUSE * self.interval())
    }

    /// Whether it has only touched the port, as far as that is seen here, though it had the time to send like a call does.
    pub(crate) fn has_only_touched(&self, policy: &Policy, now: Time) -> bool {
        !self.steady && self.since.is_some_and(|since| now.since(since) > policy.max_gap)
    }

    /// Whether a run of the same SSRC that began at a time with a number goes on where this source ended. `known`: its last number, if
    /// that is known from elsewhere.
    pub(crate) fn goes_on_with(&self, first: u16, at: Time, known: Option<u16>) -> bool {
        let Some(media) = self.media else { return false };
        let last = known.unwrap_or(media.sequence);
        let elapsed = if known.is_some() { Duration::ZERO } else { at.since(self.seen) };
        let window = AHEAD + 2.0 * self.rate.max(USUAL_RATE) * elapsed.as_secs_f32();
        let ahead = first.wrapping_sub(last);
        window <= WIDEST && (f32::from(ahead) <= window || ahead.wrapping_neg() <= BEHIND)
    }
}
