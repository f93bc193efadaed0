//! The stream that a port had before: a phone that still sends into the port of its last call is not the next call's party.

use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{Component, Packet};
use shunt_net::Endpoint;
use shunt_rtp::Source;

/// Packets per second that are reckoned with while nobody looked.
const FASTEST: u128 = 500;

/// What is known of the stream that had a port before. [`crate::Latch::former`] makes it, [`crate::Latch::keep_out`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    pub source: Endpoint,
    /// SSRC and the last sequence number, if it sent media.
    pub media: Option<Source>,
    /// When that was.
    pub last: Time,
}

impl Former {
    /// Whether a packet goes on with the former stream; then that is noted. A new call of the same phone has another SSRC, or begins with
    /// another sequence number. `named`: signalling names the very source for the new call.
    pub(crate) fn goes_on(&mut self, policy: &Policy, component: Component, packet: &Packet, named: bool) -> bool {
        let goes_on = match (self.media, packet.media) {
            (Some(former), Some(media)) => {
                let allowed = u128::from(policy.max_step) + FASTEST * packet.at.since(self.last).as_millis() / 1000;
                let ahead = media.sequence.wrapping_sub(former.sequence);
                let near = u128::from(ahead) <= allowed || ahead.wrapping_neg() <= policy.max_reorder;
                former.ssrc == media.ssrc && (component == Component::Rtcp || near)
            }
            (_, None) => packet.source == self.source && !named,
            (None, Some(_)) => false,
        };
        if let (true, Some(media)) = (goes_on, packet.media) {
            (self.media, self.last) = (Some(media), packet.at);
        }
        goes_on
    }
}
