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

/// A source that is not latched for a while.
#[derive(Clone, Debug)]
pub(crate) struct Quarantined {
    pub(crate) source: Endpoint,
    pub(crate) until: Time,
    /// What it was latched with, where signalling has moved the party: it may be the party's still. `None`: it injected packets.
    pub(crate) holder: Option<Holder>,
}

/// The learned source of one stream: of one party, RTP or RTCP.
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
    /// A rebinding went wrong: until then the next one is slow.
    pub(crate) slow_until: Option<Time>,
    /// When a rebinding was last followed.
    pub(crate) moved: Option<Time>,
    /// The source does not stay put: until then it is not latched for good.
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

    /// The latched source.
    #[must_use]
    pub fn learned(&self) -> Option<Endpoint> {
        self.holder.as_ref().map(|holder| holder.source)
    }

    /// The SSRC of the latched source.
    #[must_use]
    pub fn ssrc(&self) -> Option<u32> {
        self.holder.as_ref().and_then(|holder| holder.media).map(|media| media.ssrc)
    }

    /// How good the latched source's claim is.
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

    /// The sources that a filter before the port must let in besides the named addresses: the latched one, or all that have shown
    /// continuity, or the only one that sends, from [`Policy::guard`] after its first packet on; and the one that the party had before
    /// signalling moved it. `quiet`: no port scan is under way ([`crate::Scanners::are_quiet`]), and no
    /// candidate has sent to other ports than its own; else only continuity counts.
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

    /// When [`Latch::admitted`] or [`Latch::tentative`] may come to another result without a packet.
    #[must_use]
    pub fn review_due(&self, policy: &Policy) -> Option<Time> {
        let candidates = self.candidates.as_ref().filter(|_| self.holder.is_none())?;
        let first = candidates.iter().map(|candidate| candidate.first).max()?;
        Some(first.max(self.answered.unwrap_or(first)) + policy.guard)
    }

    /// Where a relay sends to a party that is not latched yet: to the only source that sends, from its second packet on, if signalling names its
    /// address and its first packet came within [`Policy::signalling_window`] after the answer. A packet of another source ends that. Anyone can
    /// send one packet, or touch every port.
    #[must_use]
    pub fn tentative(&self, policy: &Policy, now: Time) -> Option<Endpoint> {
        let (candidate, first) = self.alone(policy, now)?;
        let answered = self.answered?;
        let in_time = now.since(answered) >= policy.guard && first.since(answered) < policy.signalling_window;
        let goes_on = candidate.count > 1 && now.since(candidate.last) < policy.tentative_hold;
        let is_one = !self.contested && self.candidates.as_ref().is_some_and(|candidates| candidates.are_one());
        (in_time && goes_on && is_one && candidate.rank > Rank::Unknown).then_some(candidate.source)
    }

    /// Whether nothing has come from the party that may be its own: no source is latched, none has sent lately, and none is quarantined.
    #[must_use]
    pub fn is_silent(&self, policy: &Policy, now: Time) -> bool {
        let sends = |candidate: &Candidate| now.since(candidate.last) < policy.former_hold;
        let any = self.candidates.iter().flat_map(|candidates| candidates.iter()).any(sends);
        let quarantined = self.quarantined.as_ref().is_some_and(|before| now < before.until);
        self.holder.is_none() && !self.contested && !any && !quarantined
    }

    /// Whether the party's source does not stay put: it is to be left to the relay.
    #[must_use]
    pub fn is_unstable(&self, now: Time) -> bool {
        self.unstable_until.is_some_and(|until| now < until)
    }

    /// When [`Latch::is_unstable`] ends.
    #[must_use]
    pub fn unstable_until(&self) -> Option<Time> {
        self.unstable_until
    }

    // -- signalling ------------------------------------------------------------------------------

    /// A command or SDP names the party (again): these are its names from now on, and it may move for a while.
    pub fn signal(&mut self, now: Time, names: Names) {
        self.names = names;
        self.signalled = Some(now);
    }

    /// One more name: a copy of SIP, or for RTCP the address that RTP was learned from.
    pub fn add_name(&mut self, name: Name) -> bool {
        self.names.add(name)
    }

    /// The call was answered: parties begin to send.
    pub fn answer_seen(&mut self, now: Time) {
        self.answered = Some(now);
    }

    /// Modifier A: nothing is latched, and who sends from a named address is the party.
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

    /// Learn anew. `quarantine`: signalling has moved the party, so the source so far is not latched for a while.
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

    /// What another process had latched.
    pub fn adopt(&mut self, now: Time, source: Endpoint, media: Option<Source>) {
        self.release();
        let mut holder = Holder::new(source, Rank::Unknown, media, now);
        holder.since = None;
        self.holder = Some(holder);
    }

    /// The stream as the next call at its port has to keep it out.
    #[must_use]
    pub fn former(&self) -> Option<Former> {
        let holder = self.holder.as_ref()?;
        Some(Former {
            source: holder.source,
            media: holder.media,
            last: holder.seen,
        })
    }

    /// The port was another call's, whose phone may still send.
    pub fn keep_out(&mut self, now: Time, policy: &Policy, former: Former) {
        self.former = Some(Box::new(KeptOut::new(former, now + policy.former_hold)));
    }

    /// A packet of the latched source, or its number by the counts of who forwards its packets: so that a rebinding is recognised.
    pub fn sync(&mut self, now: Time, policy: &Policy, media: Source) {
        if let Some(holder) = &mut self.holder {
            holder.sync(policy, now, media);
        }
    }

    /// Whether a source is latched.
    #[must_use]
    pub fn is_latched_to(&self, source: Endpoint) -> bool {
        self.learned() == Some(source)
    }

    /// Whether signalling names this very source.
    #[must_use]
    pub fn names_source(&self, source: Endpoint) -> bool {
        self.names.iter().any(|name| *name == source.into())
    }

    /// A source is blocked elsewhere: it is no candidate any more, and not latched.
    pub fn expel(&mut self, source: Endpoint) {
        if let Some(candidates) = &mut self.candidates {
            candidates.remove(source);
        }
        if self.is_latched_to(source) {
            self.holder = None;
        }
    }

    /// Whether an address is named.
    #[must_use]
    pub fn names_address(&self, addr: IpAddr) -> bool {
        self.names.has_address(addr)
    }

    /// Whether the packet's stream has come to this port lately, from an unknown source. `packet`: of the other party's port; a party sends to its own
    /// port only.
    #[must_use]
    pub fn has_met(&self, policy: &Policy, packet: &Packet) -> bool {
        self.touches.has_stream(policy, packet)
    }

    /// Whether an address of the candidates here has sent to the other party's port too.
    #[must_use]
    pub fn shares_candidates_with(&self, other: &Self, policy: &Policy, now: Time) -> bool {
        let mut candidates = self.candidates.iter().flat_map(|candidates| candidates.iter());
        candidates.any(|candidate| other.touches.has_address(policy, now, candidate.source.addr))
    }

    /// How many sources are told apart now.
    #[must_use]
    pub fn candidate_count(&self) -> usize {
        self.candidates.as_ref().map_or(0, |candidates| candidates.len())
    }

    /// How long ago the latched source's number was last brought up to date.
    #[must_use]
    pub fn sync_age(&self, now: Time) -> Option<Duration> {
        self.holder.as_ref().map(|holder| now.since(holder.seen))
    }
}
