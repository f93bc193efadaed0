//! Commands over connections, without cookies: tcp and cunix line by line, unix one command per connection.

use super::Guard;
use crate::engine::Sender;
use crate::service::Service;
use shunt_rtpproxy::framing::{MAX_COMMAND, take_line};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Connections of one listener.
const CONNECTIONS: usize = 1024;
/// How long a client of a unix socket may take to send its one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// Out of file descriptors, for instance: the next connection may do.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Places {
    places: Arc<Semaphore>,
}

impl Places {
    fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }

    fn take(&self, service: &Service, guard: &Guard) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            guard.warn(service, || format!("one connection more than {CONNECTIONS} is closed"));
        }
        place
    }
}

pub async fn serve_tcp(listener: &TcpListener, service: &Arc<Service>, guard: &Arc<Guard>) {
    let places = Places::new();
    loop {
        let accepted = listener.accept().await;
        let (stream, peer) = match accepted {
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                guard.warn(service, || format!("a connection cannot be accepted: {error}"));
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !guard.allows(service, peer) {
            continue;
        }
        let Some(place) = places.take(service, guard) else { continue };
        let _ = stream.set_nodelay(true);
        let (service, guard) = (Arc::clone(service), Arc::clone(guard));
        tokio::spawn(async move {
            let _place = place;
            let _ = lines(stream, &service, &guard, Some(peer)).await;
        });
    }
}

/// `once`: one command per connection.
pub async fn serve_unix(listener: &UnixListener, service: &Arc<Service>, guard: &Arc<Guard>, once: bool) {
    let places = Places::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                guard.warn(service, || format!("a connection cannot be accepted: {error}"));
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.take(service, guard) else { continue };
        let (service, guard) = (Arc::clone(service), Arc::clone(guard));
        tokio::spawn(async move {
            let _place = place;
            let _ = if once {
                one(stream, &service).await
            } else {
                lines(stream, &service, &guard, None).await
            };
        });
    }
}

fn execute(service: &Service, command: &[u8], peer: Option<IpAddr>) -> Vec<u8> {
    let mut reply = service.execute(command, Sender { peer, cookie: None });
    reply.push(b'\n');
    reply
}

/// Commands and replies in their order, until the client closes.
async fn lines<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, service: &Service, guard: &Guard, peer: Option<IpAddr>) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        while let Some((command, used)) = take_line(&buffer) {
            let reply = execute(service, command, peer);
            stream.write_all(&reply).await?;
            buffer.drain(..used);
        }
        if buffer.len() > MAX_COMMAND {
            // Where the next command begins is not known.
            guard.warn(service, || {
                format!("a connection with a command above {MAX_COMMAND} bytes is closed")
            });
            let reply = execute(service, &buffer, peer);
            return stream.write_all(&reply).await;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// One command in one write, with a line end or without, then the reply, then the end.
async fn one<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, service: &Service) -> io::Result<()> {
    let mut buffer = vec![0; MAX_COMMAND + 1];
    let size = timeout(COMMAND_TIMEOUT, stream.read(&mut buffer)).await??;
    if size > 0 {
        let reply = execute(service, buffer[..size].trim_ascii_end(), None);
        stream.write_all(&reply).await?;
        stream.shutdown().await?;
    }
    Ok(())
}
