//! Retransmissions: answers NACKs from a cache of recent packets, only to the receiver that asked, with the numbers that this receiver
//! knows.
//!
//! A receiver's number belongs to a packet only if a copy was made for the receiver. A NACK is therefore answered or forwarded only for
//! numbers from the first one that the receiver got since it last started to get the stream. Earlier numbers are a gap that no packet
//! fills. A receiver with the sender's numbers, whose quality was raised during the call, sees a jump over everything that it was not sent.
//! If its NACKs for that gap were forwarded, the sender would retransmit the packets to all receivers.
//!
//! For a receiver with rewritten numbers, the cache runs the data plane's algorithms ([`crate::sequence`]) on the same packets: the agent
//! gets a copy of each packet of a stream (`to_agent`), in order. If a copy is missing ([`Cache::missed`]), or the packet of a target
//! change is unknown, the numbers become uncertain. A NACK then results in a key frame request.

use crate::packets::{MediaPacket, Reader, Told};
use crate::sequence::{LowRetransmission, Options, Outcome, SequenceState};
use crate::tables::Name;
use shunt_latch::Time;
use shunt_rtp::MediaError;
use shunt_rtp::sequence::distance;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Cached packets of one stream.
const PACKETS: usize = 512;
/// Cached octets of one stream.
const OCTETS: usize = 1 << 20;
/// Numbers per receiver whose packets are remembered.
const NUMBERS: usize = 512;
/// Minimum time between two retransmissions of one number, because one loss can cause two NACKs.
const AGAIN: Duration = Duration::from_millis(40);

/// How a receiver starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// The receiver already gets the stream; only the cache is new.
    Before,
    /// The receiver starts or resumes the stream now.
    Now,
}

#[derive(Clone, Debug)]
struct Receiver {
    /// Sequence state of a receiver with rewritten numbers, and the target that it changes to.
    sequence_state: Option<(SequenceState, usize)>,
    /// A target change that is written but not acknowledged.
    pending: Option<usize>,
    begins: Begins,
    active: bool,
    /// The first number since the receiver started.
    first: Option<u16>,
    certain: bool,
    /// The receiver's number, the sender's number, and the time of the last retransmission.
    given: VecDeque<(u16, u16, Option<Time>)>,
}

/// Actions for a NACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// RTP packets for the receiver, with its numbers.
    pub packets: Vec<Vec<u8>>,
    /// The sender's numbers of packets that did not arrive here either: request them from the sender.
    pub ask: Vec<u16>,
    /// Request a key frame, because nothing else helps.
    pub key_frame: bool,
}

/// Recent packets of one stream, and the receivers' numbers.
#[derive(Clone, Debug)]
pub struct Cache {
    reader: Option<Reader>,
    rewriters: Vec<LowRetransmission>,
    packets: VecDeque<(u16, Vec<u8>)>,
    octets: usize,
    receivers: HashMap<Name, Receiver>,
}

impl Cache {
    /// `told`: source of the layers, if the stream has layers; `targets`: decode targets of the data plane.
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

    /// Starts a receiver with the sender's numbers. A receiver that was paused resumes with its numbers.
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

    /// Pauses a receiver. Its numbers stay.
    pub fn pause(&mut self, receiver: &str) {
        if let Some(one) = self.receivers.get_mut(receiver) {
            one.active = false;
        }
    }

    /// Starts rewriting a receiver's numbers, from those of a receiver of target `from`; its row of `copy` is about to name target `to`.
    /// Call [`Cache::written`] when the data plane has acknowledged the row.
    pub fn retarget(&mut self, receiver: &str, from: usize, to: usize) {
        let whole = self.rewriters.len() - 1;
        if let Some(one) = self.receivers.get_mut(receiver) {
            // The start of the data plane's count for a lower target is unknown.
            one.certain &= one.sequence_state.is_some() || from == whole;
            one.sequence_state.get_or_insert((SequenceState::new(from), from));
            one.pending = Some(to);
        }
    }

    /// Records that the target change is acknowledged.
    pub fn written(&mut self, receiver: &str) {
        if let Some(one) = self.receivers.get_mut(receiver)
            && let (Some(to), Some((_, wanted))) = (one.pending.take(), one.sequence_state.as_mut())
        {
            *wanted = to;
        }
    }

    /// Removes a receiver.
    pub fn end(&mut self, receiver: &str) {
        self.receivers.remove(receiver);
    }

    /// Records that copies were lost, or that the agent was not running: rewritten numbers become uncertain.
    pub fn missed(&mut self) {
        for one in self.receivers.values_mut().filter(|one| one.sequence_state.is_some()) {
            one.certain = false;
        }
    }

    /// Returns the first number of a receiver since it started; `None` if there is none yet.
    #[must_use]
    pub fn first(&self, receiver: &str) -> Option<u16> {
        self.receivers.get(receiver).and_then(|one| one.first)
    }

    /// Adds a packet of the stream, as it arrived at the data plane.
    ///
    /// # Errors
    /// The packet is malformed.
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

    /// Handles a receiver's NACK of these numbers.
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
                    // It is unknown whether the row was written before this packet arrived.
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

    /// Returns the sender's number of a receiver's number whose packet did not arrive here; `None`: the receiver was not to get it, or it
    /// is uncertain.
    fn missing(&self, number: u16) -> Option<u16> {
        let nearest = |ahead: bool| {
            let side = self.given.iter().filter(|(given, ..)| (distance(*given, number) > 0) == ahead);
            side.min_by_key(|(given, ..)| distance(*given, number).abs())
        };
        match (nearest(false), nearest(true)) {
            (Some((low, before, _)), Some((high, after, _))) => {
                // There are as many numbers as the sender's in between, so none was suppressed.
                let whole = high.wrapping_sub(*low) == after.wrapping_sub(*before);
                whole.then(|| before.wrapping_add(number.wrapping_sub(*low)))
            }
            // The packet precedes the cache. Its number is the sender's, if the receiver was getting the stream then.
            (None, _) if self.sequence_state.is_none() && self.begins == Begins::Before => Some(number),
            _ => None,
        }
    }
}

/// Returns a copy of a packet with a receiver's number.
fn renumbered(packet: &[u8], number: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(place) = packet.get_mut(2..4) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    packet
}
