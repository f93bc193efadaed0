//! Control sockets for SIP servers: udp, tcp, unix and cunix as in rtpproxy; udp and tcp as in rtpengine.

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
use tokio::time::{timeout, timeout_at};

/// How long running commands may take after a listener stops.
const GRACE: Duration = Duration::from_secs(1);

/// Executes commands.
pub trait Service: Send + Sync + 'static {
    /// Returns the reply to a command; both have no cookie and no line end. `None`: no reply is sent. A SIP server then retransmits a
    /// datagram, which is executed again. A connection without cookies is closed, because a missing reply would shift all later ones.
    ///
    /// `command` is not empty and not longer than [`Protocol::max_command`]. Commands are executed concurrently.
    fn execute(&self, command: &[u8], sender: Sender) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// Returns a command's effect on a call.
    fn kind(&self, _command: &[u8]) -> Kind {
        Kind::Continues
    }

    /// A datagram was retransmitted; it is not executed.
    fn on_repetition(&self) {}

    /// A datagram is not executed because it has waited too long.
    fn on_expired(&self) {}
}

/// Origin of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sender {
    /// `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// When a datagram reached the host; `None` for a command over a connection, which has no timestamp.
    pub received: Option<Instant>,
}

impl Sender {
    fn at(peer: SocketAddr) -> Self {
        Self {
            peer: Some(peer),
            received: None,
        }
    }

    /// Returns the sender's address; an IPv4 client of an IPv6 socket has an IPv4 address.
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

/// Most commands under way that start calls. A relay that answers after 40 ms still gets 800 calls/s.
const BEGINS_AT_ONCE: usize = 32;

/// Settings of a control socket.
#[derive(Clone, Debug)]
pub struct Options {
    /// Group of a Unix socket's file.
    pub group: String,
    /// Networks that may send commands over udp and tcp; `None`: all.
    pub allow: Option<Vec<Network>>,
    /// Most concurrent commands. At this number no more are read.
    pub in_flight: u32,
    /// Most connections; one more is closed.
    pub connections: usize,
    /// Time for a client of a unix: socket to send its one command; on other connections, time to send the rest of a started command or to
    /// receive a reply.
    pub command_timeout: Duration,
    /// How long senders of datagrams wait for a reply; `None`: commands are executed whatever their wait.
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
    /// Connections that stay open.
    Cunix(UnixListener),
}

/// State shared by all tasks of one listener.
struct Context {
    address: ControlAddress,
    protocol: Protocol,
    options: Options,
    counters: Counters,
    in_flight: Arc<Semaphore>,
    begins: Semaphore,
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

    /// Logs a line that a hostile or broken sender could repeat without limit: one of each kind in ten seconds.
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

    /// Returns the answer to bytes that are no command.
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

    /// Executes a command and counts it. A command that starts a call waits for one of [`BEGINS_AT_ONCE`] places, so that the commands of
    /// calls under way do not wait behind it for relay and journal. Without a place in time it is not executed.
    async fn execute(&self, service: &impl Service, command: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let mut _place = None;
        if let (Some(patience), Some(received)) = (self.options.patience, sender.received)
            && service.kind(command) == Kind::Begins
        {
            let Ok(place) = timeout_at((received + patience.send(Kind::Begins)).into(), self.begins.acquire()).await else {
                self.counters.add(Counter::Expired);
                service.on_expired();
                return None;
            };
            _place = Some(place);
        }
        self.counters.add(Counter::Executed);
        let reply = service.execute(command, sender).await;
        self.counters
            .add(if reply.is_some() { Counter::Answered } else { Counter::Unanswered });
        reply
    }
}

/// A bound control socket. The file of a Unix socket is removed with it.
pub struct Listener {
    socket: Socket,
    _file: Option<SocketFile>,
    context: Arc<Context>,
}

/// Returns the listener's counters, which may be read while it serves and afterwards.
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
    /// Binds an address. Needs the tokio runtime.
    ///
    /// # Errors
    /// The address is in use or not available, or the protocol is not spoken over this kind of socket.
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
            begins: Semaphore::new(BEGINS_AT_ONCE),
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

    /// Returns the bound address in configuration syntax, with the port that was assigned for port 0.
    #[must_use]
    pub fn address(&self) -> &ControlAddress {
        &self.context.address
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics(Arc::clone(&self.context))
    }

    /// Serves commands until `stop` is ready. It returns earlier only on a fault of the socket, which is logged.
    ///
    /// Commands under way at the stop have a second to end.
    pub async fn serve<S: Service>(self, service: Arc<S>, stop: impl Future<Output = ()>) {
        let context = &self.context;
        match &self.socket {
            Socket::Datagram(socket) => socket.serve(context, &service, stop).await,
            Socket::Tcp(listener) => stream::serve(listener, context, &service, false, stop).await,
            Socket::Unix(listener) => stream::serve(listener, context, &service, true, stop).await,
            Socket::Cunix(listener) => stream::serve(listener, context, &service, false, stop).await,
        }
    }

    /// Waits for the commands under way. Later ones do not start, because they queue at the semaphore behind this.
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
