//! The latched source: its sequence numbers, and the source before a rebinding.

use crate::names::Rank;
use crate::policy::Policy;
use crate::time::Time;
use shunt_net::Endpoint;
use shunt_rtp::{Source, sequence};
use std::time::Duration;

/// Assumed packets per second before a measurement.
const USUAL_RATE: f32 = 50.0;
/// Lowest rate, in packets per second.
const SLOWEST_RATE: f32 = 0.1;
/// A source is silent after this many mean packet intervals.
const PAUSE: u32 = 3;
const SHORT_PAUSE: u32 = 2;
/// Minimum time over which a rate is measured.
const MEASURED: Duration = Duration::from_millis(100);
/// How far a new source may start behind the last known number, and how far ahead of what the rate predicts.
const BEHIND: u16 = 64;
const AHEAD: f32 = 100.0;
/// A wider window of numbers proves nothing.
const WIDEST: f32 = 20_000.0;

/// The source before a rebinding. It is restored if the rebinding was an injection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Previous {
    pub(crate) source: Endpoint,
    pub(crate) ssrc: u32,
    /// First number of the run that took over. A packet of the old source with this number or a later one was sent after the rebinding.
    pub(crate) from: u16,
}

/// The latched source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holder {
    pub(crate) source: Endpoint,
    pub(crate) rank: Rank,
    /// SSRC and sequence number at the last observation.
    pub(crate) media: Option<Source>,
    pub(crate) seen: Time,
    /// Packets per second, from the growth of the sequence number since `marked`.
    rate: f32,
    marked: Time,
    marked_sequence: u16,
    measured: bool,
    /// Observed packets in a row, and whether a run has ever been long enough.
    run: u32,
    steady: bool,
    /// When the source was latched; `None`: long ago.
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

    /// Records a packet of the latched source, or its numbers from another observer.
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

    /// Takes the packet interval that the source had as a candidate.
    pub(crate) fn sends_each(&mut self, interval: Duration) {
        if interval > MEASURED {
            self.measure(interval.as_secs_f32().recip());
        }
    }

    /// Returns the mean time between packets.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f32(self.rate.max(SLOWEST_RATE).recip())
    }

    /// Returns the pause after which the source is silent: `least`, or longer if it sends rarely.
    pub(crate) fn patience(&self, least: Duration) -> Duration {
        least.max(PAUSE * self.interval())
    }

    /// Returns the shorter pause, for cases in which a mistake costs nothing because the relay then gets both sources.
    pub(crate) fn short_patience(&self, least: Duration) -> Duration {
        least.max(SHORT_PAUSE * self.interval())
    }

    /// Returns whether the source has sent only single packets since it was latched, although it had time for a run.
    pub(crate) fn has_only_touched(&self, policy: &Policy, now: Time) -> bool {
        !self.steady && self.since.is_some_and(|since| now.since(since) > policy.max_gap)
    }

    /// Returns whether a run of the same SSRC that started at time `at` with number `first` continues this source. `known`: the source's
    /// last number from another observer.
    pub(crate) fn goes_on_with(&self, first: u16, at: Time, known: Option<u16>) -> bool {
        let Some(media) = self.media else { return false };
        let last = known.unwrap_or(media.sequence);
        let elapsed = if known.is_some() { Duration::ZERO } else { at.since(self.seen) };
        let window = AHEAD + 2.0 * self.rate.max(USUAL_RATE) * elapsed.as_secs_f32();
        let ahead = first.wrapping_sub(last);
        window <= WIDEST && (f32::from(ahead) <= window || ahead.wrapping_neg() <= BEHIND)
    }
}
