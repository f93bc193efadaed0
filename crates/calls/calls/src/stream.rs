//! One direction of one component of a media line.

use crate::book::Notice;
use crate::entry::Counters;
use crate::ids::State;
use crate::reason::Reason;
use shunt_latch::Time;
use std::sync::Arc;
use std::time::Duration;

/// Whether a relay that ends calls without packets gets a packet of this stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refresh {
    #[default]
    No,
    /// The entry has been missing since this time, until a packet has gone to the relay.
    Waits(Time),
    /// The relay has received its packet: the entry is installed again.
    Returns,
}

/// A write that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Time of the next attempt.
    pub(crate) until: Time,
    pub(crate) reason: Reason,
    /// The data plane's text on the failure.
    pub(crate) detail: Option<Arc<str>>,
}

/// The state of a stream, and its counters.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) state: State,
    pub(crate) reason: Reason,
    pub(crate) since: Time,
    /// Time since which no packet has matched the entry.
    pub(crate) idle_since: Option<Time>,
    /// Its last write, if that failed.
    pub(crate) failure: Option<Box<Failure>>,
    pub(crate) refresh: Refresh,
    pub(crate) was_offloaded: bool,
    /// Time from both parties' first packet to the first offload.
    offloaded_after: Option<Time>,
    /// Counters of earlier entries and the latest reading of the present one. `None`: nothing was counted yet, as during most of a call.
    counters: Option<Box<Counted>>,
    /// A packet whose source would replace the latched one if that is silent.
    pub(crate) asked: Option<Box<Notice>>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    past: Counters,
    live: Counters,
    /// When `live` was read.
    at: Option<Time>,
    /// Last packet, as of that time.
    met_at: Option<Time>,
}

impl Stream {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            state: State::Allocated,
            reason: Reason::WaitingForAnswer,
            since: now,
            idle_since: None,
            failure: None,
            refresh: Refresh::No,
            was_offloaded: false,
            offloaded_after: None,
            counters: None,
            asked: None,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
            .as_ref()
            .map_or_else(Counters::default, |counted| counted.past.plus(counted.live))
    }

    /// Returns the counters of earlier entries.
    pub(crate) fn past(&self) -> Counters {
        self.counters.as_ref().map_or_else(Counters::default, |counted| counted.past)
    }

    pub(crate) fn set_past(&mut self, past: Counters) {
        self.counters.get_or_insert_default().past = past;
    }

    /// Sets the counters of the present entry as just read. `met_at`: its last packet, if known.
    pub(crate) fn set_live(&mut self, live: Counters, now: Time, met_at: Option<Time>) {
        let counted = self.counters.get_or_insert_default();
        counted.live = counted.live.read_again(live);
        (counted.at, counted.met_at) = (Some(now), met_at);
    }

    /// Returns when the present entry was last read, and its last packet as of then.
    pub(crate) fn last_read(&self) -> (Option<Time>, Option<Time>) {
        self.counters.as_ref().map_or((None, None), |counted| (counted.at, counted.met_at))
    }

    pub(crate) fn offloaded_after(&self) -> Option<Duration> {
        self.offloaded_after.map(|after| Duration::from_nanos(after.as_nanos()))
    }

    /// Sets the time to offload, the first time only.
    pub(crate) fn set_offloaded_after(&mut self, after: Duration) {
        self.offloaded_after.get_or_insert(after.into());
    }

    /// Ends the present entry. `last`: its final counters; without them the latest reading counts.
    pub(crate) fn entry_ended(&mut self, last: Option<Counters>) {
        if self.counters.is_none() && last.is_none() {
            return;
        }
        let counted = self.counters.get_or_insert_default();
        let last = last.map_or(counted.live, |last| counted.live.read_again(last));
        counted.past = counted.past.plus(last);
        (counted.live, counted.at, counted.met_at) = (Counters::default(), None, None);
    }
}
