//! The jitter buffer of one sender: packets in any order become samples at the mixer's pace.
//!
//! A packet waits as long as the network's jitter asks for, measured at the sender's own timestamps, so that a sender whose clock runs at another pace is
//! followed: what waits too long is shortened by a pitch period, and where nothing has come something is made up, which lets the rest wait longer.

use crate::codec::{Codec, Decoder};
use crate::conceal::shorten;
use crate::delay::Delay;
use crate::{FRAME, RATE};
use shunt_rtp::sequence::Extender;
use std::collections::BTreeMap;

/// µs of a frame.
const FRAME_US: i64 = 20_000;
/// What a packet waits at least, and at most, for late ones: µs.
const LEAST: i64 = 10_000;
const MOST: i64 = 120_000;
/// Packets that wait: two seconds of 20 ms.
const PACKETS: usize = 100;
/// A packet that far from the one that is due is of another beginning of the stream.
const FAR: i64 = 200;
/// So many packets in a row that came too late are of a sender that counts anew.
const LATE_IN_A_ROW: u32 = 25;
/// Samples made up in a row for a packet that has not come: from there on the sender is silent.
const EXPANDED: usize = 5 * FRAME;
/// What may wait too long without being shortened, samples.
const SLACK: usize = 5 * RATE as usize / 1000;

#[derive(Clone, Debug)]
struct Waiting {
    timestamp: i64,
    payload: Vec<u8>,
    /// The codec, or `None` where the sender says that it is silent (comfort noise, RFC 3389).
    codec: Option<Codec>,
}

/// What a buffer has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: u64,
    /// Came after they were due, or twice.
    pub late: u64,
    pub duplicates: u64,
    pub lost: u64,
    /// Frames of which some was made up.
    pub concealed: u64,
    /// Packets that no decoder takes.
    pub broken: u64,
    /// Samples that were taken out to catch up.
    pub shortened: u64,
}

#[derive(Default)]
pub struct Buffer {
    waiting: BTreeMap<i64, Waiting>,
    extender: Extender,
    timestamps: Timestamps,
    delay: Delay,
    decoder: Option<Decoder>,
    /// The codec that the last packet had.
    clock: Option<Codec>,
    /// The number and the timestamp that are due; `None`: nothing has come, or everything begins anew.
    due: Option<(i64, i64)>,
    /// Samples that were decoded and have not gone out yet.
    ready: Vec<i16>,
    /// Samples made up for packets that have not come.
    expanded: usize,
    /// The sender is silent: the next packet waits as the first did.
    resting: bool,
    late_in_a_row: u32,
    /// What the last packet that went out has waited, µs.
    waited: i64,
    pub counts: Counts,
}

/// Timestamps of one clock rate as µs that do not wrap.
#[derive(Clone, Copy, Debug, Default)]
struct Timestamps {
    last: Option<(u32, i64)>,
}

impl Timestamps {
    fn extend(&mut self, timestamp: u32) -> i64 {
        let extended = self.last.map_or(i64::from(timestamp), |(last, extended)| {
            extended + i64::from(i32::from_be_bytes(timestamp.wrapping_sub(last).to_be_bytes()))
        });
        self.last = Some((timestamp, extended));
        extended
    }
}

fn micros(timestamp: i64, codec: Codec) -> i64 {
    timestamp * 1000 / i64::from(codec.clock_rate() / 1000)
}

impl Buffer {
    /// A packet came at `now`, µs. `codec`: `None` where the sender says that it is silent.
    pub fn arrived(&mut self, now: u64, sequence: u16, timestamp: u32, codec: Option<Codec>, payload: &[u8]) {
        self.counts.received += 1;
        let number = self.extender.extend(sequence);
        let extended = self.timestamps.extend(timestamp);
        let clock = codec.or(self.clock).unwrap_or(Codec::Pcmu);
        let transit = i64::try_from(now).unwrap_or(i64::MAX) - micros(extended, clock);
        let far = self.due.is_some_and(|(due, due_at)| {
            (number - due).abs() > FAR || (micros(extended, clock) - due_at).abs() > FAR * FRAME_US && number - due <= 1 && !self.resting
        });
        let other_clock = self.clock.is_some_and(|before| before.clock_rate() != clock.clock_rate());
        if far || other_clock {
            self.begin_anew();
        }
        self.clock = Some(clock);
        if self.due.is_some_and(|(due, _)| number < due) {
            self.counts.late += 1;
            self.late_in_a_row += 1;
            if self.late_in_a_row > LATE_IN_A_ROW {
                self.begin_anew();
            }
            // How late it is counts for those to come.
            self.delay.arrived(transit);
            return;
        }
        self.late_in_a_row = 0;
        if self.waiting.contains_key(&number) {
            self.counts.duplicates += 1;
            return;
        }
        self.delay.arrived(transit);
        let waiting = Waiting {
            timestamp: micros(extended, clock),
            payload: payload.to_vec(),
            codec,
        };
        self.waiting.insert(number, waiting);
        if self.waiting.len() > PACKETS {
            self.waiting.pop_first();
        }
    }

    /// Another stream comes: nothing of before is of use.
    pub fn renew(&mut self) {
        let counts = self.counts;
        *self = Self::default();
        self.counts = counts;
    }

    /// The stream begins anew.
    fn begin_anew(&mut self) {
        self.waiting.clear();
        self.delay = Delay::default();
        self.due = None;
        self.resting = false;
        self.expanded = 0;
        self.late_in_a_row = 0;
    }

    /// How long packets are to wait, µs.
    #[must_use]
    pub fn target(&self) -> i64 {
        self.delay.jitter().clamp(LEAST, MOST)
    }

    /// What is added to what the network takes at least, µs: the wait of the last packet, and of samples behind it.
    #[must_use]
    pub fn added(&self) -> i64 {
        self.waited + (self.ready.len() as i64) * 1_000_000 / i64::from(RATE)
    }

    /// The RTP timestamp of what goes out next, and its clock rate; `None` while the sender is silent.
    #[must_use]
    pub fn playing(&self) -> Option<(u32, u32)> {
        let (_, due_at) = self.due.filter(|_| !self.resting)?;
        let clock = self.clock?.clock_rate();
        let at = due_at - (self.ready.len() as i64) * 1_000_000 / i64::from(RATE);
        // Timestamps wrap.
        Some(((at * i64::from(clock / 1000) / 1000) as u32, clock))
    }

    /// How long a packet with this timestamp has waited by now, if it had come as early as any.
    fn wait(&self, now: u64, timestamp: i64) -> i64 {
        i64::try_from(now).unwrap_or(i64::MAX) - timestamp - self.delay.least()
    }

    /// The next 20 ms; `false`: the sender is silent, and `frame` too.
    pub fn pull(&mut self, now: u64, frame: &mut [i16; FRAME]) -> bool {
        let mut made_up = false;
        while self.ready.len() < FRAME || self.waits_too_long(now) {
            match self.step(now) {
                Step::Decoded => {}
                Step::MadeUp => made_up = true,
                Step::Silent => break,
            }
        }
        self.catch_up(now);
        self.counts.concealed += u64::from(made_up);
        let count = self.ready.len().min(FRAME);
        frame[..count].copy_from_slice(&self.ready[..count]);
        frame[count..].fill(0);
        self.ready.drain(..count);
        count > 0
    }

    /// Whether the next packet could have gone out by now, so that there is something to shorten.
    fn waits_too_long(&self, now: u64) -> bool {
        let due = self.due.filter(|(due, _)| self.waiting.contains_key(due) && !self.resting);
        due.is_some_and(|(_, due_at)| self.ready.len() < 2 * FRAME && self.wait(now, due_at) >= self.target())
    }

    /// Take out what lies behind this frame, as far as the next packet still waits long enough until it is needed.
    fn catch_up(&mut self, now: u64) {
        let Some((_, due_at)) = self.due.filter(|_| !self.resting) else {
            return;
        };
        let lacking = (self.target() - self.wait(now, due_at)).max(0);
        let frames = usize::try_from((lacking + FRAME_US - 1) / FRAME_US).unwrap_or(0).max(1);
        let excess = self.ready.len().saturating_sub(frames * FRAME);
        if excess > SLACK {
            self.counts.shortened += shorten(&mut self.ready, excess) as u64;
        }
    }

    fn step(&mut self, now: u64) -> Step {
        let Some((number, first)) = self.waiting.first_key_value().map(|(number, first)| (*number, first.clone())) else {
            return self.expand();
        };
        if self.due.is_none() || self.resting {
            // It waits as long as others may come late.
            if self.wait(now, first.timestamp) < self.target().min(self.delay.jitter().max(LEAST)) {
                return if self.due.is_none() { Step::Silent } else { self.expand() };
            }
            self.resting = false;
            self.expanded = 0;
            self.due = Some((number, first.timestamp));
        }
        let Some((due, due_at)) = self.due else { return Step::Silent };
        let missing = number - due;
        if missing > 0 {
            let gap = (first.timestamp - due_at).max(0) as usize * (RATE as usize / 1000) / 1000;
            self.counts.lost += missing.unsigned_abs();
            self.due = Some((number, first.timestamp));
            // What was made up while nothing came stands for it.
            let covered = self.expanded.min(gap);
            self.expanded = 0;
            let gap = (gap - covered).min(EXPANDED);
            if gap > 0 && self.wait(now, due_at) <= self.target() + 2 * FRAME_US {
                if let Some(decoder) = &mut self.decoder {
                    decoder.conceal(gap, Some(&first.payload), &mut self.ready);
                }
                return Step::MadeUp;
            }
        }
        self.waiting.remove(&number);
        self.expanded = 0;
        self.take(now, number, &first)
    }

    /// Nothing is there: something is made up, for as long as a packet may be late.
    fn expand(&mut self) -> Step {
        if self.due.is_none() || self.resting {
            return Step::Silent;
        }
        if self.expanded >= EXPANDED {
            self.resting = true;
            return Step::Silent;
        }
        let count = FRAME - self.ready.len().min(FRAME);
        if let Some(decoder) = &mut self.decoder {
            // Opus conceals multiples of 2.5 ms.
            let count = count.div_ceil(40) * 40;
            decoder.conceal(count, None, &mut self.ready);
            self.expanded += count;
            return Step::MadeUp;
        }
        Step::Silent
    }

    /// The packet that is due.
    fn take(&mut self, now: u64, number: i64, packet: &Waiting) -> Step {
        let waited = self.wait(now, packet.timestamp);
        let Some(codec) = packet.codec else {
            // Comfort noise: silence until something else comes.
            self.due = Some((number + 1, packet.timestamp));
            self.resting = true;
            return Step::Decoded;
        };
        if self.decoder.as_ref().is_none_or(|decoder| decoder.codec() != codec) {
            self.decoder = Decoder::new(codec).ok();
        }
        let before = self.ready.len();
        let decoded = self
            .decoder
            .as_mut()
            .map(|decoder| decoder.decode(&packet.payload, &mut self.ready));
        if !matches!(decoded, Some(Ok(()))) {
            self.counts.broken += 1;
            self.due = Some((number + 1, packet.timestamp + FRAME_US));
            return Step::Decoded;
        }
        let samples = self.ready.len() - before;
        self.due = Some((number + 1, packet.timestamp + (samples as i64) * 1_000_000 / i64::from(RATE)));
        self.waited = waited;
        Step::Decoded
    }
}

enum Step {
    Decoded,
    MadeUp,
    Silent,
}
