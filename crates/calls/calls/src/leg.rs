//! One party of a media line.

use crate::ids::component_index;
use crate::sdp::Sdp;
use shunt_latch::{Component, Latch, Names, Time};
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Payload types of a party that are told apart.
const MOST_PAYLOAD_TYPES: usize = 8;

/// What an offer describes until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) signalled: Endpoint,
    pub(crate) modifiers: Arc<[u8]>,
    pub(crate) keepalive: Arc<[u8]>,
    pub(crate) asymmetric: bool,
}

/// What the relay's own counts say of a party of which the data plane has seen nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// It has counted no packet either.
    Silent,
    /// It gets packets that the data plane does not see.
    OnRelay,
}

/// What is known of a party.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) rtp: Latch,
    pub(crate) rtcp: Latch,
    /// Of the party's last U or L, a null address included.
    pub(crate) signalled: Option<Endpoint>,
    /// Where SDP wants RTCP, if a copy of it said so.
    pub(crate) signalled_rtcp: Option<Endpoint>,
    /// The relay address and port that the party sends to: of the reply to the OTHER party's command.
    pub(crate) relay: Option<Endpoint>,
    pub(crate) placed_at: Time,
    /// The relay has given the port to another call too.
    pub(crate) shares_port: bool,
    pub(crate) modifiers: Arc<[u8]>,
    /// The modifiers that a keep-alive repeats.
    pub(crate) keepalive: Arc<[u8]>,
    pub(crate) asymmetric: bool,
    /// What its last offer would change, which has no answer yet.
    pub(crate) offered: Option<Box<Offered>>,
    /// Where its RTP came from when it had another relay port.
    pub(crate) was_at: Option<IpAddr>,
    /// A packet at its RTP port was noticed.
    pub(crate) noticed: bool,
    /// When the relay was last asked for its count of the party, what it said first, and when.
    pub(crate) asked_at: Option<Time>,
    counted: Option<(u64, Time)>,
    pub(crate) evidence: Option<Evidence>,
    /// Its SDP has a=rtcp-mux.
    pub(crate) muxes: bool,
    /// Of an asymmetric party, for which nothing is latched: who sends from a named address.
    sources: Option<Box<[Option<Endpoint>; 2]>>,
    /// When a packet of the party's own source was last noticed.
    pub(crate) last_packet: [Option<Time>; 2],
    pub(crate) latched_at: Option<Time>,
    /// The first packet that may be its own, since learning began.
    pub(crate) first_packet: [Option<Time>; 2],
    /// Where its RTP came from before that is learned anew.
    pub(crate) last_source: Option<Endpoint>,
    pub(crate) mismatches: u64,
    pub(crate) payload_types: Vec<(u8, u32)>,
    /// The last one that a copy of SIP showed.
    pub(crate) sdp: Option<Sdp>,
    /// The addresses at which the party counts as one.
    pub(crate) joined: Vec<IpAddr>,
    /// The source filter in force at the relay port.
    pub(crate) filter: Option<Arc<[IpAddr]>>,
}

impl Leg {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            rtp: Latch::new(Component::Rtp),
            rtcp: Latch::new(Component::Rtcp),
            signalled: None,
            signalled_rtcp: None,
            relay: None,
            placed_at: now,
            shares_port: false,
            modifiers: Arc::default(),
            keepalive: Arc::default(),
            asymmetric: false,
            offered: None,
            was_at: None,
            noticed: false,
            asked_at: None,
            counted: None,
            evidence: None,
            muxes: false,
            sources: None,
            last_packet: [None; 2],
            latched_at: None,
            first_packet: [None; 2],
            last_source: None,
            mismatches: 0,
            payload_types: Vec::new(),
            sdp: None,
            joined: Vec::new(),
            filter: None,
        }
    }

    pub(crate) fn latch(&self, component: Component) -> &Latch {
        match component {
            Component::Rtp => &self.rtp,
            Component::Rtcp => &self.rtcp,
        }
    }

    pub(crate) fn latch_mut(&mut self, component: Component) -> &mut Latch {
        match component {
            Component::Rtp => &mut self.rtp,
            Component::Rtcp => &mut self.rtcp,
        }
    }

    /// Where the party's packets of a component arrive.
    pub(crate) fn relay_port(&self, component: Component) -> Option<Endpoint> {
        let relay = self.relay?;
        match component {
            Component::Rtp => Some(relay),
            Component::Rtcp => next_port(relay),
        }
    }

    /// The source whose packets are the party's.
    pub(crate) fn source(&self, component: Component) -> Option<Endpoint> {
        let noted = || self.sources.as_ref()?[component_index(component)];
        self.latch(component).learned().or_else(noted)
    }

    /// A packet of an asymmetric party, for which nothing is latched. Returns whether its source is new.
    pub(crate) fn note_source(&mut self, component: Component, source: Endpoint) -> bool {
        self.asymmetric && self.sources.get_or_insert_default()[component_index(component)].replace(source) != Some(source)
    }

    /// Whether a source is the party's RTCP although its address identifies nobody: the port above the one that its RTP was latched to, where
    /// signalling wants it. RTCP comes too rarely to show continuity.
    pub(crate) fn is_rtcp_of_party(&self, source: Endpoint) -> bool {
        self.rtcp.learned().is_none() && self.rtcp.names_source(source) && self.rtp.learned().and_then(next_port) == Some(source)
    }

    /// The party wants no media: a null address (RFC 3264 section 8.4) or port 0.
    pub(crate) fn is_held(&self) -> bool {
        self.signalled.is_some_and(|end| end.addr.is_unspecified() || end.port == 0)
    }

    /// The addresses that signalling names without a port.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.rtp.names().iter().filter(|name| name.port.is_none()).map(|name| name.addr)
    }

    /// It is another party from now on, of which no copy of SIP has told yet.
    pub(crate) fn is_another(&mut self, now: Time) {
        (self.sdp, self.muxes, self.signalled_rtcp) = (None, false, None);
        self.rtp.signal(now, Names::default());
        self.rtcp.signal(now, Names::default());
    }

    /// Learn anew.
    pub(crate) fn forget(&mut self, now: Time, policy: &shunt_latch::Policy, quarantine: bool) {
        self.last_source = self.source(Component::Rtp).or(self.last_source);
        self.rtp.forget(now, policy, quarantine);
        self.rtcp.forget(now, policy, quarantine);
        self.sources = None;
        self.last_packet = [None; 2];
        self.latched_at = None;
        self.first_packet = [None; 2];
        self.payload_types.clear();
        (self.asked_at, self.counted, self.evidence) = (None, None, None);
    }

    /// What was offered is agreed on. Returns whether the party has another address.
    pub(crate) fn agree(&mut self, offer: Offered) -> bool {
        let moved = self.signalled.is_some_and(|known| known != offer.signalled);
        self.offered = None;
        self.signalled = Some(offer.signalled);
        (self.modifiers, self.keepalive) = (offer.modifiers, offer.keepalive);
        self.asymmetric = offer.asymmetric;
        self.rtp.set_asymmetric(offer.asymmetric);
        self.rtcp.set_asymmetric(offer.asymmetric);
        moved
    }

    /// Notes how many RTP packets of the party the relay has counted in all. Packets from before a move are no evidence.
    pub(crate) fn relay_counted(&mut self, count: u64, now: Time, apart: Duration) {
        let before = self.counted.filter(|(before, _)| *before <= count);
        let (known, since) = *self.counted.insert(before.unwrap_or((count, now)));
        if count > known || (count > 0 && !self.noticed) {
            self.evidence = Some(Evidence::OnRelay);
        } else if count == 0 || now.since(since) >= apart {
            self.evidence.get_or_insert(Evidence::Silent);
        }
    }

    /// Where to send to this party: its latched address, else what signalling named.
    pub(crate) fn target(&self, component: Component) -> Option<Endpoint> {
        if self.is_held() {
            return None;
        }
        if let (false, Some(learned)) = (self.asymmetric, self.latch(component).learned()) {
            return Some(learned);
        }
        match component {
            Component::Rtp => self.signalled,
            Component::Rtcp => self.rtcp_target(),
        }
    }

    /// Whether it is known where RTCP reaches the party: it has sent some, or its RTP comes from where signalling says, so that no NAT is between.
    pub(crate) fn is_rtcp_reachable(&self) -> bool {
        let moved = self.rtp.learned().is_some_and(|learned| Some(learned) != self.signalled);
        self.asymmetric || self.rtcp.learned().is_some() || !moved
    }

    fn rtcp_target(&self) -> Option<Endpoint> {
        match self.rtp.learned() {
            // RTP comes from elsewhere than signalled and RTCP has not come yet: its neighbour, as rtpproxy guesses.
            Some(learned) if !self.asymmetric && Some(learned) != self.signalled => next_port(learned),
            _ => self.signalled_rtcp.or_else(|| next_port(self.signalled?)),
        }
    }

    pub(crate) fn count_payload_type(&mut self, payload_type: u8) {
        if let Some((_, count)) = self.payload_types.iter_mut().find(|(known, _)| *known == payload_type) {
            *count = count.saturating_add(1);
        } else if self.payload_types.len() < MOST_PAYLOAD_TYPES {
            self.payload_types.reserve_exact(1);
            self.payload_types.push((payload_type, 1));
        }
    }
}

/// The port above: that of RTCP (RFC 3550 section 11).
pub(crate) fn next_port(end: Endpoint) -> Option<Endpoint> {
    Some(Endpoint::new(end.addr, end.port.checked_add(1)?))
}
