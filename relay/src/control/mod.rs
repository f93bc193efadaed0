//! Control sockets: udp, tcp, unix and cunix, as rtpproxy has them.

mod bind;
mod datagram;
mod packet_info;
mod stream;

use crate::limits::Rare;
use crate::networks::Network;
use crate::service::Service;
use bind::SocketFile;
use shunt_rtpproxy::framing::ControlAddress;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, UnixListener};

/// A control socket that is bound; the file of a Unix socket goes with it.
pub enum Control {
    Datagram(datagram::Datagrams),
    Tcp(TcpListener),
    /// One command per connection.
    Unix(UnixListener, SocketFile),
    /// Connections that stay.
    Cunix(UnixListener, SocketFile),
}

/// Who may command, and lines about those who may not.
pub struct Guard {
    allow: Vec<Network>,
    rare: Mutex<Rare>,
}

impl Guard {
    #[must_use]
    pub fn new(allow: Vec<Network>) -> Self {
        Self {
            allow,
            rare: Mutex::default(),
        }
    }

    fn allows(&self, service: &Service, peer: IpAddr) -> bool {
        let allowed = self.allow.iter().any(|network| network.contains(peer));
        if !allowed {
            self.warn(service, || format!("command from {peer}, which is not in allow"));
        }
        allowed
    }

    /// A line that a hostile or broken sender could repeat for ever.
    fn warn(&self, service: &Service, what: impl FnOnce() -> String) {
        let left_out = self.rare.lock().unwrap_or_else(PoisonError::into_inner).write(service.now());
        if let Some(left_out) = left_out {
            tracing::warn!("control: {}; {left_out} more since the last such line", what());
        }
    }
}

impl Control {
    /// Bind an address. `group`: of the file of a Unix socket. Needs the runtime.
    ///
    /// # Errors
    /// It is taken, or cannot be had.
    pub fn bind(address: &ControlAddress, group: &str) -> io::Result<Self> {
        Ok(match address {
            ControlAddress::Udp(address) => Self::Datagram(datagram::Datagrams::bind(*address)?),
            ControlAddress::Tcp(address) => Self::Tcp(TcpListener::from_std(bind::tcp(*address)?)?),
            ControlAddress::Unix(path) => {
                let (listener, file) = bind::unix(path, group)?;
                Self::Unix(UnixListener::from_std(listener)?, file)
            }
            ControlAddress::Cunix(path) => {
                let (listener, file) = bind::unix(path, group)?;
                Self::Cunix(UnixListener::from_std(listener)?, file)
            }
        })
    }

    /// The address as a SIP server takes it: with the port that was given for port 0.
    #[must_use]
    pub fn address(&self, asked: &ControlAddress) -> ControlAddress {
        match (self, asked) {
            (Self::Datagram(socket), ControlAddress::Udp(asked)) => ControlAddress::Udp(socket.address().unwrap_or(*asked)),
            (Self::Tcp(listener), ControlAddress::Tcp(asked)) => ControlAddress::Tcp(listener.local_addr().unwrap_or(*asked)),
            _ => asked.clone(),
        }
    }

    /// Take commands for ever; it returns only on a fault.
    pub async fn serve(self, service: Arc<Service>, guard: Arc<Guard>) {
        match self {
            Self::Datagram(socket) => socket.serve(&service, &guard).await,
            Self::Tcp(listener) => stream::serve_tcp(&listener, &service, &guard).await,
            Self::Unix(listener, _file) => stream::serve_unix(&listener, &service, &guard, true).await,
            Self::Cunix(listener, _file) => stream::serve_unix(&listener, &service, &guard, false).await,
        }
    }
}
