//! State of a relay: whether it answers, and counters.

use super::{RelayError, Timing};
use crate::protocol::Protocol;
use shunt_rtpproxy::framing::ControlAddress;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::watch;

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Commands without retransmissions.
    pub sent: u64,
    pub repeated: u64,
    pub answered: u64,
    /// Replies without a waiter.
    pub late: u64,
    pub timeouts: u64,
}

pub struct State {
    pub address: ControlAddress,
    pub protocol: Protocol,
    pub timing: Timing,
    pub alive: watch::Sender<Option<bool>>,
    pub sent: AtomicU64,
    pub repeated: AtomicU64,
    pub late: AtomicU64,
    answered: AtomicU64,
    timeouts: AtomicU64,
    start: Instant,
    /// Time of the last reply, in nanoseconds since the start; 0: never.
    last_reply: AtomicU64,
}

impl State {
    pub fn new(address: ControlAddress, protocol: Protocol, timing: Timing) -> Self {
        Self {
            address,
            protocol,
            timing,
            alive: watch::Sender::new(None),
            sent: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            late: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            start: Instant::now(),
            last_reply: AtomicU64::new(0),
        }
    }

    /// Returns nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn answered(&self) {
        self.answered.fetch_add(1, Relaxed);
        self.last_reply.store(self.now().max(1), Relaxed);
        if *self.alive.borrow() != Some(true) {
            self.set_alive(true, || tracing::info!("relay {} answers", self.address));
        }
    }

    /// Records a command without a reply. If other commands got replies since `begun`, when it was sent, the fault is the command's, not
    /// the relay's.
    pub fn failed(&self, begun: u64, error: &RelayError) {
        match error {
            RelayError::Timeout { .. } => {
                self.timeouts.fetch_add(1, Relaxed);
            }
            RelayError::Unreachable { .. } => {}
            RelayError::Empty | RelayError::NotSent { .. } | RelayError::Expired { .. } => return,
        }
        let last = self.last_reply.load(Relaxed);
        if last == 0 || last < begun {
            self.set_alive(false, || tracing::warn!("{error}; the relay is taken for dead"));
        }
    }

    fn set_alive(&self, alive: bool, say: impl FnOnce()) {
        let changed = self.alive.send_if_modified(|known| known.replace(alive) != Some(alive));
        if changed {
            say();
        }
    }

    pub fn counts(&self) -> ClientCounts {
        ClientCounts {
            sent: self.sent.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            answered: self.answered.load(Relaxed),
            late: self.late.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
        }
    }

    pub fn timed_out(&self, command: &[u8], tries: u32) -> RelayError {
        RelayError::Timeout {
            relay: self.address.to_string(),
            command: shown(command),
            tries,
            timeout: self.timing.timeout,
        }
    }

    pub fn expired(&self) -> RelayError {
        RelayError::Expired {
            relay: self.address.to_string(),
        }
    }

    pub fn not_sent(&self, command: &[u8], reason: impl Display) -> RelayError {
        RelayError::NotSent {
            relay: self.address.to_string(),
            size: command.len(),
            reason: reason.to_string(),
        }
    }

    pub fn unreachable(&self, reason: impl Display) -> RelayError {
        RelayError::Unreachable {
            relay: self.address.to_string(),
            reason: reason.to_string(),
        }
    }
}

fn shown(command: &[u8]) -> String {
    command[..command.len().min(120)].escape_ascii().to_string()
}
