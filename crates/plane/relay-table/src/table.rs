//! The relay table: insert, modify, delete, read, adopt. Long scans run in bounded steps, so that no other request waits for them.

use crate::addresses::{Addresses, CHUNK};
use crate::entry::{CAPTURED, Fault, RelayEntry, flow_key_of, flow_of, is_key6, is_wide};
use crate::media::{Media, MediaRange};
use crate::stats::{Clock, StreamStats, idle_ms, stats_of};
use shunt_abi::relay::{detail, flow_key, layout_mark, overflow_entry, settings, slot, slot_flag, wide};
use shunt_net::{Endpoint, FiveTuple};
use shunt_xdp::{Hash, Loaded, Put, Scan, Shared};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::{offset_of, size_of};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

const TTL: usize = offset_of!(detail, ttl_ms);
const COUNTERS: usize = TTL + size_of::<u32>();
const FLAGS: usize = offset_of!(slot, flags);
const SLOT_FLAGS: usize = offset_of!(detail, slot_flags);
const HEAD: std::ops::Range<usize> = 4..offset_of!(slot, seen);
const COUNTED: std::ops::Range<usize> = offset_of!(slot, seen)..size_of::<slot>();

/// The row of the next-hop table whose packets are passed to the stack.
const UNRESOLVED: u16 = 0;

/// Output of packets, as rows of the next-hop table. Each entry holds one reference to the row of its action's addresses.
pub trait Hops {
    /// Acquires a row for packets from `src` to `dst`; `None` if no row is free.
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Option<u16>;
    /// Releases one reference.
    fn release(&mut self, dst: IpAddr, src: IpAddr);
    /// Takes over `users` references of a former process, on `row` if possible. `taken`: rows not yet taken over.
    fn adopt(&mut self, dst: IpAddr, src: IpAddr, users: u32, row: u16, taken: &BTreeSet<u16>) -> u16;
}

/// An entry with its counters, for [`RelayTable::restore`].
#[derive(Clone, Copy)]
pub struct Saved {
    pub entry: RelayEntry,
    slot: slot,
    detail: detail,
}

/// The position of a scan that runs in steps.
#[derive(Default)]
pub struct Cursor {
    chunks: Option<Vec<usize>>,
    slot: usize,
    further: Scan,
    /// Keys of the overflow table that were read and not visited yet.
    rest: Vec<flow_key>,
}

/// Changed next-hop rows that must be written into the entries.
pub struct Moves {
    rows: HashMap<(IpAddr, IpAddr), u16>,
    cursor: Cursor,
}

impl Moves {
    /// Rows by destination and source address.
    #[must_use]
    pub fn new(rows: HashMap<(IpAddr, IpAddr), u16>) -> Self {
        Self {
            rows,
            cursor: Cursor::default(),
        }
    }
}

/// The relay table.
pub struct RelayTable {
    slots: Shared<slot>,
    details: Shared<detail>,
    wides: Shared<wide>,
    settings: Shared<settings>,
    overflow: Hash<flow_key, overflow_entry>,
    addresses: Addresses,
    media: Media,
    /// Number of overflow entries at the port of each slot.
    marked: HashMap<usize, u32>,
    /// Number of overflow entries without a slot, by address and chunk.
    loose: HashMap<(IpAddr, u16), u32>,
    capacity: usize,
    count4: usize,
    count6: usize,
    /// Entries whose packets are passed to the stack, whatever their next hop.
    held: HashSet<FiveTuple>,
    /// Relay ports whose entries, also later ones, are captured.
    captured: HashSet<Endpoint>,
}

impl RelayTable {
    /// Opens the relay's maps without adopting their content.
    ///
    /// # Errors
    /// The maps cannot be opened.
    pub fn new(loaded: &Loaded) -> shunt_xdp::Result<Self> {
        let mark = Shared::<layout_mark>::map(loaded.map("layout")?, 1)?.load(0);
        let chunks = mark.chunks as usize;
        let slots = chunks * CHUNK;
        Ok(Self {
            slots: Shared::map(loaded.map(".data.slots")?, slots)?,
            details: Shared::map(loaded.map("details")?, slots)?,
            wides: Shared::map(loaded.map("wides")?, slots)?,
            settings: Shared::map(loaded.map(".data.settings")?, 1)?,
            overflow: Hash::new(loaded.map("overflow")?)?,
            addresses: Addresses::new(loaded, chunks)?,
            media: Media::new(loaded)?,
            marked: HashMap::new(),
            loose: HashMap::new(),
            capacity: mark.capacity as usize,
            count4: 0,
            count6: 0,
            held: HashSet::new(),
            captured: HashSet::new(),
        })
    }

    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.count4 + self.count6
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries of one IP version.
    #[must_use]
    pub fn count(&self, v6: bool) -> usize {
        if v6 { self.count6 } else { self.count4 }
    }

    fn counted(&mut self, v6: bool) -> &mut usize {
        if v6 { &mut self.count6 } else { &mut self.count4 }
    }

    // Finding

    fn holds(&self, at: usize, key: &FiveTuple) -> bool {
        if self.slots.generation(at) & 1 == 0 {
            return false;
        }
        let slot = self.slots.load(at);
        RelayEntry::read(&slot, &self.wide_of(at, &slot), 0).key == *key
    }

    fn wide_of(&self, at: usize, slot: &slot) -> wide {
        if is_wide(slot) { self.wides.load(at) } else { wide::default() }
    }

    /// Returns the slot that holds this key's entry.
    fn find(&self, key: &FiveTuple) -> Option<usize> {
        self.addresses.slot(key.dst.addr, key.dst.port).filter(|at| self.holds(*at, key))
    }

    /// Returns whether the overflow table may hold an entry of this key.
    fn may_overflow(&self, key: &FiveTuple) -> bool {
        match self.addresses.slot(key.dst.addr, key.dst.port) {
            Some(at) => self.marked.contains_key(&at),
            None => self.loose.contains_key(&loose_place(key)),
        }
    }

    fn find_overflow(&self, key: &FiveTuple) -> Result<Option<overflow_entry>, Fault> {
        if !self.may_overflow(key) {
            return Ok(None);
        }
        Ok(self.overflow.get(&flow_key_of(key))?)
    }

    fn entry_at(&self, at: usize) -> RelayEntry {
        let slot = self.slots.load(at);
        RelayEntry::read(
            &slot,
            &self.wide_of(at, &slot),
            self.details.u32_at(at, TTL).load(Ordering::Relaxed),
        )
    }

    // Writing

    /// Inserts an entry. `now`: the kernel's tick.
    ///
    /// # Errors
    /// `Exists`, `Full`, or the part of the entry that is wrong.
    pub fn insert(&mut self, hops: &mut impl Hops, entry: &RelayEntry, now: u32) -> Result<(), Fault> {
        entry.check()?;
        let key = &entry.key;
        let mut at = self.addresses.slot(key.dst.addr, key.dst.port);
        let taken = at.is_some_and(|at| self.slots.generation(at) & 1 == 1);
        let full = self.len() >= self.capacity;
        // If the slot is taken, only the overflow table knows whether the entry exists.
        if (taken && self.find(key).is_some()) || ((!taken || full) && self.find_overflow(key)?.is_some()) {
            return Err(Fault::Exists);
        }
        if full {
            return Err(Fault::Full);
        }
        if at.is_none() {
            at = self.make_slot(key)?;
        }
        let Some(row) = hops.acquire(entry.dst.addr, entry.src.addr) else {
            self.addresses.drop_empty_chunk(key.dst.addr, key.dst.port);
            return Err(Fault::Full);
        };
        match at {
            Some(at) if !taken => self.write(at, entry, row, now),
            _ => {
                if let Err(fault) = self.insert_overflow(at, entry, row, now) {
                    hops.release(entry.dst.addr, entry.src.addr);
                    return Err(fault);
                }
            }
        }
        *self.counted(key.is_v6()) += 1;
        Ok(())
    }

    fn write(&mut self, at: usize, entry: &RelayEntry, row: u16, now: u32) {
        if let Some(wide) = entry.wide() {
            self.wides.store(at, &wide);
        }
        let slot = self.marked_slot(entry, row, now);
        self.slots.store_range(at, &slot, HEAD.start..COUNTED.end);
        self.details.store_range(
            at,
            &detail {
                ttl_ms: entry.ttl_ms,
                ..detail::default()
            },
            TTL..size_of::<detail>(),
        );
        self.slots.publish(at);
        self.addresses.hold(at);
    }

    fn insert_overflow(&mut self, at: Option<usize>, entry: &RelayEntry, row: u16, now: u32) -> Result<(), Fault> {
        let mut record = entry.overflow(row, now);
        record.slot.flags |= self.capture_flag(&entry.key);
        match self.overflow.insert(&flow_key_of(&entry.key), &record)? {
            Some(Put::Done) => {}
            Some(Put::Full) => return Err(Fault::Full),
            None => return Err(Fault::Exists),
        }
        match at {
            Some(at) => self.mark(at, now),
            None => {
                *self.loose.entry(loose_place(&entry.key)).or_default() += 1;
                self.settings
                    .u32_at(0, offset_of!(settings, loose_entries))
                    .fetch_add(1, Ordering::Release);
            }
        }
        Ok(())
    }

    fn mark(&mut self, at: usize, now: u32) {
        let count = self.marked.entry(at).or_default();
        *count += 1;
        self.details
            .u32_at(at, offset_of!(detail, overflow_jiffies))
            .store(now, Ordering::Relaxed);
        if *count == 1 {
            self.addresses.hold(at);
            self.details
                .u32_at(at, SLOT_FLAGS)
                .fetch_or(slot_flag::SLOT_OVERFLOW.0, Ordering::Release);
        }
    }

    /// Returns a slot for a relay address and port without one; `None` if none is free.
    fn make_slot(&mut self, key: &FiveTuple) -> Result<Option<usize>, Fault> {
        let (addr, port) = (key.dst.addr, key.dst.port);
        let Some(at) = self.addresses.take_chunk(addr, port) else {
            return Ok(None);
        };
        // Entries of these ports that did not fit before: their packets now find a slot.
        if let Some(count) = self.loose.remove(&loose_place(key)) {
            let first = at - at % CHUNK;
            for (flow, record) in self.overflow.elements()? {
                let flow = flow_of(&flow);
                if flow.dst.addr == addr && flow.dst.port / CHUNK as u16 == port / CHUNK as u16 {
                    self.mark(first + usize::from(flow.dst.port) % CHUNK, record.slot.last_jiffies);
                }
            }
            self.addresses.show(addr, port);
            self.settings
                .u32_at(0, offset_of!(settings, loose_entries))
                .fetch_sub(count, Ordering::Release);
        } else {
            self.addresses.show(addr, port);
        }
        Ok(Some(at))
    }

    /// Modifies an entry's action; its counters continue.
    ///
    /// # Errors
    /// `Absent`, `Full`, or the part of the entry that is wrong.
    pub fn modify(&mut self, hops: &mut impl Hops, entry: &RelayEntry) -> Result<(), Fault> {
        entry.check()?;
        let at = self.find(&entry.key);
        let record = if at.is_none() { self.find_overflow(&entry.key)? } else { None };
        if at.is_none() && record.is_none() {
            return Err(Fault::Absent);
        }
        let row = hops.acquire(entry.dst.addr, entry.src.addr).ok_or(Fault::Full)?;
        let before = match (at, record) {
            (Some(at), _) => {
                let before = self.entry_at(at);
                self.slots.retire(at);
                if let Some(wide) = entry.wide() {
                    self.wides.store(at, &wide);
                }
                self.slots.store_range(at, &self.marked_slot(entry, row, 0), HEAD);
                self.details.u32_at(at, TTL).store(entry.ttl_ms, Ordering::Relaxed);
                self.slots.publish(at);
                before
            }
            (None, Some(record)) => {
                let before = RelayEntry::read(&record.slot, &record.wide, record.detail.ttl_ms);
                let mut fresh = changed(&record, entry, row);
                fresh.slot.flags |= self.capture_flag(&entry.key);
                if let Err(error) = self.overflow.put(&flow_key_of(&entry.key), &fresh) {
                    hops.release(entry.dst.addr, entry.src.addr);
                    return Err(error.into());
                }
                before
            }
            (None, None) => return Err(Fault::Absent),
        };
        self.held.remove(&entry.key);
        hops.release(before.dst.addr, before.src.addr);
        Ok(())
    }

    /// Deletes an entry. Returns whether it existed. Its next packet already passes to the stack.
    ///
    /// # Errors
    /// The kernel rejects the deletion.
    pub fn delete(&mut self, hops: &mut impl Hops, key: &FiveTuple) -> Result<bool, Fault> {
        if let Some(at) = self.find(key) {
            let entry = self.entry_at(at);
            self.delete_slot(hops, at, &entry);
            return Ok(true);
        }
        let Some(record) = self.find_overflow(key)? else { return Ok(false) };
        self.overflow.delete(&flow_key_of(key))?;
        let entry = RelayEntry::read(&record.slot, &record.wide, 0);
        self.forget_overflow(hops, &entry);
        Ok(true)
    }

    fn delete_slot(&mut self, hops: &mut impl Hops, at: usize, entry: &RelayEntry) {
        self.slots.retire(at);
        self.held.remove(&entry.key);
        hops.release(entry.dst.addr, entry.src.addr);
        self.addresses.release(at, entry.key.dst.addr, entry.key.dst.port);
        *self.counted(entry.key.is_v6()) -= 1;
    }

    /// Updates the counts for a deleted overflow entry.
    fn forget_overflow(&mut self, hops: &mut impl Hops, entry: &RelayEntry) {
        let key = &entry.key;
        self.held.remove(key);
        hops.release(entry.dst.addr, entry.src.addr);
        match self.addresses.slot(key.dst.addr, key.dst.port) {
            Some(at) => {
                let left = self.marked.get_mut(&at).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 && self.marked.remove(&at).is_some() {
                    self.details
                        .u32_at(at, SLOT_FLAGS)
                        .fetch_and(!slot_flag::SLOT_OVERFLOW.0, Ordering::Release);
                    self.addresses.release(at, key.dst.addr, key.dst.port);
                }
            }
            None => {
                let place = loose_place(key);
                if let Some(count) = self.loose.get_mut(&place) {
                    *count -= 1;
                    if *count == 0 {
                        self.loose.remove(&place);
                    }
                    self.settings
                        .u32_at(0, offset_of!(settings, loose_entries))
                        .fetch_sub(1, Ordering::Release);
                }
            }
        }
        *self.counted(key.is_v6()) -= 1;
    }

    // Reading

    /// Reads an entry.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn get(&self, key: &FiveTuple) -> Result<Option<RelayEntry>, Fault> {
        if let Some(at) = self.find(key) {
            return Ok(Some(self.entry_at(at)));
        }
        Ok(self
            .find_overflow(key)?
            .map(|record| RelayEntry::read(&record.slot, &record.wide, record.detail.ttl_ms)))
    }

    /// Reads an entry and its counters.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn stats(&self, key: &FiveTuple, clock: Clock) -> Result<Option<(RelayEntry, StreamStats)>, Fault> {
        if let Some(at) = self.find(key) {
            return Ok(self.counted_at(at, clock));
        }
        Ok(self.find_overflow(key)?.map(|record| self.counted_in(&record, clock)))
    }

    fn counted_at(&self, at: usize, clock: Clock) -> Option<(RelayEntry, StreamStats)> {
        if self.slots.generation(at) & 1 == 0 {
            return None;
        }
        let (slot, detail) = (self.slots.load(at), self.details.load(at));
        let entry = RelayEntry::read(&slot, &self.wide_of(at, &slot), detail.ttl_ms);
        Some((entry, stats_of(&slot, &detail, detail.source_mismatch, clock)))
    }

    fn counted_in(&self, record: &overflow_entry, clock: Clock) -> (RelayEntry, StreamStats) {
        let entry = RelayEntry::read(&record.slot, &record.wide, record.detail.ttl_ms);
        let at = self.addresses.slot(entry.key.dst.addr, entry.key.dst.port);
        // Packets of other sources are counted at the port.
        let mismatch = at.map_or(0, |at| {
            self.details.u32_at(at, offset_of!(detail, source_mismatch)).load(Ordering::Relaxed)
        });
        (entry, stats_of(&record.slot, &record.detail, mismatch, clock))
    }

    /// Sets an entry's counters to 0; its idle time continues.
    ///
    /// # Errors
    /// The kernel rejects the lookup or write.
    pub fn reset_stats(&mut self, key: &FiveTuple) -> Result<(), Fault> {
        if let Some(at) = self.find(key) {
            let last_jiffies = self.slots.u32_at(at, offset_of!(slot, last_jiffies)).load(Ordering::Relaxed);
            self.slots.store_range(
                at,
                &slot {
                    last_jiffies,
                    ..slot::default()
                },
                COUNTED,
            );
            self.details.store_range(at, &detail::default(), COUNTERS..size_of::<detail>());
        } else if let Some(mut record) = self.find_overflow(key)? {
            let last_jiffies = record.slot.last_jiffies;
            record.slot = slot {
                last_jiffies,
                ..without_counters(&record.slot)
            };
            record.detail = detail {
                ttl_ms: record.detail.ttl_ms,
                ..detail::default()
            };
            self.overflow.put(&flow_key_of(key), &record)?;
        }
        Ok(())
    }

    /// Reads an entry with its counters, for `restore`.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn save(&self, key: &FiveTuple) -> Result<Option<Saved>, Fault> {
        if let Some(at) = self.find(key) {
            return Ok(Some(Saved {
                entry: self.entry_at(at),
                slot: self.slots.load(at),
                detail: self.details.load(at),
            }));
        }
        Ok(self.find_overflow(key)?.map(|record| Saved {
            entry: RelayEntry::read(&record.slot, &record.wide, record.detail.ttl_ms),
            slot: record.slot,
            detail: record.detail,
        }))
    }

    /// Restores an entry as it was saved, whatever its present state.
    ///
    /// # Errors
    /// No space is left.
    pub fn restore(&mut self, hops: &mut impl Hops, saved: &Saved) -> Result<(), Fault> {
        match self.modify(hops, &saved.entry) {
            Err(Fault::Absent) => {
                self.insert(hops, &saved.entry, saved.slot.last_jiffies)?;
                if let Some(at) = self.find(&saved.entry.key) {
                    self.slots.store_range(at, &saved.slot, COUNTED);
                    self.details.store_range(at, &saved.detail, TTL..size_of::<detail>());
                }
                Ok(())
            }
            other => other,
        }
    }

    // Scans

    /// Continues a scan over the entries of one IP version until `each` breaks it off. Returns whether the scan is complete.
    ///
    /// Entries may change between two steps: removed ones are left out, new ones may be included.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn scan(
        &self,
        cursor: &mut Cursor,
        v6: bool,
        clock: Clock,
        mut each: impl FnMut(&RelayEntry, &StreamStats) -> ControlFlow<()>,
    ) -> Result<bool, Fault> {
        self.walk(cursor, |found| match found {
            Found::Slot(at) => match self.counted_at(at, clock) {
                Some((entry, stats)) if entry.key.is_v6() == v6 => each(&entry, &stats),
                _ => ControlFlow::Continue(()),
            },
            Found::Further(record) => {
                let (entry, stats) = self.counted_in(record, clock);
                if entry.key.is_v6() == v6 {
                    each(&entry, &stats)
                } else {
                    ControlFlow::Continue(())
                }
            }
        })
    }

    /// Continues a scan for entries of one IP version that have been idle for their time to live. `each` also gets the idle time in
    /// milliseconds. It is called with `None` from time to time, so that it can break the scan off. Returns whether the scan is complete.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn expired(
        &self,
        cursor: &mut Cursor,
        v6: bool,
        clock: Clock,
        mut each: impl FnMut(Option<(&RelayEntry, u64)>) -> ControlFlow<()>,
    ) -> Result<bool, Fault> {
        self.walk(cursor, |found| {
            let (ttl_ms, last, key6) = match found {
                Found::Slot(at) => (
                    self.details.u32_at(at, TTL).load(Ordering::Relaxed),
                    self.slots.u32_at(at, offset_of!(slot, last_jiffies)).load(Ordering::Relaxed),
                    is_key6(&slot {
                        flags: self.slots.u8_at(at, FLAGS).load(Ordering::Relaxed),
                        ..slot::default()
                    }),
                ),
                Found::Further(record) => (record.detail.ttl_ms, record.slot.last_jiffies, is_key6(&record.slot)),
            };
            let idle = idle_ms(last, clock);
            if key6 != v6 || ttl_ms == 0 || idle < u64::from(ttl_ms) {
                return each(None);
            }
            match found {
                Found::Slot(at) => each(Some((&self.entry_at(at), idle))),
                Found::Further(record) => each(Some((&RelayEntry::read(&record.slot, &record.wide, ttl_ms), idle))),
            }
        })
    }

    /// Continues to delete all entries of one IP version until `more` returns false. Returns whether all are deleted. `gone` gets each key.
    ///
    /// # Errors
    /// The kernel rejects the deletion.
    pub fn clear(
        &mut self,
        hops: &mut impl Hops,
        cursor: &mut Cursor,
        v6: bool,
        mut gone: impl FnMut(&FiveTuple),
        mut more: impl FnMut() -> bool,
    ) -> Result<bool, Fault> {
        loop {
            let mut found = Vec::new();
            let ended = self.walk_slots(cursor, |at| {
                found.push((at, self.entry_at(at)));
                if found.len() < CHUNK {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            for (at, entry) in found.into_iter().filter(|(_, entry)| entry.key.is_v6() == v6) {
                self.delete_slot(hops, at, &entry);
                gone(&entry.key);
            }
            if ended {
                break;
            }
            if !more() {
                return Ok(false);
            }
        }
        while self.has_further()
            && let Some(batch) = self.overflow.batch(&mut cursor.further, CHUNK)?
        {
            let (keys, entries): (Vec<flow_key>, Vec<RelayEntry>) = batch
                .iter()
                .map(|(key, record)| (*key, RelayEntry::read(&record.slot, &record.wide, 0)))
                .filter(|(_, entry)| entry.key.is_v6() == v6)
                .unzip();
            self.overflow.delete_all(&keys)?;
            for entry in entries {
                self.forget_overflow(hops, &entry);
                gone(&entry.key);
            }
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Continues to write the rows of changed destinations into their entries until `more` returns false. Returns whether all are written.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn follow(&mut self, moves: &mut Moves, mut more: impl FnMut() -> bool) -> Result<bool, Fault> {
        let Moves { rows, cursor } = moves;
        let held = &self.held;
        let mut seen = 0;
        let mut failed = None;
        let ended = self.walk(cursor, |one| {
            let entry = match one {
                Found::Slot(at) => self.entry_at(at),
                Found::Further(record) => RelayEntry::read(&record.slot, &record.wide, 0),
            };
            if let Some(row) = rows.get(&(entry.dst.addr, entry.src.addr))
                && !held.contains(&entry.key)
            {
                match one {
                    Found::Slot(at) => self.slots.u16_at(at, offset_of!(slot, nexthop)).store(*row, Ordering::Release),
                    Found::Further(record) => {
                        let mut record = *record;
                        record.slot.nexthop = *row;
                        if let Err(error) = self.overflow.put(&flow_key_of(&entry.key), &record) {
                            failed = Some(error);
                        }
                    }
                }
            }
            seen += 1;
            if seen % CHUNK == 0 && !more() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        failed.map_or(Ok(ended), |error| Err(error.into()))
    }

    // Entries held back

    /// Returns the entries that are held back, whose packets are passed to the stack.
    pub fn held(&self) -> impl Iterator<Item = &FiveTuple> {
        self.held.iter()
    }

    /// Holds back the entries that `denies` names, and no others, until `more` returns false. Returns whether all have been visited.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn hold_back(
        &mut self,
        hops: &mut impl Hops,
        cursor: &mut Cursor,
        mut denies: impl FnMut(&RelayEntry) -> bool,
        mut more: impl FnMut() -> bool,
    ) -> Result<bool, Fault> {
        let mut changed = Vec::new();
        let mut seen = 0;
        let ended = self.walk(cursor, |one| {
            let entry = match one {
                Found::Slot(at) => self.entry_at(at),
                Found::Further(record) => RelayEntry::read(&record.slot, &record.wide, 0),
            };
            if denies(&entry) != self.held.contains(&entry.key) {
                changed.push(entry);
            }
            seen += 1;
            if seen % CHUNK == 0 && !more() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        for entry in changed {
            let held = !self.held.contains(&entry.key);
            self.set_held(hops, &entry, held)?;
        }
        Ok(ended)
    }

    /// Holds an entry of the table back, or releases it.
    ///
    /// # Errors
    /// `Full`, or the kernel rejects the write.
    pub fn set_held(&mut self, hops: &mut impl Hops, entry: &RelayEntry, held: bool) -> Result<(), Fault> {
        let row = if held {
            UNRESOLVED
        } else {
            let row = hops.acquire(entry.dst.addr, entry.src.addr).ok_or(Fault::Full)?;
            hops.release(entry.dst.addr, entry.src.addr);
            row
        };
        if let Some(at) = self.find(&entry.key) {
            self.slots.u16_at(at, offset_of!(slot, nexthop)).store(row, Ordering::Release);
        } else if let Some(mut record) = self.find_overflow(&entry.key)? {
            record.slot.nexthop = row;
            self.overflow.put(&flow_key_of(&entry.key), &record)?;
        }
        if held {
            self.held.insert(entry.key);
        } else {
            self.held.remove(&entry.key);
        }
        Ok(())
    }

    // Captures

    fn capture_flag(&self, key: &FiveTuple) -> u8 {
        if self.captured.contains(&key.dst) { CAPTURED } else { 0 }
    }

    fn marked_slot(&self, entry: &RelayEntry, row: u16, now: u32) -> slot {
        let slot = entry.slot(row, now);
        slot {
            flags: slot.flags | self.capture_flag(&entry.key),
            ..slot
        }
    }

    /// Captures the packets of the entries of these relay ports, and of no others. Entries that are written later follow.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn capture(&mut self, ports: HashSet<Endpoint>) -> Result<(), Fault> {
        let changed: HashSet<Endpoint> = self.captured.symmetric_difference(&ports).copied().collect();
        self.captured = ports;
        for port in &changed {
            if let Some(at) = self.addresses.slot(port.addr, port.port) {
                // Without a new generation: the packets that are on their way are neither lost nor passed up.
                let flags = self.slots.u8_at(at, FLAGS);
                if self.captured.contains(port) {
                    flags.fetch_or(CAPTURED, Ordering::Release);
                } else {
                    flags.fetch_and(!CAPTURED, Ordering::Release);
                }
            }
        }
        if changed.is_empty() || !self.has_further() {
            return Ok(());
        }
        for (key, mut record) in self.overflow.elements()? {
            let flow = flow_of(&key);
            if changed.contains(&flow.dst) {
                record.slot.flags = (record.slot.flags & !CAPTURED) | self.capture_flag(&flow);
                self.overflow.put(&key, &record)?;
            }
        }
        Ok(())
    }

    /// Continues a walk over all entries. Returns whether it is complete.
    fn walk(&self, cursor: &mut Cursor, mut each: impl FnMut(Found<'_>) -> ControlFlow<()>) -> Result<bool, Fault> {
        if !self.walk_slots(cursor, |at| each(Found::Slot(at))) {
            return Ok(false);
        }
        while let Some(key) = cursor.rest.pop() {
            if let Some(record) = self.overflow.get(&key)?
                && each(Found::Further(&record)).is_break()
            {
                return Ok(false);
            }
        }
        while self.has_further()
            && let Some(batch) = self.overflow.batch(&mut cursor.further, CHUNK)?
        {
            let mut batch = batch.into_iter();
            while let Some((_, record)) = batch.next() {
                if each(Found::Further(&record)).is_break() {
                    cursor.rest = batch.map(|(key, _)| key).collect();
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Continues a walk over the entries with a slot of their own. Returns whether it is complete.
    fn walk_slots(&self, cursor: &mut Cursor, mut each: impl FnMut(usize) -> ControlFlow<()>) -> bool {
        let chunks = cursor
            .chunks
            .get_or_insert_with(|| self.addresses.chunks().into_iter().rev().collect());
        while let Some(chunk) = chunks.last() {
            let first = chunk * CHUNK;
            for at in cursor.slot.max(first)..first + CHUNK {
                cursor.slot = at + 1;
                if self.slots.generation(at) & 1 == 1 && each(at).is_break() {
                    return false;
                }
            }
            chunks.pop();
        }
        true
    }

    /// Returns whether the overflow table has entries. A scan of it takes the kernel long even when it is empty.
    fn has_further(&self) -> bool {
        !self.marked.is_empty() || !self.loose.is_empty()
    }

    // Media ports

    #[must_use]
    pub fn media(&self) -> &BTreeSet<MediaRange> {
        self.media.ranges()
    }

    /// Adds a range of media ports.
    ///
    /// # Errors
    /// `Exists`, `Full`, or the part that is wrong.
    pub fn add_media(&mut self, range: MediaRange) -> Result<(), Fault> {
        self.media.add(&mut self.addresses, range)
    }

    /// Removes a range of media ports. Returns whether it existed.
    pub fn remove_media(&mut self, range: MediaRange) -> bool {
        self.media.remove(&mut self.addresses, range)
    }

    // Adoption

    /// Returns the rows of the next-hop table that the entries in the maps use.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn rows(&self) -> Result<BTreeSet<u16>, Fault> {
        let mut rows = BTreeSet::new();
        for at in 0..self.slots.len() {
            if self.slots.generation(at) & 1 == 1 {
                rows.insert(self.slots.u16_at(at, offset_of!(slot, nexthop)).load(Ordering::Relaxed));
            }
        }
        rows.extend(self.overflow.elements()?.iter().map(|(_, record)| record.slot.nexthop));
        Ok(rows)
    }

    /// Derives this process's state from the maps, and repairs what a killed process left incomplete. `taken`: rows of next hops that
    /// entries or others may use.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn adopt(&mut self, hops: &mut impl Hops, taken: &BTreeSet<u16>) -> Result<(), Fault> {
        self.addresses.adopt();
        let reachable: BTreeSet<usize> = self.addresses.chunks().into_iter().collect();
        let mut users = Users::default();
        for at in 0..self.slots.len() {
            if self.slots.generation(at) & 1 == 0 {
                continue;
            }
            let entry = self.entry_at(at);
            if !reachable.contains(&(at / CHUNK)) || self.addresses.slot(entry.key.dst.addr, entry.key.dst.port) != Some(at) {
                self.slots.retire(at);
                continue;
            }
            self.addresses.hold(at);
            // Of a capture of the former process.
            self.slots.u8_at(at, FLAGS).fetch_and(!CAPTURED, Ordering::Release);
            *self.counted(entry.key.is_v6()) += 1;
            users.count(&entry, self.slots.u16_at(at, offset_of!(slot, nexthop)).load(Ordering::Relaxed));
        }
        self.adopt_overflow(&mut users)?;
        self.media.adopt(&mut self.addresses)?;
        self.addresses.drop_unused_all();
        let moved = users.adopt(hops, taken);
        if !moved.is_empty() {
            self.follow(&mut Moves::new(moved), || true)?;
        }
        Ok(())
    }

    fn adopt_overflow(&mut self, users: &mut Users) -> Result<(), Fault> {
        let mut loose = 0;
        let mut scan = Scan::default();
        while let Some(batch) = self.overflow.batch(&mut scan, CHUNK)? {
            for (key, mut record) in batch {
                if record.slot.flags & CAPTURED != 0 {
                    record.slot.flags &= !CAPTURED;
                    self.overflow.put(&key, &record)?;
                }
                let entry = RelayEntry::read(&record.slot, &record.wide, 0);
                match self.addresses.slot(entry.key.dst.addr, entry.key.dst.port) {
                    Some(at) => self.mark(at, record.slot.last_jiffies),
                    None => {
                        *self.loose.entry(loose_place(&entry.key)).or_default() += 1;
                        loose += 1;
                    }
                }
                *self.counted(entry.key.is_v6()) += 1;
                users.count(&entry, record.slot.nexthop);
            }
        }
        self.settings
            .u32_at(0, offset_of!(settings, loose_entries))
            .store(loose, Ordering::Release);
        for at in 0..self.details.len() {
            let flags = self.details.u32_at(at, SLOT_FLAGS);
            if flags.load(Ordering::Relaxed) != 0 && !self.marked.contains_key(&at) {
                flags.store(0, Ordering::Release);
            }
        }
        Ok(())
    }
}

/// The next hops of a former process's entries. Each route is looked up once, however many entries use it.
#[derive(Default)]
struct Users(HashMap<(IpAddr, IpAddr), User>);

struct User {
    entries: u32,
    row: u16,
    /// An entry has another row, because the former process was killed while it wrote changed destinations.
    mixed: bool,
}

impl Users {
    fn count(&mut self, entry: &RelayEntry, row: u16) {
        let user = self.0.entry((entry.dst.addr, entry.src.addr)).or_insert(User {
            entries: 0,
            row,
            mixed: false,
        });
        user.entries += 1;
        user.mixed |= user.row != row;
    }

    /// Returns the rows whose entries must be written again.
    fn adopt(self, hops: &mut impl Hops, taken: &BTreeSet<u16>) -> HashMap<(IpAddr, IpAddr), u16> {
        let mut moved = HashMap::new();
        for ((dst, src), user) in self.0 {
            let row = hops.adopt(dst, src, user.entries, user.row, taken);
            if user.mixed || row != user.row {
                moved.insert((dst, src), row);
            }
        }
        moved
    }
}

/// An entry that a walk visits.
enum Found<'a> {
    Slot(usize),
    Further(&'a overflow_entry),
}

fn loose_place(key: &FiveTuple) -> (IpAddr, u16) {
    (key.dst.addr, key.dst.port / CHUNK as u16)
}

fn without_counters(before: &slot) -> slot {
    slot {
        seen: 0,
        ssrc: 0,
        others: 0,
        bytes: 0,
        received: 0,
        last_jiffies: 0,
        max_seq: 0,
        payload_type: 0,
        rtp_state: 0,
        ..*before
    }
}

/// Returns the record of an overflow entry with another action; its counters continue.
fn changed(record: &overflow_entry, entry: &RelayEntry, row: u16) -> overflow_entry {
    let fresh = entry.overflow(row, 0);
    let counted = &record.slot;
    overflow_entry {
        slot: slot {
            seen: counted.seen,
            ssrc: counted.ssrc,
            others: counted.others,
            bytes: counted.bytes,
            received: counted.received,
            last_jiffies: counted.last_jiffies,
            max_seq: counted.max_seq,
            payload_type: counted.payload_type,
            rtp_state: counted.rtp_state,
            ..fresh.slot
        },
        detail: detail {
            ttl_ms: entry.ttl_ms,
            ..record.detail
        },
        wide: fresh.wide,
    }
}
