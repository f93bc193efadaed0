//! The peer of a connection, and whether the configuration lets it own the tables.

use crate::config::Owner;
use crate::sock_diag;
use nix::unistd::{Uid, User};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::server::{Connected, TlsConnectInfo};

/// The peer of one connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Distinguishes connections.
    pub connection: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Unix {
        uid: Option<u32>,
    },
    Tcp {
        /// User of a peer on this host.
        uid: Option<u32>,
    },
    /// Names in a verified certificate.
    Tls {
        names: Vec<String>,
    },
    Unknown,
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

fn connection() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

impl Peer {
    /// Returns the peer of a request.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        let extensions = request.extensions();
        if let Some(info) = extensions.get::<TlsConnectInfo<Self>>() {
            let mut peer = info.get_ref().clone();
            let names = info
                .peer_certs()
                .map(|chain| chain.iter().take(1).flat_map(|leaf| dns_names(leaf)).collect());
            if let Some(names) = names {
                peer.kind = Kind::Tls { names };
            }
            return peer;
        }
        extensions.get::<Self>().cloned().unwrap_or(Self {
            connection: 0,
            kind: Kind::Unknown,
        })
    }

    /// Returns whether one of these lets the peer read, write and own the tables.
    #[must_use]
    pub fn may_own(&self, owners: &[Owner]) -> bool {
        owners.iter().any(|owner| match (owner, &self.kind) {
            (Owner::Unix, Kind::Unix { .. }) | (Owner::Tcp, Kind::Tcp { .. }) | (Owner::Tls, Kind::Tls { .. }) => true,
            (Owner::User(name), Kind::Unix { uid: Some(uid) } | Kind::Tcp { uid: Some(uid) }) => User::from_uid(Uid::from_raw(*uid))
                .ok()
                .flatten()
                .is_some_and(|user| user.name == *name),
            (Owner::Certificate(name), Kind::Tls { names }) => names.contains(name),
            _ => false,
        })
    }
}

/// Returns the DNS names of a certificate.
fn dns_names(certificate: &[u8]) -> Vec<String> {
    let certificate = rustls_pki_types::CertificateDer::from(certificate);
    webpki::EndEntityCert::try_from(&certificate)
        .map(|certificate| certificate.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// A connection over a Unix socket or TCP.
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connected for Stream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let kind = match self {
            Self::Unix(stream) => Kind::Unix {
                uid: stream.peer_cred().ok().map(|peer| peer.uid()),
            },
            Self::Tcp(stream) => Kind::Tcp { uid: user(stream) },
        };
        Peer {
            connection: connection(),
            kind,
        }
    }
}

/// Returns the user of a TCP peer on this host.
fn user(stream: &TcpStream) -> Option<u32> {
    let (peer, local) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    if !peer.ip().is_loopback() {
        return None;
    }
    let found = sock_diag::user(peer, local);
    found
        .inspect_err(|error| tracing::warn!("whose connection {peer} is cannot be told: {error}"))
        .ok()
        .flatten()
}

macro_rules! forward {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        match $self.get_mut() {
            Stream::Unix(stream) => std::pin::Pin::new(stream).$method($($argument),*),
            Stream::Tcp(stream) => std::pin::Pin::new(stream).$method($($argument),*),
        }
    };
}

impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        forward!(self, poll_read(context, buffer))
    }
}

impl tokio::io::AsyncWrite for Stream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        forward!(self, poll_write(context, bytes))
    }

    fn poll_flush(self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
        forward!(self, poll_flush(context))
    }

    fn poll_shutdown(self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
        forward!(self, poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_by_how_they_connect() {
        let peer = |kind| Peer { connection: 1, kind };
        let unix = peer(Kind::Unix { uid: Some(0) });
        assert!(unix.may_own(&[Owner::Unix]) && unix.may_own(&[Owner::User("root".into())]));
        assert!(!unix.may_own(&[Owner::Tcp, Owner::User("nobody".into())]) && !unix.may_own(&[]));
        let local = peer(Kind::Tcp { uid: Some(0) });
        assert!(local.may_own(&[Owner::Tcp]) && local.may_own(&[Owner::User("root".into())]));
        assert!(!local.may_own(&[Owner::Unix, Owner::Tls, Owner::User("nobody".into())]));
        assert!(!peer(Kind::Tcp { uid: None }).may_own(&[Owner::Unix, Owner::User("root".into())]));
        let tls = peer(Kind::Tls {
            names: vec!["agent.example".into()],
        });
        assert!(tls.may_own(&[Owner::Certificate("agent.example".into())]) && tls.may_own(&[Owner::Tls]));
        assert!(!tls.may_own(&[Owner::Certificate("other.example".into()), Owner::Tcp]));
        assert!(!peer(Kind::Unknown).may_own(&[Owner::Unix, Owner::Tcp, Owner::Tls]));
    }
}
