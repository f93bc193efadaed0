//! Layers of streams and their numbers in one data plane: rows of `layer`, tracks (S-LR of a stream), receiver sequence states.

use crate::allocation::Numbers;
use crate::membership::TARGETS;
use crate::packets::Told;
use crate::sequence::PHASES;
use crate::tables::{Limits, Name, Source};
use crate::trees::LayoutError;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtp::descriptor::{Descriptor, LayerTable, Structure, has_structure};
use shunt_rtp::{Header, MediaError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How a data plane rewrites the numbers of receivers that get some layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewriting {
    /// Streams always have all layers.
    None,
    SLm,
    SLr,
}

/// Data of a row of `layer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRow {
    pub layer: u8,
    pub switches: u16,
}

/// Why a stream's layers cannot be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The packet that ends a picture would be dropped with the highest spatial layer.
    SpatialLayers,
    NotNested,
}

/// A stream in a data plane: its incoming 5-tuple, and its SSRC.
pub type Place = (FiveTuple, u32);

/// A data plane's state of a stream and its receivers, as found. They continue with these numbers; with new numbers, receivers would get
/// sequence numbers a second time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    pub layers: u32,
    pub track: u32,
    pub rows: BTreeMap<u8, LayerRow>,
    /// By the receiver's address.
    pub sequence_states: HashMap<Endpoint, u32>,
}

#[derive(Clone, Debug)]
struct Stream {
    told: Told,
    layers: u32,
    track: u32,
    tracked: bool,
    table: LayerTable,
    rows: BTreeMap<u8, LayerRow>,
    /// The layer of frames by frame number modulo four; `None` if the number does not determine it.
    phases: Option<[u8; PHASES as usize]>,
    whole: Option<Whole>,
    sequence_states: HashMap<Name, u32>,
    /// Sequence states found in the data plane that no receiver has taken over yet.
    former: HashMap<Endpoint, u32>,
}

/// The numbers of one data plane.
#[derive(Clone, Debug)]
pub struct Numbering {
    rewriting: Rewriting,
    /// Layers are dropped only if the dependency descriptor describes them.
    descriptor_only: bool,
    layers: Numbers,
    tracks: Numbers,
    sequence_states: Numbers,
    streams: HashMap<Source, Stream>,
    former: HashMap<Place, Former>,
}

impl Numbering {
    #[must_use]
    pub fn new(rewriting: Rewriting, limits: &Limits) -> Self {
        Self {
            rewriting,
            descriptor_only: false,
            layers: Numbers::new("numbers of layer tables", 1, 1 << 16),
            tracks: Numbers::new("streams with rewritten numbers", 1, limits.tracks.saturating_add(1)),
            sequence_states: Numbers::new("receivers with rewritten numbers", 1, limits.sequence_states.saturating_add(1)),
            streams: HashMap::new(),
            former: HashMap::new(),
        }
    }

    /// Makes the numbers of a data plane that reads only the dependency descriptor: other streams always have all layers.
    #[must_use]
    pub fn with_descriptor_only(self, descriptor_only: bool) -> Self {
        Self { descriptor_only, ..self }
    }

    /// Returns whether the data plane can drop layers described in this way.
    #[must_use]
    pub fn reads(&self, told: Told) -> bool {
        !self.descriptor_only || matches!(told, Told::DependencyDescriptor(_))
    }

    /// Records the state found in a data plane, before any number is allocated: the same streams and receivers continue with it.
    pub fn remember(&mut self, found: HashMap<Place, Former>) {
        let used = |number: fn(&Former) -> u32| -> BTreeSet<u32> { found.values().map(number).filter(|number| *number != 0).collect() };
        self.layers.reserve(&used(|former| former.layers));
        self.tracks.reserve(&used(|former| former.track));
        self.sequence_states
            .reserve(&found.values().flat_map(|former| former.sequence_states.values().copied()).collect());
        self.former = found;
    }

    /// Releases found numbers that no receiver has taken over, after their deletion from the data plane.
    pub fn give_back(&mut self) {
        for former in std::mem::take(&mut self.former).into_values() {
            if former.layers != 0 {
                self.layers.give(former.layers);
            }
            if former.track != 0 {
                self.tracks.give(former.track);
            }
            former
                .sequence_states
                .into_values()
                .for_each(|sequence_state| self.sequence_states.give(sequence_state));
        }
        for stream in self.streams.values_mut() {
            stream
                .former
                .drain()
                .for_each(|(_, sequence_state)| self.sequence_states.give(sequence_state));
        }
    }

    /// Returns how many more receivers can have rewritten numbers.
    #[must_use]
    pub fn room(&self) -> usize {
        match self.rewriting {
            Rewriting::SLr => self.tracks.room().min(self.sequence_states.room()),
            Rewriting::SLm | Rewriting::None => self.sequence_states.room(),
        }
    }

    /// Returns a stream's number in `layer`, and its track (0 until it is to be tracked); 0 and 0 if the data plane cannot drop its layers.
    ///
    /// If all tracks are in use, the stream is not tracked and its receivers get all layers.
    ///
    /// # Errors
    /// All numbers are in use: the stream has all layers.
    pub fn stream(&mut self, source: &Source, place: Place, told: Told, tracked: bool) -> Result<(u32, u32), LayoutError> {
        if self.rewriting == Rewriting::None || !self.reads(told) {
            return Ok((0, 0));
        }
        if !self.streams.contains_key(source) {
            let made = match self.former.remove(&place) {
                Some(former) => Stream::of_former(told, former),
                None => Stream::new(told, self.layers.take()?),
            };
            self.streams.insert(source.clone(), made);
        }
        let Some(stream) = self.streams.get_mut(source) else {
            return Ok((0, 0));
        };
        if stream.told != told {
            let kept = (
                stream.layers,
                stream.track,
                stream.tracked,
                std::mem::take(&mut stream.sequence_states),
            );
            *stream = Stream::new(told, kept.0);
            (stream.track, stream.tracked, stream.sequence_states) = (kept.1, kept.2, kept.3);
        }
        if tracked && !stream.tracked {
            if self.rewriting == Rewriting::SLr {
                let Ok(track) = self.tracks.take() else {
                    return Ok((stream.layers, stream.track));
                };
                stream.track = track;
            }
            stream.tracked = true;
        }
        Ok((stream.layers, stream.track))
    }

    /// Returns a receiver's sequence state for a tracked stream; 0 if the stream is not tracked, or if all states are in use. `there`: the
    /// receiver's address.
    pub fn sequence_state(&mut self, source: &Source, receiver: &Name, there: Endpoint) -> u32 {
        let Some(stream) = self.streams.get_mut(source).filter(|stream| stream.tracked) else {
            return 0;
        };
        if let Some(sequence_state) = stream.sequence_states.get(receiver) {
            return *sequence_state;
        }
        let Some(sequence_state) = stream.former.remove(&there).or_else(|| self.sequence_states.take().ok()) else {
            return 0;
        };
        stream.sequence_states.insert(receiver.clone(), sequence_state);
        sequence_state
    }

    /// Bit n: frames with a number of n modulo four are above a target. 0 if unknown, or if S-LR learns the pattern.
    #[must_use]
    pub fn cadence(&self, source: &Source, target: usize) -> u8 {
        let phases = self.streams.get(source).and_then(|stream| stream.phases);
        let (Rewriting::SLm, Some(phases)) = (self.rewriting, phases) else {
            return 0;
        };
        let above = phases.iter().enumerate().filter(|(_, layer)| usize::from(**layer) > target);
        above.map(|(phase, _)| 1 << phase).sum()
    }

    /// Returns the wanted rows of `layer` of a stream, by template ID.
    pub fn rows(&self, source: &Source) -> impl Iterator<Item = ((u32, u8), LayerRow)> {
        let stream = self.streams.get(source);
        stream
            .into_iter()
            .flat_map(|stream| stream.rows.iter().map(|(template, row)| ((stream.layers, *template), *row)))
    }

    /// Returns why a stream's layers cannot be dropped.
    #[must_use]
    pub fn whole(&self, source: &Source) -> Option<Whole> {
        self.streams.get(source).and_then(|stream| stream.whole)
    }

    /// Returns whether a stream describes its layers by templates that are unknown, or incomplete after a restart.
    #[must_use]
    pub fn awaits_structure(&self, source: &Source) -> bool {
        let waiting = |stream: &Stream| {
            let unknown = stream.rows.is_empty() || self.rewriting == Rewriting::SLm && stream.phases.is_none();
            matches!(stream.told, Told::DependencyDescriptor(_)) && stream.whole.is_none() && unknown
        };
        self.streams.get(source).is_some_and(waiting)
    }

    /// Reads an RTP packet that may carry a template structure. Returns whether rows or frame cadences have changed.
    ///
    /// # Errors
    /// The packet is malformed.
    pub fn see(&mut self, source: &Source, packet: &[u8]) -> Result<bool, MediaError> {
        let rewriting = self.rewriting;
        let Some(stream) = self.streams.get_mut(source) else {
            return Ok(false);
        };
        let Told::DependencyDescriptor(id) = stream.told else {
            return Ok(false);
        };
        let Some(extension) = Header::parse(packet)?.extension else {
            return Ok(false);
        };
        let Some(element) = extension.find(id)?.filter(|element| has_structure(element)) else {
            return Ok(false);
        };
        let found = Descriptor::parse(element, None)?;
        let Some(structure) = found.structure.clone() else {
            return Ok(false);
        };
        let before = (stream.rows.clone(), stream.phases);
        stream.whole = why_whole(&structure);
        if stream.whole.is_some() {
            (stream.table, stream.rows, stream.phases) = (LayerTable::default(), BTreeMap::new(), None);
            return Ok(!before.0.is_empty());
        }
        let targets = structure.targets.len();
        stream.table.see(structure.clone());
        stream.rows = rows(&stream.table, targets);
        if rewriting == Rewriting::SLm {
            // Receivers may change over with any packet.
            stream.rows.values_mut().for_each(|row| row.switches = 0);
            stream.phases = phases(&structure, &stream.rows, &found);
        }
        Ok((&stream.rows, &stream.phases) != (&before.0, &before.1))
    }

    /// Frees the numbers of a conference's other streams and receivers.
    pub fn forget(&mut self, conference: &Name, sources: &HashSet<Source>, receivers: &HashSet<Name>) {
        let (sequence_states, layers, tracks) = (&mut self.sequence_states, &mut self.layers, &mut self.tracks);
        self.streams.retain(|source, stream| {
            if source.conference != *conference {
                return true;
            }
            let stays = sources.contains(source);
            stream.sequence_states.retain(|receiver, sequence_state| {
                let kept = stays && receivers.contains(receiver);
                if !kept {
                    sequence_states.give(*sequence_state);
                }
                kept
            });
            if !stays {
                stream
                    .former
                    .drain()
                    .for_each(|(_, sequence_state)| sequence_states.give(sequence_state));
                layers.give(stream.layers);
                if stream.track != 0 {
                    tracks.give(stream.track);
                }
            }
            stays
        });
    }
}

impl Stream {
    fn new(told: Told, layers: u32) -> Self {
        // If IDs are temporal IDs, they are the layers. Templates are unknown before a structure has arrived.
        let plain = !matches!(told, Told::DependencyDescriptor(_));
        let row = |temporal: u8| LayerRow {
            layer: temporal.min(TARGETS as u8 - 1),
            switches: 0,
        };
        Self {
            told,
            layers,
            track: 0,
            tracked: false,
            table: LayerTable::default(),
            rows: (0..8).filter(|_| plain).map(|temporal| (temporal, row(temporal))).collect(),
            phases: None,
            whole: None,
            sequence_states: HashMap::new(),
            former: HashMap::new(),
        }
    }

    fn of_former(told: Told, former: Former) -> Self {
        let made = Self::new(told, former.layers);
        Self {
            rows: if former.rows.is_empty() { made.rows } else { former.rows },
            track: former.track,
            tracked: former.track != 0 || !former.sequence_states.is_empty(),
            former: former.sequence_states,
            ..made
        }
    }
}

fn why_whole(structure: &Structure) -> Option<Whole> {
    if structure.templates.iter().any(|template| template.spatial > 0) {
        return Some(Whole::SpatialLayers);
    }
    (!structure.is_nested()).then_some(Whole::NotNested)
}

/// Returns the rows of a template table. If the stream has more targets than the data plane, or fewer, the highest ones are merged.
fn rows(table: &LayerTable, targets: usize) -> BTreeMap<u8, LayerRow> {
    let row = |(template, layer): (&u8, &shunt_rtp::descriptor::Layer)| {
        let lowest = if layer.needed_by == 0 {
            TARGETS - 1
        } else {
            layer.needed_by.trailing_zeros() as usize
        };
        let theirs = |target: usize| {
            if target == TARGETS - 1 {
                targets - 1
            } else {
                target.min(targets - 1)
            }
        };
        let ups = (0..TARGETS).filter(|target| layer.switches >> theirs(*target) & 1 != 0);
        let row = LayerRow {
            layer: lowest.min(TARGETS - 1) as u8,
            switches: ups.map(|target| 1 << target).sum(),
        };
        (*template, row)
    };
    table.rows.iter().map(row).collect()
}

/// Returns the layer of frames by frame number modulo four, after a key frame; `None` if the structure does not determine it.
///
/// Frames of a layer depend on frames at a fixed distance before: four, two and one in L1T3, two and one in L1T2. A frame after the key
/// frame belongs to the lowest layer whose distance divides the frame's distance to the key frame. Browsers send frames in this order.
fn phases(structure: &Structure, rows: &BTreeMap<u8, LayerRow>, first: &Descriptor) -> Option<[u8; PHASES as usize]> {
    let mut distances: BTreeMap<u8, u16> = BTreeMap::new();
    for (index, template) in structure.templates.iter().enumerate() {
        if let Some(least) = template.frame_differences.iter().min() {
            let layer = rows.get(&((usize::from(structure.offset) + index) % 64).try_into().ok()?)?.layer;
            let distance = distances.entry(layer).or_insert(PHASES);
            *distance = (*distance).min(*least);
        }
    }
    let steps: Vec<u16> = distances.values().copied().collect();
    if !first.template.frame_differences.is_empty() || ![&[4, 2, 1][..], &[2, 1], &[1]].contains(&&steps[..]) {
        return None;
    }
    let mut found = [0; PHASES as usize];
    for (phase, layer) in (0..PHASES).zip(&mut found) {
        let since = phase.wrapping_sub(first.mandatory.frame_number) % PHASES;
        *layer = *distances.iter().find(|(_, distance)| since.is_multiple_of(**distance))?.0;
    }
    Some(found)
}
