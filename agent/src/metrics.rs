//! Prometheus metrics: the agent's counters, and its state at the time of the request. `docs/metrics.md` has their names.

use crate::conference::{Counts, CpuPortCounts};
use crate::core::Core;
use crate::stats::OPERATIONS;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use shunt_calls::{Reason, State};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counters of the data plane as a whole, and their former names, which are served for one release.
const TOTALS: [(&str, &str, &str); 17] = [
    ("rx_packets", "rx_packets", "Packets that the data plane looked at"),
    ("relayed_packets", "relayed_packets", "Packets relayed by the data plane"),
    ("relayed_bytes", "relayed_bytes", "Bytes relayed by the data plane"),
    ("missed_packets", "missed_packets", "Packets to a media port that met no entry"),
    (
        "source_mismatch_packets",
        "source_mismatch_packets",
        "Packets to an offloaded media port from another source",
    ),
    (
        "source_mismatch_packets",
        "stray_packets",
        "Former name of shunt_data_plane_source_mismatch_packets",
    ),
    (
        "blocked_packets",
        "blocked_packets",
        "Packets dropped at a media port without an entry because their source scans ports",
    ),
    (
        "blocked_packets",
        "refused_packets",
        "Former name of shunt_data_plane_blocked_packets",
    ),
    (
        "limited_packets",
        "limited_packets",
        "Packets dropped because their stream had more than softswitch.packet_limit",
    ),
    (
        "conference_packets",
        "conference_packets",
        "Packets of conferences, each copied to its receivers",
    ),
    ("passed_packets", "passed_packets", "Packets handed on to the kernel untouched"),
    (
        "too_big_packets",
        "too_big_packets",
        "Those of them that the output interface's MTU did not take",
    ),
    (
        "unrouted_packets",
        "unrouted_packets",
        "Those of them whose destination has no route, or a neighbour that is not known yet",
    ),
    ("learn_notices", "learn_notices", "Learn notices raised"),
    ("learn_suppressed", "learn_suppressed", "Learn notices left out by rate limiting"),
    (
        "learn_lost",
        "learn_lost",
        "Learn notices lost because the softswitch had not read the earlier ones",
    ),
    (
        "agent_lost",
        "agent_lost",
        "Conference packets for the agent lost because the softswitch had not read the earlier ones",
    ),
];

/// Registers all of the agent's metrics.
pub fn register(core: &Arc<Core>, has_hep: bool, registry: &mut Registry) {
    let stats = &core.stats;
    let snapshot = Snapshot {
        core: Arc::clone(core),
        has_hep,
    };
    registry.register_collector(Box::new(snapshot));
    let shunt = registry.sub_registry_with_prefix("shunt");
    shunt.register(
        "learn_verdicts",
        "Packets at calls' ports that met no entry, by what learning made of them",
        stats.learn_verdicts.clone(),
    );
    shunt.register(
        "table_operations",
        "Operations on the relay table, by outcome",
        stats.table_operations.clone(),
    );
    shunt.register(
        "offload_failures",
        "Streams that had to stay on or go back to the relay, by reason",
        stats.offload_failures.clone(),
    );
    shunt.register(
        "time_to_offload_seconds",
        "From both parties' first packet to the entry in the data plane",
        stats.time_to_offload.histogram.clone(),
    );
    shunt.register("calls_ended", "Calls that ended, by reason", stats.calls_ended.clone());
    shunt.register(
        "call_duration_seconds",
        "Length of calls on the relay's ports",
        stats.call_seconds.histogram.clone(),
    );
    for (name, help, counter) in [
        (
            "one_way",
            "Media lines with an answer that ended without a packet of one party",
            &stats.one_way,
        ),
        (
            "zero_packet",
            "Media lines with an answer that ended without a packet of either party",
            &stats.zero_packet,
        ),
        ("media_timeouts", "Media time-outs raised", &stats.media_timeouts),
        (
            "commands_not_understood",
            "Commands passed on that are not understood",
            &stats.not_understood,
        ),
        (
            "learn_notices",
            "Packets that met no entry, as the data plane reported them",
            &stats.notices,
        ),
    ] {
        shunt.register(name, help, counter.clone());
    }
    if let Some(conferences) = core.conferences() {
        register_conferences(conferences.counts(), registry);
        if let Some(counts) = conferences.cpu_port_counts() {
            register_cpu_port(counts, registry);
        }
    }
}

fn register_conferences(counts: &Counts, registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("shunt_conference");
    for (name, help, counter) in [
        ("rtcp_taken", "RTCP packets of participants", &counts.rtcp_taken),
        (
            "rtcp_refused",
            "RTCP packets that are malformed, or not from where the media comes from",
            &counts.rtcp_refused,
        ),
        ("stun_answered", "Connectivity checks answered", &counts.stun_answered),
        ("stun_refused", "STUN packets without the right credentials", &counts.stun_refused),
        ("nacks", "NACKs of receivers, by stream", &counts.nacks),
        ("retransmitted", "Packets sent again to who asked for them", &counts.retransmitted),
        ("key_frames_wanted", "Reasons to ask for a key frame", &counts.key_frames_wanted),
        (
            "key_frames_asked",
            "Requests for a key frame sent to senders",
            &counts.key_frames_asked,
        ),
        (
            "packets_copied",
            "Packets that the data plane has copied to the agent",
            &counts.packets_copied,
        ),
        (
            "source_mismatches",
            "Packets to a participant's port that are not its own",
            &counts.source_mismatches,
        ),
        ("rows_written", "Rows written to the data plane", &counts.rows_written),
    ] {
        registry.register(name, help, counter.clone());
    }
}

/// Counters of a switch's CPU port.
fn register_cpu_port(counts: &CpuPortCounts, registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("shunt_cpu_port");
    for (name, help, counter) in [
        ("frames", "Frames that came by the CPU port of the switch", &counts.frames),
        (
            "malformed",
            "Of these, frames that are no whole UDP datagram, or whose checksum is wrong",
            &counts.malformed,
        ),
        ("lost", "Frames for which there was no room", &counts.lost),
        ("sent", "Frames sent by the CPU port", &counts.sent),
        ("unsent", "Datagrams that could not be sent by it", &counts.unsent),
    ] {
        registry.register(name, help, counter.clone());
    }
}

/// Returns how often each limit was reached, by the names of docs/limits.md.
#[must_use]
pub fn limits(core: &Core) -> BTreeMap<String, u64> {
    let stats = &core.stats;
    let failures = |reason: Reason| {
        let labels = [("reason", reason.as_str())];
        stats.offload_failures.get(&labels).map_or(0, |counter| counter.get())
    };
    let journal = core.journal().map(|journal| journal.status().failures);
    let limits = [
        ("table_full", Some(failures(Reason::TableFull))),
        ("sessions_refused", Some(stats.refused.get())),
        ("commands_expired", Some(stats.commands_expired.get())),
        ("ports_held", Some(stats.ports_held.get())),
        ("ports_refused", Some(stats.ports_refused.get())),
        ("scanners_blocked", Some(stats.scanners_blocked.get())),
        ("tasks_restarted", Some(stats.tasks_restarted.get())),
        ("loop_late", Some(stats.late.get())),
        ("journal_failures", journal),
    ];
    let known = limits.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?)));
    known.collect()
}

/// Returns the number of RTP streams that are offloaded, being learned, and on the relay for another reason.
fn by_carrier(counts: impl Iterator<Item = (State, Reason, usize)>) -> [(&'static str, usize); 3] {
    let (mut offloaded, mut learning, mut relayed) = (0, 0, 0);
    for (state, reason, count) in counts {
        match state {
            State::Released => {}
            State::Offloaded => offloaded += count,
            State::Learning | State::Allocated if reason != Reason::NoDataPlane => learning += count,
            _ => relayed += count,
        }
    }
    [("offloaded", offloaded), ("learning", learning), ("relayed", relayed)]
}

/// The agent's state at the time of the request.
struct Snapshot {
    core: Arc<Core>,
    has_hep: bool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

/// Writes families of values.
struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn gauges<L: EncodeLabelSet>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (L, f64)>) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn counters<L: EncodeLabelSet>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (L, u64)>) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)]
fn float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut to = Writer { encoder };
        self.agent(&mut to)?;
        self.pair(&mut to)?;
        self.calls(&mut to)?;
        self.relays(&mut to)?;
        self.commands(&mut to)?;
        self.data_plane(&mut to)?;
        self.conferences(&mut to)
    }
}

impl Snapshot {
    fn agent(&self, to: &mut Writer) -> fmt::Result {
        let core = &self.core;
        let mut info = to.encoder.encode_descriptor("shunt", "The agent", None, MetricType::Info)?;
        info.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        to.gauge(
            "shunt_uptime_seconds",
            "Seconds since the agent's start",
            core.clock().uptime().as_secs_f64(),
        )?;
        to.gauge(
            "shunt_agent_draining",
            "1 while the agent drains: no new stream is offloaded",
            f64::from(u8::from(core.drain().is_some())),
        )?;
        let limits = limits(core);
        let limits = limits.iter().map(|(name, count)| ([("limit", name.as_str())], *count));
        to.counters("shunt_limits", "Limits that were met, by name (docs/limits.md)", limits)?;
        if let Some(status) = core.journal().map(shunt_journal::Journal::status) {
            let up = f64::from(u8::from(status.error.is_none()));
            to.gauge("shunt_journal_up", "Whether the journal can be written", up)?;
            to.gauge("shunt_journal_pending", "Rows that wait to be written", float(status.pending))?;
            to.counter("shunt_journal_failures", "Journal writes that failed", status.failures)?;
        }
        if self.has_hep {
            let stats = &core.stats;
            to.counter("shunt_hep_messages", "SIP messages seen by HEP", stats.sip_messages.get())?;
            to.counter("shunt_hep_byes", "BYE and CANCEL seen by HEP", stats.byes.get())?;
            to.counter("shunt_hep_malformed", "HEP packets that cannot be read", stats.hep_malformed.get())?;
            to.counter(
                "shunt_hep_blocked",
                "HEP packets from addresses that are not allowed",
                stats.hep_blocked.get(),
            )?;
        }
        Ok(())
    }

    fn pair(&self, to: &mut Writer) -> fmt::Result {
        let Some(pair) = self.core.pair() else { return Ok(()) };
        let roles = [("active", pair.is_active()), ("standby", !pair.is_active())];
        let roles = roles.map(|(role, is_it)| ([("role", role)], float(u8::from(is_it))));
        to.gauges("shunt_role", "1 for the part that this agent plays in its pair", roles)?;
        to.counter(
            "shunt_takeovers",
            "Times that this agent has taken over, since it began to stand by",
            pair.takeovers.load(Ordering::Relaxed),
        )?;
        to.counter(
            "shunt_commands_passed_on",
            "Commands that the agent in charge has answered for this one",
            pair.passed_on.load(Ordering::Relaxed),
        )?;
        to.counter(
            "shunt_fenced_writes",
            "Requests to the data plane that were not sent because another agent might be in charge",
            pair.fence.refused(),
        )
    }

    fn calls(&self, to: &mut Writer) -> fmt::Result {
        let (calls, counts, mismatches, recorders) = self.core.read(|book| {
            let counts: Vec<_> = book.stream_counts().collect();
            (book.call_count(), counts, book.source_mismatches(), book.recorder_count())
        });
        to.gauge("shunt_calls", "Calls that the agent knows", float(calls))?;
        let carriers = by_carrier(counts.iter().copied());
        let states = carriers.iter().map(|(state, count)| ([("state", *state)], float(*count)));
        to.gauges("shunt_streams", "RTP streams by state", states)?;
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, reason, count) in counts.iter().filter(|(state, _, _)| *state != State::Released) {
            *reasons.entry(reason.as_str()).or_default() += count;
        }
        let reasons = reasons.into_iter().map(|(reason, count)| ([("reason", reason)], float(count)));
        to.gauges("shunt_streams_by_reason", "RTP streams by the reason for their state", reasons)?;
        to.gauge("shunt_recorders", "Recorders that get media lines from relays", float(recorders))?;
        let all: usize = carriers.iter().map(|(_, count)| count).sum();
        if all > 0 {
            let share = float(carriers[0].1) / float(all);
            to.gauge(
                "shunt_offload_share",
                "Share of the RTP streams that the data plane carries, 0 to 1",
                share,
            )?;
        }
        to.gauge(
            "shunt_calls_to_restore",
            "Calls of the journal that are not restored yet",
            float(self.core.restorer().left()),
        )?;
        to.counter(
            "shunt_source_mismatches",
            "Packets at calls' ports that were not their party's",
            mismatches,
        )?;
        to.counter("shunt_strays_ignored", "Former name of shunt_source_mismatches", mismatches)
    }

    fn relays(&self, to: &mut Writer) -> fmt::Result {
        let relays: Vec<_> = self.core.relays().iter().map(|(_, relay)| (relay, relay.facts())).collect();
        let up = relays
            .iter()
            .map(|(relay, _)| ([("relay", relay.name.as_str())], float(u8::from(relay.is_alive()))));
        to.gauges("shunt_relay_up", "Whether the relay answers", up)?;
        let sessions = relays
            .iter()
            .filter_map(|(relay, facts)| Some(([("relay", relay.name.as_str())], float(facts.sessions?))));
        to.gauges("shunt_relay_sessions", "Sessions on the relay", sessions)?;
        let packets = relays
            .iter()
            .filter_map(|(relay, facts)| Some(([("relay", relay.name.as_str())], facts.packets_relayed?)));
        to.counters("shunt_relay_packets", "Media packets that the relay relayed", packets)?;
        let unanswered = relays
            .iter()
            .map(|(relay, _)| ([("relay", relay.name.as_str())], relay.unanswered.get()));
        to.counters("shunt_relay_unanswered", "Commands that a relay did not answer", unanswered)?;
        let mut times = to.encoder.encode_descriptor(
            "shunt_relay_reply_seconds",
            "Time of a relay's reply to a command",
            None,
            MetricType::Histogram,
        )?;
        for (relay, _) in &relays {
            let labels = [("relay", relay.name.as_str())];
            relay.reply_seconds.histogram.encode(times.encode_family(&labels)?)?;
        }
        let counted: Vec<u64> = relays.iter().filter_map(|(_, facts)| facts.packets_relayed).collect();
        let plane = self.core.data_plane.current();
        let plane = plane.total("relayed_packets").filter(|_| plane.is_up());
        let carried = [
            ("data_plane", plane),
            ("relay", (!counted.is_empty()).then(|| counted.iter().sum())),
        ];
        let carried = carried
            .into_iter()
            .filter_map(|(carrier, packets)| Some(([("carrier", carrier)], packets?)));
        to.counters("shunt_media_packets", "Media packets by carrier", carried)
    }

    fn commands(&self, to: &mut Writer) -> fmt::Result {
        let stats = &self.core.stats;
        let counted = stats.commands().filter(|(_, count)| *count > 0);
        let counted = counted.map(|(verb, count)| ([("command", verb)], count));
        to.counters("shunt_control_commands", "Control commands from SIP servers", counted)?;
        let mut times = to.encoder.encode_descriptor(
            "shunt_control_command_seconds",
            "From a SIP server's command to its reply, the relay's time included",
            None,
            MetricType::Histogram,
        )?;
        for ((verb, seconds), (_, count)) in stats.command_times().zip(stats.commands()) {
            if count > 0 {
                seconds.histogram.encode(times.encode_family(&[("command", verb)])?)?;
            }
        }
        Ok(())
    }

    fn data_plane(&self, to: &mut Writer) -> fmt::Result {
        // A standby agent has no data plane, which is no fault.
        let stands_by = self.core.pair().is_some_and(|pair| !pair.is_active());
        let Some(plane) = self.core.plane().filter(|_| !stands_by) else {
            return Ok(());
        };
        let current = self.core.data_plane.current();
        let up = current.is_up();
        to.gauge("shunt_data_plane_up", "Whether the data plane can be used", float(u8::from(up)))?;
        if let Some(entries) = current.total("entries") {
            to.gauge("shunt_data_plane_entries", "Relay entries in the data plane", float(entries))?;
        }
        if let Some(facts) = &current.facts {
            to.gauge(
                "shunt_data_plane_capacity",
                "Relay entries that the data plane can hold",
                float(facts.capacity),
            )?;
        }
        let (planned, orphans) = self.core.read(|book| (book.planned_count(), book.orphans().count()));
        to.gauge("shunt_data_plane_ours", "Relay entries that this agent holds", float(planned))?;
        to.gauge(
            "shunt_data_plane_orphans",
            "Relay entries that no call claims (left by an agent before this one)",
            float(orphans),
        )?;
        to.gauge(
            "shunt_data_plane_totals_read",
            "Whether the data plane's own counters could be read",
            float(u8::from(up && current.totals.is_some())),
        )?;
        for (field, name, help) in TOTALS {
            // The counters of an unreachable data plane are unknown; a constant counter would be a rate of 0.
            if let Some(count) = current.total(field).filter(|_| up) {
                to.counter(&format!("shunt_data_plane_{name}"), help, count)?;
            }
        }
        let mut dropped = current
            .dropped()
            .filter(|_| up)
            .map(|(reason, packets)| ([("reason", reason)], packets))
            .peekable();
        if dropped.peek().is_some() {
            to.counters(
                "shunt_data_plane_dropped_packets",
                "Packets that the switch has dropped, by reason (docs/switch.md)",
                dropped,
            )?;
        }
        let writes = plane.statistics();
        for (name, help, count) in [
            ("batches", "Requests with table writes", writes.batches),
            ("updates", "Table writes", writes.updates),
            ("retries", "Requests with table writes that were repeated", writes.retries),
            ("failures", "Table writes that were not done", writes.failures),
            (
                "collisions",
                "Table writes that another entry's hash was in the way of",
                writes.collisions,
            ),
        ] {
            to.counter(&format!("shunt_table_batches_{name}"), help, count)?;
        }
        to.gauge("shunt_table_writes_waiting", "Table writes that wait", float(writes.waiting))?;
        let mut times = to.encoder.encode_descriptor(
            "shunt_table_operation_seconds",
            "Time of relay table operations, queueing included",
            None,
            MetricType::Histogram,
        )?;
        for (operation, seconds) in OPERATIONS.into_iter().zip(&self.core.stats.table_seconds) {
            seconds.histogram.encode(times.encode_family(&[("operation", operation)])?)?;
        }
        Ok(())
    }

    fn conferences(&self, to: &mut Writer) -> fmt::Result {
        let Some(conferences) = self.core.conferences() else {
            return Ok(());
        };
        let (count, participants, rows) = conferences.sizes();
        let list = conferences.list();
        let mut designs: BTreeMap<&str, usize> = BTreeMap::new();
        for conference in &list {
            *designs.entry(conference.design.as_str()).or_default() += 1;
        }
        let designs = designs.into_iter().map(|(design, count)| ([("design", design)], float(count)));
        to.gauges("shunt_conferences", "Conferences by the design of their trees", designs)?;
        let with_problem = list.iter().filter(|conference| conference.problem.is_some()).count();
        to.gauge(
            "shunt_conferences_with_problem",
            "Conferences that the data plane does not hold as they are to be",
            float(with_problem),
        )?;
        to.gauge("shunt_conference_conferences", "Conferences that run", float(count))?;
        to.gauge(
            "shunt_conference_participants_present",
            "Participants of all conferences",
            float(participants),
        )?;
        to.gauge("shunt_conference_rows", "Rows of conferences in the data plane", float(rows))?;
        let (placed, mixed) = conferences.mixed_sizes();
        let lacking = conferences.lacking_mixers().len();
        to.gauge("shunt_conference_placed", "Conferences whose audio a mixer has", float(placed))?;
        to.gauge("shunt_conference_mixed", "Participants who get a mix", float(mixed))?;
        let (tilings, tiled) = conferences.tiled_sizes();
        to.gauge("shunt_conference_tilings", "Conferences whose video a mixer tiles", float(tilings))?;
        to.gauge("shunt_conference_tiled", "Participants whose video comes tiled", float(tiled))?;
        to.gauge("shunt_conference_mixers_lacking", "Mixers that do not answer", float(lacking))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_by_who_carries_them() {
        let counts = [
            (State::Offloaded, Reason::Offloaded, 3),
            (State::Offloaded, Reason::Silent, 1),
            (State::Learning, Reason::WaitingForMedia, 2),
            (State::Allocated, Reason::NoDataPlane, 5),
            (State::Suspended, Reason::Recording, 1),
            (State::Released, Reason::Released, 9),
        ];
        assert_eq!(by_carrier(counts.into_iter()), [("offloaded", 4), ("learning", 2), ("relayed", 6)]);
    }
}
