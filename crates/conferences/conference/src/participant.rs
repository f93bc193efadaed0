//! A participant and its media.

use crate::account::Account;
use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::mixing::Mixed;
use crate::packets::Told;
use crate::payload_types::PayloadType;
use crate::tables::Name;
use shunt_admin_model::{Codec, Layers};
use shunt_latch::{Component, Latch, Time};
use shunt_net::Endpoint;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A medium of a participant. Further legs of a medium (`video/2`) deliver one sender each.
pub type LegKey = (Medium, u8);

/// One medium of one participant: its relay address, and the latched source.
#[derive(Clone, Debug)]
pub struct Leg {
    pub relay: Endpoint,
    /// Source and destination of its packets. For a receive-only leg it comes from ICE, RTCP or signalling.
    pub source: Option<Endpoint>,
    pub ssrcs: Vec<u32>,
    /// The SSRCs that repair other streams (RTX, FEC).
    pub repair: Vec<u32>,
    pub sends: bool,
    pub receives: bool,
    /// RTCP shares the RTP port (RFC 5761).
    pub muxed: bool,
    pub told: Option<Told>,
    pub payload_types: Vec<PayloadType>,
    /// Signalled transport, codecs and layers.
    pub transport: String,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
    /// Signalled addresses, and the signalled destination of this medium.
    pub signalled: Vec<IpAddr>,
    pub destination: Option<Endpoint>,
    pub latch: Latch,
    /// A change of source is being verified.
    pub moving: bool,
    /// Last source of its RTCP.
    pub rtcp: Option<Endpoint>,
    /// Payload type of the first learned stream.
    pub payload_type: Option<u8>,
    pub new_ssrc_at: Option<Time>,
    /// Time of the last reading of its counters.
    pub packets: u64,
    /// Counters of removed rows: packets received from it, and packets sent to it.
    pub sent: Account,
    pub received: Account,
}

impl Leg {
    #[must_use]
    pub fn new(relay: Endpoint) -> Self {
        Self {
            relay,
            source: None,
            ssrcs: Vec::new(),
            repair: Vec::new(),
            sends: true,
            receives: true,
            muxed: false,
            told: None,
            payload_types: Vec::new(),
            transport: String::new(),
            codecs: Vec::new(),
            layers: None,
            signalled: Vec::new(),
            destination: None,
            latch: Latch::new(Component::Rtp),
            moving: false,
            rtcp: None,
            payload_type: None,
            new_ssrc_at: None,
            packets: 0,
            sent: Account::default(),
            received: Account::default(),
        }
    }
}

/// A sender's streams, or one of a mixer's streams, which show different sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub sender: Name,
    pub ssrc: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Participant {
    pub name: Name,
    /// Legs by medium. Further legs of a medium deliver only what [`Shown`] says.
    pub legs: BTreeMap<LegKey, Leg>,
    /// What a leg delivers, if a medium has several legs.
    pub shows: BTreeMap<LegKey, Shown>,
    /// Its ports receive connectivity checks.
    pub ice: bool,
    /// Its media are authenticated, so they cannot be rewritten.
    pub encrypted: bool,
    /// Whether it is to get a mix of audio, and whether it gets one when a mixer serves its conference.
    pub wish: Mixed,
    pub mixed: bool,
    /// Whether it gets tiled video.
    pub tiled: bool,
    /// The mixer job that tiles its video.
    pub goes_into: Option<Job>,
    /// Set if it is a mixer. Relay entries carry mixes; copies carry tiled streams and columns.
    pub mixer: Option<Job>,
}

impl Participant {
    #[must_use]
    pub fn new(name: Name) -> Self {
        Self {
            name,
            legs: BTreeMap::new(),
            shows: BTreeMap::new(),
            ice: false,
            encrypted: false,
            wish: Mixed::Auto,
            mixed: false,
            tiled: false,
            goes_into: None,
            mixer: None,
        }
    }

    /// Returns whether any of its media has a source. Until then it gets nothing.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.legs.values().any(|leg| leg.source.is_some())
    }

    /// Returns whether it receives anything of a medium.
    #[must_use]
    pub fn receives(&self, medium: Medium) -> bool {
        self.legs.iter().any(|((of, _), leg)| *of == medium && leg.receives)
    }

    /// Returns the leg by which it sends a medium.
    #[must_use]
    pub fn leg(&self, medium: Medium) -> Option<&Leg> {
        self.legs.get(&(medium, 0))
    }

    /// Returns the leg that delivers a sender's streams: a separate leg if there are enough, otherwise the medium's first. If a mixer's
    /// streams have separate legs, one of these.
    #[must_use]
    pub fn leg_for(&self, sender: &Name, medium: Medium) -> Option<&Leg> {
        self.leg_that(medium, |shown| shown.sender == *sender)
    }

    /// Returns the leg that delivers one stream of a sender.
    #[must_use]
    pub fn leg_for_stream(&self, sender: &Name, medium: Medium, ssrc: u32) -> Option<&Leg> {
        self.leg_that(medium, |shown| shown.sender == *sender && shown.ssrc.is_none_or(|own| own == ssrc))
    }

    fn leg_that(&self, medium: Medium, brings: impl Fn(&Shown) -> bool) -> Option<&Leg> {
        let own = self.shows.iter().find(|(key, shown)| key.0 == medium && brings(shown));
        own.and_then(|(key, _)| self.legs.get(key))
            .filter(|leg| leg.source.is_some())
            .or_else(|| self.leg(medium))
    }

    /// Returns the units of its medium that others' legs can deliver: all streams together, but tiled streams one by one.
    pub(crate) fn shown(&self, medium: Medium) -> Vec<Shown> {
        let shown = |ssrc| Shown {
            sender: self.name.clone(),
            ssrc,
        };
        match self.leg(medium) {
            Some(leg) if self.mixer == Some(Job::Tiles) => leg.ssrcs.iter().map(|ssrc| shown(Some(*ssrc))).collect(),
            _ => vec![shown(None)],
        }
    }

    /// Assigns receiving legs to the units of a medium. A unit keeps its leg, and the first units without one get free legs.
    pub(crate) fn show(&mut self, medium: Medium, sent: &[Shown]) {
        self.shows.retain(|key, shown| key.0 != medium || sent.contains(shown));
        let mine: Vec<LegKey> = self
            .legs
            .iter()
            .filter(|(key, leg)| key.0 == medium && leg.source.is_some() && leg.receives)
            .map(|(key, _)| *key)
            .collect();
        if mine.iter().all(|(_, further)| *further == 0) {
            return; // the medium's first delivers all
        }
        let brought: Vec<&Shown> = self
            .shows
            .iter()
            .filter(|(key, _)| key.0 == medium)
            .map(|(_, shown)| shown)
            .collect();
        let waiting: Vec<Shown> = sent.iter().filter(|one| !brought.contains(one)).cloned().collect();
        let free: Vec<LegKey> = mine.into_iter().filter(|key| !self.shows.contains_key(key)).collect();
        self.shows.extend(free.into_iter().zip(waiting));
    }
}
