//! A relay table in maps of its own: what user space writes, and the programs that read it, run on single frames.

use crate::frame::{MAC_NEXT, MAC_OUT, Mac, octets};
use shunt_abi::relay::{
    detail, endpoint, flow_key, greylist, interface_flag, nexthop, notice, overflow_entry, path_mtu_report, reason, settings, size, slot,
    slot_flag, source_filter, totals, wide,
};
use shunt_abi::{RELAY_OBJECT, REPLICATE_OBJECT, relay, replicate};
use shunt_xdp::{Constant, Hash, Load, Loaded, Put, Ring, Shared, from_bytes, monotonic_ns, test_run};
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const REDIRECT: u32 = 4;

/// The loopback interface, which receives the frames of BPF_PROG_TEST_RUN.
pub const LOOPBACK: u32 = 1;
/// Ticks of the kernel after which an entry without packets is idle; long enough for any test.
pub const IDLE: u32 = 1 << 28;
const NEXT_HOP: u16 = 7;
const CHUNKS: usize = 8;
const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const CHUNK_PORTS: usize = size::CHUNK_PORTS.0 as usize;
const SLOTS: usize = CHUNKS * CHUNK_PORTS;
const SHORTCUTS: usize = 65536;

/// Which object, and how it is loaded.
#[derive(Clone, Copy)]
pub struct Setup {
    pub object: &'static [u8],
    /// Whether packets of other sources are dropped.
    pub drop: bool,
    /// The address of the receiving interface, and its flags; None: the interface is not in the table.
    pub interface: Option<(Mac, u32)>,
    pub packet_limit: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            object: RELAY_OBJECT,
            drop: true,
            interface: Some(([0; 6], interface_flag::INTERFACE_LOCAL_SENDERS.0)),
            packet_limit: 0,
        }
    }
}

/// An entry of the relay table: packets from `src` to `dst` leave as from `out_src` to `out_dst`.
#[derive(Clone, Copy)]
pub struct Entry {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub out_src: SocketAddr,
    pub out_dst: SocketAddr,
}

impl Entry {
    pub fn new(src: &str, dst: &str, out_src: &str, out_dst: &str) -> Self {
        let parse = |text: &str| text.parse().expect("an address and a port");
        Self {
            src: parse(src),
            dst: parse(dst),
            out_src: parse(out_src),
            out_dst: parse(out_dst),
        }
    }

    /// The entry of the other direction.
    pub fn reverse(&self) -> Self {
        Self {
            src: self.out_dst,
            dst: self.out_src,
            out_src: self.dst,
            out_dst: self.src,
        }
    }
}

/// What came of a frame.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub verdict: u32,
    pub frame: Vec<u8>,
}

pub struct Plane {
    loaded: Loaded,
    setup: Setup,
    slots: Shared<slot>,
    details: Shared<detail>,
    wides: Shared<wide>,
    slot_map: Shared<u64>,
    addresses4: Shared<u64>,
    addresses6: Shared<relay::address6>,
    nexthops: Shared<nexthop>,
    settings: Shared<settings>,
    own_macs: Shared<relay::own_mac>,
    media: Shared<relay::port_set>,
    totals: Shared<totals>,
    notices: Ring,
    reports: Ring,
    owners: Vec<IpAddr>,
    chunks: BTreeMap<(IpAddr, u16), usize>,
}

/// An address in four words; an IPv4 address stands in the first.
pub fn words(addr: IpAddr) -> [u32; 4] {
    let mut bytes = octets(addr);
    bytes.resize(16, 0);
    std::array::from_fn(|n| u32::from_ne_bytes([bytes[n * 4], bytes[n * 4 + 1], bytes[n * 4 + 2], bytes[n * 4 + 3]]))
}

fn version(addr: IpAddr) -> u32 {
    if addr.is_ipv4() { 4 } else { 6 }
}

pub fn key_of(src: SocketAddr, dst: SocketAddr) -> flow_key {
    flow_key {
        saddr: words(src.ip()),
        daddr: words(dst.ip()),
        sport: src.port().to_be(),
        dport: dst.port().to_be(),
        version: version(dst.ip()),
    }
}

/// A source on the blocklist (port 0: any), or a relay port.
fn endpoint_of(addr: IpAddr, port: u16) -> endpoint {
    endpoint {
        addr: words(addr),
        port: port.to_be(),
        version: version(addr),
        ..Default::default()
    }
}

fn mac_word(mac: Mac) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// What the rewrite adds to the checksums of an IPv4 packet (RFC 1624), in the ranges that struct slot names.
fn checksum_changes(entry: &Entry) -> (u16, u16) {
    let sum = |one: &SocketAddr, other: &SocketAddr| -> i64 {
        let part = |addr: IpAddr| {
            octets(addr)
                .chunks(2)
                .map(|pair| i64::from(pair[0]) * 256 + i64::from(pair[1]))
                .sum::<i64>()
        };
        part(one.ip()) + part(other.ip())
    };
    let addresses = sum(&entry.out_src, &entry.out_dst) - sum(&entry.src, &entry.dst);
    let ports = |one: &SocketAddr, other: &SocketAddr| i64::from(one.port()) + i64::from(other.port());
    let all = addresses + ports(&entry.out_src, &entry.out_dst) - ports(&entry.src, &entry.dst);
    let ip = (-addresses).rem_euclid(65535) as u16;
    let udp = (65535 - all.rem_euclid(65535)) as u16;
    (ip, udp)
}

impl Plane {
    /// Load an object into maps of its own, or say why the test is skipped: only root may.
    pub fn load(setup: Setup) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: loading a BPF program needs root");
            return None;
        }
        let constant = |offset: usize, bytes: &[u8]| Constant {
            offset,
            bytes: bytes.to_vec(),
        };
        let last = (SLOTS - 1) * size_of::<slot>();
        let replicates = setup.object != RELAY_OBJECT && setup.object.len() == REPLICATE_OBJECT.len();
        let constants = if replicates {
            use replicate::rodata;
            vec![
                constant(offset_of!(rodata, last_slot), &(last as u32).to_ne_bytes()),
                constant(offset_of!(rodata, drop_source_mismatch), &[u8::from(setup.drop)]),
                constant(offset_of!(rodata, idle_mismatch), &IDLE.to_ne_bytes()),
            ]
        } else {
            use relay::rodata;
            vec![
                constant(offset_of!(rodata, last_slot), &(last as u32).to_ne_bytes()),
                constant(offset_of!(rodata, drop_source_mismatch), &[u8::from(setup.drop)]),
                constant(offset_of!(rodata, idle_mismatch), &IDLE.to_ne_bytes()),
                constant(offset_of!(rodata, packet_limit), &setup.packet_limit.to_ne_bytes()),
                constant(offset_of!(rodata, limit_window), &u32::MAX.to_ne_bytes()),
                constant(offset_of!(rodata, limit_slots), &(SLOTS as u32).to_ne_bytes()),
            ]
        };
        let mut sizes = BTreeMap::from([
            (".data.slots", SLOTS * size_of::<slot>()),
            ("details", SLOTS),
            ("wides", SLOTS),
            ("overflow", 64),
            ("limits", SLOTS + size::LOOSE_LIMITS.0 as usize),
        ]);
        if replicates {
            sizes.extend(crate::conference::SIZES);
        }
        let loaded = Load {
            name: "the programs",
            object: setup.object,
            sizes,
            constants: &constants,
            ..Default::default()
        }
        .load()
        .expect("the kernel takes the programs");
        let map = |name: &str| loaded.map(name).expect("a map");
        let plane = Self {
            slots: Shared::map(map(".data.slots"), SLOTS).expect("slots"),
            details: Shared::map(map("details"), SLOTS).expect("details"),
            wides: Shared::map(map("wides"), SLOTS).expect("wides"),
            slot_map: Shared::map(map(".data.slot_map"), (SHORTCUTS + 256 * size::ADDRESSES.0 as usize) / 2).expect("the slot map"),
            addresses4: Shared::map(map(".data.addresses4"), size::ADDRESS_ROWS.0 as usize).expect("IPv4 addresses"),
            addresses6: Shared::map(map(".data.addresses6"), size::ADDRESS_ROWS.0 as usize).expect("IPv6 addresses"),
            nexthops: Shared::map(map(".data.nexthops"), size::NEXTHOPS.0 as usize).expect("next hops"),
            settings: Shared::map(map(".data.settings"), 1).expect("settings"),
            own_macs: Shared::map(map(".data.own_macs"), size::INTERFACES.0 as usize).expect("interfaces"),
            media: Shared::map(map("media"), size::ADDRESSES.0 as usize).expect("media ports"),
            totals: Shared::map(map(".data.totals"), size::CPUS.0 as usize).expect("totals"),
            notices: Ring::new(map("notices")).expect("the ring of notices"),
            reports: Ring::new(map("path_mtu")).expect("the ring of path MTU reports"),
            owners: Vec::new(),
            chunks: BTreeMap::new(),
            setup,
            loaded,
        };
        if let Some((mac, flags)) = setup.interface {
            plane.interface(LOOPBACK as usize, LOOPBACK, mac, flags);
        }
        plane.own_for(HOUR as i64);
        plane.filter_for(HOUR as i64);
        plane.next_hop(1500);
        Some(plane)
    }

    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Write a row of the table of receiving interfaces.
    pub fn interface(&self, row: usize, ifindex: u32, mac: Mac, flags: u32) {
        self.own_macs.store(
            row,
            &relay::own_mac {
                ifindex,
                flags,
                mac: mac_word(mac),
                ..Default::default()
            },
        );
    }

    /// Write the addresses of interfaces above the one in this row.
    pub fn interfaces_above(&self, row: usize, macs: &[Mac]) {
        for (at, mac) in macs.iter().enumerate() {
            let further = self.own_macs.u64_at(row, offset_of!(relay::own_mac, further) + 8 * at);
            further.store(mac_word(*mac), Ordering::Relaxed);
        }
    }

    /// Until when, from now on in nanoseconds, a client owns the entries.
    pub fn own_for(&self, ns: i64) {
        self.set_until(offset_of!(settings, owner_until), ns);
    }

    /// Until when, from now on in nanoseconds, a client owns the filters.
    pub fn filter_for(&self, ns: i64) {
        self.set_until(offset_of!(settings, filters_until), ns);
    }

    fn set_until(&self, offset: usize, ns: i64) {
        let until = monotonic_ns().saturating_add_signed(ns);
        self.settings.u64_at(0, offset).store(until, Ordering::Relaxed);
    }

    /// All entries' next hop; mtu: of its interface.
    pub fn next_hop(&self, mtu: u16) {
        let macs = [MAC_NEXT, MAC_OUT].concat();
        self.nexthops.store(
            NEXT_HOP.into(),
            &nexthop {
                generation: 1,
                ifindex: LOOPBACK,
                macs: from_bytes(&macs[..8]).expect("eight bytes"),
                macs_end: from_bytes(&macs[8..]).expect("four bytes"),
                mtu,
                plain_mtu: mtu.into(),
                ..Default::default()
            },
        );
    }

    fn word_of_slot_map(&self, word: usize, value: u32) {
        self.slot_map.u32_at(word / 2, word % 2 * 4).store(value, Ordering::Relaxed);
    }

    /// The number of a relay address, which is given one when it is new.
    fn owner(&mut self, addr: IpAddr) -> usize {
        if let Some(number) = self.owners.iter().position(|known| *known == addr) {
            return number;
        }
        let number = self.owners.len();
        self.owners.push(addr);
        let word = words(addr);
        let mixed = word[0] ^ word[1].wrapping_mul(3) ^ word[2].wrapping_mul(5) ^ word[3].wrapping_mul(7);
        let home = (mixed.wrapping_mul(0x9e37_79b1) >> 20) as usize;
        let rows = size::ADDRESS_ROWS.0 as usize;
        let mut probes = (0..size::ADDRESS_PROBES.0 as usize).map(|n| (home + n) % rows);
        if addr.is_ipv4() {
            let row = probes
                .find(|row| self.addresses4.u64_at(*row, 0).load(Ordering::Relaxed) == 0)
                .expect("a free row");
            let value = u64::from(word[0]) | (number as u64 + 1) << 32;
            self.addresses4.u64_at(row, 0).store(value, Ordering::Relaxed);
            self.word_of_slot_map((word[0] >> 16) as usize, 4 * (SHORTCUTS + 256 * number) as u32);
        } else {
            let row = probes.find(|row| self.addresses6.load(*row).owner == 0).expect("a free row");
            let owner = number as u32 + 1;
            self.addresses6.store(
                row,
                &relay::address6 {
                    addr: word,
                    owner,
                    unused: 0,
                },
            );
        }
        number
    }

    /// The slot of a relay port, which is allocated when there is none.
    pub fn index(&mut self, dst: SocketAddr) -> usize {
        let owner = self.owner(dst.ip());
        let (part, rest) = (dst.port() / CHUNK_PORTS as u16, usize::from(dst.port()) % CHUNK_PORTS);
        let next = self.chunks.len() + 1;
        let chunk = *self.chunks.entry((dst.ip(), part)).or_insert(next);
        assert!(chunk < CHUNKS, "more chunks than there is room for");
        let first = (chunk * CHUNK_PORTS * size_of::<slot>()) as u32;
        self.word_of_slot_map(SHORTCUTS + 256 * owner + usize::from(part), first);
        chunk * CHUNK_PORTS + rest
    }

    fn parts(&self, entry: &Entry) -> (slot, wide) {
        let (v4_in, v4_out) = (entry.src.is_ipv4(), entry.out_src.is_ipv4());
        let (ip_change, udp_change) = checksum_changes(entry);
        let narrow = |addr: IpAddr| if addr.is_ipv4() { words(addr)[0] } else { 0 };
        let key6 = if v4_in { 0 } else { relay::entry_flag::ENTRY_KEY6.0 };
        let out6 = if v4_out { 0 } else { relay::entry_flag::ENTRY_OUT6.0 };
        let slot = slot {
            generation: 0,
            nexthop: NEXT_HOP,
            flags: (key6 | out6) as u8,
            saddr: narrow(entry.src.ip()),
            daddr: narrow(entry.dst.ip()),
            out_saddr: narrow(entry.out_src.ip()),
            out_daddr: narrow(entry.out_dst.ip()),
            sport: entry.src.port().to_be(),
            dport: entry.dst.port().to_be(),
            out_sport: entry.out_src.port().to_be(),
            out_dport: entry.out_dst.port().to_be(),
            ip_change: if v4_in && v4_out { ip_change.to_be() } else { 0 },
            udp_change: if v4_in && v4_out { udp_change.to_be() } else { 1 },
            last_jiffies: self.tick(),
            ..Default::default()
        };
        let wide = wide {
            saddr: words(entry.src.ip()),
            daddr: words(entry.dst.ip()),
            out_saddr: words(entry.out_src.ip()),
            out_daddr: words(entry.out_dst.ip()),
        };
        (slot, wide)
    }

    /// Insert an entry into the slot of its port.
    pub fn insert(&mut self, entry: &Entry) {
        let index = self.index(entry.dst);
        let (slot, wide) = self.parts(entry);
        self.wides.store(index, &wide);
        self.slots.store(index, &slot);
        self.slots.publish(index);
    }

    /// Insert an entry as a further source of its port.
    pub fn insert_overflow(&mut self, entry: &Entry) {
        let index = self.index(entry.dst);
        self.loose(entry);
        let flags = self.details.u32_at(index, offset_of!(detail, slot_flags));
        flags.fetch_or(slot_flag::SLOT_OVERFLOW.0, Ordering::Relaxed);
        self.set_overflow_jiffies(entry.dst, self.tick());
    }

    /// Insert an entry that has no slot.
    pub fn insert_loose(&mut self, entry: &Entry) {
        self.owner(entry.dst.ip());
        self.loose(entry);
        self.settings
            .u32_at(0, offset_of!(settings, loose_entries))
            .fetch_add(1, Ordering::Relaxed);
    }

    fn loose(&self, entry: &Entry) {
        let (mut slot, wide) = self.parts(entry);
        slot.generation = 1;
        let value = overflow_entry {
            slot,
            detail: detail::default(),
            wide,
        };
        self.put("overflow", &key_of(entry.src, entry.dst), &value);
    }

    /// Remove the entry in the slot of a port.
    pub fn remove(&mut self, dst: SocketAddr) {
        let index = self.index(dst);
        self.slots.retire(index);
    }

    /// Set the kernel's tick at the last packet of the entry in a port's slot.
    pub fn set_last_jiffies(&mut self, dst: SocketAddr, tick: u32) {
        let index = self.index(dst);
        self.slots
            .u32_at(index, offset_of!(slot, last_jiffies))
            .store(tick, Ordering::Relaxed);
    }

    /// Set the kernel's tick at the last packet of a port's overflow entries.
    pub fn set_overflow_jiffies(&mut self, dst: SocketAddr, tick: u32) {
        let index = self.index(dst);
        self.details
            .u32_at(index, offset_of!(detail, overflow_jiffies))
            .store(tick, Ordering::Relaxed);
    }

    pub fn detail(&mut self, dst: SocketAddr) -> detail {
        let index = self.index(dst);
        self.details.load(index)
    }

    /// Make ports of a relay address media ports.
    pub fn media(&mut self, addr: &str, first: u16, last: u16) {
        let owner = self.owner(addr.parse().expect("an address"));
        for port in first..=last {
            let word = self.media.u64_at(owner, usize::from(port) / 64 * 8);
            word.fetch_or(1 << (port % 64), Ordering::Relaxed);
        }
    }

    fn put<K: shunt_xdp::Plain, V: shunt_xdp::Plain>(&self, name: &str, key: &K, value: &V) {
        let map = Hash::<K, V>::new(self.loaded.map(name).expect("a map")).expect("a hash map");
        assert_eq!(map.put(key, value).expect("a write"), Put::Done);
    }

    fn until(valid: bool) -> u64 {
        if valid { monotonic_ns() + HOUR } else { monotonic_ns() - SECOND }
    }

    /// Put a source on the blocklist (port 0: any port), for an hour, or until a second ago (the programs read the clock of the last tick).
    pub fn block(&self, addr: &str, port: u16, valid: bool) {
        let key = endpoint_of(addr.parse().expect("an address"), port);
        self.put("blocklist", &key, &Self::until(valid));
    }

    /// Admit these addresses only at a relay port and the next.
    pub fn allow(&self, dst: &str, allowed: &[&str], valid: bool) {
        let dst: SocketAddr = dst.parse().expect("an address and a port");
        let mut filter = source_filter {
            until: Self::until(valid),
            allowed: [[0; 4]; 4],
        };
        for (row, addr) in filter.allowed.iter_mut().zip(allowed) {
            *row = words(addr.parse().expect("an address"));
        }
        self.put("source_filters", &endpoint_of(dst.ip(), dst.port()), &filter);
    }

    /// Put ports of a relay address on the greylist.
    pub fn greylist(&self, addr: &str, first: u16, last: u16) {
        let mut ports = greylist {
            until: Self::until(true),
            ports: Default::default(),
        };
        ports.ports[0].first = first;
        ports.ports[0].last = last;
        self.put("greylist", &endpoint_of(addr.parse().expect("an address"), 0), &ports);
    }

    fn run_program(&self, program: &str, frame: &[u8]) -> (u32, Vec<u8>) {
        let program = self.loaded.program(program).expect("a program");
        let run = test_run(program, frame, None, 1).expect("a test run");
        (run.verdict, run.packet)
    }

    /// Run the program of a mode, "native" or "generic", on a frame.
    pub fn run(&self, mode: &str, frame: &[u8]) -> Outcome {
        let family = if self.loaded.programs.contains_key("relay_native") {
            "relay"
        } else {
            "replicate"
        };
        let family = match (self.setup.packet_limit, family) {
            (0, family) => family,
            (_, "relay") => "limited",
            _ => "replicate_limited",
        };
        let (verdict, frame) = self.run_program(&format!("{family}_{mode}"), frame);
        Outcome { verdict, frame }
    }

    /// What the tracing program answers: verdict and reason.
    pub fn trace(&self, frame: &[u8]) -> (u32, u32) {
        let (answer, _) = self.run_program("relay_trace", frame);
        (answer & 0xff, answer >> 8 & 0xff)
    }

    /// The kernel's tick.
    pub fn tick(&self) -> u32 {
        if !self.loaded.programs.contains_key("tick") {
            return 0;
        }
        self.run_program("tick", &[0; 64]).0
    }

    /// Packets so far by reason.
    pub fn counted(&self) -> Vec<u64> {
        let rows = (0..self.totals.len()).map(|cpu| self.totals.load(cpu).reason);
        let mut sum = vec![0; reason::REASON_COUNT.0 as usize];
        for row in rows {
            for (total, count) in sum.iter_mut().zip(row) {
                *total += count;
            }
        }
        sum
    }

    pub fn notices(&self) -> Vec<notice> {
        let records = self.notices.take(1000).records;
        records.iter().filter_map(|record| from_bytes(record)).collect()
    }

    pub fn reports(&self) -> Vec<path_mtu_report> {
        let records = self.reports.take(1000).records;
        records.iter().filter_map(|record| from_bytes(record)).collect()
    }

    /// Run a frame through the native and the generic program, and assert that both do the same with it and count it once.
    ///
    /// Returns what came of it.
    #[track_caller]
    pub fn expect(&self, what: &str, frame: &[u8], verdict: u32, why: reason) -> Vec<u8> {
        let mut left = Vec::new();
        for mode in ["native", "generic"] {
            let before = self.counted();
            let outcome = self.run(mode, frame);
            let grown: BTreeMap<_, _> = self
                .counted()
                .iter()
                .zip(before)
                .map(|(after, before)| after - before)
                .enumerate()
                .filter(|(_, count)| *count != 0)
                .collect();
            assert_eq!(
                (outcome.verdict, grown),
                (verdict, BTreeMap::from([(why.0 as usize, 1)])),
                "{what}, {mode}: verdict and counts"
            );
            if verdict != REDIRECT {
                assert_eq!(outcome.frame, frame, "{what}, {mode}: the frame is untouched");
            }
            left = outcome.frame;
        }
        if self.loaded.programs.contains_key("relay_trace") && why != reason::OVER_LIMIT {
            assert_eq!(self.trace(frame), (verdict, why.0), "{what}: trace");
        }
        left
    }
}
