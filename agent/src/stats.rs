//! The agent's counters for metrics and status.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use shunt_admin::Verdict;
use shunt_calls::{Ended, Operation, Outcome, Reason, Side, State};
use shunt_rtpproxy::{Request, StreamVerb};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Verbs of commands as counted.
pub const VERBS: [&str; 14] = ["U", "L", "D", "Q", "P", "S", "C", "R", "N", "V", "VF", "I", "G", "X"];

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Stats {
    commands: [AtomicU64; VERBS.len()],
    /// Ended calls, by reason, and their duration.
    pub calls_ended: Family<[(&'static str, &'static str); 1], Counter>,
    pub call_seconds: Seconds<CallLength>,
    /// Answered media lines without a packet of one party, or of either.
    pub one_way: Counter,
    pub zero_packet: Counter,
    pub learn_verdicts: Family<[(&'static str, &'static str); 1], Counter>,
    pub offload_failures: Family<[(&'static str, &'static str); 1], Counter>,
    pub time_to_offload: Seconds<Offloading>,
    pub table_operations: Family<[(&'static str, &'static str); 2], Counter>,
    pub table_seconds: [Seconds<Quick>; 3],
    command_seconds: [Seconds<Quick>; VERBS.len()],
    /// Known NG commands, and their duration.
    ng_commands: Vec<(shunt_ng::Verb, AtomicU64, Seconds<Quick>)>,
    pub not_understood: Counter,
    /// Sessions rejected by a limit.
    pub refused: Counter,
    pub scanners_blocked: Counter,
    pub commands_expired: Counter,
    pub ports_held: Counter,
    pub ports_refused: Counter,
    pub media_timeouts: Counter,
    pub sip_messages: Counter,
    pub byes: Counter,
    /// Packets that are not HEP, or contain no SIP.
    pub hep_malformed: Counter,
    pub hep_blocked: Counter,
    pub notices: Counter,
    pub tasks_restarted: Counter,
    /// How often the loop was late.
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

/// The buckets of a histogram, s.
pub trait Buckets {
    const BUCKETS: &'static [f64];
}

/// Commands, replies and writes.
#[derive(Debug)]
pub struct Quick;
/// From the first packets to the entry.
#[derive(Debug)]
pub struct Offloading;
/// Calls.
#[derive(Debug)]
pub struct CallLength;

impl Buckets for Quick {
    const BUCKETS: &'static [f64] = &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
}

impl Buckets for Offloading {
    const BUCKETS: &'static [f64] = &[0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];
}

impl Buckets for CallLength {
    const BUCKETS: &'static [f64] = &[1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];
}

/// A histogram of times.
#[derive(Debug)]
pub struct Seconds<B> {
    pub histogram: Histogram,
    buckets: PhantomData<B>,
}

impl<B: Buckets> Default for Seconds<B> {
    fn default() -> Self {
        Self {
            histogram: Histogram::new(B::BUCKETS.iter().copied()),
            buckets: PhantomData,
        }
    }
}

impl<B> Seconds<B> {
    pub fn observe(&self, time: Duration) {
        self.histogram.observe(time.as_secs_f64());
    }
}

/// Names of the operations of [`Stats::table_seconds`].
pub const OPERATIONS: [&str; 3] = ["insert", "modify", "delete"];

/// Returns why a stream that could be offloaded is not. Waiting for packets or an answer is no failure.
fn is_failure(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::TableFull
            | Reason::HashCollision
            | Reason::HostPolicy
            | Reason::Rejected
            | Reason::DataPlaneUnavailable
            | Reason::Contested
            | Reason::Resize
            | Reason::Playback
            | Reason::Recording
            | Reason::Copy
            | Reason::Dtmf
            | Reason::Srtp
            | Reason::Dtls
            | Reason::Ice
            | Reason::Transcoding
            | Reason::T38
            | Reason::RtcpDemux
            | Reason::Forwarding
            | Reason::MediaBlocked
            | Reason::Subscription
            | Reason::Processing
            | Reason::CommandUnknown
    )
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Latched => "latched",
        Verdict::Moved => "moved",
        Verdict::Restored => "restored",
        Verdict::Known => "known",
        Verdict::Contested => "contested",
        Verdict::Waiting => "waiting",
        Verdict::AskedIdle => "asked-idle",
        Verdict::Scanner => "scanner",
        Verdict::Quarantined => "quarantined",
        Verdict::Former => "former",
        Verdict::SourceMismatch => "source-mismatch",
        Verdict::Asymmetric => "asymmetric",
    }
}

fn outcome_name(operation: usize, outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => ["installed", "installed", "removed"][operation],
        Outcome::TableFull => "table-full",
        Outcome::HashCollision => "hash-collision",
        Outcome::HostPolicy => "host-policy",
        Outcome::Rejected => "rejected",
        Outcome::Unavailable => "data-plane-unavailable",
    }
}

impl Stats {
    /// Creates series in advance, so that rates and alerts have a start value.
    #[must_use]
    pub fn new() -> Self {
        let ng = shunt_ng::Verb::all().map(|verb| (verb, AtomicU64::new(0), Seconds::default()));
        let stats = Self {
            ng_commands: ng.collect(),
            ..Self::default()
        };
        for verdict in [Verdict::Latched, Verdict::Contested, Verdict::SourceMismatch, Verdict::Moved] {
            drop(stats.learn_verdicts.get_or_create(&[("verdict", verdict_name(verdict))]));
        }
        for reason in [Reason::TableFull, Reason::Rejected, Reason::DataPlaneUnavailable, Reason::Contested] {
            drop(stats.offload_failures.get_or_create(&[("reason", reason.as_str())]));
        }
        let installed = [("operation", "insert"), ("outcome", "installed")];
        drop(stats.table_operations.get_or_create(&installed));
        stats
    }

    pub fn learned(&self, verdict: Verdict) {
        self.learn_verdicts.get_or_create(&[("verdict", verdict_name(verdict))]).inc();
    }

    /// Counts a stream's new state.
    pub fn changed(&self, state: State, reason: Reason, after: Option<Duration>) {
        if let Some(after) = after {
            self.time_to_offload.observe(after);
        }
        if state != State::Offloaded && is_failure(reason) {
            self.offload_failures.get_or_create(&[("reason", reason.as_str())]).inc();
        }
    }

    /// Counts a finished write.
    pub fn written(&self, operation: &Operation, outcome: Outcome, took: Duration) {
        let at = match operation {
            Operation::Insert(_) => 0,
            Operation::Modify(_) => 1,
            Operation::Delete(_) => 2,
        };
        self.table_seconds[at].observe(took);
        let labels = [("operation", OPERATIONS[at]), ("outcome", outcome_name(at, outcome))];
        self.table_operations.get_or_create(&labels).inc();
    }

    /// Counts an ended call.
    pub fn ended(&self, ended: &Ended, duration: Duration) {
        self.calls_ended.get_or_create(&[("reason", ended.reason.as_str())]).inc();
        self.call_seconds.observe(duration);
        for line in ended.lines.iter().filter(|line| line.answered) {
            match Side::BOTH.map(|side| line.party(side).has_sent()) {
                [true, true] => {}
                [false, false] => {
                    self.zero_packet.inc();
                }
                _ => {
                    self.one_way.inc();
                }
            }
        }
    }

    /// Returns the number of ended calls.
    pub fn calls_over(&self) -> u64 {
        let count = |reason: &Reason| {
            self.calls_ended
                .get(&[("reason", reason.as_str())])
                .map_or(0, |counter| counter.get())
        };
        Reason::ALL.iter().map(count).sum()
    }

    /// Counts an answered command.
    pub fn command_took(&self, request: &Request, took: Duration) {
        if let Some(seconds) = verb(request).and_then(|at| self.command_seconds.get(at)) {
            seconds.observe(took);
        }
    }

    /// Counts an answered NG command.
    pub fn count_ng(&self, verb: shunt_ng::Verb, took: Duration) {
        if let Some((_, count, seconds)) = self.ng_commands.iter().find(|(known, ..)| *known == verb) {
            count.fetch_add(1, Ordering::Relaxed);
            seconds.observe(took);
        }
    }

    /// Returns the durations of commands, by verb.
    pub fn command_times(&self) -> impl Iterator<Item = (&'static str, &Seconds<Quick>)> {
        let ng = self.ng_commands.iter().map(|(verb, _, seconds)| (verb.name(), seconds));
        VERBS.into_iter().zip(&self.command_seconds).chain(ng)
    }

    pub fn count_command(&self, request: &Request) {
        if let Some(place) = verb(request).and_then(|at| self.commands.get(at)) {
            place.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of commands of each verb.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let ng = self.ng_commands.iter().map(|(verb, count, _)| (verb.name(), count));
        let all = VERBS.into_iter().zip(&self.commands).chain(ng);
        all.map(|(verb, count)| (verb, count.load(Ordering::Relaxed)))
    }
}
