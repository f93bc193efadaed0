//! Prometheus metrics: what the agent counts, and gauges that are read when they are asked for.

use crate::conference::{Counts, CpuPortCounts};
use crate::core::Core;
use crate::stats::Stats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Mutex;
use std::sync::PoisonError;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Streams {
    state: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RelayName {
    relay: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

/// Gauges that [`Metrics::refresh`] sets.
#[derive(Default)]
pub struct Metrics {
    calls: Gauge,
    planned: Gauge,
    orphans: Gauge,
    to_restore: Gauge,
    journal_up: Gauge,
    journal_pending: Gauge,
    journal_failures: Gauge,
    data_plane_up: Gauge,
    streams: Family<Streams, Gauge>,
    /// Streams that had a value at the last refresh.
    shown: Mutex<Vec<Streams>>,
    commands: Family<Verb, Gauge>,
    relay_up: Family<RelayName, Gauge>,
    relay_sessions: Family<RelayName, Gauge>,
    conferences: Gauge,
    participants: Gauge,
    conference_rows: Gauge,
}

impl Metrics {
    /// Register all of them.
    pub fn register(&self, stats: &Stats, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("shunt");
        registry.register("calls", "Calls that run", self.calls.clone());
        registry.register(
            "entries_planned",
            "Entries of this agent in the data plane, or on their way in or out",
            self.planned.clone(),
        );
        registry.register("entries_orphaned", "Entries that no call claims", self.orphans.clone());
        registry.register(
            "calls_to_restore",
            "Calls of the journal that are not restored yet",
            self.to_restore.clone(),
        );
        registry.register(
            "journal_up",
            "Whether the journal can be written; 0 without one",
            self.journal_up.clone(),
        );
        registry.register("journal_pending", "Rows that wait to be written", self.journal_pending.clone());
        registry.register(
            "journal_failures",
            "Commits and attempts to open the journal that failed, since the start",
            self.journal_failures.clone(),
        );
        registry.register("data_plane_up", "Whether the data plane can be used", self.data_plane_up.clone());
        registry.register("streams", "RTP streams by state and reason", self.streams.clone());
        registry.register(
            "control_commands",
            "Commands of SIP servers by verb, since the start",
            self.commands.clone(),
        );
        registry.register("relay_up", "Whether a relay answers", self.relay_up.clone());
        registry.register("relay_sessions", "Sessions of a relay", self.relay_sessions.clone());
        for (name, help, counter) in [
            (
                "commands_not_understood",
                "Commands passed on that are not understood",
                &stats.not_understood,
            ),
            ("sessions_refused", "Sessions that a limit has refused", &stats.refused),
            (
                "ports_held",
                "Ports that a relay gave out although another call holds them",
                &stats.ports_held,
            ),
            (
                "ports_refused",
                "Commands refused because a relay had no other port",
                &stats.ports_refused,
            ),
            ("media_timeouts", "Media time-outs that the agent raised", &stats.media_timeouts),
            ("lines_ended", "Media lines that are over", &stats.ended),
            ("sip_messages", "Copies of SIP messages", &stats.sip_messages),
            ("sip_byes", "Copies of BYE and CANCEL", &stats.byes),
            ("hep_malformed", "HEP packets that cannot be read", &stats.hep_malformed),
            ("hep_blocked", "HEP packets from addresses that are not allowed", &stats.hep_blocked),
            (
                "learn_notices",
                "Packets that met no entry, as the data plane reports them",
                &stats.notices,
            ),
            (
                "tasks_restarted",
                "Background tasks that ended by a fault and were started again",
                &stats.tasks_restarted,
            ),
            ("loop_late", "Times that the loop was more than 100 ms late", &stats.late),
        ] {
            registry.register(name, help, counter.clone());
        }
    }

    /// Register those of conferences.
    pub fn register_conferences(&self, counts: &Counts, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("shunt_conference");
        registry.register("conferences", "Conferences that run", self.conferences.clone());
        registry.register("participants", "Participants of all conferences", self.participants.clone());
        registry.register("rows", "Rows of conferences in the data plane", self.conference_rows.clone());
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

    /// Register those of a switch's CPU port.
    pub fn register_cpu_port(counts: &CpuPortCounts, registry: &mut Registry) {
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

    /// Bring the gauges up to date.
    pub fn refresh(&self, core: &Core) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for labels in shown.drain(..) {
            self.streams.get_or_create(&labels).set(0);
        }
        core.read(|book| {
            self.calls.set(number(book.call_count()));
            self.planned.set(number(book.planned_count()));
            self.orphans.set(number(book.orphans().count()));
            for (state, reason, streams) in book.stream_counts() {
                let labels = Streams {
                    state: state.as_str(),
                    reason: reason.as_str(),
                };
                self.streams.get_or_create(&labels).set(number(streams));
                shown.push(labels);
            }
        });
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.to_restore.set(whole(core.restorer().left()));
        if let Some(status) = core.journal().map(shunt_journal::Journal::status) {
            self.journal_up.set(i64::from(status.error.is_none()));
            self.journal_pending.set(whole(status.pending));
            self.journal_failures.set(whole(status.failures));
        }
        if let Some(conferences) = core.conferences() {
            let (conferences, participants, rows) = conferences.sizes();
            self.conferences.set(number(conferences));
            self.participants.set(number(participants));
            self.conference_rows.set(number(rows));
        }
        let current = core.data_plane.current();
        self.data_plane_up.set(i64::from(current.facts.is_some() && current.down.is_none()));
        for (verb, count) in core.stats.commands() {
            self.commands
                .get_or_create(&Verb { verb })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for (_, relay) in core.relays().iter() {
            let labels = RelayName { relay: relay.name.clone() };
            self.relay_up.get_or_create(&labels).set(i64::from(relay.is_alive()));
            if let Some(sessions) = relay.facts().sessions {
                self.relay_sessions
                    .get_or_create(&labels)
                    .set(i64::try_from(sessions).unwrap_or(i64::MAX));
            }
        }
    }
}
