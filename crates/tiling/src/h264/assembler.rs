//! Pictures out of a source's packets, which come in order, with gaps where packets were lost.

use super::nal;
use super::packets::Reader;
use super::parameters::{Format, Picture, Sequence};
use super::slice::{self, Slice};
use crate::order::Next;
use crate::refusal::Refusal;
use std::collections::BTreeMap;

/// Slices of a picture at most: one for each row of the largest that H.264 has.
const SLICES: usize = 1024;

/// A picture all of whose packets were received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    pub slices: Vec<Slice>,
    pub(crate) sequence: Sequence,
    pub(crate) picture: Picture,
    /// What came before it was received without a gap, and could be tiled.
    pub follows: bool,
}

/// Packets of one source to pictures, and its parameter sets.
#[derive(Debug, Default)]
pub struct Assembler {
    sequences: BTreeMap<u32, Sequence>,
    pictures: BTreeMap<u32, Picture>,
    reader: Reader,
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

impl Assembler {
    /// The next packet or gap. Ends up to two pictures; those that lack something are left out. A picture that cannot be tiled comes as the
    /// reason.
    pub fn take(&mut self, next: &Next) -> Vec<Result<Assembled, Refusal>> {
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
        match nal::kind(&unit) {
            nal::SLICE | nal::IDR if self.units.len() < SLICES => self.units.push(unit),
            nal::SLICE | nal::IDR => self.damaged = true,
            nal::SPS => match Sequence::parse(&unit) {
                Ok(set) => {
                    self.sequences.insert(set.id, set);
                }
                Err(refusal) => self.refusal = Some(refusal),
            },
            nal::PPS => match Picture::parse(&unit) {
                Ok(set) => {
                    self.pictures.insert(set.id, set);
                }
                Err(refusal) => self.refusal = Some(refusal),
            },
            // Partitions cannot be tiled; what else there is describes the picture, or extends it.
            2..=4 => self.refusal = Some(Refusal::SliceGroups),
            _ => {}
        }
    }

    fn end(&mut self) -> Option<Result<Assembled, Refusal>> {
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
            None => self.picture(&units),
        };
        // The gap may be the start of this picture.
        if after_gap && ended.as_ref().is_ok_and(|picture| picture.slices[0].first > 0) {
            self.lost = true;
            return None;
        }
        self.lost |= ended.is_err();
        ended
            .map(|picture| Assembled {
                follows: !std::mem::take(&mut self.lost),
                ..picture
            })
            .into()
    }

    fn picture(&self, units: &[Vec<u8>]) -> Result<Assembled, Refusal> {
        let mut sets: Option<(Sequence, Picture)> = None;
        let mut slices = Vec::with_capacity(units.len());
        for unit in units {
            let picture = slice::parameter_set(unit)
                .and_then(|id| self.pictures.get(&id))
                .ok_or(Refusal::NoParameters)?;
            let sequence = self.sequences.get(&picture.sequence).ok_or(Refusal::NoParameters)?;
            let (first, other) = *sets.get_or_insert((*sequence, *picture));
            Format::of(&first, &other, 1)?.admits(&Format::of(sequence, picture, 1)?)?;
            slices.push(Slice::parse(unit, sequence, picture)?);
        }
        let (sequence, picture) = sets.ok_or(Refusal::NoParameters)?;
        Ok(Assembled {
            slices,
            sequence,
            picture,
            follows: true,
        })
    }
}
