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
    /// Of entries before the present one, and of the present one as last read. `None`: nothing was counted, as for most of a call's life.
    counters: Option<Box<Counted>>,
    /// A source that would take over the latch if the latched one is silent.
    pub(crate) asked: Option<Endpoint>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    past: Counters,
    live: Counters,
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
            counters: None,
            asked: None,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
            .as_ref()
            .map_or_else(Counters::default, |counted| counted.past.plus(counted.live))
    }

    /// What was counted on entries before the present one.
    pub(crate) fn past(&self) -> Counters {
        self.counters.as_ref().map_or_else(Counters::default, |counted| counted.past)
    }

    pub(crate) fn set_past(&mut self, past: Counters) {
        self.counters.get_or_insert_default().past = past;
    }

    /// The present entry's counters as just read.
    pub(crate) fn set_live(&mut self, live: Counters) {
        self.counters.get_or_insert_default().live = live;
    }

    /// The present entry is out. `last`: its final counters; without them the latest that were read count.
    pub(crate) fn entry_ended(&mut self, last: Option<Counters>) {
        if self.counters.is_none() && last.is_none() {
            return;
        }
        let counted = self.counters.get_or_insert_default();
        counted.past = counted.past.plus(last.unwrap_or(counted.live));
        counted.live = Counters::default();
    }
}
