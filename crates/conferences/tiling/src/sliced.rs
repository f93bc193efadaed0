//! Tiles made of slices: every picture has a slice, or several, of each.
//!
//! All slices but those of an IDR picture may be coded intra or predicted from the mosaic's picture before, so sources need not be in step:
//! a source's IDR picture becomes intra slices, and a tile without a new picture repeats the one before. IDR pictures, which a receiver begins
//! with, need every tile coded intra: a tile shows its last picture again if that was intra, or waits for the source's next.

use crate::assembler::{Assembled, Assembler};
use crate::coding::{Area, Coding, FRAME_NUMBER_BITS, Frame};
use crate::order::Next;
use crate::packing::{Unit, payloads};
use crate::queue::Queue;
use crate::refusal::Refusal;
use crate::stream::Payload;
use crate::tiler::Mosaic;
use shunt_latch::Time;
use std::sync::Arc;
use std::time::Duration;

/// Pictures of a tile that wait at most. They wait while other tiles' intra pictures are waited for.
const WAITING: usize = 32;
/// How long an IDR picture waits for sources whose pictures predict from each other.
const PATIENCE: Duration = Duration::from_secs(1);

/// The part of a source's picture that a tile shows, and what its slices may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which of `tiles` tiles of a mixer's picture, in the order of their places; 0 of 1: all of the picture.
    pub tile: u32,
    pub tiles: u32,
    /// Pictures may predict from the one before. The source sees to it that no vector leaves the tile, or only into a band of grey at its
    /// edges, or is a mixer; this cannot be told from its headers.
    pub predicted: bool,
}

#[derive(Debug)]
struct Tile<C: Coding> {
    contributor: u32,
    region: Region,
    queue: Queue<Arc<Assembled<C>>>,
    /// It shows an earlier picture than its source's next one may predict from.
    stale: bool,
    /// What it shows, if that was coded intra.
    intra: Option<Arc<Assembled<C>>>,
}

impl<C: Coding> Tile<C> {
    fn slices<'a>(&self, format: &C::Format, picture: &'a Assembled<C>) -> impl Iterator<Item = &'a C::Slice> {
        let (format, tile) = (*format, self.region.tile);
        picture.slices.iter().filter(move |slice| C::position(&format, slice).0 == tile)
    }

    fn is_intra(&self, format: &C::Format, picture: &Assembled<C>) -> bool {
        self.slices(format, picture).all(C::is_intra)
    }

    /// Whether it has shown a picture, or will.
    fn shows(&self) -> bool {
        !self.stale || self.intra.is_some() || self.queue.peek().is_some()
    }

    /// Drops pictures that predict from what was lost, up to the next that can be shown.
    fn settle(&mut self, format: &C::Format) {
        while let Some(picture) = self.queue.peek() {
            let intra = self.is_intra(format, picture);
            self.stale |= !picture.follows && !intra;
            if intra || !self.stale {
                return;
            }
            self.queue.next();
        }
    }

    /// Whether it can be part of an IDR picture now. One that is stale shows nothing that could be lost.
    fn ready(&self, format: &C::Format) -> bool {
        match self.queue.peek() {
            Some(picture) => self.is_intra(format, picture),
            None => self.stale || self.intra.is_some(),
        }
    }

    /// The next picture, which it shows from now on.
    fn next(&mut self, format: &C::Format) -> Option<Arc<Assembled<C>>> {
        let picture = self.queue.next()?;
        let intra = self.is_intra(format, &picture);
        self.stale &= !intra;
        self.intra = intra.then(|| Arc::clone(&picture));
        Some(picture)
    }
}

/// Tiles of equal size.
#[derive(Debug)]
pub struct Sliced<C: Coding> {
    coding: C,
    tiles: Vec<Option<Tile<C>>>,
    /// Places that become grey with the next picture.
    blank: Vec<bool>,
    /// That of the first source's pictures, and the mosaic's parameter sets.
    format: Option<(C::Format, Vec<Vec<u8>>)>,
    begun: bool,
    /// An IDR picture is wanted, and since when it waits.
    wanted: bool,
    since: Option<Time>,
    frame: Frame,
}

impl<C: Coding> Sliced<C> {
    /// Its places stay as long as it does.
    #[must_use]
    pub fn of(coding: C) -> Self {
        let places = coding.places();
        Self {
            coding,
            tiles: (0..places).map(|_| None).collect(),
            blank: vec![false; places],
            format: None,
            begun: false,
            wanted: true,
            since: None,
            frame: Frame {
                idr: true,
                number: 0,
                id: 0,
            },
        }
    }

    /// Where a place is, once there is a source.
    #[must_use]
    pub fn area(&self, place: usize) -> Option<Area> {
        let (format, _) = self.format.as_ref()?;
        (place < self.tiles.len()).then(|| self.coding.area(format, place))
    }

    /// Whether an IDR picture is made now. Sources that keep it waiting for too long are grey until their next intra picture.
    fn begins(&mut self, format: &C::Format, now: Time) -> bool {
        if !self.wanted {
            return false;
        }
        let late = now.since(*self.since.get_or_insert(now)) >= PATIENCE;
        for tile in self.tiles.iter_mut().flatten() {
            if late && !tile.ready(format) {
                tile.stale = true;
                tile.settle(format);
            }
        }
        let ready = self.tiles.iter().flatten().all(|tile| tile.ready(format));
        (self.wanted, self.since) = if ready { (false, None) } else { (true, self.since) };
        ready
    }

    fn key_picture(&mut self, format: &C::Format, sets: &[Vec<u8>]) -> Vec<Unit> {
        self.frame = Frame {
            idr: true,
            number: 0,
            id: self.frame.id ^ 1,
        };
        self.begun = true;
        let nobody = |octets| Unit { octets, contributor: None };
        let mut units: Vec<Unit> = sets.iter().cloned().map(nobody).collect();
        for (place, tile) in self.tiles.iter_mut().enumerate() {
            let shown = tile.as_mut().is_some_and(|tile| {
                let picture = tile.next(format).or_else(|| tile.intra.clone());
                picture.is_some_and(|picture| own(&self.coding, tile, format, &picture, place, self.frame, &mut units))
            });
            if !shown {
                units.push(nobody(self.coding.grey(format, place, self.frame)));
            }
        }
        self.blank.fill(false);
        units
    }

    fn picture(&mut self, format: &C::Format) -> Vec<Unit> {
        let held = self.wanted;
        let frame = Frame {
            idr: false,
            number: (self.frame.number + 1) % (1 << FRAME_NUMBER_BITS),
            id: self.frame.id,
        };
        let mut news = false;
        let mut units = Vec::new();
        for (place, (tile, blank)) in self.tiles.iter_mut().zip(&mut self.blank).enumerate() {
            let shown = tile.as_mut().is_some_and(|tile| {
                // What an IDR picture waits for others with stays for it.
                if held && tile.region.predicted && tile.ready(format) {
                    return false;
                }
                let picture = tile.next(format);
                picture.is_some_and(|picture| own(&self.coding, tile, format, &picture, place, frame, &mut units))
            });
            news |= shown || *blank;
            if !shown {
                let octets = if *blank {
                    self.coding.grey(format, place, frame)
                } else {
                    self.coding.repeat(format, place, frame)
                };
                units.push(Unit { octets, contributor: None });
            }
            *blank = false;
        }
        if !news {
            return Vec::new();
        }
        self.frame = frame;
        units
    }
}

/// Adds a picture's slices at a tile's place; whether there are any.
fn own<C: Coding>(
    coding: &C,
    tile: &Tile<C>,
    format: &C::Format,
    picture: &Assembled<C>,
    place: usize,
    frame: Frame,
    units: &mut Vec<Unit>,
) -> bool {
    let before = units.len();
    units.extend(tile.slices(format, picture).map(|slice| Unit {
        octets: coding.own(format, slice, place, frame),
        contributor: Some(tile.contributor),
    }));
    units.len() > before
}

/// Whether a picture's slices for a region are one after the other, within it, and what the region allows.
fn fits<C: Coding>(coding: &C, format: &C::Format, region: Region, picture: &Assembled<C>) -> Result<(), Refusal> {
    let mut next = (0, 0);
    let mut count = 0;
    for slice in &picture.slices {
        let position = C::position(format, slice);
        if position < next || position.0 >= region.tiles {
            return Err(Refusal::SliceOrder);
        }
        next = (position.0, position.1 + 1);
        if position.0 != region.tile {
            continue;
        }
        if count == 0 && position.1 > 0 {
            return Err(Refusal::SliceOrder);
        }
        if !C::is_intra(slice) && !region.predicted {
            return Err(Refusal::Predicted);
        }
        if region.predicted && !C::is_reference(slice) {
            return Err(Refusal::References);
        }
        count += 1;
    }
    if count > coding.most_slices(format) {
        return Err(Refusal::Slices);
    }
    Ok(())
}

impl<C: Coding> Mosaic for Sliced<C> {
    type Assembler = Assembler<C>;
    type Picture = Result<Assembled<C>, Refusal>;
    type Region = Region;

    fn assemble(assembler: &mut Assembler<C>, next: &Next, alone: bool) -> Vec<Self::Picture> {
        assembler.take(next, alone)
    }

    fn alone(picture: &mut Self::Picture) -> Option<Vec<u8>> {
        picture.as_mut().ok().and_then(|picture| picture.alone.take())
    }

    fn places(&self) -> usize {
        self.tiles.len()
    }

    /// The first that joins decides anew what the tiles have in common.
    fn join(&mut self, place: usize, contributor: u32, region: Region) {
        if self.tiles.iter().all(Option::is_none) {
            (self.format, self.begun, self.wanted) = (None, false, true);
        }
        if let Some(tile) = self.tiles.get_mut(place) {
            self.blank[place] |= tile.is_some();
            *tile = Some(Tile {
                contributor,
                region,
                queue: Queue::new(WAITING),
                stale: true,
                intra: None,
            });
        }
    }

    fn leave(&mut self, place: usize) {
        if let Some(tile) = self.tiles.get_mut(place) {
            self.blank[place] |= tile.take().is_some();
        }
    }

    fn put(&mut self, places: &[usize], picture: Self::Picture, now: Time) -> Result<(), Refusal> {
        let picture = Arc::new(picture?);
        let mut refusal = Ok(());
        let settled = self.tiles.iter().flatten().any(Tile::shows);
        for place in places {
            let Some(tile) = self.tiles.get_mut(*place).and_then(Option::as_mut) else {
                continue;
            };
            let own = C::format(&picture.sequence, &picture.picture, tile.region.tiles);
            let format = own.and_then(|own| match &self.format {
                Some((format, _)) if settled || C::admits(format, &own).is_ok() => {
                    C::admits(format, &own)?;
                    fits(&self.coding, format, tile.region, &picture)?;
                    Ok(*format)
                }
                // Nobody shows anything of the format that there may be.
                _ => {
                    let sets = self.coding.begin(&own)?;
                    fits(&self.coding, &own, tile.region, &picture)?;
                    (self.format, self.begun, self.wanted) = (Some((own, sets)), false, true);
                    Ok(own)
                }
            });
            match format {
                Ok(format) => {
                    // What is dropped is missing for those after it, unless they are intra.
                    tile.stale |= tile.queue.put(Arc::clone(&picture), now).is_some();
                    tile.settle(&format);
                }
                Err(found) => refusal = Err(found),
            }
        }
        refusal
    }

    fn queues(&self) -> Vec<(usize, Option<Time>)> {
        self.tiles.iter().flatten().map(|tile| tile.queue.waiting()).collect()
    }

    fn due(&self) -> bool {
        let Some((format, _)) = self.format.as_ref().filter(|_| self.begun) else {
            return false;
        };
        self.blank.contains(&true) || self.wanted && self.tiles.iter().flatten().all(|tile| tile.ready(format))
    }

    fn refresh(&mut self) {
        self.wanted = true;
    }

    fn needs_key_frame(&self, place: usize) -> bool {
        let tile = self.tiles.get(place).and_then(Option::as_ref);
        tile.is_some_and(|tile| tile.stale)
    }

    fn compose(&mut self, now: Time, size: usize) -> Vec<Payload> {
        let Some((format, sets)) = self.format.take() else {
            return Vec::new();
        };
        let units = if self.begins(&format, now) {
            self.key_picture(&format, &sets)
        } else if self.begun {
            self.picture(&format)
        } else {
            Vec::new()
        };
        self.format = Some((format, sets));
        payloads::<C::Packing>(&units, size)
    }
}
