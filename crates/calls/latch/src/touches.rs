//! Unknown sources at a port. A source that also sends to the other party's port is neither party.

use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::Packet;
use shunt_net::Endpoint;

/// Most sources remembered, and most of one address; the latest stay. A source that changes its port does not displace other addresses.
const MOST: usize = 4;
const MOST_OF_ADDRESS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Touch {
    source: Endpoint,
    /// `None` if its last packet was not RTP.
    ssrc: Option<u32>,
    last: Time,
}

/// The latest sources at a port with unsignalled addresses, except the latched source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    list: Vec<Touch>,
}

impl Touches {
    pub(crate) fn note(&mut self, packet: &Packet) {
        self.list.retain(|touch| touch.source != packet.source);
        let of_address = |touch: &Touch| touch.source.addr == packet.source.addr;
        let displaced = if self.list.iter().filter(|touch| of_address(touch)).count() >= MOST_OF_ADDRESS {
            self.list.iter().position(of_address)
        } else {
            (self.list.len() >= MOST).then_some(0)
        };
        displaced.map(|at| self.list.remove(at));
        self.list.push(Touch {
            source: packet.source,
            ssrc: packet.media.map(|media| media.ssrc),
            last: packet.at,
        });
    }

    /// Returns whether the packet's stream has recently come here.
    pub(crate) fn has_stream(&self, policy: &Policy, packet: &Packet) -> bool {
        let is_it = |touch: &Touch| touch.source == packet.source && touch.ssrc == packet.media.map(|media| media.ssrc);
        let lately = |touch: &Touch| packet.at.since(touch.last) < policy.former_hold;
        packet.media.is_some() && self.list.iter().any(|touch| is_it(touch) && lately(touch))
    }

    /// Returns whether a source has recently sent here.
    pub(crate) fn has_source(&self, policy: &Policy, now: Time, source: Endpoint) -> bool {
        let lately = |touch: &Touch| now.since(touch.last) < policy.former_hold;
        self.list.iter().any(|touch| touch.source == source && lately(touch))
    }
}
