//! Why a source cannot be tiled, or not at the moment.

use crate::fault::Fault;
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("its pictures are not of the tile's size")]
    PictureSize,
    #[error("its bit stream cannot be read: {0}")]
    Fault(Fault),
    #[error("another source has this SSRC")]
    Taken,
    #[error("there is no such place, or it is taken")]
    Place,
    #[error("profile {0} is none of Baseline (66), Main (77) and High (100)")]
    Profile(u8),
    #[error("profile {0} is none of Main (1), Main 10 (2) and format range extensions (4)")]
    MainProfile(u32),
    #[error("its samples are not 4:2:0 with 8 bits")]
    Samples,
    #[error("it may have interlaced pictures")]
    Interlaced,
    #[error("it has scaling lists")]
    ScalingLists,
    #[error("its width or height is no multiple of {0}, its coding tree block")]
    BlockSize(u32),
    #[error("its pictures are smaller than 256x64, the smallest tile that there is")]
    TileSize,
    #[error("a part of its pictures is not shown")]
    Cropped,
    #[error("it has tiles of its own, or of other sizes than agreed")]
    Tiles,
    #[error("it has wavefronts")]
    Wavefront,
    #[error("it has dependent slice segments")]
    Dependent,
    #[error("it has samples that are not transformed (PCM)")]
    PulseCode,
    #[error("it has extensions of its profile")]
    Extensions,
    #[error("it predicts motion vectors from those of the picture before")]
    TemporalVectors,
    #[error("it has pictures that are not shown")]
    Hidden,
    #[error("its pictures do not come in the order in which they are shown")]
    Reordered,
    #[error("it has slice groups")]
    SliceGroups,
    #[error("it has redundant pictures")]
    Redundant,
    #[error("it has weighted prediction")]
    WeightedPrediction,
    #[error("it has lossless macroblocks")]
    Lossless,
    #[error("no parameter sets have come with it")]
    NoParameters,
    #[error("its {0} differs from that of the sources that are tiled already")]
    Differs(Parameter),
    #[error("so many of its pictures are larger than any level allows")]
    Level,
    #[error("it has B slices")]
    Bidirectional,
    #[error("it has switching slices")]
    Switching,
    #[error("it predicts from other pictures, which is not agreed")]
    Predicted,
    #[error("it predicts from other pictures than the one before")]
    References,
    #[error("it has more slices than a level allows for each tile")]
    Slices,
    #[error("its deblocking filter crosses slices")]
    Deblocking,
    #[error("its slices are not in order, or reach into another tile")]
    SliceOrder,
    #[error("a decoder cannot decode its picture")]
    Undecodable,
}

/// What all sources of a column or grid have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Parameter {
    #[error("profile")]
    Profile,
    #[error("entropy coding")]
    Entropy,
    #[error("transform size")]
    Transform,
    #[error("structure of blocks")]
    Blocks,
    #[error("use of asymmetric partitions")]
    Asymmetric,
    #[error("intra smoothing")]
    Smoothing,
    #[error("sign hiding")]
    SignHiding,
    #[error("transform skip")]
    TransformSkip,
    #[error("change of the quantiser within a picture")]
    Quantiser,
    #[error("merge level")]
    MergeLevel,
    #[error("constrained intra prediction")]
    ConstrainedIntra,
    #[error("chroma quantiser offset")]
    Chroma,
    #[error("colour space or range")]
    Colour,
}
