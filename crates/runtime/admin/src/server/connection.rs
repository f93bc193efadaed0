//! Connections: how many at a time, and how long one may take nothing of what is written to it.

use super::peer::Peer;
use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// After an error of accept(2), as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Connections {
    listener: UnixListener,
    free: Arc<Semaphore>,
    most: usize,
    write_timeout: Duration,
    /// More than `most` wanted to connect, and that was said.
    said: bool,
}

impl Connections {
    pub(crate) fn new(listener: UnixListener, most: usize, write_timeout: Duration) -> Self {
        Self {
            listener,
            free: Arc::new(Semaphore::new(most)),
            most,
            write_timeout,
            said: false,
        }
    }

    async fn accept_one(&mut self) -> io::Result<Option<(Connection, Peer)>> {
        let (stream, _) = self.listener.accept().await?;
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            if !self.said {
                tracing::warn!("admin API: {} connections are open; others are closed at once", self.most);
            }
            self.said = true;
            return Ok(None);
        };
        self.said = false;
        let peer = stream.peer_cred()?.into();
        let connection = Connection {
            stream,
            write_timeout: self.write_timeout,
            deadline: None,
            _permit: permit,
        };
        Ok(Some((connection, peer)))
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        loop {
            match self.accept_one().await {
                Ok(Some(accepted)) => return accepted,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("admin API: a connection cannot be accepted: {error}");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            pid: None,
        })
    }
}

/// A stream whose writes fail when the peer takes nothing for `write_timeout`.
pub(crate) struct Connection {
    stream: UnixStream,
    write_timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn watched<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.deadline = None;
            return polled;
        }
        let write_timeout = self.write_timeout;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + write_timeout)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, polled)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watched(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
