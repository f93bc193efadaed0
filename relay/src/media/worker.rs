//! A thread that forwards the packets of its sessions.

use super::counters::{PortCounters, Shared, ThreadCounters};
use super::port::{Port, held_bytes};
use crate::session::SessionId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use shunt_latch::{Component, Facts, Name, Names, Packet, Policy, Time, Verdict};
use shunt_net::Endpoint;
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Sockets that are served before orders get their turn.
const EVENTS: usize = 256;
/// A socket that was served less than this ago may hold several packets; any other is read once, since finding out that it is empty costs more
/// than being told again in the rare case that it is not.
const CLOSE: Duration = Duration::from_millis(2);
/// The event of the orders' descriptor.
pub const WAKE: u64 = u64::MAX;

/// What the control thread asks for.
#[derive(Debug)]
pub enum Order {
    /// A leg has these RTP and RTCP sockets, new or in place of others. What signalling said of it follows.
    Open {
        id: SessionId,
        leg: usize,
        call_id: Arc<[u8]>,
        local: Endpoint,
        sockets: [Arc<Socket>; 2],
        counters: [Arc<PortCounters>; 2],
    },
    /// Signalling named the leg's party (again).
    Signal {
        id: SessionId,
        leg: usize,
        signalled: Option<Endpoint>,
        asymmetric: bool,
    },
    Answered {
        id: SessionId,
    },
    Close {
        id: SessionId,
    },
    Stop,
}

type Pair = [usize; 2];

/// A slot for a port. `generation` tells a late event of a port that is gone.
#[derive(Default)]
struct Slot {
    generation: u32,
    port: Option<Box<Port>>,
}

/// The state of the thread.
pub struct Worker {
    shared: Arc<Shared>,
    totals: Arc<ThreadCounters>,
    orders: Receiver<Order>,
    wake: Arc<EventFd>,
    epoll: Epoll,
    slots: Vec<Slot>,
    free: Vec<usize>,
    sessions: HashMap<SessionId, [Option<Pair>; 2]>,
    batch: Batch,
    packet_limit: u64,
    /// The learner's, which does not change while the relay runs.
    policy: Policy,
    now: Time,
}

impl Worker {
    /// # Errors
    /// epoll cannot be had.
    pub fn new(
        shared: Arc<Shared>,
        totals: Arc<ThreadCounters>,
        orders: Receiver<Order>,
        wake: Arc<EventFd>,
        packet_limit: u64,
    ) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let policy = shared.learner().policy;
        Ok(Self {
            shared,
            totals,
            orders,
            wake,
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            sessions: HashMap::new(),
            batch: Batch::default(),
            packet_limit,
            policy,
            now: Time::default(),
        })
    }

    /// Forward until told to stop.
    pub fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => continue,
                Err(error) => {
                    tracing::error!("media thread: epoll: {error}");
                    return;
                }
            };
            self.now = self.shared.now();
            // Orders first: who has read the reply to a command may have sent already.
            if events[..count].iter().any(|event| event.data() == WAKE) && !self.obey() {
                return;
            }
            for event in events[..count].iter().filter(|event| event.data() != WAKE) {
                self.serve(event.data());
            }
        }
    }

    // -- orders --------------------------------------------------------------------------------------

    /// Carry out the orders; false at the end.
    fn obey(&mut self) -> bool {
        let _ = self.wake.read();
        loop {
            match self.orders.try_recv() {
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Open {
                id,
                leg,
                call_id,
                local,
                sockets,
                counters,
            } => self.open(id, leg, &call_id, local, sockets, counters),
            Order::Signal {
                id,
                leg,
                signalled,
                asymmetric,
            } => {
                if let Some(pair) = self.pair(id, leg) {
                    self.signal(pair, signalled, asymmetric);
                }
            }
            Order::Answered { id } => {
                let now = self.now;
                for at in self
                    .sessions
                    .get(&id)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .flatten()
                    .copied()
                    .collect::<Vec<_>>()
                {
                    self.with(at, |port| port.latch.answer_seen(now));
                }
            }
            Order::Close { id } => {
                for pair in self.sessions.remove(&id).into_iter().flatten().flatten() {
                    self.close(pair);
                }
            }
            Order::Stop => {}
        }
    }

    fn pair(&self, id: SessionId, leg: usize) -> Option<Pair> {
        self.sessions.get(&id)?[leg]
    }

    fn with<T>(&mut self, at: usize, change: impl FnOnce(&mut Port) -> T) -> Option<T> {
        self.slots.get_mut(at)?.port.as_deref_mut().map(change)
    }

    fn open(
        &mut self,
        id: SessionId,
        leg: usize,
        call_id: &Arc<[u8]>,
        local: Endpoint,
        sockets: [Arc<Socket>; 2],
        counters: [Arc<PortCounters>; 2],
    ) {
        let before = self.pair(id, leg);
        let other = self.pair(id, 1 - leg);
        let mut pair = [0; 2];
        for (n, (socket, counters)) in sockets.into_iter().zip(counters).enumerate() {
            let component = if n == 0 { Component::Rtp } else { Component::Rtcp };
            let local = Endpoint::new(local.addr, local.port + u16::from(n == 1));
            let mut port = Port::new(socket, counters, component, Arc::clone(call_id), local, self.packet_limit);
            if let Some(former) = self.shared.formers().remove(&(local.addr, local.port)) {
                port.latch.keep_out(self.now, &self.policy, former);
            }
            port.opposite = other.map(|other| other[n]);
            pair[n] = self.place(port);
            if let Some(other) = other {
                self.with(other[n], |opposite| opposite.opposite = Some(pair[n]));
            }
        }
        self.with(pair[0], |port| port.sibling = Some(pair[1]));
        self.with(pair[1], |port| port.sibling = Some(pair[0]));
        self.sessions.entry(id).or_default()[leg] = Some(pair);
        if let Some(before) = before {
            self.close(before);
            for at in pair {
                self.with(at, |port| port.counters.set_learned(None));
            }
        }
    }

    /// Put a port into a free slot and watch it.
    fn place(&mut self, port: Port) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        let token = u64::from(slot.generation) << 32 | at as u64;
        if let Err(error) = self.epoll.add(&*port.socket, EpollEvent::new(EpollFlags::EPOLLIN, token)) {
            tracing::error!(
                "{}: port {} cannot be watched: {error}",
                port.call_id.escape_ascii(),
                port.local.port
            );
        }
        slot.port = Some(Box::new(port));
        at
    }

    /// Stop watching a pair; the stream that its ports had is noted for the next call at them.
    fn close(&mut self, pair: Pair) {
        for at in pair {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            let Some(mut port) = slot.port.take() else { continue };
            slot.generation = slot.generation.wrapping_add(1);
            let _ = self.epoll.delete(&*port.socket);
            port.held.clear(held_bytes(&self.totals));
            port.outgoing.take(held_bytes(&self.totals));
            if let Some(former) = port.latch.former() {
                self.shared.formers().insert((port.local.addr, port.local.port), former);
            }
            self.free.push(at);
            if let Some(opposite) = port.opposite {
                self.with(opposite, |other| other.opposite = other.opposite.filter(|place| *place != at));
            }
        }
    }

    /// The party's U or L named this address, or none: then that stays as it is.
    fn signal(&mut self, pair: Pair, signalled: Option<Endpoint>, asymmetric: bool) {
        let rtp = self.with(pair[0], |port| port.latch.learned()).flatten();
        let next = signalled.and_then(|endpoint| Some(Endpoint::new(endpoint.addr, endpoint.port.checked_add(1)?)));
        self.signal_port(pair[0], signalled, asymmetric, None);
        self.signal_port(pair[1], next, asymmetric, rtp.map(|rtp| rtp.addr));
        if let Some(rtp) = rtp {
            self.rtp_learned(pair[1], rtp);
        }
    }

    fn signal_port(&mut self, at: usize, signalled: Option<Endpoint>, asymmetric: bool, also: Option<IpAddr>) {
        let now = self.now;
        let names: Names = signalled.map(Name::from).into_iter().chain(also.map(Name::address)).collect();
        let names = self.shared.learner().nameable(names);
        self.with(at, |port| {
            if asymmetric != port.asymmetric {
                port.asymmetric = asymmetric;
                port.latch.set_asymmetric(asymmetric);
                port.forget_source();
                port.counters.set_learned(None);
                if asymmetric && port.signalled.is_some() {
                    port.send_to(port.signalled);
                }
            }
            let Some(signalled) = signalled else { return };
            let before = port.signalled.replace(signalled);
            port.latch.signal(now, names);
            let learned = port.latch.learned();
            if before == Some(signalled) && port.has_remote() && !asymmetric {
                return;
            }
            // A party that was where it said it was is sent to where it says it is now; one behind a NAT has to be learned.
            let moves = before.is_some_and(|before| learned.is_some_and(|learned| learned.addr == before.addr));
            if asymmetric || learned.is_none() || moves {
                port.send_to(Some(signalled));
            }
        });
    }

    /// The party's RTP comes from there: its RTCP may too, and until that comes is thought to use the next port.
    fn rtp_learned(&mut self, at: usize, rtp: Endpoint) {
        let (now, policy) = (self.now, self.policy);
        self.with(at, |port| {
            port.latch.add_name(Name::address(rtp.addr));
            let learned = port.latch.learned();
            let signalled_there = port.signalled.is_some_and(|signalled| signalled.addr == rtp.addr);
            if port.asymmetric || learned.is_some_and(|learned| learned.addr == rtp.addr) || (signalled_there && learned.is_none()) {
                return;
            }
            port.latch.forget(now, &policy, false);
            port.forget_source();
            if let Some(next) = rtp.port.checked_add(1) {
                port.send_to(Some(Endpoint::new(rtp.addr, next)));
            }
        });
    }

    // -- packets -------------------------------------------------------------------------------------

    /// Take what has arrived at a port.
    fn serve(&mut self, token: u64) {
        // The low half of a token is a place in the slots, the high half its generation.
        #[allow(clippy::cast_possible_truncation)]
        let (at, generation) = ((token & u64::from(u32::MAX)) as usize, (token >> 32) as u32);
        let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.generation == generation) else {
            return;
        };
        let Some(mut port) = slot.port.take() else { return };
        let most = if self.now.since(port.last_packet) < CLOSE { MOST } else { 1 };
        match port.socket.receive(&mut self.batch, most) {
            Ok(got) => self.handle(&mut port, got),
            Err(error) => tracing::debug!("port {}: {error}", port.local.port),
        }
        self.slots[at].port = Some(port);
    }

    fn handle(&mut self, port: &mut Port, got: usize) {
        let mut at = 0;
        while at < got {
            if *self.batch.sender(at) == port.source {
                let end = (at + 1..got).find(|next| *self.batch.sender(*next) != port.source).unwrap_or(got);
                self.forward(port, at..end);
                at = end;
            } else {
                self.unknown(port, at);
                at += 1;
            }
        }
    }

    /// Packets of the party go out of the opposite port.
    fn forward(&mut self, port: &mut Port, range: Range<usize>) {
        self.aim(port);
        if let Some(media) = port.read(self.batch.packet(range.end - 1)) {
            port.latch.sync(self.now, &self.policy, media);
        }
        let allowed = port.admit(self.now, range.len(), &self.totals);
        let range = range.start..range.start + allowed;
        if self
            .opposite(port)
            .is_some_and(|out| out.outgoing.waits(self.now) || !out.outgoing.is_empty())
        {
            return range.for_each(|at| self.wait(port, at));
        }
        let Some(out) = self.opposite(port) else {
            port.drop(allowed, &self.totals);
            return;
        };
        // Counted before it is sent: who has the packet may ask for the count at once.
        port.counters.relayed.add(allowed as u64);
        self.totals.relayed.add(allowed as u64);
        let refused = allowed - out.send(&self.batch, range);
        if refused > 0 {
            port.counters.relayed.set(port.counters.relayed.get() - refused as u64);
            self.totals.relayed.set(self.totals.relayed.get() - refused as u64);
            port.drop(refused, &self.totals);
        }
    }

    /// The opposite port's party is not latched: send to the only source there is, if nothing speaks against it.
    fn aim(&mut self, port: &Port) {
        let Some(out) = port.opposite.and_then(|at| self.slots.get_mut(at)?.port.as_deref_mut()) else {
            return;
        };
        if out.component == Component::Rtcp || out.asymmetric || out.latch.learned().is_some() {
            return;
        }
        let Some(source) = out.latch.tentative(&self.policy, self.now) else {
            return;
        };
        if out.remote == Address::from(source) {
            return;
        }
        out.send_to(Some(source));
        out.outgoing.end();
        for waited in out.outgoing.take(held_bytes(&self.totals)) {
            deliver(&self.totals, port, out, &waited);
        }
    }

    /// A packet for a party that is being learned. What waited too long, and all after it, goes to the signalled address.
    fn wait(&mut self, port: &Port, at: usize) {
        let Some(out) = port.opposite.and_then(|at| self.slots.get_mut(at)?.port.as_deref_mut()) else {
            return;
        };
        let packet = self.batch.packet(at);
        if out.outgoing.waits(self.now) {
            if let Some(oldest) = out.outgoing.hold(packet, held_bytes(&self.totals)) {
                deliver(&self.totals, port, out, &oldest);
            }
            return;
        }
        for waited in out.outgoing.take(held_bytes(&self.totals)) {
            deliver(&self.totals, port, out, &waited);
        }
        deliver(&self.totals, port, out, packet);
    }

    /// Send what waits for this port's party to where the party is, as far as is known now.
    fn send_waiting(&self, port: &mut Port) {
        port.outgoing.end();
        if port.outgoing.is_empty() {
            return;
        }
        let packets = port.outgoing.take(held_bytes(&self.totals));
        if let Some(from) = port.opposite.and_then(|at| self.slots.get(at)?.port.as_deref()) {
            for packet in packets {
                deliver(&self.totals, from, port, &packet);
            }
        }
    }

    /// The party's RTCP comes from an address that is its own but not alone its own: the SSRC of its RTP tells it from its neighbours.
    fn is_rtcp_of_party(&self, port: &Port, packet: &Packet) -> bool {
        let rtp = port.sibling.and_then(|at| self.slots.get(at)?.port.as_deref());
        let Some(rtp) = rtp.filter(|_| port.component == Component::Rtcp) else {
            return false;
        };
        let same_address = rtp.latch.learned().is_some_and(|learned| learned.addr == packet.source.addr);
        same_address && rtp.latch.ssrc().is_some() && rtp.latch.ssrc() == packet.media.map(|media| media.ssrc)
    }

    /// The port that the party's packets leave by, if it is known where to.
    fn opposite(&self, port: &Port) -> Option<&Port> {
        self.slots.get(port.opposite?)?.port.as_deref().filter(|out| out.has_remote())
    }

    /// A packet of another source than the party's.
    fn unknown(&mut self, port: &mut Port, at: usize) {
        let Some(source) = self.batch.sender(at).endpoint() else {
            port.ignore(&self.totals);
            return;
        };
        if port.asymmetric {
            if port.signalled.is_some_and(|signalled| signalled.addr == source.addr) {
                port.source = *self.batch.sender(at);
                self.forward(port, at..at + 1);
            } else {
                port.ignore(&self.totals);
            }
            return;
        }
        let packet = Packet {
            at: self.now,
            source,
            media: port.read(self.batch.packet(at)),
        };
        let facts = Facts {
            last_packet: port.last_packet,
            sequence: None,
        };
        let out = port.opposite.and_then(|at| self.slots.get(at)?.port.as_deref());
        let elsewhere = out.is_some_and(|out| out.latch.has_met(&self.policy, &packet));
        let verdict = self
            .shared
            .learner()
            .observe(&mut port.latch, elsewhere, port.local.port, &packet, Some(facts));
        self.follow(port);
        // Packets of a party that signalling names are passed on before it is latched: only where its packets go to has to wait.
        let early = port.latch.learned().is_none() && port.latch.names_address(source.addr);
        if verdict == Verdict::Waiting && port.latch.learned().is_none() {
            if self.is_rtcp_of_party(port, &packet) {
                port.latch.adopt(self.now, source, packet.media);
                return self.learn(port, at, source);
            }
            // Strangers delay nothing: the party may well be where it said.
            if early && port.signalled != Some(source) {
                port.outgoing.begin(self.now);
            }
        } else if verdict == Verdict::Contested {
            self.send_waiting(port);
        }
        match verdict {
            Verdict::Latched | Verdict::Moved | Verdict::Restored => self.learn(port, at, source),
            Verdict::Known => {
                // A source that does not stay put.
                if port.source != Address::default() && port.latch.is_latched_to(source) {
                    port.source = *self.batch.sender(at);
                    port.send_to(Some(source));
                }
                self.forward(port, at..at + 1);
            }
            Verdict::Waiting if early => self.forward(port, at..at + 1),
            Verdict::Waiting | Verdict::Ask | Verdict::Contested => {
                let fast = port.contest.count(self.now, source);
                if fast && verdict == Verdict::Contested {
                    if port.contest.choose(self.now, source) {
                        port.send_to(Some(source));
                    }
                    self.release(port, at, source);
                } else {
                    port.held.hold(self.now, source, self.batch.packet(at), held_bytes(&self.totals));
                }
            }
            Verdict::Ignored(_) => port.ignore(&self.totals),
        }
    }

    /// A latch that has lost its source: its packets are no party's any more, and go to nobody but whom signalling names.
    fn follow(&self, port: &mut Port) {
        if port.source != Address::default() && port.latch.learned().is_none() {
            port.forget_source();
            port.send_to(port.signalled);
            port.outgoing.end();
            port.counters.set_learned(None);
        }
    }

    /// The sender of a packet is the party from now on.
    fn learn(&mut self, port: &mut Port, at: usize, source: Endpoint) {
        port.contest.clear();
        port.source = *self.batch.sender(at);
        port.send_to(Some(source));
        self.send_waiting(port);
        port.counters.set_learned(Some(source));
        tracing::info!(call_id = %port.call_id.escape_ascii(), "port {}: source {source} learned", port.local.port);
        if let (Some(sibling), Component::Rtp) = (port.sibling, port.component) {
            self.rtp_learned(sibling, source);
        }
        self.release(port, at, source);
    }

    /// Forward what was held back of a source, and the packet itself.
    fn release(&mut self, port: &mut Port, at: usize, source: Endpoint) {
        if !port.held.is_empty() {
            for packet in port.held.release(self.now, source, held_bytes(&self.totals)) {
                self.forward_held(port, &packet);
            }
        }
        self.forward(port, at..at + 1);
    }

    fn forward_held(&self, port: &mut Port, packet: &[u8]) {
        if port.admit(self.now, 1, &self.totals) == 0 {
            return;
        }
        match self.opposite(port) {
            Some(out) if out.socket.send_one(packet, &out.remote).is_ok() => {
                port.counters.relayed.add(1);
                self.totals.relayed.add(1);
            }
            _ => port.drop(1, &self.totals),
        }
    }
}

/// Send a packet that waited out of a port, and count it at the port that received it.
fn deliver(totals: &ThreadCounters, from: &Port, out: &Port, packet: &[u8]) {
    if out.has_remote() && out.socket.send_one(packet, &out.remote).is_ok() {
        from.counters.relayed.add(1);
        totals.relayed.add(1);
    } else {
        from.drop(1, totals);
    }
}
