//! Keeps the stream of a port's previous call out of the next call: a phone may still send there.

use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{Component, Packet};
use shunt_net::Endpoint;
use shunt_rtp::Source;

/// Assumed packets per second while the stream was not observed: upper and lower bound.
const FASTEST: u128 = 500;
const SLOWEST: u128 = 10;

/// The stream that had a port before. [`crate::Latch::former`] makes it, [`crate::Latch::keep_out`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    pub source: Endpoint,
    /// SSRC and last sequence number, if it sent media.
    pub media: Option<Source>,
    /// Time of its last packet.
    pub last: Time,
}

/// A former stream that is kept out of the port's present call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptOut {
    former: Former,
    until: Time,
    /// Another source with the same SSRC has its own stream, so only the former source is kept out.
    own_source_alone: bool,
}

/// Relation of a packet to the former stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    GoesOn,
    /// The SSRC is the same, but the stream belongs to the new call, for example a replayed recording.
    Anew,
    None,
}

/// Whether signalling names the address and port of a packet's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) addr: bool,
    pub(crate) port: bool,
}

impl KeptOut {
    pub(crate) fn new(former: Former, until: Time) -> Self {
        Self {
            former,
            until,
            own_source_alone: false,
        }
    }

    pub(crate) fn is_over(&self, now: Time) -> bool {
        now >= self.until
    }

    /// Returns whether a packet continues the former stream, and whether the stream no longer needs to be kept out. Records the packet.
    pub(crate) fn goes_on(&mut self, policy: &Policy, component: Component, packet: &Packet, named: Named) -> (bool, bool) {
        let own = packet.source == self.former.source;
        if self.own_source_alone && !own {
            return (false, false);
        }
        match self.former.kinship(policy, component, packet, named) {
            Kinship::GoesOn => {
                if let Some(media) = packet.media {
                    (self.former.media, self.former.last) = (Some(media), packet.at);
                }
                (true, false)
            }
            Kinship::Anew => {
                self.own_source_alone = true;
                (false, own)
            }
            Kinship::None => (false, false),
        }
    }
}

impl Former {
    /// A new call of the same phone has another SSRC, or starts with another sequence number. A new call of another phone may have the same
    /// SSRC and numbers if both play one recording. Then signalling names its address, or its numbers differ from those that the former
    /// stream must have reached.
    fn kinship(&self, policy: &Policy, component: Component, packet: &Packet, named: Named) -> Kinship {
        let own = packet.source == self.source;
        let (Some(former), Some(media)) = (self.media, packet.media) else {
            let goes_on = packet.media.is_none() && own && !named.port;
            return if goes_on { Kinship::GoesOn } else { Kinship::None };
        };
        if former.ssrc != media.ssrc {
            return Kinship::None;
        }
        let elsewhere = named.port || (named.addr && packet.source.addr != self.source.addr);
        if !own && (elsewhere || (component == Component::Rtcp && named.addr)) {
            return Kinship::Anew;
        }
        if component == Component::Rtcp {
            return Kinship::GoesOn;
        }
        let silent = packet.at.since(self.last);
        let steps = |rate: u128| rate * silent.as_millis() / 1000;
        let ahead = media.sequence.wrapping_sub(former.sequence);
        let least = if own { 0 } else { steps(SLOWEST) };
        let forward = (least..=u128::from(policy.max_step) + steps(FASTEST)).contains(&u128::from(ahead));
        let reordered = ahead.wrapping_neg() <= policy.max_reorder && silent <= policy.silence;
        if forward || reordered { Kinship::GoesOn } else { Kinship::Anew }
    }
}
