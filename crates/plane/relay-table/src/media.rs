//! Media ports: relay ports at which a packet without an entry raises a learn notice.

use crate::addresses::Addresses;
use crate::entry::{Fault, address, words};
use shunt_abi::relay::{media_range, port_set, size};
use shunt_xdp::{Hash, Loaded, Put, Result, Shared};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// A relay address and a range of its ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaRange {
    pub addr: IpAddr,
    pub first: u16,
    pub last: u16,
}

impl MediaRange {
    fn record(&self) -> media_range {
        media_range {
            addr: words(self.addr),
            first: u16::from_ne_bytes(self.first.to_be_bytes()),
            last: u16::from_ne_bytes(self.last.to_be_bytes()),
            version: if self.addr.is_ipv6() { 6 } else { 4 },
        }
    }

    fn of(record: &media_range) -> Self {
        Self {
            addr: address(record.addr, record.version == 6),
            first: u16::from_be(record.first),
            last: u16::from_be(record.last),
        }
    }
}

/// The media ranges, and a bit for each port in the programs' maps.
pub struct Media {
    sets: Shared<port_set>,
    records: Hash<media_range, u32>,
    ranges: BTreeSet<MediaRange>,
}

impl Media {
    /// Opens the maps.
    ///
    /// # Errors
    /// The maps cannot be opened.
    pub fn new(loaded: &Loaded) -> Result<Self> {
        Ok(Self {
            sets: Shared::map(loaded.map("media")?, size::ADDRESSES.0 as usize)?,
            records: Hash::new(loaded.map("media_ranges")?)?,
            ranges: BTreeSet::new(),
        })
    }

    #[must_use]
    pub fn ranges(&self) -> &BTreeSet<MediaRange> {
        &self.ranges
    }

    /// Adds a range.
    ///
    /// # Errors
    /// The range exists, or does not fit.
    pub fn add(&mut self, addresses: &mut Addresses, range: MediaRange) -> std::result::Result<(), Fault> {
        if range.first > range.last {
            return Err(Fault::Invalid("the range of ports begins after its end"));
        }
        if self.ranges.contains(&range) {
            return Err(Fault::Exists);
        }
        let Some(owner) = addresses.add(range.addr) else {
            return Err(Fault::Full);
        };
        owner.ranges += 1;
        let written = self.records.put(&range.record(), &1);
        if !matches!(written, Ok(Put::Done)) {
            if let Some(owner) = addresses.get_mut(range.addr) {
                owner.ranges -= 1;
            }
            addresses.drop_unused(range.addr);
            written?;
            return Err(Fault::Full);
        }
        self.ranges.insert(range);
        self.write(addresses, range.addr);
        Ok(())
    }

    /// Removes a range. Returns whether it existed.
    pub fn remove(&mut self, addresses: &mut Addresses, range: MediaRange) -> bool {
        if !self.ranges.remove(&range) {
            return false;
        }
        if let Err(error) = self.records.delete(&range.record()) {
            tracing::error!("{error}");
        }
        self.write(addresses, range.addr);
        if let Some(owner) = addresses.get_mut(range.addr) {
            owner.ranges -= 1;
        }
        addresses.drop_unused(range.addr);
        true
    }

    fn write(&self, addresses: &Addresses, addr: IpAddr) {
        let Some(owner) = addresses.get(addr) else { return };
        let mut bits = [0u64; 1024];
        for range in self.ranges.iter().filter(|range| range.addr == addr) {
            for port in range.first..=range.last {
                bits[usize::from(port / 64)] |= 1 << (port % 64);
            }
        }
        for (word, value) in bits.into_iter().enumerate() {
            self.sets.u64_at(owner.number, word * 8).store(value, Ordering::Relaxed);
        }
    }

    /// Reads the ranges from the maps.
    ///
    /// # Errors
    /// The maps cannot be read.
    pub fn adopt(&mut self, addresses: &mut Addresses) -> Result<()> {
        for (record, _) in self.records.elements()? {
            let range = MediaRange::of(&record);
            if let Some(owner) = addresses.add(range.addr) {
                owner.ranges += 1;
                self.ranges.insert(range);
            } else {
                tracing::error!("no room for the media ports of {}: they raise no learn notices", range.addr);
            }
        }
        let all: Vec<IpAddr> = addresses.all().map(|(addr, _)| addr).collect();
        for addr in all {
            self.write(addresses, addr);
        }
        Ok(())
    }
}
