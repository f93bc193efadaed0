//! An agent without calls of its own, for the example and the tests.
#![allow(clippy::unwrap_used)]

use shunt_admin::{
    Admin, Audit, CallFilter, CallPage, CallView, CaptureFilter, CaptureLine, Commands, Component, Conference, ConferenceSummary, Counters,
    Credentials, Direction, DrainStatus, Entry, Estimate, Failure, FailureKind, Join, LegView, LineView, LogFilter, Mixed, Participant,
    ParticipantMedium, ParticipantUpdate, QualityChange, Role, Status, StopOf, StreamView, TargetChange, Text, Trace,
};
use shunt_calls::{Reason, Side, State};
use shunt_net::Endpoint;
use std::sync::Mutex;
use tokio::sync::{broadcast, mpsc};

pub struct Agent {
    /// Whether it has conferences.
    pub conferences: bool,
    pub estimates: broadcast::Sender<Estimate>,
    /// What was decided, as text.
    pub decisions: Mutex<Vec<String>>,
    pub calls: Mutex<Vec<Text>>,
    pub drain: Mutex<Option<StopOf>>,
    pub filter: Mutex<String>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            conferences: false,
            estimates: broadcast::channel(16).0,
            decisions: Mutex::default(),
            calls: Mutex::default(),
            drain: Mutex::default(),
            filter: Mutex::default(),
        }
    }
}

impl Agent {
    fn decided(&self, decision: String) -> Result<(), Failure> {
        if !self.conferences {
            return Err(Failure::new(FailureKind::NotConfigured, "conferences are not configured"));
        }
        self.decisions.lock().unwrap().push(decision);
        Ok(())
    }
}

fn summary(conference: Text) -> ConferenceSummary {
    ConferenceSummary {
        conference,
        participants: 0,
        design: "two-party".to_owned(),
        problem: None,
    }
}

fn participant(participant: Text, call: Option<Text>, ice: bool) -> Participant {
    let audio = ParticipantMedium {
        medium: "audio".to_owned(),
        address: address("203.0.113.10:20000"),
        direction: Direction::SendRecv,
        latched: None,
        contested: false,
        transport: "RTP/AVP".to_owned(),
        codecs: Vec::new(),
        layers: None,
        rtcp_mux: false,
        shows: None,
        shows_ssrc: None,
        streams: Vec::new(),
    };
    Participant {
        participant,
        call,
        joined_us: 1_700_000_000_000_000,
        present: false,
        silent_s: 0.5,
        encrypted: false,
        media: vec![audio],
        ice: ice.then(|| Credentials {
            ufrag: "u".to_owned(),
            password: "p".to_owned(),
        }),
        signalling: None,
        mixed: Mixed::Auto,
        gets_mix: false,
        muted: false,
        gets_tiles: false,
    }
}

fn no_call(call: &Text) -> Failure {
    Failure::new(FailureKind::NotFound, format!("there is no call {call}"))
}

fn address(text: &str) -> Endpoint {
    text.parse().unwrap()
}

fn view(call: &Text, error: Option<String>) -> CallView {
    let stream = StreamView {
        from: Side::Caller,
        component: Component::Rtp,
        state: State::Offloaded,
        reason: Reason::Offloaded,
        detail: None,
        since_s: 2.0,
        entry: Some(Entry {
            source: address("198.51.100.7:6000"),
            destination: address("203.0.113.10:35000"),
            new_source: Some(address("203.0.113.10:35002")),
            new_destination: Some(address("198.51.100.8:7000")),
        }),
        was_offloaded: true,
        offloaded_after_us: Some(21_000),
        counters: Some(Counters {
            packets: 1480,
            bytes: 296_000,
            lost: Some(0),
            ..Counters::default()
        }),
        counters_age_s: Some(if error.is_some() { 14.0 } else { 0.0 }),
        idle_s: Some(0.02),
    };
    let line = LineView {
        media: Some(1),
        relay: "relay1".into(),
        from_tag: "a1".into(),
        to_tag: Some("b1".into()),
        released: None,
        caller: LegView {
            signalled: Some(address("10.0.0.7:6000")),
            latched: Some(address("198.51.100.7:6000")),
            ..LegView::default()
        },
        callee: LegView::default(),
        streams: vec![stream],
        holds: Vec::new(),
        recorders: 0,
    };
    CallView {
        call: call.clone(),
        started_us: 1_700_000_000_000_000,
        age_s: 12.0,
        lines: vec![line],
        counters_error: error,
    }
}

impl Admin for Agent {
    async fn status(&self) -> Result<Status, Failure> {
        let calls = self.calls.lock().unwrap().len() as u64;
        Ok(Status {
            version: "0.2.0".to_owned(),
            pid: std::process::id(),
            started_us: 1_700_000_000_000_000,
            uptime_s: 1.0,
            role: Role::Single,
            ready: true,
            problems: Vec::new(),
            control: vec!["udp:127.0.0.1:22222".to_owned()],
            relays: Vec::new(),
            data_plane: None,
            calls,
            calls_to_restore: 0,
            streams: Vec::new(),
            commands: Commands::default(),
            hep: None,
            journal: None,
            drain: self.drain_status().await?,
            media_timeouts: 0,
            source_mismatches: 0,
            ended: shunt_admin::EndedCounts::default(),
            learn_notices: 0,
            table_writes: None,
            limits: std::collections::BTreeMap::new(),
            conferences: None,
        })
    }

    async fn calls(&self, filter: CallFilter) -> Result<CallPage, Failure> {
        let calls = self.calls.lock().unwrap();
        let part = filter.part.unwrap_or_default();
        let fits = |call: &&Text| part.0.is_empty() || call.0.windows(part.0.len()).any(|window| *window == *part.0);
        let found: Vec<&Text> = calls.iter().filter(fits).collect();
        let begin = filter.after.map_or(0, |after| after as usize);
        let page = found.iter().skip(begin).take(filter.limit);
        let end = begin + page.len();
        Ok(CallPage {
            calls: page.map(|call| view(call, None)).collect(),
            total: found.len() as u64,
            next: (end < found.len()).then_some(end as u64),
        })
    }

    async fn call(&self, call: Text, fresh: bool) -> Result<CallView, Failure> {
        match self.calls.lock().unwrap().iter().find(|known| **known == call) {
            Some(call) => Ok(view(call, fresh.then(|| "the data plane does not answer".to_owned()))),
            None => Err(no_call(&call)),
        }
    }

    async fn release(&self, call: Text) -> Result<(), Failure> {
        let mut calls = self.calls.lock().unwrap();
        let place = calls.iter().position(|known| *known == call).ok_or_else(|| no_call(&call))?;
        calls.remove(place);
        Ok(())
    }

    async fn trace(&self, source: Endpoint, destination: Endpoint) -> Result<Trace, Failure> {
        if source.addr.is_ipv4() != destination.addr.is_ipv4() {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("{source} and {destination} are of two IP versions"),
            ));
        }
        Ok(Trace {
            source,
            destination,
            data_plane: None,
            call: None,
        })
    }

    async fn drain(&self, stop: Option<StopOf>, _: bool) -> Result<DrainStatus, Failure> {
        *self.drain.lock().unwrap() = stop;
        self.drain_status().await
    }

    async fn drain_status(&self) -> Result<DrainStatus, Failure> {
        let stop = *self.drain.lock().unwrap();
        Ok(DrainStatus {
            stop,
            since_s: stop.map(|_| 0.0),
            group: false,
            calls: self.calls.lock().unwrap().len() as u64,
            entries: 0,
        })
    }

    async fn audit(&self) -> Result<Audit, Failure> {
        Err(Failure::new(FailureKind::Unavailable, "no data plane is connected"))
    }

    async fn capture(&self, filter: CaptureFilter, client: String) -> Result<mpsc::Receiver<CaptureLine>, Failure> {
        let _ = (filter, client);
        Err(Failure::new(FailureKind::NotConfigured, "there is no data plane"))
    }

    async fn log_filter(&self) -> Result<LogFilter, Failure> {
        Ok(LogFilter {
            filter: self.filter.lock().unwrap().clone(),
        })
    }

    async fn set_log_filter(&self, filter: LogFilter) -> Result<LogFilter, Failure> {
        *self.filter.lock().unwrap() = filter.filter;
        self.log_filter().await
    }

    async fn conferences(&self) -> Result<Vec<ConferenceSummary>, Failure> {
        self.decided("list".to_owned())?;
        Ok(vec![summary("board".into())])
    }

    async fn create_conference(&self, conference: Text) -> Result<ConferenceSummary, Failure> {
        self.decided(format!("create {conference}"))?;
        Ok(summary(conference))
    }

    async fn conference(&self, conference: Text) -> Result<Conference, Failure> {
        self.decided(format!("look {conference}"))?;
        Ok(Conference {
            summary: summary(conference),
            started_us: 1_700_000_000_000_000,
            members: vec![participant("ann".into(), None, false)],
            mixing: false,
            mixer: None,
            speaker: None,
            announcements: false,
            tiling: None,
            unjoined: Vec::new(),
            qualities: Vec::new(),
            subscriptions: Vec::new(),
            counters_age_s: None,
        })
    }

    async fn end_conference(&self, conference: Text) -> Result<(), Failure> {
        self.decided(format!("end {conference}"))
    }

    async fn join(&self, conference: Text, join: Join) -> Result<Participant, Failure> {
        self.decided(format!("join {conference} {} {}", join.participant, join.media.len()))?;
        Ok(participant(join.participant, join.call, join.ice))
    }

    async fn update_participant(&self, conference: Text, name: Text, update: ParticipantUpdate) -> Result<Participant, Failure> {
        self.decided(format!("update {conference} {name} {:?}", update.ice_restart))?;
        Ok(participant(name, None, false))
    }

    async fn leave(&self, conference: Text, participant: Text, reason: String) -> Result<(), Failure> {
        self.decided(format!("leave {conference} {participant} {reason}"))
    }

    async fn set_quality(&self, conference: Text, change: QualityChange) -> Result<(), Failure> {
        self.decided(format!(
            "quality {conference} {} {} {:?}",
            change.sender, change.receiver, change.quality
        ))
    }

    async fn set_targets(&self, conference: Text, change: TargetChange) -> Result<(), Failure> {
        let targets: Vec<Option<u8>> = change.targets.iter().map(|decision| decision.target).collect();
        self.decided(format!("targets {conference} {targets:?} {:?}", change.hold_s))
    }

    async fn estimates(&self) -> Result<broadcast::Receiver<Estimate>, Failure> {
        self.decided("estimates".to_owned())?;
        Ok(self.estimates.subscribe())
    }
}
