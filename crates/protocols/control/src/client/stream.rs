//! Commands over tcp and cunix: one connection, pipelined commands, replies in order or with cookies.
//!
//! Without cookies only the order assigns replies. After a time-out the connection is therefore closed and every command on it fails, so
//! that no reply is assigned to the wrong command. With cookies it is closed if no later command was answered either: the other end may be
//! gone, and rtpengine stops reading a connection after anything that is not bencode.

use super::cookies::Cookies;
use super::state::State;
use super::{Plan, RelayError, is_info, one_line, without_line_end};
use crate::protocol::Protocol;
use shunt_ng::framing as ng;
use shunt_ng::{Encoding, decode, encode};
use shunt_rtpproxy::framing::{ControlAddress, MAX_REPLY, reply_length};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Commands that wait for the connection's task.
const QUEUE: usize = 1024;

type Answer = Result<Vec<u8>, String>;

/// A command and its waiter.
struct Item {
    /// Number of its cookie, if the protocol has cookies.
    number: u64,
    bytes: Vec<u8>,
    reply: oneshot::Sender<Answer>,
}

struct Connection {
    items: mpsc::Sender<Item>,
    /// The largest number of an answered command.
    answered: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Other waiting replies fail with it.
        self.task.abort();
    }
}

pub struct Stream {
    state: Arc<State>,
    cookies: Arc<Cookies>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Stream {
    pub fn new(state: Arc<State>) -> Self {
        Self {
            state,
            cookies: Arc::new(Cookies::new()),
            connection: Mutex::default(),
        }
    }

    pub async fn exchange(&self, command: &[u8], plan: Plan) -> Result<Vec<u8>, RelayError> {
        let number = self.cookies.number();
        let (bytes, encoding) = match self.state.protocol {
            Protocol::Rtpproxy => (one_line(command), None),
            Protocol::Ng => self.in_bencode(number, command)?,
        };
        let timing = &self.state.timing;
        self.state.sent.fetch_add(1, Relaxed);
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let error = match self.connection().await {
                Ok(connection) => match self.once(&connection, number, &bytes).await {
                    Ok(Some(reply)) if encoding == Some(Encoding::Json) => return Ok(in_json(reply)),
                    Ok(Some(reply)) => return Ok(reply),
                    Ok(None) => self.state.timed_out(command, attempt),
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

    /// Returns an NG command as it is sent, and its original encoding.
    ///
    /// rtpengine accepts JSON over udp only. On a connection it would wait without end for the end of a bencode dictionary, and every later
    /// command would stay without a reply.
    fn in_bencode(&self, number: u64, command: &[u8]) -> Result<(Vec<u8>, Option<Encoding>), RelayError> {
        let (encoding, value) = decode(command).map_err(|error| self.state.not_sent(command, error))?;
        let cookie = self.cookies.cookie(number);
        let mut message = match encoding {
            Encoding::Bencode => ng::join(cookie.as_bytes(), command),
            Encoding::Json => ng::join(cookie.as_bytes(), &encode(&value, Encoding::Bencode)),
        };
        let whole = ng::take(&message).map_err(|error| self.state.not_sent(command, error))?;
        // Bytes after the dictionary, usually a line end, would become the start of the next cookie.
        let used = whole.map(|(_, used)| used);
        message.truncate(used.ok_or_else(|| self.state.not_sent(command, "it has no end"))?);
        Ok((message, Some(encoding)))
    }

    /// Returns the reply; `None`: none came in time.
    async fn once(&self, connection: &Arc<Connection>, number: u64, bytes: &[u8]) -> Result<Option<Vec<u8>>, RelayError> {
        let (reply, answer) = oneshot::channel();
        let item = Item {
            number,
            bytes: bytes.to_vec(),
            reply,
        };
        let exchange = async {
            connection.items.send(item).await.map_err(|_| "connection closed".to_owned())?;
            answer.await.unwrap_or_else(|_| Err("connection closed".to_owned()))
        };
        if let Ok(answer) = timeout(self.state.timing.timeout, exchange).await {
            return answer.map(Some).map_err(|reason| self.state.unreachable(reason));
        }
        if self.state.protocol.in_order() || connection.answered.load(Relaxed) < number {
            self.close(connection).await;
        }
        Ok(None)
    }

    /// Closes this connection if it is still in use.
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
            let pipeline = Pipeline::new(Arc::clone(&self.state), Arc::clone(&self.cookies));
            let answered = Arc::clone(&pipeline.answered);
            let task = match &self.state.address {
                ControlAddress::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(run(stream, queue, pipeline))
                }
                ControlAddress::Cunix(path) | ControlAddress::Unix(path) => {
                    let stream = UnixStream::connect(path).await?;
                    tokio::spawn(run(stream, queue, pipeline))
                }
                ControlAddress::Udp(_) => return Err(io::Error::from(io::ErrorKind::Unsupported)),
            };
            Ok(Connection {
                items,
                answered,
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

/// A connection's commands in order; the first `written` of them are written.
struct Pipeline {
    state: Arc<State>,
    cookies: Arc<Cookies>,
    answered: Arc<AtomicU64>,
    items: VecDeque<Item>,
    written: usize,
}

/// A complete reply.
struct Reply {
    /// Its command; `None`: no command waits for it.
    index: Option<usize>,
    body: Vec<u8>,
    /// Bytes of the buffer.
    used: usize,
}

impl Pipeline {
    fn new(state: Arc<State>, cookies: Arc<Cookies>) -> Self {
        Self {
            state,
            cookies,
            answered: Arc::default(),
            items: VecDeque::new(),
            written: 0,
        }
    }

    /// Writes all ready commands in order, but sends no command together with an I, whose reply has several lines.
    async fn write(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while let Some(item) = self.items.get(self.written) {
            if self.state.protocol.in_order() && self.written > 0 {
                let ahead = &self.items[self.written - 1];
                if is_info(&ahead.bytes) || is_info(&item.bytes) {
                    break;
                }
            }
            stream.write_all(&item.bytes).await?;
            self.written += 1;
        }
        Ok(())
    }

    /// Passes on the complete replies.
    fn take(&mut self, buffer: &mut Vec<u8>) -> Result<(), String> {
        while let Some(reply) = self.first_reply(buffer)? {
            buffer.drain(..reply.used);
            self.state.answered();
            let item = reply.index.and_then(|index| self.remove(index));
            if let Some(item) = &item {
                self.answered.fetch_max(item.number, Relaxed);
            }
            if item.is_none_or(|item| item.reply.send(Ok(reply.body)).is_err()) {
                self.state.late.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    fn first_reply(&mut self, buffer: &[u8]) -> Result<Option<Reply>, String> {
        match self.state.protocol {
            // A command without a waiter keeps its place: its reply is discarded.
            Protocol::Rtpproxy => match self.items.front().filter(|_| self.written > 0) {
                None if buffer.is_empty() => Ok(None),
                None => Err("the relay sent bytes that answer nothing".to_owned()),
                Some(item) => match reply_length(&item.bytes, buffer) {
                    None if buffer.len() > MAX_REPLY => Err("a reply is too long".to_owned()),
                    None => Ok(None),
                    Some(used) => Ok(Some(Reply {
                        index: Some(0),
                        body: without_line_end(&buffer[..used]),
                        used,
                    })),
                },
            },
            Protocol::Ng => {
                self.forget();
                let taken = ng::take(buffer).map_err(|error| format!("no reply: {error}"))?;
                Ok(taken.map(|(message, used)| {
                    let number = self.cookies.parse(message.cookie);
                    // A retransmitted command is listed twice, once without a waiter.
                    let is_it = |item: &Item| Some(item.number) == number && !item.reply.is_closed();
                    Reply {
                        index: self.items.iter().position(is_it),
                        body: message.body.to_vec(),
                        used,
                    }
                }))
            }
        }
    }

    fn remove(&mut self, index: usize) -> Option<Item> {
        if index < self.written {
            self.written -= 1;
        }
        self.items.remove(index)
    }

    /// Forgets the commands without a waiter. Each has a time-out, so the oldest come first.
    fn forget(&mut self) {
        while self.items.front().is_some_and(|item| item.reply.is_closed()) {
            self.remove(0);
        }
    }
}

/// Returns a reply to a command that was JSON.
fn in_json(reply: Vec<u8>) -> Vec<u8> {
    match decode(&reply) {
        Ok((Encoding::Bencode, value)) => encode(&value, Encoding::Json),
        _ => reply,
    }
}

async fn run(stream: impl AsyncRead + AsyncWrite + Unpin, mut queue: mpsc::Receiver<Item>, mut pipeline: Pipeline) {
    let reason = serve(stream, &mut queue, &mut pipeline).await;
    let reason = reason.unwrap_or_else(|error| error.to_string());
    queue.close();
    while let Ok(item) = queue.try_recv() {
        pipeline.items.push_back(item);
    }
    for item in pipeline.items {
        let _ = item.reply.send(Err(reason.clone()));
    }
}

/// Writes commands and reads replies. Returns why the connection ends.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    queue: &mut mpsc::Receiver<Item>,
    pipeline: &mut Pipeline,
) -> io::Result<String> {
    let mut buffer = Vec::new();
    loop {
        tokio::select! {
            item = queue.recv() => match item {
                Some(item) => pipeline.items.push_back(item),
                None => return Ok("the client was closed".to_owned()),
            },
            size = stream.read_buf(&mut buffer) => if size? == 0 {
                return Ok("connection closed by the relay".to_owned());
            },
        }
        while let Ok(item) = queue.try_recv() {
            pipeline.items.push_back(item);
        }
        if let Err(reason) = pipeline.take(&mut buffer) {
            return Ok(reason);
        }
        pipeline.write(&mut stream).await?;
    }
}
