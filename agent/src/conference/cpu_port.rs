//! The CPU port of a switch as a network interface of this host: datagrams to the conferences' address come in by it, and what the agent sends
//! leaves by it, with the MAC addresses and the tag of its next hop.
//!
//! Media does not pass here: without the interface it goes on, and only RTCP, connectivity checks and template structures are missing.

use super::Conferences;
use prometheus_client::metrics::counter::Counter;
use shunt_conference::frames;
use shunt_conference::routes::{NextHop, Routes as _};
use shunt_net::{Endpoint, FiveTuple};
use shunt_packet_socket::PacketSocket;
use shunt_plane::Routes;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Frames that are read together, and for how long none is read then: who floods the conferences' address does not hold up the agent.
const AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);
/// A frame; an interface that went down.
const CHANGES: Interest = Interest::READABLE.add(Interest::ERROR);
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of a frame: what the mirror session cuts at.
const LARGEST: usize = 16_384;

#[derive(Debug, Default)]
pub struct Counts {
    pub frames: Counter,
    /// No UDP datagram, not a whole one, or with a wrong checksum.
    pub malformed: Counter,
    /// Came while there was no room for them.
    pub lost: Counter,
    pub sent: Counter,
    pub unsent: Counter,
}

/// The interface, as long as it is there; otherwise it is tried again.
pub struct CpuPort {
    interface: String,
    address: IpAddr,
    open: Mutex<Option<Arc<AsyncFd<PacketSocket>>>>,
    problem: Mutex<Option<String>>,
    pub counts: Counts,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuPort {
    #[must_use]
    pub fn new(interface: String, address: IpAddr) -> Self {
        Self {
            interface,
            address,
            open: Mutex::default(),
            problem: Mutex::new(Some("it has not been opened yet".into())),
            counts: Counts::default(),
        }
    }

    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Why nothing comes or goes by it.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        locked(&self.problem).clone()
    }

    /// Send a datagram. What does not go out is counted.
    pub fn send(&self, flow: &FiveTuple, payload: &[u8], hop: &NextHop) {
        let sent = match (&*locked(&self.open), frames::build(flow, payload, hop)) {
            (Some(socket), Some(frame)) => socket.get_ref().send(&frame),
            (None, _) => Err(io::Error::from(ErrorKind::NetworkDown)),
            (_, None) => Err(io::Error::from(ErrorKind::InvalidInput)),
        };
        match sent {
            Ok(()) => self.counts.sent.inc(),
            Err(error) => {
                tracing::debug!("data_plane.cpu_interface {}: {flow}: {error}", self.interface);
                self.counts.unsent.inc()
            }
        };
    }

    /// For ever: take what comes.
    pub async fn serve(&self, conferences: &Conferences) {
        loop {
            let error = match self.open() {
                Ok(socket) => {
                    tracing::info!("data_plane.cpu_interface {}: open", self.interface);
                    *locked(&self.problem) = None;
                    *locked(&self.open) = Some(Arc::clone(&socket));
                    let error = self.read(conferences, &socket).await;
                    *locked(&self.open) = None;
                    error
                }
                Err(error) => error,
            };
            self.gone(&error);
            tokio::time::sleep(AGAIN).await;
        }
    }

    // What replaces it is unsafe for descriptors that may close early; a PacketSocket owns its own.
    #[allow(deprecated)]
    fn open(&self) -> io::Result<Arc<AsyncFd<PacketSocket>>> {
        let socket = PacketSocket::open(&self.interface, self.address)?;
        Ok(Arc::new(AsyncFd::with_interest(socket, CHANGES)?))
    }

    fn gone(&self, error: &io::Error) {
        let hint = if error.kind() == ErrorKind::PermissionDenied {
            " (it takes CAP_NET_RAW)"
        } else {
            ""
        };
        let reason = format!("{error}{hint}");
        let mut problem = locked(&self.problem);
        if problem.as_ref() != Some(&reason) {
            tracing::error!(
                "data_plane.cpu_interface {}: {reason}; RTCP, connectivity checks and layers of conferences do not come until it is there",
                self.interface
            );
            *problem = Some(reason);
        }
    }

    /// Read until the interface is gone; the result is why.
    async fn read(&self, conferences: &Conferences, socket: &AsyncFd<PacketSocket>) -> io::Error {
        let mut buffer = vec![0; LARGEST];
        loop {
            let mut ready = match socket.ready(CHANGES).await {
                Ok(ready) => ready,
                Err(error) => return error,
            };
            for _ in 0..AT_ONCE {
                match socket.get_ref().receive(&mut buffer) {
                    Ok(Some(size)) => self.take(conferences, buffer.get(..size).unwrap_or_default()),
                    Ok(None) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => return error,
                }
            }
            self.counts.lost.inc_by(socket.get_ref().dropped().unwrap_or(0).into());
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn take(&self, conferences: &Conferences, frame: &[u8]) {
        self.counts.frames.inc();
        let Some((flow, payload)) = frames::whole_datagram(frame) else {
            self.counts.malformed.inc();
            return;
        };
        // What the mirror session brings may say which layers its stream has. Media before its source is latched comes too.
        if conferences.owns(flow.dst) && !conferences.arrived(flow.dst.port, flow.src, payload) {
            conferences.copied([frame]);
        }
    }
}

/// The routes of a switch, as they were read last.
pub type KnownRoutes = Arc<Mutex<Option<Arc<Routes>>>>;

/// How a relay address of a switch sends.
#[derive(Clone)]
pub struct Sender {
    pub port: Arc<CpuPort>,
    pub routes: KnownRoutes,
}

impl Sender {
    pub fn send(&self, from: Endpoint, to: Endpoint, payload: &[u8]) {
        let flow = FiveTuple::new(from, to);
        let routes = locked(&self.routes).clone();
        let none = || Err("the data plane has no routes of its own".to_owned());
        match routes.map_or_else(none, |routes| routes.next_hop(to.addr)) {
            Ok(hop) => self.port.send(&flow, payload, &hop),
            Err(reason) => {
                tracing::debug!("{flow}: not sent: {reason}");
                self.port.counts.unsent.inc();
            }
        }
    }
}
