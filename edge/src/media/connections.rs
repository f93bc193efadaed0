//! Browsers that come over TCP (RFC 6544, framed as RFC 4571 says).

use crate::model::Drops;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use shunt_edge_media::{Frames, head};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A connection that has shown no key is closed after so long.
const UNKNOWN: Duration = Duration::from_secs(10);
/// Octets that wait for a connection at most; packets beyond are dropped, whole.
const BACKLOG: usize = 256 * 1024;
/// Octets that are read at a time, and how often in a round.
const CHUNK: usize = 16 * 1024;
const READS: usize = 8;

/// A connection.
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    /// Which address of browsers it came to.
    listener: usize,
    frames: Frames,
    backlog: Vec<u8>,
    opened: Instant,
    known: bool,
}

/// Packets of a connection.
pub struct Received {
    pub peer: SocketAddr,
    pub listener: usize,
    pub packets: Vec<Vec<u8>>,
}

impl Received {
    /// Take what is whole; false if the rest cannot be told.
    fn take(&mut self, frames: &mut Frames, drops: &mut Drops) -> bool {
        loop {
            match frames.take() {
                Ok(Some(packet)) => self.packets.push(packet.to_vec()),
                Ok(None) => return true,
                Err(error) => {
                    tracing::debug!("connection of {}: {error}", self.peer);
                    drops.connections_broken += 1;
                    return false;
                }
            }
        }
    }
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub all: usize,
    pub of_one_address: usize,
}

/// All connections, by a number that is not used again.
pub struct Connections {
    connections: HashMap<u64, Connection>,
    by_peer: HashMap<SocketAddr, u64>,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
    most: Most,
    /// The base of the events' tokens.
    token: u64,
    swept: Instant,
}

impl Connections {
    pub fn new(most: Most, token: u64, now: Instant) -> Self {
        Self {
            connections: HashMap::new(),
            by_peer: HashMap::new(),
            by_address: HashMap::new(),
            next: 0,
            most,
            token,
            swept: now,
        }
    }

    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Take what has connected to a listener.
    pub fn accept(&mut self, listener: &TcpListener, at: usize, epoll: &Epoll, now: Instant, drops: &mut Drops) {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!("a connection cannot be accepted: {error}");
                    return;
                }
            };
            let of_address = self.by_address.get(&peer.ip()).copied().unwrap_or_default();
            if self.connections.len() >= self.most.all || of_address >= self.most.of_one_address {
                drops.connections_refused += 1;
                continue;
            }
            let id = self.next;
            let token = self.token | id;
            if stream.set_nonblocking(true).is_err()
                || stream.set_nodelay(true).is_err()
                || epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token)).is_err()
            {
                drops.connections_refused += 1;
                continue;
            }
            self.next += 1;
            *self.by_address.entry(peer.ip()).or_default() += 1;
            self.by_peer.insert(peer, id);
            let connection = Connection {
                stream,
                peer,
                listener: at,
                frames: Frames::default(),
                backlog: Vec::new(),
                opened: now,
                known: false,
            };
            self.connections.insert(id, connection);
        }
    }

    /// What has come by a connection.
    pub fn read(&mut self, id: u64, chunk: &mut Vec<u8>, drops: &mut Drops) -> Option<Received> {
        let connection = self.connections.get_mut(&id)?;
        let mut received = Received {
            peer: connection.peer,
            listener: connection.listener,
            packets: Vec::new(),
        };
        chunk.resize(CHUNK, 0);
        let mut open = true;
        for _ in 0..READS {
            match connection.stream.read(chunk) {
                Ok(0) => open = false,
                Ok(got) => {
                    connection.frames.push(&chunk[..got]);
                    open = received.take(&mut connection.frames, drops);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => open = false,
            }
            if !open {
                self.close(id);
                break;
            }
        }
        Some(received)
    }

    /// A connection has shown a session's key.
    pub fn know(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.known = true;
        }
    }

    /// Send a packet to a peer.
    pub fn send(&mut self, epoll: &Epoll, peer: SocketAddr, packet: &[u8], drops: &mut Drops) {
        let Some(id) = self.by_peer.get(&peer).copied() else {
            drops.send_failed += 1;
            return;
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(head) = head(packet).filter(|_| connection.backlog.len() + packet.len() <= BACKLOG) else {
            drops.backlog += 1;
            return;
        };
        let waits = !connection.backlog.is_empty();
        connection.backlog.extend_from_slice(&head);
        connection.backlog.extend_from_slice(packet);
        if !waits {
            self.write(epoll, id);
        }
    }

    /// Write what waits.
    pub fn write(&mut self, epoll: &Epoll, id: u64) {
        let token = self.token | id;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let waited = connection.backlog.len();
        let result = write_some(&mut connection.stream, &mut connection.backlog);
        let mut interest = EpollFlags::EPOLLIN;
        if !connection.backlog.is_empty() {
            interest |= EpollFlags::EPOLLOUT;
        }
        let changed = waited > 0 && epoll.modify(&connection.stream, &mut EpollEvent::new(interest, token)).is_err();
        if result.is_err() || changed {
            self.close(id);
        }
    }

    fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if self.by_peer.get(&connection.peer) == Some(&id) {
            self.by_peer.remove(&connection.peer);
        }
        let address = connection.peer.ip();
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Close a session's connection.
    pub fn close_peer(&mut self, peer: SocketAddr) {
        if let Some(id) = self.by_peer.get(&peer).copied() {
            self.close(id);
        }
    }

    /// Close connections that have shown no key in time.
    pub fn sweep(&mut self, now: Instant, drops: &mut Drops) {
        if now.duration_since(self.swept) < Duration::from_secs(1) {
            return;
        }
        self.swept = now;
        let late = |connection: &Connection| !connection.known && now.duration_since(connection.opened) >= UNKNOWN;
        let late: Vec<u64> = self.connections.iter().filter(|(_, one)| late(one)).map(|(id, _)| *id).collect();
        for id in late {
            drops.connections_broken += 1;
            self.close(id);
        }
    }
}

fn write_some(stream: &mut TcpStream, backlog: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    let result = loop {
        if written == backlog.len() {
            break Ok(());
        }
        match stream.write(&backlog[written..]) {
            Ok(0) => break Err(ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    backlog.drain(..written);
    result
}
