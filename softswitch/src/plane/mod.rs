//! The data plane: relay table, filters, conferences and next hops on the maps of attached programs.
//!
//! Programs, maps and attachments are pinned: they stay when this process ends, and the next one adopts them.

mod attach;
mod conference;
mod holders;
pub mod hops;
pub mod ports;
mod programs;
mod trace;

use crate::config::Softswitch;
use crate::schema::ConferenceSizes;
use attach::Attachments;
pub use attach::Interface;
pub use conference::Conference;
pub use holders::Holders;
use hops::{HopRows, KernelHops, ROWS};
use ports::{Ports, Program};
pub use programs::unload;
use shunt_abi::relay::{notice, path_mtu_report, settings, size, totals};
use shunt_net::{Endpoint, FiveTuple};
use shunt_nexthop::{Flow, HostPolicy, KernelError, Moved, Netlink, NextHops};
use shunt_relay_table::{Clock, Cursor, Fault, Filters, Moves, RelayEntry, RelayTable, Totals, flow_of, read_totals};
use shunt_replication::{AgentCounts, Replication};
use shunt_xdp::{Directory, Loaded, Ring, Shared, from_bytes, monotonic_ns, test_run, tick_ms};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long an owner counts as alive after its last message.
const OWNER_ALIVE: Duration = Duration::from_secs(1);

/// The data plane cannot be opened or operated.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    #[error("{0}")]
    Kernel(#[from] shunt_xdp::Error),
    #[error("{0}")]
    Netlink(#[from] KernelError),
    #[error("{0}")]
    Table(#[from] Fault),
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// A restart changes nothing: the configuration does not fit the host.
    #[error("{0}")]
    Config(String),
}

/// A packet to a media port without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnNotice {
    pub flow: FiveTuple,
    pub rtp_version: u8,
    pub payload_type: u8,
    pub sequence: u16,
    pub ssrc: u32,
}

/// The idle attribute of one relay table. Times are milliseconds.
#[derive(Clone, Debug, Default)]
pub struct IdleConfig {
    pub enable: bool,
    pub notify: bool,
    pub interval: u32,
    pub min_ttl: u32,
    pub max_ttl: u32,
    pub client_id: u32,
    /// Entries reported idle, with the time-out that they exceeded.
    pub reported: BTreeMap<FiveTuple, u64>,
    /// Changes with every change of the attribute.
    pub generation: u64,
}

/// Data of relay entries that the kernel's maps do not hold.
#[derive(Default)]
pub struct Notes {
    /// Entries written with relay_to_from although relay_to has the same effect.
    pub explicit: HashSet<FiveTuple>,
    handles: HashMap<u32, FiveTuple>,
    handle_of: HashMap<FiveTuple, u32>,
    last_handle: u32,
    /// For each program, IPv4 and IPv6.
    pub idle: Vec<[IdleConfig; 2]>,
    /// Woken when an idle attribute changes.
    pub idle_changed: Arc<Notify>,
    pub ports: Ports,
    /// The programs that have written each row of blocklist and allowlist, if there are several programs.
    pub holders: Holders,
}

impl Notes {
    /// Returns the handle of an entry.
    pub fn handle(&mut self, key: &FiveTuple) -> u32 {
        if let Some(handle) = self.handle_of.get(key) {
            return *handle;
        }
        self.last_handle += 1;
        self.handles.insert(self.last_handle, *key);
        self.handle_of.insert(*key, self.last_handle);
        self.last_handle
    }

    #[must_use]
    pub fn by_handle(&self, handle: u32) -> Option<FiveTuple> {
        self.handles.get(&handle).copied()
    }

    /// Forgets a deleted entry.
    pub fn forget(&mut self, key: &FiveTuple) {
        if let Some(handle) = self.handle_of.remove(key) {
            self.handles.remove(&handle);
        }
        self.explicit.remove(key);
        self.active(key);
    }

    /// Marks an entry as no longer reported idle.
    pub fn active(&mut self, key: &FiveTuple) {
        for idle in &mut self.idle {
            idle[usize::from(key.is_v6())].reported.remove(key);
        }
    }
}

/// Tells the programs that clients own the tables.
#[derive(Clone)]
pub struct OwnerSign(Arc<Shared<settings>>);

impl OwnerSign {
    /// Extends the time for which source filters, blocklist and greylist apply. `of_all`: each program with media ports has an owner, so
    /// entries drop packets of other sources for the same time.
    pub fn alive(&self, of_all: bool) {
        let until = monotonic_ns() + OWNER_ALIVE.as_nanos() as u64;
        self.0
            .u64_at(0, offset_of!(settings, filters_until))
            .store(until, Ordering::Release);
        if of_all {
            self.0.u64_at(0, offset_of!(settings, owner_until)).store(until, Ordering::Release);
        }
    }
}

/// The data plane. Operations are short; possibly long ones run in steps.
pub struct Plane {
    pub relay: RelayTable,
    pub filters: Filters,
    pub hops: KernelHops,
    policy: HostPolicy,
    pub notes: Notes,
    pub conference: Option<Conference>,
    attachments: Attachments,
    settings: Arc<Shared<settings>>,
    totals: Shared<totals>,
    loaded: Loaded,
    notices: Ring,
    path_mtu: Ring,
    /// Packets of captured entries; its reader takes it.
    captures: Option<Ring>,
    tick_ms: f64,
    last_tick: u32,
    next_tick_ns: u64,
    directory: Directory,
}

impl Plane {
    /// Loads and attaches, or adopts the pins of a former process.
    ///
    /// # Errors
    /// The kernel or an interface rejects a step. A failed start leaves nothing pinned that was not pinned before.
    pub fn open(config: &Softswitch) -> Result<Self, PlaneError> {
        attach::check_interfaces(&config.interfaces)?;
        let directory = Directory::open(&config.pin_dir)?;
        let relay = programs::relay(&directory, config)?;
        let fresh = relay.fresh;
        match Self::start(config, &directory, relay) {
            Ok(open) => {
                let mut plane = open.with(directory, config.programs.len());
                plane.hold_back(&mut Cursor::default(), || true)?;
                plane.log_policy();
                Ok(plane)
            }
            Err(error) => {
                programs::undo(&directory, fresh);
                Err(error)
            }
        }
    }

    fn start(config: &Softswitch, directory: &Directory, relay: programs::Relay) -> Result<Open, PlaneError> {
        let loaded = &relay.loaded;
        let rows = HopRows(Shared::map(loaded.map(".data.nexthops")?, ROWS)?);
        let mut hops = KernelHops(NextHops::new(rows, Netlink::new()?, ROWS as u32, Instant::now())?);
        hops.0.reserve(config.capacity);
        let mut table = RelayTable::new(loaded)?;
        table.adopt(&mut hops, &BTreeSet::new())?;
        let mut conference = match config.conference_copies {
            0 => None,
            _ => Some(Conference::open(config, directory, &relay, &mut hops)?),
        };
        let programs = conference.as_ref().map_or(&relay.loaded, |conference| &conference.loaded);
        let attachments = Attachments::attach(config, directory, programs, conference.is_some(), &mut hops)?;
        hops.0.finish_adoption();
        match &mut conference {
            Some(conference) => conference.tables.prepare(attachments.indexes()),
            // No interface has the programs that used them any more.
            None => shunt_replication::unpin(directory),
        }
        let loaded = relay.loaded;
        let settings = Arc::new(Shared::<settings>::map(loaded.map(".data.settings")?, 1)?);
        settings.u64_at(0, offset_of!(settings, owner_until)).store(0, Ordering::Release);
        settings.u64_at(0, offset_of!(settings, filters_until)).store(0, Ordering::Release);
        let mut filters = Filters::new(&loaded)?;
        // The relay may have given ports to other calls since the owner of these rows was connected.
        filters.open_up(|_| true)?;
        Ok(Open {
            relay: table,
            filters,
            totals: Shared::map(loaded.map(".data.totals")?, size::CPUS.0 as usize)?,
            notices: Ring::new(loaded.map("notices")?)?,
            path_mtu: Ring::new(loaded.map("path_mtu")?)?,
            captures: Ring::new(loaded.map("captures")?)?,
            hops,
            policy: HostPolicy::new()?,
            conference,
            attachments,
            settings,
            loaded,
        })
    }

    // Clocks

    /// Returns the kernel's present tick.
    ///
    /// # Errors
    /// The kernel does not run the program that reads it.
    pub fn clock(&self) -> Result<Clock, Fault> {
        let run = test_run(self.loaded.program("tick")?, &[0; 14], None, 1)?;
        Ok(Clock {
            tick: run.verdict,
            tick_ms: self.tick_ms,
        })
    }

    /// Returns the kernel's tick for new entries, read once per tick, or the last known one.
    pub fn tick(&mut self) -> u32 {
        let now = monotonic_ns();
        if now >= self.next_tick_ns
            && let Ok(clock) = self.clock()
        {
            self.last_tick = clock.tick;
            self.next_tick_ns = now + (1e6 * clock.tick_ms) as u64;
        }
        self.last_tick
    }

    // Owners

    /// Returns the handle by which a live owner reports itself.
    #[must_use]
    pub fn owner_sign(&self) -> OwnerSign {
        OwnerSign(Arc::clone(&self.settings))
    }

    /// Admits unknown sources at the ports of a program without an owner.
    ///
    /// # Errors
    /// The kernel rejects the write.
    pub fn owner_gone(&mut self, program: Program) -> Result<(), Fault> {
        self.settings
            .u64_at(0, offset_of!(settings, owner_until))
            .store(0, Ordering::Release);
        let ports = &self.notes.ports;
        Ok(self.filters.open_up(|port| ports.program_of(port) == Some(program))?)
    }

    // Events

    /// Returns a file descriptor that is readable when there are learn notices.
    ///
    /// # Errors
    /// The kernel provides none.
    pub fn notices_fd(&self) -> io::Result<OwnedFd> {
        self.notices.poll_fd().map_err(io::Error::other)
    }

    /// Returns a file descriptor that is readable when there are reports of path MTUs.
    ///
    /// # Errors
    /// The kernel provides none.
    pub fn path_mtu_fd(&self) -> io::Result<OwnedFd> {
        self.path_mtu.poll_fd().map_err(io::Error::other)
    }

    /// Returns a file descriptor that is readable when routes, neighbours or links have changed.
    ///
    /// # Errors
    /// The kernel provides none.
    pub fn events_fd(&self) -> io::Result<OwnedFd> {
        self.hops.0.as_fd().try_clone_to_owned()
    }

    /// Returns the ring of captured packets, once.
    pub fn take_captures(&mut self) -> Option<Ring> {
        self.captures.take()
    }

    /// Reads up to `limit` learn notices. Returns them, and whether there may be more.
    #[must_use]
    pub fn take_notices(&self, limit: usize) -> (Vec<LearnNotice>, bool) {
        let batch = self.notices.take(limit);
        let notices = batch
            .records
            .iter()
            .filter_map(|record| from_bytes::<notice>(record))
            .map(|notice| LearnNotice {
                flow: flow_of(&notice.key),
                rtp_version: notice.rtp_version,
                payload_type: notice.payload_type,
                sequence: notice.seq,
                ssrc: notice.ssrc,
            })
            .collect();
        (notices, batch.is_full)
    }

    /// Applies path MTUs that the programs have verified. Returns the destinations with changed rows, and whether there may be more.
    #[must_use]
    pub fn take_path_mtus(&mut self, now: Instant) -> (Vec<Moved>, bool) {
        let mut moved = Vec::new();
        let batch = self.path_mtu.take(256);
        for record in batch.records {
            let Some(report) = from_bytes::<path_mtu_report>(&record) else {
                continue;
            };
            let dst = shunt_relay_table::address(report.daddr, report.version == 6);
            tracing::info!("the path MTU to {dst} is {} bytes for the next ten minutes", report.mtu);
            moved.extend(self.hops.0.path_mtu(dst, report.mtu, now));
        }
        (moved, batch.is_full)
    }

    /// Applies route, neighbour and link changes. Returns the destinations with changed rows.
    #[must_use]
    pub fn handle_events(&mut self, now: Instant) -> Vec<Moved> {
        let mut moved = self.hops.0.handle_events(now);
        moved.extend(self.hops.0.expire(now));
        let programs = self.conference.as_ref().map_or(&self.loaded, |conference| &conference.loaded);
        self.attachments.follow(&self.directory, programs, &mut self.hops, &self.settings);
        moved
    }

    /// Returns changes of next hops, to be written into the entries.
    #[must_use]
    pub fn moves(moved: &[Moved]) -> Moves {
        let rows: HashMap<(IpAddr, IpAddr), u16> = moved.iter().map(|one| ((one.dst, one.src), one.row())).collect();
        Moves::new(rows)
    }

    // The host's output path

    /// Returns a file descriptor that is readable when the host's IPsec policies, routing rules or netfilter rules have changed.
    ///
    /// # Errors
    /// The kernel provides none.
    pub fn policy_fd(&self) -> io::Result<OwnedFd> {
        self.policy.as_fd().try_clone_to_owned()
    }

    /// Reads such changes. Returns whether the entries must be checked again, by [`Plane::hold_back`].
    pub fn follow_policy(&mut self) -> bool {
        let changed = self.policy.follow();
        if changed {
            self.log_policy();
        }
        changed
    }

    fn log_policy(&self) {
        let found = self.policy.summary();
        if !found.is_empty() {
            tracing::info!("the host has {}: streams that they apply to stay on the relay", found.join("; "));
        }
    }

    /// Returns why the kernel must send the packets of an entry, if it must.
    pub fn denies(&mut self, entry: &RelayEntry) -> Option<String> {
        denies(&mut self.policy, entry)
    }

    /// Returns why the kernel must send packets from `src` to `dst`, whatever their origin.
    pub fn denies_output(&mut self, src: Endpoint, dst: Endpoint) -> Option<String> {
        let leaving = flow(src, dst, None);
        self.policy.denies(&flow(dst, src, None), &leaving)
    }

    /// Holds back the entries whose packets the kernel must send, in steps. Returns whether all have been checked.
    ///
    /// # Errors
    /// The kernel rejects a lookup or write.
    pub fn hold_back(&mut self, cursor: &mut Cursor, more: impl FnMut() -> bool) -> Result<bool, Fault> {
        let Self { relay, hops, policy, .. } = self;
        relay.hold_back(hops, cursor, |entry| denies(policy, entry).is_some(), more)
    }

    /// Returns the sizes of the conference tables, if there are any.
    #[must_use]
    pub fn conference_sizes(&self) -> Option<ConferenceSizes> {
        self.conference.as_ref().map(Conference::sizes)
    }

    /// Returns the conference tables and the objects that their changes need.
    pub fn conference_tables(&mut self) -> Option<(&mut Replication, &mut KernelHops)> {
        Some((&mut self.conference.as_mut()?.tables, &mut self.hops))
    }

    /// Reads up to `limit` frames of conference packets for the agent. Returns those whose streams still have rows, and whether there may
    /// be more.
    #[must_use]
    pub fn take_agent_frames(&self, limit: usize) -> (Vec<Vec<u8>>, bool) {
        let Some(conference) = &self.conference else {
            return (Vec::new(), false);
        };
        let batch = conference.packets.take(limit);
        let frames = batch
            .records
            .iter()
            .filter_map(|record| conference.tables.agent_packet(record))
            .map(|(_, frame)| frame.to_vec())
            .collect();
        (frames, batch.is_full)
    }

    /// Returns a file descriptor that is readable when there are conference packets for the agent.
    ///
    /// # Errors
    /// The kernel provides none.
    pub fn agent_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.conference
            .as_ref()
            .map(|conference| conference.packets.poll_fd().map_err(io::Error::other))
            .transpose()
    }

    // Counters

    /// Returns counters of the whole data plane since the maps were made.
    #[must_use]
    pub fn totals(&self) -> Totals {
        read_totals(&self.totals)
    }

    /// Returns the conference packets that the agent got.
    #[must_use]
    pub fn agent_counts(&self) -> AgentCounts {
        let counts = self.conference.as_ref().map(|conference| conference.tables.agent_counts());
        counts.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the interfaces with the program.
    #[must_use]
    pub fn interfaces(&self) -> Vec<Interface> {
        self.attachments.interfaces(&self.hops)
    }

    fn program(&self, name: &str) -> Result<BorrowedFd<'_>, Fault> {
        Ok(self.loaded.program(name)?)
    }
}

fn flow(src: Endpoint, dst: Endpoint, dscp: Option<u8>) -> Flow {
    let address = |end: Endpoint| SocketAddr::new(end.addr, end.port);
    Flow {
        src: address(src),
        dst: address(dst),
        dscp,
    }
}

fn denies(policy: &mut HostPolicy, entry: &RelayEntry) -> Option<String> {
    policy.denies(&flow(entry.key.src, entry.key.dst, None), &flow(entry.src, entry.dst, entry.dscp))
}

/// A plane without its directory, which its caller must clean up after an error.
struct Open {
    relay: RelayTable,
    filters: Filters,
    hops: KernelHops,
    policy: HostPolicy,
    conference: Option<Conference>,
    attachments: Attachments,
    settings: Arc<Shared<settings>>,
    totals: Shared<totals>,
    loaded: Loaded,
    notices: Ring,
    path_mtu: Ring,
    captures: Ring,
}

impl Open {
    /// Assembles the plane. `programs`: how many are served.
    fn with(self, directory: Directory, programs: usize) -> Plane {
        Plane {
            filters: self.filters,
            hops: self.hops,
            policy: self.policy,
            notes: Notes {
                ports: Ports::adopt(self.relay.media(), programs),
                idle: vec![<[IdleConfig; 2]>::default(); programs],
                ..Notes::default()
            },
            relay: self.relay,
            conference: self.conference,
            attachments: self.attachments,
            settings: self.settings,
            totals: self.totals,
            loaded: self.loaded,
            notices: self.notices,
            path_mtu: self.path_mtu,
            captures: Some(self.captures),
            tick_ms: tick_ms(),
            last_tick: 0,
            next_tick_ns: 0,
            directory,
        }
    }
}
