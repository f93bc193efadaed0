//! A column of tiles, one below the other: each tile's slices begin at the first macroblock of its place.

use super::fill::{grey, repeat};
use super::nal;
use super::packets::Rfc6184;
use super::parameters::{Format, Picture, Sequence};
use super::slice::{self, Slice};
use crate::coding::{Area, Coding, Frame, Kind};
use crate::refusal::Refusal;
use crate::sliced::Sliced;

pub use crate::sliced::Region;

/// H.264, and how many places a column has.
#[derive(Clone, Copy, Debug)]
pub struct H264 {
    places: usize,
}

/// Tiles of equal size, one below the other.
pub type Column = Sliced<H264>;

impl Column {
    /// With so many places, which stay as long as the column does.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self::of(H264 { places })
    }
}

/// The first macroblock of a place. Those of all places together are as many as a level allows.
fn first(format: &Format, place: usize) -> u32 {
    // There are no more places than a level has macroblocks.
    #[allow(clippy::cast_possible_truncation)]
    let place = place as u32;
    format.macroblocks() * place
}

impl Coding for H264 {
    const COMMON: bool = false;
    type Packing = Rfc6184;
    type Sequence = Sequence;
    type Picture = Picture;
    type Slice = Slice;
    type Format = Format;
    type Order = ();

    fn kind(unit: &[u8]) -> Kind {
        match nal::kind(unit) {
            nal::SLICE | nal::IDR => Kind::Slice,
            nal::SPS => Kind::Sequence,
            nal::PPS => Kind::Picture,
            // Partitions cannot be tiled.
            2..=4 => Kind::Refused(Refusal::SliceGroups),
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
        Slice::parse(&unit, sequence, picture)
    }

    /// Slices say themselves that there is one picture to predict from; frame numbers are not looked at.
    fn follow((): &mut (), _: &[Slice]) -> Result<(), Refusal> {
        Ok(())
    }

    fn format(sequence: &Sequence, picture: &Picture, tiles: u32) -> Result<Format, Refusal> {
        Format::of(sequence, picture, tiles)
    }

    fn admits(format: &Format, other: &Format) -> Result<(), Refusal> {
        format.admits(other)
    }

    fn position(format: &Format, slice: &Slice) -> (u32, u32) {
        (slice.first / format.macroblocks(), slice.first % format.macroblocks())
    }

    fn is_first(slice: &Slice) -> bool {
        slice.first == 0
    }

    fn is_intra(slice: &Slice) -> bool {
        slice.intra
    }

    fn is_reference(slice: &Slice) -> bool {
        slice.reference
    }

    fn places(&self) -> usize {
        self.places
    }

    fn begin(&mut self, format: &Format) -> Result<Vec<Vec<u8>>, Refusal> {
        let sets = format.parameter_sets(u32::try_from(self.places).unwrap_or(u32::MAX))?;
        Ok(sets.into())
    }

    fn most_slices(&self, _: &Format) -> usize {
        usize::MAX
    }

    fn own(&self, format: &Format, slice: &Slice, place: usize, frame: Frame) -> Vec<u8> {
        slice.unit(slice.first - slice.first % format.macroblocks(), first(format, place), frame)
    }

    fn grey(&self, format: &Format, place: usize, frame: Frame) -> Vec<u8> {
        grey(format, first(format, place), frame)
    }

    fn repeat(&self, format: &Format, place: usize, frame: Frame) -> Vec<u8> {
        repeat(format, first(format, place), frame)
    }

    fn area(&self, format: &Format, place: usize) -> Area {
        let (width, height) = (16 * format.width, 16 * format.height);
        Area {
            x: 0,
            y: first(format, place) / format.width * 16,
            width,
            height,
        }
    }
}
