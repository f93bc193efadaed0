//! The state machine of one stream.

use crate::candidate::Candidates;
use crate::former::{Former, KeptOut};
use crate::holder::Holder;
use crate::names::{Name, Names, Rank};
use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::Component;
use shunt_net::Endpoint;
use shunt_rtp::Source;
use std::net::IpAddr;
use std::time::Duration;

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
    pub(crate) quarantined: Option<Box<(Endpoint, Time)>>,
    pub(crate) former: Option<Box<KeptOut>>,
    /// A rebinding went wrong: until then the next one is slow.
    pub(crate) slow_until: Option<Time>,
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
            slow_until: None,
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
    /// continuity.
    #[must_use]
    pub fn admitted(&self, policy: &Policy) -> Vec<Endpoint> {
        let candidates = self.candidates.iter().flat_map(|candidates| candidates.iter());
        let shown = candidates.filter(|candidate| self.holder.is_none() && candidate.is_enough(policy));
        self.learned().into_iter().chain(shown.map(|candidate| candidate.source)).collect()
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
        if let (true, Some(holder)) = (quarantine, &self.holder) {
            self.quarantined = Some(Box::new((holder.source, now + policy.quarantine)));
        }
        self.release();
    }

    /// The change in signalling was refused: the old source is as good as before.
    pub fn lift_quarantine(&mut self) {
        self.quarantined = None;
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
