//! What the tests on real maps share: the programs loaded and pinned, a next-hop table, and what the maps say read by other means.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod lab;
pub mod maps;
pub mod model;

use shunt_abi::{relay, replicate};
use shunt_replication::{Exhausted, Hops, Options, Replication};
use shunt_xdp::{Constant, Directory, Load, Loaded, Shared};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

const SLOTS: usize = 1024;
const NEXTHOPS: usize = 65536;
/// The programs that streams without a packet limit need.
pub const WITHOUT: [&str; 2] = ["replicate_limited_native", "replicate_limited_generic"];

/// Numbers that look like chance, the same for every run with this seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(end)) as u32
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u32) as usize]
    }
}

/// A folder of pins that goes with the test.
pub struct Pins(pub PathBuf);

impl Pins {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(PathBuf::from(format!("/sys/fs/bpf/shunt-repl-{}-{number}", std::process::id())))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The relay's maps, without a relay.
pub fn load_relay() -> Loaded {
    let last = u32::try_from((SLOTS - 1) * size_of::<relay::slot>()).unwrap();
    let constants = [Constant {
        offset: offset_of!(relay::rodata, last_slot),
        bytes: last.to_le_bytes().to_vec(),
    }];
    let sizes = BTreeMap::from([
        (".data.slots", SLOTS * size_of::<relay::slot>()),
        ("details", SLOTS),
        ("wides", SLOTS),
        ("overflow", 16),
    ]);
    Load {
        name: "relay",
        object: shunt_abi::RELAY_OBJECT,
        sizes,
        constants: &constants,
        without: &["relay_limited_native", "relay_limited_generic"],
        ..Load::default()
    }
    .load()
    .unwrap()
}

/// The programs over the relay's maps and those pinned in a directory.
pub fn load(directory: &Directory, copies: usize, relay: &Loaded) -> Loaded {
    let last = u32::try_from((SLOTS - 1) * size_of::<relay::slot>()).unwrap();
    let constants = [Constant {
        offset: offset_of!(replicate::rodata, last_slot),
        bytes: last.to_le_bytes().to_vec(),
    }];
    let options = Options {
        directory,
        copies,
        relay: &relay.maps,
        constants: &constants,
        without: &WITHOUT,
    };
    options.load().unwrap()
}

/// A next-hop table whose routes the test gives: each destination has a row of its own.
pub struct Table {
    rows: Shared<relay::nexthop>,
    routes: HashMap<IpAddr, Route>,
    held: BTreeMap<(IpAddr, IpAddr), u32>,
    row_of: BTreeMap<IpAddr, u16>,
    pub most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub ifindex: u32,
    pub to: [u8; 6],
    pub from: [u8; 6],
    pub vlan: u16,
}

impl Table {
    pub fn new(relay: &Loaded) -> Self {
        Self {
            rows: Shared::map(relay.map(".data.nexthops").unwrap(), NEXTHOPS).unwrap(),
            routes: HashMap::new(),
            held: BTreeMap::new(),
            row_of: BTreeMap::new(),
            most: usize::MAX,
        }
    }

    pub fn routes(&self) -> &HashMap<IpAddr, Route> {
        &self.routes
    }

    /// Destinations and sources with their users.
    pub fn held(&self) -> BTreeMap<(IpAddr, IpAddr), u32> {
        self.held.clone()
    }

    /// From now on packets to this destination go here; the row that says so. Rows in use change only with `move_to()`.
    pub fn route(&mut self, dst: IpAddr, route: Option<Route>) {
        match route {
            Some(route) => self.routes.insert(dst, route),
            None => self.routes.remove(&dst),
        };
    }

    /// Change the content of a destination's row in place.
    pub fn rewrite(&mut self, dst: IpAddr) {
        let row = self.row_of[&dst];
        self.write(row, dst);
    }

    /// Give a destination a new row, after a change of its route.
    pub fn move_to(&mut self, dst: IpAddr, row: u16) -> u16 {
        self.row_of.insert(dst, row);
        self.write(row, dst);
        row
    }

    pub fn row(&self, dst: IpAddr) -> u16 {
        self.row_of[&dst]
    }

    fn write(&self, row: u16, dst: IpAddr) {
        let index = usize::from(row);
        self.rows.retire(index);
        let Some(route) = self.routes.get(&dst) else { return };
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&route.to);
        macs[6..].copy_from_slice(&route.from);
        let hop = relay::nexthop {
            ifindex: route.ifindex,
            macs: u64::from_ne_bytes(macs[..8].try_into().unwrap()),
            macs_end: u32::from_ne_bytes(macs[8..].try_into().unwrap()),
            vlan: route.vlan,
            mtu: 1500,
            plain_mtu: if route.vlan == 0 { 1500 } else { 0 },
            ..Default::default()
        };
        self.rows.store_range(index, &hop, 4..size_of::<relay::nexthop>());
        self.rows.publish(index);
    }
}

impl Hops for Table {
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Result<u16, Exhausted> {
        if !self.row_of.contains_key(&dst) {
            if self.row_of.len() >= self.most {
                let rows = self.most as u32;
                return Err(Exhausted { rows });
            }
            let row = (1..).find(|row| self.row_of.values().all(|other| other != row)).unwrap();
            self.row_of.insert(dst, row);
            self.write(row, dst);
        }
        *self.held.entry((dst, src)).or_default() += 1;
        Ok(self.row_of[&dst])
    }

    fn release(&mut self, dst: IpAddr, src: IpAddr) {
        let users = self.held.get_mut(&(dst, src)).expect("released more often than acquired");
        *users -= 1;
        if *users == 0 {
            self.held.remove(&(dst, src));
        }
    }

    fn output(&self, row: u16) -> u32 {
        let index = usize::from(row);
        if self.rows.generation(index) & 1 == 0 {
            0
        } else {
            self.rows.load(index).ifindex
        }
    }

    fn adopt(&mut self, dst: IpAddr, src: IpAddr, row: u16, _: &BTreeSet<u16>) -> u16 {
        self.row_of.entry(dst).or_insert(row);
        self.acquire(dst, src).unwrap()
    }
}

/// Everything that a process has, on pinned maps.
pub struct Process {
    pub replication: Replication,
    pub hops: Table,
    pub relay: Loaded,
    pub loaded: Loaded,
}

impl Process {
    /// Load the programs and adopt what is pinned. routes: by destination.
    pub fn start(pins: &Pins, copies: usize, routes: &HashMap<IpAddr, Route>) -> Self {
        let relay = load_relay();
        let loaded = load(&Directory::open(&pins.0).unwrap(), copies, &relay);
        Self::adopt(relay, loaded, routes)
    }

    /// Adopt what is in the maps.
    pub fn adopt(relay: Loaded, loaded: Loaded, routes: &HashMap<IpAddr, Route>) -> Self {
        let mut hops = Table::new(&relay);
        hops.routes.clone_from(routes);
        let mut replication = Replication::new(&loaded).unwrap();
        let taken = replication.rows();
        replication.adopt(&mut hops, &taken).unwrap();
        Self {
            replication,
            hops,
            relay,
            loaded,
        }
    }

    /// As if the process had been killed, and another one with the same programs had started on the same maps.
    pub fn restart(self) -> Self {
        let Self {
            replication,
            hops,
            relay,
            loaded,
        } = self;
        drop(replication);
        Self::adopt(relay, loaded, &hops.routes)
    }

    /// The same, where the next process loads the programs anew.
    pub fn reload(self, pins: &Pins, copies: usize) -> Self {
        let Self {
            replication,
            hops,
            relay,
            loaded,
        } = self;
        drop((replication, loaded));
        let loaded = load(&Directory::open(&pins.0).unwrap(), copies, &relay);
        Self::adopt(relay, loaded, &hops.routes)
    }

    /// Run rounds until there is nothing to wait for.
    pub fn settle(&mut self) {
        while let Some(round) = self.replication.begin() {
            let passed = round.run();
            self.replication.finish(&mut self.hops, passed);
        }
    }

    pub fn map(&self, name: &str) -> &OwnedFd {
        &self.loaded.maps[name]
    }
}

/// As an address.
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
