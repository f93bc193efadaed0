//! Four tiles of QCIF in one CIF picture: groups of blocks get new numbers, macroblocks stay as they are.
//!
//! A tile's groups go on as long as all that they predict from is intact. What was lost leaves macroblocks that are *stale*: they show an
//! earlier picture. A group with a macroblock that predicts from a stale one does not go on; an empty group takes its place, and the
//! macroblocks that it codes are stale too. Macroblocks coded intra are intact again. So a tile never drifts: every macroblock is what its
//! source's decoder has at it, now or at an earlier picture.

use super::assembler::{Assembled, Assembler};
use super::packets::payloads;
use super::payload::Header;
use super::picture::{Group, IN_GROUP, Macroblock, Size};
use crate::bits::Writer;
use crate::fault::{Fault, What};
use crate::order::Next;
use crate::queue::Queue;
use crate::refusal::Refusal;
use crate::stream::Payload;
use crate::tiler;
use shunt_latch::Time;
use std::sync::Arc;

pub const TILES: usize = 4;
/// Pictures of a tile that wait at most.
const WAITING: usize = 16;
/// Groups of a tile; macroblocks in a row and in a column of it.
const GROUPS: usize = 3;
const COLUMNS: usize = 11;
const ROWS: usize = 9;
const ALL: u128 = (1 << (COLUMNS * ROWS)) - 1;

/// The part of a source's picture that a tile shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// A QCIF picture.
    Whole,
    /// A quarter of a CIF picture, 0 to 3, that is a tile of a mixer's.
    Quarter(u8),
}

impl Region {
    fn size(self) -> Size {
        match self {
            Self::Whole => Size::Qcif,
            Self::Quarter(_) => Size::Cif,
        }
    }

    /// The number of its group at `index`, from the top.
    fn number(self, index: u8) -> u8 {
        match self {
            Self::Whole => 1 + 2 * index,
            Self::Quarter(quarter) => 1 + 2 * index + quarter % 2 + 6 * (quarter / 2),
        }
    }
}

/// A place of a packet's payload where another packet may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub at: usize,
    pub header: Header,
    /// Whose bits follow; nobody's: an empty group.
    pub contributor: Option<u32>,
}

/// A CIF picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Composed {
    pub bits: Vec<u8>,
    /// Bits of it.
    pub end: usize,
    pub cuts: Vec<Cut>,
}

#[derive(Debug)]
struct Tile {
    contributor: u32,
    region: Region,
    queue: Queue<Arc<Assembled>>,
    /// A bit for each macroblock, row by row.
    stale: u128,
}

/// Four places.
#[derive(Debug)]
pub struct Mosaic {
    tiles: [Option<Tile>; TILES],
    /// Places that become black with the next picture.
    blank: [bool; TILES],
    /// Groups that did not go on, because what they predict from is stale.
    pub held_back: u64,
}

impl Default for Mosaic {
    fn default() -> Self {
        Self {
            tiles: [const { None }; TILES],
            blank: [true; TILES],
            held_back: 0,
        }
    }
}

impl tiler::Mosaic for Mosaic {
    type Assembler = Assembler;
    type Picture = Assembled;
    type Region = Region;

    fn assemble(assembler: &mut Assembler, next: &Next, _: bool) -> Vec<Assembled> {
        assembler.take(next)
    }

    /// Whatever it predicts from: all of it can be decoded.
    fn alone(picture: &mut Assembled) -> Option<Vec<u8>> {
        picture.whole.then(|| picture.bits.clone())
    }

    fn places(&self) -> usize {
        TILES
    }

    fn join(&mut self, place: usize, contributor: u32, region: Region) {
        if let Some(tile) = self.tiles.get_mut(place) {
            self.blank[place] |= tile.is_some();
            *tile = Some(Tile {
                contributor,
                region,
                queue: Queue::new(WAITING),
                stale: ALL,
            });
        }
    }

    /// The place becomes black.
    fn leave(&mut self, place: usize) {
        if let Some(tile) = self.tiles.get_mut(place) {
            *tile = None;
            self.blank[place] = true;
        }
    }

    fn put(&mut self, places: &[usize], picture: Assembled, now: Time) -> Result<(), Refusal> {
        let picture = Arc::new(picture);
        let mut refusal = picture.fault.map(Refusal::Fault);
        for place in places {
            let Some(tile) = self.tiles.get_mut(*place).and_then(Option::as_mut) else {
                continue;
            };
            if picture.picture.size.is_some_and(|size| size != tile.region.size()) {
                refusal = Some(Refusal::PictureSize);
            } else if let Some(dropped) = tile.queue.put(Arc::clone(&picture), now) {
                tile.miss(&dropped);
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    fn queues(&self) -> Vec<(usize, Option<Time>)> {
        self.tiles.iter().flatten().map(|tile| tile.queue.waiting()).collect()
    }

    fn due(&self) -> bool {
        self.blank.contains(&true)
    }

    /// Empty places become black again.
    fn refresh(&mut self) {
        for (blank, tile) in self.blank.iter_mut().zip(&self.tiles) {
            *blank |= tile.is_none();
        }
    }

    fn needs_key_frame(&self, place: usize) -> bool {
        let tile = self.tiles.get(place).and_then(Option::as_ref);
        tile.is_some_and(|tile| tile.stale != 0)
    }

    fn compose(&mut self, now: Time, size: usize) -> Vec<Payload> {
        // In units of 1001/30000 s (section 4.2.1), modulo 32.
        #[allow(clippy::cast_possible_truncation)]
        let reference = (u128::from(now.as_nanos()) * 30_000 / 1_001_000_000_000 % 32) as u8;
        payloads(&self.picture(reference), size)
    }
}

impl Mosaic {
    /// The next picture: of each tile the oldest that waits, or nothing new. `reference` is its temporal reference (section 4.2.1), 0 to 31.
    pub fn picture(&mut self, reference: u8) -> Composed {
        let shown: Vec<Option<(Arc<Assembled>, [bool; GROUPS])>> = self
            .tiles
            .iter_mut()
            .map(|tile| {
                let tile = tile.as_mut()?;
                let picture = tile.queue.next()?;
                let passing = tile.show(&picture);
                self.held_back += passing.iter().filter(|passes| !**passes).count() as u64;
                Some((picture, passing))
            })
            .collect();
        let mut out = Writer::default();
        let mut cuts = Vec::with_capacity(400);
        out.put(0x10, 20);
        out.put(u32::from(reference), 5);
        // CIF; neither split screen, document camera nor still image.
        out.put(0b00_0111, 6);
        out.put(0, 1);
        for number in 1..=12u8 {
            let half = number > 6;
            let place = usize::from((number - 1) % 2) + 2 * usize::from(half);
            let index = (number - 1 - 6 * u8::from(half)) / 2;
            let mut cut = Cut {
                at: if number == 1 { 0 } else { out.len() },
                header: Header::default(),
                contributor: None,
            };
            out.put(1, 16);
            out.put(u32::from(number), 4);
            let tile = self.tiles[place].as_ref();
            let own = tile.zip(shown[place].as_ref()).and_then(|(tile, (picture, passing))| {
                let group = picture.group(tile.region.number(index)).filter(|_| passing[usize::from(index)])?;
                Some((tile.contributor, picture, group))
            });
            if let Some((contributor, picture, group)) = own {
                cut.contributor = Some(contributor);
                cuts.push(cut);
                let offset = out.len();
                let further = picture.picture.macroblocks[group.macroblocks.clone()].iter().skip(1);
                cuts.extend(further.map(|macroblock| Cut {
                    at: macroblock.at - group.bits.start + offset,
                    header: Header {
                        group: number,
                        address: macroblock.previous - 1,
                        quantiser: macroblock.quantiser,
                        vector: macroblock.reference,
                        ..Header::default()
                    },
                    contributor: Some(contributor),
                }));
                out.copy(&picture.bits, group.bits.start, group.bits.end);
            } else {
                cuts.push(cut);
                // A quantiser, which is not used, and no extra information.
                out.put(8 << 1, 6);
                if self.blank[place] {
                    (0..IN_GROUP).for_each(|_| black(&mut out));
                }
            }
        }
        self.blank = [false; TILES];
        Composed {
            end: out.len(),
            bits: out.finish(),
            cuts,
        }
    }
}

/// A macroblock of black, coded intra, right after the one before.
fn black(out: &mut Writer) {
    // Address, type; then for each block the mean (16 for black, 128 for no colour) and the end.
    out.put(0b1_0001, 5);
    (0..4).for_each(|_| out.put(16 << 2 | 0b10, 10));
    (0..2).for_each(|_| out.put(255 << 2 | 0b10, 10));
}

impl Assembled {
    fn group(&self, number: u8) -> Option<&Group> {
        self.picture.groups.iter().find(|group| group.number == number)
    }
}

impl Tile {
    /// Which of the picture's groups go on; what is stale after them.
    fn show(&mut self, picture: &Assembled) -> [bool; GROUPS] {
        if !picture.follows {
            self.stale = ALL;
        }
        let before = self.stale;
        let mut passing = [true; GROUPS];
        for (index, passes) in (0..).zip(&mut passing) {
            let Some(group) = picture.group(self.region.number(index)) else {
                // A whole picture without a group changes nothing there.
                if !picture.whole {
                    self.stale |= of_group(index);
                }
                continue;
            };
            let macroblocks = &picture.picture.macroblocks[group.macroblocks.clone()];
            let coded = macroblocks
                .iter()
                .fold(0, |coded, macroblock| coded | bit(index, macroblock.address));
            // A prediction is from the picture before, whatever this one has changed.
            *passes = macroblocks
                .iter()
                .all(|macroblock| macroblock.intra || references(index, macroblock).is_ok_and(|needed| needed & before == 0));
            self.stale = if *passes { self.stale & !coded } else { self.stale | coded };
        }
        passing
    }

    /// A picture that is not shown.
    fn miss(&mut self, picture: &Assembled) {
        if !picture.follows || !picture.whole {
            self.stale = ALL;
        }
        for index in 0..3 {
            if let Some(group) = picture.group(self.region.number(index)) {
                let macroblocks = &picture.picture.macroblocks[group.macroblocks.clone()];
                self.stale = macroblocks
                    .iter()
                    .fold(self.stale, |stale, macroblock| stale | bit(index, macroblock.address));
            }
        }
    }
}

fn bit(index: u8, address: u8) -> u128 {
    1 << (u32::from(index) * u32::from(IN_GROUP) + u32::from(address) - 1)
}

fn of_group(index: u8) -> u128 {
    ((1 << IN_GROUP) - 1) << (u32::from(index) * u32::from(IN_GROUP))
}

/// The macroblocks of a tile that one predicts from.
///
/// # Errors
/// Its vector leaves the tile.
fn references(index: u8, macroblock: &Macroblock) -> Result<u128, Fault> {
    let position = usize::from(index * IN_GROUP + macroblock.address - 1);
    let span = |at: usize, vector: i8, end: usize| {
        let first = i32::try_from(at * 16).unwrap_or(0) + i32::from(vector);
        let first = usize::try_from(first).ok().filter(|first| first + 16 <= end * 16).ok_or(Fault {
            what: What::VectorRange,
            at: macroblock.at,
        })?;
        Ok(first / 16..=first.div_ceil(16))
    };
    let columns = span(position % COLUMNS, macroblock.vector.0, COLUMNS)?;
    let rows = span(position / COLUMNS, macroblock.vector.1, ROWS)?;
    Ok(rows.fold(0, |needed, row| {
        columns
            .clone()
            .fold(needed, |needed, column| needed | 1 << (row * COLUMNS + column))
    }))
}
