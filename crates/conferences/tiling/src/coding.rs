//! Codecs whose slices can be given other places in a larger picture: what differs between them.

use crate::packing::Packing;
use crate::refusal::Refusal;
use std::fmt::Debug;

/// Of the mosaic: bits of its pictures' numbers.
pub const FRAME_NUMBER_BITS: u32 = 8;

/// What a NAL unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Slice,
    Sequence,
    Picture,
    /// A parameter set that sequence parameter sets refer to.
    Common,
    /// A source that sends these cannot be tiled.
    Refused(Refusal),
    /// It describes the picture, or extends it.
    Other,
}

/// What slices of one picture of the mosaic have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub idr: bool,
    /// Pictures since the last IDR picture, modulo 2 to the power of [`FRAME_NUMBER_BITS`].
    pub number: u32,
    /// Of an IDR picture; two in a row differ.
    pub id: u32,
}

/// A rectangle, in samples of luma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

/// One codec, and the places of one mosaic.
pub trait Coding: Debug + Sized {
    /// Whether sequence parameter sets refer to others ([`Kind::Common`]).
    const COMMON: bool;
    type Packing: Packing;
    /// Parameter sets of a source, as far as tiling depends on them.
    type Sequence: Debug;
    type Picture: Debug;
    /// A slice of a source.
    type Slice: Debug;
    /// What the pictures of all tiles have in common.
    type Format: Debug + Copy;
    /// What is remembered of a source's pictures for those that follow.
    type Order: Debug + Default;

    fn kind(unit: &[u8]) -> Kind;

    /// A sequence parameter set, with its number.
    ///
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    fn sequence(unit: &[u8]) -> Result<(u32, Self::Sequence), Refusal>;

    /// A picture parameter set, with its number and that of its sequence parameter set.
    ///
    /// # Errors
    /// It is cut short, or of pictures that cannot be tiled.
    fn picture(unit: &[u8]) -> Result<(u32, u32, Self::Picture), Refusal>;

    /// The number of a slice's picture parameter set.
    fn parameter_set(unit: &[u8]) -> Option<u32>;

    /// # Errors
    /// It is cut short, or cannot be tiled.
    fn slice(unit: Vec<u8>, sequence: &Self::Sequence, picture: &Self::Picture) -> Result<Self::Slice, Refusal>;

    /// The next picture of a source; `order` is what is known of those before, nothing if the last of them was lost.
    ///
    /// # Errors
    /// It predicts from another picture than the one before, or is not shown after it.
    fn follow(order: &mut Self::Order, slices: &[Self::Slice]) -> Result<(), Refusal>;

    /// Of a source whose picture has so many tiles.
    ///
    /// # Errors
    /// It has not.
    fn format(sequence: &Self::Sequence, picture: &Self::Picture, tiles: u32) -> Result<Self::Format, Refusal>;

    /// Whether pictures of another source go with those of the format.
    ///
    /// # Errors
    /// What differs.
    fn admits(format: &Self::Format, other: &Self::Format) -> Result<(), Refusal>;

    /// In which tile of the source's picture a slice begins, and at which macroblock or coding tree block of the tile.
    fn position(format: &Self::Format, slice: &Self::Slice) -> (u32, u32);

    /// Whether it is the first slice of its source's picture.
    fn is_first(slice: &Self::Slice) -> bool;

    fn is_intra(slice: &Self::Slice) -> bool;

    /// Whether the next picture may predict from it.
    fn is_reference(slice: &Self::Slice) -> bool;

    fn places(&self) -> usize;

    /// Pictures of the mosaic have this format from now on. Its parameter sets.
    ///
    /// # Errors
    /// No level allows so many tiles.
    fn begin(&mut self, format: &Self::Format) -> Result<Vec<Vec<u8>>, Refusal>;

    /// Slices that a tile has at most.
    fn most_slices(&self, format: &Self::Format) -> usize;

    /// A source's slice as a NAL unit of the mosaic.
    fn own(&self, format: &Self::Format, slice: &Self::Slice, place: usize, frame: Frame) -> Vec<u8>;

    /// A slice that shows grey.
    fn grey(&self, format: &Self::Format, place: usize, frame: Frame) -> Vec<u8>;

    /// A slice that shows the picture before once more.
    fn repeat(&self, format: &Self::Format, place: usize, frame: Frame) -> Vec<u8>;

    /// Where a place is.
    fn area(&self, format: &Self::Format, place: usize) -> Area;
}
