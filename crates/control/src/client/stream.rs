//! Commands over tcp and cunix: one connection, commands pipelined, replies in order.
//!
//! Without cookies the order is all there is: after a time-out the connection is closed and every command on it fails, so that a reply can
//! never go to the wrong command.

use super::state::State;
use super::{Plan, RelayError, is_info, one_line, without_line_end};
use shunt_rtpproxy::framing::{ControlAddress, MAX_REPLY, reply_length};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Commands that wait for the connection's task.
const QUEUE: usize = 1024;

type Answer = Result<Vec<u8>, String>;

/// A command, and who waits for its reply.
struct Item {
    line: Vec<u8>,
    reply: oneshot::Sender<Answer>,
}

struct Connection {
    items: mpsc::Sender<Item>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Replies that are still waited for fail with it.
        self.task.abort();
    }
}

pub struct Stream {
    state: Arc<State>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Stream {
    pub fn new(state: Arc<State>) -> Self {
        Self {
            state,
            connection: Mutex::default(),
        }
    }

    pub async fn exchange(&self, command: &[u8], plan: Plan) -> Result<Vec<u8>, RelayError> {
        let line = one_line(command);
        let timing = &self.state.timing;
        self.state.sent.fetch_add(1, Relaxed);
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let error = match self.connection().await {
                Ok(connection) => match self.once(&connection, command, &line, attempt).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => error,
                },
                Err(error) => {
                    if attempt < plan.tries {
                        // A SIP server's command must fail soon.
                        let rest = timing.timeout.saturating_sub(begun.elapsed());
                        sleep(if plan.patient { rest } else { timing.refused_retry }).await;
                    }
                    error
                }
            };
            if attempt >= plan.tries {
                return Err(error);
            }
            attempt += 1;
            self.state.repeated.fetch_add(1, Relaxed);
        }
    }

    async fn once(&self, connection: &Arc<Connection>, command: &[u8], line: &[u8], tries: u32) -> Result<Vec<u8>, RelayError> {
        let (reply, answer) = oneshot::channel();
        let item = Item {
            line: line.to_vec(),
            reply,
        };
        let exchange = async {
            connection.items.send(item).await.map_err(|_| "connection closed".to_owned())?;
            answer.await.unwrap_or_else(|_| Err("connection closed".to_owned()))
        };
        match timeout(self.state.timing.timeout, exchange).await {
            Ok(answer) => answer.map_err(|reason| self.state.unreachable(reason)),
            Err(_) => {
                self.close(connection).await;
                Err(self.state.timed_out(command, tries))
            }
        }
    }

    /// Close this connection, if it is still the one in use.
    async fn close(&self, connection: &Arc<Connection>) {
        connection.task.abort();
        let mut current = self.connection.lock().await;
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>, RelayError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.items.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        *current = None;
        let limit = self.state.timing.timeout;
        let connecting = async {
            let (items, queue) = mpsc::channel(QUEUE);
            let state = Arc::clone(&self.state);
            let task = match &self.state.address {
                ControlAddress::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(run(stream, queue, state))
                }
                ControlAddress::Cunix(path) | ControlAddress::Unix(path) => {
                    let stream = UnixStream::connect(path).await?;
                    tokio::spawn(run(stream, queue, state))
                }
                ControlAddress::Udp(_) => return Err(io::Error::from(io::ErrorKind::Unsupported)),
            };
            Ok(Connection {
                items,
                task: task.abort_handle(),
            })
        };
        let connection = match timeout(limit, connecting).await {
            Ok(result) => result.map_err(|error| self.state.unreachable(error))?,
            Err(_) => return Err(self.state.unreachable(format!("no connection within {limit:?}"))),
        };
        let connection = Arc::new(connection);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// A connection's commands in order of their replies; the first `written` of them are written.
#[derive(Default)]
struct Pipeline {
    items: VecDeque<Item>,
    written: usize,
}

impl Pipeline {
    /// Write what may be written: everything in order, but nothing together with an I, whose reply has several lines.
    async fn write(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while let Some(item) = self.items.get(self.written) {
            let info_ahead = self.written > 0 && is_info(&self.items[self.written - 1].line);
            if info_ahead || self.written > 0 && is_info(&item.line) {
                break;
            }
            stream.write_all(&item.line).await?;
            self.written += 1;
        }
        Ok(())
    }

    /// Hand on the replies that have come whole. A command that was given up keeps its place: its reply is thrown away.
    fn take(&mut self, buffer: &mut Vec<u8>, state: &State) {
        while self.written > 0 {
            let Some(item) = self.items.front() else { break };
            let Some(size) = reply_length(&item.line, buffer) else { break };
            let reply = without_line_end(&buffer[..size]);
            buffer.drain(..size);
            self.written -= 1;
            state.answered();
            if let Some(item) = self.items.pop_front() {
                if item.reply.send(Ok(reply)).is_err() {
                    state.late.fetch_add(1, Relaxed);
                }
            }
        }
    }
}

async fn run(stream: impl AsyncRead + AsyncWrite + Unpin, mut queue: mpsc::Receiver<Item>, state: Arc<State>) {
    let mut pipeline = Pipeline::default();
    let reason = serve(stream, &mut queue, &mut pipeline, &state).await;
    let reason = reason.map_or_else(|error| error.to_string(), str::to_owned);
    queue.close();
    while let Ok(item) = queue.try_recv() {
        pipeline.items.push_back(item);
    }
    for item in pipeline.items {
        let _ = item.reply.send(Err(reason.clone()));
    }
}

/// Write commands and read replies; returns why the connection ends.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    queue: &mut mpsc::Receiver<Item>,
    pipeline: &mut Pipeline,
    state: &State,
) -> io::Result<&'static str> {
    let mut buffer = Vec::new();
    loop {
        tokio::select! {
            item = queue.recv() => match item {
                Some(item) => pipeline.items.push_back(item),
                None => return Ok("the client was closed"),
            },
            size = stream.read_buf(&mut buffer) => if size? == 0 {
                return Ok("connection closed by the relay");
            },
        }
        while let Ok(item) = queue.try_recv() {
            pipeline.items.push_back(item);
        }
        pipeline.take(&mut buffer, state);
        if pipeline.written == 0 && !buffer.is_empty() {
            return Ok("the relay sent bytes that answer nothing");
        }
        if buffer.len() > MAX_REPLY {
            return Ok("a reply is too long");
        }
        pipeline.write(&mut stream).await?;
    }
}
