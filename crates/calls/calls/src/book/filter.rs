//! Source filters: until a stream is offloaded, a relay port takes packets of its party only.
//!
//! A relay such as rtpproxy latches to the first packet at a new port (CVE-2017-14114). The port therefore admits only the addresses that
//! signalling names and the sources that learning admits: the latched source, the contestants, or the only sender. So an attack interrupts
//! a party's audio no longer than the attack itself lasts. The port of a party whose source keeps changing is open. It is also open if the
//! relay itself identifies the party by ICE or a key.

use super::Book;
use crate::decision::Decision;
use crate::ids::{COMPONENTS, Side};
use crate::line::Line;
use crate::reason::Reason;
use shunt_latch::Time;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

impl Book {
    pub(super) fn sync_filters(&mut self, line: &mut Line, now: Time) {
        for side in Side::BOTH {
            let (Some(port), wanted) = (line.leg(side).relay, self.filter(line, side, now)) else {
                continue;
            };
            if wanted.as_deref() == line.leg(side).filter.as_deref() {
                continue;
            }
            let allowed: Option<Arc<[IpAddr]>> = wanted.map(Into::into);
            line.leg_mut(side).filter.clone_from(&allowed);
            self.out.push(Decision::Filter { port, allowed });
        }
    }

    pub(super) fn remove_filter(&mut self, line: &mut Line, side: Side) {
        let in_force = line.leg_mut(side).filter.take();
        if let (Some(port), Some(_)) = (line.leg(side).relay, in_force) {
            self.out.push(Decision::Filter { port, allowed: None });
        }
    }

    /// Returns when a port closes that is open because its party is still unknown.
    pub(super) fn filter_due(&self, line: &Line, side: Side, now: Time) -> Option<Time> {
        let leg = line.leg(side);
        let due = leg.placed_at + self.settings.filter_grace;
        (leg.relay.is_some() && leg.filter.is_none() && due > now && line.released.is_none()).then_some(due)
    }

    fn filter(&self, line: &Line, side: Side, now: Time) -> Option<Vec<IpAddr>> {
        let leg = line.leg(side);
        let port = leg.relay?;
        let verifies = self.relay(line.relay).is_none_or(|relay| relay.verifies_sources);
        let off = !self.settings.enabled || verifies || line.released.is_some() || line.suspended == Some(Reason::ByeSeen);
        // A filter covers an even port and the next one.
        let off = off || port.port % 2 == 1;
        if off || leg.asymmetric || leg.shares_port || leg.is_held() || !self.settings.listens_at(port) {
            return None;
        }
        // With ICE, a party may send from any address; with a shared key, the relay authenticates every sender.
        if matches!(line.described, Some(Reason::Ice | Reason::Dtls | Reason::Srtp)) {
            return Some(vec![everybody(port.addr)]);
        }
        if leg.rtp.is_unstable(now) {
            return Some(vec![everybody(port.addr)]);
        }
        let (policy, quiet) = (&self.learner.policy, self.learner.scanners.are_quiet(now));
        let mut allowed: Vec<IpAddr> = Vec::new();
        // A source that sends to both parties' ports is not admitted for being the only sender at one of them.
        let other = line.leg(side.other());
        let scans = |component| {
            let latch = leg.latch(component);
            COMPONENTS
                .iter()
                .any(|at| latch.shares_candidates_with(other.latch(*at), policy, now))
        };
        let admitted = COMPONENTS
            .into_iter()
            .flat_map(|component| leg.latch(component).admitted(policy, now, quiet && !scans(component)));
        for addr in admitted
            .map(|source| source.addr)
            .chain(leg.rtp.names().iter().rev().map(|name| name.addr))
        {
            let fits = addr.is_ipv4() == port.addr.is_ipv4() && !addr.is_unspecified();
            if fits && !allowed.contains(&addr) && allowed.len() < self.settings.filter_addresses {
                allowed.push(addr);
            }
        }
        allowed.sort_unstable();
        let known = !allowed.is_empty();
        (known || now >= leg.placed_at + self.settings.filter_grace).then_some(allowed)
    }
}

/// Returns the wildcard that admits every source of an address's IP version.
fn everybody(addr: IpAddr) -> IpAddr {
    if addr.is_ipv4() {
        Ipv4Addr::BROADCAST.into()
    } else {
        Ipv6Addr::from_bits(u128::MAX).into()
    }
}
