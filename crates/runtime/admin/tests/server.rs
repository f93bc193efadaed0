//! The server over its real socket: resources, errors, followers that are slow, and the socket's file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::agent::Agent;
use common::{Directory, PATIENCE, Response, event, get, names, settled, wait_until};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use shunt_admin::{Estimate, EventLog, Server, ServerError, ServerSettings, Text, bind_unix};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

struct Serving {
    directory: Directory,
    agent: Arc<Agent>,
    log: EventLog,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<Result<(), ServerError>>>,
}

impl Serving {
    fn new(change: impl FnOnce(&mut ServerSettings)) -> Self {
        Self::with(Agent::default(), change)
    }

    fn with(agent: Agent, change: impl FnOnce(&mut ServerSettings)) -> Self {
        let directory = Directory::new();
        let log = EventLog::open(directory.settings()).unwrap();
        let runtime = Runtime::new().unwrap();
        let mut settings = ServerSettings::new(directory.socket());
        change(&mut settings);
        let agent = Arc::new(agent);
        agent.calls.lock().unwrap().extend(["a@b", "c/d?e", "f"].map(Text::from));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(log.clone()));
        let (stop, stopped) = oneshot::channel::<()>();
        let entered = runtime.enter();
        let server = Server::bind(settings, agent.clone(), log.clone(), Arc::new(registry)).unwrap();
        let task = runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        drop(entered);
        Self {
            directory,
            agent,
            log,
            runtime,
            stop: Some(stop),
            task: Some(task),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.runtime.block_on(self.task.take().unwrap()).unwrap().unwrap();
    }
}

#[test]
fn status_has_versions_and_the_event_log() {
    let serving = Serving::new(|_| {});
    settled(&serving.log, 1);
    let (status, body) = get(&serving.socket(), "/v1/status");
    assert_eq!(
        (status, &body["api"], &body["calls"], &body["events"]["written"]),
        (200, &json!(1), &json!(3), &json!(1))
    );
    assert_eq!(body["epoch"], serving.log.epoch());
}

#[test]
fn calls_come_in_pages_and_by_name() {
    let serving = Serving::new(|_| {});
    let (_, page) = get(&serving.socket(), "/v1/calls?limit=2");
    assert_eq!(
        (page["calls"].as_array().unwrap().len(), &page["total"], &page["next"]),
        (2, &json!(3), &json!(2))
    );
    let (_, page) = get(&serving.socket(), "/v1/calls?limit=2&after=2");
    assert_eq!((&page["calls"][0]["call"], &page["next"]), (&json!("f"), &Value::Null));
    let (status, call) = get(&serving.socket(), "/v1/calls/c%2Fd%3Fe?counters=last");
    assert_eq!(
        (status, &call["call"], &call["counters_error"]),
        (200, &json!("c/d?e"), &Value::Null)
    );
    let (_, call) = get(&serving.socket(), "/v1/calls/a@b");
    assert_eq!(
        (&call["counters_error"], &call["lines"][0]["streams"][0]["counters_age_s"]),
        (&json!("the data plane does not answer"), &json!(14.0))
    );
}

#[test]
fn errors_name_what_was_wrong() {
    let serving = Serving::new(|_| {});
    for (path, status, code, part) in [
        ("/v1/calls?state=ofloaded", 400, "invalid-parameter", "offloaded"),
        ("/v1/calls?stat=x", 400, "invalid-parameter", "`stat`"),
        ("/v1/calls?limit=0", 400, "invalid-parameter", "1..1000"),
        ("/v1/calls?limit=1&limit=2", 400, "invalid-parameter", "limit"),
        ("/v1/calls?after=-1", 400, "invalid-parameter", "after"),
        ("/v1/calls/nobody", 404, "not-found", "nobody"),
        ("/v1/calls/%ff", 400, "invalid-path", "UTF-8"),
        ("/v1/calls/a%5Cq", 400, "invalid-path", "backslash"),
        ("/v1/trace?source=1.2.3.4&destination=1.2.3.4:5", 400, "invalid-parameter", "source"),
        ("/v1/trace?source=1.2.3.4:5&destination=[::1]:5", 400, "invalid", "IP versions"),
        ("/v1/events?from=soon", 400, "invalid-parameter", "soon"),
        ("/v1/conferences", 501, "not-configured", "conference"),
        ("/v2/status", 404, "no-resource", "/v2/status"),
        ("/v1/audit", 405, "no-method", "/v1/audit"),
    ] {
        let (found, body) = get(&serving.socket(), path);
        let error = &body["error"];
        assert_eq!((found, error["code"].as_str()), (status, Some(code)), "{path}: {body}");
        assert!(error["message"].as_str().unwrap().contains(part), "{path}: {body}");
    }
}

#[test]
fn commands_change_the_agent() {
    let serving = Serving::new(|_| {});
    let ask = |method: &str, path: &str, body: &str| {
        let mut response = Response::of(&serving.socket(), method, path, body);
        (response.status, response.text())
    };
    assert_eq!(ask("POST", "/v1/calls/f/release", ""), (204, String::new()));
    assert_eq!(get(&serving.socket(), "/v1/calls").1["total"], 2);
    assert!(ask("POST", "/v1/drain", r#"{"stop":"calls"}"#).1.contains(r#""stop":"calls""#));
    assert!(ask("DELETE", "/v1/drain", "").1.contains(r#""stop":null"#));
    assert_eq!(
        ask("PUT", "/v1/log", r#"{"filter":"debug"}"#),
        (200, r#"{"filter":"debug"}"#.to_owned())
    );
    for body in [r#"{"stop":"everything"}"#, r#"{"stop":"calls","now":1}"#, "{", ""] {
        let (status, text) = ask("POST", "/v1/drain", body);
        assert!(
            (400..500).contains(&status) && text.contains("invalid-body"),
            "{body}: {status} {text}"
        );
    }
    let (status, text) = ask("POST", "/v1/drain", &" ".repeat(100_000));
    assert_eq!((status, text.contains("invalid-body")), (413, true));
    assert_eq!(ask("POST", "/v1/audit", "").0, 503);
}

#[test]
fn metrics_have_the_event_log() {
    let serving = Serving::new(|_| {});
    settled(&serving.log, 1);
    let text = Response::of(&serving.socket(), "GET", "/metrics", "").text();
    assert!(
        text.contains("shunt_events_written_total 1\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

#[test]
fn a_follower_gets_what_is_kept_and_what_comes() {
    let mut serving = Serving::new(|_| {});
    serving.log.append(event("a"));
    settled(&serving.log, 2);
    let mut stream = Response::of(&serving.socket(), "GET", "/v1/events", "");
    assert_eq!(names(&stream.lines()), ["hello"]);
    assert_eq!(names(&stream.lines()), ["started", "a"]);
    serving.log.append(event("b"));
    assert_eq!(names(&stream.lines()), ["b"]);
    serving.stop();
    assert_eq!(stream.lines(), [json!({"kind": "end", "reason": "stopping"})]);
    assert_eq!(stream.chunk(), None);
    assert!(!serving.socket().exists());
}

#[test]
fn without_follow_the_stream_ends() {
    let serving = Serving::new(|_| {});
    settled(&serving.log, 1);
    let text = Response::of(&serving.socket(), "GET", "/v1/events?follow=false", "").text();
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["hello", "agent", "end"]);
}

#[test]
fn a_quiet_follower_hears_that_the_server_lives() {
    let serving = Serving::new(|settings| settings.keepalive = Duration::from_millis(20));
    settled(&serving.log, 1);
    let mut stream = Response::of(&serving.socket(), "GET", "/v1/events?from=next", "");
    assert_eq!(names(&stream.lines()), ["hello"]);
    assert_eq!(stream.lines(), [json!({"kind": "keepalive", "next": serving.log.status().next})]);
}

/// More than the socket's buffers and the stream's chunks take.
fn fill(log: &EventLog) {
    let call = "c".repeat(4_000);
    for count in 1..=2_000 {
        log.append(event(&call));
        if count % 500 == 0 {
            settled(log, count + 1);
        }
    }
    assert_eq!(log.status().dropped, 0);
}

#[test]
fn a_follower_that_takes_nothing_is_cut_off_and_told_why() {
    let serving = Serving::new(|settings| settings.stall = Duration::from_millis(100));
    fill(&serving.log);
    let mut slow = Response::of(&serving.socket(), "GET", "/v1/events", "");
    let followers = || get(&serving.socket(), "/v1/status").1["followers"].as_u64().unwrap();
    wait_until("the slow follower is cut off", || followers() == 0);
    // Others are served all the same.
    let other = Response::of(&serving.socket(), "GET", "/v1/events?follow=false", "").text();
    assert_eq!(other.lines().count(), 2_003);
    let mut last = Value::Null;
    while let Some(chunk) = slow.chunk() {
        let line = chunk[..chunk.len() - 1].rsplit(|byte| *byte == b'\n').next().unwrap().to_vec();
        last = serde_json::from_slice(&line).unwrap();
    }
    assert_eq!(last, json!({"kind": "end", "reason": "slow-reader"}));
}

#[test]
fn a_connection_that_takes_nothing_is_closed() {
    let serving = Serving::new(|settings| settings.write_timeout = Duration::from_millis(100));
    fill(&serving.log);
    let mut slow = Response::of(&serving.socket(), "GET", "/v1/events", "");
    wait_until("the connection is closed", || {
        get(&serving.socket(), "/v1/status").1["followers"] == 0
    });
    assert!(slow.is_cut_off());
}

#[test]
fn followers_have_a_limit() {
    let serving = Serving::new(|settings| settings.followers = 1);
    let first = Response::of(&serving.socket(), "GET", "/v1/events", "");
    let (status, body) = get(&serving.socket(), "/v1/events");
    assert_eq!((status, &body["error"]["code"]), (503, &json!("busy")));
    drop(first);
    wait_until("the place is free again", || {
        get(&serving.socket(), "/v1/status").1["followers"] == 0
    });
}

#[test]
fn a_socket_file_without_a_listener_is_replaced_and_nothing_else() {
    let directory = Directory::new();
    let path = directory.socket();
    drop(bind_unix(&path, 0o660, None).unwrap());
    let (listener, _) = bind_unix(&path, 0o600, None).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(bind_unix(&path, 0o660, None), Err(ServerError::InUse(_))));
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "no socket").unwrap();
    assert!(matches!(bind_unix(&path, 0o660, None), Err(ServerError::NoSocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "no socket");
}

#[test]
fn a_group_that_is_not_there_leaves_the_socket_to_its_owner() {
    let directory = Directory::new();
    let path = directory.socket();
    let (_listener, _) = bind_unix(&path, 0o660, Some("no such group")).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().gid(), nix::unistd::Gid::effective().as_raw());
}

#[test]
fn metrics_are_not_served_to_the_network() {
    let serving = Serving::new(|_| {});
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let served = shunt_admin::serve_metrics(listener, Arc::new(Agent::default()), Arc::default(), std::future::ready(()));
    let result = serving
        .runtime
        .block_on(async { tokio::time::timeout(PATIENCE, served).await.unwrap() });
    assert!(matches!(result, Err(ServerError::NotLoopback(_))));
}

fn with_conferences() -> Serving {
    let agent = Agent {
        conferences: true,
        ..Agent::default()
    };
    Serving::with(agent, |_| {})
}

#[test]
fn conferences_are_commanded() {
    let serving = with_conferences();
    let base = "/v1/conferences/a%2Fb";
    let join = r#"{"participant":"ann","media":[{"medium":"audio","codecs":[{"payload_type":111,"encoding":"opus","clock_rate":48000,"channels":2}]},
        {"medium":"video","transport":"RTP/AVPF","direction":"sendonly","layers":{"by":"dependency-descriptor","extension_id":12}}],
        "signalled":["198.51.100.7"],"ice":true,"call":"c@d"}"#;
    for (method, path, body, status, decision) in [
        ("POST", "/v1/conferences", r#"{"conference":"a/b"}"#, 200, "create a/b"),
        ("POST", &format!("{base}/participants"), join, 200, "join a/b ann 2"),
        (
            "PATCH",
            &format!("{base}/participants/ann"),
            r#"{"ice_restart":true}"#,
            200,
            "update a/b ann true",
        ),
        (
            "POST",
            &format!("{base}/quality"),
            r#"{"sender":"ann","receiver":"bob","quality":"audio"}"#,
            204,
            "quality a/b ann bob Audio",
        ),
        (
            "POST",
            &format!("{base}/targets"),
            r#"{"targets":[{"sender":"ann","receiver":"bob","target":null}],"hold_s":2}"#,
            204,
            "targets a/b [None] Some(2.0)",
        ),
        (
            "DELETE",
            &format!("{base}/participants/ann?reason=bye"),
            "",
            204,
            "leave a/b ann bye",
        ),
        ("DELETE", base, "", 204, "end a/b"),
    ] {
        let mut response = Response::of(&serving.socket(), method, path, body);
        let text = response.text();
        assert_eq!(response.status, status, "{method} {path}: {text}");
        assert_eq!(serving.agent.decisions.lock().unwrap().last().unwrap(), decision);
    }
    assert_eq!(get(&serving.socket(), "/v1/conferences").1["conferences"][0]["conference"], "board");
    assert_eq!(
        get(&serving.socket(), base).1["members"][0]["media"][0]["address"],
        "203.0.113.10:20000"
    );
    let mut response = Response::of(
        &serving.socket(),
        "POST",
        &format!("{base}/quality"),
        r#"{"sender":"ann","receiver":"bob","quality":"loud"}"#,
    );
    assert!((400..500).contains(&response.status) && response.text().contains("`audio`"));
}

#[test]
fn a_policy_hears_estimates_and_what_it_has_missed() {
    let serving = with_conferences();
    let mut stream = Response::of(&serving.socket(), "GET", "/v1/estimates", "");
    assert_eq!(stream.status, 200);
    let estimate = |bits: u64| Estimate {
        conference: "board".into(),
        sender: "ann".into(),
        receiver: "bob".into(),
        medium: "video".to_owned(),
        estimate_bits_per_s: bits,
        remb_bits_per_s: None,
        fraction_lost: Some(0.1),
        targets_bits_per_s: vec![100, 200, 400],
        target: Some(2),
    };
    serving.agent.estimates.send(estimate(300)).unwrap();
    let expected = json!({"conference": "board", "sender": "ann", "receiver": "bob", "medium": "video", "estimate_bits_per_s": 300,
        "remb_bits_per_s": null, "fraction_lost": 0.1, "targets_bits_per_s": [100, 200, 400], "target": 2});
    assert_eq!(stream.lines(), [expected]);
    // Far more than everything between here and there can hold.
    for bits in 0..100_000 {
        serving.agent.estimates.send(estimate(bits)).unwrap();
    }
    let mut missed = 0;
    while missed == 0 {
        missed = stream.lines().iter().filter_map(|line| line["estimates"].as_u64()).sum();
    }
}
