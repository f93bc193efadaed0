//! Receiver sequence state, applied after S-LR for each receiver: maps the numbers of its decode target to its own, across changes of
//! target.

use super::{LowRetransmission, Outcome, Verdict, before};

/// Three words: the target in force, BASE (subtracted from the target's numbers) and FLOOR (the first number used under this target).
///
/// A change takes effect with the first packet in order that allows it and that the new target keeps. This packet gets the number that the
/// old target would use next, so the receiver sees no discontinuity, and losses around the change stay gaps. Packets from before the change
/// that arrive later get no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceState {
    target: usize,
    base: u16,
    floor: Option<u16>,
}

impl SequenceState {
    #[must_use]
    pub fn new(target: usize) -> Self {
        Self {
            target,
            base: 0,
            floor: None,
        }
    }

    /// Returns the decode target in force.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// Returns the number of a packet; `None`: the receiver does not get it.
    ///
    /// `changes`: whether the target may change to the wanted one with this packet; `outcomes`: S-LR's result for each target.
    pub fn accept(&mut self, wanted: usize, changes: bool, outcomes: &[Outcome]) -> Option<u16> {
        let outcome = outcomes.get(self.target)?;
        if wanted != self.target && changes {
            let new = outcomes.get(wanted)?;
            if let (Verdict::Forward, true, Some(new), Some(old)) = (new.verdict, new.in_order, new.position, outcome.position) {
                let floor = old.wrapping_sub(self.base);
                (self.floor, self.base, self.target) = (Some(floor), new.wrapping_sub(floor), wanted);
                return Some(floor);
            }
        }
        if outcome.verdict != Verdict::Forward {
            return None;
        }
        let number = outcome.position?.wrapping_sub(self.base);
        let late = self.floor.is_some_and(|floor| !outcome.in_order && before(number, floor));
        (!late).then_some(number)
    }

    /// Returns the sender's number for one of this receiver's numbers under the target in force; otherwise `None`.
    #[must_use]
    pub fn original(&self, number: u16, rewriters: &[LowRetransmission]) -> Option<u16> {
        if self.floor.is_some_and(|floor| before(number, floor)) {
            return None;
        }
        rewriters.get(self.target)?.original(number.wrapping_add(self.base))
    }
}
