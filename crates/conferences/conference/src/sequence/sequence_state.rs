//! Receiver sequence state, which follows S-LR for each receiver: from the numbers of its decode target to its own, across changes of target.

use super::{LowRetransmission, Outcome, Verdict, before};

/// Three words: the target in force, BASE (taken from the target's numbers) and FLOOR (the first number given out under this target).
///
/// A change takes place with the first packet in order that allows it and that the new target keeps: it gets the number that the old target
/// would give next, so the receiver notices nothing, and losses around it stay gaps. Packets that come later than that and are from before it
/// have no number any more.
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

    /// The decode target in force.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// The number for one packet; `None`: not for this receiver.
    ///
    /// `changes`: whether the target may change to the wanted one with it; `outcomes`: what S-LR said for each target.
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

    /// The sender's number of one that this receiver got under the target in force; `None` for others.
    #[must_use]
    pub fn original(&self, number: u16, rewriters: &[LowRetransmission]) -> Option<u16> {
        if self.floor.is_some_and(|floor| before(number, floor)) {
            return None;
        }
        rewriters.get(self.target)?.original(number.wrapping_add(self.base))
    }
}
