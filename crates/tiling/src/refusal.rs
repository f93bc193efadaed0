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
    #[error("there is no such place")]
    Place,
}
