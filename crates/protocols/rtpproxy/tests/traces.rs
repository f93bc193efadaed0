//! Every recorded command and reply goes through the codec: nothing lost, nothing misread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Exchange, recording, recordings};
use shunt_rtpproxy::{Command, DEFAULT_COUNTERS, ErrorCode, PortsReply, Reply, Request, StreamVerb, add_counts, datagram, notify_line};

/// What the relays themselves answered to recorded commands that the codec refuses: E1 argument count, E5 only a cookie, E8 (rtpengine's only
/// error), E14 codec list. Anything else refused is a defect of the codec.
const REFUSED_BY_RELAY: [u16; 4] = [1, 5, 8, 14];

#[test]
fn the_data_is_a_selection_worth_replaying() {
    let exchanges: Vec<Exchange> = recordings().into_iter().flat_map(|recording| recording.exchanges).collect();
    assert!(exchanges.len() >= 250, "{}", exchanges.len());
    let parsed: Vec<Vec<u8>> = exchanges
        .iter()
        .filter(|e| e.command.split(|&b| b == b' ').count() > 2)
        .flat_map(Exchange::commands)
        .collect();
    let has = |wanted: fn(&Request) -> bool| {
        parsed
            .iter()
            .any(|body| Command::parse(body).is_ok_and(|command| wanted(&command.request)))
    };
    assert!(has(|r| matches!(r, Request::Update(_))) && has(|r| matches!(r, Request::Lookup(_))));
    assert!(has(|r| matches!(r, Request::Delete(_))) && has(|r| matches!(r, Request::Query(_))));
    assert!(has(|r| matches!(r, Request::Capability)) && has(|r| matches!(r, Request::Statistics)));
    assert!(
        has(|r| matches!(r, Request::Stream(StreamVerb::Play, _))) && has(|r| matches!(r, Request::Stream(StreamVerb::StopPlaying, _)))
    );
}

#[test]
fn every_command_and_reply() {
    for recording in recordings() {
        assert!(!recording.exchanges.is_empty(), "{}: lines not recognised", recording.name);
        for exchange in &recording.exchanges {
            let place = format!("{}:{}", recording.name, exchange.line);
            if exchange.command.iter().all(|byte| byte.is_ascii_whitespace()) {
                assert_eq!(
                    Reply::new(exchange.reply.as_ref().unwrap()).error(),
                    Some(ErrorCode::SYNTAX),
                    "{place}"
                );
            } else {
                check(exchange, &place);
            }
        }
    }
}

fn check(exchange: &Exchange, place: &str) {
    let (bodies, reply) = (exchange.commands(), exchange.reply_body());
    for body in &bodies {
        let command = match Command::parse(body) {
            Ok(command) => command,
            Err(error) => {
                let code = Reply::new(reply.as_ref().unwrap())
                    .error()
                    .unwrap_or_else(|| panic!("{place}: {error}"));
                assert!(error.at <= body.len() && REFUSED_BY_RELAY.contains(&code.0), "{place}: {error}");
                continue;
            }
        };
        assert_eq!(command.raw, shunt_line(body), "{place}");
        assert!(
            command
                .media()
                .is_none_or(|media| matches!(media.flags.unknown.as_slice(), b"" | b"?")),
            "{place}"
        );
        if !exchange.is_stream() {
            let cookie = shunt_rtpproxy::split_datagram(&exchange.command).unwrap().0;
            assert_eq!(datagram(cookie, command.raw, &[]), shunt_line(&exchange.command), "{place}");
        }
        if let (1, Some(reply)) = (bodies.len(), &reply) {
            check_reply(&command, reply, place);
        }
    }
}

fn shunt_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    &bytes[..end]
}

fn check_reply(command: &Command, body: &[u8], place: &str) {
    let reply = Reply::new(body);
    if let Some(code) = reply.error() {
        assert_eq!(body, code.to_string().as_bytes(), "{place}");
        assert!(code.describe().is_some(), "{place}: {code}");
        return;
    }
    match command.request {
        Request::Update(_) | Request::Lookup(_) => {
            let parts = reply.ports().unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(parts.len(), 1 + usize::from(command.sub_lookup().unwrap().is_some()), "{place}");
            for part in parts {
                let PortsReply::Port(port) = part else {
                    panic!("{place}: {part:?}")
                };
                assert!(port.port == 0 || port.address.is_some(), "{place}");
                let written = port.to_string();
                assert!(
                    body.windows(written.len()).any(|window| window == written.as_bytes()),
                    "{place}: {written}"
                );
            }
        }
        Request::Query(_) if reply.number().is_none() && !body.contains(&b'.') => {
            assert_eq!(add_counts(command, body, |_| 0).unwrap(), body, "{place}");
            let added = add_counts(command, body, |name| u64::from(DEFAULT_COUNTERS[..1].contains(&name))).unwrap();
            assert!(command.arguments.iter().any(|name| *name != b"ttl") || added != body, "{place}");
        }
        Request::Version | Request::Capability | Request::Delete(_) | Request::DeleteAll | Request::Stream(..) => {
            // One recorded D and one Q reuse a cookie on purpose and get the kept answer to a U.
            assert!(
                reply.number().is_some() || reply.port().is_some(),
                "{place}: {}",
                body.escape_ascii()
            );
        }
        _ => {}
    }
}

#[test]
fn a_lost_request_is_paired_with_the_reply_to_its_copy() {
    let lost = recording("retransmission");
    let copies: Vec<&Exchange> = lost
        .exchanges
        .iter()
        .filter(|e| e.command.starts_with(b"14868_6831_12 ") && e.relay.ends_with(":22222"))
        .collect();
    assert_eq!(copies.len(), 2);
    assert!(copies[0].command == copies[1].command && copies[0].reply.is_none() && copies[1].reply.is_some());
}

#[test]
fn notices_are_the_decoded_tags_of_the_recorded_offers() {
    let direct = recording("direct");
    let tags: Vec<Vec<u8>> = direct
        .exchanges
        .iter()
        .filter(|exchange| exchange.command.contains(&b'U'))
        .flat_map(Exchange::commands)
        .filter_map(|body| Some(notify_line(Command::parse(&body).ok()?.media()?.notify?.tag?)))
        .collect();
    let noticed: Vec<u8> = direct.notices.concat();
    assert_eq!(noticed, b"T123.abcd\ntag with space\nT777.self\n");
    for line in noticed.split_inclusive(|&byte| byte == b'\n') {
        assert!(tags.iter().any(|tag| tag == line), "{}", line.escape_ascii());
    }
}
