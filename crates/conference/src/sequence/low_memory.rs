//! S-LM: three words of state and a bit.

use super::{Cadence, FAR, Mode, Outcome, Row, Verdict, suppressed_between};
use shunt_rtp::sequence::distance;

/// S-LM. Packets suppressed are not shown to it; the frame cadence comes from signalling.
///
/// * The next number: the offset stays.
/// * A gap: when the frame before had ended, a new one starts and all frames between are suppressed ones, the whole gap is theirs and the
///   offset grows by it. Any other gap stays: something in it was lost.
/// * An older packet: only the one right before the highest, and only while the number before the highest is unused.
///
/// The paper closes every gap that has the right number of frames, and rewrites the packet before the highest in any case; the first hides
/// losses at the edges of frames, and the second gives numbers out twice.
#[derive(Clone, Debug, Default)]
pub struct LowMemory {
    high: u16,
    mode: Mode,
    frame: u16,
    ended: bool,
    cadence: u8,
    offset: u16,
    open: bool,
}

impl LowMemory {
    #[must_use]
    pub fn new(cadence: Option<Cadence>) -> Self {
        let mut made = Self::default();
        made.set_cadence(cadence);
        made
    }

    /// The sender starts anew somewhere: the next packet gets the next number, whatever its own is.
    pub fn resume(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Resume;
        }
    }

    /// What signalling knows now. `None`, which closes no gap, from when a key frame was asked for until it has come.
    pub fn set_cadence(&mut self, cadence: Option<Cadence>) {
        self.cadence = cadence.map_or(0, Cadence::turned);
    }

    /// Give a packet that its receiver gets a number.
    pub fn accept(&mut self, row: Row) -> Outcome {
        if !row.keep {
            return Outcome::dropped(Verdict::Suppress);
        }
        // HIGH
        let (ahead, mode, high) = (distance(row.sequence, self.high), self.mode, self.high);
        let in_order = mode != Mode::Running || ahead > 0;
        // FRAME
        let (frames, ended) = (row.frame.wrapping_sub(self.frame), self.ended);
        if in_order {
            (self.high, self.mode) = (row.sequence, Mode::Running);
            (self.frame, self.ended) = (row.frame, row.end);
        }
        let whole = mode == Mode::Running && ended && row.start && (2..=FAR).contains(&frames);
        let closes = whole
            && self.cadence >> (row.frame & 3) & 1 == 0
            && suppressed_between(self.cadence, row.frame.wrapping_sub(frames), frames - 1) == frames - 1;
        // OFFSET
        if in_order && (mode == Mode::Resume || closes) {
            self.offset = self.offset.wrapping_add(row.sequence).wrapping_sub(high).wrapping_sub(1);
        }
        let number = row.sequence.wrapping_sub(self.offset);
        // OPEN
        let opened = self.open;
        if in_order {
            self.open = mode == Mode::Running && ahead > 1 && !closes;
        } else if ahead == -1 {
            self.open = false;
        }
        if in_order || ahead == -1 && opened {
            return Outcome {
                verdict: Verdict::Forward,
                position: Some(number),
                in_order,
            };
        }
        Outcome::dropped(if ahead == 0 { Verdict::Repeated } else { Verdict::Late })
    }
}
