//! Selects the spatial layers of a stream for one receiver: the layer of each packet, and when the highest sent layer may change.
//!
//! A receiver moves down with any temporal unit. It moves up with a unit whose base layer marks all layers above as decodable from there
//! on: a key picture of VP9 (RFC 9628 section 4.2, P), or a switch indication of the dependency descriptor (AV1 RTP specification, appendix
//! A). The first packet of a temporal unit decides which layers are forwarded, so late and repeated packets are treated alike.

use crate::key_frame::Coding;
use crate::numbers::ticks;
use shunt_rtp::descriptor::{Descriptor, Indication, Mandatory, Structure, Template, has_structure};
use shunt_rtp::payload::Vp9;
use std::collections::VecDeque;

/// The highest layer if none is removed.
pub const ALL: u8 = u8::MAX;
/// Temporal units remembered for late packets.
const UNITS: usize = 64;
/// Remembered removed frames.
const FRAMES: usize = 128;

/// Longest delay of a late packet, in ticks of video's clock; an earlier timestamp is a restarted clock.
const LATE: i64 = 10 * 90_000;

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward it, with this marker bit.
    Forward {
        marker: bool,
    },
    LeftOut,
}

/// The relevant parts of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Layered<'a> {
    pub coding: Coding,
    pub marker: bool,
    pub timestamp: u32,
    /// The dependency descriptor.
    pub descriptor: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

/// Position of a packet in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    spatial: u8,
    /// The last packet of its frame.
    end: bool,
    /// The highest layer of which everything can be decoded from this frame on, if stated.
    enters: Option<u8>,
    /// The number of its frame, if frames are numbered.
    frame: Option<u16>,
    /// Its frame refers to a removed one.
    broken: bool,
}

/// A temporal unit: the frames of one time.
#[derive(Clone, Copy, Debug)]
struct Unit {
    timestamp: u32,
    /// The highest forwarded layer.
    limit: u8,
}

/// The state of one stream for one receiver.
#[derive(Clone, Debug)]
pub struct SpatialLayers {
    structure: Option<Structure>,
    /// The previous structure, because late packets still name its templates.
    before: Option<Structure>,
    wanted: u8,
    current: u8,
    units: VecDeque<Unit>,
    frames: VecDeque<u16>,
}

impl Default for SpatialLayers {
    fn default() -> Self {
        Self {
            structure: None,
            before: None,
            wanted: ALL,
            current: ALL,
            units: VecDeque::new(),
            frames: VecDeque::new(),
        }
    }
}

impl SpatialLayers {
    /// Sets the highest layer to forward; [`ALL`]: none is removed.
    pub fn want(&mut self, spatial: u8) {
        self.wanted = spatial;
    }

    #[must_use]
    pub fn wanted(&self) -> u8 {
        self.wanted
    }

    /// Returns the highest layer that is forwarded now.
    #[must_use]
    pub fn current(&self) -> u8 {
        self.current
    }

    /// Returns whether more layers are wanted than forwarded, so that a key frame would help.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.wanted > self.current
    }

    /// Processes a packet. Returns its layer, if known, and the verdict.
    pub fn packet(&mut self, packet: &Layered<'_>) -> (Option<u8>, Verdict) {
        let place = match packet.coding {
            Coding::Vp9 => Vp9::parse(packet.payload).ok().and_then(|found| of_picture(&found)),
            Coding::Av1 => packet.descriptor.and_then(|descriptor| self.of_frame(descriptor)),
            Coding::Vp8 | Coding::H264 => return (None, Verdict::Forward { marker: packet.marker }),
        };
        let at = self.unit(packet.timestamp, place.as_ref());
        let limit = at.map_or(self.current, |at| self.units[at].limit);
        let Some(place) = place else {
            return (None, Verdict::Forward { marker: packet.marker });
        };
        let mut goes = place.spatial <= limit;
        if goes && place.broken && place.spatial > 0 {
            // The stream contradicts its own description: all layers below are forwarded.
            goes = false;
            self.current = self.current.min(place.spatial - 1);
            if let Some(at) = at {
                self.units[at].limit = place.spatial - 1;
            }
        }
        if goes {
            let marker = packet.marker || place.end && place.spatial == limit;
            return (Some(place.spatial), Verdict::Forward { marker });
        }
        if let Some(frame) = place.frame.filter(|frame| !self.frames.contains(frame)) {
            if self.frames.len() == FRAMES {
                self.frames.pop_front();
            }
            self.frames.push_back(frame);
        }
        (Some(place.spatial), Verdict::LeftOut)
    }

    /// Returns the temporal unit of a packet; a new unit's layers are decided here. A late unit of which no packet came in time gets the
    /// layers of the one before it.
    fn unit(&mut self, timestamp: u32, place: Option<&Place>) -> Option<usize> {
        let age = |unit: &Unit| ticks(timestamp, unit.timestamp);
        let at = self.units.iter().rposition(|unit| age(unit) >= 0);
        match (at, self.units.back()) {
            (Some(at), _) if age(&self.units[at]) == 0 => return Some(at),
            (at, Some(latest)) if (-LATE..0).contains(&age(latest)) => return at,
            _ => {}
        }
        let entered = place.and_then(|place| place.enters).filter(|highest| *highest > self.current);
        if self.wanted < self.current {
            self.current = self.wanted;
        } else if let Some(highest) = entered.filter(|_| self.waits()) {
            self.current = self.wanted.min(highest);
            self.frames.clear();
        }
        if self.units.len() == UNITS {
            self.units.pop_front();
        }
        self.units.push_back(Unit {
            timestamp,
            // A packet of unknown layer is forwarded, as in a stream without layers.
            limit: if place.is_some() { self.current } else { ALL },
        });
        Some(self.units.len() - 1)
    }

    fn of_frame(&mut self, descriptor: &[u8]) -> Option<Place> {
        let mandatory = Mandatory::parse(descriptor).ok()?;
        if has_structure(descriptor) {
            let found = Descriptor::parse(descriptor, None).ok()?.structure;
            // A late unit is not the latest.
            if found != self.structure && found != self.before {
                self.before = std::mem::replace(&mut self.structure, found);
            }
        }
        let id = mandatory.template_id;
        let known = [&self.structure, &self.before].into_iter().flatten();
        let structure = known.into_iter().find(|structure| structure.template(id).is_ok())?;
        // Three octets: the frame equals its template.
        let own = (descriptor.len() > 3).then(|| Descriptor::parse(descriptor, Some(structure)).map(|found| found.template));
        let own = own.transpose().ok()?;
        let template = match &own {
            Some(template) => template,
            None => structure.template(id).ok()?,
        };
        let frame = mandatory.frame_number;
        let references = template.frame_differences.iter().map(|difference| frame.wrapping_sub(*difference));
        Some(Place {
            spatial: template.spatial,
            end: mandatory.end,
            enters: (template.spatial == 0).then(|| entered(structure, template, self.wanted)).flatten(),
            frame: Some(frame),
            broken: references.into_iter().any(|reference| self.frames.contains(&reference)),
        })
    }
}

/// Returns the highest wanted layer at which all decode targets can be entered with a frame of the base layer.
fn entered(structure: &Structure, template: &Template, wanted: u8) -> Option<u8> {
    let targets = || structure.targets.iter().map(|(spatial, _)| *spatial).zip(&template.indications);
    let top = targets().map(|(spatial, _)| spatial).max()?;
    let enters = |spatial: u8| {
        let mut of = targets().filter(|(one, _)| *one == spatial);
        of.all(|(_, indication)| *indication == Indication::Switch)
    };
    let highest = (0..=top.min(wanted)).rev().find(|spatial| enters(*spatial))?;
    Some(if highest == top { ALL } else { highest })
}

fn of_picture(found: &Vp9) -> Option<Place> {
    let spatial = found.spatial?;
    Some(Place {
        spatial,
        end: found.end,
        enters: (spatial == 0 && !found.predicted).then_some(ALL),
        frame: None,
        broken: false,
    })
}
