//! A source's packets in the order of their sequence numbers: a short wait for those that come late.

use shunt_latch::Time;
use shunt_rtp::Header;
use shunt_rtp::sequence::distance;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long packets wait for one that is missing before them.
pub const WAIT: Duration = Duration::from_millis(40);
/// Packets that wait at most.
const HELD: usize = 512;
/// A number that is further away means that the source has begun anew (RFC 3550 appendix A.1).
const DROPOUT: i32 = 3000;

/// A packet that its header has been read of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received(Vec<u8>);

impl Received {
    /// Its header; there always is one.
    #[must_use]
    pub fn header(&self) -> Option<Header<'_>> {
        Header::parse(&self.0).ok()
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Packet(Received),
    /// One packet or several were lost here.
    Gap,
}

/// Orders one stream's packets.
#[derive(Debug, Default)]
pub struct Order {
    /// The next number to go out.
    next: Option<i64>,
    held: BTreeMap<i64, (Time, Received)>,
}

impl Order {
    /// A packet of the stream. One that comes again, or too late, is dropped.
    pub fn push(&mut self, sequence: u16, packet: &[u8], now: Time) {
        let next = *self.next.get_or_insert(i64::from(sequence));
        // The low 16 bits are the number modulo 2^16.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ahead = distance(sequence, next as u16);
        if ahead.abs() > DROPOUT || self.held.len() >= HELD {
            self.held.clear();
            // One before it counts as lost.
            self.next = Some(i64::from(sequence) - 1);
            self.held.insert(i64::from(sequence), (now, Received(packet.to_vec())));
        } else if ahead >= 0 {
            self.held
                .entry(next + i64::from(ahead))
                .or_insert_with(|| (now, Received(packet.to_vec())));
        }
    }

    /// The next packet, or the gap before it when it has waited long enough.
    pub fn pop(&mut self, now: Time) -> Option<Next> {
        let next = self.next?;
        let first = self.held.first_entry()?;
        if *first.key() == next {
            self.next = Some(next + 1);
            return Some(Next::Packet(first.remove().1));
        }
        if now.since(first.get().0) < WAIT {
            return None;
        }
        self.next = Some(*first.key());
        Some(Next::Gap)
    }

    /// When to look again: what waits now has waited long enough.
    #[must_use]
    pub fn due_at(&self) -> Option<Time> {
        self.held.first_key_value().map(|(_, (came, _))| *came + WAIT)
    }
}
