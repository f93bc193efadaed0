//! Retransmissions: NACKs answered from a cache of recent packets, to who asked only, in the numbers that the receiver knows.
//!
//! A receiver's number belongs to a packet only if a copy was made for it. So a NACK is answered, or passed on, only for numbers from the first
//! one that the receiver was given since it last began to get the stream. Numbers from before that are a hole that no packet fills: a
//! receiver whose quality was raised in mid-call, and who has the sender's numbers, sees a jump over all that it was not sent. Passing its
//! NACKs of these on has the sender send them again, to everybody.
//!
//! Where a receiver has numbers of its own, the cache runs the algorithms of the data plane ([`crate::sequence`]) over the same packets: the
//! agent has a copy of each packet of a stream (`to_agent`), in order. When a copy is missing ([`Cache::missed`]), or it is not certain with
//! which packet a change of target took place, the numbers are not certain any more; then a key frame is the answer.

use crate::packets::{MediaPacket, Reader, Told};
use crate::sequence::{LowRetransmission, Options, Outcome, SequenceState};
use crate::tables::Name;
use shunt_latch::Time;
use shunt_rtp::MediaError;
use shunt_rtp::sequence::distance;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Packets of one stream that are kept.
const PACKETS: usize = 512;
/// Octets of one stream that are kept.
const OCTETS: usize = 1 << 20;
/// Numbers of a receiver whose packets are known.
const NUMBERS: usize = 512;
/// The same number is not sent again sooner: two NACKs of one loss.
const AGAIN: Duration = Duration::from_millis(40);

/// How a receiver begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// It has been getting the stream; the cache is what is new.
    Before,
    /// It begins to get the stream now, or gets it again.
    Now,
}

#[derive(Clone, Debug)]
struct Receiver {
    /// Of one with numbers of its own; and the target that it changes to.
    sequence_state: Option<(SequenceState, usize)>,
    /// A change that has been written, but not acknowledged.
    pending: Option<usize>,
    begins: Begins,
    active: bool,
    /// The first number since it began.
    first: Option<u16>,
    certain: bool,
    /// Its number, the sender's, and when it was sent again.
    given: VecDeque<(u16, u16, Option<Time>)>,
}

/// What is to be done about a NACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// RTP packets for the receiver that asked, with its numbers.
    pub packets: Vec<Vec<u8>>,
    /// The sender's numbers of packets that did not come here either: to be asked of the sender.
    pub ask: Vec<u16>,
    /// Nothing else helps.
    pub key_frame: bool,
}

/// One stream's recent packets and its receivers' numbers.
#[derive(Clone, Debug)]
pub struct Cache {
    reader: Option<Reader>,
    rewriters: Vec<LowRetransmission>,
    packets: VecDeque<(u16, Vec<u8>)>,
    octets: usize,
    receivers: HashMap<Name, Receiver>,
}

impl Cache {
    /// `told`: how its layers are told, if it has some; `targets`: decode targets of the data plane.
    #[must_use]
    pub fn new(told: Option<Told>, targets: usize) -> Self {
        let options = Options {
            learn: true,
            history: 0,
            window: 16,
        };
        Self {
            reader: told.map(Reader::new),
            rewriters: vec![LowRetransmission::new(None, options); targets],
            packets: VecDeque::new(),
            octets: 0,
            receivers: HashMap::new(),
        }
    }

    /// A receiver gets the stream: with the sender's numbers, or, one that had been paused, with those that it had.
    pub fn begin(&mut self, receiver: &Name, begins: Begins) {
        let made = Receiver {
            sequence_state: None,
            pending: None,
            begins,
            active: true,
            first: None,
            certain: true,
            given: VecDeque::new(),
        };
        let one = self.receivers.entry(receiver.clone()).or_insert(made);
        if !one.active {
            (one.active, one.begins, one.first) = (true, begins, None);
            one.given.clear();
        }
    }

    /// A receiver does not get the stream for now. Its numbers stay where they are.
    pub fn pause(&mut self, receiver: &str) {
        if let Some(one) = self.receivers.get_mut(receiver) {
            one.active = false;
        }
    }

    /// A receiver has numbers of its own from now on, beginning as one that gets target `from`; the target that its row of `copy` names is
    /// about to be `to`. Call [`Cache::written`] when the data plane has acknowledged the row.
    pub fn retarget(&mut self, receiver: &str, from: usize, to: usize) {
        let whole = self.rewriters.len() - 1;
        if let Some(one) = self.receivers.get_mut(receiver) {
            // Since when the data plane has counted what a lower target leaves out is not known.
            one.certain &= one.sequence_state.is_some() || from == whole;
            one.sequence_state.get_or_insert((SequenceState::new(from), from));
            one.pending = Some(to);
        }
    }

    /// The change of target is in the data plane.
    pub fn written(&mut self, receiver: &str) {
        if let Some(one) = self.receivers.get_mut(receiver)
            && let (Some(to), Some((_, wanted))) = (one.pending.take(), one.sequence_state.as_mut())
        {
            *wanted = to;
        }
    }

    /// A receiver has left.
    pub fn end(&mut self, receiver: &str) {
        self.receivers.remove(receiver);
    }

    /// Copies of packets did not arrive here, or the agent was not there when they came: who has numbers of its own has unknown ones.
    pub fn missed(&mut self) {
        for one in self.receivers.values_mut().filter(|one| one.sequence_state.is_some()) {
            one.certain = false;
        }
    }

    /// The first number of a receiver since it began; `None`: none yet.
    #[must_use]
    pub fn first(&self, receiver: &str) -> Option<u16> {
        self.receivers.get(receiver).and_then(|one| one.first)
    }

    /// A packet of the stream, as it came to the data plane.
    ///
    /// # Errors
    /// It is malformed.
    pub fn take(&mut self, packet: &[u8]) -> Result<(), MediaError> {
        let header = shunt_rtp::Header::parse(packet)?;
        let sequence = header.sequence;
        let read = self.reader.as_mut().map(|reader| reader.read(packet)).transpose()?;
        let outcomes: Vec<Outcome> = read.map_or_else(Vec::new, |read| {
            let rows = self.rewriters.iter_mut().enumerate();
            rows.map(|(target, rewriter)| rewriter.accept(read.row(target))).collect()
        });
        for one in self.receivers.values_mut().filter(|one| one.active) {
            one.take(sequence, read.as_ref(), &outcomes);
        }
        let newest = self.packets.back().is_none_or(|(last, _)| distance(sequence, *last) > 0);
        if newest || !self.packets.iter().any(|(kept, _)| *kept == sequence) {
            self.octets += packet.len();
            self.packets.push_back((sequence, packet.to_vec()));
        }
        while self.packets.len() > PACKETS || self.octets > OCTETS {
            let Some((_, gone)) = self.packets.pop_front() else { break };
            self.octets -= gone.len();
        }
        Ok(())
    }

    /// A receiver misses these of its numbers.
    pub fn nack(&mut self, receiver: &str, lost: impl Iterator<Item = u16>, now: Time) -> Answer {
        let mut answer = Answer::default();
        let Some(one) = self.receivers.get_mut(receiver).filter(|one| one.active) else {
            return answer;
        };
        if !one.certain {
            answer.key_frame = true;
            return answer;
        }
        for number in lost {
            if let Some(entry) = one.given.iter_mut().rev().find(|(given, ..)| *given == number) {
                if entry.2.is_some_and(|at| now.since(at) < AGAIN) {
                    continue;
                }
                match self.packets.iter().rev().find(|(sequence, _)| *sequence == entry.1) {
                    Some((_, packet)) => {
                        entry.2 = Some(now);
                        answer.packets.push(renumbered(packet, number));
                    }
                    None => answer.key_frame = true,
                }
            } else if let Some(sequence) = one.missing(number) {
                answer.ask.push(sequence);
            }
        }
        answer
    }
}

impl Receiver {
    fn take(&mut self, sequence: u16, read: Option<&MediaPacket>, outcomes: &[Outcome]) {
        let number = match (&mut self.sequence_state, read) {
            (None, _) => Some(sequence),
            (Some((sequence_state, wanted)), Some(read)) => {
                let changes = read.changes(sequence_state.target(), *wanted);
                if let Some(to) = self.pending
                    && to != *wanted
                    && read.changes(sequence_state.target(), to)
                {
                    // Whether the row was in before this packet came is not known.
                    self.certain = false;
                }
                sequence_state.accept(*wanted, changes, outcomes)
            }
            (Some(_), None) => None,
        };
        let Some(number) = number else { return };
        let newest = self.given.back().is_none_or(|(last, ..)| distance(number, *last) > 0);
        if !newest && self.given.iter().any(|(given, ..)| *given == number) {
            return;
        }
        self.first.get_or_insert(number);
        self.given.push_back((number, sequence, None));
        if self.given.len() > NUMBERS {
            self.given.pop_front();
        }
    }

    /// The sender's number of one of the receiver's that did not come here; `None`: the receiver was never to get it, or it is not certain.
    fn missing(&self, number: u16) -> Option<u16> {
        let nearest = |ahead: bool| {
            let side = self.given.iter().filter(|(given, ..)| (distance(*given, number) > 0) == ahead);
            side.min_by_key(|(given, ..)| distance(*given, number).abs())
        };
        match (nearest(false), nearest(true)) {
            (Some((low, before, _)), Some((high, after, _))) => {
                // As many numbers as the sender's between them: none of these was suppressed.
                let whole = high.wrapping_sub(*low) == after.wrapping_sub(*before);
                whole.then(|| before.wrapping_add(number.wrapping_sub(*low)))
            }
            // From before the cache: its number is the sender's, unless the receiver was not getting the stream then.
            (None, _) if self.sequence_state.is_none() && self.begins == Begins::Before => Some(number),
            _ => None,
        }
    }
}

/// The same packet with a receiver's number.
fn renumbered(packet: &[u8], number: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(place) = packet.get_mut(2..4) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    packet
}
