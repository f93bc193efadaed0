//! The stream that a port had before: a phone that still sends into the port of its last call is not the next call's party.

use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{Component, Packet};
use shunt_net::Endpoint;
use shunt_rtp::Source;

/// Packets per second that are reckoned with while nobody looked, at most and at least.
const FASTEST: u128 = 500;
const SLOWEST: u128 = 10;

/// What is known of the stream that had a port before. [`crate::Latch::former`] makes it, [`crate::Latch::keep_out`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    pub source: Endpoint,
    /// SSRC and the last sequence number, if it sent media.
    pub media: Option<Source>,
    /// When that was.
    pub last: Time,
}

/// A former stream that is kept out of the call that has the port now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptOut {
    former: Former,
    until: Time,
    /// Another source has its SSRC, and is a stream of its own: of the former stream, only its own source is kept out.
    own_source_alone: bool,
}

/// What a packet has to do with the former stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    GoesOn,
    /// Same SSRC, but another stream: the new call's, as a replayed recording has.
    Anew,
    None,
}

/// What signalling says of a packet's source.
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

    /// Whether a packet goes on with the former stream; then that is noted. The second value: nothing is to be kept out any more.
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
    /// A new call of the same phone has another SSRC, or begins with another sequence number. One of another phone may have the same SSRC and the
    /// same numbers, where both play one recording: then signalling names its address, or it does not go on where the former one must be by now.
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
