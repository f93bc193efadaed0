//! The control thread's side of media: sockets are opened here and handed to a forwarding thread.

use super::counters::{PortCounters, Shared, ThreadCounters};
use super::worker::{Order, Worker};
use crate::engine::{Counts, Media, Totals};
use crate::ports::{NoPort, Ports};
use crate::session::{Session, SessionId, TO_CALLEE, TO_CALLER};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_udp::Socket;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes asked for as each media socket's receive buffer: a tenth of a second of 40 Mbit/s video.
const RECEIVE_BUFFER: usize = 512 * 1024;
/// Over how long the load is measured at least.
const MEASURED: Duration = Duration::from_secs(1);

/// What the configuration says of media.
#[derive(Clone, Copy, Debug)]
pub struct MediaSettings {
    pub threads: usize,
    /// Most packets per second of one stream; 0: no limit.
    pub packet_limit: u64,
    /// The mark of what leaves a port until a command sets another one: the octet of type of service or traffic class.
    pub tos: u8,
}

/// A forwarding thread as others see it.
struct Thread {
    orders: Sender<Order>,
    wake: Arc<EventFd>,
    totals: Arc<ThreadCounters>,
    handle: Option<JoinHandle<()>>,
}

struct Leg {
    local: Endpoint,
    /// The mark of what leaves the ports.
    tos: u8,
    sockets: [Arc<Socket>; 2],
    counters: [Arc<PortCounters>; 2],
}

/// The ports of one session.
#[derive(Default)]
struct SessionPorts {
    legs: [Option<Leg>; 2],
    /// What signalling said of each leg's party and whether it is asymmetric; it may come before the leg has its ports.
    said: [(Option<Endpoint>, bool); 2],
    /// Where each leg's party is, as it is counted in `parties`.
    parties: [Option<IpAddr>; 2],
    call_id: Arc<[u8]>,
}

/// The sockets of all sessions.
pub struct Sockets {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    ports: Ports,
    tos: u8,
    sessions: HashMap<SessionId, SessionPorts>,
    /// By call, leg and address: how many sessions say so. A party counts once, however many media lines it has.
    parties: HashMap<(Arc<[u8]>, usize, IpAddr), u32>,
    load: (Time, Duration, f64),
}

impl Sockets {
    /// Start the forwarding threads.
    ///
    /// # Errors
    /// A descriptor or a thread cannot be had.
    pub fn start(shared: &Arc<Shared>, ports: Ports, settings: MediaSettings) -> io::Result<Self> {
        let threads = (0..settings.threads.max(1)).map(|number| Thread::start(number, shared, settings.packet_limit));
        Ok(Self {
            shared: Arc::clone(shared),
            threads: threads.collect::<io::Result<_>>()?,
            ports,
            tos: settings.tos,
            sessions: HashMap::new(),
            parties: HashMap::new(),
            load: (Time::default(), Duration::ZERO, 0.0),
        })
    }

    /// Whether all threads run; one that has ended is a fault of the relay.
    #[must_use]
    pub fn are_alive(&self) -> bool {
        self.threads
            .iter()
            .all(|thread| thread.handle.as_ref().is_some_and(|handle| !handle.is_finished()))
    }

    fn order(&self, id: SessionId, order: Order) {
        let thread = usize::try_from(id.0).unwrap_or_default() % self.threads.len();
        self.threads[thread].order(order);
    }

    fn counts_of(session: &SessionPorts) -> Counts {
        let legs = |which: usize| session.legs.iter().flatten().map(move |leg| &leg.counters[which]);
        let received = |leg: usize, which: usize| session.legs[leg].as_ref().map_or(0, |leg| leg.counters[which].received.get());
        Counts {
            from_callee: received(TO_CALLEE, 0),
            from_caller: received(TO_CALLER, 0),
            relayed: legs(0).map(|counters| counters.relayed.get()).sum(),
            dropped: legs(0).map(|counters| counters.dropped.get()).sum(),
            rtcp_from_callee: received(TO_CALLEE, 1),
            rtcp_from_caller: received(TO_CALLER, 1),
        }
    }

    /// A leg's party is there now; before it was nowhere, or somewhere else.
    fn party_is(&mut self, id: SessionId, leg: usize, addr: Option<IpAddr>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let before = std::mem::replace(&mut session.parties[leg], addr);
        if before == addr {
            return;
        }
        let call_id = Arc::clone(&session.call_id);
        let mut learner = self.shared.learner();
        if let Some(addr) = addr {
            let count = self.parties.entry((Arc::clone(&call_id), leg, addr)).or_default();
            *count += 1;
            if *count == 1 {
                learner.parties.join(addr);
            }
        }
        if let Some(addr) = before {
            let key = (call_id, leg, addr);
            if let Some(count) = self.parties.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.parties.remove(&key);
                    learner.parties.leave(addr);
                }
            }
        }
    }
}

impl Thread {
    fn start(number: usize, shared: &Arc<Shared>, packet_limit: u64) -> io::Result<Self> {
        let (orders, receiver) = channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let totals = Arc::new(ThreadCounters::default());
        let worker = Worker::new(Arc::clone(shared), Arc::clone(&totals), receiver, Arc::clone(&wake), packet_limit)?;
        let handle = std::thread::Builder::new()
            .name(format!("media-{number}"))
            .spawn(move || worker.run())?;
        Ok(Self {
            orders,
            wake,
            totals,
            handle: Some(handle),
        })
    }

    fn order(&self, order: Order) {
        // A thread that has ended is noticed elsewhere: Sockets::are_alive.
        if self.orders.send(order).is_ok() {
            let _ = self.wake.write(1);
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// A random number; 0 if the system has none, then ports can be guessed but work.
fn random(_: usize) -> usize {
    getrandom::u64()
        .ok()
        .and_then(|number| usize::try_from(number).ok())
        .unwrap_or_default()
}

impl Media for Sockets {
    fn open(&mut self, now: Time, id: SessionId, call_id: &Arc<[u8]>, leg: usize, address: IpAddr) -> Result<u16, NoPort> {
        let bind = |port| {
            let socket = |port| Socket::bind(Endpoint::new(address, port), RECEIVE_BUFFER).map(Arc::new);
            Ok([socket(port)?, socket(port + 1)?])
        };
        let (port, sockets) = self.ports.open(now, address, random, bind)?;
        let session = self.sessions.entry(id).or_insert_with(|| SessionPorts {
            call_id: Arc::clone(call_id),
            ..SessionPorts::default()
        });
        let before = session.legs[leg].take();
        // A leg that has moved goes on counting.
        let counters = before.as_ref().map_or_else(Default::default, |leg| leg.counters.clone());
        let local = Endpoint::new(address, port);
        let tos = before.as_ref().map_or(self.tos, |leg| leg.tos);
        let (signalled, asymmetric) = session.said[leg];
        session.legs[leg] = Some(Leg {
            local,
            tos,
            sockets: sockets.clone(),
            counters: counters.clone(),
        });
        self.order(
            id,
            Order::Open {
                id,
                leg,
                call_id: Arc::clone(call_id),
                local,
                sockets,
                counters,
            },
        );
        self.order(
            id,
            Order::Signal {
                id,
                leg,
                signalled,
                asymmetric,
            },
        );
        if let Some(before) = before {
            self.ports.release(now, before.local.addr, before.local.port);
        }
        self.set_tos(id, leg, tos);
        Ok(port)
    }

    fn signalled(&mut self, _now: Time, session: &Session, leg: usize) {
        let said = &session.legs[leg];
        let (signalled, asymmetric) = (said.signalled, said.asymmetric);
        if let Some(session) = self.sessions.get_mut(&session.id) {
            session.said[leg] = (signalled, asymmetric);
        }
        if signalled.is_some() {
            self.party_is(session.id, leg, signalled.map(|signalled| signalled.addr));
        }
        self.order(
            session.id,
            Order::Signal {
                id: session.id,
                leg,
                signalled,
                asymmetric,
            },
        );
    }

    fn answered(&mut self, _now: Time, id: SessionId) {
        self.order(id, Order::Answered { id });
    }

    fn close(&mut self, now: Time, id: SessionId) -> Counts {
        for leg in [TO_CALLEE, TO_CALLER] {
            self.party_is(id, leg, None);
        }
        let Some(session) = self.sessions.remove(&id) else {
            return Counts::default();
        };
        self.order(id, Order::Close { id });
        for leg in session.legs.iter().flatten() {
            self.ports.release(now, leg.local.addr, leg.local.port);
        }
        Self::counts_of(&session)
    }

    fn set_tos(&mut self, id: SessionId, leg: usize, tos: u8) -> bool {
        let Some(leg) = self.sessions.get_mut(&id).and_then(|session| session.legs[leg].as_mut()) else {
            return false;
        };
        leg.tos = tos;
        leg.sockets.iter().all(|socket| socket.set_tos(tos).is_ok())
    }

    fn counts(&self, id: SessionId) -> Counts {
        self.sessions.get(&id).map(Self::counts_of).unwrap_or_default()
    }

    fn last_packet(&self, id: SessionId) -> Time {
        let legs = self.sessions.get(&id).into_iter().flat_map(|session| session.legs.iter().flatten());
        legs.flat_map(|leg| &leg.counters)
            .map(|counters| counters.last_packet())
            .max()
            .unwrap_or_default()
    }

    fn learned(&self, id: SessionId, leg: usize) -> Option<Endpoint> {
        self.sessions.get(&id)?.legs[leg].as_ref()?.counters[0].learned()
    }

    fn totals(&self) -> Totals {
        let sum = |value: fn(&ThreadCounters) -> u64| self.threads.iter().map(|thread| value(&thread.totals)).sum();
        Totals {
            received: sum(|totals| totals.received.get()),
            relayed: sum(|totals| totals.relayed.get()),
            discarded: sum(|totals| totals.discarded.get()),
        }
    }

    fn load(&mut self, now: Time) -> f64 {
        let (then, used, _) = self.load;
        let elapsed = now.since(then);
        if elapsed >= MEASURED {
            let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
                .map(Duration::from)
                .unwrap_or_default();
            self.load = (now, time, 100.0 * time.saturating_sub(used).as_secs_f64() / elapsed.as_secs_f64());
        }
        self.load.2
    }

    fn can_bind(&self, ip: IpAddr) -> bool {
        Socket::bind(Endpoint::new(ip, 0), RECEIVE_BUFFER).is_ok()
    }

    fn local_address_towards(&self, ip: IpAddr) -> Option<IpAddr> {
        Socket::local_address_towards(ip).ok()
    }
}
