//! The server: HTTP/1.1 with JSON on a Unix socket.

mod connection;
mod error;
mod extract;
mod feed;
mod metrics;
mod peer;
mod routes;
mod socket;

pub use metrics::serve_metrics;
pub use socket::bind_unix;

use crate::admin::Admin;
use crate::log::EventLog;
use connection::Connections;
use peer::Peer;
use prometheus_client::registry::Registry;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

/// The version of the API.
pub(crate) const API: u32 = 1;

/// The socket and the limits.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub socket: PathBuf,
    pub mode: u32,
    /// The socket's group; `None`: the process's.
    pub group: Option<String>,
    /// How long the agent may take to answer.
    pub timeout: Duration,
    pub connections: usize,
    /// Streams of events or estimates at a time.
    pub followers: usize,
    /// A follower that takes nothing for so long is cut off.
    pub stall: Duration,
    /// A connection that takes nothing for so long is closed.
    pub write_timeout: Duration,
    /// A follower hears something at least so often.
    pub keepalive: Duration,
    /// Bytes of a request's body.
    pub body: usize,
}

impl ServerSettings {
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            mode: 0o660,
            group: None,
            timeout: Duration::from_secs(5),
            connections: 64,
            followers: 16,
            stall: Duration::from_secs(10),
            write_timeout: Duration::from_secs(20),
            keepalive: Duration::from_secs(15),
            body: 64 << 10,
        }
    }
}

/// Why the server cannot serve.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("admin socket {0}: {1}")]
    Socket(PathBuf, #[source] io::Error),
    #[error("admin socket {0}: another process listens on it")]
    InUse(PathBuf),
    #[error("admin socket {0}: there is something at that path that is no socket")]
    NoSocket(PathBuf),
    #[error("metrics on {0}: only a loopback address may serve without authentication")]
    NotLoopback(SocketAddr),
    #[error("metrics on {0}: {1}")]
    Metrics(SocketAddr, #[source] io::Error),
}

/// What handlers share.
pub(crate) struct Api<A> {
    admin: Arc<A>,
    log: EventLog,
    registry: Arc<Registry>,
    settings: ServerSettings,
    followers: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

/// The server, bound to its socket.
pub struct Server<A> {
    api: Arc<Api<A>>,
    listener: UnixListener,
    inode: u64,
    stop: watch::Sender<bool>,
}

impl<A: Admin> Server<A> {
    /// Bind the socket; a file that nobody listens on any more is replaced. Needs a tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be had.
    pub fn bind(settings: ServerSettings, admin: Arc<A>, log: EventLog, registry: Arc<Registry>) -> Result<Self, ServerError> {
        let path = settings.socket.clone();
        let (listener, inode) = bind_unix(&path, settings.mode, settings.group.as_deref())?;
        let listener = UnixListener::from_std(listener).map_err(|error| ServerError::Socket(path, error))?;
        let (stop, stopping) = watch::channel(false);
        let api = Arc::new(Api {
            followers: Arc::new(Semaphore::new(settings.followers)),
            admin,
            log,
            registry,
            settings,
            stopping,
        });
        Ok(Self {
            api,
            listener,
            inode,
            stop,
        })
    }

    /// Serve until `stop` is ready; then end streams, answer what was asked, for at most two seconds, and remove the socket.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServerError> {
        let path = self.api.settings.socket.clone();
        let connections = Connections::new(self.listener, self.api.settings.connections, self.api.settings.write_timeout);
        let app = routes::all(self.api).into_make_service_with_connect_info::<Peer>();
        let mut stopping = self.stop.subscribe();
        let serving = axum::serve(connections, app).with_graceful_shutdown(async move {
            // Fails only when the sender is gone, which ends serving too.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        });
        let mut serving = tokio::spawn(async move { serving.await });
        let result = tokio::select! {
            ended = &mut serving => ended,
            () = stop => {
                self.stop.send_replace(true);
                match tokio::time::timeout(Duration::from_secs(2), &mut serving).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        serving.abort();
                        Ok(Ok(()))
                    }
                }
            }
        };
        socket::remove(&path, self.inode);
        result
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| ServerError::Socket(path, error))
    }
}
