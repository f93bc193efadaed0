//! Judges packets: latches, contests, restores and ignores sources.

use crate::candidate::Candidate;
use crate::former::Named;
use crate::holder::{Holder, Previous};
use crate::latch::{Latch, Quarantined};
use crate::names::Rank;
use crate::parties::Parties;
use crate::policy::Policy;
use crate::scanners::{Scanners, Suspicion};
use crate::time::Time;
use crate::verdict::{Component, Facts, Ignored, Packet, Verdict};
use shunt_net::Endpoint;
use shunt_rtp::{Source, sequence};
use std::time::Duration;

/// A second move within this time makes the source unstable.
const ROAMING: Duration = Duration::from_secs(5);
/// How long an unstable source must keep its address before it is latched again.
const UNSTABLE: Duration = Duration::from_secs(30);

impl Latch {
    /// Judges one packet. `facts`: the time of the latched source's last packet, if the caller sees all its packets and reports them by
    /// [`Latch::sync`]; otherwise `None`.
    pub fn observe(&mut self, policy: &Policy, parties: &Parties, scanners: &Scanners, packet: &Packet, facts: Option<Facts>) -> Verdict {
        let (now, source) = (packet.at, packet.source);
        if self.asymmetric {
            return if self.names.has_address(source.addr) {
                Verdict::Known
            } else {
                Verdict::Ignored(Ignored::Asymmetric)
            };
        }
        if self.is_quarantined(policy, now, source) {
            return Verdict::Ignored(Ignored::Quarantined);
        }
        if self.is_former(policy, packet) {
            return Verdict::Ignored(Ignored::Former);
        }
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.source == source) {
            if let Some(media) = packet.media {
                holder.sync(policy, now, media);
            }
            return Verdict::Known;
        }
        if self.roams(packet) {
            return Verdict::Known;
        }
        let suspicion = scanners.suspicion(now, source);
        let rank = self.rank_of(parties, scanners, now, source);
        if (suspicion.source && !rank.names_port()) || (suspicion.address && rank == Rank::Unknown) {
            return Verdict::Ignored(Ignored::Scanner);
        }
        self.review_holder(parties, scanners, now);
        if self.holder.is_some() {
            self.challenge(policy, packet, rank, facts)
        } else {
            self.compete(policy, packet, rank, suspicion)
        }
    }

    fn is_quarantined(&mut self, policy: &Policy, now: Time, source: Endpoint) -> bool {
        match self.quarantined.as_deref() {
            Some(before) if now >= before.until => {
                let holder = before.holder.as_ref().filter(|_| self.holder.is_none());
                if let Some(holder) = holder {
                    // Signalling moved the party but its media stayed, so the source does not have to show continuity again.
                    let goes_on = Candidate::former_holder(holder, now, None, policy);
                    self.candidates.get_or_insert_default().add(policy, goes_on);
                }
                self.quarantined = None;
                false
            }
            Some(before) => before.source == source,
            None => false,
        }
    }

    /// Returns whether a packet comes from the latched, unstable source, and if so records its new address.
    fn roams(&mut self, packet: &Packet) -> bool {
        let unstable = self.is_unstable(packet.at);
        let Some(holder) = self.holder.as_mut().filter(|_| unstable) else {
            return false;
        };
        let same = match (holder.media, packet.media) {
            (Some(known), Some(media)) => known.ssrc == media.ssrc && holder.goes_on_with(media.sequence, packet.at, None),
            (None, None) => holder.source.addr == packet.source.addr,
            _ => false,
        };
        if same {
            holder.source = packet.source;
            holder.media = packet.media;
            self.unstable_until = Some(packet.at + UNSTABLE);
        }
        same
    }

    fn is_former(&mut self, policy: &Policy, packet: &Packet) -> bool {
        let Some(kept) = self.former.as_deref_mut() else { return false };
        let named = Named {
            addr: self.names.has_address(packet.source.addr),
            port: self.names.iter().any(|name| *name == packet.source.into()),
        };
        let (goes_on, over) = if kept.is_over(packet.at) {
            (false, true)
        } else {
            kept.goes_on(policy, self.component, packet, named)
        };
        if over {
            self.former = None;
        }
        goes_on
    }

    fn rank_of(&self, parties: &Parties, scanners: &Scanners, now: Time, source: Endpoint) -> Rank {
        if parties.is_own(source.addr) {
            return Rank::Unknown;
        }
        let suspicion = scanners.suspicion(now, source);
        let identity = !suspicion.source && !suspicion.address && !parties.is_shared(source.addr);
        self.names.rank(source, identity)
    }

    /// Reevaluates the latched source's rank, because names, parties and scanners change. A scanner loses its latch.
    fn review_holder(&mut self, parties: &Parties, scanners: &Scanners, now: Time) {
        let Some(source) = self.learned() else { return };
        let rank = self.rank_of(parties, scanners, now, source);
        let scans = scanners.suspicion(now, source).source && !rank.names_port();
        match &mut self.holder {
            Some(holder) if !scans => holder.rank = rank,
            _ => self.holder = None,
        }
    }

    /// Judges a packet while nothing is latched.
    fn compete(&mut self, policy: &Policy, packet: &Packet, rank: Rank, suspicion: Suspicion) -> Verdict {
        let now = packet.at;
        let candidates = self.candidates.get_or_insert_default();
        if rank.at_once() && !candidates.would_have_rival(packet, rank, policy) {
            return self.take(policy, packet.source, packet.media, rank, now);
        }
        let candidate = candidates.note(policy, self.component, packet, rank);
        let at_port = suspicion == Suspicion::default() && candidates.is_enough_at_port(&candidate, policy, now);
        if !at_port && !candidate.is_enough(policy) {
            return Verdict::Waiting;
        }
        if candidates.has_rival(&candidate, policy, now) && !candidates.is_alone(&candidate, policy, now) {
            self.contested = true;
            return Verdict::Contested;
        }
        self.take(policy, packet.source, packet.media, rank, now)
    }

    fn take(&mut self, policy: &Policy, source: Endpoint, media: Option<Source>, rank: Rank, now: Time) -> Verdict {
        let candidates = self.candidates.take();
        self.release();
        let interval = candidates
            .as_ref()
            .and_then(|candidates| candidates.get(source))
            .map(Candidate::interval);
        self.candidates = candidates.and_then(|candidates| candidates.challengers(source, rank, policy, now));
        let mut holder = Holder::new(source, rank, media, now);
        holder.sends_each(interval.unwrap_or_default());
        self.holder = Some(holder);
        (self.moved, self.unstable_until) = (None, None);
        Verdict::Latched
    }

    /// Judges a packet of a source other than the latched one.
    fn challenge(&mut self, policy: &Policy, packet: &Packet, rank: Rank, facts: Option<Facts>) -> Verdict {
        let now = packet.at;
        if let Some(verdict) = self.come_back(policy, packet, rank, facts) {
            return verdict;
        }
        if rank.at_once() && self.holder.as_ref().is_some_and(|holder| rank > holder.rank) {
            return self.take(policy, packet.source, packet.media, rank, now);
        }
        let candidate = self.candidates.get_or_insert_default().note(policy, self.component, packet, rank);
        self.decide(policy, now, &candidate, facts, facts.is_some())
    }

    /// Judges a packet of the source before a rebinding. The source has moved back, or it never moved.
    fn come_back(&mut self, policy: &Policy, packet: &Packet, rank: Rank, facts: Option<Facts>) -> Option<Verdict> {
        let (holder, media) = (self.holder.as_ref()?, packet.media?);
        let previous = holder.previous.as_deref()?;
        if previous.source != packet.source || previous.ssrc != media.ssrc {
            return None;
        }
        let now = packet.at;
        // A late packet from the old path.
        if sequence::distance(media.sequence, previous.from) < 0 {
            return Some(Verdict::Ignored(Ignored::Mismatch));
        }
        let both_send = facts.is_none_or(|facts| now.since(facts.last_packet) < policy.rebind_silence);
        if !both_send {
            return None;
        }
        // Both sources send the same numbers, so one of them injects: the one that was not there before.
        let overlap = holder
            .media
            .is_some_and(|newer| sequence::distance(media.sequence, newer.sequence) <= 0);
        if overlap && facts.is_some() {
            self.quarantined = Some(Box::new(Quarantined {
                source: holder.source,
                until: now + policy.rebind_lockout,
                holder: None,
            }));
        }
        self.slow_until = Some(now + policy.rebind_lockout);
        self.take(policy, packet.source, packet.media, rank, now);
        Some(Verdict::Restored)
    }

    /// Compares a challenger's run with the latched source. `seen`: the latched source's packets arrive here.
    fn decide(&mut self, policy: &Policy, now: Time, challenger: &Candidate, facts: Option<Facts>, seen: bool) -> Verdict {
        let Some(holder) = &self.holder else { return Verdict::Waiting };
        let ssrc = holder.media.map(|media| media.ssrc);
        if let Some(verdict) = self.decide_roaming(policy, now, challenger, facts) {
            return verdict;
        }
        let Some(holder) = &self.holder else { return Verdict::Waiting };
        if challenger.ssrc == ssrc && (ssrc.is_some() || self.component == Component::Rtcp) {
            return self.decide_rebinding(policy, now, challenger, facts);
        }
        let better = challenger.rank > holder.rank || (ssrc.is_none() && challenger.ssrc.is_some() && challenger.rank == holder.rank);
        let equal = challenger.rank == holder.rank;
        // At a shared address the signalled port is a better claim but no identity. Its holder gives way when it falls silent.
        let beside = holder.rank == Rank::SharedPort && challenger.rank == Rank::Shared;
        let in_window = (equal || beside)
            && self
                .signalled
                .is_some_and(|signalled| now.since(signalled) < policy.signalling_window);
        let on_probation = (equal || beside) && self.on_probation(policy, now);
        // A remote endpoint may move within its address without signalling, for example when another media server takes over.
        let named = self.component == Component::Rtp && challenger.rank > Rank::Unknown;
        if !(better || in_window || on_probation || named) {
            return Verdict::Ignored(Ignored::Mismatch);
        }
        let enough = challenger.is_enough(policy);
        if !(enough || named && challenger.count >= policy.rival_packets) {
            return Verdict::Waiting;
        }
        let (source, media) = (challenger.source, media_of(challenger));
        if better && enough {
            return self.take(policy, source, media, challenger.rank, now);
        }
        let Some(facts) = facts else { return Verdict::Ask };
        let (silent, identity) = (now.since(facts.last_packet), challenger.rank.at_once());
        if in_window || on_probation || identity {
            let least = if in_window { policy.signalling_silence } else { policy.silence };
            let only_touched = on_probation && seen && holder.has_only_touched(policy, now);
            match (enough, silent >= holder.patience(least) || only_touched) {
                (true, true) => return self.take(policy, source, media, challenger.rank, now),
                (false, true) => return Verdict::Waiting,
                (_, false) => {}
            }
        }
        let gone_after = if policy.last_resort {
            holder.patience(policy.rebind_silence)
        } else {
            holder.short_patience(policy.rebind_silence)
        };
        let seems_gone = named && silent >= gone_after;
        if seems_gone && policy.last_resort && identity && enough {
            return self.take(policy, source, media, challenger.rank, now);
        }
        let stays = beside || (policy.last_resort && challenger.rank == Rank::Unknown);
        if (seems_gone && !policy.last_resort) || (enough && on_probation && !stays) {
            // The relay gets both sources now and acts as it would without a data plane.
            let hold = (seems_gone && identity).then_some(policy.silence);
            return self.contest(policy, facts.last_packet, hold);
        }
        if enough {
            Verdict::Ignored(Ignored::Mismatch)
        } else {
            Verdict::Waiting
        }
    }

    /// Detects an unstable source, which moves twice in a few seconds or with each packet: its stream comes from several other sources, or
    /// from another source just after a rebinding.
    fn decide_roaming(&mut self, policy: &Policy, now: Time, challenger: &Candidate, facts: Option<Facts>) -> Option<Verdict> {
        let holder = self.holder.as_ref().filter(|_| self.component == Component::Rtp)?;
        let ssrc = holder.media.map(|media| media.ssrc);
        // A forger who knows the SSRC does not know the sequence numbers.
        let same = match ssrc {
            Some(_) => {
                let known = facts.as_ref().and_then(|facts| facts.sequence);
                challenger.ssrc == ssrc && holder.goes_on_with(challenger.first_sequence, challenger.first, known)
            }
            None => challenger.ssrc.is_none() && challenger.rank.at_once() && challenger.source.addr == holder.source.addr,
        };
        if !same {
            return None;
        }
        let moves_again = self.moved.is_some_and(|moved| now.since(moved) < ROAMING);
        let others = self
            .candidates
            .as_ref()
            .map_or(0, |candidates| candidates.count_of(ssrc, now.before(ROAMING)));
        if !moves_again {
            if others < 2 {
                return None;
            }
            let Some(facts) = facts else { return Some(Verdict::Ask) };
            if now.since(facts.last_packet) < policy.rebind_silence {
                return None;
            }
        }
        self.unstable_until = Some(now + UNSTABLE);
        self.candidates.iter_mut().for_each(|candidates| candidates.remove_stream(ssrc));
        if let Some(holder) = &mut self.holder {
            (holder.source, holder.media) = (challenger.source, media_of(challenger));
        }
        Some(Verdict::Moved)
    }

    fn on_probation(&self, policy: &Policy, now: Time) -> bool {
        let since = self.holder.as_ref().and_then(|holder| holder.since);
        since.is_some_and(|since| now.since(self.answered.map_or(since, |answered| answered.max(since))) < policy.probation)
    }

    /// Judges the same SSRC from another source. RTCP is too rare for a run, so its address must be signalled.
    fn decide_rebinding(&mut self, policy: &Policy, now: Time, challenger: &Candidate, facts: Option<Facts>) -> Verdict {
        let rtcp = self.component == Component::Rtcp;
        if rtcp && challenger.rank == Rank::Unknown {
            return Verdict::Ignored(Ignored::Mismatch);
        }
        if !rtcp && challenger.count < policy.rebind_packets {
            return Verdict::Waiting;
        }
        let Some(facts) = facts else { return Verdict::Ask };
        let goes_on = |holder: &Holder| holder.goes_on_with(challenger.first_sequence, challenger.first, facts.sequence);
        let fast = !rtcp && self.slow_until.is_none_or(|until| now >= until) && self.holder.as_ref().is_some_and(goes_on);
        let wanted = if fast { policy.rebind_silence } else { policy.silence };
        if now.since(facts.last_packet) < wanted {
            return if fast {
                Verdict::Waiting
            } else {
                Verdict::Ignored(Ignored::Mismatch)
            };
        }
        self.follow(policy, challenger, now)
    }

    /// Latches the new source of the same SSRC. The old source is restored if it later sends a higher number.
    fn follow(&mut self, policy: &Policy, challenger: &Candidate, now: Time) -> Verdict {
        let before = self.holder.take();
        self.take(policy, challenger.source, media_of(challenger), challenger.rank, now);
        if let (Some(holder), Some(before)) = (&mut self.holder, before) {
            holder.since = before.since;
            self.moved = Some(now);
            holder.previous = before.media.map(|media| {
                Box::new(Previous {
                    source: before.source,
                    ssrc: media.ssrc,
                    from: challenger.first_sequence,
                })
            });
        }
        Verdict::Moved
    }

    /// Two sources have equal claims: neither is latched.
    fn contest(&mut self, policy: &Policy, last_packet: Time, hold: Option<Duration>) -> Verdict {
        if let Some(holder) = self.holder.take() {
            let contestant = Candidate::former_holder(&holder, last_packet, hold, policy);
            self.candidates.get_or_insert_default().add(policy, contestant);
        }
        self.contested = true;
        Verdict::Contested
    }

    /// Answers [`Verdict::Ask`] with what is known of the latched source. The verdict concerns the challenger `source`.
    pub fn answer(&mut self, now: Time, policy: &Policy, source: Endpoint, facts: Facts) -> Verdict {
        let Some(challenger) = self.candidates.as_ref().and_then(|candidates| candidates.get(source)).copied() else {
            let known = self.learned() == Some(source);
            return if known {
                Verdict::Known
            } else {
                Verdict::Ignored(Ignored::Mismatch)
            };
        };
        if now.since(challenger.last) > policy.silence {
            return Verdict::Waiting;
        }
        self.decide(policy, now, &challenger, Some(facts), false)
    }
}

fn media_of(candidate: &Candidate) -> Option<Source> {
    candidate.ssrc.map(|ssrc| Source {
        ssrc,
        sequence: candidate.sequence,
    })
}
