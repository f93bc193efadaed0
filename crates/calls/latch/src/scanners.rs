//! Detects scanners by the ports that they touch. A source that sends to many relay ports without a call is not a phone, whatever its
//! address.
//!
//! The two judgements have different consequences. A source or an address that misses many ports can no longer show continuity. Blocking a
//! whole address needs more evidence, because the relay may carry calls that are unknown here: no party of a call is there, and the missed
//! ports were touched without a stream. All tables are bounded.

use crate::generations::Generations;
use crate::time::Time;
use shunt_net::Endpoint;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Ports without a call that a scanner misses within [`WINDOW`].
const MISSED: usize = 40;
/// Most ports of calls that one source may touch within [`WINDOW`]. No phone sends one stream to several.
const TOUCHED: usize = 3;
const WINDOW: Duration = Duration::from_secs(5);
/// How long a source counts as a scanner.
const HOLD: Duration = Duration::from_secs(30);
const MOST_SOURCES: usize = 20_000;
/// Minimum observation of a port before its lack of a stream is evidence.
const TOUCH: Duration = Duration::from_secs(2);
/// Packets within [`TOUCH`] that make a stream. The number is low because learn notices are rate-limited: with thousands of streams from
/// one address, each shows only this many.
const STREAM_PACKETS: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(250);
const MOST_SWEEPS: usize = 200;
const MOST_SWEPT: usize = 1000;

/// Evidence against a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// This source scans.
    pub source: bool,
    /// A source at the same address scans.
    pub address: bool,
}

/// A scanner to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Source(Endpoint),
    Address(IpAddr),
}

/// Distinct ports since a time.
#[derive(Clone, Debug)]
struct Ports {
    since: Time,
    ports: Vec<u16>,
}

impl Ports {
    fn new(now: Time) -> Self {
        Self {
            since: now,
            ports: Vec::new(),
        }
    }

    /// Adds a port, up to `most` of them. Returns their number.
    fn note(&mut self, now: Time, port: u16, most: usize) -> usize {
        if now.since(self.since) > WINDOW {
            *self = Self::new(now);
        }
        if self.ports.len() < most && !self.ports.contains(&port) {
            self.ports.push(port);
        }
        self.ports.len()
    }
}

/// The ports that a suspected address has recently missed.
#[derive(Clone, Debug)]
struct Sweep {
    since: Time,
    look_at: Time,
    /// By port: time of the first miss, and number of misses.
    ports: HashMap<u16, (Time, u32)>,
}

impl Sweep {
    fn new(now: Time) -> Self {
        Self {
            since: now,
            look_at: now + TOUCH,
            ports: HashMap::new(),
        }
    }

    /// Adds a packet. Returns whether enough ports were touched without a stream.
    fn note(&mut self, now: Time, port: u16) -> bool {
        if self.ports.len() < MOST_SWEPT || self.ports.contains_key(&port) {
            let (_, count) = self.ports.entry(port).or_insert((now, 0));
            *count = count.saturating_add(1);
        }
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let touched = |(first, count): &&(Time, u32)| now.since(*first) >= TOUCH && *count < STREAM_PACKETS;
        self.ports.values().filter(touched).count() >= MISSED
    }
}

/// All scanners.
#[derive(Clone, Debug)]
pub struct Scanners {
    missed_by_source: Generations<Endpoint, Ports>,
    missed_by_address: Generations<IpAddr, Ports>,
    touched: Generations<Endpoint, Ports>,
    sources: Generations<Endpoint, Time>,
    addresses: Generations<IpAddr, Time>,
    sweeps: Generations<IpAddr, Sweep>,
    /// When the last scanner expires.
    scan_until: Time,
}

impl Default for Scanners {
    fn default() -> Self {
        Self {
            missed_by_source: Generations::new(MOST_SOURCES),
            missed_by_address: Generations::new(MOST_SOURCES),
            touched: Generations::new(MOST_SOURCES),
            sources: Generations::new(MOST_SOURCES),
            addresses: Generations::new(MOST_SOURCES),
            sweeps: Generations::new(MOST_SWEEPS),
            scan_until: Time::default(),
        }
    }
}

impl Scanners {
    /// Records a packet at a relay port without a call. `is_party`: a party of a running call is at the source's address.
    ///
    /// Do not record the last packets of a call that has just ended, at its own port.
    pub fn missed(&mut self, now: Time, source: Endpoint, port: u16, is_party: bool) -> Option<Found> {
        let by_address = self.missed_by_address.entry(source.addr, || Ports::new(now));
        if by_address.note(now, port, MISSED) >= MISSED {
            self.missed_by_address.remove(&source.addr);
            self.addresses.insert(source.addr, now + HOLD);
            self.scan_until = now + HOLD;
        }
        let mut found = None;
        let by_source = self.missed_by_source.entry(source, || Ports::new(now));
        if by_source.note(now, port, MISSED) >= MISSED {
            self.missed_by_source.remove(&source);
            self.sources.insert(source, now + HOLD);
            self.scan_until = now + HOLD;
            found = Some(Found::Source(source));
        }
        let suspected = self.suspicion(now, source).address;
        if suspected && !is_party && self.sweep(now, source.addr, port) {
            found = Some(Found::Address(source.addr));
        }
        found
    }

    fn sweep(&mut self, now: Time, addr: IpAddr, port: u16) -> bool {
        let sweep = self.sweeps.entry(addr, || Sweep::new(now));
        if now.since(sweep.since) > WINDOW {
            *sweep = Sweep::new(now);
        }
        sweep.note(now, port)
    }

    /// Records a packet at a call's port whose signalling does not name this source.
    pub fn touched(&mut self, now: Time, source: Endpoint, port: u16) {
        let ports = self.touched.entry(source, || Ports::new(now));
        if ports.note(now, port, TOUCHED + 1) > TOUCHED {
            self.touched.remove(&source);
            self.sources.insert(source, now + HOLD);
        }
    }

    #[must_use]
    pub fn suspicion(&self, now: Time, source: Endpoint) -> Suspicion {
        Suspicion {
            source: self.sources.get(&source).is_some_and(|until| now < *until),
            address: self.addresses.get(&source.addr).is_some_and(|until| now < *until),
        }
    }

    /// Returns whether no port scan was seen recently.
    #[must_use]
    pub fn are_quiet(&self, now: Time) -> bool {
        now >= self.scan_until
    }

    /// Returns the number of entries in all tables.
    #[must_use]
    pub fn size(&self) -> usize {
        let counted = self.missed_by_source.len() + self.missed_by_address.len() + self.touched.len();
        counted + self.sources.len() + self.addresses.len() + self.sweeps.len()
    }
}
