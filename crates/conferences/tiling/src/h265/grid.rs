//! A grid of tiles, side by side: each place is a tile of the picture.

use super::fill::{Fill, tools};
use super::format::Format;
use super::nal;
use super::packets::Rfc7798;
use super::parameters::{Picture, Sequence};
use super::slice::{self, Address, Slice, bits_below};
use crate::coding::{Area, Coding, Frame, Kind};
use crate::refusal::Refusal;
use crate::sliced::Sliced;

pub use crate::sliced::Region;

/// H.265, and the columns and rows of a grid.
#[derive(Clone, Debug)]
pub struct H265 {
    columns: u32,
    rows: u32,
    slices: u32,
    fill: Option<Fill>,
}

/// Tiles of equal size, in columns and rows, numbered row by row.
pub type Grid = Sliced<H265>;

/// The fewest columns that make a grid with so many places no higher than wide.
#[must_use]
pub fn columns(places: u8) -> u8 {
    (1..16).find(|columns| columns * columns >= places).unwrap_or(16)
}

impl Grid {
    /// With so many columns and rows, each at least 1, which stay as long as the grid does.
    #[must_use]
    pub fn new(columns: u8, rows: u8) -> Self {
        Self::of(H265 {
            columns: u32::from(columns).max(1),
            rows: u32::from(rows).max(1),
            slices: 1,
            fill: None,
        })
    }
}

impl H265 {
    /// Column and row of a place.
    fn at(&self, place: usize) -> (u32, u32) {
        // There are at most 255 times 255.
        #[allow(clippy::cast_possible_truncation)]
        let place = place as u32;
        (place % self.columns, place / self.columns)
    }

    /// Of a coding tree block of a place's tile.
    fn address(&self, format: &Format, place: usize, tree: u32) -> Address {
        let (column, row) = self.at(place);
        let width = self.columns * format.width;
        let (x, y) = (
            column * format.width + tree % format.width,
            row * format.height + tree / format.width,
        );
        Address {
            tree: y * width + x,
            bits: bits_below(width * self.rows * format.height),
            tiles: self.columns * self.rows > 1,
        }
    }
}

impl Coding for H265 {
    const COMMON: bool = true;
    type Packing = Rfc7798;
    type Sequence = Sequence;
    type Picture = Picture;
    type Slice = Slice;
    type Format = Format;
    /// The order of the picture before.
    type Order = Option<u32>;

    fn kind(unit: &[u8]) -> Kind {
        match nal::kind(unit) {
            kind if nal::SLICES.iter().any(|kinds| kinds.contains(&kind)) => Kind::Slice,
            kind if nal::LEADING.contains(&kind) => Kind::Refused(Refusal::Reordered),
            nal::SPS => Kind::Sequence,
            nal::PPS => Kind::Picture,
            nal::VPS => Kind::Common,
            _ => Kind::Other,
        }
    }

    fn sequence(unit: &[u8]) -> Result<(u32, Sequence), Refusal> {
        Sequence::parse(unit).map(|set| (set.id, set))
    }

    fn picture(unit: &[u8]) -> Result<(u32, u32, Picture), Refusal> {
        Picture::parse(unit).map(|set| (set.id, set.sequence, set))
    }

    fn parameter_set(unit: &[u8]) -> Option<u32> {
        slice::parameter_set(unit)
    }

    fn slice(unit: Vec<u8>, sequence: &Sequence, picture: &Picture) -> Result<Slice, Refusal> {
        Slice::parse(unit, sequence, picture)
    }

    fn follow(order: &mut Option<u32>, slices: &[Slice]) -> Result<(), Refusal> {
        let Some(first) = slices.first().map(|slice| slice.position) else {
            return Ok(());
        };
        let alike = |slice: &Slice| slice.position.anew == first.anew && slice.position.order == first.order;
        if !slices.iter().all(alike) {
            return Err(Refusal::SliceOrder);
        }
        let Some(before) = order.replace(first.order).filter(|_| !first.anew) else {
            return Ok(());
        };
        let mask = (1 << first.bits) - 1;
        let step = first.order.wrapping_sub(before) & mask;
        if step == 0 || step > mask / 2 {
            return Err(Refusal::Reordered);
        }
        // Which picture a slice predicts from is told by its order.
        if slices.iter().any(|slice| slice.position.back.is_some_and(|back| back != step)) {
            return Err(Refusal::References);
        }
        Ok(())
    }

    fn format(sequence: &Sequence, picture: &Picture, tiles: u32) -> Result<Format, Refusal> {
        Format::of(sequence, picture, tiles)
    }

    fn admits(format: &Format, other: &Format) -> Result<(), Refusal> {
        format.admits(other)
    }

    fn position(_: &Format, slice: &Slice) -> (u32, u32) {
        (slice.tile, slice.first)
    }

    fn is_first(slice: &Slice) -> bool {
        slice.begins
    }

    fn is_intra(slice: &Slice) -> bool {
        slice.intra()
    }

    /// That the next one predicts from it is told by the next one.
    fn is_reference(_: &Slice) -> bool {
        true
    }

    fn places(&self) -> usize {
        (self.columns * self.rows) as usize
    }

    fn begin(&mut self, format: &Format) -> Result<Vec<Vec<u8>>, Refusal> {
        let sets = format.parameter_sets(self.columns, self.rows)?;
        self.slices = format.slices(self.columns, self.rows)?;
        self.fill = Some(Fill::of(format));
        Ok(sets.into())
    }

    fn most_slices(&self, _: &Format) -> usize {
        self.slices as usize
    }

    fn own(&self, format: &Format, slice: &Slice, place: usize, frame: Frame) -> Vec<u8> {
        slice::unit(self.address(format, place, slice.first), &slice.tools, frame, slice.data())
    }

    fn grey(&self, format: &Format, place: usize, frame: Frame) -> Vec<u8> {
        let data = self.fill.as_ref().map(|fill| fill.grey.as_slice()).unwrap_or_default();
        slice::unit(self.address(format, place, 0), &tools(slice::Kind::Intra), frame, data)
    }

    fn repeat(&self, format: &Format, place: usize, frame: Frame) -> Vec<u8> {
        let data = self.fill.as_ref().map(|fill| fill.repeat.as_slice()).unwrap_or_default();
        slice::unit(self.address(format, place, 0), &tools(slice::Kind::Once), frame, data)
    }

    fn area(&self, format: &Format, place: usize) -> Area {
        let ((column, row), (width, height)) = (self.at(place), format.size());
        Area {
            x: column * width,
            y: row * height,
            width,
            height,
        }
    }
}
