//! Commands over connections, without cookies: tcp and cunix line by line, unix one command per connection.

use super::{Context, Counter, Listener, Sender, Service};
use shunt_rtpproxy::framing::{MAX_COMMAND, take_line};
use shunt_rtpproxy::{ErrorCode, error_reply};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Out of file descriptors, for instance: the next connection may do.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that connections come to.
pub trait Accept {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next connection, and the address of a TCP client.
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
            sender: Sender { peer },
        };
        connections.spawn(async move {
            // A client that has gone takes no reply.
            let _ = if once { connection.one().await } else { connection.lines().await };
        });
    }
}

struct Connection<T, S> {
    stream: T,
    context: Arc<Context>,
    service: Arc<S>,
    sender: Sender,
}

impl<T: AsyncRead + AsyncWrite + Unpin, S: Service> Connection<T, S> {
    /// Execute a command and send the reply; returns whether there was one.
    async fn answer(&mut self, command: &[u8]) -> io::Result<bool> {
        let permit = self.context.in_flight.acquire().await.map_err(io::Error::other)?;
        let reply = if command.trim_ascii().is_empty() || command.len() > MAX_COMMAND {
            self.context.malformed("size", || {
                format!("command of {} bytes on a connection, expected 1 to {MAX_COMMAND}", command.len())
            });
            Some(error_reply(ErrorCode::SYNTAX))
        } else {
            self.context.execute(self.service.as_ref(), command, self.sender).await
        };
        let Some(mut reply) = reply else { return Ok(false) };
        reply.push(b'\n');
        self.stream.write_all(&reply).await?;
        drop(permit);
        Ok(true)
    }

    /// Commands and replies in their order, until the client closes.
    async fn lines(mut self) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            while let Some((command, used)) = take_line(&buffer) {
                if !self.answer(command).await? {
                    return Ok(());
                }
                buffer.drain(..used);
            }
            if buffer.len() > MAX_COMMAND {
                // Where the next command begins is not known: the connection is closed.
                return self.answer(&buffer).await.map(|_| ());
            }
            if self.stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    /// One command in one write, with a line end or without, then the reply, then the end.
    async fn one(mut self) -> io::Result<()> {
        let mut buffer = vec![0; MAX_COMMAND + 1];
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
        if size > 0 && self.answer(buffer[..size].trim_ascii_end()).await? {
            self.stream.shutdown().await?;
        }
        Ok(())
    }
}
