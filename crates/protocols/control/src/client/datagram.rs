//! Commands over UDP: several at the same time, distinguished by cookies and retransmitted with the same cookie.

use super::cookies::Cookies;
use super::state::State;
use super::{Plan, RelayError};
use crate::buffers;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// The largest UDP packet.
const LARGEST: usize = 65_536;
/// Most unanswered commands. rtpproxy requests a receive buffer of 16 KiB, in which the kernel keeps about forty short ones or twenty long
/// ones, and drops the rest.
const AT_ONCE: usize = 16;

pub struct Datagram {
    state: Arc<State>,
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Places in the relay's receive buffer.
    room: Semaphore,
    opened: Mutex<Option<Opened>>,
}

/// State shared by commands and the reading task.
struct Shared {
    cookies: Cookies,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>,
    /// Reports that the relay's port is closed. They do not name a command, so they count for all commands under way.
    refusals: watch::Sender<u64>,
}

struct Opened {
    socket: Arc<UdpSocket>,
    reader: AbortHandle,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Result of one try.
enum Outcome {
    Reply(Vec<u8>),
    Refused,
    Nothing,
}

/// A command's place in the relay's receive buffer, until it is answered or lost. Without a permit it is sent anyway.
struct Room<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

/// A command's place among the waiting ones, while its reply is waited for.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
    reply: oneshot::Receiver<Vec<u8>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.number);
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Vec<u8>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) {
        self.refusals.send_modify(|count| *count += 1);
    }
}

impl Datagram {
    pub fn new(state: Arc<State>, address: SocketAddr) -> Self {
        Self {
            state,
            address,
            shared: Arc::new(Shared {
                cookies: Cookies::new(),
                waiting: Mutex::default(),
                refusals: watch::Sender::new(0),
            }),
            room: Semaphore::new(AT_ONCE),
            opened: Mutex::default(),
        }
    }

    /// `send_by`: a command without a place by then is not sent.
    pub async fn exchange(&self, command: &[u8], plan: Plan, send_by: Option<Instant>) -> Result<Vec<u8>, RelayError> {
        let mut room = Some(match send_by {
            Some(due) => self.room_by(due).await?,
            None => self.room().await,
        });
        let socket = self.socket().map_err(|error| self.state.unreachable(error))?;
        let number = self.shared.cookies.number();
        let cookie = self.shared.cookies.cookie(number);
        let datagram = self.state.protocol.command(cookie.as_bytes(), command);
        let mut place = self.place(number);
        self.state.sent.fetch_add(1, Relaxed);
        let mut refused = false;
        for attempt in 1..=plan.tries {
            if attempt > 1 {
                self.state.repeated.fetch_add(1, Relaxed);
            }
            let due = Instant::now() + self.state.timing.timeout;
            match self.attempt(&socket, &datagram, &mut place, room.take(), due).await? {
                Outcome::Reply(reply) => return Ok(reply),
                Outcome::Nothing => continue,
                Outcome::Refused => refused = true,
            }
            if !plan.patient && attempt == plan.tries {
                break;
            }
            // The relay may be starting, or an earlier command's report came late.
            let pause = if plan.patient {
                due
            } else {
                Instant::now() + self.state.timing.refused_retry
            };
            if let Some(reply) = reply_until(&mut place, pause).await {
                return Ok(reply);
            }
        }
        Err(if refused {
            self.state.unreachable(format!("nobody listens on the port, {} tries", plan.tries))
        } else {
            self.state.timed_out(command, plan.tries)
        })
    }

    /// Waits for a place in the relay's receive buffer, at most until the first retransmission would be due: a dead relay frees no place.
    async fn room(&self) -> Room<'_> {
        let permit = timeout(self.state.timing.early_repeat, self.room.acquire()).await;
        Room {
            _permit: permit.ok().and_then(Result::ok),
        }
    }

    async fn room_by(&self, due: Instant) -> Result<Room<'_>, RelayError> {
        let permit = timeout_at(due, self.room.acquire()).await.map_err(|_| self.state.expired())?;
        Ok(Room { _permit: permit.ok() })
    }

    /// Sends a command without a waiter, and without waiting for a place.
    pub async fn send_alone(&self, command: &[u8]) -> Result<(), RelayError> {
        let socket = self.socket().map_err(|error| self.state.unreachable(error))?;
        let cookie = self.shared.cookies.cookie(self.shared.cookies.number());
        let datagram = self.state.protocol.command(cookie.as_bytes(), command);
        self.state.sent.fetch_add(1, Relaxed);
        self.send(&socket, &datagram, Instant::now() + self.state.timing.timeout).await
    }

    /// Sends and waits for the result. A command that finds the relay's receive buffer full is lost, but space is free again soon.
    /// Therefore the first try, which has a place (`room`), is repeated early.
    async fn attempt(
        &self,
        socket: &UdpSocket,
        datagram: &[u8],
        place: &mut Place<'_>,
        room: Option<Room<'_>>,
        due: Instant,
    ) -> Result<Outcome, RelayError> {
        let mut refusals = self.shared.refusals.subscribe();
        if let Some(_room) = room {
            let early = Instant::now() + self.state.timing.early_repeat;
            self.send(socket, datagram, due).await?;
            match wait(place, &mut refusals, early.min(due)).await {
                Outcome::Nothing => self.state.repeated.fetch_add(1, Relaxed),
                outcome => return Ok(outcome),
            };
        }
        self.send(socket, datagram, due).await?;
        Ok(wait(place, &mut refusals, due).await)
    }

    fn place(&self, number: u64) -> Place<'_> {
        let (sender, reply) = oneshot::channel();
        self.shared.waiting().insert(number, sender);
        Place {
            shared: &self.shared,
            number,
            reply,
        }
    }

    async fn send(&self, socket: &UdpSocket, datagram: &[u8], due: Instant) -> Result<(), RelayError> {
        // Not `try_send`, because a socket that was just opened is not known to be writable.
        let send = || async {
            timeout_at(due, socket.send(datagram))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let mut result = send().await;
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // The error belongs to an earlier datagram; this one was not sent.
            self.shared.refused();
            result = send().await;
        }
        match result {
            Err(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => Err(self.state.not_sent(datagram, error)),
            // It counts as lost on the way; the next try follows.
            Err(error) => {
                tracing::debug!("relay {}: send: {error}", self.state.address);
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn socket(&self) -> io::Result<Arc<UdpSocket>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = opened.as_ref().filter(|opened| !opened.reader.is_finished()) {
            return Ok(Arc::clone(&opened.socket));
        }
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        buffers::enlarge(&socket)?;
        // A connected socket receives only the relay's replies, and reports a closed port.
        socket.connect(self.address)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let reader = read(Arc::clone(&socket), Arc::clone(&self.shared), Arc::clone(&self.state));
        *opened = Some(Opened {
            socket: Arc::clone(&socket),
            reader: tokio::spawn(reader).abort_handle(),
        });
        Ok(socket)
    }
}

async fn wait(place: &mut Place<'_>, refusals: &mut watch::Receiver<u64>, due: Instant) -> Outcome {
    tokio::select! {
        biased;
        Ok(reply) = &mut place.reply => Outcome::Reply(reply),
        Ok(()) = refusals.changed() => Outcome::Refused,
        () = sleep_until(due) => Outcome::Nothing,
    }
}

async fn reply_until(place: &mut Place<'_>, due: Instant) -> Option<Vec<u8>> {
    timeout_at(due, &mut place.reply).await.ok()?.ok()
}

/// Passes replies to their waiters; ends with the client.
async fn read(socket: Arc<UdpSocket>, shared: Arc<Shared>, state: Arc<State>) {
    let mut buffer = vec![0; LARGEST];
    loop {
        let size = match socket.recv(&mut buffer).await {
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                shared.refused();
                continue;
            }
            Err(error) => {
                tracing::warn!("relay {}: receive: {error}", state.address);
                // The next command opens another socket.
                return;
            }
        };
        let Some((cookie, reply)) = state.protocol.split(&buffer[..size]) else {
            continue;
        };
        let number = shared.cookies.parse(cookie);
        let waiting = number.and_then(|number| shared.waiting().remove(&number));
        match waiting {
            Some(sender) => {
                state.answered();
                // The waiter may have left at this moment.
                let _ = sender.send(reply.to_vec());
            }
            // The second reply to a retransmitted command, or a late one.
            None => {
                state.late.fetch_add(1, Relaxed);
            }
        }
    }
}
