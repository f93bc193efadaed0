//! Decides which commands are still executed after they have waited in the socket's queue.

use shunt_latch::Time;
use std::time::Duration;
use tokio::time::Instant;

/// Effect of a command on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It ends something and so frees ports.
    Ends,
    /// It concerns a known call, or no call.
    Continues,
    /// It starts a call.
    Begins,
}

/// The time that a SIP server waits for the answer to one try, and its division by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// Wait of commands from which on the queue is too long.
    fn target(self) -> Duration {
        self.0 / 4
    }

    /// Latest time after its arrival at which a command is sent to a relay.
    #[must_use]
    pub fn send(self, kind: Kind) -> Duration {
        match kind {
            Kind::Begins => self.0 / 2,
            Kind::Continues | Kind::Ends => self.answer(),
        }
    }

    /// Latest time after the command's arrival at which a reply is in time for the SIP server.
    #[must_use]
    pub fn answer(self) -> Duration {
        self.0 / 8 * 7
    }

    /// Returns whether the sender of a command with this arrival has stopped waiting.
    #[must_use]
    pub fn is_over(self, arrived: Instant) -> bool {
        arrived.elapsed() > self.0
    }
}

/// Sheds load. A command whose sender has stopped waiting is not executed, and under overload new calls are rejected first.
///
/// Overload is a queue in which every command has waited for a quarter of the sender's time-out, during that same time (as in CoDel, RFC
/// 8289). A single stall of the process is no overload: its commands are executed.
#[derive(Debug)]
pub struct Admission {
    patience: Option<Patience>,
    /// Since when every command has waited too long; `None`: the last one has not.
    long_since: Option<Time>,
}

impl Admission {
    /// `None`: senders wait without limit.
    #[must_use]
    pub fn new(patience: Option<Patience>) -> Self {
        Self {
            patience,
            long_since: None,
        }
    }

    /// Records an empty queue.
    pub fn is_idle(&mut self) {
        self.long_since = None;
    }

    /// Returns whether a command that has waited this long is executed. `kind` is called only if it has waited long.
    pub fn admits(&mut self, now: Time, waited: Duration, kind: impl FnOnce() -> Kind) -> bool {
        let Some(patience) = self.patience else { return true };
        if waited < patience.target() {
            self.long_since = None;
            return true;
        }
        let is_overload = now.since(*self.long_since.get_or_insert(now)) >= patience.target();
        match kind() {
            // A late delete frees ports too.
            Kind::Ends => true,
            Kind::Continues => waited < patience.answer(),
            Kind::Begins => waited < patience.send(Kind::Begins) && !is_overload,
        }
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
