//! Pictures out of a source's packets, which come in order, with gaps where packets were lost.

use crate::coding::{Coding, Kind};
use crate::order::Next;
use crate::packing::Reader;
use crate::refusal::Refusal;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slices of a picture at most: one for each row of the largest that there are.
const SLICES: usize = 1024;
/// Octets of a byte stream at most, and of a parameter set that is kept for it.
const LONGEST: usize = 4 << 20;
const LONGEST_SET: usize = 4 << 10;

/// Parameter sets, in the order in which they refer to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    Common,
    Sequence,
    Picture,
}

/// A picture all of whose packets were received.
#[derive(Debug)]
pub struct Assembled<C: Coding> {
    pub slices: Vec<C::Slice>,
    pub(crate) sequence: Arc<C::Sequence>,
    pub(crate) picture: Arc<C::Picture>,
    /// What came before it was received without a gap, and could be tiled.
    pub follows: bool,
    /// If that was asked for and it predicts from nothing: a byte stream (Annex B) of it and its parameter sets.
    pub(crate) alone: Option<Vec<u8>>,
}

/// Packets of one source to pictures, and its parameter sets.
#[derive(Debug)]
pub struct Assembler<C: Coding> {
    sequences: BTreeMap<u32, Arc<C::Sequence>>,
    /// With the numbers of their sequence parameter sets.
    pictures: BTreeMap<u32, (u32, Arc<C::Picture>)>,
    /// The same as they came, with what sequence parameter sets refer to.
    sets: BTreeMap<(Set, u32), Vec<u8>>,
    /// Pictures are to come with their byte streams.
    alone: bool,
    reader: Reader<C::Packing>,
    order: C::Order,
    timestamp: Option<u32>,
    units: Vec<Vec<u8>>,
    gap: bool,
    /// Something of the picture that has begun is missing.
    damaged: bool,
    /// There was a gap right before it.
    after_gap: bool,
    /// A picture before it is missing, or could not be tiled.
    lost: bool,
    refusal: Option<Refusal>,
}

impl<C: Coding> Default for Assembler<C> {
    fn default() -> Self {
        Self {
            sequences: BTreeMap::new(),
            pictures: BTreeMap::new(),
            sets: BTreeMap::new(),
            alone: false,
            reader: Reader::default(),
            order: C::Order::default(),
            timestamp: None,
            units: Vec::new(),
            gap: false,
            damaged: false,
            after_gap: false,
            lost: false,
            refusal: None,
        }
    }
}

impl<C: Coding> Assembler<C> {
    /// The next packet or gap. Ends up to two pictures; those that lack something are left out. A picture that cannot be tiled comes as the
    /// reason. `alone`: with their byte streams.
    pub fn take(&mut self, next: &Next, alone: bool) -> Vec<Result<Assembled<C>, Refusal>> {
        self.alone = alone;
        let mut ended = Vec::new();
        let packet = match next {
            Next::Gap => {
                self.gap = true;
                self.reader.lost();
                return ended;
            }
            Next::Packet(packet) => packet,
        };
        let Some(header) = packet.header() else { return ended };
        let gap = std::mem::take(&mut self.gap);
        if self.timestamp == Some(header.timestamp) {
            self.damaged |= gap;
        } else {
            self.damaged |= gap && self.timestamp.is_some();
            ended.extend(self.end());
            self.timestamp = Some(header.timestamp);
            self.after_gap = gap;
            self.lost |= gap;
        }
        match self.reader.take(header.payload) {
            Ok(units) => units.into_iter().for_each(|unit| self.unit(unit)),
            Err(_) if self.damaged || self.after_gap => self.damaged = true,
            Err(fault) => self.refusal = Some(Refusal::Fault(fault)),
        }
        if header.marker {
            ended.extend(self.end());
        }
        ended
    }

    fn unit(&mut self, unit: Vec<u8>) {
        match C::kind(&unit) {
            Kind::Slice if self.units.len() < SLICES => self.units.push(unit),
            Kind::Slice => self.damaged = true,
            Kind::Sequence => match C::sequence(&unit) {
                Ok((id, set)) => {
                    self.sequences.insert(id, Arc::new(set));
                    self.keep(Set::Sequence, id, unit);
                }
                Err(refusal) => self.refusal = Some(refusal),
            },
            Kind::Picture => match C::picture(&unit) {
                Ok((id, sequence, set)) => {
                    self.pictures.insert(id, (sequence, Arc::new(set)));
                    self.keep(Set::Picture, id, unit);
                }
                Err(refusal) => self.refusal = Some(refusal),
            },
            Kind::Common => self.keep(Set::Common, 0, unit),
            Kind::Refused(refusal) => self.refusal = Some(refusal),
            Kind::Other => {}
        }
    }

    fn keep(&mut self, set: Set, id: u32, unit: Vec<u8>) {
        if unit.len() <= LONGEST_SET {
            self.sets.insert((set, id), unit);
        } else {
            self.sets.remove(&(set, id));
        }
    }

    fn end(&mut self) -> Option<Result<Assembled<C>, Refusal>> {
        self.timestamp = None;
        let units = std::mem::take(&mut self.units);
        let (damaged, after_gap) = (std::mem::take(&mut self.damaged), std::mem::take(&mut self.after_gap));
        let ended = match self.refusal.take() {
            Some(refusal) => Err(refusal),
            None if damaged => {
                self.lost = true;
                return None;
            }
            None if units.is_empty() => return None,
            None => self.picture(units),
        };
        // The gap may be the start of this picture.
        if after_gap && ended.as_ref().is_ok_and(|(begins, _)| !begins) {
            self.lost = true;
            return None;
        }
        if self.lost {
            self.order = C::Order::default();
        }
        let ended = ended.and_then(|(_, picture)| C::follow(&mut self.order, &picture.slices).map(|()| picture));
        self.lost |= ended.is_err();
        ended
            .map(|picture| Assembled {
                follows: !std::mem::take(&mut self.lost),
                ..picture
            })
            .into()
    }

    /// A picture, and whether its first slice is there.
    fn picture(&self, units: Vec<Vec<u8>>) -> Result<(bool, Assembled<C>), Refusal> {
        let mut sets = None;
        let alone = self.alone.then(|| self.byte_stream(&units)).flatten();
        let mut slices = Vec::with_capacity(units.len());
        for unit in units {
            let (number, picture) = C::parameter_set(&unit)
                .and_then(|id| self.pictures.get(&id))
                .ok_or(Refusal::NoParameters)?;
            let sequence = self.sequences.get(number).ok_or(Refusal::NoParameters)?;
            let (first, other) = sets.get_or_insert_with(|| (Arc::clone(sequence), Arc::clone(picture)));
            if !Arc::ptr_eq(first, sequence) || !Arc::ptr_eq(other, picture) {
                C::admits(&C::format(first, other, 1)?, &C::format(sequence, picture, 1)?)?;
            }
            slices.push(C::slice(unit, sequence, picture)?);
        }
        let (sequence, picture) = sets.ok_or(Refusal::NoParameters)?;
        let begins = slices.first().is_some_and(C::is_first);
        let assembled = Assembled {
            alone: alone.filter(|_| slices.iter().all(C::is_intra)),
            slices,
            sequence,
            picture,
            follows: true,
        };
        Ok((begins, assembled))
    }

    /// Slices with the parameter sets that they need; nothing if one is missing, or it would be too long.
    fn byte_stream(&self, slices: &[Vec<u8>]) -> Option<Vec<u8>> {
        let id = C::parameter_set(slices.first()?)?;
        let (sequence, _) = self.pictures.get(&id)?;
        let sets = [(Set::Common, 0), (Set::Sequence, *sequence), (Set::Picture, id)];
        let sets = sets.iter().skip(usize::from(!C::COMMON)).map(|set| self.sets.get(set));
        let sets: Option<Vec<&Vec<u8>>> = sets.collect();
        let mut stream = Vec::new();
        for unit in sets?.into_iter().chain(slices) {
            stream.extend([0, 0, 0, 1]);
            stream.extend_from_slice(unit);
        }
        (stream.len() <= LONGEST).then_some(stream)
    }
}
