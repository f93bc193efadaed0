//! A column of tiles: every picture has a slice, or several, of each.
//!
//! All slices but those of an IDR picture may be coded intra or predicted from the column's picture before, so sources need not be in step:
//! a source's IDR picture becomes intra slices, and a tile without a new picture repeats the one before. IDR pictures, which a receiver begins
//! with, need every tile coded intra: a tile shows its last picture again if that was intra, or waits for the source's next.

use super::assembler::{Assembled, Assembler};
use super::fill::{grey, repeat};
use super::packets::{Unit, payloads};
use super::parameters::{FRAME_NUMBER_BITS, Format};
use super::slice::{Frame, Slice};
use crate::order::Next;
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
    /// Which of `tiles` tiles of a mixer's column, from the top; 0 of 1: all of the picture.
    pub tile: u32,
    pub tiles: u32,
    /// Pictures may predict from the one before. The source sees to it that no vector leaves the tile, or only into a band of grey at its
    /// edges, or is a mixer; this cannot be told from its headers.
    pub predicted: bool,
}

#[derive(Debug)]
struct Tile {
    contributor: u32,
    region: Region,
    queue: Queue<Arc<Assembled>>,
    /// It shows an earlier picture than its source's next one may predict from.
    stale: bool,
    /// What it shows, if that was coded intra.
    intra: Option<Arc<Assembled>>,
}

impl Tile {
    fn slices<'a>(&self, format: &Format, picture: &'a Assembled) -> impl Iterator<Item = &'a Slice> {
        let first = self.region.tile * format.macroblocks();
        let own = first..first + format.macroblocks();
        picture.slices.iter().filter(move |slice| own.contains(&slice.first))
    }

    fn is_intra(&self, format: &Format, picture: &Assembled) -> bool {
        self.slices(format, picture).all(|slice| slice.intra)
    }

    /// Drops pictures that predict from what was lost, up to the next that can be shown.
    fn settle(&mut self, format: &Format) {
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
    fn ready(&self, format: &Format) -> bool {
        match self.queue.peek() {
            Some(picture) => self.is_intra(format, picture),
            None => self.stale || self.intra.is_some(),
        }
    }

    /// The next picture, which it shows from now on.
    fn next(&mut self, format: &Format) -> Option<Arc<Assembled>> {
        let picture = self.queue.next()?;
        let intra = self.is_intra(format, &picture);
        self.stale &= !intra;
        self.intra = intra.then(|| Arc::clone(&picture));
        Some(picture)
    }
}

/// Tiles of equal size, one below the other.
#[derive(Debug)]
pub struct Column {
    tiles: Vec<Option<Tile>>,
    /// Places that become grey with the next picture.
    blank: Vec<bool>,
    /// That of the first source's pictures.
    format: Option<Format>,
    begun: bool,
    /// An IDR picture is wanted, and since when it waits.
    wanted: bool,
    since: Option<Time>,
    frame: Frame,
}

impl Column {
    /// With so many places, which stay as long as the column does.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
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

    /// What the tiles have in common, once there is a source.
    #[must_use]
    pub fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    /// Whether an IDR picture is made now. Sources that keep it waiting for too long are grey until their next intra picture.
    fn begins(&mut self, format: &Format, now: Time) -> bool {
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

    fn key_picture(&mut self, format: &Format, sets: [Vec<u8>; 2]) -> Vec<Unit> {
        self.frame = Frame {
            idr: true,
            number: 0,
            id: self.frame.id ^ 1,
        };
        self.begun = true;
        let nobody = |octets| Unit { octets, contributor: None };
        let mut units: Vec<Unit> = sets.into_iter().map(nobody).collect();
        for (offset, tile) in (0..).step_by(format.macroblocks() as usize).zip(&mut self.tiles) {
            let shown = tile.as_mut().and_then(|tile| {
                let picture = tile.next(format).or_else(|| tile.intra.clone())?;
                Some(own(tile, format, &picture, offset, self.frame))
            });
            match shown {
                Some(slices) if !slices.is_empty() => units.extend(slices),
                _ => units.push(nobody(grey(format, offset, self.frame))),
            }
        }
        self.blank.fill(false);
        units
    }

    fn picture(&mut self, format: &Format) -> Vec<Unit> {
        let held = self.wanted;
        let frame = Frame {
            idr: false,
            number: (self.frame.number + 1) % (1 << FRAME_NUMBER_BITS),
            id: self.frame.id,
        };
        let mut news = false;
        let mut units = Vec::new();
        let places = self.tiles.iter_mut().zip(&mut self.blank);
        for (offset, (tile, blank)) in (0..).step_by(format.macroblocks() as usize).zip(places) {
            let shown = tile.as_mut().and_then(|tile| {
                // What an IDR picture waits for others with stays for it.
                if held && tile.region.predicted && tile.ready(format) {
                    return None;
                }
                let picture = tile.next(format)?;
                Some(own(tile, format, &picture, offset, frame))
            });
            match shown {
                Some(slices) if !slices.is_empty() => {
                    news = true;
                    units.extend(slices);
                }
                _ => {
                    news |= *blank;
                    let octets = if *blank {
                        grey(format, offset, frame)
                    } else {
                        repeat(format, offset, frame)
                    };
                    units.push(Unit { octets, contributor: None });
                }
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

/// A picture's slices at a tile's place.
fn own(tile: &Tile, format: &Format, picture: &Assembled, offset: u32, frame: Frame) -> Vec<Unit> {
    let first = tile.region.tile * format.macroblocks();
    tile.slices(format, picture)
        .map(|slice| Unit {
            octets: slice.unit(first, offset, frame),
            contributor: Some(tile.contributor),
        })
        .collect()
}

/// Whether a picture's slices for a region are one after the other, within it, and what the region allows.
fn fits(format: &Format, region: Region, picture: &Assembled) -> Result<(), Refusal> {
    let mut next = 0;
    for slice in &picture.slices {
        if slice.first < next || slice.first >= format.macroblocks() * region.tiles {
            return Err(Refusal::SliceOrder);
        }
        next = slice.first + 1;
    }
    let first = region.tile * format.macroblocks();
    let own = first..first + format.macroblocks();
    let mut slices = picture.slices.iter().filter(|slice| own.contains(&slice.first)).peekable();
    if slices.peek().is_some_and(|slice| slice.first != first) {
        return Err(Refusal::SliceOrder);
    }
    for slice in slices {
        if !slice.intra && !region.predicted {
            return Err(Refusal::Predicted);
        }
        if region.predicted && !slice.reference {
            return Err(Refusal::References);
        }
    }
    Ok(())
}

impl Mosaic for Column {
    type Assembler = Assembler;
    type Picture = Result<Assembled, Refusal>;
    type Region = Region;

    fn assemble(assembler: &mut Assembler, next: &Next) -> Vec<Self::Picture> {
        assembler.take(next)
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
        let count = u32::try_from(self.tiles.len()).unwrap_or(u32::MAX);
        let mut refusal = Ok(());
        for place in places {
            let Some(tile) = self.tiles.get_mut(*place).and_then(Option::as_mut) else {
                continue;
            };
            let format = Format::of(&picture.sequence, &picture.picture, tile.region.tiles).and_then(|own| {
                if self.format.is_none() {
                    own.parameter_sets(count)?;
                }
                let format = *self.format.get_or_insert(own);
                format.admits(&own)?;
                fits(&format, tile.region, &picture)?;
                Ok(format)
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
        let Some(format) = self.format.as_ref().filter(|_| self.begun) else {
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
        let Some(format) = self.format else { return Vec::new() };
        let places = u32::try_from(self.tiles.len()).unwrap_or(u32::MAX);
        let Ok(sets) = format.parameter_sets(places) else {
            return Vec::new();
        };
        let units = if self.begins(&format, now) {
            self.key_picture(&format, sets)
        } else if self.begun {
            self.picture(&format)
        } else {
            Vec::new()
        };
        payloads(&units, size)
    }
}
