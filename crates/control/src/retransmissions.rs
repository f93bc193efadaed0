//! The retransmission cache: what datagrams were executed, so that a repetition gets its first reply and is not executed again.

use crate::protocol::Protocol;
use shunt_latch::Time;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Ports of one sender that wait for the same reply: more than a SIP server repeats a command from.
const WAITING: usize = 16;

/// Two independent hashes of a value: nobody finds two values with the same ones.
type Digest = (u64, u64);

/// How much is kept.
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
    /// As long as the protocol's own relay keeps a reply.
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

/// What is known of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Execute it, and give the ticket back with the reply.
    New(Ticket),
    /// It is being executed: [`Retransmissions::finish`] says to whom the reply goes.
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
enum Progress<W> {
    /// Those who wait for the reply.
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

/// Where a datagram came from, with whatever else its reply needs.
pub trait Waits: Copy {
    fn peer(&self) -> SocketAddr;
}

/// Commands by sender and cookie. What makes a datagram a repetition depends on the protocol.
///
/// rtpproxy: the same address, port, cookie and command. The same cookie with another command is another client on the same port, or a
/// client that was restarted: the new command takes the place of the old one, whose reply nobody waits for any more.
///
/// NG: the same address, cookie and command. rtpengine goes by the cookie alone, and SIP servers rely on one part of that: another worker of the
/// same host may repeat a cookie from a port of its own. Address and command are added here because an agent has several SIP servers, also in
/// containers behind one address. Their cookies are a process id and a counter, and two servers that were started alike count alike: by the
/// cookie alone one of them would get the reply to the other's offer, with the ports of another call, and its own command would never be executed.
#[derive(Debug)]
pub struct Retransmissions<W> {
    protocol: Protocol,
    limits: Limits,
    hashers: [RandomState; 2],
    entries: HashMap<Digest, Entry<W>>,
    /// Those with a reply, oldest first; an item whose entry was replaced has a serial that is no longer there.
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

    /// Look a datagram up. A new one is known from now on, until [`Self::finish`] and as long after it as the limits say.
    pub fn begin(&mut self, now: Time, from: W, cookie: &[u8], body: &[u8]) -> Seen<'_> {
        self.expire(now);
        let (key, body) = self.identity(from.peer(), cookie, body);
        if self.entries.get(&key).is_some_and(|entry| entry.body == body) {
            // A second look-up: a reply that is returned from an `if let` would stay borrowed.
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

    /// The command was executed. Without a reply a repetition is executed again. Returns who still waits for the reply.
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

    /// Under which key a command is known, and what else must be the same.
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
