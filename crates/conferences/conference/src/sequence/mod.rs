//! Sequence numbers of a receiver that does not get all layers: S-LR (Scallop, section 6.2), and the change of decode target.
//!
//! A receiver takes a missing number for a loss. Numbers of suppressed packets must therefore be closed, and numbers of packets that the
//! network lost must stay, so that the receiver requests them. An unused number costs one futile request, two packets with one number break
//! the decoder, and a hidden loss freezes it. Therefore, in any order of arrival, no two packets get the same number, and a gap is closed
//! only if all its packets are known to be suppressed.
//!
//! All numbers have 16 bits and are modulo 65536. The state is six words. A packet reads and writes each word at most once, in the order of
//! the table, because one pass through a Tofino's register arrays allows no more. The data plane runs the same algorithm. The agent mirrors
//! it because it must know each packet's number ([`crate::repair`]). S-LM runs only on switches (p4/conference.p4).
//!
//! | word | halves |
//! | --- | --- |
//! | HIGH | highest number, mode |
//! | FRAME | frame number and marks of that packet |
//! | CADENCE | one bit for each of four frames; learned from the packets |
//! | OFFSET | amount subtracted from the number |
//! | FLOOR | lowest number and first frame to which the offset applies |
//! | USED | recently used numbers |
//!
//! S-LR processes every packet of the stream, including those that it suppresses. It runs once for each stream and decode target;
//! [`SequenceState`] then runs once for each receiver.

mod low_retransmission;
mod sequence_state;

pub use low_retransmission::{LowRetransmission, Options};
pub use sequence_state::SequenceState;

use shunt_rtp::sequence::distance;

/// The temporal patterns of L1T2 and L1T3 repeat after two and four frames.
pub const PHASES: u16 = 4;
/// If more frames than this lie between two packets, their layers are not determined.
pub(crate) const FAR: u16 = 16;

/// Input of rewriting for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub sequence: u16,
    pub frame: u16,
    /// First packet of its frame.
    pub start: bool,
    /// Last packet of its frame.
    pub end: bool,
    /// Whether the packet is kept; otherwise its layer is suppressed.
    pub keep: bool,
    /// The packet carries a template structure: the frame cadence may restart.
    pub key: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Forward,
    /// The packet's layer is suppressed.
    Suppress,
    /// The packet is too late to be certain of its number.
    Late,
    /// The number has been used: the network duplicated the packet.
    Repeated,
}

/// Result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The packet's number or, if it was suppressed in order, the number of the next kept packet. `None` for late, repeated, and late
    /// suppressed packets.
    pub position: Option<u16>,
    pub in_order: bool,
}

impl Outcome {
    pub(crate) fn dropped(verdict: Verdict) -> Self {
        Self {
            verdict,
            position: None,
            in_order: false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Fresh,
    Running,
    Resume,
}

/// Suppressed frames according to signalling: bit n of the mask is frame `base + n`, repeating every four frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    pub mask: u8,
    pub base: u16,
}

impl Cadence {
    /// Returns the mask relative to base 0.
    #[must_use]
    pub fn turned(self) -> u8 {
        let phase = |n: u16| (self.base.wrapping_add(n)) % PHASES;
        (0..PHASES).filter(|n| self.mask >> n & 1 != 0).map(|n| 1 << phase(n)).sum()
    }
}

/// Returns how many of the `count` frames after `frame` are suppressed.
#[must_use]
pub fn suppressed_between(mask: u8, frame: u16, count: u16) -> u16 {
    let (full, rest) = (count / PHASES, count % PHASES);
    let partial = (1..=rest).filter(|n| mask >> (frame.wrapping_add(*n) & 3) & 1 != 0).count();
    // At most three.
    #[allow(clippy::cast_possible_truncation)]
    let partial = partial as u16;
    full.wrapping_mul(mask.count_ones() as u16).wrapping_add(partial)
}

/// Returns whether `a` comes before `b`.
pub(crate) fn before(a: u16, b: u16) -> bool {
    distance(a, b) < 0
}
