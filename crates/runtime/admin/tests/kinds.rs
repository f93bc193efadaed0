//! The JSON of each kind of event, as docs/admin-api.md has it. What is pinned here, clients rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Directory, read, settled};
use serde_json::{Map, Value, json};
use shunt_admin::{
    AgentFacts, AgentWhat, CallFacts, CallWhat, Component, ConferenceFacts, ControlFacts, Counters, Direction, EndedFacts, EndedLine,
    EndedParty, Entry, Event, EventLog, Facts, Format, LearnFacts, LinkFacts, LinkWhat, Outcome, SdpLine, SipFacts, SipStart, StateFacts,
    TableFacts, TableOperation, Text, Verdict,
};
use shunt_calls::{Reason, Side, State};
use shunt_net::Endpoint;

fn address(text: &str) -> Endpoint {
    text.parse().unwrap()
}

fn sdp() -> SdpLine {
    SdpLine {
        medium: "audio".into(),
        address: Some("10.0.0.7".parse().unwrap()),
        port: 6000,
        direction: Direction::SendOnly,
        formats: vec![Format {
            payload_type: 0,
            encoding: "PCMU".into(),
            clock_rate: 8000,
        }],
        ptime_ms: Some(20),
        rtcp_mux: false,
    }
}

fn sdp_json() -> Value {
    json!({"medium": "audio", "address": "10.0.0.7", "port": 6000, "direction": "sendonly",
        "formats": [{"payload_type": 0, "encoding": "PCMU", "clock_rate": 8000}], "ptime_ms": 20, "rtcp_mux": false})
}

fn entry() -> Entry {
    Entry {
        source: address("[2001:db8::7]:6000"),
        destination: address("[2001:db8::1]:35000"),
        new_source: Some(address("203.0.113.10:35002")),
        new_destination: None,
    }
}

fn entry_json() -> Value {
    json!({"source": "[2001:db8::7]:6000", "destination": "[2001:db8::1]:35000", "new_source": "203.0.113.10:35002", "new_destination": null})
}

fn counters() -> Counters {
    shunt_calls::Counters {
        packets: 100,
        bytes: 20_000,
        lost: Some(1),
        jitter_us: Some(1_500),
        ..shunt_calls::Counters::default()
    }
    .into()
}

fn counters_json() -> Value {
    json!({"packets": 100, "bytes": 20000, "lost": 1, "reordered": null, "duplicates": null, "jitter_ms": 1.5, "jitter_max_ms": null})
}

/// The facts of an event that went through the log, and its kind.
fn written(facts: Facts) -> (String, Value) {
    let event = Event {
        media: Some(2),
        party: Some(Side::Callee),
        component: Some(Component::Rtcp),
        ..Event::of_call(b"a\xff@b", facts)
    };
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    log.append(event);
    settled(&log, 2);
    let line = read(&log, None).pop().unwrap();
    assert_eq!(line["call"], r"a\xff@b");
    assert_eq!(
        (&line["media"], &line["party"], &line["component"]),
        (&json!(2), &json!("callee"), &json!("rtcp"))
    );
    (line["kind"].as_str().unwrap().to_owned(), line["facts"].clone())
}

fn sip(start: SipStart) -> Facts {
    Facts::Sip(Box::new(SipFacts {
        start,
        phrase: None,
        source: Some(address("192.0.2.1:5060")),
        destination: None,
        cseq_method: "INVITE".into(),
        cseq: Some(1),
        from: Some("sip:ann@example.org".into()),
        to: Some("sip:bob@example.org".into()),
        from_tag: Some("a1".into()),
        to_tag: None,
        request_uri: None,
        user_agent: None,
        reason: None,
        sdp: Some(vec![sdp()]),
    }))
}

#[test]
fn sip_messages() {
    let common = json!({"source": "192.0.2.1:5060", "destination": null, "cseq_method": "INVITE", "cseq": 1, "from": "sip:ann@example.org",
        "to": "sip:bob@example.org", "from_tag": "a1", "to_tag": null, "sdp": [sdp_json()]});
    for (start, name, value) in [
        (SipStart::Method("INVITE".into()), "method", json!("INVITE")),
        (SipStart::Status(486), "status", json!(486)),
    ] {
        let mut expected = common.clone();
        expected[name] = value;
        assert_eq!(written(sip(start)), ("sip".to_owned(), expected));
    }
}

#[test]
fn control_commands_and_packets_learned() {
    let control = ControlFacts {
        verb: Some("U".into()),
        command: Text::cut(b"Uc0 a b", 3),
        reply: None,
        relay: Some("relay1".into()),
        peer: Some("::1".parse().unwrap()),
        took_us: 190,
    };
    let expected = json!({"verb": "U", "command": "Uc0", "reply": null, "relay": "relay1", "peer": "::1", "took_us": 190});
    assert_eq!(written(Facts::Control(Box::new(control))), ("control".to_owned(), expected));
    let learn = LearnFacts {
        verdict: Verdict::SourceMismatch,
        source: address("198.51.100.7:6000"),
        port: address("203.0.113.10:35000"),
        ssrc: Some(u32::MAX),
        sequence: Some(7),
        payload_type: None,
        count: 3,
    };
    let expected = json!({"verdict": "source-mismatch", "source": "198.51.100.7:6000", "port": "203.0.113.10:35000", "ssrc": 4294967295u32,
        "sequence": 7, "payload_type": null, "count": 3});
    assert_eq!(written(Facts::Learn(learn)), ("learn".to_owned(), expected));
}

#[test]
fn states_and_writes_that_failed() {
    let state = StateFacts {
        state: State::Offloaded,
        before: State::Learning,
        reason: Reason::OneWay,
        detail: None,
        entry: Some(entry()),
        counters: Some(counters()),
        after_us: Some(2_000),
    };
    let expected = json!({"state": "offloaded", "before": "learning", "reason": "one-way", "entry": entry_json(), "counters": counters_json(), "after_us": 2000});
    assert_eq!(written(Facts::State(state)), ("state".to_owned(), expected));
    let table = TableFacts {
        operation: TableOperation::Insert,
        entry: entry(),
        outcome: Outcome::TableFull,
        detail: Some("RESOURCE_EXHAUSTED".into()),
        took_us: 140,
    };
    let expected =
        json!({"operation": "insert", "entry": entry_json(), "outcome": "table-full", "detail": "RESOURCE_EXHAUSTED", "took_us": 140});
    assert_eq!(written(Facts::Table(table)), ("table".to_owned(), expected));
}

#[test]
fn calls_and_their_ends() {
    let call = CallFacts {
        seconds: Some(60.0),
        ..CallFacts::of(CallWhat::MediaTimeout)
    };
    assert_eq!(
        written(Facts::Call(call)),
        ("call".to_owned(), json!({"what": "media-timeout", "seconds": 60.0}))
    );
    let caller = EndedParty {
        signalled: Some(address("10.0.0.7:6000")),
        rtp: Some(counters()),
        payload_types: vec![(0, 5)],
        sdp: Some(sdp()),
        offloaded: true,
        ..EndedParty::default()
    };
    let ended = EndedFacts {
        number: 7,
        reason: Reason::Released,
        relay: "relay1".into(),
        from_tag: "a1".into(),
        to_tag: None,
        started_us: 1_700_000_000_000_000,
        duration_s: 180.5,
        lines: vec![EndedLine {
            media: Some(1),
            from_tag: "a1".into(),
            to_tag: None,
            reason: Reason::Released,
            answered: true,
            recorded: Vec::new(),
            recorders: 0,
            caller,
            callee: EndedParty::default(),
        }],
    };
    let nothing = json!({"signalled": null, "source": null, "relay_port": null, "rtp": null, "rtcp": null, "relay_packets": null, "payload_types": [],
        "sdp": null, "offloaded": false, "offloaded_after_us": null, "source_mismatches": 0});
    let mut caller = nothing.clone();
    caller["signalled"] = json!("10.0.0.7:6000");
    caller["rtp"] = counters_json();
    caller["payload_types"] = json!([[0, 5]]);
    caller["sdp"] = sdp_json();
    caller["offloaded"] = json!(true);
    let line = json!({"media": 1, "from_tag": "a1", "to_tag": null, "reason": "released", "answered": true, "recorded": [], "recorders": 0, "caller": caller, "callee": nothing});
    let expected = json!({"number": 7, "reason": "released", "relay": "relay1", "from_tag": "a1", "to_tag": null, "started_us": 1_700_000_000_000_000u64,
        "duration_s": 180.5, "lines": [line]});
    assert_eq!(written(Facts::Ended(Box::new(ended))), ("ended".to_owned(), expected));
}

#[test]
fn relays_the_data_plane_the_agent_and_conferences() {
    let link = || LinkFacts {
        what: LinkWhat::Down,
        name: "relay1".into(),
        detail: Some("no reply".into()),
    };
    let expected = json!({"what": "down", "name": "relay1", "detail": "no reply"});
    assert_eq!(written(Facts::Relay(link())), ("relay".to_owned(), expected.clone()));
    assert_eq!(written(Facts::DataPlane(link())), ("data-plane".to_owned(), expected));
    let agent = AgentFacts::of(AgentWhat::DrainBegun);
    assert_eq!(written(Facts::Agent(agent)), ("agent".to_owned(), json!({"what": "drain-begun"})));
    let conference = ConferenceFacts {
        conference: "board".into(),
        what: "target",
        participant: Some("bob".into()),
        medium: None,
        more: Map::from_iter([("target".to_owned(), json!(1))]),
    };
    let expected = json!({"conference": "board", "what": "target", "participant": "bob", "target": 1});
    assert_eq!(
        written(Facts::Conference(Box::new(conference))),
        ("conference".to_owned(), expected)
    );
}
