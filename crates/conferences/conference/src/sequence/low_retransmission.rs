//! S-LR: processes every packet of a stream; `keep` says which packets the receivers of this decode target get.

use super::{Cadence, FAR, Mode, Outcome, Row, Verdict, before, suppressed_between};
use shunt_rtp::sequence::distance;
use std::collections::VecDeque;

/// Memory of S-LR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Learn the frame cadence from the packets.
    pub learn: bool,
    /// Number of earlier offsets kept in addition to the present one. 0 on a switch.
    pub history: usize,
    /// Number of sequence numbers whose use is remembered: 1 to 256.
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

/// A range of packets between two suppressed ones, with one offset.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    offset: u16,
    lowest: u16,
    highest: u16,
    first: u16,
    last: u16,
}

/// One bit for each of the last 256 numbers; bit 0 of the first word is the highest number.
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
/// A gap between the highest packet so far and the next one has up to three parts: the end of the old frame (if it had not ended), whole
/// frames, and the beginning of the new frame (if the packet does not start it). Each part has at least one packet. The packets on both
/// sides, and for whole frames the cadence, tell whether a part was suppressed. If all parts were suppressed, the whole gap is closed. If
/// none was, nothing is closed. Otherwise one number is closed for each suppressed part, because only that many are certain.
///
/// An older packet gets a number if the present offset applies to its position: numbers from FLOOR on, frames from FLOOR's to the highest.
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

/// The part of a gap that is closed.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// Numbers that certainly belong to suppressed packets.
    gone: u16,
    /// The gap starts with packets that were kept.
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

    /// Handles a restart of the sender: the next packet gets the next number, whatever its own number.
    pub fn resume(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Resume;
        }
    }

    /// Handles a change of the kept layers: the learned frame cadence no longer applies.
    pub fn retarget(&mut self) {
        self.mask = 0;
    }

    /// Processes one packet, kept or suppressed.
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
        // Certainly suppressed numbers of the gap, from a table of small numbers.
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
            // The open part of the gap belongs to the new frame only if no other packets can fill it.
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

    /// Learns the frame cadence. Returns the mask that applies to the gap before this packet.
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
        // The packet contradicts the cadence, which may have restarted within the gap.
        if (mask & bit != 0) == row.keep { 0 } else { mask }
    }

    /// Stores the previous offset, if a number was used under it.
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
            // A frame directly after one that ended, or whose lost end was kept, had the same offset.
            last: if whole { old_frame.wrapping_add(1) } else { old_frame },
        });
    }

    /// `step`: skipped numbers; one more is used if this packet is kept.
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

    /// Returns the highest number used.
    fn top(&self) -> u16 {
        self.high.wrapping_sub(self.offset)
    }

    fn in_window(&self, number: u16) -> bool {
        (0..i32::from(self.options.window)).contains(&distance(self.top(), number))
    }

    /// Returns the number of a kept packet before the highest one, whether or not it has arrived; `None` if it is no longer certain.
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

    /// Returns the sender's number for a used number, as far back as window and history reach; otherwise `None`.
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

/// Returns the closed part of a gap of `gap` numbers. `old`: whether the previous frame had ended, and whether it was kept.
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
        kept += 1; // Or the frame number decreased: nothing is certain.
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
