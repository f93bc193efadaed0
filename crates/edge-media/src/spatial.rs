//! Which spatial layers of a stream go on to one receiver: the layer of each packet, and when the highest that is sent may change.
//!
//! Down with any temporal unit. Up with one whose base layer says that all above it can be decoded from there on: a key picture of VP9 (RFC 9628
//! section 4.2, P), a switch indication of the dependency descriptor (AV1 RTP specification, appendix A). What may go on of a temporal unit is
//! settled by its first packet, so packets that come late or again fare as those that were in time.

use crate::key_frame::Coding;
use crate::numbers::ticks;
use shunt_rtp::descriptor::{Descriptor, Indication, Mandatory, Structure, Template, has_structure};
use shunt_rtp::payload::Vp9;
use std::collections::VecDeque;

/// The highest layer where none is left out.
pub const ALL: u8 = u8::MAX;
/// Temporal units that are remembered for packets that come late.
const UNITS: usize = 64;
/// Frames that were left out and are remembered.
const FRAMES: usize = 128;

/// Nothing comes later than this, in ticks of video's clock: what is further back is a clock that began anew.
const LATE: i64 = 10 * 90_000;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, with this marker bit.
    Forward {
        marker: bool,
    },
    LeftOut,
}

/// A packet of a stream, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Layered<'a> {
    pub coding: Coding,
    pub marker: bool,
    pub timestamp: u32,
    /// The dependency descriptor.
    pub descriptor: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

/// Where a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    spatial: u8,
    /// The last packet of its frame.
    end: bool,
    /// The highest layer of which everything can be decoded from this frame on, as far as it says so.
    enters: Option<u8>,
    /// The number of its frame, where frames are numbered.
    frame: Option<u16>,
    /// Its frame refers to one that was left out.
    broken: bool,
}

/// A temporal unit: the frames of one time.
#[derive(Clone, Copy, Debug)]
struct Unit {
    timestamp: u32,
    /// The highest layer that goes on.
    limit: u8,
}

/// The state of one stream for one receiver.
#[derive(Clone, Debug)]
pub struct SpatialLayers {
    structure: Option<Structure>,
    /// The structure before: late packets still name its templates.
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
    /// The highest layer that is to go on; [`ALL`]: nothing is left out.
    pub fn want(&mut self, spatial: u8) {
        self.wanted = spatial;
    }

    #[must_use]
    pub fn wanted(&self) -> u8 {
        self.wanted
    }

    /// The highest layer that goes on now.
    #[must_use]
    pub fn current(&self) -> u8 {
        self.current
    }

    /// Whether more is to go on than does: a key frame is of use.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.wanted > self.current
    }

    /// A packet of the stream came: its layer, where the stream tells it, and what becomes of it.
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
            // The stream does not keep what it said: the layers below are whole.
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

    /// The temporal unit of a packet; what goes on of it is settled here when it is a new one. Of one before the latest, of which nothing came in
    /// time, as much goes on as of the one before it.
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
            // Whose layer is not known goes whole, as a stream without layers does.
            limit: if place.is_some() { self.current } else { ALL },
        });
        Some(self.units.len() - 1)
    }

    fn of_frame(&mut self, descriptor: &[u8]) -> Option<Place> {
        let mandatory = Mandatory::parse(descriptor).ok()?;
        if has_structure(descriptor) {
            let found = Descriptor::parse(descriptor, None).ok()?.structure;
            // One that comes late is not the latest.
            if found != self.structure && found != self.before {
                self.before = std::mem::replace(&mut self.structure, found);
            }
        }
        let id = mandatory.template_id;
        let known = [&self.structure, &self.before].into_iter().flatten();
        let structure = known.into_iter().find(|structure| structure.template(id).is_ok())?;
        // Three octets: the frame is as its template says.
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

/// The highest wanted layer of which all decode targets can be entered with a frame of the base layer.
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
