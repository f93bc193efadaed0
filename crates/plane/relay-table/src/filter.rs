//! The sources that a relay port without an entry admits: blocklist, source filters, greylist, allowlist.
//!
//! Rows hold their expiry time, which the programs compare. If the writer of a row dies, all sources are admitted again after that time.

use crate::entry::{address, port, words};
use shunt_abi::relay::{__anon_greylist_1 as port_range, endpoint, greylist, size, source_filter};
use shunt_net::Endpoint;
use shunt_xdp::{Hash, Loaded, Plain, Put, Result, monotonic_coarse_ns, monotonic_ns};
use std::net::IpAddr;

const MS: u64 = 1_000_000;
/// A full table is swept for expired rows during at most this fraction (one in n) of the time.
const SWEEP_SHARE: u64 = 20;

/// A value that begins with its expiry time.
pub trait TimedRow: Plain {
    /// Nanoseconds of CLOCK_MONOTONIC.
    fn until(&self) -> u64;
}

impl TimedRow for u64 {
    fn until(&self) -> u64 {
        *self
    }
}

impl TimedRow for source_filter {
    fn until(&self) -> u64 {
        self.until
    }
}

impl TimedRow for greylist {
    fn until(&self) -> u64 {
        self.until
    }
}

fn key_of(end: &Endpoint) -> endpoint {
    endpoint {
        addr: words(end.addr),
        port: port(end.port),
        unused: 0,
        version: if end.addr.is_ipv6() { 6 } else { 4 },
    }
}

fn end_of(key: &endpoint) -> Endpoint {
    Endpoint::new(address(key.addr, key.version == 6), port(key.port))
}

/// A map from addresses and ports to rows with an expiry time.
pub struct TimedTable<V> {
    map: Hash<endpoint, V>,
    /// No row expires before; 0: unknown, because other processes may have written rows.
    soonest: u64,
    /// No sweep before this time.
    rest_until: u64,
}

impl<V: TimedRow> TimedTable<V> {
    fn new(loaded: &Loaded, name: &str) -> Result<Self> {
        Ok(Self {
            map: Hash::new(loaded.map(name)?)?,
            soonest: 0,
            rest_until: 0,
        })
    }

    fn put(&mut self, end: &Endpoint, row: &V) -> Result<Put> {
        let key = key_of(end);
        let mut done = self.map.put(&key, row)?;
        if done == Put::Full && self.sweep()? > 0 {
            done = self.map.put(&key, row)?;
        }
        self.soonest = self.soonest.min(row.until());
        Ok(done)
    }

    /// Returns a row that is in force. The packet programs compare with the coarse clock, and so does this function.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn get(&self, end: &Endpoint) -> Result<Option<V>> {
        Ok(self.map.get(&key_of(end))?.filter(|row| row.until() > monotonic_coarse_ns()))
    }

    /// Returns the milliseconds until a row expires.
    #[must_use]
    pub fn remaining_ms(row: &V) -> u32 {
        u32::try_from(row.until().saturating_sub(monotonic_ns()) / MS).unwrap_or(u32::MAX)
    }

    /// Removes a row; a missing row is no error.
    ///
    /// # Errors
    /// The kernel rejects the deletion.
    pub fn remove(&mut self, end: &Endpoint) -> Result<()> {
        self.map.delete(&key_of(end)).map(drop)
    }

    /// Returns all rows in force.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn rows(&self) -> Result<Vec<(Endpoint, V)>> {
        let now = monotonic_coarse_ns();
        Ok(self
            .map
            .elements()?
            .into_iter()
            .filter(|(_, row)| row.until() > now)
            .map(|(key, row)| (end_of(&key), row))
            .collect())
    }

    /// Removes expired rows. Every write to a full table calls it, so it sweeps only when a row may have expired.
    fn sweep(&mut self) -> Result<usize> {
        let began = monotonic_ns();
        if began < self.soonest.max(self.rest_until) {
            return Ok(0);
        }
        let now = monotonic_coarse_ns();
        let (mut removed, mut soonest) = (0, u64::MAX);
        for (key, row) in self.map.elements()? {
            if row.until() <= now {
                self.map.delete(&key)?;
                removed += 1;
            } else {
                soonest = soonest.min(row.until());
            }
        }
        self.soonest = soonest;
        let ended = monotonic_ns();
        self.rest_until = ended + SWEEP_SHARE * (ended - began);
        Ok(removed)
    }
}

fn port_ranges(ranges: &[(u16, u16)]) -> [port_range; size::GREYLIST_RANGES.0 as usize] {
    let mut rows = [port_range::default(); size::GREYLIST_RANGES.0 as usize];
    for (to, (first, last)) in rows.iter_mut().zip(ranges) {
        *to = port_range {
            first: *first,
            last: *last,
        };
    }
    rows
}

fn until(ttl_ms: u32) -> u64 {
    monotonic_ns() + u64::from(ttl_ms) * MS
}

/// All tables that decide which sources are admitted.
pub struct Filters {
    /// Blocked sources: an address and port, or with port 0 the whole address.
    pub blocklist: TimedTable<u64>,
    /// Allowed addresses of an even port and the next one; an empty row admits no source.
    pub source_filters: TimedTable<source_filter>,
    /// Relay addresses (port 0) with port ranges where unknown sources are admitted only after several packets.
    pub greylist: TimedTable<greylist>,
    /// Addresses of parties (port 0), which greylisted ports admit at once.
    pub allowlist: TimedTable<u64>,
}

impl Filters {
    /// Opens the tables.
    ///
    /// # Errors
    /// The maps cannot be opened.
    pub fn new(loaded: &Loaded) -> Result<Self> {
        Ok(Self {
            blocklist: TimedTable::new(loaded, "blocklist")?,
            source_filters: TimedTable::new(loaded, "source_filters")?,
            greylist: TimedTable::new(loaded, "greylist")?,
            allowlist: TimedTable::new(loaded, "allowlist")?,
        })
    }

    /// Blocks a source from now on.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn block(&mut self, source: &Endpoint, ttl_ms: u32) -> Result<Put> {
        self.blocklist.put(source, &until(ttl_ms))
    }

    /// Admits an address at greylisted ports from now on.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn allow(&mut self, source: &Endpoint, ttl_ms: u32) -> Result<Put> {
        self.allowlist.put(source, &until(ttl_ms))
    }

    /// Admits only these addresses, at most four, at a port and the next one from now on.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn set_source_filter(&mut self, at: &Endpoint, ttl_ms: u32, allowed: &[IpAddr]) -> Result<Put> {
        let mut row = source_filter {
            until: until(ttl_ms),
            allowed: [[0; 4]; size::ALLOWED_SOURCES.0 as usize],
        };
        for (to, from) in row.allowed.iter_mut().zip(allowed) {
            *to = words(*from);
        }
        self.source_filters.put(at, &row)
    }

    /// Returns the addresses of a source filter; `v6`: their IP version.
    #[must_use]
    pub fn allowed(row: &source_filter, v6: bool) -> Vec<IpAddr> {
        row.allowed
            .iter()
            .filter(|words| **words != [0; 4])
            .map(|words| address(*words, v6))
            .collect()
    }

    /// Greylists these port ranges, at most four, of a relay address from now on.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn set_greylist(&mut self, at: &Endpoint, ttl_ms: u32, ranges: &[(u16, u16)]) -> Result<Put> {
        let row = greylist {
            until: until(ttl_ms),
            ports: port_ranges(ranges),
        };
        self.greylist.put(at, &row)
    }

    /// Returns the port ranges of a greylist row.
    #[must_use]
    pub fn ranges(row: &greylist) -> Vec<(u16, u16)> {
        row.ports
            .iter()
            .map(|range| (range.first, range.last))
            .filter(|range| *range != (0, 0))
            .collect()
    }

    /// Admits unknown sources at these ports, because no client knows their calls any more. `is_open`: whether a port is one of them.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn open_up(&mut self, is_open: impl Fn(&Endpoint) -> bool) -> Result<()> {
        for (at, _) in self.source_filters.rows()? {
            if is_open(&at) {
                self.source_filters.remove(&at)?;
            }
        }
        for (at, mut row) in self.greylist.rows()? {
            let (open, kept): (Vec<_>, Vec<_>) = Self::ranges(&row)
                .into_iter()
                .partition(|(first, _)| is_open(&Endpoint::new(at.addr, *first)));
            if kept.is_empty() {
                self.greylist.remove(&at)?;
            } else if !open.is_empty() {
                row.ports = port_ranges(&kept);
                self.greylist.put(&at, &row)?;
            }
        }
        Ok(())
    }
}
