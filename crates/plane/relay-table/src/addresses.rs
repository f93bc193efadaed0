//! Relay addresses and the chunks of slots for their ports.
//!
//! Slots are allocated in chunks of 256 neighbouring ports of an address. The first chunk is unused, so that no chunk has number 0.

use crate::entry::{address, word, words};
use shunt_abi::relay::{address4, address6, size, slot, slot_map};
use shunt_xdp::{Loaded, Result, Shared};
use std::collections::{BTreeSet, HashMap};
use std::mem::{offset_of, size_of};
use std::net::IpAddr;
use std::sync::atomic::{Ordering, fence};

pub const CHUNK: usize = size::CHUNK_PORTS.0 as usize;
const CHUNK_BYTES: u32 = (CHUNK * size_of::<slot>()) as u32;
const ROWS: usize = size::ADDRESS_ROWS.0 as usize;
const NUMBERS: usize = size::ADDRESSES.0 as usize;
const POSITIONS: usize = 65536 / CHUNK;
const SHORTCUTS: usize = 65536;
const HASH_FACTOR: u32 = 0x9e37_79b1;
const OWNER4: usize = offset_of!(address4, owner);
const OWNER6: usize = offset_of!(address6, owner);

/// Returns the number of chunks of a table of this capacity. It exceeds the capacity, because the ports in use of one address need not fill
/// its chunks. It is at least 256, so that one address always fits.
#[must_use]
pub fn chunk_count(capacity: usize) -> usize {
    1 + POSITIONS.max(capacity.div_ceil(CHUNK) + 64)
}

/// A relay address that owns a row.
pub struct Address {
    pub number: usize,
    row: usize,
    chunks: Box<[u32; POSITIONS]>,
    live_chunks: usize,
    /// Media ranges of the address, which keeps its row while it has any.
    pub ranges: usize,
}

/// The addresses, their chunks, and the number of entries in each chunk.
pub struct Addresses {
    rows4: Shared<address4>,
    rows6: Shared<address6>,
    map: Shared<u64>,
    owners: HashMap<IpAddr, Address>,
    free_numbers: Vec<usize>,
    free_chunks: Vec<u32>,
    live: Vec<u32>,
}

/// Returns the row where the search for an address starts (owner4 and owner6 in relay.h).
fn home(addr: IpAddr) -> usize {
    let mixed = match addr {
        IpAddr::V4(_) => word(addr),
        IpAddr::V6(_) => {
            let [a, b, c, d] = words(addr);
            a ^ b.wrapping_mul(3) ^ c.wrapping_mul(5) ^ d.wrapping_mul(7)
        }
    };
    (mixed.wrapping_mul(HASH_FACTOR) >> 20) as usize
}

/// Returns the word of the slot map that leads from the last two bytes of an IPv4 address to its chunks.
fn shortcut(addr: IpAddr) -> Option<usize> {
    match addr {
        IpAddr::V4(addr) => {
            let [_, _, c, d] = addr.octets();
            Some(usize::from(u16::from_le_bytes([c, d])))
        }
        IpAddr::V6(_) => None,
    }
}

/// Returns the word that locates the slots of 256 ports of an address.
fn chunk_word(number: usize, position: usize) -> usize {
    SHORTCUTS + number * POSITIONS + position
}

/// Returns the content of a shortcut to an address: the position of its list of chunks, in bytes.
fn list_at(number: usize) -> u32 {
    (4 * chunk_word(number, 0)) as u32
}

impl Addresses {
    /// Maps the tables.
    ///
    /// # Errors
    /// The maps cannot be mapped into memory.
    pub fn new(loaded: &Loaded, chunks: usize) -> Result<Self> {
        Ok(Self {
            rows4: Shared::map(loaded.map(".data.addresses4")?, ROWS)?,
            rows6: Shared::map(loaded.map(".data.addresses6")?, ROWS)?,
            map: Shared::map(loaded.map(".data.slot_map")?, size_of::<slot_map>() / 8)?,
            owners: HashMap::new(),
            free_numbers: (0..NUMBERS).rev().collect(),
            free_chunks: (1..chunks as u32).rev().collect(),
            live: vec![0; chunks],
        })
    }

    fn map_word(&self, word: usize) -> &std::sync::atomic::AtomicU32 {
        self.map.u32_at(word / 2, word % 2 * 4)
    }

    #[must_use]
    pub fn get(&self, addr: IpAddr) -> Option<&Address> {
        self.owners.get(&addr)
    }

    pub fn get_mut(&mut self, addr: IpAddr) -> Option<&mut Address> {
        self.owners.get_mut(&addr)
    }

    pub fn all(&self) -> impl Iterator<Item = (IpAddr, &Address)> {
        self.owners.iter().map(|(addr, address)| (*addr, address))
    }

    /// Gives an address its row; `None` if no row is free.
    pub fn add(&mut self, addr: IpAddr) -> Option<&mut Address> {
        if !self.owners.contains_key(&addr) {
            let start = home(addr);
            let row = (start..start + size::ADDRESS_PROBES.0 as usize)
                .map(|row| row % ROWS)
                .find(|row| match addr {
                    IpAddr::V4(_) => self.rows4.u32_at(*row, OWNER4).load(Ordering::Relaxed) == 0,
                    IpAddr::V6(_) => self.rows6.u32_at(*row, OWNER6).load(Ordering::Relaxed) == 0,
                })?;
            let number = self.free_numbers.pop()?;
            let owner = number as u32 + 1;
            match addr {
                IpAddr::V4(_) => {
                    fence(Ordering::Release);
                    self.rows4.store(row, &address4 { addr: word(addr), owner });
                }
                IpAddr::V6(_) => {
                    self.rows6.store_range(
                        row,
                        &address6 {
                            addr: words(addr),
                            ..address6::default()
                        },
                        0..16,
                    );
                    self.rows6.u32_at(row, OWNER6).store(owner, Ordering::Release);
                }
            }
            if let Some(short) = shortcut(addr)
                && self.map_word(short).load(Ordering::Relaxed) == 0
            {
                self.map_word(short).store(list_at(number), Ordering::Release);
            }
            self.owners.insert(
                addr,
                Address {
                    number,
                    row,
                    chunks: Box::new([0; POSITIONS]),
                    live_chunks: 0,
                    ranges: 0,
                },
            );
        }
        self.owners.get_mut(&addr)
    }

    /// Releases the row of an address without slots and media ranges.
    pub fn drop_unused(&mut self, addr: IpAddr) {
        let Some(gone) = self.owners.get(&addr) else { return };
        if gone.live_chunks != 0 || gone.ranges != 0 {
            return;
        }
        let (row, number) = (gone.row, gone.number);
        self.owners.remove(&addr);
        match addr {
            IpAddr::V4(_) => self.rows4.u64_at(row, 0).store(0, Ordering::Release),
            IpAddr::V6(_) => self.rows6.u32_at(row, OWNER6).store(0, Ordering::Release),
        }
        if let Some(short) = shortcut(addr)
            && self.map_word(short).load(Ordering::Relaxed) == list_at(number)
        {
            // One of several addresses with the same last bytes has the shortcut.
            let heir = self
                .owners
                .iter()
                .find(|(other, _)| shortcut(**other) == Some(short))
                .map_or(0, |(_, heir)| list_at(heir.number));
            self.map_word(short).store(heir, Ordering::Release);
        }
        self.free_numbers.push(number);
    }

    /// Returns the slot of a relay address and port, if these ports have slots.
    #[must_use]
    pub fn slot(&self, addr: IpAddr, port: u16) -> Option<usize> {
        let port = usize::from(port);
        let chunk = self.owners.get(&addr)?.chunks[port / CHUNK] as usize;
        (chunk != 0).then_some(chunk * CHUNK + port % CHUNK)
    }

    /// Allocates a chunk for the ports around this one. The programs see it only after `show`. `None` if no chunk is free.
    pub fn take_chunk(&mut self, addr: IpAddr, port: u16) -> Option<usize> {
        let position = usize::from(port) / CHUNK;
        if self.free_chunks.is_empty() {
            return None;
        }
        self.add(addr)?;
        let chunk = self.free_chunks.pop()?;
        let address = self.owners.get_mut(&addr)?;
        address.chunks[position] = chunk;
        address.live_chunks += 1;
        Some(chunk as usize * CHUNK + usize::from(port) % CHUNK)
    }

    /// Publishes the chunk of these ports to the programs.
    pub fn show(&self, addr: IpAddr, port: u16) {
        if let Some(address) = self.owners.get(&addr) {
            let position = usize::from(port) / CHUNK;
            let first = address.chunks[position] * CHUNK_BYTES;
            self.map_word(chunk_word(address.number, position)).store(first, Ordering::Release);
        }
    }

    /// Counts one more entry or mark in the chunk of a slot.
    pub fn hold(&mut self, slot: usize) {
        self.live[slot / CHUNK] += 1;
    }

    /// Counts one fewer. An empty chunk is released, and its address with its last chunk.
    pub fn release(&mut self, slot: usize, addr: IpAddr, port: u16) {
        let chunk = slot / CHUNK;
        self.live[chunk] -= 1;
        self.drop_empty_chunk(addr, port);
    }

    /// Releases the chunk of these ports if it is empty.
    pub fn drop_empty_chunk(&mut self, addr: IpAddr, port: u16) {
        let position = usize::from(port) / CHUNK;
        let Some(address) = self.owners.get_mut(&addr) else { return };
        let chunk = address.chunks[position];
        if chunk == 0 || self.live[chunk as usize] != 0 {
            return;
        }
        address.chunks[position] = 0;
        address.live_chunks -= 1;
        let number = address.number;
        self.map_word(chunk_word(number, position)).store(0, Ordering::Release);
        self.free_chunks.push(chunk);
        self.drop_unused(addr);
    }

    /// Returns the chunks in use, in ascending order.
    #[must_use]
    pub fn chunks(&self) -> Vec<usize> {
        let mut used: Vec<usize> = self
            .owners
            .values()
            .flat_map(|address| address.chunks.iter().filter(|chunk| **chunk != 0).map(|chunk| *chunk as usize))
            .collect();
        used.sort_unstable();
        used
    }

    /// Reads rows and chunks from the maps, and repairs the shortcuts.
    pub fn adopt(&mut self) {
        let mut numbers = BTreeSet::new();
        let mut used = BTreeSet::new();
        for row in 0..ROWS {
            let short = self.rows4.load(row);
            let long = self.rows6.load(row);
            let found4 = (short.owner != 0).then(|| (address([short.addr, 0, 0, 0], false), short.owner));
            let found6 = (long.owner != 0).then(|| (address(long.addr, true), long.owner));
            for (addr, owner) in found4.into_iter().chain(found6) {
                let number = owner as usize - 1;
                if number >= NUMBERS || !numbers.insert(number) {
                    tracing::error!("the row of relay address {addr} is damaged: number {number}; it is given up");
                    self.clear_row(addr, row);
                    continue;
                }
                let mut chunks = Box::new([0; POSITIONS]);
                for (position, chunk) in chunks.iter_mut().enumerate() {
                    let first = self.map_word(chunk_word(number, position)).load(Ordering::Acquire);
                    let held = first / CHUNK_BYTES;
                    if held != 0 && (held as usize) < self.live.len() && used.insert(held) {
                        *chunk = held;
                    } else if first != 0 {
                        self.map_word(chunk_word(number, position)).store(0, Ordering::Release);
                    }
                }
                let live_chunks = chunks.iter().filter(|chunk| **chunk != 0).count();
                self.owners.insert(
                    addr,
                    Address {
                        number,
                        row,
                        chunks,
                        live_chunks,
                        ranges: 0,
                    },
                );
            }
        }
        let mut shortcuts = vec![0; SHORTCUTS];
        for (addr, address) in &self.owners {
            if let Some(short) = shortcut(*addr) {
                shortcuts[short] = list_at(address.number);
            }
        }
        for (word, wanted) in shortcuts.into_iter().enumerate() {
            if self.map_word(word).load(Ordering::Relaxed) != wanted {
                self.map_word(word).store(wanted, Ordering::Release);
            }
        }
        self.free_numbers.retain(|number| !numbers.contains(number));
        self.free_chunks.retain(|chunk| !used.contains(chunk));
    }

    fn clear_row(&self, addr: IpAddr, row: usize) {
        match addr {
            IpAddr::V4(_) => self.rows4.u64_at(row, 0).store(0, Ordering::Release),
            IpAddr::V6(_) => self.rows6.u32_at(row, OWNER6).store(0, Ordering::Release),
        }
    }

    /// Releases the chunks and addresses that adoption found empty.
    pub fn drop_unused_all(&mut self) {
        let all: Vec<(IpAddr, Vec<u16>)> = self
            .owners
            .iter()
            .map(|(addr, address)| {
                let ports = (0..POSITIONS)
                    .filter(|position| address.chunks[*position] != 0)
                    .map(|position| (position * CHUNK) as u16);
                (*addr, ports.collect())
            })
            .collect();
        for (addr, ports) in all {
            for port in ports {
                self.drop_empty_chunk(addr, port);
            }
            self.drop_unused(addr);
        }
    }
}
