//! Copies of SIP messages over HEPv3, in UDP datagrams or on TCP connections, for the call state.

use crate::core::Core;
use shunt_control::Rare;
use shunt_hep::sip::Message;
use shunt_hep::{Packet, PayloadKind, next_frame};
use shunt_net::Endpoint;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// Datagrams per iteration before the loop yields.
const BURST: usize = 32;
const LARGEST: usize = 65_536;
const MOST_CONNECTIONS: usize = 64;

/// A bound socket.
pub enum Listener {
    Udp(UdpSocket),
    Tcp(TcpListener),
}

/// Receives copies from allowed addresses.
pub struct Hep {
    core: Arc<Core>,
    allow: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    rare: Mutex<Rare>,
}

impl Hep {
    #[must_use]
    pub fn new(core: Arc<Core>, allow: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            core,
            allow: Box::new(allow),
            rare: Mutex::default(),
        })
    }

    /// Serves without end.
    ///
    /// # Errors
    /// The socket has failed.
    pub async fn serve(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        match listener {
            Listener::Udp(socket) => self.serve_udp(socket).await,
            Listener::Tcp(listener) => self.serve_tcp(listener).await,
        }
    }

    async fn serve_udp(&self, socket: &UdpSocket) -> io::Result<()> {
        let mut buffer = vec![0; LARGEST];
        loop {
            socket.readable().await?;
            if self.take_burst(socket, &mut buffer) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Processes received data. Returns whether there may be more.
    fn take_burst(&self, socket: &UdpSocket, buffer: &mut [u8]) -> bool {
        for _ in 0..BURST {
            match socket.try_recv_from(buffer) {
                Ok((size, from)) => {
                    if self.allows(from) {
                        self.packet(&buffer[..size], from);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => self.warn(|| error.to_string()),
            }
        }
        true
    }

    async fn serve_tcp(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
            let (stream, from) = listener.accept().await?;
            if self.allows(from) {
                let hep = Arc::clone(self);
                tokio::spawn(async move {
                    hep.connection(stream, from).await;
                    drop(place);
                });
            }
        }
    }

    async fn connection(&self, mut stream: TcpStream, from: SocketAddr) {
        let mut buffer = Vec::with_capacity(LARGEST);
        loop {
            match stream.read_buf(&mut buffer).await {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.warn(|| format!("{from}: {error}")),
            }
            let mut done = 0;
            loop {
                match next_frame(&buffer[done..]) {
                    Ok(Some((frame, length))) => {
                        self.packet(frame, from);
                        done += length;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // The start of the next packet is unknown.
                        self.core.stats.hep_malformed.inc();
                        return self.warn(|| format!("{from}: {error}; the connection is closed"));
                    }
                }
            }
            buffer.drain(..done);
            tokio::task::yield_now().await;
        }
    }

    fn allows(&self, from: SocketAddr) -> bool {
        let allowed = (self.allow)(from.ip().to_canonical());
        if !allowed {
            self.core.stats.hep_blocked.inc();
            self.warn(|| format!("{from} is not in hep.allow"));
        }
        allowed
    }

    /// Processes one packet.
    fn packet(&self, data: &[u8], from: SocketAddr) {
        let packet = match Packet::decode(data) {
            Ok(packet) => packet,
            Err(error) => return self.malformed(from, &error),
        };
        // Keep-alives of SIP over TCP are blank.
        if packet.kind != PayloadKind::Sip || Message::is_keepalive(&packet.payload) {
            return;
        }
        let message = match Message::parse(&packet.payload) {
            Ok(message) => message,
            Err(error) => return self.malformed(from, &error),
        };
        self.core.stats.sip_messages.inc();
        if matches!(message.method(), Some(b"BYE" | b"CANCEL")) {
            self.core.stats.byes.inc();
        }
        if !is_of_a_call(&message) {
            return;
        }
        let nowhere = Endpoint::new(Ipv4Addr::UNSPECIFIED, 0);
        let (source, destination) = (packet.source.unwrap_or(nowhere), packet.destination.unwrap_or(nowhere));
        self.core.events().captures().keep_sip(source, destination, &packet, &message);
        self.core.sip(source, destination, &message);
    }

    fn malformed(&self, from: SocketAddr, error: &dyn std::fmt::Display) {
        self.core.stats.hep_malformed.inc();
        self.warn(|| format!("{from}: {error}"));
    }

    fn warn(&self, what: impl FnOnce() -> String) {
        let left_out = self
            .rare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(self.core.clock().now());
        if let Some(left_out) = left_out {
            tracing::warn!("hep: {}; {left_out} more since the last such line", what());
        }
    }
}

/// REGISTER, OPTIONS and similar requests belong to no call.
fn is_of_a_call(message: &Message) -> bool {
    let method = message.method().unwrap_or(message.cseq_method());
    [&b"INVITE"[..], b"ACK", b"BYE", b"CANCEL", b"UPDATE", b"PRACK", b"INFO", b"REFER"].contains(&method)
}
