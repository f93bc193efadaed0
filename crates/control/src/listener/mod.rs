//! Control sockets that SIP servers send commands to: udp, tcp, unix and cunix, as rtpproxy has them; udp and tcp, as rtpengine has them.

mod bind;
mod counts;
mod datagram;
mod packet_info;
mod stream;

pub use counts::Counts;

use crate::admission::{Kind, Patience};
use crate::limits::Rare;
use crate::networks::Network;
use crate::protocol::Protocol;
use counts::{Counter, Counters};
use datagram::Datagrams;
use shunt_daemon::{SocketFile, listen_unix};
use shunt_latch::Time;
use shunt_rtpproxy::framing::ControlAddress;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long commands that are being executed may take when a listener stops.
const GRACE: Duration = Duration::from_secs(1);

/// Executes commands.
pub trait Service: Send + Sync + 'static {
    /// The reply to a command, both without cookie and line end. `None`: no reply is sent; a SIP server repeats a datagram, which is then
    /// executed again. A connection without cookies is closed, because on it a reply that is missing would shift all later ones.
    ///
    /// `command` is not empty and not longer than [`Protocol::max_command`]. Commands are executed at the same time.
    fn execute(&self, command: &[u8], sender: Sender) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// What a command does to a call. Only asked for commands that have waited long.
    fn kind(&self, _command: &[u8]) -> Kind {
        Kind::Continues
    }

    /// A datagram was repeated; it is not executed.
    fn on_repetition(&self) {}

    /// A datagram is not executed because it has waited too long.
    fn on_expired(&self) {}
}

/// Where a command came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sender {
    /// `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// When a datagram reached the host; `None` for a command over a connection, where nothing tells.
    pub received: Option<Instant>,
}

impl Sender {
    fn at(peer: SocketAddr) -> Self {
        Self {
            peer: Some(peer),
            received: None,
        }
    }

    /// The sender's address; that of an IPv4 client of an IPv6 socket is an IPv4 address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip().to_canonical())
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => peer.fmt(f),
            None => f.write_str("a local client"),
        }
    }
}

/// How a control socket is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Group of the file of a Unix socket.
    pub group: String,
    /// Networks from which commands are taken over udp and tcp; `None`: from everywhere.
    pub allow: Option<Vec<Network>>,
    /// Commands executed at the same time. While there are so many, no more are read.
    pub in_flight: u32,
    /// Connections at the same time; one more is closed.
    pub connections: usize,
    /// How long a client of a unix: socket may take to send its one command, and one of another connection to send the rest of a command
    /// that it has begun, or to take a reply.
    pub command_timeout: Duration,
    /// How long senders of datagrams wait for a reply; `None`: commands are executed however long they have waited.
    pub patience: Option<Patience>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            group: "shunt".into(),
            allow: None,
            in_flight: 4096,
            connections: 1024,
            command_timeout: Duration::from_secs(5),
            patience: None,
        }
    }
}

enum Socket {
    Datagram(Datagrams),
    Tcp(TcpListener),
    /// One command per connection.
    Unix(UnixListener),
    /// Connections that stay.
    Cunix(UnixListener),
}

/// What all tasks of one listener share.
struct Context {
    address: ControlAddress,
    protocol: Protocol,
    options: Options,
    counters: Counters,
    in_flight: Arc<Semaphore>,
    start: Instant,
    lines: Mutex<HashMap<&'static str, Rare>>,
}

impl Context {
    fn now(&self) -> Time {
        Time::from(self.start.elapsed())
    }

    fn allows(&self, peer: SocketAddr) -> bool {
        let peer = peer.ip();
        let allow = self.options.allow.as_ref();
        let allowed = allow.is_none_or(|networks| networks.iter().any(|network| network.contains(peer)));
        if !allowed {
            self.counters.add(Counter::Denied);
            self.warn("denied", || format!("command from {}, which is not in allow", peer.to_canonical()));
        }
        allowed
    }

    /// A line that a hostile or broken sender could repeat for ever: of each kind one in ten seconds.
    fn warn(&self, kind: &'static str, what: impl FnOnce() -> String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = lines.entry(kind).or_default().write(self.now()) {
            tracing::warn!("control {}: {}; {left_out} more since the last such line", self.address, what());
        }
    }

    fn malformed(&self, kind: &'static str, what: impl FnOnce() -> String) {
        self.counters.add(Counter::Malformed);
        self.warn(kind, what);
    }

    /// The answer to what is no command.
    fn refusal(&self, body: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let most = self.protocol.max_command();
        if !body.trim_ascii().is_empty() && body.len() <= most {
            return None;
        }
        self.malformed("size", || {
            format!("command of {} bytes from {sender}, expected 1 to {most}", body.len())
        });
        Some(self.protocol.refusal(body.trim_ascii()))
    }

    /// Execute a command and count it.
    async fn execute(&self, service: &impl Service, command: &[u8], sender: Sender) -> Option<Vec<u8>> {
        self.counters.add(Counter::Executed);
        let reply = service.execute(command, sender).await;
        self.counters
            .add(if reply.is_some() { Counter::Answered } else { Counter::Unanswered });
        reply
    }
}

/// A control socket that is bound. The file of a Unix socket goes with it.
pub struct Listener {
    socket: Socket,
    _file: Option<SocketFile>,
    context: Arc<Context>,
}

/// What a listener has counted; it may be read while and after the listener serves.
#[derive(Clone)]
pub struct Statistics(Arc<Context>);

impl Statistics {
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0
            .counters
            .read(self.0.options.in_flight as usize - self.0.in_flight.available_permits())
    }
}

impl Listener {
    /// Bind an address. Needs the runtime.
    ///
    /// # Errors
    /// It is taken, cannot be had, or the protocol is not spoken over this kind of socket.
    pub fn bind(address: &ControlAddress, protocol: Protocol, options: Options) -> io::Result<Self> {
        let unsupported = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        protocol.check(address).map_err(unsupported)?;
        let (mut bound, mut file) = (address.clone(), None);
        let socket = match address {
            ControlAddress::Udp(asked) => {
                let socket = Datagrams::bind(*asked)?;
                bound = ControlAddress::Udp(socket.address()?);
                Socket::Datagram(socket)
            }
            ControlAddress::Tcp(asked) => {
                let listener = TcpListener::from_std(bind::tcp(*asked)?)?;
                bound = ControlAddress::Tcp(listener.local_addr()?);
                Socket::Tcp(listener)
            }
            ControlAddress::Unix(path) => Socket::Unix(unix(path, &options.group, &mut file)?),
            ControlAddress::Cunix(path) => Socket::Cunix(unix(path, &options.group, &mut file)?),
        };
        let context = Context {
            address: bound,
            protocol,
            in_flight: Arc::new(Semaphore::new(options.in_flight as usize)),
            options,
            counters: Counters::default(),
            start: Instant::now(),
            lines: Mutex::default(),
        };
        Ok(Self {
            socket,
            _file: file,
            context: Arc::new(context),
        })
    }

    /// The address as a SIP server takes it: with the port that was given for port 0.
    #[must_use]
    pub fn address(&self) -> &ControlAddress {
        &self.context.address
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics(Arc::clone(&self.context))
    }

    /// Take commands until `stop` is ready; it returns earlier only on a fault of the socket, which is logged.
    ///
    /// Commands that are being executed at the stop have a second to end.
    pub async fn serve<S: Service>(self, service: Arc<S>, stop: impl Future<Output = ()>) {
        let context = &self.context;
        match &self.socket {
            Socket::Datagram(socket) => socket.serve(context, &service, stop).await,
            Socket::Tcp(listener) => stream::serve(listener, context, &service, false, stop).await,
            Socket::Unix(listener) => stream::serve(listener, context, &service, true, stop).await,
            Socket::Cunix(listener) => stream::serve(listener, context, &service, false, stop).await,
        }
    }

    /// Wait for the commands that are being executed. Later ones do not begin: whoever asks the semaphore waits behind this.
    async fn finish(context: &Context) {
        let all = context.in_flight.acquire_many(context.options.in_flight);
        if timeout(GRACE, all).await.is_err() {
            tracing::warn!("control {}: commands are ended without a reply", context.address);
        }
    }
}

fn unix(path: &Path, group: &str, file: &mut Option<SocketFile>) -> io::Result<UnixListener> {
    let (listener, made) = listen_unix(path, group)?;
    *file = Some(made);
    UnixListener::from_std(listener)
}
