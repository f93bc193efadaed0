//! Counters of writes, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start; `waiting` is a gauge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Write requests with entries or filter rows.
    pub batches: u64,
    /// Entries and rows in them.
    pub updates: u64,
    /// Repeated requests.
    pub retries: u64,
    /// Writes that did not end as done.
    pub failures: u64,
    pub collisions: u64,
    /// Completed audits.
    pub audits: u64,
    /// Waiting writes.
    pub waiting: u64,
    /// Source filters in force.
    pub source_filters: u64,
    /// Lists of learn notices that were dropped because the receiver was late.
    pub digests_lost: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    batches: AtomicU64,
    updates: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    collisions: AtomicU64,
    audits: AtomicU64,
    waiting: AtomicU64,
    source_filters: AtomicU64,
}

impl Counts {
    pub(crate) fn batch(&self, updates: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.updates.fetch_add(updates as u64, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self, times: u32) {
        self.retries.fetch_add(times.into(), Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, count: usize) {
        self.failures.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn collided(&self) {
        self.collisions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn audited(&self) {
        self.audits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn now(&self, waiting: usize, source_filters: usize) {
        self.waiting.store(waiting as u64, Ordering::Relaxed);
        self.source_filters.store(source_filters as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, digests_lost: u64) -> Statistics {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Statistics {
            batches: get(&self.batches),
            updates: get(&self.updates),
            retries: get(&self.retries),
            failures: get(&self.failures),
            collisions: get(&self.collisions),
            audits: get(&self.audits),
            waiting: get(&self.waiting),
            source_filters: get(&self.source_filters),
            digests_lost,
        }
    }
}
