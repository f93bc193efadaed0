//! S-LR: sees every packet of a stream; `keep` says which the receivers of this decode target get.

use super::{Cadence, FAR, Mode, Outcome, Row, Verdict, before, suppressed_between};
use shunt_rtp::sequence::distance;
use std::collections::VecDeque;

/// How much S-LR remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Learn the frame cadence from what passes.
    pub learn: bool,
    /// Earlier offsets that are kept beside the one in force. 0 on a switch.
    pub history: usize,
    /// Numbers of which it is known whether they were given out: 1 to 256.
    pub window: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            learn: true,
            history: 0,
            window: 16,
        }
    }
}

/// Packets between two suppressed ones: one offset for all.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    offset: u16,
    lowest: u16,
    highest: u16,
    first: u16,
    last: u16,
}

/// A bit for each of the last 256 numbers, bit 0 of the first word the highest.
#[derive(Clone, Copy, Debug, Default)]
struct Used([u64; 4]);

impl Used {
    fn shift(&mut self, by: u16) {
        let (words, bits) = (usize::from(by / 64), u32::from(by % 64));
        for at in (0..4usize).rev() {
            let high = at.checked_sub(words).map_or(0, |from| self.0[from]);
            let low = at.checked_sub(words + 1).map_or(0, |from| self.0[from]);
            self.0[at] = high << bits | if bits == 0 { 0 } else { low >> (64 - bits) };
        }
    }

    fn set(&mut self, back: u16) {
        self.0[usize::from(back / 64) & 3] |= 1 << (back % 64);
    }

    fn get(&self, back: u16) -> bool {
        self.0[usize::from(back / 64) & 3] >> (back % 64) & 1 != 0
    }
}

/// S-LR.
///
/// A gap between the highest packet so far and the next one is made of up to three parts: the end of the old frame (when it had not ended),
/// whole frames, and the beginning of the new one (when it does not start). Each part has at least one packet, and whether it is suppressed is
/// known from the packets on both sides, and for whole frames from the frame cadence. All parts suppressed: the whole gap goes. None: nothing goes.
/// Mixed: one number goes for each suppressed part, because that many are certain.
///
/// An older packet gets a number while the offset in force is the one of its position: numbers from FLOOR on, frames from FLOOR's to the highest.
#[derive(Clone, Debug)]
pub struct LowRetransmission {
    options: Options,
    high: u16,
    mode: Mode,
    frame: u16,
    ended: bool,
    kept: bool,
    mask: u8,
    offset: u16,
    lowest: u16,
    first: u16,
    used: Used,
    epochs: VecDeque<Epoch>,
}

/// What of a gap goes.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// Numbers that are certainly suppressed ones.
    gone: u16,
    /// It begins with packets that were kept.
    tail_kept: bool,
}

impl Default for LowRetransmission {
    fn default() -> Self {
        Self::new(None, Options::default())
    }
}

impl LowRetransmission {
    #[must_use]
    pub fn new(cadence: Option<Cadence>, options: Options) -> Self {
        Self {
            options: Options {
                window: options.window.clamp(1, 256),
                ..options
            },
            high: 0,
            mode: Mode::Fresh,
            frame: 0,
            ended: false,
            kept: false,
            mask: cadence.map_or(0, Cadence::turned),
            offset: 0,
            lowest: 0,
            first: 0,
            used: Used::default(),
            epochs: VecDeque::with_capacity(options.history),
        }
    }

    /// The sender starts anew somewhere: the next packet gets the next number, whatever its own is.
    pub fn resume(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Resume;
        }
    }

    /// From the next packet on other layers are kept: what was learned of the frame cadence no longer holds.
    pub fn retarget(&mut self) {
        self.mask = 0;
    }

    /// Take one packet in, suppressed ones too.
    pub fn accept(&mut self, row: Row) -> Outcome {
        // HIGH
        let (ahead, mode, high) = (distance(row.sequence, self.high), self.mode, self.high);
        if mode == Mode::Running && ahead <= 0 {
            return self.older(row, ahead);
        }
        (self.high, self.mode) = (row.sequence, Mode::Running);
        // FRAME
        let (old_frame, ended, kept) = (self.frame, self.ended, self.kept);
        (self.frame, self.ended, self.kept) = (row.frame, row.end, row.keep);
        // CADENCE
        let mask = self.cadence(row, old_frame);
        // What of the gap is certainly suppressed: a table of small numbers.
        let old_offset = self.offset;
        let skipped = row.sequence.wrapping_sub(high).wrapping_sub(1);
        let gap = match mode {
            Mode::Running if skipped > 0 => gap_of(skipped, row, old_frame, (ended, kept), mask),
            Mode::Resume => Gap {
                gone: skipped,
                tail_kept: false,
            },
            _ => Gap::default(),
        };
        // OFFSET
        let offset = old_offset.wrapping_add(gap.gone);
        self.offset = if row.keep { offset } else { offset.wrapping_add(1) };
        let position = row.sequence.wrapping_sub(offset);
        // FLOOR
        let next = high.wrapping_add(1).wrapping_sub(old_offset);
        if mode == Mode::Fresh {
            (self.lowest, self.first) = (position, row.frame);
        } else if gap.gone != 0 || !row.keep {
            // What of the gap stays open belongs to the new frame only if packets of that one are all that can fill it.
            let open = row.keep && !row.start && !gap.tail_kept && mode == Mode::Running;
            let lowest = if open { next } else { position };
            self.remember(old_offset, lowest, old_frame, ended || gap.tail_kept);
            (self.lowest, self.first) = (lowest, row.frame);
        }
        // USED
        self.give_out(mode, row.keep, position.wrapping_sub(next));
        Outcome {
            verdict: if row.keep { Verdict::Forward } else { Verdict::Suppress },
            position: Some(position),
            in_order: true,
        }
    }

    /// Learn the frame cadence; the mask that holds for the gap before this packet.
    fn cadence(&mut self, row: Row, old_frame: u16) -> u8 {
        let (mask, bit) = (self.mask, 1u8 << (row.frame & 3));
        if row.key && row.keep {
            if self.options.learn {
                self.mask = 0;
            }
        } else if self.options.learn {
            let far = row.frame.wrapping_sub(old_frame).wrapping_sub(1) > FAR && row.frame != old_frame;
            let known = if far { 0 } else { mask };
            self.mask = if row.keep { known & !bit } else { known | bit };
        }
        // A packet that does not fit: the frame cadence may have begun anew within the gap.
        if (mask & bit != 0) == row.keep { 0 } else { mask }
    }

    /// Keep the offset that was in force until now, if a number was given out under it.
    fn remember(&mut self, offset: u16, lowest: u16, old_frame: u16, whole: bool) {
        if self.options.history == 0 || lowest == self.lowest {
            return;
        }
        if self.epochs.len() == self.options.history {
            self.epochs.pop_front();
        }
        self.epochs.push_back(Epoch {
            offset,
            lowest: self.lowest,
            highest: lowest.wrapping_sub(1),
            first: self.first,
            // A frame right after one that ended, or whose lost end was kept, had the same offset.
            last: if whole { old_frame.wrapping_add(1) } else { old_frame },
        });
    }

    /// `step`: numbers skipped; one more is used when this packet is kept.
    fn give_out(&mut self, mode: Mode, keep: bool, step: u16) {
        if mode == Mode::Fresh || step >= self.options.window {
            self.used = Used([u64::from(keep), 0, 0, 0]);
        } else {
            self.used.shift(step + u16::from(keep));
            if keep {
                self.used.set(0);
            }
        }
    }

    fn older(&mut self, row: Row, ahead: i32) -> Outcome {
        if !row.keep {
            return Outcome::dropped(Verdict::Suppress);
        }
        let Some(number) = self.number_of(row.sequence, row.frame) else {
            return Outcome::dropped(if ahead == 0 { Verdict::Repeated } else { Verdict::Late });
        };
        let back = self.top().wrapping_sub(number);
        if self.used.get(back) {
            return Outcome::dropped(Verdict::Repeated);
        }
        self.used.set(back);
        Outcome {
            verdict: Verdict::Forward,
            position: Some(number),
            in_order: false,
        }
    }

    /// The highest number given out.
    fn top(&self) -> u16 {
        self.high.wrapping_sub(self.offset)
    }

    fn in_window(&self, number: u16) -> bool {
        (0..i32::from(self.options.window)).contains(&distance(self.top(), number))
    }

    /// The number that a kept packet from before the highest has or would have; `None` when that is no longer certain.
    fn number_of(&self, sequence: u16, frame: u16) -> Option<u16> {
        let mut number = sequence.wrapping_sub(self.offset);
        if before(number, self.lowest) || before(frame, self.first) || before(self.frame, frame) {
            number = self.epochs.iter().rev().find_map(|epoch| {
                let number = sequence.wrapping_sub(epoch.offset);
                let inside = !before(number, epoch.lowest) && !before(epoch.highest, number);
                (inside && !before(frame, epoch.first) && !before(epoch.last, frame)).then_some(number)
            })?;
        }
        self.in_window(number).then_some(number)
    }

    /// The sender's number of one that was given out, as far back as window and history reach; `None` for others.
    #[must_use]
    pub fn original(&self, number: u16) -> Option<u16> {
        if self.mode == Mode::Fresh || !self.in_window(number) {
            return None;
        }
        if !before(number, self.lowest) {
            return Some(number.wrapping_add(self.offset));
        }
        let epoch = self
            .epochs
            .iter()
            .rev()
            .find(|epoch| !before(number, epoch.lowest) && !before(epoch.highest, number));
        epoch.map(|epoch| number.wrapping_add(epoch.offset))
    }
}

/// What of a gap of `gap` numbers goes. `old`: whether the frame before had ended, and was kept.
fn gap_of(gap: u16, row: Row, old_frame: u16, old: (bool, bool), mask: u8) -> Gap {
    let (ended, old_kept) = old;
    let frames = row.frame.wrapping_sub(old_frame);
    if frames == 0 {
        let kept = row.keep || old_kept;
        return Gap {
            gone: if kept { 0 } else { gap },
            tail_kept: kept,
        };
    }
    let (mut suppressed, mut kept) = (0u16, 0u16);
    let tail_kept = !ended && old_kept;
    for (missing, part_kept) in [(!ended, old_kept), (!row.start, row.keep)] {
        if missing {
            *(if part_kept { &mut kept } else { &mut suppressed }) += 1;
        }
    }
    let between = frames - 1;
    if between > FAR {
        kept += 1; // Or the frame number went back: nothing is certain.
    } else {
        let gone = suppressed_between(mask, old_frame, between);
        suppressed += gone;
        kept += between - gone;
    }
    if kept == 0 {
        return Gap {
            gone: if suppressed > 0 { gap } else { 0 },
            tail_kept: false,
        };
    }
    Gap {
        gone: suppressed.min(gap.saturating_sub(kept)),
        tail_kept,
    }
}
