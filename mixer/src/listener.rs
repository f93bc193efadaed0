//! The control socket: a Unix socket for this host's, or TCP for those networks that may command.

use crate::config::Mixer;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::serve::IncomingStream;
use shunt_admin::bind_unix;
use shunt_control::Network;
use shunt_rtpproxy::framing::ControlAddress;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};

/// The mode of the socket's file.
const MODE: u32 = 0o660;

pub enum Bound {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Arc<[Network]>),
}

/// # Errors
/// The socket cannot be had. Needs a tokio runtime.
pub fn bind(settings: &Mixer) -> io::Result<Bound> {
    match &settings.listen {
        ControlAddress::Unix(path) | ControlAddress::Cunix(path) => {
            let (listener, _) = bind_unix(path, MODE, Some(&settings.socket_group)).map_err(io::Error::other)?;
            Ok(Bound::Unix(UnixListener::from_std(listener)?, path.clone()))
        }
        ControlAddress::Tcp(address) | ControlAddress::Udp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(Bound::Tcp(TcpListener::from_std(listener)?, settings.allow.clone().into()))
        }
    }
}

/// Who has connected over TCP.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl Bound {
    /// The file of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix(_, path) => Some(path.clone()),
            Self::Tcp(..) => None,
        }
    }

    /// # Errors
    /// The socket fails.
    pub async fn serve(self, routes: Router) -> io::Result<()> {
        match self {
            Self::Unix(listener, _) => axum::serve(listener, routes).await,
            Self::Tcp(listener, allowed) => {
                let guarded = routes.layer(from_fn(move |peer: ConnectInfo<Peer>, request: Request, next: Next| {
                    let allowed = allowed.iter().any(|network| network.contains(peer.0.0.ip()));
                    async move {
                        if allowed {
                            next.run(request).await
                        } else {
                            (StatusCode::FORBIDDEN, "commands are not taken from there (mixer.allow)\n").into_response()
                        }
                    }
                }));
                axum::serve(listener, guarded.into_make_service_with_connect_info::<Peer>()).await
            }
        }
    }
}
