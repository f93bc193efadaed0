//! Which commands are still worth carrying out after they have waited in the socket's queue.

use shunt_latch::Time;
use std::time::Duration;
use tokio::time::Instant;

/// What a command does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It ends something, and so makes room.
    Ends,
    /// It is about a call that is known, or about none.
    Continues,
    /// It begins a call.
    Begins,
}

/// How long a SIP server waits for the answer to one try, and how the agent divides that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// How long commands may wait in the queue before the queue counts as too long.
    fn target(self) -> Duration {
        self.0 / 4
    }

    /// Until when after its arrival a command is sent to a relay.
    #[must_use]
    pub fn send(self, kind: Kind) -> Duration {
        match kind {
            Kind::Begins => self.0 / 2,
            Kind::Continues | Kind::Ends => self.answer(),
        }
    }

    /// Until when after its arrival a reply reaches the SIP server in time.
    #[must_use]
    pub fn answer(self) -> Duration {
        self.0 / 8 * 7
    }

    /// Whether the sender of a command that arrived then has stopped waiting.
    #[must_use]
    pub fn is_over(self, arrived: Instant) -> bool {
        arrived.elapsed() > self.0
    }
}

/// Sheds load: a command whose sender has stopped waiting is not carried out, and under overload new calls are refused before anything else.
///
/// Overload is a queue in which every command has waited for a quarter of the sender's patience, during that same time (as in CoDel, RFC 8289).
/// A single stall of the process is no overload: the commands that came meanwhile are carried out.
#[derive(Debug)]
pub struct Admission {
    patience: Option<Patience>,
    /// Since when every command has waited too long; `None`: the last one has not.
    long_since: Option<Time>,
}

impl Admission {
    /// `None`: senders wait for ever.
    #[must_use]
    pub fn new(patience: Option<Patience>) -> Self {
        Self {
            patience,
            long_since: None,
        }
    }

    /// The queue is empty.
    pub fn is_idle(&mut self) {
        self.long_since = None;
    }

    /// Whether a command that has waited so long is carried out. `kind` is only asked for one that has waited long.
    pub fn admits(&mut self, now: Time, waited: Duration, kind: impl FnOnce() -> Kind) -> bool {
        let Some(patience) = self.patience else { return true };
        if waited < patience.target() {
            self.long_since = None;
            return true;
        }
        let is_overload = now.since(*self.long_since.get_or_insert(now)) >= patience.target();
        match kind() {
            // Also a late one frees ports.
            Kind::Ends => true,
            Kind::Continues => waited < patience.answer(),
            Kind::Begins => waited < patience.send(Kind::Begins) && !is_overload,
        }
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
