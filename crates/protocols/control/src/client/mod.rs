//! Clients of relays: send commands over udp, tcp, unix or cunix, and return their replies.
//!
//! The client uses cookies of its own towards a relay. Relays store replies by cookie alone, whoever sent it, so two SIP servers behind one
//! agent would otherwise get each other's replies.

mod cookies;
mod datagram;
mod once;
mod state;
mod stream;

pub use state::ClientCounts;

use crate::protocol::{Protocol, Unsupported};
use datagram::Datagram;
use once::Once;
use shunt_rtpproxy::framing::ControlAddress;
use state::State;
use std::sync::Arc;
use std::time::Duration;
use stream::Stream;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Time-outs of a client.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For the reply to one try.
    pub timeout: Duration,
    /// Until the first retransmission of a datagram, within its first try.
    pub early_repeat: Duration,
    /// Further tries of [`RelayClient::request`].
    pub retries: u32,
    /// Until the second try of a SIP server's command that the relay's host has refused.
    pub refused_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            // With this delay a reply still arrives in the 0.2 s for which OpenSIPS may be configured to wait.
            early_repeat: Duration::from_millis(100),
            retries: 3,
            refused_retry: Duration::from_millis(100),
        }
    }
}

/// Reason for a missing reply.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RelayError {
    #[error("relay {relay}: no reply to \"{command}\" after {tries} tries of {timeout:?}")]
    Timeout {
        relay: String,
        command: String,
        tries: u32,
        timeout: Duration,
    },
    /// Refused, no such socket, or the connection was lost.
    #[error("relay {relay}: {reason}")]
    Unreachable { relay: String, reason: String },
    /// It was not sent.
    #[error("an empty command")]
    Empty,
    /// It was not sent, because the relay could not have read it, and there was no reply by the command's deadline.
    #[error("relay {relay}: no reply before the SIP server stopped waiting")]
    Expired { relay: String },
    #[error("relay {relay}: a command of {size} bytes is not sent: {reason}")]
    NotSent { relay: String, size: usize, reason: String },
}

/// Deadlines of a command that a SIP server waits for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline<'a> {
    /// A command without a place in the relay's buffer by then is not sent.
    pub send: Instant,
    /// For a command that starts a call: when the reply is no longer waited for, and the command that then reverts it.
    pub undo: Option<(Instant, &'a [u8])>,
}

/// How often a command is tried.
#[derive(Clone, Copy)]
struct Plan {
    tries: u32,
    /// Wait for a relay that is being restarted.
    patient: bool,
}

enum Transport {
    Datagram(Datagram),
    Stream(Stream),
    Once(Once),
}

/// The control socket of one relay. Commands may be sent concurrently; sockets are opened when needed. Needs the tokio runtime.
pub struct RelayClient {
    state: Arc<State>,
    transport: Transport,
}

impl RelayClient {
    /// # Errors
    /// The protocol is not spoken over this kind of socket.
    pub fn new(address: ControlAddress, protocol: Protocol) -> Result<Self, Unsupported> {
        Self::with_timing(address, protocol, Timing::default())
    }

    /// # Errors
    /// The protocol is not spoken over this kind of socket.
    pub fn with_timing(address: ControlAddress, protocol: Protocol, timing: Timing) -> Result<Self, Unsupported> {
        protocol.check(&address)?;
        let state = Arc::new(State::new(address, protocol, timing));
        let transport = match state.address.clone() {
            ControlAddress::Udp(address) => Transport::Datagram(Datagram::new(Arc::clone(&state), address)),
            ControlAddress::Tcp(_) | ControlAddress::Cunix(_) => Transport::Stream(Stream::new(Arc::clone(&state))),
            ControlAddress::Unix(path) => Transport::Once(Once::new(Arc::clone(&state), path)),
        };
        Ok(Self { state, transport })
    }

    #[must_use]
    pub fn address(&self) -> &ControlAddress {
        &self.state.address
    }

    /// Forwards a SIP server's command; command and reply have no cookie and no line end.
    ///
    /// It is tried again at most once, after the time-out, and fails after twice that, because the SIP server itself repeats about once a
    /// second. If the relay's port is closed, it fails after 0.1 s, so that another relay can be used.
    ///
    /// # Errors
    /// There was no reply, or the command is empty.
    pub async fn forward(&self, command: &[u8]) -> Result<Vec<u8>, RelayError> {
        let plan = Plan { tries: 2, patient: false };
        self.exchange(command, plan, None).await
    }

    /// Forwards a command of a SIP server that waits until a deadline. Over udp, or over one connection, commands reach the relay in the
    /// order of sending: the reversal of a command cannot affect a later command of the SIP server.
    ///
    /// # Errors
    /// There was no reply by the deadline, or the command is empty.
    pub async fn forward_until(&self, command: &[u8], deadline: Deadline<'_>) -> Result<Vec<u8>, RelayError> {
        let plan = Plan { tries: 2, patient: false };
        let forwarded = self.exchange(command, plan, Some(deadline.send));
        let Some((due, undo)) = deadline.undo else {
            return forwarded.await;
        };
        match timeout_at(due, forwarded).await {
            Ok(result) => result,
            Err(_) => {
                self.send(undo).await;
                Err(self.state.expired())
            }
        }
    }

    /// Sends a command at once, without a waiter and without retransmission.
    async fn send(&self, command: &[u8]) {
        let result = match &self.transport {
            Transport::Datagram(transport) => transport.send_alone(command).await,
            _ => self.exchange(command, Plan { tries: 1, patient: false }, None).await.map(drop),
        };
        if let Err(error) = result {
            tracing::debug!("{error}");
        }
    }

    /// Sends a command of the agent's own, 1 + retries times, with one cookie if the protocol has cookies on this kind of socket. Without a
    /// cookie the command must be safe to execute twice.
    ///
    /// # Errors
    /// There was no reply, or the command is empty.
    pub async fn request(&self, command: &[u8]) -> Result<Vec<u8>, RelayError> {
        let tries = 1 + self.state.timing.retries;
        self.exchange(command, Plan { tries, patient: true }, None).await
    }

    /// Returns whether the relay answers; `None` until the first reply or failure.
    #[must_use]
    pub fn alive(&self) -> watch::Receiver<Option<bool>> {
        self.state.alive.subscribe()
    }

    #[must_use]
    pub fn counts(&self) -> ClientCounts {
        self.state.counts()
    }

    /// `send_by`: latest time at which a datagram is sent.
    async fn exchange(&self, command: &[u8], plan: Plan, send_by: Option<Instant>) -> Result<Vec<u8>, RelayError> {
        if command.trim_ascii().is_empty() {
            return Err(RelayError::Empty);
        }
        let begun = self.state.now();
        let result = match &self.transport {
            Transport::Datagram(transport) => transport.exchange(command, plan, send_by).await,
            Transport::Stream(transport) => transport.exchange(command, plan).await,
            Transport::Once(transport) => transport.exchange(command, plan).await,
        };
        if let Err(error) = &result {
            self.state.failed(begun, error);
        }
        result
    }
}

/// Returns a command as one line. A line end inside a datagram is a blank to the relay; on a stream it would start another command.
fn one_line(command: &[u8]) -> Vec<u8> {
    let first = command.iter().position(|byte| !is_line_end(*byte)).unwrap_or(command.len());
    let last = command.iter().rposition(|byte| !is_line_end(*byte)).map_or(first, |last| last + 1);
    let text = command[first..last].iter();
    let mut line: Vec<u8> = text.map(|&byte| if is_line_end(byte) { b' ' } else { byte }).collect();
    line.push(b'\n');
    line
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn is_info(command: &[u8]) -> bool {
    command
        .trim_ascii_start()
        .first()
        .is_some_and(|letter| letter.eq_ignore_ascii_case(&b'I'))
}

fn without_line_end(reply: &[u8]) -> Vec<u8> {
    let end = reply.iter().rposition(|byte| !is_line_end(*byte)).map_or(0, |last| last + 1);
    reply[..end].to_vec()
}
