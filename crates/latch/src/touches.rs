//! Unknown sources at a port: who also sends to the other party's port is neither party.

use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::Packet;
use shunt_net::Endpoint;
use std::net::IpAddr;

/// Sources that are remembered: the latest.
const MOST: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Touch {
    source: Endpoint,
    /// `None` where its last packet was not RTP.
    ssrc: Option<u32>,
    last: Time,
}

/// The latest sources at a port whose address signalling does not name, the latched source excepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    list: Vec<Touch>,
}

impl Touches {
    pub(crate) fn note(&mut self, packet: &Packet) {
        self.list.retain(|touch| touch.source != packet.source);
        if self.list.len() >= MOST {
            self.list.remove(0);
        }
        self.list.push(Touch {
            source: packet.source,
            ssrc: packet.media.map(|media| media.ssrc),
            last: packet.at,
        });
    }

    /// Whether the packet's stream has come here lately.
    pub(crate) fn has_stream(&self, policy: &Policy, packet: &Packet) -> bool {
        let is_it = |touch: &Touch| touch.source == packet.source && touch.ssrc == packet.media.map(|media| media.ssrc);
        let lately = |touch: &Touch| packet.at.since(touch.last) < policy.former_hold;
        packet.media.is_some() && self.list.iter().any(|touch| is_it(touch) && lately(touch))
    }

    /// Whether a source at an address has sent here lately.
    pub(crate) fn has_address(&self, policy: &Policy, now: Time, addr: IpAddr) -> bool {
        let lately = |touch: &Touch| now.since(touch.last) < policy.former_hold;
        self.list.iter().any(|touch| touch.source.addr == addr && lately(touch))
    }
}
