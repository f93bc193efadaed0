//! Counters of a listener.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub enum Counter {
    Executed,
    Answered,
    Unanswered,
    Repeated,
    Denied,
    Malformed,
    Expired,
    Stalls,
}

const KINDS: usize = Counter::Stalls as usize + 1;

#[derive(Default)]
pub struct Counters([AtomicU64; KINDS]);

/// Counters of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Executed by the service.
    pub executed: u64,
    /// Executed, with a reply.
    pub answered: u64,
    /// Executed, without a reply.
    pub unanswered: u64,
    /// Retransmitted datagrams.
    pub repeated: u64,
    /// Commands from addresses that are not allowed, and connections above the limit.
    pub denied: u64,
    /// Empty, too long, or without a cookie.
    pub malformed: u64,
    /// Not executed, because they had waited too long.
    pub expired: u64,
    /// How often reading waited because too many commands were being executed.
    pub stalls: u64,
    /// Commands being executed now.
    pub in_flight: usize,
}

impl Counters {
    pub fn add(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Relaxed);
    }

    pub fn read(&self, in_flight: usize) -> Counts {
        let get = |counter: Counter| self.0[counter as usize].load(Relaxed);
        Counts {
            executed: get(Counter::Executed),
            answered: get(Counter::Answered),
            unanswered: get(Counter::Unanswered),
            repeated: get(Counter::Repeated),
            denied: get(Counter::Denied),
            malformed: get(Counter::Malformed),
            expired: get(Counter::Expired),
            stalls: get(Counter::Stalls),
            in_flight,
        }
    }
}
