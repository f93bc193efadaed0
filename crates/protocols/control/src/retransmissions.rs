//! The retransmission cache: a retransmitted datagram gets its first reply and is not executed again.

use crate::protocol::Protocol;
use shunt_latch::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Most ports of one sender that wait for the same reply: more than the ports from which a SIP server retransmits.
const WAITING: usize = 16;

/// Two independent hashes of a value, so that no sender can construct a collision.
type Digest = (u64, u64);

/// Bounds of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a reply is kept.
    pub age: Duration,
    /// Replies.
    pub replies: usize,
    /// Bytes of all replies together.
    pub bytes: usize,
}

impl Limits {
    /// The time for which the protocol's own relay keeps a reply.
    #[must_use]
    pub fn of(protocol: Protocol) -> Self {
        let seconds = match protocol {
            Protocol::Rtpproxy => 35,
            Protocol::Ng => 30,
        };
        Self {
            age: Duration::from_secs(seconds),
            replies: 100_000,
            bytes: 64 << 20,
        }
    }
}

/// Result of a look-up.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// New: execute it, and return the ticket with the reply.
    New(Ticket),
    /// It is being executed: [`Retransmissions::finish`] returns the receivers of the reply.
    InProgress,
    /// It was executed, with this reply.
    Answered(&'a [u8]),
}

/// A command that is being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    key: Digest,
    serial: u64,
}

#[derive(Debug)]
enum Progress<W> {
    /// Receivers of the reply.
    Executing(Vec<W>),
    Answered(Vec<u8>),
}

#[derive(Debug)]
struct Entry<W> {
    body: Digest,
    serial: u64,
    progress: Progress<W>,
}

impl<W> Entry<W> {
    fn bytes(&self) -> usize {
        match &self.progress {
            Progress::Executing(_) => 0,
            Progress::Answered(reply) => reply.len(),
        }
    }
}

/// Source of a datagram, with the data that its reply needs.
pub trait Waits: Copy {
    fn peer(&self) -> SocketAddr;
}

/// Commands by sender and cookie. The protocol defines a retransmission.
///
/// rtpproxy: the same address, port, cookie and command. The same cookie with another command comes from another client on the same port,
/// or from a restarted client. The new command replaces the old one, whose reply is no longer needed.
///
/// NG: the same address, cookie and command. rtpengine uses the cookie alone, and SIP servers rely on one part of that: another worker of
/// the same host may repeat a cookie from another port. Address and command are compared too, because an agent has several SIP servers,
/// also in containers behind one address. Their cookies are a process id and a counter, so two servers that started alike use the same
/// ones. By the cookie alone one of them would get the reply to the other's offer, with the ports of another call, and its own command
/// would never be executed.
#[derive(Debug)]
pub struct Retransmissions<W> {
    protocol: Protocol,
    limits: Limits,
    hashers: [RandomState; 2],
    entries: HashMap<Digest, Entry<W>>,
    /// Entries with a reply, oldest first. An item whose entry was replaced has an outdated serial.
    ages: VecDeque<(Time, Ticket)>,
    bytes: usize,
    serial: u64,
}

impl<W: Waits> Retransmissions<W> {
    #[must_use]
    pub fn new(protocol: Protocol, limits: Limits) -> Self {
        Self {
            protocol,
            limits,
            hashers: Default::default(),
            entries: HashMap::new(),
            ages: VecDeque::new(),
            bytes: 0,
            serial: 0,
        }
    }

    /// Looks a datagram up. A new one is stored until [`Self::finish`], and for the configured time after that.
    pub fn begin(&mut self, now: Time, from: W, cookie: &[u8], body: &[u8]) -> Seen<'_> {
        self.expire(now);
        let (key, body) = self.identity(from.peer(), cookie, body);
        if self.entries.get(&key).is_some_and(|entry| entry.body == body) {
            // A second look-up, because a reply returned from an `if let` would stay borrowed.
            return match self.entries.get_mut(&key).map(|entry| &mut entry.progress) {
                Some(Progress::Answered(reply)) => Seen::Answered(reply),
                Some(Progress::Executing(waiting)) => {
                    if waiting.len() < WAITING && waiting.iter().all(|known| known.peer() != from.peer()) {
                        waiting.push(from);
                    }
                    Seen::InProgress
                }
                None => Seen::InProgress,
            };
        }
        self.serial += 1;
        let (serial, progress) = (self.serial, Progress::Executing(vec![from]));
        if let Some(replaced) = self.entries.insert(key, Entry { body, serial, progress }) {
            self.bytes -= replaced.bytes();
        }
        Seen::New(Ticket { key, serial })
    }

    /// Ends a command. Without a reply, a retransmission is executed again. Returns the receivers of the reply.
    pub fn finish(&mut self, now: Time, ticket: Ticket, reply: Option<&[u8]>) -> Vec<W> {
        let Some(entry) = self.entries.get_mut(&ticket.key).filter(|entry| entry.serial == ticket.serial) else {
            return Vec::new();
        };
        let Some(reply) = reply else {
            self.entries.remove(&ticket.key);
            return Vec::new();
        };
        self.bytes += reply.len();
        let progress = std::mem::replace(&mut entry.progress, Progress::Answered(reply.to_vec()));
        self.ages.push_back((now, ticket));
        while self.ages.len() > self.limits.replies || self.bytes > self.limits.bytes {
            self.forget_oldest();
        }
        match progress {
            Progress::Executing(waiting) => waiting,
            Progress::Answered(_) => Vec::new(),
        }
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
            self.bytes -= entry.map_or(0, |entry| entry.bytes());
        }
    }

    /// Returns the key of a command, and the value that must match too.
    fn identity(&self, peer: SocketAddr, cookie: &[u8], body: &[u8]) -> (Digest, Digest) {
        match self.protocol {
            Protocol::Rtpproxy => (self.digest((peer, cookie)), self.digest(body)),
            Protocol::Ng => (self.digest((host(peer), cookie, body)), self.digest(())),
        }
    }

    fn digest(&self, value: impl Hash) -> Digest {
        let [first, second] = &self.hashers;
        (first.hash_one(&value), second.hash_one(&value))
    }
}

fn host(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

#[cfg(test)]
#[path = "retransmissions_tests.rs"]
mod tests;
