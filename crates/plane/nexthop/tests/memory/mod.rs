//! A kernel and a table in memory.
#![allow(dead_code)] // No test uses all of it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shunt_nexthop::{Event, Events, Framing, Kernel, KernelError, Link, Neighbour, Route, Row, Rows};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A table of rows; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryRows(Arc<Mutex<Vec<Option<Row>>>>);

impl MemoryRows {
    /// `count`: rows, row 0 included.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; count])))
    }

    /// The indexes of the resolved rows.
    #[must_use]
    pub fn resolved(&self) -> Vec<usize> {
        lock(&self.0)
            .iter()
            .enumerate()
            .filter(|(_, row)| row.is_some())
            .map(|(index, _)| index)
            .collect()
    }
}

impl Rows for MemoryRows {
    fn write(&self, index: u32, row: Option<&Row>) {
        if let Some(place) = lock(&self.0).get_mut(index as usize) {
            *place = row.copied();
        }
    }

    fn read(&self, index: u32) -> Option<Row> {
        lock(&self.0).get(index as usize).copied().flatten()
    }
}

struct State {
    links: BTreeMap<u32, Link>,
    /// By prefix and its length; the gateway is none on a connected network.
    routes: HashMap<(IpAddr, u8), (u32, Option<IpAddr>, u32)>,
    /// Who answers on the wire.
    hosts: HashMap<(u32, IpAddr), [u8; 6]>,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
    transmits: HashMap<u32, bool>,
    events: VecDeque<Event>,
    manages: bool,
    answers: bool,
    routes_asked: usize,
}

/// A kernel with interfaces, routes, hosts on the wire and a neighbour table; clones share it. What tests change, it reports as events.
#[derive(Clone)]
pub struct MemoryKernel(Arc<Mutex<State>>);

impl Default for MemoryKernel {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            links: BTreeMap::new(),
            routes: HashMap::new(),
            hosts: HashMap::new(),
            neighbours: HashMap::new(),
            transmits: HashMap::new(),
            events: VecDeque::new(),
            manages: true,
            answers: true,
            routes_asked: 0,
        })))
    }
}

impl MemoryKernel {
    /// An Ethernet interface that is up, with address 02:00:00:00:00:`ifindex` and an MTU of 1500 bytes.
    #[must_use]
    pub fn ethernet(ifindex: u32) -> Link {
        Link {
            ifindex,
            name: format!("eth{ifindex}"),
            mac: Some([2, 0, 0, 0, 0, ifindex.to_be_bytes()[3]]),
            mtu: 1500,
            up: true,
            framing: Framing::Ethernet,
            kind: String::new(),
            controller: None,
            rx_queues: 1,
        }
    }

    /// Adds or changes an interface. One that is down loses its neighbours, except permanent ones.
    pub fn set_link(&self, link: Link) {
        let mut state = lock(&self.0);
        if !link.up {
            state.flush(link.ifindex);
        }
        state.links.insert(link.ifindex, link.clone());
        state.events.push_back(Event::Link(link));
    }

    /// Removes an interface with its routes and neighbours.
    pub fn remove_link(&self, ifindex: u32) {
        let mut state = lock(&self.0);
        state.flush(ifindex);
        state.neighbours.retain(|at, _| at.0 != ifindex);
        state.routes.retain(|_, route| route.0 != ifindex);
        state.links.remove(&ifindex);
        state.events.push_back(Event::LinkGone(ifindex));
    }

    /// Adds or changes a route. No `gateway`: a connected network. `mtu` in bytes, 0 for none.
    pub fn set_route(&self, prefix: IpAddr, length: u8, ifindex: u32, gateway: Option<IpAddr>, mtu: u32) {
        let mut state = lock(&self.0);
        state.routes.insert((prefix, length), (ifindex, gateway, mtu));
        state.events.push_back(Event::Routes);
    }

    pub fn remove_route(&self, prefix: IpAddr, length: u8) {
        let mut state = lock(&self.0);
        state.routes.remove(&(prefix, length));
        state.events.push_back(Event::Routes);
    }

    /// Sets who answers for an address on the wire. A managed neighbour follows at once.
    pub fn set_host(&self, ifindex: u32, addr: IpAddr, mac: Option<[u8; 6]>) {
        let mut state = lock(&self.0);
        match mac {
            Some(mac) => state.hosts.insert((ifindex, addr), mac),
            None => state.hosts.remove(&(ifindex, addr)),
        };
        if state.neighbours.get(&(ifindex, addr)).is_some_and(|neighbour| neighbour.managed) {
            state.resolve(ifindex, addr);
        }
    }

    /// Sets an entry of the neighbour table, or removes it, as an administrator would.
    pub fn set_neighbour(&self, ifindex: u32, addr: IpAddr, neighbour: Option<Neighbour>) {
        let mut state = lock(&self.0);
        let event = match neighbour {
            Some(neighbour) => {
                state.neighbours.insert((ifindex, addr), neighbour);
                Event::Neighbour { ifindex, addr, neighbour }
            }
            None => {
                state.neighbours.remove(&(ifindex, addr));
                Event::NeighbourGone { ifindex, addr }
            }
        };
        state.events.push_back(event);
    }

    /// The managed entries of the neighbour table.
    #[must_use]
    pub fn managed(&self) -> Vec<(u32, IpAddr)> {
        lock(&self.0)
            .neighbours
            .iter()
            .filter(|(_, neighbour)| neighbour.managed)
            .map(|(&at, _)| at)
            .collect()
    }

    /// Whether the kernel keeps neighbours resolved when asked to, as from Linux 5.16 on.
    pub fn set_manages(&self, manages: bool) {
        lock(&self.0).manages = manages;
    }

    /// Whether requests are answered.
    pub fn set_answers(&self, answers: bool) {
        lock(&self.0).answers = answers;
    }

    /// Whether an interface sends what native XDP redirects to it; not said before.
    pub fn set_transmits(&self, ifindex: u32, transmits: bool) {
        let mut state = lock(&self.0);
        state.transmits.insert(ifindex, transmits);
        state.events.push_back(Event::Features);
    }

    /// Loses the events that have not been read.
    pub fn lose_events(&self) {
        let mut state = lock(&self.0);
        state.events.clear();
        state.events.push_back(Event::Lost);
    }

    /// How many routes have been asked for.
    #[must_use]
    pub fn routes_asked(&self) -> usize {
        lock(&self.0).routes_asked
    }

    fn answering(&self) -> Result<MutexGuard<'_, State>, KernelError> {
        let state = lock(&self.0);
        if state.answers { Ok(state) } else { Err(KernelError::Timeout) }
    }

    /// The state, if interface `ifindex` is up.
    fn on(&self, ifindex: u32) -> Result<MutexGuard<'_, State>, KernelError> {
        let state = self.answering()?;
        if state.links.get(&ifindex).is_some_and(|link| link.up) {
            return Ok(state);
        }
        Err(KernelError::Rejected {
            source: io::Error::other("the interface is down"),
        })
    }
}

impl State {
    fn flush(&mut self, ifindex: u32) {
        let gone: Vec<_> = self
            .neighbours
            .iter()
            .filter(|(at, neighbour)| at.0 == ifindex && !neighbour.permanent)
            .map(|(&at, _)| at)
            .collect();
        for (ifindex, addr) in gone {
            self.neighbours.remove(&(ifindex, addr));
            self.events.push_back(Event::NeighbourGone { ifindex, addr });
        }
    }

    fn resolve(&mut self, ifindex: u32, addr: IpAddr) {
        let mac = self.hosts.get(&(ifindex, addr)).copied();
        if let Some(neighbour) = self.neighbours.get_mut(&(ifindex, addr)).filter(|neighbour| !neighbour.permanent) {
            neighbour.mac = mac;
            let neighbour = *neighbour;
            self.events.push_back(Event::Neighbour { ifindex, addr, neighbour });
        }
    }

    fn route(&self, dst: IpAddr) -> Option<Route> {
        let within = |prefix: &IpAddr, length: u8| match (prefix, dst) {
            (IpAddr::V4(prefix), IpAddr::V4(dst)) => (prefix.to_bits() ^ dst.to_bits()).leading_zeros() >= length.into(),
            (IpAddr::V6(prefix), IpAddr::V6(dst)) => (prefix.to_bits() ^ dst.to_bits()).leading_zeros() >= length.into(),
            _ => false,
        };
        let usable = |ifindex: &u32| self.links.get(ifindex).is_some_and(|link| link.up);
        let fitting = self
            .routes
            .iter()
            .filter(|((prefix, length), (ifindex, ..))| within(prefix, *length) && usable(ifindex));
        let (_, &(ifindex, gateway, mtu)) = fitting.max_by_key(|((_, length), _)| *length)?;
        Some(Route {
            ifindex,
            gateway: gateway.unwrap_or(dst),
            mtu,
        })
    }
}

impl Kernel for MemoryKernel {
    fn links(&mut self) -> Result<Vec<Link>, KernelError> {
        Ok(self.answering()?.links.values().cloned().collect())
    }

    fn routes(&mut self, wanted: &[(IpAddr, IpAddr)]) -> Result<Vec<Option<Route>>, KernelError> {
        let mut state = self.answering()?;
        state.routes_asked += wanted.len();
        Ok(wanted.iter().map(|&(dst, _)| state.route(dst)).collect())
    }

    fn neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<Option<Neighbour>, KernelError> {
        Ok(self.answering()?.neighbours.get(&(ifindex, addr)).copied())
    }

    fn manage_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError> {
        let mut state = self.on(ifindex)?;
        let managed = state.manages;
        let entry = state.neighbours.entry((ifindex, addr)).or_insert(Neighbour {
            mac: None,
            permanent: false,
            managed,
        });
        entry.managed = managed;
        if managed {
            state.resolve(ifindex, addr);
        }
        Ok(())
    }

    fn probe_neighbour(&mut self, ifindex: u32, addr: IpAddr) -> Result<(), KernelError> {
        let mut state = self.on(ifindex)?;
        state.neighbours.entry((ifindex, addr)).or_insert(Neighbour {
            mac: None,
            permanent: false,
            managed: false,
        });
        state.resolve(ifindex, addr);
        Ok(())
    }

    fn unmanage_neighbour(&mut self, ifindex: u32, addr: IpAddr, _: Option<[u8; 6]>) -> Result<(), KernelError> {
        if let Some(neighbour) = self.answering()?.neighbours.get_mut(&(ifindex, addr)) {
            neighbour.managed = false;
        }
        Ok(())
    }

    fn xdp_transmit(&mut self, ifindex: u32) -> Option<bool> {
        lock(&self.0).transmits.get(&ifindex).copied()
    }

    fn events(&mut self, limit: usize) -> Events {
        let mut state = lock(&self.0);
        let count = limit.min(state.events.len());
        Events {
            list: state.events.drain(..count).collect(),
            more: !state.events.is_empty(),
        }
    }
}
