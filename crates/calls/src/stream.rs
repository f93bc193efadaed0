//! One direction of one component of a media line.

use crate::entry::Counters;
use crate::ids::State;
use crate::reason::Reason;
use shunt_latch::Time;
use shunt_net::Endpoint;

/// The state of a stream, and what was counted.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) state: State,
    pub(crate) reason: Reason,
    pub(crate) since: Time,
    /// No packet has met the entry since.
    pub(crate) idle_since: Option<Time>,
    /// After a write that failed: not before then, and why.
    pub(crate) retry: Option<(Time, Reason)>,
    pub(crate) was_offloaded: bool,
    /// Of entries before the present one.
    pub(crate) past: Counters,
    /// Of the present one, as last read.
    pub(crate) live: Counters,
    /// A source that would take over the latch if the latched one is silent.
    pub(crate) asked: Option<Endpoint>,
}

impl Stream {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            state: State::Allocated,
            reason: Reason::WaitingForAnswer,
            since: now,
            idle_since: None,
            retry: None,
            was_offloaded: false,
            past: Counters::default(),
            live: Counters::default(),
            asked: None,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.past.plus(self.live)
    }
}
