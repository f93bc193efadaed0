//! The state machine of one stream.

use crate::candidate::{Candidate, Candidates};
use crate::former::{Former, KeptOut};
use crate::holder::Holder;
use crate::names::{Name, Names, Rank};
use crate::policy::Policy;
use crate::time::Time;
use crate::touches::Touches;
use crate::verdict::{Component, Packet};
use shunt_net::Endpoint;
use shunt_rtp::Source;
use std::net::IpAddr;
use std::time::Duration;

/// A source that must not be latched until a time.
#[derive(Clone, Debug)]
pub(crate) struct Quarantined {
    pub(crate) source: Endpoint,
    pub(crate) until: Time,
    /// The latched state before signalling moved the party, because the source may still belong to the party. `None`: the source injected
    /// packets.
    pub(crate) holder: Option<Holder>,
}

/// The learned source of one stream: one party's RTP or RTCP.
#[derive(Clone, Debug)]
pub struct Latch {
    pub(crate) component: Component,
    pub(crate) asymmetric: bool,
    pub(crate) names: Names,
    pub(crate) holder: Option<Holder>,
    /// Contestants and challengers.
    pub(crate) candidates: Option<Box<Candidates>>,
    pub(crate) contested: bool,
    pub(crate) signalled: Option<Time>,
    pub(crate) answered: Option<Time>,
    pub(crate) quarantined: Option<Box<Quarantined>>,
    pub(crate) former: Option<Box<KeptOut>>,
    pub(crate) touches: Touches,
    /// Until this time rebindings need a longer silence, because one was an injection.
    pub(crate) slow_until: Option<Time>,
    /// Time of the last rebinding.
    pub(crate) moved: Option<Time>,
    /// Until this time the source is unstable and is latched only tentatively.
    pub(crate) unstable_until: Option<Time>,
}

impl Latch {
    #[must_use]
    pub fn new(component: Component) -> Self {
        Self {
            component,
            asymmetric: false,
            names: Names::default(),
            holder: None,
            candidates: None,
            contested: false,
            signalled: None,
            answered: None,
            quarantined: None,
            former: None,
            touches: Touches::default(),
            slow_until: None,
            moved: None,
            unstable_until: None,
        }
    }

    /// Returns the latched source.
    #[must_use]
    pub fn learned(&self) -> Option<Endpoint> {
        self.holder.as_ref().map(|holder| holder.source)
    }

    /// Returns the SSRC of the latched source.
    #[must_use]
    pub fn ssrc(&self) -> Option<u32> {
        self.holder.as_ref().and_then(|holder| holder.media).map(|media| media.ssrc)
    }

    /// Returns the rank of the latched source's claim.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        self.holder.as_ref().map(|holder| holder.rank)
    }

    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.contested
    }

    #[must_use]
    pub fn is_asymmetric(&self) -> bool {
        self.asymmetric
    }

    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the sources that a source filter must admit in addition to the signalled addresses. These are the latched source, or
    /// otherwise all sources with continuity, and the only source that sends, from [`Policy::guard`] after its first packet on. The party's
    /// source before a signalled move is also admitted. `quiet`: no port scan is under way ([`crate::Scanners::are_quiet`]), and no
    /// candidate has sent to other ports; otherwise a single source needs continuity.
    #[must_use]
    pub fn admitted(&self, policy: &Policy, now: Time, quiet: bool) -> Vec<Endpoint> {
        let candidates = self.candidates.iter().flat_map(|candidates| candidates.iter());
        let shown = candidates.filter(|candidate| self.holder.is_none() && candidate.is_enough(policy));
        let before = self.quarantined.iter().filter(|before| before.holder.is_some());
        let alone = self.alone(policy, now).map(|(candidate, _)| candidate);
        let alone = alone.filter(|candidate| quiet && !candidate.is_enough(policy));
        self.learned()
            .into_iter()
            .chain(before.map(|before| before.source))
            .chain(shown.chain(alone).map(|candidate| candidate.source))
            .collect()
    }

    fn alone(&self, policy: &Policy, now: Time) -> Option<(&Candidate, Time)> {
        let candidates = self.candidates.as_ref().filter(|_| self.holder.is_none())?;
        let (candidate, first) = candidates.alone(policy, now)?;
        (now.since(first) >= policy.guard).then_some((candidate, first))
    }

    /// Returns when [`Latch::admitted`] or [`Latch::tentative`] may change without a packet.
    #[must_use]
    pub fn review_due(&self, policy: &Policy) -> Option<Time> {
        let candidates = self.candidates.as_ref().filter(|_| self.holder.is_none())?;
        let first = candidates.iter().map(|candidate| candidate.first).max()?;
        Some(first.max(self.answered.unwrap_or(first)) + policy.guard)
    }

    /// Returns where a relay sends media for a party that is not latched yet: to the only source that sends, from its second packet on.
    /// Signalling must name its address, and its first packet must have come within [`Policy::signalling_window`] after the answer. A
    /// packet of another source ends this. These conditions exist because any host can send one packet, or touch every port.
    #[must_use]
    pub fn tentative(&self, policy: &Policy, now: Time) -> Option<Endpoint> {
        let (candidate, first) = self.alone(policy, now)?;
        let answered = self.answered?;
        let in_time = now.since(answered) >= policy.guard && first.since(answered) < policy.signalling_window;
        let goes_on = candidate.count > 1 && now.since(candidate.last) < policy.tentative_hold;
        let is_one = !self.contested && self.candidates.as_ref().is_some_and(|candidates| candidates.are_one());
        (in_time && goes_on && is_one && candidate.rank > Rank::Unknown).then_some(candidate.source)
    }

    /// Returns whether the party has sent nothing: no source is latched, has sent recently, or is quarantined.
    #[must_use]
    pub fn is_silent(&self, policy: &Policy, now: Time) -> bool {
        let sends = |candidate: &Candidate| now.since(candidate.last) < policy.former_hold;
        let any = self.candidates.iter().flat_map(|candidates| candidates.iter()).any(sends);
        let quarantined = self.quarantined.as_ref().is_some_and(|before| now < before.until);
        self.holder.is_none() && !self.contested && !any && !quarantined
    }

    /// Returns whether the party's source is unstable, so that its stream stays on the relay.
    #[must_use]
    pub fn is_unstable(&self, now: Time) -> bool {
        self.unstable_until.is_some_and(|until| now < until)
    }

    /// Returns when [`Latch::is_unstable`] ends.
    #[must_use]
    pub fn unstable_until(&self) -> Option<Time> {
        self.unstable_until
    }

    // -- signalling ------------------------------------------------------------------------------

    /// Replaces the party's names after a command or SDP. The party may move for [`Policy::signalling_window`].
    pub fn signal(&mut self, now: Time, names: Names) {
        self.names = names;
        self.signalled = Some(now);
    }

    /// Adds a name from a SIP copy, or for RTCP the address of the learned RTP source. Returns whether it is new.
    pub fn add_name(&mut self, name: Name) -> bool {
        self.names.add(name)
    }

    /// Records the answer of the call, after which parties start to send.
    pub fn answer_seen(&mut self, now: Time) {
        self.answered = Some(now);
    }

    /// Sets modifier A: nothing is latched, and every source at a signalled address is the party.
    pub fn set_asymmetric(&mut self, asymmetric: bool) {
        if asymmetric != self.asymmetric {
            self.asymmetric = asymmetric;
            self.release();
        }
    }

    pub(crate) fn release(&mut self) {
        self.holder = None;
        self.candidates = None;
        self.contested = false;
    }

    /// Starts learning again. `quarantine`: signalling has moved the party, so the former source is not latched for a while.
    pub fn forget(&mut self, now: Time, policy: &Policy, quarantine: bool) {
        let before = self.holder.take().filter(|_| quarantine);
        if let Some(holder) = before {
            self.quarantined = Some(Box::new(Quarantined {
                source: holder.source,
                until: now + policy.quarantine,
                holder: Some(holder),
            }));
        }
        (self.moved, self.unstable_until) = (None, None);
        self.release();
    }

    /// Takes over a source that another process had latched.
    pub fn adopt(&mut self, now: Time, source: Endpoint, media: Option<Source>) {
        self.release();
        let mut holder = Holder::new(source, Rank::Unknown, media, now);
        holder.since = None;
        self.holder = Some(holder);
    }

    /// Returns the stream for the port's next call, which keeps it out.
    #[must_use]
    pub fn former(&self) -> Option<Former> {
        let holder = self.holder.as_ref()?;
        Some(Former {
            source: holder.source,
            media: holder.media,
            last: holder.seen,
        })
    }

    /// Keeps out the stream of another call that had the port before and whose phone may still send.
    pub fn keep_out(&mut self, now: Time, policy: &Policy, former: Former) {
        self.former = Some(Box::new(KeptOut::new(former, now + policy.former_hold)));
    }

    /// Records a packet of the latched source, or its number from the counters of the forwarder, so that a rebinding can be recognised.
    pub fn sync(&mut self, now: Time, policy: &Policy, media: Source) {
        if let Some(holder) = &mut self.holder {
            holder.sync(policy, now, media);
        }
    }

    /// Returns whether a source is latched.
    #[must_use]
    pub fn is_latched_to(&self, source: Endpoint) -> bool {
        self.learned() == Some(source)
    }

    /// Returns whether signalling names this address and port.
    #[must_use]
    pub fn names_source(&self, source: Endpoint) -> bool {
        self.names.iter().any(|name| *name == source.into())
    }

    /// Removes a blocked source from the latch and from the candidates.
    pub fn expel(&mut self, source: Endpoint) {
        if let Some(candidates) = &mut self.candidates {
            candidates.remove(source);
        }
        if self.is_latched_to(source) {
            self.holder = None;
        }
    }

    /// Returns whether signalling names an address.
    #[must_use]
    pub fn names_address(&self, addr: IpAddr) -> bool {
        self.names.has_address(addr)
    }

    /// Returns whether the packet's stream is latched here with an unknown source, or has recently come from one. `packet`: a packet at the
    /// other party's port. A party sends to its own port only.
    #[must_use]
    pub fn has_met(&self, policy: &Policy, packet: &Packet) -> bool {
        let is_stream = packet.media.is_some_and(|media| self.ssrc() == Some(media.ssrc));
        let is_latched = is_stream && self.rank() == Some(Rank::Unknown) && self.is_latched_to(packet.source);
        is_latched || self.touches.has_stream(policy, packet)
    }

    /// Returns whether a candidate here has also sent to the other party's port.
    #[must_use]
    pub fn shares_candidates_with(&self, other: &Self, policy: &Policy, now: Time) -> bool {
        let mut candidates = self.candidates.iter().flat_map(|candidates| candidates.iter());
        candidates.any(|candidate| other.touches.has_source(policy, now, candidate.source))
    }

    /// Returns the number of candidates.
    #[must_use]
    pub fn candidate_count(&self) -> usize {
        self.candidates.as_ref().map_or(0, |candidates| candidates.len())
    }

    /// Returns the age of the latched source's last known sequence number.
    #[must_use]
    pub fn sync_age(&self, now: Time) -> Option<Duration> {
        self.holder.as_ref().map(|holder| now.since(holder.seen))
    }
}
