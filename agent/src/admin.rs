//! Implements the admin API's requests.

use crate::captures;
use crate::conference::Conferences;
use crate::core::Core;
use crate::data_plane;
use crate::metrics;
use crate::standby::Pair;
use crate::view;
use shunt_admin::{
    Admin, Announcements, Audit, CallFilter, CallPage, CallView, CaptureFilter, CaptureLine, Commands, Conference, ConferenceSummary,
    CountersOf, DataPlaneStatus, DrainStatus, EndedCounts, Estimate, Failure, FailureKind, HepStatus, InterfaceStatus, Join, JournalStatus,
    LogFilter, Participant, ParticipantUpdate, Problem, QualityChange, RelayStatus, Role, Status, StopOf, StreamCount, TableWrites,
    TargetChange, Text, Tiling, TilingWish, Trace, TraceCall, TraceVerdict,
};
use shunt_calls::{LineId, RelayId, RelayKind};
use shunt_control::Statistics;
use shunt_net::{Endpoint, FiveTuple};
use shunt_rtpproxy::capability::KeepAlive;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, mpsc};
use tokio::time::timeout;

/// Most lines of a call for which the relay is asked for its counts, and the deadline.
const MOST_QUESTIONS: usize = 8;
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Implementation of the server's requests.
pub struct AgentView {
    pub core: Arc<Core>,
    /// The data plane's target, as configured.
    pub target: Option<String>,
    /// Control sockets and their counters.
    pub control: Vec<(String, Statistics)>,
    pub has_hep: bool,
    /// When each problem was first seen.
    pub since: Mutex<HashMap<String, Instant>>,
}

/// Returns a text, unless it is empty.
fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn interface((name, mode): &(String, String)) -> InterfaceStatus {
    InterfaceStatus {
        name: name.clone(),
        mode: mode.clone(),
    }
}

fn journal(journal: &shunt_journal::Journal) -> JournalStatus {
    let status = journal.status();
    JournalStatus {
        kind: journal.kind().into(),
        failures: status.failures,
        pending: status.pending,
        error: status.error,
    }
}

/// Returns the entries of a call.
fn entries_of<'a>(book: &'a shunt_calls::Book, call_id: &'a [u8]) -> impl Iterator<Item = FiveTuple> + 'a {
    let streams = book.lines_of_call(call_id).flat_map(|line| line.streams());
    streams.filter_map(|stream| stream.entry).map(|entry| entry.key())
}

/// Returns whether the store of the lease, which also holds the journal, is reported as failing.
fn problems_of_store(pair: Option<&Arc<Pair>>) -> bool {
    pair.is_some_and(|pair| pair.store_error().is_some())
}

/// Returns how a relay's sessions are kept, as a word of the API.
fn keepalive(kind: RelayKind, of_rtpproxy: Option<KeepAlive>) -> Option<&'static str> {
    match (kind, of_rtpproxy) {
        (RelayKind::Rtpengine, _) => Some("packets"),
        (RelayKind::Rtpproxy, Some(KeepAlive::Lookup)) => Some("lookup"),
        (RelayKind::Rtpproxy, Some(KeepAlive::TtlModifier | KeepAlive::TtlSubcommand)) => Some("ttl"),
        (RelayKind::Rtpproxy, None) => None,
    }
}

impl AgentView {
    fn conference_engine(&self) -> Result<&Arc<Conferences>, Failure> {
        let none = || Failure::new(FailureKind::NotConfigured, "conferences are not configured (section conference)");
        let engine = self.core.conferences().ok_or_else(none)?;
        self.in_charge()?;
        Ok(engine)
    }

    /// Checks that this agent is active.
    ///
    /// # Errors
    /// Another agent of the group is active: ask that one.
    fn in_charge(&self) -> Result<(), Failure> {
        let Some(pair) = self.core.pair().filter(|pair| !pair.is_active()) else {
            return Ok(());
        };
        let other = pair
            .holder_name()
            .map_or_else(|| "nobody is in charge yet".into(), |name| format!("{name} is in charge"));
        Err(Failure::new(FailureKind::Unavailable, format!("this agent stands by: {other}")))
    }

    fn role(&self) -> Role {
        match self.core.pair() {
            None => Role::Single,
            Some(pair) if pair.is_active() => Role::Active,
            Some(_) => Role::Standby,
        }
    }

    /// Returns the path of the data plane's socket for captures.
    ///
    /// # Errors
    /// The data plane has none.
    fn capture_socket(&self) -> Result<String, Failure> {
        let none = |message: String| Failure::new(FailureKind::NotConfigured, message);
        let Some(target) = &self.target else {
            return Err(none("there is no data plane (section data_plane): capture at the relay".into()));
        };
        let path = target.strip_prefix("unix:").map(std::path::Path::new);
        // The softswitch binds it beside the socket of its tables.
        path.map(|path| path.with_extension("capture").display().to_string()).ok_or_else(|| {
            none(format!(
                "only a softswitch at a Unix socket captures packets; this data plane is at {target}. On a switch, mirror the ports of the phones"
            ))
        })
    }

    fn relay_name(&self, id: RelayId) -> String {
        self.core.relays().get(id).map(|relay| relay.name.clone()).unwrap_or_default()
    }

    fn relays(&self) -> Vec<RelayStatus> {
        let status = |relay: &crate::relays::Relay| {
            let facts = relay.facts();
            RelayStatus {
                name: relay.name.clone(),
                address: relay.address.clone(),
                alive: relay.is_alive(),
                sessions: facts.sessions,
                version: Some(facts.version).filter(|version| !version.is_empty()),
                keepalive: keepalive(relay.kind, facts.keepalive).map(Into::into),
                packets_relayed: facts.packets_relayed,
                error: relay.error(),
            }
        };
        self.core.relays().iter().map(|(_, relay)| status(relay)).collect()
    }

    fn data_plane(&self) -> Option<DataPlaneStatus> {
        let target = self.target.clone()?;
        let current = self.core.data_plane.current();
        let facts = current.facts.as_deref();
        let (planned, orphans) = self.core.read(|book| (book.planned_count(), book.orphans().count()));
        Some(DataPlaneStatus {
            target,
            connected: facts.is_some() && current.down.is_none(),
            name: facts.map(|facts| facts.name.clone()),
            entries: current.total("entries"),
            capacity: facts.map(|facts| facts.capacity),
            planned: planned as u64,
            orphans: orphans as u64,
            reconciled: current.is_reconciled(),
            lacks: facts.map(|facts| facts.lacks.clone()).unwrap_or_default(),
            packets_relayed: current.total("relayed_packets"),
            totals: current.totals.as_ref().map(|(totals, _)| (**totals).clone()),
            interfaces: current.interfaces.as_deref().map(|found| found.iter().map(interface).collect()),
            age_s: current.totals.as_ref().map(|(_, read)| read.elapsed().as_secs_f64()),
        })
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |code: &str, message: String| {
            problems.push(Problem {
                code: code.into(),
                message,
                since_s: None,
            });
        };
        for (_, relay) in self.core.relays().iter().filter(|(_, relay)| !relay.is_alive()) {
            add("relay-down", format!("relay {} ({}) does not answer", relay.name, relay.address));
        }
        if let Some(pair) = self.core.pair() {
            if let Some(error) = pair.store_error() {
                add("journal-failed", format!("nobody can take over: {error}"));
            }
            if let Some(error) = pair.hep_error() {
                add("hep-failed", error);
            }
            if !pair.is_active() && pair.holder_name().is_none() {
                add("no-active-agent", "no agent of the group has the lease".into());
            }
        }
        let current = self.core.data_plane.current();
        if self.role() == Role::Standby {
            // The data plane belongs to the other agent.
        } else if let (Some(target), Some(reason)) = (&self.target, &current.down) {
            add("data-plane-down", format!("{target}: {reason}"));
        } else if let (Some(target), None) = (&self.target, &current.facts) {
            add("data-plane-down", format!("{target}: not connected yet"));
        }
        if self.role() != Role::Standby && current.is_up() && current.set_up == Some(false) {
            add("switch-not-set-up", data_plane::NOT_SET_UP.into());
        }
        if let Some((interface, problem)) = self.core.conferences().and_then(|conferences| conferences.cpu_port_problem()) {
            add("cpu-port", format!("data_plane.cpu_interface {interface}: {problem}"));
        }
        for (mixer, problem) in self
            .core
            .conferences()
            .map(|conferences| conferences.lacking_mixers())
            .unwrap_or_default()
        {
            add("mixer-down", format!("{mixer}: {problem}"));
        }
        let is_said = problems_of_store(self.core.pair());
        if let Some(error) = self.core.journal().and_then(|journal| journal.status().error).filter(|_| !is_said) {
            add("journal-failed", error);
        }
        if let Some(status) = self.core.events().log().map(shunt_admin::EventLog::status)
            && status.dropped > 0
        {
            add("events-dropped", format!("{} events were dropped", status.dropped));
        }
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        // A problem is identified by its message, or by its code if the message has a growing number.
        let name = |problem: &Problem| match problem.code.as_str() {
            "relay-down" | "mixer-down" => problem.message.clone(),
            code => code.to_owned(),
        };
        since.retain(|known, _| problems.iter().any(|problem| name(problem) == *known));
        for problem in &mut problems {
            let first = *since.entry(name(problem)).or_insert_with(Instant::now);
            problem.since_s = Some(first.elapsed().as_secs());
        }
        problems
    }

    fn commands(&self) -> Commands {
        let sum = |count: fn(&shunt_control::Counts) -> u64| self.control.iter().map(|(_, statistics)| count(&statistics.counts())).sum();
        Commands {
            by_verb: self
                .core
                .stats
                .commands()
                .filter(|(_, count)| *count > 0)
                .map(|(verb, count)| (verb.to_owned(), count))
                .collect(),
            not_understood: self.core.stats.not_understood.get(),
            retransmissions: sum(|counts| counts.repeated),
            without_reply: sum(|counts| counts.unanswered),
        }
    }

    fn table_writes(&self) -> Option<TableWrites> {
        let counts = self.core.plane()?.statistics();
        Some(TableWrites {
            batches: counts.batches,
            updates: counts.updates,
            retries: counts.retries,
            failures: counts.failures,
            collisions: counts.collisions,
            waiting: counts.waiting,
        })
    }

    /// Reads the counters of these entries. Returns why they could not be read.
    async fn read_counters(&self, keys: &[FiveTuple]) -> Option<String> {
        let plane = self.core.plane()?;
        if let Err(error) = plane.facts() {
            return Some(error.to_string());
        }
        match plane.readings(keys).await {
            Ok(read) => {
                self.core.counted(&read);
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn drain(&self) -> DrainStatus {
        let drain = self.core.drain();
        let (calls, entries) = self.core.read(|book| (book.call_count(), book.planned_count()));
        DrainStatus {
            stop: drain.map(|drain| drain.stop),
            since_s: drain.map(|drain| self.core.clock().wall().saturating_sub(drain.since).as_secs_f64()),
            group: drain.is_some_and(|drain| drain.group),
            calls: calls as u64,
            entries: entries as u64,
        }
    }
}

impl Admin for AgentView {
    async fn status(&self) -> Result<Status, Failure> {
        let problems = self.problems();
        let clock = self.core.clock();
        let started = clock.wall().saturating_sub(clock.uptime());
        let stats = &self.core.stats;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_us: u64::try_from(started.as_micros()).unwrap_or(u64::MAX),
            uptime_s: clock.uptime().as_secs_f64(),
            role: self.role(),
            ready: !problems
                .iter()
                .any(|problem| problem.code.ends_with("-down") || problem.code == "no-active-agent"),
            problems,
            control: self.control.iter().map(|(address, _)| address.clone()).collect(),
            relays: self.relays(),
            data_plane: self.data_plane(),
            calls: self.core.read(shunt_calls::Book::call_count) as u64,
            calls_to_restore: self.core.restorer().left(),
            streams: self.core.read(|book| {
                let count = |(state, reason, streams): (_, _, usize)| StreamCount {
                    state,
                    reason,
                    streams: streams as u64,
                };
                book.stream_counts().map(count).collect()
            }),
            commands: self.commands(),
            hep: self.has_hep.then(|| HepStatus {
                messages: stats.sip_messages.get(),
                byes: stats.byes.get(),
                blocked: stats.hep_blocked.get(),
                malformed: stats.hep_malformed.get(),
            }),
            journal: self.core.journal().map(journal),
            drain: self.drain(),
            media_timeouts: stats.media_timeouts.get(),
            source_mismatches: self.core.read(shunt_calls::Book::source_mismatches),
            ended: EndedCounts {
                calls: stats.calls_over(),
                one_way: stats.one_way.get(),
                zero_packet: stats.zero_packet.get(),
            },
            learn_notices: stats.notices.get(),
            table_writes: self.table_writes(),
            limits: metrics::limits(&self.core),
            conferences: self.core.conferences().map(|conferences| conferences.sizes().0 as u64),
        })
    }

    async fn calls(&self, filter: CallFilter) -> Result<CallPage, Failure> {
        let clock = self.core.clock();
        let asked = clock.now();
        let look = || {
            self.core
                .read(|book| view::page(book, &clock, asked, |id| self.relay_name(id), &filter))
        };
        let page = look();
        if filter.counters == CountersOf::Last {
            return Ok(page);
        }
        let keys: Vec<FiveTuple> = self
            .core
            .read(|book| page.calls.iter().flat_map(|call| entries_of(book, &call.call.0)).collect());
        let error = self.read_counters(&keys).await;
        let mut page = look();
        for call in &mut page.calls {
            call.counters_error.clone_from(&error);
        }
        Ok(page)
    }

    async fn call(&self, call: Text, fresh: bool) -> Result<CallView, Failure> {
        self.core.restorer().restore_call(&self.core, &call.0).await;
        let (clock, mut stale) = (self.core.clock(), None);
        let asked = clock.now();
        if fresh {
            let (keys, lines): (Vec<FiveTuple>, Vec<LineId>) = self.core.read(|book| {
                let lines = book.lines_of_call(&call.0).map(|line| line.id()).take(MOST_QUESTIONS);
                (entries_of(book, &call.0).collect(), lines.collect())
            });
            let on_relay = timeout(RELAY_TIMEOUT, self.core.count_on_relay(&lines));
            (stale, _) = tokio::join!(self.read_counters(&keys), on_relay);
        }
        let found = self
            .core
            .read(|book| view::call(book, &clock, asked, |id| self.relay_name(id), &call.0));
        let mut found = found.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("no call with Call-ID {}", call.as_text())))?;
        found.counters_error = stale;
        Ok(found)
    }

    async fn release(&self, call: Text) -> Result<(), Failure> {
        self.in_charge()?;
        self.core.restorer().restore_call(&self.core, &call.0).await;
        self.core
            .end_call(&call.0)
            .then_some(())
            .ok_or_else(|| Failure::new(FailureKind::NotFound, format!("no call with Call-ID {}", call.as_text())))
    }

    async fn trace(&self, source: Endpoint, destination: Endpoint) -> Result<Trace, Failure> {
        let key = FiveTuple::new(source, destination);
        let call = self.core.read(|book| {
            let id = book.stream_at(key.dst)?;
            let line = book.line(id.line)?;
            let stream = line.stream(id.sender, id.component);
            Some(TraceCall {
                call: line.call_id().into(),
                media: line.media(),
                from: id.sender,
                component: id.component.into(),
                state: stream.state,
                reason: stream.reason,
                expected_source: line.leg(id.sender).learned,
            })
        });
        let data_plane = match self.core.plane() {
            Some(plane) => match plane.trace(key).await {
                Ok(found) => Some(TraceVerdict {
                    verdict: found.verdict,
                    reason: some(found.reason),
                    out_source: found.out_src.parse().ok(),
                    out_destination: found.out_dst.parse().ok(),
                    out_interface: some(found.out_interface),
                }),
                Err(shunt_plane::PlaneError::Schema(_)) => None,
                Err(error) => return Err(Failure::new(FailureKind::Unavailable, error.to_string())),
            },
            None => None,
        };
        Ok(Trace {
            source,
            destination,
            data_plane,
            call,
        })
    }

    async fn drain(&self, stop: Option<StopOf>, group: bool) -> Result<DrainStatus, Failure> {
        self.in_charge()?;
        if group && self.core.pair().is_none() {
            return Err(Failure::new(
                FailureKind::NotConfigured,
                "this agent is of no group (section journal: redis)",
            ));
        }
        self.core.set_drain(stop, group);
        self.core.keep().await;
        Ok(self.drain())
    }

    async fn drain_status(&self) -> Result<DrainStatus, Failure> {
        Ok(self.drain())
    }

    async fn audit(&self) -> Result<Audit, Failure> {
        let Some(plane) = self.core.plane() else {
            return Err(Failure::new(
                FailureKind::NotConfigured,
                "no data plane is configured (section data_plane)",
            ));
        };
        plane.audit();
        self.core
            .audited()
            .await
            .ok_or_else(|| Failure::new(FailureKind::Unavailable, "the data plane is not available"))
    }

    async fn capture(&self, filter: CaptureFilter, client: String) -> Result<mpsc::Receiver<CaptureLine>, Failure> {
        self.in_charge()?;
        let socket = self.capture_socket()?;
        if let Some(call) = &filter.call {
            self.core.restorer().restore_call(&self.core, &call.0).await;
        }
        captures::begin(&self.core, filter, client, socket)
    }

    async fn log_filter(&self) -> Result<LogFilter, Failure> {
        Ok(LogFilter {
            filter: shunt_daemon::log_filter(),
        })
    }

    async fn set_log_filter(&self, filter: LogFilter) -> Result<LogFilter, Failure> {
        shunt_daemon::set_log_filter(&filter.filter).map_err(|error| Failure::new(FailureKind::Invalid, error))?;
        self.log_filter().await
    }

    async fn conferences(&self) -> Result<Vec<ConferenceSummary>, Failure> {
        Ok(self.conference_engine()?.list())
    }

    async fn create_conference(&self, conference: Text) -> Result<ConferenceSummary, Failure> {
        let made = self.conference_engine()?.create(&conference.as_text())?;
        self.core.keep().await;
        Ok(made)
    }

    async fn conference(&self, conference: Text) -> Result<Conference, Failure> {
        self.conference_engine()?.look_at(&conference.as_text()).await
    }

    async fn end_conference(&self, conference: Text) -> Result<(), Failure> {
        self.conference_engine()?.end(&conference.as_text()).await?;
        self.core.keep().await;
        Ok(())
    }

    async fn join(&self, conference: Text, join: Join) -> Result<Participant, Failure> {
        let joined = self.conference_engine()?.join(&conference.as_text(), &join).await?;
        self.core.keep().await;
        Ok(joined)
    }

    async fn update_participant(&self, conference: Text, participant: Text, update: ParticipantUpdate) -> Result<Participant, Failure> {
        let engine = self.conference_engine()?;
        let updated = engine.update(&conference.as_text(), &participant.as_text(), &update)?;
        self.core.keep().await;
        Ok(updated)
    }

    async fn leave(&self, conference: Text, participant: Text, reason: String) -> Result<(), Failure> {
        let engine = self.conference_engine()?;
        engine.leave(&conference.as_text(), &participant.as_text(), &reason).await?;
        self.core.keep().await;
        Ok(())
    }

    async fn set_quality(&self, conference: Text, change: QualityChange) -> Result<(), Failure> {
        self.conference_engine()?.set_quality(&conference.as_text(), &change)?;
        self.core.keep().await;
        Ok(())
    }

    async fn set_targets(&self, conference: Text, change: TargetChange) -> Result<(), Failure> {
        self.conference_engine()?.set_targets(&conference.as_text(), &change)?;
        self.core.keep().await;
        Ok(())
    }

    async fn set_tiling(&self, conference: Text, wish: TilingWish) -> Result<Tiling, Failure> {
        let made = self.conference_engine()?.set_tiling(&conference.as_text(), wish)?;
        self.core.keep().await;
        Ok(made)
    }

    async fn set_announcements(&self, conference: Text, wish: Announcements) -> Result<(), Failure> {
        self.conference_engine()?
            .set_announcements(&conference.as_text(), wish.announcements)?;
        self.core.keep().await;
        Ok(())
    }

    async fn end_tiling(&self, conference: Text) -> Result<(), Failure> {
        self.conference_engine()?.end_tiling(&conference.as_text())?;
        self.core.keep().await;
        Ok(())
    }

    async fn estimates(&self) -> Result<broadcast::Receiver<Estimate>, Failure> {
        Ok(self.conference_engine()?.estimates())
    }
}
