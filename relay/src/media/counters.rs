//! What the forwarding threads count, for the others to read. Each value has one writer.

use shunt_latch::{Former, Learner, Time};
use shunt_net::Endpoint;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Only for the thread that writes it.
    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Packets of one port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Of the party.
    pub received: Counter,
    pub relayed: Counter,
    /// There was nowhere to send to, the kernel refused, or the stream has too many.
    pub dropped: Counter,
    /// Of unknown sources.
    pub ignored: Counter,
    /// When a packet of the party came last, ns since the start.
    pub last_packet: Counter,
    pub learned: Mutex<Option<Endpoint>>,
}

impl PortCounters {
    pub fn last_packet(&self) -> Time {
        Time::from_nanos(self.last_packet.get())
    }
}

/// Packets of all ports of one thread.
#[derive(Debug, Default)]
pub struct ThreadCounters {
    pub received: Counter,
    pub relayed: Counter,
    pub discarded: Counter,
    /// Bytes of packets that are held back for sources that are not latched yet.
    pub held: Counter,
}

/// What all threads share.
#[derive(Debug)]
pub struct Shared {
    started: Instant,
    learner: Mutex<Learner>,
    /// By relay address and port: the stream of the call that had the port last.
    formers: Mutex<HashMap<(IpAddr, u16), Former>>,
}

/// Nothing that these locks guard is left half done by a thread that panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(learner: Learner) -> Self {
        Self {
            started: Instant::now(),
            learner: Mutex::new(learner),
            formers: Mutex::default(),
        }
    }

    pub fn now(&self) -> Time {
        self.started.elapsed().into()
    }

    pub fn learner(&self) -> MutexGuard<'_, Learner> {
        lock(&self.learner)
    }

    pub fn formers(&self) -> MutexGuard<'_, HashMap<(IpAddr, u16), Former>> {
        lock(&self.formers)
    }
}

impl PortCounters {
    pub fn learned(&self) -> Option<Endpoint> {
        *lock(&self.learned)
    }

    pub fn set_learned(&self, learned: Option<Endpoint>) {
        *lock(&self.learned) = learned;
    }
}
