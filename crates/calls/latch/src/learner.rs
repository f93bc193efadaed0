//! Learning for a whole process: all latches share policy, parties and scanners.

use crate::latch::Latch;
use crate::names::Names;
use crate::parties::Parties;
use crate::policy::Policy;
use crate::scanners::{Found, Scanners};
use crate::time::Time;
use crate::verdict::{Component, Facts, Ignored, Packet, Verdict};
use shunt_net::Endpoint;

/// State that the latches of a process share.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    pub policy: Policy,
    pub parties: Parties,
    pub scanners: Scanners,
}

impl Learner {
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Judges a packet at relay port `port` of a stream ([`Latch::observe`]), and detects scanners that touch the ports of several calls,
    /// or both ports of one. `elsewhere`: the packet's stream has come to the other party's port ([`Latch::has_met`]).
    pub fn observe(&mut self, latch: &mut Latch, elsewhere: bool, port: u16, packet: &Packet, facts: Option<Facts>) -> Verdict {
        if !latch.is_latched_to(packet.source) {
            if !latch.names_source(packet.source) {
                self.scanners.touched(packet.at, packet.source, port);
            }
            if !latch.names_address(packet.source.addr) {
                latch.touches.note(packet);
                if elsewhere {
                    return Verdict::Ignored(Ignored::Scanner);
                }
            }
        }
        latch.observe(&self.policy, &self.parties, &self.scanners, packet, facts)
    }

    /// Records a packet at a relay port without a call.
    pub fn missed(&mut self, now: Time, source: Endpoint, port: u16) -> Option<Found> {
        let is_party = self.parties.contains(source.addr);
        self.scanners.missed(now, source, port, is_party)
    }

    /// Makes a latch with the signalled names, except addresses that name no party.
    #[must_use]
    pub fn latch(&self, now: Time, component: Component, names: Names) -> Latch {
        let mut latch = Latch::new(component);
        latch.signal(now, self.nameable(names));
        latch
    }

    /// Removes the addresses of SIP servers, proxies and relays.
    #[must_use]
    pub fn nameable(&self, names: Names) -> Names {
        names.iter().filter(|name| !self.parties.is_own(name.addr)).copied().collect()
    }
}
