//! Commands over connections: one after the other on tcp and cunix, concurrently with cookies, one per connection on unix.

use super::{Context, Counter, Listener, Sender, Service};
use crate::protocol::{Broken, Taken};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Pause after an error such as a lack of file descriptors; the next connection may succeed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A client may have at most one in this many of the concurrent commands, so that one that reads no replies does not block others.
const SHARE: usize = 8;
/// The end of a command is searched again with every piece of it. After this many searched bytes, several times what the longest command
/// takes in TCP segments, pieces are collected first. A client that sends single bytes then costs no more than another.
const SCANNED: usize = 8 << 20;
const GATHER: Duration = Duration::from_millis(2);

/// A listening socket.
pub trait Accept {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Accepts the next connection. Returns the address of a TCP client.
    async fn next(&self) -> io::Result<(Self::Stream, Option<SocketAddr>)>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    async fn next(&self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (stream, peer) = self.accept().await?;
        let _ = stream.set_nodelay(true);
        Ok((stream, Some(peer)))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    async fn next(&self) -> io::Result<(UnixStream, Option<SocketAddr>)> {
        Ok((self.accept().await?.0, None))
    }
}

/// `once`: one command per connection.
pub async fn serve<A: Accept, S: Service>(
    listener: &A,
    context: &Arc<Context>,
    service: &Arc<S>,
    once: bool,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    // Connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => return Listener::finish(context).await,
            accepted = listener.next() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                context.warn("accept", || format!("a connection cannot be accepted: {error}"));
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !peer.is_none_or(|peer| context.allows(peer)) {
            continue;
        }
        if connections.len() >= context.options.connections {
            context.counters.add(Counter::Denied);
            context.warn("connections", || {
                format!("one connection more than {} is closed", context.options.connections)
            });
            continue;
        }
        let connection = Connection {
            stream,
            context: Arc::clone(context),
            service: Arc::clone(service),
            sender: Sender { peer, received: None },
        };
        connections.spawn(async move {
            // A client that has gone reads no reply.
            let _ = if once {
                connection.one().await
            } else {
                connection.converse().await
            };
        });
    }
}

struct Connection<T, S> {
    stream: T,
    context: Arc<Context>,
    service: Arc<S>,
    sender: Sender,
}

/// An executed command. It keeps its place until the reply is written.
struct Done {
    cookie: Vec<u8>,
    reply: Option<Vec<u8>>,
    _place: OwnedSemaphorePermit,
}

impl<T: AsyncRead + AsyncWrite + Unpin, S: Service> Connection<T, S> {
    /// Serves commands and replies until the client closes.
    async fn converse(mut self) -> io::Result<()> {
        let mut commands = JoinSet::new();
        let result = self.exchange(&mut commands).await;
        // A started command is executed to its end although the client is gone, because the relay may have it already.
        while commands.join_next().await.is_some() {}
        result
    }

    async fn exchange(&mut self, commands: &mut JoinSet<Done>) -> io::Result<()> {
        let context = Arc::clone(&self.context);
        let most = if context.protocol.in_order() {
            1
        } else {
            (context.options.in_flight as usize / SHARE).max(1)
        };
        let mut input = Input::new(Arc::clone(&context), self.sender);
        loop {
            if commands.is_empty() && input.has_ended() {
                return match input.parting.take() {
                    Some(reply) => self.write(&reply).await,
                    None => Ok(()),
                };
            }
            tokio::select! {
                Some(done) = commands.join_next() => if !self.reply(done).await? {
                    return Ok(());
                },
                place = Arc::clone(&context.in_flight).acquire_owned(), if input.next.is_some() && commands.len() < most => {
                    let place = place.map_err(io::Error::other)?;
                    if let Some(Taken { cookie, body, .. }) = input.shift() {
                        commands.spawn(execute(Arc::clone(&context), Arc::clone(&self.service), self.sender, cookie, body, place));
                    }
                },
                read = input.read(&mut self.stream), if input.next.is_none() && !input.has_ended() => read?,
            }
        }
    }

    /// Writes a reply. Returns whether the connection continues.
    async fn reply(&mut self, done: Result<Done, JoinError>) -> io::Result<bool> {
        let protocol = self.context.protocol;
        if let Ok(Done {
            cookie,
            reply: Some(reply),
            _place,
        }) = done
        {
            self.write(&protocol.reply(&cookie, &reply)).await?;
            return Ok(true);
        }
        Ok(!protocol.in_order())
    }

    async fn write(&mut self, reply: &[u8]) -> io::Result<()> {
        let limit = self.context.options.command_timeout;
        let Ok(written) = timeout(limit, self.stream.write_all(reply)).await else {
            self.context.warn("slow", || {
                format!("{} does not take a reply for {limit:?}: the connection is closed", self.sender)
            });
            return Err(io::ErrorKind::TimedOut.into());
        };
        written
    }

    /// Reads one command from one write, with or without a line end, writes the reply, and closes.
    async fn one(mut self) -> io::Result<()> {
        let mut buffer = vec![0; self.context.protocol.max_command() + 1];
        let read = timeout(self.context.options.command_timeout, self.stream.read(&mut buffer)).await;
        let Ok(size) = read else {
            self.context.warn("slow", || {
                format!(
                    "a connection without a command for {:?} is closed",
                    self.context.options.command_timeout
                )
            });
            return Ok(());
        };
        let size = size?;
        if size == 0 {
            return Ok(());
        }
        let place = Arc::clone(&self.context.in_flight)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (context, service) = (Arc::clone(&self.context), Arc::clone(&self.service));
        let body = buffer[..size].trim_ascii_end().to_vec();
        let done = execute(context, service, self.sender, Vec::new(), body, place).await;
        if self.reply(Ok(done)).await? {
            self.stream.shutdown().await?;
        }
        Ok(())
    }
}

async fn execute<S: Service>(
    context: Arc<Context>,
    service: Arc<S>,
    sender: Sender,
    cookie: Vec<u8>,
    body: Vec<u8>,
    place: OwnedSemaphorePermit,
) -> Done {
    let refusal = context.refusal(&body, sender);
    let reply = match refusal {
        Some(refusal) => Some(refusal),
        None => context.execute(service.as_ref(), &body, sender).await,
    };
    Done {
        cookie,
        reply,
        _place: place,
    }
}

/// Reads commands of one client.
struct Input {
    context: Arc<Context>,
    sender: Sender,
    buffer: Vec<u8>,
    /// The first command, already removed from the buffer.
    next: Option<Taken>,
    /// When the started command must be complete.
    due: Option<Instant>,
    /// Bytes searched without finding the end of that command.
    looked_at: usize,
    ended: bool,
    /// Error message for a client whose commands cannot be separated.
    parting: Option<Vec<u8>>,
}

impl Input {
    fn new(context: Arc<Context>, sender: Sender) -> Self {
        Self {
            context,
            sender,
            buffer: Vec::new(),
            next: None,
            due: None,
            looked_at: 0,
            ended: false,
            parting: None,
        }
    }

    /// Returns whether no further command can come.
    fn has_ended(&self) -> bool {
        self.ended && self.next.is_none()
    }

    /// Takes the complete command, which the one after it replaces.
    fn shift(&mut self) -> Option<Taken> {
        let next = self.next.take();
        self.take();
        next
    }

    async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        if self.looked_at > SCANNED {
            sleep(GATHER).await;
        }
        let read = stream.read_buf(&mut self.buffer);
        let size = match self.due {
            None => read.await?,
            Some(due) => match timeout_at(due, read).await {
                Ok(size) => size?,
                Err(_) => {
                    self.context.warn("slow", || {
                        let (limit, size) = (self.context.options.command_timeout, self.buffer.len());
                        format!(
                            "{} has sent {size} bytes of a command for {limit:?}: the connection is closed",
                            self.sender
                        )
                    });
                    0
                }
            },
        };
        match size {
            0 => self.ended = true,
            _ => self.take(),
        }
        Ok(())
    }

    /// Removes the first command from the buffer, if it is complete.
    fn take(&mut self) {
        if self.ended {
            return;
        }
        match self.context.protocol.take(&self.buffer) {
            Ok(Some(taken)) => {
                self.buffer.drain(..taken.used);
                (self.next, self.due, self.looked_at) = (Some(taken), None, 0);
            }
            Ok(None) if self.buffer.is_empty() => {}
            Ok(None) => {
                self.looked_at += self.buffer.len();
                let limit = self.context.options.command_timeout;
                self.due.get_or_insert_with(|| Instant::now() + limit);
            }
            Err(Broken { reason, reply }) => {
                (self.ended, self.parting) = (true, reply);
                self.context
                    .malformed("framing", || format!("{reason} from {}: the connection is closed", self.sender));
            }
        }
    }
}
