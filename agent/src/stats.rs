//! What the agent counts, for metrics and the status.

use prometheus_client::metrics::counter::Counter;
use shunt_rtpproxy::{Request, StreamVerb};
use std::sync::atomic::{AtomicU64, Ordering};

/// Verbs of commands, as they are counted.
pub const VERBS: [&str; 14] = ["U", "L", "D", "Q", "P", "S", "C", "R", "N", "V", "VF", "I", "G", "X"];

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Stats {
    commands: [AtomicU64; VERBS.len()],
    /// Media lines that are over.
    pub ended: Counter,
    pub not_understood: Counter,
    /// Sessions that a limit has refused.
    pub refused: Counter,
    pub ports_held: Counter,
    pub ports_refused: Counter,
    pub media_timeouts: Counter,
    pub sip_messages: Counter,
    pub byes: Counter,
    /// HEP packets that were no such, or no SIP.
    pub hep_malformed: Counter,
    pub hep_blocked: Counter,
    pub notices: Counter,
    pub tasks_restarted: Counter,
    /// The loop was late.
    pub late: Counter,
}

fn verb(request: &Request) -> Option<usize> {
    Some(match request {
        Request::Update(_) => 0,
        Request::Lookup(_) => 1,
        Request::Delete(_) => 2,
        Request::Query(_) => 3,
        Request::Stream(StreamVerb::Play, _) => 4,
        Request::Stream(StreamVerb::StopPlaying, _) => 5,
        Request::Stream(StreamVerb::Copy, _) => 6,
        Request::Stream(StreamVerb::Record, _) => 7,
        Request::Stream(StreamVerb::StopRecording, _) => 8,
        Request::Version => 9,
        Request::Capability => 10,
        Request::Info => 11,
        Request::Statistics => 12,
        Request::DeleteAll => 13,
        Request::Unknown => return None,
    })
}

impl Stats {
    pub fn count_command(&self, request: &Request) {
        if let Some(place) = verb(request).and_then(|at| self.commands.get(at)) {
            place.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many commands of each verb there were.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, u64)> {
        VERBS
            .into_iter()
            .zip(self.commands.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}
