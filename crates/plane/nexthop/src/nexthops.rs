//! The state machine: references to next hops, and their updates after changes in the kernel.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use crate::destinations::{Destination, Destinations, Pair};
use crate::kernel::{Event, Framing, Kernel, KernelError, Link, Neighbour, Route};
use crate::neighbours::{At, Neighbours, Watched};
use crate::path_mtu::{self, PathMtus};
use crate::row::{Row, Rows, UNRESOLVED};
use crate::table::{Exhausted, Hop, Table};

/// Interval at which neighbours that the kernel does not keep resolved are probed, and failed operations are retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Work of one call, limited to some milliseconds so that the caller's loop is not delayed.
const EVENTS_AT_ONCE: usize = 2000;
const NEIGHBOURS_AT_ONCE: usize = 250;
const DESTINATIONS_AT_ONCE: usize = 1000;
/// Depth of stacked interfaces that is followed. The kernel's own bound is 8 (MAX_NEST_DEV).
const STACKED: usize = 8;
/// Number of destinations with their own path MTU.
const PATH_MTUS: usize = 65_536;

/// Packets from `src` to `dst` now leave by another row. The old row stays in use until [`NextHops::settle`].
#[derive(Debug, PartialEq, Eq)]
pub struct Moved {
    pub dst: IpAddr,
    pub src: IpAddr,
    old: u16,
    row: u16,
}

impl Moved {
    /// Returns the row before the move.
    #[must_use]
    pub fn old(&self) -> u16 {
        self.old
    }

    /// Returns the row to write into the entries.
    #[must_use]
    pub fn row(&self) -> u16 {
        self.row
    }
}

/// A description of a row's next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The interface of the route, which may be a VLAN sub-interface.
    pub ifindex: u32,
    /// `None` for an adopted row whose destinations have not been looked up yet.
    pub neighbour: Option<IpAddr>,
    /// `None` while the neighbour is unresolved.
    pub row: Option<Row>,
}

/// Rows of the next-hop table, shared by all destinations with the same neighbour and MTU. Row [`UNRESOLVED`] never resolves.
///
/// The MTU of a destination is that of its route or interface, or for a limited time its path MTU ([`NextHops::path_mtu`]) if that is
/// smaller. The kernel's cached path MTUs are ignored: one forged ICMP message must not reduce the MTU of other flows.
///
/// The caller runs [`NextHops::handle_events`] when the descriptor of [`AsFd`] is readable, while [`NextHops::is_pending`], and at least
/// every five seconds. It runs [`NextHops::expire`] at [`NextHops::next_expiry`].
pub struct NextHops<R, K> {
    kernel: K,
    table: Table<R>,
    links: HashMap<u32, Link>,
    link_changes: u64,
    attached: HashSet<u32>,
    /// For each interface that was queried: whether it sends frames that native XDP redirects to it.
    transmits: HashMap<u32, bool>,
    neighbours: Neighbours,
    /// Whether this kernel keeps neighbours resolved; `None` before the first try.
    managed: Option<bool>,
    destinations: Destinations,
    path_mtus: PathMtus,
    /// Routes looked up in advance.
    ahead: HashMap<Pair, Option<Route>>,
    more_events: bool,
    /// Events were lost, and the interfaces have not been read since.
    outdated: bool,
    /// Some destination kept or got its row without an answer from the kernel.
    unanswered: bool,
    /// Some destination is unresolved because the table was full.
    exhausted: bool,
    now: Instant,
    retried: Instant,
}

impl<R: Rows, K: Kernel> NextHops<R, K> {
    /// `capacity`: rows of the shared table, row 0 included; at most 65,536 are used.
    ///
    /// Rows that are not empty stay unchanged until [`NextHops::finish_adoption`], which the caller must call in any case.
    ///
    /// # Errors
    /// The kernel does not list its interfaces.
    pub fn new(rows: R, mut kernel: K, capacity: u32, now: Instant) -> Result<Self, KernelError> {
        let links = kernel.links()?.into_iter().map(|link| (link.ifindex, link)).collect();
        Ok(Self {
            kernel,
            table: Table::new(rows, capacity),
            links,
            link_changes: 0,
            attached: HashSet::new(),
            transmits: HashMap::new(),
            neighbours: Neighbours::default(),
            managed: None,
            destinations: Destinations::default(),
            path_mtus: PathMtus::new(PATH_MTUS),
            ahead: HashMap::new(),
            more_events: false,
            outdated: false,
            unanswered: false,
            exhausted: false,
            now,
            retried: now,
        })
    }

    /// Returns the shared table.
    pub fn rows(&self) -> &R {
        self.table.rows()
    }

    // Interfaces

    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// Returns the interface's own Ethernet address.
    pub fn mac(&self, ifindex: u32) -> Option<[u8; 6]> {
        self.links.get(&ifindex)?.mac
    }

    /// Returns the kind of an interface (`veth`, `vlan`, ...); empty for hardware.
    pub fn kind(&self, ifindex: u32) -> Option<&str> {
        self.links.get(&ifindex).map(|link| link.kind.as_str())
    }

    /// Returns the interface by which packets of this one leave: for a VLAN or macvlan, the lowest one below it.
    pub fn lowest(&self, ifindex: u32) -> u32 {
        stack(&self.links, ifindex).last().unwrap_or(ifindex)
    }

    /// Returns whether frames that arrive at interface `ifindex` may be for `above`: as a VLAN, macvlan, bond or bridge on top of it.
    pub fn is_above(&self, above: u32, ifindex: u32) -> bool {
        // Bounded, because the kernel may have reported only half of a change.
        let mut lower = HashSet::from([ifindex]);
        for _ in 0..STACKED {
            let next = self.links.values().filter(|link| {
                let is_on_top = link.framing.parent().is_some_and(|parent| lower.contains(&parent));
                is_on_top
                    || lower
                        .iter()
                        .any(|one| self.links.get(one).and_then(|one| one.controller) == Some(link.ifindex))
            });
            let next: HashSet<u32> = next.map(|link| link.ifindex).collect();
            if next.contains(&above) {
                return above != ifindex;
            }
            lower.extend(next);
        }
        false
    }

    /// Returns the addresses of the interfaces above one, other than its own, for which frames arrive at it.
    pub fn macs_above(&self, ifindex: u32) -> BTreeSet<[u8; 6]> {
        let own = self.mac(ifindex);
        let above = self.links.values().filter(|link| self.is_above(link.ifindex, ifindex));
        above
            .filter_map(|link| link.mac)
            .filter(|mac| Some(*mac) != own && *mac != [0; 6])
            .collect()
    }

    /// Returns the number of interface changes: values derived from [`NextHops::link`] are valid while it stays the same.
    pub fn link_changes(&self) -> u64 {
        self.link_changes
    }

    /// Sets the interfaces that carry the relay program, which some need in order to send.
    pub fn attached(&mut self, ifindexes: impl IntoIterator<Item = u32>) {
        self.attached = ifindexes.into_iter().collect();
        self.forget_features();
        self.write_all();
    }

    /// Discards the interfaces' features, so that they are queried again.
    fn forget_features(&mut self) {
        self.transmits.clear();
    }

    /// Returns whether an interface sends frames that native XDP redirects to it. Frames to other interfaces would be lost silently.
    pub fn sends(&mut self, ifindex: u32) -> bool {
        let (kernel, attached, links) = (&mut self.kernel, &self.attached, &self.links);
        *self.transmits.entry(ifindex).or_insert_with(|| {
            let by_kind = || attached.contains(&ifindex) && links.get(&ifindex).is_some_and(|link| link.kind != "veth");
            kernel.xdp_transmit(ifindex).unwrap_or_else(by_kind)
        })
    }

    // References

    /// Reserves space for this total number of (dst, src). Growth beyond it takes tens of milliseconds at a time. Unused space takes no
    /// memory.
    pub fn reserve(&mut self, destinations: usize) {
        self.destinations.reserve(destinations);
    }

    /// Looks up the routes of the (dst, src) that are about to be acquired in one request, and forgets earlier results.
    pub fn look_ahead(&mut self, pairs: impl IntoIterator<Item = (IpAddr, IpAddr)>) {
        self.ahead.clear();
        let unknown: Vec<Pair> = pairs.into_iter().filter(|pair| self.destinations.get(pair).is_none()).collect();
        let unknown: Vec<Pair> = HashSet::<Pair>::from_iter(unknown).into_iter().collect();
        if let Some(routes) = self.ask(&unknown) {
            self.ahead = unknown.into_iter().zip(routes).collect();
        }
    }

    /// Returns the row by which packets from `src` to `dst` leave, and adds `users` (at least 1) references. Returns [`UNRESOLVED`] without
    /// a route.
    ///
    /// # Errors
    /// All rows are in use; no reference is added.
    pub fn acquire(&mut self, dst: IpAddr, src: IpAddr, users: u32) -> Result<u16, Exhausted> {
        let pair = (dst, src);
        if let Some(destination) = self.destinations.get_mut(&pair) {
            destination.users = destination.users.saturating_add(users);
            return Ok(destination.row);
        }
        let route = match self.ahead.remove(&pair) {
            Some(route) => route,
            None => self.ask(&[pair]).and_then(|routes| routes.into_iter().next()).flatten(),
        };
        let row = self.resolve(dst, route, None)?;
        self.destinations.get_or_insert_with(pair, || Destination {
            users,
            row,
            adopted: false,
        });
        Ok(row)
    }

    /// Acquires each (dst, src, users) as [`NextHops::acquire`] does, with one request for all routes.
    pub fn acquire_many(&mut self, wanted: &[(IpAddr, IpAddr, u32)]) -> Vec<Result<u16, Exhausted>> {
        self.look_ahead(wanted.iter().map(|&(dst, src, _)| (dst, src)));
        let rows = wanted.iter().map(|&(dst, src, users)| self.acquire(dst, src, users)).collect();
        self.ahead.clear();
        rows
    }

    /// Releases one reference. The last one frees what is no longer used.
    pub fn release(&mut self, dst: IpAddr, src: IpAddr) {
        let pair = (dst, src);
        let Some(destination) = self.destinations.get_mut(&pair) else {
            return;
        };
        destination.users = destination.users.saturating_sub(1);
        if destination.users == 0 {
            self.remove(&pair);
        }
    }

    /// Adopts entries of a former process that use row `index`; returns the row they use from now on.
    ///
    /// That is `index` itself wherever possible. The routes are not looked up here: [`NextHops::handle_events`] does so after
    /// [`NextHops::finish_adoption`], and reports the destinations that now leave by another row.
    pub fn adopt(&mut self, dst: IpAddr, src: IpAddr, users: u32, index: u16) -> u16 {
        let table = &mut self.table;
        let take_over = || Destination {
            users: 0,
            row: table.adopt(index, dst.is_ipv4()),
            adopted: true,
        };
        let destination = self.destinations.get_or_insert_with((dst, src), take_over);
        destination.users = destination.users.saturating_add(users);
        destination.row
    }

    /// Clears the rows that no adopted entry uses, and starts the lookups of the adopted destinations.
    pub fn finish_adoption(&mut self) {
        self.table.finish_adoption();
        self.routes_changed();
    }

    /// Describes a row's next hop; `None` if the row is not in use.
    pub fn describe(&self, index: u16) -> Option<Description> {
        if !self.table.is_in_use(index) {
            return None;
        }
        let row = self.table.content(index);
        let hop = self.table.hop(index);
        let ifindex = hop
            .map(|hop| hop.ifindex)
            .or_else(|| row.map(|row| row.ifindex))
            .unwrap_or_default();
        Some(Description {
            ifindex,
            neighbour: hop.map(|hop| hop.addr),
            row,
        })
    }

    /// Releases the former rows of moved destinations. Call it once no entry names them any more.
    pub fn settle(&mut self, moved: Vec<Moved>) {
        for moved in moved {
            self.leave(moved.old);
        }
    }

    /// Releases all references except `kept`: their number for each (dst, src).
    pub fn clear(&mut self, kept: &HashMap<(IpAddr, IpAddr), u32>) {
        let pairs: Vec<Pair> = self.destinations.pairs().copied().collect();
        for pair in pairs {
            match (kept.get(&pair), self.destinations.get_mut(&pair)) {
                (Some(&users), Some(destination)) if users > 0 => destination.users = users,
                _ => self.remove(&pair),
            }
        }
    }

    fn remove(&mut self, pair: &Pair) {
        if let Some(destination) = self.destinations.remove(pair) {
            self.leave(destination.row);
        }
    }

    /// Looks up the routes of some pairs; `None` if the kernel did not answer, and then the lookup is retried later.
    fn ask(&mut self, pairs: &[Pair]) -> Option<Vec<Option<Route>>> {
        if pairs.is_empty() {
            return Some(Vec::new());
        }
        match self.kernel.routes(pairs) {
            Ok(routes) => Some(routes),
            Err(error) => {
                warn!(%error, destinations = pairs.len(), "routes could not be read; the lookup is retried");
                self.unanswered = true;
                None
            }
        }
    }

    /// Returns the row for a route, with one more reference. `wanted`: the adopted row that the destination uses.
    fn resolve(&mut self, dst: IpAddr, route: Option<Route>, wanted: Option<u16>) -> Result<u16, Exhausted> {
        let Some(route) = route.filter(|route| self.is_ethernet(route.ifindex)) else {
            return Ok(UNRESOLVED);
        };
        let mtu = least(route.mtu, self.path_mtus.get(dst).unwrap_or_default());
        let hop = Hop {
            ifindex: route.ifindex,
            addr: route.gateway,
            mtu,
        };
        let row = match self.table.find(&hop) {
            Some(row) => row,
            None => self.add(hop, wanted)?,
        };
        self.table.hold(row);
        Ok(row)
    }

    fn add(&mut self, hop: Hop, wanted: Option<u16>) -> Result<u16, Exhausted> {
        let at = (hop.ifindex, hop.addr);
        if self.neighbours.insert(at) {
            self.watch(at);
        }
        let content = self.content(&hop);
        let row = self.table.bind(hop, content, wanted);
        match row {
            Ok(row) => {
                self.neighbours.add_row(at, row);
                self.table.write(row, content);
            }
            Err(_) => self.unwatch_unused(at),
        }
        row
    }

    fn leave(&mut self, row: u16) {
        if let Some(hop) = self.table.leave(row) {
            let at = (hop.ifindex, hop.addr);
            self.neighbours.remove_row(at, row);
            self.unwatch_unused(at);
        }
    }

    // Neighbours

    /// Requests a neighbour's present state, and makes the kernel keep it resolved.
    fn watch(&mut self, at: At) {
        let known = if self.is_ethernet(at.0) { self.keep_resolved(at) } else { Ok(None) };
        match known {
            Ok(known) => self.neighbours.set(at, known),
            Err(error) => warn!(%error, ifindex = at.0, neighbour = %at.1, "the state of a neighbour could not be read"),
        }
    }

    fn keep_resolved(&mut self, (ifindex, addr): At) -> Result<Option<Neighbour>, KernelError> {
        let known = self.kernel.neighbour(ifindex, addr)?;
        if known.is_some_and(|known| known.is_kept()) {
            return Ok(known);
        }
        if self.managed != Some(false) {
            if let Err(error) = self.kernel.manage_neighbour(ifindex, addr) {
                // The interface is down or removed, or the table is full: an event or the next try queues the neighbour again.
                debug!(%error, ifindex, neighbour = %addr, "the kernel does not keep a neighbour resolved");
                return Ok(known);
            }
            let known = self.kernel.neighbour(ifindex, addr)?;
            match known {
                Some(known) if known.managed => self.managed = Some(true),
                Some(_) if self.managed.is_none() => {
                    info!("this kernel does not keep neighbours resolved (before Linux 5.16): they are probed every 5 s");
                    self.managed = Some(false);
                }
                _ => {}
            }
            if self.managed != Some(false) {
                return Ok(known);
            }
        }
        if let Err(error) = self.kernel.probe_neighbour(ifindex, addr) {
            debug!(%error, ifindex, neighbour = %addr, "a neighbour could not be probed");
        }
        self.kernel.neighbour(ifindex, addr)
    }

    /// Forgets a neighbour without rows.
    fn unwatch_unused(&mut self, at: At) {
        let known = self.neighbours.remove_unused(at);
        let Some(known) = known.filter(|known| known.managed && self.links.contains_key(&at.0)) else {
            return;
        };
        if let Err(error) = self.kernel.unmanage_neighbour(at.0, at.1, known.mac) {
            warn!(%error, ifindex = at.0, neighbour = %at.1, "the kernel still keeps an unused neighbour resolved");
        }
    }

    // Rows

    /// Returns the content of a hop's row; `None` while the hop is unresolved.
    fn content(&mut self, hop: &Hop) -> Option<Row> {
        let link = self.links.get(&hop.ifindex).filter(|link| link.up)?;
        let dst_mac = self.neighbours.get((hop.ifindex, hop.addr))?.known?.mac?;
        let (ifindex, vlan) = self.output(link)?;
        let mtu = u16::try_from(least(link.mtu, hop.mtu)).unwrap_or(u16::MAX);
        let row = Row {
            ifindex,
            dst_mac,
            src_mac: link.mac?,
            vlan,
            mtu,
            no_xmit: false,
        };
        Some(Row {
            no_xmit: !self.sends(ifindex),
            ..row
        })
    }

    fn is_ethernet(&self, ifindex: u32) -> bool {
        self.links.get(&ifindex).is_some_and(|link| link.framing != Framing::Other)
    }

    /// Returns the interface by which the frames of `link` leave, and their tag; `None` if the kernel has to send them.
    fn output(&self, link: &Link) -> Option<(u32, u16)> {
        let mut vlan = 0;
        let mut link = link;
        for _ in 0..STACKED {
            let parent = match link.framing {
                Framing::Ethernet => return Some((link.ifindex, vlan)),
                Framing::Vlan { tag, parent } if vlan == 0 => {
                    vlan = tag;
                    parent
                }
                Framing::Macvlan { parent } => parent,
                Framing::Vlan { .. } | Framing::Other => return None,
            };
            link = self.links.get(&parent).filter(|link| link.up)?;
        }
        None
    }

    fn write_neighbour(&mut self, at: At) {
        let rows = self.neighbours.get(at).map(|watched| watched.rows.clone()).unwrap_or_default();
        for row in rows {
            if let Some(hop) = self.table.hop(row) {
                let content = self.content(&hop);
                self.table.write(row, content);
            }
        }
    }

    fn write_all(&mut self) {
        for at in self.neighbours.select(|_, _| true) {
            self.write_neighbour(at);
        }
        self.write_adopted();
    }

    /// Writes adopted rows whose neighbour is unknown: they stay unchanged while their interface is up.
    fn write_adopted(&mut self) {
        for index in self.table.without_hop() {
            let before = self.table.content(index);
            let row = before.filter(|row| self.links.get(&row.ifindex).is_some_and(|link| link.up));
            let row = row.map(|row| Row {
                no_xmit: !self.sends(row.ifindex),
                ..row
            });
            self.table.write(index, row);
        }
    }

    // Events

    /// Applies the kernel's events, and does some milliseconds of the resulting work; [`NextHops::is_pending`] tells whether more is left.
    /// Returns the destinations whose row has changed. The caller writes the new rows into their entries, then calls [`NextHops::settle`].
    #[must_use]
    pub fn handle_events(&mut self, now: Instant) -> Vec<Moved> {
        self.now = now;
        self.ahead.clear();
        let retry = now.saturating_duration_since(self.retried) >= RETRY_INTERVAL;
        let lost = self.take_events();
        if lost || (retry && self.outdated) {
            self.read_links();
        }
        if retry {
            self.retried = now;
            self.retry();
        }
        for _ in 0..NEIGHBOURS_AT_ONCE {
            let Some(at) = self.neighbours.next_queued() else { break };
            self.watch(at);
            self.write_neighbour(at);
        }
        let batch = self.destinations.next_batch(DESTINATIONS_AT_ONCE);
        self.look_up_again(&batch)
    }

    /// Returns whether [`NextHops::handle_events`] has work left although its descriptor may not be readable.
    pub fn is_pending(&self) -> bool {
        self.more_events || self.neighbours.any_queued() || self.destinations.in_pass()
    }

    /// Returns whether events were lost.
    fn take_events(&mut self) -> bool {
        let events = self.kernel.events(EVENTS_AT_ONCE);
        self.more_events = events.more;
        let mut changed = HashSet::new();
        let (mut routes, mut features, mut lost) = (false, false, false);
        for event in events.list {
            match event {
                Event::Link(link) => {
                    if self.links.get(&link.ifindex) != Some(&link) {
                        changed.insert(link.ifindex);
                        self.links.insert(link.ifindex, link);
                    }
                }
                Event::LinkGone(ifindex) => {
                    if self.links.remove(&ifindex).is_some() {
                        changed.insert(ifindex);
                    }
                }
                Event::Neighbour { ifindex, addr, neighbour } => self.neighbour_changed((ifindex, addr), Some(neighbour)),
                Event::NeighbourGone { ifindex, addr } => self.neighbour_changed((ifindex, addr), None),
                Event::Routes => routes = true,
                Event::Features => features = true,
                Event::Lost => lost = true,
            }
        }
        if !changed.is_empty() {
            self.links_changed(&changed);
        }
        if features {
            self.forget_features();
            self.write_all();
        }
        if routes {
            self.routes_changed();
        }
        self.outdated |= lost;
        lost
    }

    fn neighbour_changed(&mut self, at: At, neighbour: Option<Neighbour>) {
        if self.neighbours.get(at).is_none() {
            return;
        }
        self.neighbours.set(at, neighbour);
        self.write_neighbour(at);
        if !neighbour.is_some_and(|neighbour| neighbour.is_kept()) && self.managed != Some(false) {
            self.neighbours.queue(at);
        }
    }

    fn links_changed(&mut self, changed: &HashSet<u32>) {
        self.link_changes += 1;
        self.transmits.retain(|ifindex, _| !changed.contains(ifindex));
        let links = &self.links;
        let affected = self
            .neighbours
            .select(|&(ifindex, _), _| stack(links, ifindex).any(|one| changed.contains(&one)));
        for at in affected {
            if !self.neighbours.get(at).is_some_and(Watched::is_kept) {
                self.neighbours.queue(at);
            }
            self.write_neighbour(at);
        }
        self.write_adopted();
        self.routes_changed();
    }

    fn routes_changed(&mut self) {
        self.ahead.clear();
        self.destinations.start_pass();
    }

    /// Reads the interfaces anew.
    fn read_links(&mut self) {
        match self.kernel.links() {
            Ok(links) => {
                warn!("kernel events were lost: interfaces, neighbours and routes are read anew");
                self.links = links.into_iter().map(|link| (link.ifindex, link)).collect();
                self.link_changes += 1;
                self.outdated = false;
                self.forget_features();
                for at in self.neighbours.select(|_, _| true) {
                    self.neighbours.queue(at);
                }
                self.write_adopted();
                self.routes_changed();
            }
            Err(error) => warn!(%error, "kernel events were lost, and the interfaces could not be read"),
        }
    }

    fn retry(&mut self) {
        for at in self.neighbours.select(|_, watched| !watched.is_kept()) {
            self.neighbours.queue(at);
        }
        if self.unanswered || (self.exhausted && self.table.has_free_rows()) {
            self.unanswered = false;
            self.exhausted = false;
            self.routes_changed();
        }
    }

    /// Looks up the routes of some destinations again; returns those whose row has changed.
    fn look_up_again(&mut self, pairs: &[Pair]) -> Vec<Moved> {
        let mut moved = Vec::new();
        let Some(routes) = self.ask(pairs) else { return moved };
        for (&pair, route) in pairs.iter().zip(routes) {
            let Some(destination) = self.destinations.get(&pair) else {
                continue;
            };
            let (dst, src) = pair;
            let old = destination.row;
            let wanted = destination.adopted.then_some(old);
            if let (Some(index), Some(route)) = (wanted, route) {
                self.restore_path_mtu(dst, index, &route);
            }
            let row = self.resolve(dst, route, wanted).unwrap_or_else(|error| {
                if !self.exhausted {
                    warn!(%error, "the next-hop table is full: the kernel sends the packets of destinations without a row");
                }
                self.exhausted = true;
                UNRESOLVED
            });
            if let Some(destination) = self.destinations.get_mut(&pair) {
                (destination.row, destination.adopted) = (row, false);
            }
            if row == old {
                self.leave(row);
            } else {
                moved.push(Moved { dst, src, old, row });
            }
        }
        moved
    }

    // Path MTUs

    /// Sets the path MTU of one destination, in bytes, as an ICMP message reported it. It expires after ten minutes (RFC 1191 section 6.3).
    /// Returns the destinations that have moved, as [`NextHops::handle_events`] does.
    ///
    /// The caller has checked the message against the quoted packet. A message cannot raise an MTU (RFC 1191 section 3). For IPv4, values
    /// below 576 count as 576; for IPv6, values below 1280 are ignored. At most 65,536 destinations have a path MTU; a new one replaces the
    /// oldest.
    #[must_use]
    pub fn path_mtu(&mut self, dst: IpAddr, mtu: u32, now: Instant) -> Vec<Moved> {
        self.now = now;
        let Some(mtu) = path_mtu::acceptable(dst, mtu) else {
            return Vec::new();
        };
        let mut pairs = self.destinations.pairs_of(dst);
        let changes = match self.path_mtus.get(dst) {
            Some(before) => mtu <= before,
            None => pairs.iter().any(|pair| self.mtu(pair).is_none_or(|before| mtu < before)),
        };
        if pairs.is_empty() || !changes {
            return Vec::new();
        }
        debug!(%dst, mtu, "path MTU");
        if let Some(oldest) = self.path_mtus.set(dst, mtu, now) {
            pairs.extend(self.destinations.pairs_of(oldest));
        }
        self.look_up_again(&pairs)
    }

    /// Removes expired path MTUs, at most a thousand in one call. Returns the destinations that have moved, as [`NextHops::handle_events`]
    /// does.
    #[must_use]
    pub fn expire(&mut self, now: Instant) -> Vec<Moved> {
        self.now = now;
        let expired = self.path_mtus.expire(now, DESTINATIONS_AT_ONCE);
        let pairs: Vec<Pair> = expired.into_iter().flat_map(|dst| self.destinations.pairs_of(dst)).collect();
        self.look_up_again(&pairs)
    }

    /// Returns when [`NextHops::expire`] is due; `None` while no destination has a path MTU.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.path_mtus.next_expiry()
    }

    /// Returns the MTU of a pair's row, in bytes; `None` if unknown.
    fn mtu(&self, pair: &Pair) -> Option<u32> {
        let row = self.destinations.get(pair)?.row;
        match self.table.hop(row) {
            Some(hop) => Some(least(hop.mtu, self.links.get(&hop.ifindex)?.mtu)),
            None => self.table.content(row).map(|content| content.mtu.into()),
        }
    }

    /// Restores a path MTU that a former process may have set: an adopted row whose MTU is smaller than that of its route keeps it.
    fn restore_path_mtu(&mut self, dst: IpAddr, index: u16, route: &Route) {
        let Some(row) = self.table.content(index) else { return };
        let Some(link) = self.links.get(&route.ifindex) else { return };
        let mtu = u32::from(row.mtu);
        let smaller = mtu < least(link.mtu, route.mtu).min(u16::MAX.into());
        if smaller
            && mtu >= path_mtu::minimum(dst)
            && self.output(link) == Some((row.ifindex, row.vlan))
            && self.path_mtus.get(dst).is_none()
            && !self.path_mtus.is_full()
        {
            self.path_mtus.set(dst, mtu, self.now);
        }
    }

    /// Panics if the references are not balanced. `unsettled`: rows of moves that are not settled yet.
    #[cfg(test)]
    pub(crate) fn check(&self, unsettled: &[u16]) {
        let mut used = HashMap::new();
        for row in self
            .destinations
            .iter()
            .map(|(_, destination)| destination.row)
            .chain(unsettled.iter().copied())
        {
            *used.entry(row).or_insert(0) += 1;
        }
        self.table.check(&used);
        self.neighbours.check(|row| self.table.hop(row).map(|hop| (hop.ifindex, hop.addr)));
    }
}

/// Readable if [`NextHops::handle_events`] has something to do.
impl<R, K: AsFd> AsFd for NextHops<R, K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

/// Returns an interface and those below it, from top to bottom.
fn stack(links: &HashMap<u32, Link>, ifindex: u32) -> impl Iterator<Item = u32> {
    let parent = |one: &u32| links.get(one).and_then(|link| link.framing.parent());
    std::iter::successors(Some(ifindex), parent).take(STACKED)
}

/// Returns the smaller of two MTUs; 0 means none.
fn least(one: u32, other: u32) -> u32 {
    match (one, other) {
        (0, mtu) | (mtu, 0) => mtu,
        _ => one.min(other),
    }
}
