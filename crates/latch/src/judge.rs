//! Judging packets: who is latched, and who is not.

use crate::candidate::Candidate;
use crate::former::Named;
use crate::holder::{Holder, Previous};
use crate::latch::Latch;
use crate::names::Rank;
use crate::parties::Parties;
use crate::policy::Policy;
use crate::scanners::{Scanners, Suspicion};
use crate::time::Time;
use crate::verdict::{Component, Facts, Ignored, Packet, Verdict};
use shunt_net::Endpoint;
use shunt_rtp::{Source, sequence};

impl Latch {
    /// Judge one packet. `facts`: when the latched source's last packet came, by who sees all of its packets and tells them by [`Latch::sync`]; `None` where its
    /// packets are not seen here.
    pub fn observe(&mut self, policy: &Policy, parties: &Parties, scanners: &Scanners, packet: &Packet, facts: Option<Facts>) -> Verdict {
        let (now, source) = (packet.at, packet.source);
        if self.asymmetric {
            return if self.names.has_address(source.addr) {
                Verdict::Known
            } else {
                Verdict::Ignored(Ignored::Asymmetric)
            };
        }
        if self.is_quarantined(now, source) {
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

    fn is_quarantined(&mut self, now: Time, source: Endpoint) -> bool {
        match self.quarantined.as_deref() {
            Some((_, until)) if now >= *until => {
                self.quarantined = None;
                false
            }
            Some((quarantined, _)) => *quarantined == source,
            None => false,
        }
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

    /// Names, parties and scanners change: so does what the latched source's claim is worth. A scanner loses it.
    fn review_holder(&mut self, parties: &Parties, scanners: &Scanners, now: Time) {
        let Some(source) = self.learned() else { return };
        let rank = self.rank_of(parties, scanners, now, source);
        let scans = scanners.suspicion(now, source).source && !rank.names_port();
        match &mut self.holder {
            Some(holder) if !scans => holder.rank = rank,
            _ => self.holder = None,
        }
    }

    /// A packet of some source while nothing is latched.
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
        self.candidates = candidates.and_then(|candidates| candidates.challengers(source, rank, policy, now));
        self.holder = Some(Holder::new(source, rank, media, now));
        Verdict::Latched
    }

    /// A packet of another source than the latched one.
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

    /// The source before a rebinding sends again: it has moved back, or it had never gone.
    fn come_back(&mut self, policy: &Policy, packet: &Packet, rank: Rank, facts: Option<Facts>) -> Option<Verdict> {
        let (holder, media) = (self.holder.as_ref()?, packet.media?);
        let previous = holder.previous.as_deref()?;
        if previous.source != packet.source || previous.ssrc != media.ssrc {
            return None;
        }
        let now = packet.at;
        // A late packet of the old path.
        if sequence::distance(media.sequence, previous.from) < 0 {
            return Some(Verdict::Ignored(Ignored::Mismatch));
        }
        let both_send = facts.is_none_or(|facts| now.since(facts.last_packet) < policy.rebind_silence);
        if !both_send {
            return None;
        }
        // The same numbers from both: one of them injects, and it is not who was there before.
        let overlap = holder
            .media
            .is_some_and(|newer| sequence::distance(media.sequence, newer.sequence) <= 0);
        if overlap && facts.is_some() {
            self.quarantined = Some(Box::new((holder.source, now + policy.rebind_lockout)));
        }
        self.slow_until = Some(now + policy.rebind_lockout);
        self.take(policy, packet.source, packet.media, rank, now);
        Some(Verdict::Restored)
    }

    /// What a challenger has shown, against the latched source. `seen`: the latter's packets come in here.
    fn decide(&mut self, policy: &Policy, now: Time, challenger: &Candidate, facts: Option<Facts>, seen: bool) -> Verdict {
        let Some(holder) = &self.holder else { return Verdict::Waiting };
        let ssrc = holder.media.map(|media| media.ssrc);
        if challenger.ssrc == ssrc && (ssrc.is_some() || self.component == Component::Rtcp) {
            return self.decide_rebinding(policy, now, challenger, facts);
        }
        let better = challenger.rank > holder.rank || (ssrc.is_none() && challenger.ssrc.is_some() && challenger.rank == holder.rank);
        let equal = challenger.rank == holder.rank;
        // At a shared address the signalled port is a better claim, but no identity: who has it and falls silent gives way.
        let beside = holder.rank == Rank::SharedPort && challenger.rank == Rank::Shared;
        let in_window = (equal || beside)
            && self
                .signalled
                .is_some_and(|signalled| now.since(signalled) < policy.signalling_window);
        let on_probation = (equal || beside) && self.on_probation(policy, now);
        let identity = challenger.rank.at_once();
        if !(better || in_window || on_probation || (equal && identity)) {
            return Verdict::Ignored(Ignored::Mismatch);
        }
        if !challenger.is_enough(policy) {
            return Verdict::Waiting;
        }
        let (source, media) = (challenger.source, media_of(challenger));
        if better {
            return self.take(policy, source, media, challenger.rank, now);
        }
        let Some(facts) = facts else { return Verdict::Ask };
        if now.since(facts.last_packet) >= if in_window { policy.signalling_silence } else { policy.silence } {
            return self.take(policy, source, media, challenger.rank, now);
        }
        if on_probation && seen && holder.has_only_touched(policy, now) {
            return self.take(policy, source, media, challenger.rank, now);
        }
        let stays = beside || (policy.last_resort && challenger.rank == Rank::Unknown);
        if on_probation && !stays {
            self.contest(policy, facts.last_packet)
        } else {
            Verdict::Ignored(Ignored::Mismatch)
        }
    }

    fn on_probation(&self, policy: &Policy, now: Time) -> bool {
        let since = self.holder.as_ref().and_then(|holder| holder.since);
        since.is_some_and(|since| now.since(self.answered.map_or(since, |answered| answered.max(since))) < policy.probation)
    }

    /// The same SSRC from another source. RTCP comes too rarely for a run: there, the address has to be named.
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

    /// The same SSRC goes on from another source; the one before comes back if it sends a later number after all.
    fn follow(&mut self, policy: &Policy, challenger: &Candidate, now: Time) -> Verdict {
        let before = self.holder.take();
        self.take(policy, challenger.source, media_of(challenger), challenger.rank, now);
        if let (Some(holder), Some(before)) = (&mut self.holder, before) {
            holder.since = before.since;
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

    /// Two sources claim the stream with equal right: neither has it.
    fn contest(&mut self, policy: &Policy, last_packet: Time) -> Verdict {
        if let Some(holder) = self.holder.take() {
            let (ssrc, sequence) = holder.media.map_or((None, 0), |media| (Some(media.ssrc), media.sequence));
            let contestant = Candidate::former_holder(holder.source, holder.rank, ssrc, sequence, last_packet, policy);
            self.candidates.get_or_insert_default().add(policy, contestant);
        }
        self.contested = true;
        Verdict::Contested
    }

    /// After [`Verdict::Ask`]: what is known of the latched source. The verdict is on the source that was asked for.
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
