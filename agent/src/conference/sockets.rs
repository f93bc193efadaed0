//! Sockets at the relay addresses of participants: there comes what the data plane leaves to the host, which is RTCP, STUN, and packets before
//! their source is latched. While a socket holds a port, nobody else gets it, and senders get no ICMP errors.

use super::Conferences;
use super::cpu_port::Sender;
use shunt_net::Endpoint;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

/// Datagrams of one socket that are read before others have their turn.
const AT_ONCE: usize = 64;
const LARGEST: usize = 2048;

/// The sockets of one leg: RTP, and RTCP one port above. Where the relay address is a switch's, its CPU port serves all of them.
pub enum LegSockets {
    Own {
        rtp: Arc<UdpSocket>,
        rtcp: Arc<UdpSocket>,
        readers: [AbortHandle; 2],
    },
    OfSwitch(Sender, Endpoint),
}

impl LegSockets {
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// A port cannot be had.
    pub fn open(conferences: &Arc<Conferences>, relay: Endpoint) -> std::io::Result<Self> {
        if let Some(sender) = conferences.cpu_port() {
            return Ok(Self::OfSwitch(sender.clone(), relay));
        }
        let open = |port: u16| -> std::io::Result<Arc<UdpSocket>> {
            let made = std::net::UdpSocket::bind(SocketAddr::new(relay.addr, port))?;
            made.set_nonblocking(true)?;
            Ok(Arc::new(UdpSocket::from_std(made)?))
        };
        let (rtp, rtcp) = (open(relay.port)?, open(relay.port + 1)?);
        let reader = |socket: &Arc<UdpSocket>, port: u16| {
            let read = read(Arc::clone(conferences), Arc::clone(socket), port);
            tokio::spawn(read).abort_handle()
        };
        let readers = [reader(&rtp, relay.port), reader(&rtcp, relay.port + 1)];
        Ok(Self::Own { rtp, rtcp, readers })
    }

    /// Send from a relay address. What the system does not take at once is lost, as anywhere on the way.
    pub fn send(&self, rtcp: bool, to: Endpoint, data: &[u8]) {
        let socket = match self {
            Self::OfSwitch(sender, relay) => {
                let from = Endpoint::new(relay.addr, relay.port + u16::from(rtcp));
                return sender.send(from, to, data);
            }
            Self::Own { rtcp: socket, .. } if rtcp => socket,
            Self::Own { rtp: socket, .. } => socket,
        };
        if let Err(error) = socket.try_send_to(data, SocketAddr::new(to.addr, to.port)) {
            tracing::debug!("RTCP, STUN or a packet again to {to}: {error}");
        }
    }
}

impl Drop for LegSockets {
    fn drop(&mut self) {
        if let Self::Own { readers, .. } = self {
            readers.iter().for_each(AbortHandle::abort);
        }
    }
}

async fn read(conferences: Arc<Conferences>, socket: Arc<UdpSocket>, port: u16) {
    while socket.readable().await.is_ok() {
        read_some(&conferences, &socket, port);
        tokio::task::yield_now().await;
    }
}

fn read_some(conferences: &Conferences, socket: &UdpSocket, port: u16) {
    let mut buffer = [0; LARGEST];
    for _ in 0..AT_ONCE {
        match socket.try_recv_from(&mut buffer) {
            Ok((size, from)) => {
                let from = Endpoint::new(from.ip().to_canonical(), from.port());
                conferences.arrived(port, from, buffer.get(..size).unwrap_or_default());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // An ICMP error of something that was sent from here.
            Err(_) => {}
        }
    }
}
