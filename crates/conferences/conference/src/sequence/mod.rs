//! Sequence numbers of a receiver that does not get every layer: S-LR (Scallop, section 6.2), and the change of decode target.
//!
//! A receiver takes a missing number for a loss. Numbers of suppressed packets therefore have to go, and numbers of packets that the network
//! lost have to stay: the receiver asks for those again. A number too many costs one request for nothing; two packets under one number break
//! the decoder; a loss that is hidden freezes it. So, whatever arrives in whatever order: no two packets ever get the same number, and a gap
//! is closed only where all that was in it is known to be suppressed.
//!
//! Everything is 16 bits wide and modulo 65536. The state is a handful of words, and a packet reads and writes each of them at most once, in
//! the order of the table: that is what one pass through a Tofino's register arrays allows. The data plane runs the same algorithm; here
//! it is mirrored because the agent has to know which packet has which number ([`crate::repair`]). S-LM runs on switches alone (p4/conference.p4).
//!
//! | word | halves |
//! | --- | --- |
//! | HIGH | highest number, mode |
//! | FRAME | its frame number, its marks |
//! | CADENCE | one bit for each of four frames; learned from what passes |
//! | OFFSET | what is taken from the number |
//! | FLOOR | lowest number, first frame of the packets to which the offset applies |
//! | USED | numbers given out lately |
//!
//! S-LR sees every packet of the stream, also those it suppresses; it runs once for each stream and decode target, and [`SequenceState`] follows once
//! for each receiver.

mod low_retransmission;
mod sequence_state;

pub use low_retransmission::{LowRetransmission, Options};
pub use sequence_state::SequenceState;

use shunt_rtp::sequence::distance;

/// The temporal patterns of L1T2 and L1T3 repeat after two and four frames.
pub const PHASES: u16 = 4;
/// More frames than this between two packets: what they were is not asked.
pub(crate) const FAR: u16 = 16;

/// What rewriting knows of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub sequence: u16,
    pub frame: u16,
    /// First packet of its frame.
    pub start: bool,
    /// Last packet of its frame.
    pub end: bool,
    /// Wanted, or of a layer that is suppressed.
    pub keep: bool,
    /// It carries a template structure: the frame cadence may begin anew.
    pub key: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Forward,
    /// Of a layer that the receiver does not get.
    Suppress,
    /// Too late for a number that is certainly its own.
    Late,
    /// Its number has been given out: a copy that the network made.
    Repeated,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The number given out, or (suppressed in order) the one that the next packet kept will get. `None` for packets that are late or
    /// repeated, and for suppressed ones that are late.
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

/// Which frames are suppressed, as signalling knows it: bit n of the mask is frame `base + n`, and again every four frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    pub mask: u8,
    pub base: u16,
}

impl Cadence {
    /// The mask as if the base were 0.
    #[must_use]
    pub fn turned(self) -> u8 {
        let phase = |n: u16| (self.base.wrapping_add(n)) % PHASES;
        (0..PHASES).filter(|n| self.mask >> n & 1 != 0).map(|n| 1 << phase(n)).sum()
    }
}

/// How many of the `count` frames after `frame` are suppressed.
#[must_use]
pub fn suppressed_between(mask: u8, frame: u16, count: u16) -> u16 {
    let (full, rest) = (count / PHASES, count % PHASES);
    let partial = (1..=rest).filter(|n| mask >> (frame.wrapping_add(*n) & 3) & 1 != 0).count();
    // At most three.
    #[allow(clippy::cast_possible_truncation)]
    let partial = partial as u16;
    full.wrapping_mul(mask.count_ones() as u16).wrapping_add(partial)
}

/// Whether `a` comes before `b`.
pub(crate) fn before(a: u16, b: u16) -> bool {
    distance(a, b) < 0
}
