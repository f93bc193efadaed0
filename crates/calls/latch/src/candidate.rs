//! Tracks sources that are not latched, and how much continuity each has shown.

use crate::holder::Holder;
use crate::names::Rank;
use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{Component, Packet};
use shunt_net::Endpoint;
use std::time::Duration;

/// Scores that separate a call from a scanner. A candidate above the first score sends at a call's rate, and rivals below the second score
/// are scanners. A rate above a call's does not strengthen the claim.
const LIVELY_SCORE: f32 = 15.0;
const RARE_SCORE: f32 = 6.0;
/// Half-life of a packet's weight in the score.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// A run ends after a pause of this many mean packet intervals.
const PAUSE: u32 = 3;

/// One source and its run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) source: Endpoint,
    pub(crate) rank: Rank,
    /// `None` until the source has sent RTP or RTCP.
    pub(crate) ssrc: Option<u32>,
    pub(crate) sequence: u16,
    pub(crate) first_sequence: u16,
    pub(crate) first: Time,
    pub(crate) last: Time,
    pub(crate) count: u32,
    /// How long the source stays a rival after its last packet; `None`: for [`Policy::contest_hold`].
    hold: Option<Duration>,
    score: f32,
}

impl Candidate {
    fn new(packet: &Packet, rank: Rank) -> Self {
        let (ssrc, sequence) = packet.media.map_or((None, 0), |media| (Some(media.ssrc), media.sequence));
        let (source, at) = (packet.source, packet.at);
        Self {
            source,
            rank,
            ssrc,
            sequence,
            first_sequence: sequence,
            first: at,
            last: at,
            count: 1,
            hold: None,
            score: 1.0,
        }
    }

    /// Makes a candidate of a formerly latched source, with a run of sufficient length. `last`: time of its last packet. `hold`: how long
    /// it then stays a rival.
    pub(crate) fn former_holder(holder: &Holder, last: Time, hold: Option<Duration>, policy: &Policy) -> Self {
        let sequence = holder.media.map_or(0, |media| media.sequence);
        let run = (holder.interval() * policy.packets).max(policy.guard);
        Self {
            source: holder.source,
            rank: holder.rank,
            ssrc: holder.media.map(|media| media.ssrc),
            sequence,
            first_sequence: sequence,
            first: last.before(run),
            last,
            count: policy.packets,
            hold,
            score: 0.0,
        }
    }

    /// Counts one more packet of the source: the packet continues the run, after a pause of any length, or starts a new run.
    fn note(&mut self, policy: &Policy, component: Component, packet: &Packet, rank: Rank) {
        self.rank = rank;
        let now = packet.at;
        let score = self.score_at(now) + 1.0;
        match (self.ssrc, packet.media) {
            // A packet between media packets, such as STUN.
            (Some(_), None) => return,
            (None, None) => self.count += 1,
            (Some(ssrc), Some(media)) if ssrc == media.ssrc => {
                let ahead = media.sequence.wrapping_sub(self.sequence);
                match component {
                    Component::Rtcp => self.count += 1,
                    // A repeated packet shows no continuity.
                    Component::Rtp if ahead == 0 => return,
                    Component::Rtp if ahead <= policy.max_step => {
                        self.count += 1;
                        self.sequence = media.sequence;
                    }
                    Component::Rtp if ahead.wrapping_neg() <= policy.max_reorder => {}
                    Component::Rtp => *self = Self::new(packet, rank),
                }
            }
            _ => *self = Self::new(packet, rank),
        }
        self.last = now;
        self.score = score;
    }

    /// Returns whether the source has shown continuity.
    pub(crate) fn is_enough(&self, policy: &Policy) -> bool {
        self.count >= policy.packets && self.last.since(self.first) >= policy.guard
    }

    /// Returns whether the run suffices for a source at the signalled port.
    fn is_enough_at_port(&self, policy: &Policy) -> bool {
        self.count >= policy.port_packets.min(policy.packets) && self.last.since(self.first) >= policy.port_guard.min(policy.guard)
    }

    fn score_at(&self, now: Time) -> f32 {
        self.score * 0.5_f32.powf(now.since(self.last).as_secs_f32() / HALF_LIFE.as_secs_f32())
    }

    /// Returns the mean time between packets.
    pub(crate) fn interval(&self) -> Duration {
        self.last.since(self.first) / self.count.saturating_sub(1).max(1)
    }

    /// Returns whether the source has sent only single packets, or has ended its run. The measure is its own interval, because a party may
    /// send rarely.
    fn is_rare(&self, policy: &Policy, now: Time) -> bool {
        let pause = now.since(self.last);
        let over = pause > policy.max_gap.max(PAUSE * self.interval());
        let touches = !self.is_enough(policy) && (pause > policy.max_gap || self.last.since(self.first) > HALF_LIFE);
        self.score_at(now) < RARE_SCORE && (over || touches)
    }

    /// Returns whether this source rivals another one: it has the same rank or a better one, and does not send non-media beside media.
    fn rivals(&self, other: &Self, policy: &Policy, now: Time) -> bool {
        self.source != other.source
            && self.rank >= other.rank
            && (self.ssrc.is_some() || other.ssrc.is_none())
            && self.count >= policy.rival_packets
            && now.since(self.last) < self.hold.unwrap_or(policy.contest_hold)
    }

    /// Returns whether the source counts beside one at another address: it has just sent a packet, or it sends more packets than a scanner.
    fn is_beside(&self, policy: &Policy, now: Time) -> bool {
        now.since(self.last) < policy.silence || (self.count >= policy.rival_packets && now.since(self.last) < policy.contest_hold)
    }
}

/// The candidates of one stream, limited to [`Policy::candidates`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Candidates {
    list: Vec<Candidate>,
}

impl Candidates {
    /// Counts a packet and returns its candidate.
    pub(crate) fn note(&mut self, policy: &Policy, component: Component, packet: &Packet, rank: Rank) -> Candidate {
        if let Some(known) = self.list.iter_mut().find(|candidate| candidate.source == packet.source) {
            known.note(policy, component, packet, rank);
            return *known;
        }
        let new = Candidate::new(packet, rank);
        self.make_room(policy.candidates);
        self.list.push(new);
        new
    }

    /// Adds a contestant that has shown continuity before.
    pub(crate) fn add(&mut self, policy: &Policy, candidate: Candidate) {
        self.list.retain(|known| known.source != candidate.source);
        self.make_room(policy.candidates);
        self.list.push(candidate);
    }

    fn make_room(&mut self, most: usize) {
        while self.list.len() >= most.max(1) {
            let order = |at: &usize| (self.list[*at].rank, self.list[*at].count, self.list[*at].last);
            let Some(weakest) = (0..self.list.len()).min_by_key(order) else {
                return;
            };
            self.list.swap_remove(weakest);
        }
    }

    pub(crate) fn get(&self, source: Endpoint) -> Option<&Candidate> {
        self.list.iter().find(|candidate| candidate.source == source)
    }

    pub(crate) fn remove(&mut self, source: Endpoint) {
        self.list.retain(|candidate| candidate.source != source);
    }

    /// Removes the sources of one stream.
    pub(crate) fn remove_stream(&mut self, ssrc: Option<u32>) {
        self.list.retain(|candidate| candidate.ssrc != ssrc);
    }

    /// Returns the candidates that still send with at least this rank after `latched` was latched; `None` if there are none.
    pub(crate) fn challengers(mut self: Box<Self>, latched: Endpoint, rank: Rank, policy: &Policy, now: Time) -> Option<Box<Self>> {
        let goes_on = |candidate: &Candidate| now.since(candidate.last) <= policy.max_gap;
        self.list
            .retain(|candidate| candidate.source != latched && candidate.rank >= rank && goes_on(candidate));
        (!self.list.is_empty()).then_some(self)
    }

    /// Returns whether a source at the signalled port has completed its run, and no other source at a signalled address has sent recently.
    pub(crate) fn is_enough_at_port(&self, candidate: &Candidate, policy: &Policy, now: Time) -> bool {
        let sends = |other: &Candidate| other.rank > Rank::Unknown && now.since(other.last) < policy.contest_hold;
        let others = || self.list.iter().filter(|other| other.source != candidate.source);
        candidate.rank.names_port() && candidate.is_enough_at_port(policy) && !others().any(sends)
    }

    pub(crate) fn has_rival(&self, candidate: &Candidate, policy: &Policy, now: Time) -> bool {
        self.list.iter().any(|other| other.rivals(candidate, policy, now))
    }

    /// Returns whether a source would have a rival with its first packet.
    pub(crate) fn would_have_rival(&self, packet: &Packet, rank: Rank, policy: &Policy) -> bool {
        self.has_rival(&Candidate::new(packet, rank), policy, packet.at)
    }

    /// Returns whether a candidate sends at a call's rate and all others send too rarely to be rivals.
    pub(crate) fn is_alone(&self, candidate: &Candidate, policy: &Policy, now: Time) -> bool {
        let mut others = self.list.iter().filter(|other| other.source != candidate.source);
        candidate.score >= LIVELY_SCORE && others.all(|other| other.is_rare(policy, now))
    }

    /// Returns the latest source, if all recent packets came from its address, and the time of that address's first packet.
    pub(crate) fn alone(&self, policy: &Policy, now: Time) -> Option<(&Candidate, Time)> {
        let latest = self.list.iter().max_by_key(|candidate| candidate.last)?;
        let here = |candidate: &&Candidate| candidate.source.addr == latest.source.addr;
        let beside = self.list.iter().any(|other| !here(&other) && other.is_beside(policy, now));
        let first = self.list.iter().filter(here).map(|candidate| candidate.first).min()?;
        (!beside && now.since(latest.last) < policy.former_hold).then_some((latest, first))
    }

    /// Returns whether all candidates have the same SSRC.
    pub(crate) fn are_one(&self) -> bool {
        self.list.windows(2).all(|pair| pair[0].ssrc == pair[1].ssrc)
    }

    /// Returns the number of sources that have sent this SSRC since `since`.
    pub(crate) fn count_of(&self, ssrc: Option<u32>, since: Time) -> usize {
        self.list
            .iter()
            .filter(|candidate| candidate.ssrc == ssrc && candidate.last >= since)
            .count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.list.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}
