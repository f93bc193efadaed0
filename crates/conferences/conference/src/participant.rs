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

/// A medium of a participant; further ones of a medium (`video/2`) bring it one sender each.
pub type LegKey = (Medium, u8);

/// One medium of one participant: its relay address, and the source latched there.
#[derive(Clone, Debug)]
pub struct Leg {
    pub relay: Endpoint,
    /// Where its packets come from, and go to. Of who only listens it is known from ICE, from its RTCP, or from signalling.
    pub source: Option<Endpoint>,
    pub ssrcs: Vec<u32>,
    /// Those of the SSRCs that repair others (RTX, FEC).
    pub repair: Vec<u32>,
    pub sends: bool,
    pub receives: bool,
    /// RTCP comes to the RTP port (RFC 5761).
    pub muxed: bool,
    pub told: Option<Told>,
    pub payload_types: Vec<PayloadType>,
    /// What its transport, its codecs and its layers are by signalling.
    pub transport: String,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
    /// The addresses that signalling names, and where it says that this medium is to go.
    pub signalled: Vec<IpAddr>,
    pub destination: Option<Endpoint>,
    pub latch: Latch,
    /// A change of source is being looked into.
    pub moving: bool,
    /// Where its RTCP came from last.
    pub rtcp: Option<Endpoint>,
    /// Of the first stream that was learned.
    pub payload_type: Option<u8>,
    pub new_ssrc_at: Option<Time>,
    /// When its counters were read last.
    pub packets: u64,
    /// Of rows that are out: what came of it, and what went to it.
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

/// A sender's streams, or of a mixer one: each of its streams shows others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub sender: Name,
    pub ssrc: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Participant {
    pub name: Name,
    /// By medium; further ones of a medium only bring what [`Shown`] says.
    pub legs: BTreeMap<LegKey, Leg>,
    /// What a leg brings, where a medium has more than one.
    pub shows: BTreeMap<LegKey, Shown>,
    /// Connectivity checks come to its ports.
    pub ice: bool,
    /// Its media are authenticated, and nothing of them can be rewritten.
    pub encrypted: bool,
    /// Whether it is to get a mix of audio, and whether it does where a mixer serves its conference.
    pub wish: Mixed,
    pub mixed: bool,
    /// Whether its video comes tiled.
    pub tiled: bool,
    /// Whose tile its video becomes: of which mixer's streams.
    pub goes_into: Option<Job>,
    /// It is a mixer. Mixes go by relay entries; tiled streams, and columns of them, by copies.
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

    /// Whether any of its media has a source: until then nothing is sent to it.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.legs.values().any(|leg| leg.source.is_some())
    }

    /// Whether it gets anything of a medium.
    #[must_use]
    pub fn receives(&self, medium: Medium) -> bool {
        self.legs.iter().any(|((of, _), leg)| *of == medium && leg.receives)
    }

    /// The leg by which it sends a medium.
    #[must_use]
    pub fn leg(&self, medium: Medium) -> Option<&Leg> {
        self.legs.get(&(medium, 0))
    }

    /// The leg that brings it a sender's streams: one of its own where there are enough, otherwise the medium's first. Of a mixer whose streams
    /// have legs of their own, one of these.
    #[must_use]
    pub fn leg_for(&self, sender: &Name, medium: Medium) -> Option<&Leg> {
        self.leg_that(medium, |shown| shown.sender == *sender)
    }

    /// The leg that brings it one of a sender's streams.
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

    /// What others' legs can bring of its medium: all that it sends by one, but tiled streams one by one.
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

    /// Give legs that receive to what is sent of a medium: what has one keeps it, and the first ones without get what is free.
    pub(crate) fn show(&mut self, medium: Medium, sent: &[Shown]) {
        self.shows.retain(|key, shown| key.0 != medium || sent.contains(shown));
        let mine: Vec<LegKey> = self
            .legs
            .iter()
            .filter(|(key, leg)| key.0 == medium && leg.source.is_some() && leg.receives)
            .map(|(key, _)| *key)
            .collect();
        if mine.iter().all(|(_, further)| *further == 0) {
            return; // the medium's first brings all
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
