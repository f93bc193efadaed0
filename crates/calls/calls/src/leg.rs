//! One party of a media line.

use crate::ids::component_index;
use crate::sdp::Sdp;
use shunt_latch::{Component, Latch, Names, Time};
use shunt_net::Endpoint;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Number of payload types of a party that are counted separately.
const MOST_PAYLOAD_TYPES: usize = 8;

/// What an offer describes until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) signalled: Endpoint,
    pub(crate) modifiers: Arc<[u8]>,
    pub(crate) keepalive: Arc<[u8]>,
    pub(crate) asymmetric: bool,
}

/// The relay's packet counts for a party from which the data plane has seen nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The relay has counted no packet either.
    Silent,
    /// The relay receives packets that the data plane does not see.
    OnRelay,
}

/// State of a party.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) rtp: Latch,
    pub(crate) rtcp: Latch,
    /// Address in the party's last U or L, including a null address.
    pub(crate) signalled: Option<Endpoint>,
    /// Address for RTCP in a copy of its SDP.
    pub(crate) signalled_rtcp: Option<Endpoint>,
    /// Relay address and port that the party sends to, from the reply to the OTHER party's command.
    pub(crate) relay: Option<Endpoint>,
    pub(crate) placed_at: Time,
    /// The relay has also given the port to another call.
    pub(crate) shares_port: bool,
    pub(crate) modifiers: Arc<[u8]>,
    /// The modifiers that a keep-alive repeats.
    pub(crate) keepalive: Arc<[u8]>,
    pub(crate) asymmetric: bool,
    /// What its unanswered offer would change.
    pub(crate) offered: Option<Box<Offered>>,
    /// Source address of its RTP at its previous relay port.
    pub(crate) was_at: Option<IpAddr>,
    /// Whether a packet at its RTP port was noticed.
    pub(crate) noticed: bool,
    /// When the relay was last queried for the party's count; its first answer, and when.
    pub(crate) asked_at: Option<Time>,
    counted: Option<(u64, Time)>,
    pub(crate) evidence: Option<Evidence>,
    /// Whether its SDP has a=rtcp-mux.
    pub(crate) muxes: bool,
    /// Sources at a named address of an asymmetric party, for which nothing is latched.
    sources: Option<Box<[Option<Endpoint>; 2]>>,
    /// When a packet from the party's own source was last noticed.
    pub(crate) last_packet: [Option<Time>; 2],
    pub(crate) latched_at: Option<Time>,
    /// First packet since learning began that may be the party's.
    pub(crate) first_packet: [Option<Time>; 2],
    /// Source of its RTP before it is learned anew.
    pub(crate) last_source: Option<Endpoint>,
    pub(crate) mismatches: u64,
    pub(crate) payload_types: Vec<(u8, u32)>,
    /// Latest SDP in a copy of SIP.
    pub(crate) sdp: Option<Sdp>,
    /// Addresses that are counted as the party's.
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

    /// Returns where the party's packets of a component arrive.
    pub(crate) fn relay_port(&self, component: Component) -> Option<Endpoint> {
        let relay = self.relay?;
        match component {
            Component::Rtp => Some(relay),
            Component::Rtcp => next_port(relay),
        }
    }

    /// Returns the source whose packets are the party's.
    pub(crate) fn source(&self, component: Component) -> Option<Endpoint> {
        let noted = || self.sources.as_ref()?[component_index(component)];
        self.latch(component).learned().or_else(noted)
    }

    /// Notes a packet of an asymmetric party, for which nothing is latched. Returns whether its source is new.
    pub(crate) fn note_source(&mut self, component: Component, source: Endpoint) -> bool {
        self.asymmetric && self.sources.get_or_insert_default()[component_index(component)].replace(source) != Some(source)
    }

    /// Returns whether a source is the party's RTCP although its address identifies no party. It is if it has the port above the latched
    /// RTP port, where signalling expects RTCP. RTCP packets are too rare to show continuity.
    pub(crate) fn is_rtcp_of_party(&self, source: Endpoint) -> bool {
        self.rtcp.learned().is_none() && self.rtcp.names_source(source) && self.rtp.learned().and_then(next_port) == Some(source)
    }

    /// Returns whether the party wants no media: a null address (RFC 3264 section 8.4) or port 0.
    pub(crate) fn is_held(&self) -> bool {
        self.signalled.is_some_and(|end| end.addr.is_unspecified() || end.port == 0)
    }

    /// Returns the addresses that signalling names without a port.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.rtp.names().iter().filter(|name| name.port.is_none()).map(|name| name.addr)
    }

    /// Resets what is known, because the leg belongs to another party from now on.
    pub(crate) fn is_another(&mut self, now: Time) {
        (self.sdp, self.muxes, self.signalled_rtcp) = (None, false, None);
        self.rtp.signal(now, Names::default());
        self.rtcp.signal(now, Names::default());
    }

    /// Starts learning anew.
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

    /// Applies an agreed offer. Returns whether the party has another address.
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

    /// Notes the relay's total RTP packet count for the party. Packets from before a move are no evidence.
    pub(crate) fn relay_counted(&mut self, count: u64, now: Time, apart: Duration) {
        let before = self.counted.filter(|(before, _)| *before <= count);
        let (known, since) = *self.counted.insert(before.unwrap_or((count, now)));
        if count > known || (count > 0 && !self.noticed) {
            self.evidence = Some(Evidence::OnRelay);
        } else if count == 0 || now.since(since) >= apart {
            self.evidence.get_or_insert(Evidence::Silent);
        }
    }

    /// Returns where to send to this party: its latched address, else the signalled one.
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

    /// Returns whether RTCP is known to reach the party: it has sent RTCP, or its RTP comes from the signalled address, so that there is no
    /// NAT.
    pub(crate) fn is_rtcp_reachable(&self) -> bool {
        let moved = self.rtp.learned().is_some_and(|learned| Some(learned) != self.signalled);
        self.asymmetric || self.rtcp.learned().is_some() || !moved
    }

    fn rtcp_target(&self) -> Option<Endpoint> {
        match self.rtp.learned() {
            // The RTP source is not the signalled one and no RTCP has arrived: use the port above, as rtpproxy does.
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

/// Returns the port above, which is that of RTCP (RFC 3550 section 11).
pub(crate) fn next_port(end: Endpoint) -> Option<Endpoint> {
    Some(Endpoint::new(end.addr, end.port.checked_add(1)?))
}
