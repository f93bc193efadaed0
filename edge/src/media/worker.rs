//! The thread itself: it waits for packets, commands and the time, and gives each to the session that it is for.

use super::connections::{Connections, Most};
use super::outgoing::Outgoing;
use super::ports::Ports;
use crate::config::Edge;
use crate::model::{
    self, Answered, Connect, Create, Drops, Event, Ice, Refusal, RestartIce, SessionId, SessionSummary, SessionView, Status,
};
use crate::session::{Session, Settings, provider};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use shunt_edge_media::{Limit, Limits, local_user};
use shunt_net::Endpoint;
use shunt_rtp::{Packet, demux};
use shunt_udp::{Batch, MOST, Socket};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use str0m::IceCreds;
use str0m::config::CryptoProvider;
use str0m::net::{Protocol, Receive};
use tokio::sync::{broadcast, oneshot};

/// Bytes asked for as the receive buffer of a browsers' socket.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// Events of a round, and packets that are read of the browsers' socket in it, in batches.
const EVENTS: usize = 256;
const BATCHES: usize = 4;
/// What is read of a plain socket at a time: packets, or runs of them that the kernel has joined.
const RUNS: usize = 8;
/// Commands that wait at most.
const COMMANDS: usize = 256;
/// Addresses of one session: a browser with several paths.
const ADDRESSES: usize = 8;
/// Addresses that have shown no key are remembered so many.
const UNKNOWN_ADDRESSES: usize = 16_384;
/// A session is created from an address that is not known yet: its browser's first checks come in a burst.
const BURST: f64 = 2.0;
/// Packets of unknown addresses that are followed by checks of the edge's own, a second; sessions that are checked for one of them; and sessions whose
/// answer is waited for.
const QUESTION_RATE: f64 = 200.0;
const QUESTIONS: usize = 8;
const QUESTIONED: usize = 64;

/// What an event of epoll is about: the upper eight bits of its token. The others say which.
const KIND: u64 = 0xFF << 56;
const WAKE: u64 = 1 << 56;
const BROWSERS: u64 = 2 << 56;
const LISTENER: u64 = 3 << 56;
const CONNECTION: u64 = 4 << 56;
/// A place among the sessions, above 16 bits of place among its media descriptions.
const PLAIN: u64 = 5 << 56;

type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// What the control API asks for.
pub enum Command {
    Create(Create, Reply<Answered>),
    Offer(SessionId, String, Reply<Answered>),
    RestartIce(SessionId, RestartIce, Reply<Ice>),
    Connect(SessionId, Connect, Reply<()>),
    Delete(SessionId, Reply<()>),
    List(Reply<Vec<SessionSummary>>),
    Get(SessionId, Reply<SessionView>),
    Status(Reply<Status>),
    Stop,
}

/// The thread as others see it.
pub struct Handle {
    commands: SyncSender<Command>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Ask the thread for something.
    ///
    /// # Errors
    /// As the thread says, or it does not keep up.
    pub async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let busy = || Refusal::Unavailable("the media thread does not keep up".into());
        self.commands.try_send(command(reply)).map_err(|_| busy())?;
        let _ = self.wake.write(1);
        answer.await.map_err(|_| busy())?
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// End all sessions, and the thread.
    pub fn stop(&mut self) {
        if self.commands.send(Command::Stop).is_ok() {
            let _ = self.wake.write(1);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bind the browsers' sockets and start the thread.
///
/// # Errors
/// A socket cannot be had: the text says which.
pub fn start(edge: &Edge, events: broadcast::Sender<Event>) -> Result<Handle, (String, io::Error)> {
    let mut sockets = Vec::new();
    let mut listeners = Vec::new();
    for address in &edge.listen {
        let named = |error| (address.to_string(), error);
        let mut socket = Socket::bind(Endpoint::new(address.ip(), address.port()), RECEIVE_BUFFER).map_err(named)?;
        socket.join_runs().map_err(named)?;
        sockets.push(socket);
        if edge.tcp {
            let listener = TcpListener::bind(address).map_err(|error| (format!("{address} (TCP)"), error))?;
            listener.set_nonblocking(true).map_err(named)?;
            listeners.push(listener);
        }
    }
    let other = |error: nix::Error| ("the media thread".to_owned(), error.into());
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(other)?);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(other)?;
    epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE)).map_err(other)?;
    for (at, socket) in sockets.iter().enumerate() {
        epoll
            .add(socket, EpollEvent::new(EpollFlags::EPOLLIN, BROWSERS | at as u64))
            .map_err(other)?;
    }
    for (at, listener) in listeners.iter().enumerate() {
        epoll
            .add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER | at as u64))
            .map_err(other)?;
    }
    let provider = provider();
    let certificate = provider.dtls_provider.generate_certificate();
    let certificate = certificate.ok_or_else(|| ("a certificate".to_owned(), io::Error::other("none can be made")))?;
    let (commands, receiver) = sync_channel(COMMANDS);
    let edge = edge.clone();
    let theirs = Arc::clone(&wake);
    let run = move || {
        let worker = Worker::new(&edge, certificate, provider, sockets, listeners, epoll, theirs, receiver, events);
        worker.run();
    };
    let thread = std::thread::Builder::new().name("media".into()).spawn(run);
    let thread = thread.map_err(|error| ("the media thread".to_owned(), error))?;
    Ok(Handle {
        commands,
        wake,
        thread: Some(thread),
    })
}

/// A place for a session. `serial` tells a late timer of a session that is gone.
#[derive(Default)]
struct Slot {
    serial: u32,
    session: Option<Box<Session>>,
    /// The addresses that have shown its key, and whether by TCP.
    addresses: Vec<(SocketAddr, bool)>,
    user: String,
    scheduled: Option<Instant>,
    /// Whether it is among those that this round has touched, and whether packets wait in it.
    touched: bool,
    waiting: bool,
}

struct Worker {
    settings: Settings,
    limits: model::Limits,
    listen: Vec<SocketAddr>,
    sockets: Vec<Socket>,
    listeners: Vec<TcpListener>,
    epoll: Epoll,
    wake: Arc<EventFd>,
    commands: Receiver<Command>,
    events: broadcast::Sender<Event>,
    ports: Ports,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ids: HashMap<SessionId, usize>,
    users: HashMap<String, usize>,
    addresses: HashMap<(SocketAddr, bool), usize>,
    timers: BinaryHeap<Reverse<(Instant, usize, u32)>>,
    touched: Vec<usize>,
    limit: Limit,
    /// Limits the edge's own checks, and the sessions that the last ones were for.
    questions: Limit,
    questioned: Vec<usize>,
    connections: Connections,
    out: Outgoing,
    drops: Drops,
    from_browsers: u64,
    now: Instant,
    stopping: bool,
}

impl Worker {
    #[allow(clippy::too_many_arguments)]
    fn new(
        edge: &Edge,
        certificate: str0m::config::DtlsCert,
        crypto: Arc<CryptoProvider>,
        sockets: Vec<Socket>,
        listeners: Vec<TcpListener>,
        epoll: Epoll,
        wake: Arc<EventFd>,
        commands: Receiver<Command>,
        events: broadcast::Sender<Event>,
    ) -> Self {
        let now = Instant::now();
        let limits = &edge.limits;
        let rate = f64::from(limits.unknown_packets);
        Self {
            settings: Settings {
                certificate,
                crypto,
                candidates: edge.candidates().to_vec(),
                tcp: edge.tcp,
                media: limits.media,
                send_bitrate: limits.send_bitrate,
                receive_bitrate: limits.receive_bitrate,
                connect: limits.connect,
                consent: limits.consent,
                epoch: now,
                unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            },
            limits: model::Limits {
                sessions: limits.sessions,
                media: limits.media,
                unknown_packets: limits.unknown_packets,
                connections_per_address: limits.connections_per_address,
                connections: limits.connections,
                send_bitrate: limits.send_bitrate,
                receive_bitrate: limits.receive_bitrate,
            },
            listen: edge.listen.clone(),
            sockets,
            listeners,
            epoll,
            wake,
            commands,
            events,
            ports: Ports::new(edge.address, edge.ports),
            slots: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            users: HashMap::new(),
            addresses: HashMap::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            limit: Limit::new(Limits {
                rate,
                burst: rate * BURST,
                addresses: UNKNOWN_ADDRESSES,
            }),
            questions: Limit::new(Limits {
                rate: QUESTION_RATE,
                burst: QUESTION_RATE,
                addresses: 1,
            }),
            questioned: Vec::new(),
            connections: Connections::new(
                Most {
                    all: limits.connections,
                    of_one_address: limits.connections_per_address,
                },
                CONNECTION,
                now,
            ),
            out: Outgoing::new(edge.candidates().to_vec()),
            drops: Drops::default(),
            from_browsers: 0,
            now,
            stopping: false,
        }
    }

    /// Carry media until told to stop.
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut batch = Batch::default();
        let mut chunk = Vec::new();
        while !self.stopping {
            let count = match self.epoll.wait(&mut events, self.wait()) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => continue,
                Err(error) => {
                    tracing::error!("media thread: epoll: {error}");
                    return;
                }
            };
            self.now = Instant::now();
            for event in &events[..count] {
                let token = event.data();
                // What is left fits: it was made of such numbers.
                #[allow(clippy::cast_possible_truncation)]
                let which = (token & !KIND) as usize;
                match token & KIND {
                    WAKE => self.obey(),
                    BROWSERS => self.read_browsers(which, &mut batch),
                    PLAIN => self.read_plain(which, &mut batch),
                    LISTENER => {
                        if let Some(listener) = self.listeners.get(which) {
                            self.connections.accept(listener, which, &self.epoll, self.now, &mut self.drops);
                        }
                    }
                    CONNECTION => self.serve_connection(which as u64, event.events(), &mut chunk),
                    _ => {}
                }
                if self.out.is_full() {
                    self.flush();
                }
            }
            self.expire();
            self.settle();
            self.flush();
            self.connections.sweep(self.now, &mut self.drops);
        }
        self.end();
    }

    fn wait(&self) -> EpollTimeout {
        let Some(Reverse((at, ..))) = self.timers.peek() else {
            return EpollTimeout::from(1000u16);
        };
        let left = at.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        // At most 1000.
        #[allow(clippy::cast_possible_truncation)]
        let millis = left.as_micros().div_ceil(1000) as u16;
        EpollTimeout::from(millis)
    }

    // -- packets -------------------------------------------------------------------------------------

    fn read_browsers(&mut self, at: usize, batch: &mut Batch) {
        for _ in 0..BATCHES {
            let got = match self.sockets[at].receive(batch, MOST) {
                Ok(got) => got,
                Err(error) => {
                    tracing::debug!("browsers' socket: {error}");
                    return;
                }
            };
            for n in 0..got {
                if let Some(from) = batch.sender(n).endpoint() {
                    for packet in batch.run(n) {
                        self.browser(at, SocketAddr::new(from.addr, from.port), Protocol::Udp, packet);
                    }
                }
            }
            if got < MOST {
                return;
            }
            if self.out.is_full() {
                self.flush();
            }
        }
    }

    /// A packet of a browser; whether it is known now.
    fn browser(&mut self, at: usize, from: SocketAddr, protocol: Protocol, packet: &[u8]) -> bool {
        self.from_browsers += 1;
        let key = (from, protocol != Protocol::Udp);
        let here = self.settings.candidates.get(at).copied().unwrap_or(from);
        let known = self.addresses.get(&key).copied();
        let kind = demux(packet);
        let (slot, check) = match kind {
            Packet::Stun => {
                // Requests are for a session; a response answers a check of the edge's own.
                let Some(user) = local_user(packet) else {
                    return self.answer(known, here, from, protocol, packet) || known.is_some();
                };
                let meant = self.users.get(user).copied();
                if (known.is_none() || known != meant) && !self.limit.admits(self.now.duration_since(self.settings.epoch), from.ip()) {
                    self.drops.limited += 1;
                    return false;
                }
                let Some(slot) = meant else {
                    self.drops.unknown_user += 1;
                    return false;
                };
                let session = self.slots[slot].session.as_mut();
                let Some((session, receive)) = session.zip(Receive::new(protocol, from, here, packet).ok()) else {
                    return false;
                };
                if !session.accepts(self.now, receive) {
                    self.drops.wrong_key += 1;
                    return false;
                }
                if session.is_copy((from, here, protocol), packet) {
                    self.drops.copies += 1;
                    return false;
                }
                if known != Some(slot) {
                    self.bind(slot, key);
                }
                (slot, true)
            }
            Packet::Dtls | Packet::Rtp | Packet::Rtcp => match known {
                Some(slot) => (slot, false),
                None => {
                    self.drops.unknown_address += 1;
                    self.question(here, from, protocol, packet, kind);
                    return false;
                }
            },
            _ => {
                self.drops.unknown_address += u64::from(known.is_none());
                return known.is_some();
            }
        };
        if let (Some(session), Ok(receive)) = (self.slots[slot].session.as_mut(), Receive::new(protocol, from, here, packet)) {
            match kind {
                Packet::Rtcp => session.browser_rtcp(&self.settings, self.now, receive, packet, &mut self.out),
                _ => session.browser(&self.settings, self.now, receive, packet, check, &mut self.out),
            }
            self.touch(slot);
        }
        true
    }

    /// Media from an address that has shown no key: check it for the sessions that may have moved there.
    fn question(&mut self, here: SocketAddr, from: SocketAddr, protocol: Protocol, packet: &[u8], kind: Packet) {
        let since = self.now.duration_since(self.settings.epoch);
        // All addresses share one limit too: each check looks at all sessions.
        let everybody = IpAddr::from([0, 0, 0, 0]);
        if protocol != Protocol::Udp
            || kind == Packet::Dtls
            || !self.limit.admits(since, from.ip())
            || !self.questions.admits(since, everybody)
        {
            return;
        }
        let ssrc = (kind == Packet::Rtp)
            .then(|| packet.get(8..12)?.try_into().ok().map(u32::from_be_bytes))
            .flatten();
        let now = self.now;
        let sessions = self
            .slots
            .iter_mut()
            .enumerate()
            .filter_map(|(slot, one)| Some((slot, one.session.as_mut()?)));
        let moved = sessions.filter(|(_, session)| session.may_have_moved(&self.settings, now, from, ssrc));
        let mut asked = Vec::new();
        for (slot, session) in moved.take(QUESTIONS) {
            session.ask_address(&self.settings, now, (from, here, protocol), &mut self.out);
            self.questioned.retain(|one| *one != slot);
            self.questioned.push(slot);
            asked.push(slot);
        }
        asked.into_iter().for_each(|slot| self.touch(slot));
        let beyond = self.questioned.len().saturating_sub(QUESTIONED);
        self.questioned.drain(..beyond);
    }

    /// Whether a packet answers a check of the edge's own: the address has shown a session's key then. `known`: the session that it has shown before.
    fn answer(&mut self, known: Option<usize>, here: SocketAddr, from: SocketAddr, protocol: Protocol, packet: &[u8]) -> bool {
        let pair = (from, here, protocol);
        if let Some(session) = known.and_then(|slot| self.slots[slot].session.as_mut())
            && session.is_answer(&self.settings, self.now, pair, packet, &self.out)
        {
            known.into_iter().for_each(|slot| self.touch(slot));
            return true;
        }
        if self.questioned.is_empty() || !self.limit.admits(self.now.duration_since(self.settings.epoch), from.ip()) {
            return false;
        }
        for at in 0..self.questioned.len() {
            let slot = self.questioned[at];
            let session = self.slots.get_mut(slot).and_then(|one| one.session.as_mut());
            if session.is_some_and(|session| session.is_answer(&self.settings, self.now, pair, packet, &self.out)) {
                self.bind(slot, (from, protocol != Protocol::Udp));
                self.questioned.remove(at);
                self.touch(slot);
                return true;
            }
        }
        false
    }

    /// An address has shown a session's key: what it sends is for that session from now on.
    fn bind(&mut self, slot: usize, key: (SocketAddr, bool)) {
        if let Some(before) = self.addresses.insert(key, slot) {
            self.slots[before].addresses.retain(|one| *one != key);
        }
        let Slot { addresses, session, .. } = &mut self.slots[slot];
        if addresses.len() == ADDRESSES {
            let is_in_use = |(address, tcp): &(SocketAddr, bool)| session.as_ref().is_some_and(|session| session.is_at(*address, *tcp));
            let others = addresses.iter().position(|one| !is_in_use(one));
            let oldest = addresses.remove(others.unwrap_or_default());
            self.addresses.remove(&oldest);
        }
        addresses.push(key);
    }

    fn read_plain(&mut self, which: usize, batch: &mut Batch) {
        // The lower 16 bits.
        #[allow(clippy::cast_possible_truncation)]
        let (slot, at) = (which >> 16, usize::from(which as u16));
        let Some(session) = self.slots.get_mut(slot).and_then(|slot| slot.session.as_mut()) else {
            return;
        };
        let Some(lease) = session.lease(at) else {
            return;
        };
        let got = match lease.socket.receive(batch, RUNS) {
            Ok(got) => got,
            Err(error) => {
                tracing::debug!("plain port {}: {error}", lease.port());
                return;
            }
        };
        for n in 0..got {
            for packet in batch.run(n) {
                session.plain(&self.settings, self.now, at, batch.sender(n), packet, &mut self.out);
            }
        }
        if got > 0 {
            self.slots[slot].waiting = true;
            self.touch(slot);
        }
    }

    fn serve_connection(&mut self, id: u64, events: EpollFlags, chunk: &mut Vec<u8>) {
        if events.contains(EpollFlags::EPOLLOUT) {
            self.connections.write(&self.epoll, id);
        }
        if events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            let Some(received) = self.connections.read(id, chunk, &mut self.drops) else {
                return;
            };
            for packet in received.packets {
                if self.browser(received.listener, received.peer, Protocol::Tcp, &packet) {
                    self.connections.know(id);
                }
            }
        }
    }

    // -- sessions ------------------------------------------------------------------------------------

    fn touch(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].touched, true) {
            self.touched.push(slot);
        }
    }

    /// Sessions whose time has come.
    fn expire(&mut self) {
        while let Some(Reverse((at, slot, serial))) = self.timers.peek().copied() {
            if at > self.now {
                return;
            }
            self.timers.pop();
            let place = &mut self.slots[slot];
            if place.serial == serial && place.scheduled == Some(at) {
                place.scheduled = None;
                place.waiting = true;
                self.touch(slot);
            }
        }
    }

    /// Send what waits in the sessions that were touched, tell what has changed, and see when they are due.
    fn settle(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        for slot in &touched {
            let slot = *slot;
            let place = &mut self.slots[slot];
            place.touched = false;
            let waiting = std::mem::take(&mut place.waiting);
            let Some(session) = &mut place.session else { continue };
            if waiting {
                session.advance(&self.settings, self.now, &mut self.out);
            }
            if !session.changes.is_empty() {
                self.publish(slot);
            }
            let place = &mut self.slots[slot];
            let Some(session) = &mut place.session else { continue };
            if session.is_closed() {
                self.remove(slot);
                continue;
            }
            let due = session.due(&self.settings);
            if place.scheduled.is_none_or(|scheduled| due < scheduled) {
                place.scheduled = Some(due);
                self.timers.push(Reverse((due, slot, place.serial)));
            }
            if self.out.is_full() {
                self.flush();
            }
        }
        self.touched = touched;
        self.touched.clear();
    }

    fn publish(&mut self, slot: usize) {
        let Some(session) = &mut self.slots[slot].session else { return };
        for change in std::mem::take(&mut session.changes) {
            let (conference, participant) = (session.conference(), session.participant());
            let reason = change.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            tracing::info!("session {} ({conference}, {participant}) is {:?}{reason}", session.id, change.state);
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // Nobody has to listen.
            let _ = self.events.send(Event {
                session: session.id,
                conference: conference.to_owned(),
                participant: participant.to_owned(),
                state: change.state,
                reason: change.reason,
                time: time.as_secs_f64(),
            });
        }
    }

    /// A session is over; everything that it had is free.
    fn remove(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let Some(session) = place.session.take() else { return };
        self.ids.remove(&session.id);
        if self.users.get(&place.user) == Some(&slot) {
            self.users.remove(&place.user);
        }
        for (address, tcp) in std::mem::take(&mut place.addresses) {
            self.addresses.remove(&(address, tcp));
            if tcp {
                self.connections.close_peer(address);
            }
        }
        place.serial = place.serial.wrapping_add(1);
        place.scheduled = None;
        self.free.push(slot);
    }

    fn flush(&mut self) {
        self.out.flush(&self.sockets, &mut self.drops);
        for (peer, packet) in std::mem::take(&mut self.out.tcp) {
            self.connections.send(&self.epoll, peer, &packet, &mut self.drops);
        }
    }

    // -- commands ------------------------------------------------------------------------------------

    fn obey(&mut self) {
        let _ = self.wake.read();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
                Ok(command) => self.carry_out(command),
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// Who does not wait for the answer any more gets none.
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Create(create, reply) => {
                let result = self.create(create);
                let id = result.as_ref().ok().and_then(|answered| answered.session);
                if reply.send(result).is_err()
                    && let Some(id) = id
                {
                    // Nobody knows of it.
                    let _ = self.delete(id);
                }
            }
            Command::Offer(id, offer, reply) => {
                let _ = reply.send(self.offer(id, &offer));
            }
            Command::RestartIce(id, restart, reply) => {
                let _ = reply.send(self.restart_ice(id, &restart));
            }
            Command::Connect(id, connect, reply) => {
                let now = self.now;
                let result = self.find(id).and_then(|slot| {
                    let session = self.slots[slot].session.as_mut();
                    session.map_or(Ok(()), |session| session.connect(&connect, now))?;
                    self.slots[slot].waiting = true;
                    self.touch(slot);
                    Ok(())
                });
                let _ = reply.send(result);
            }
            Command::Delete(id, reply) => {
                let _ = reply.send(self.delete(id));
            }
            Command::List(reply) => {
                let sessions = self.slots.iter().filter_map(|slot| slot.session.as_ref());
                let _ = reply.send(Ok(sessions.map(|session| session.summary()).collect()));
            }
            Command::Get(id, reply) => {
                let view = self.find(id).and_then(|slot| {
                    let session = self.slots[slot].session.as_ref();
                    session.map(|session| session.view()).ok_or(Refusal::NotFound(id.to_string()))
                });
                let _ = reply.send(view);
            }
            Command::Status(reply) => {
                let _ = reply.send(Ok(self.status()));
            }
            Command::Stop => {}
        }
    }

    fn find(&self, id: SessionId) -> Result<usize, Refusal> {
        self.ids.get(&id).copied().ok_or_else(|| Refusal::NotFound(id.to_string()))
    }

    fn create(&mut self, create: Create) -> Result<Answered, Refusal> {
        if self.ids.len() >= self.limits.sessions {
            return Err(Refusal::Limit(format!("limits.sessions: there are {}", self.limits.sessions)));
        }
        let random = |bytes: &mut [u8]| {
            getrandom::fill(bytes).map_err(|error| Refusal::Unavailable(format!("no random numbers to be had: {error}")))
        };
        let mut bytes = [0; 16 + 4 + 8 + 16];
        random(&mut bytes)?;
        let (id, rest) = bytes.split_at(16);
        let (ssrcs, rest) = rest.split_at(4);
        let (user, password) = rest.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        let id = SessionId(number(id));
        let credentials = IceCreds {
            ufrag: format!("{:016x}", number(user)),
            pass: format!("{:032x}", number(password)),
        };
        // 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        let ssrcs = number(ssrcs) as u32;
        let (ports, now) = (self.ports.clone(), self.now);
        let mut lease = || ports.open(now);
        let (session, answered) = Session::create(&self.settings, id, credentials, ssrcs, create, now, &mut lease)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[slot].session = Some(Box::new(session));
        self.ids.insert(id, slot);
        self.adopt(slot)?;
        Ok(answered)
    }

    /// Look again at what a session has: its user name and its plain sockets.
    fn adopt(&mut self, slot: usize) -> Result<(), Refusal> {
        let place = &mut self.slots[slot];
        let Some(session) = &mut place.session else { return Ok(()) };
        if session.ufrag != place.user {
            self.users.remove(&place.user);
            self.users.insert(session.ufrag.clone(), slot);
            place.user.clone_from(&session.ufrag);
        }
        let epoll = &self.epoll;
        let mut watched = session.leases().zip(0u64..).map(|(lease, at)| {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, PLAIN | (slot as u64) << 16 | at);
            match epoll.add(&lease.socket, event) {
                Err(nix::Error::EEXIST) => epoll.modify(&lease.socket, &mut event),
                result => result,
            }
        });
        if let Some(Err(error)) = watched.find(Result::is_err) {
            drop(watched);
            self.remove(slot);
            return Err(Refusal::Unavailable(format!("a plain socket cannot be watched: {error}")));
        }
        drop(watched);
        self.touch(slot);
        Ok(())
    }

    fn offer(&mut self, id: SessionId, offer: &str) -> Result<Answered, Refusal> {
        let slot = self.find(id)?;
        let (ports, now) = (self.ports.clone(), self.now);
        let session = self.slots[slot].session.as_mut().ok_or(Refusal::NotFound(id.to_string()))?;
        let answered = session.answer(&self.settings, offer, now, &mut || ports.open(now))?;
        self.slots[slot].waiting = true;
        self.adopt(slot)?;
        Ok(answered)
    }

    fn restart_ice(&mut self, id: SessionId, restart: &RestartIce) -> Result<Ice, Refusal> {
        let slot = self.find(id)?;
        let (ports, now) = (self.ports.clone(), self.now);
        let session = self.slots[slot].session.as_mut().ok_or(Refusal::NotFound(id.to_string()))?;
        let ice = session.restart_ice(&self.settings, restart, now, &mut || ports.open(now))?;
        self.slots[slot].waiting = true;
        self.adopt(slot)?;
        Ok(ice)
    }

    fn delete(&mut self, id: SessionId) -> Result<(), Refusal> {
        let slot = self.find(id)?;
        if let Some(session) = &mut self.slots[slot].session {
            session.say_goodbye(self.now, &mut self.out);
            session.close("deleted");
        }
        self.flush();
        self.publish(slot);
        self.remove(slot);
        Ok(())
    }

    /// End all sessions.
    fn end(&mut self) {
        let ids: Vec<SessionId> = self.ids.keys().copied().collect();
        for id in ids {
            let _ = self.delete(id);
        }
    }

    fn status(&self) -> Status {
        let sessions = self.slots.iter().filter_map(|slot| slot.session.as_ref());
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.now.duration_since(self.settings.epoch).as_secs_f64(),
            listen: self.listen.clone(),
            tcp: self.settings.tcp,
            sessions: self.ids.len(),
            media: sessions.map(|session| session.leases().count()).sum(),
            connections: self.connections.len(),
            unknown_addresses: self.limit.addresses(),
            limits: self.limits,
            ports: model::Ports {
                first: self.ports.range.first,
                last: self.ports.range.last,
                used: self.ports.used(),
            },
            from_browsers: self.from_browsers,
            to_browsers: self.out.sent,
            dropped: self.drops.clone(),
        }
    }
}
