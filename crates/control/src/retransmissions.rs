//! The retransmission cache: what datagrams were executed, so that a repetition gets its first reply and is not executed again.

use shunt_latch::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

/// Two independent hashes of a value: nobody finds two values with the same ones.
type Digest = (u64, u64);

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a reply is kept; rtpproxy keeps its own as long.
    pub age: Duration,
    /// Replies.
    pub replies: usize,
    /// Bytes of all replies together.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(35),
            replies: 100_000,
            bytes: 64 << 20,
        }
    }
}

/// What is known of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Execute it, and give the ticket back with the reply.
    New(Ticket),
    /// It is being executed: the reply to the first copy answers this one too.
    InProgress,
    /// It was executed, and this was the reply.
    Answered(&'a [u8]),
}

/// A command that is being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    key: Digest,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    body: Digest,
    serial: u64,
    /// `None` while the command is being executed.
    reply: Option<Vec<u8>>,
}

/// Commands by sender and cookie.
///
/// The same cookie with another command is another client on the same port, or a client that was restarted: the new command takes the
/// place of the old one, whose reply nobody waits for any more.
#[derive(Debug, Default)]
pub struct Retransmissions {
    limits: Limits,
    hashers: [RandomState; 2],
    entries: HashMap<Digest, Entry>,
    /// Those with a reply, oldest first; an item whose entry was replaced has a serial that is no longer there.
    ages: VecDeque<(Time, Ticket)>,
    bytes: usize,
    serial: u64,
}

impl Retransmissions {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Commands that are known, being executed or answered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Look a datagram up. A new one is known from now on, until [`Self::finish`] and as long after it as the limits say.
    pub fn begin(&mut self, now: Time, peer: SocketAddr, cookie: &[u8], body: &[u8]) -> Seen<'_> {
        self.expire(now);
        let (key, body) = (self.digest((peer, cookie)), self.digest(body));
        if self.entries.get(&key).is_some_and(|entry| entry.body == body) {
            // A second look-up: a reply that is returned from an `if let` would stay borrowed.
            return match self.entries.get(&key).and_then(|entry| entry.reply.as_deref()) {
                Some(reply) => Seen::Answered(reply),
                None => Seen::InProgress,
            };
        }
        self.serial += 1;
        let (serial, reply) = (self.serial, None);
        if let Some(replaced) = self.entries.insert(key, Entry { body, serial, reply }) {
            self.bytes -= replaced.reply.map_or(0, |reply| reply.len());
        }
        Seen::New(Ticket { key, serial })
    }

    /// The command was executed. Without a reply a repetition is executed again. Returns whether the sender still waits for the reply.
    pub fn finish(&mut self, now: Time, ticket: Ticket, reply: Option<&[u8]>) -> bool {
        let Some(entry) = self.entries.get_mut(&ticket.key).filter(|entry| entry.serial == ticket.serial) else {
            return false;
        };
        let Some(reply) = reply else {
            self.entries.remove(&ticket.key);
            return false;
        };
        self.bytes += reply.len();
        entry.reply = Some(reply.to_vec());
        self.ages.push_back((now, ticket));
        while self.ages.len() > self.limits.replies || self.bytes > self.limits.bytes {
            self.forget_oldest();
        }
        true
    }

    fn expire(&mut self, now: Time) {
        while self.ages.front().is_some_and(|(kept, _)| now.since(*kept) >= self.limits.age) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, ticket)) = self.ages.pop_front() else { return };
        if self.entries.get(&ticket.key).is_some_and(|entry| entry.serial == ticket.serial) {
            let entry = self.entries.remove(&ticket.key);
            self.bytes -= entry.and_then(|entry| entry.reply).map_or(0, |reply| reply.len());
        }
    }

    fn digest(&self, value: impl Hash) -> Digest {
        let [first, second] = &self.hashers;
        (first.hash_one(&value), second.hash_one(&value))
    }
}

#[cfg(test)]
#[path = "retransmissions_tests.rs"]
mod tests;
