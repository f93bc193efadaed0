//! Pictures out of a source's packets, which come in order, with gaps where packets were lost.

use super::payload::Header;
use super::picture::Picture;
use crate::bits::{Reader, Writer};
use crate::fault::{Fault, What};
use crate::order::Next;
use std::ops::Range;

/// The largest picture: twice what H.261 (section 5.2) allows a CIF picture.
const LARGEST: usize = 64 << 10;

/// A picture that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    pub bits: Vec<u8>,
    pub picture: Picture,
    /// All of its packets were received, and could be read.
    pub whole: bool,
    /// What came before it was received without a gap.
    pub follows: bool,
    /// Why it could not be read to the end.
    pub fault: Option<Fault>,
}

#[derive(Debug, Default)]
struct Begun {
    timestamp: u32,
    bits: Writer,
    /// Runs of bits without a gap; each begins with a start code.
    runs: Vec<Range<usize>>,
    /// The last run goes on.
    open: bool,
    whole: bool,
    follows: bool,
    fault: Option<Fault>,
}

/// Packets of one source to pictures.
#[derive(Debug, Default)]
pub struct Assembler {
    begun: Option<Begun>,
    gap: bool,
}

impl Assembler {
    /// The next packet or gap. Ends up to two pictures: one whose last packet was lost, and its own.
    pub fn take(&mut self, next: &Next) -> Vec<Assembled> {
        let mut ended = Vec::new();
        let packet = match next {
            Next::Gap => {
                self.gap = true;
                return ended;
            }
            Next::Packet(packet) => packet,
        };
        let Some(header) = packet.header() else { return ended };
        let gap = std::mem::take(&mut self.gap);
        if self.begun.as_ref().is_some_and(|begun| begun.timestamp != header.timestamp) {
            ended.extend(self.begun.take().map(|begun| begun.end(!gap)));
        }
        let begun = self.begun.get_or_insert_with(|| Begun {
            timestamp: header.timestamp,
            whole: true,
            follows: !gap,
            ..Begun::default()
        });
        if gap {
            begun.open = false;
            // Before a picture's first packet is a gap of the pictures before, unless its start is missing.
            begun.whole &= begun.runs.is_empty();
        }
        begun.append(header.payload);
        if header.marker {
            ended.extend(self.begun.take().map(|begun| begun.end(true)));
        }
        ended
    }
}

impl Begun {
    fn append(&mut self, payload: &[u8]) {
        let (header, octets) = match Header::parse(payload) {
            Ok(found) => found,
            Err(fault) => {
                (self.open, self.whole, self.fault) = (false, false, Some(fault));
                return;
            }
        };
        let (from, to) = (usize::from(header.start), octets.len() * 8 - usize::from(header.end));
        if !self.open {
            // After a gap the next start code is where reading goes on.
            if Reader::within(octets, from, to).peek(16) != 1 {
                if self.whole && self.follows {
                    self.fault = Some(Fault {
                        what: What::PictureStart,
                        at: 0,
                    });
                }
                self.whole = false;
                return;
            }
            let at = self.bits.len();
            self.runs.push(at..at);
            self.open = true;
        }
        if self.bits.len() / 8 + octets.len() > LARGEST {
            (self.open, self.whole) = (false, false);
            return;
        }
        self.bits.copy(octets, from, to);
        if let Some(run) = self.runs.last_mut() {
            run.end = self.bits.len();
        }
    }

    fn end(mut self, complete: bool) -> Assembled {
        let bits = self.bits.finish();
        let mut picture = Picture::default();
        for run in self.runs {
            if let Err(fault) = picture.read(&bits, run) {
                (self.whole, self.fault) = (false, Some(fault));
            }
        }
        Assembled {
            bits,
            whole: self.whole && complete && picture.size.is_some(),
            picture,
            follows: self.follows,
            fault: self.fault,
        }
    }
}
