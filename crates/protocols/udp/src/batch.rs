//! Packets that were received together.

use crate::address::Address;
use std::ops::Range;

/// Packets of one batch.
pub const MOST: usize = 32;
/// Bytes of the largest UDP packet, and so of each buffer. Memory that no packet reaches is never touched.
const SIZE: usize = 65_536;

/// Buffers for [`MOST`] packets, with their lengths and senders.
pub struct Batch {
    buffers: Vec<u8>,
    lengths: [usize; MOST],
    /// How long each packet is where the kernel has put several into a buffer; the last may be shorter.
    runs: [usize; MOST],
    senders: [Address; MOST],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            buffers: vec![0; MOST * SIZE],
            lengths: [0; MOST],
            runs: [SIZE; MOST],
            senders: [Address::default(); MOST],
        }
    }
}

impl Batch {
    /// The packet at a place of the last batch received.
    #[must_use]
    pub fn packet(&self, at: usize) -> &[u8] {
        &self.buffers[at * SIZE..at * SIZE + self.lengths[at]]
    }

    /// The packets at a place: several where the socket joins them ([`crate::Socket::join_runs`]).
    pub fn run(&self, at: usize) -> impl Iterator<Item = &[u8]> {
        self.packet(at).chunks(self.runs[at])
    }

    #[must_use]
    pub fn sender(&self, at: usize) -> &Address {
        &self.senders[at]
    }

    /// The first `count` buffers.
    pub(crate) fn buffers(&mut self, count: usize) -> impl Iterator<Item = (&mut [u8], &mut Address)> {
        self.buffers.chunks_exact_mut(SIZE).zip(&mut self.senders).take(count)
    }

    pub(crate) fn set_length(&mut self, at: usize, length: usize) {
        (self.lengths[at], self.runs[at]) = (length.min(SIZE), SIZE);
    }

    /// What is in a buffer are packets of this length.
    pub(crate) fn set_run(&mut self, at: usize, length: usize) {
        self.runs[at] = length.max(1);
    }

    pub(crate) fn packets(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        range.map(|at| self.packet(at))
    }
}
