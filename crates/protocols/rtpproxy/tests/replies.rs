//! Replies, counters, notices, capabilities and stream framing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_net::Endpoint;
use shunt_rtpproxy::capability::{self, KeepAlive};
use shunt_rtpproxy::framing::{ControlAddress, reply_length, take_line};
use shunt_rtpproxy::listing::{self, Party, Record};
use shunt_rtpproxy::{
    Command, ErrorCode, Info, NotifyTarget, PortReply, PortsReply, Reply, add_counts, error_reply, notify_line, query_counters,
    splice_reply,
};
use std::net::IpAddr;

fn endpoint(text: &str) -> Endpoint {
    let address: std::net::SocketAddr = text.parse().unwrap();
    Endpoint::new(address.ip(), address.port())
}

fn port(body: &[u8]) -> PortReply {
    match Reply::new(body).ports().unwrap().as_slice() {
        [PortsReply::Port(port)] => *port,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ports() {
    assert_eq!(port(b"36884 10.91.1.1\n").endpoint(), Some(endpoint("10.91.1.1:36884")));
    let six = port(b"36318 fd91:1::1 6");
    assert_eq!((six.endpoint(), six.family), (Some(endpoint("[fd91:1::1]:36318")), Some(6)));
    let rtpengine = port(b"38000 10.91.1.1 4");
    assert_eq!(
        (rtpengine.endpoint(), rtpengine.family),
        (Some(endpoint("10.91.1.1:38000")), Some(4))
    );
    assert_eq!((port(b"36884").port, port(b"36884").endpoint()), (36884, None));
    assert_eq!(
        (
            port(b"0").endpoint(),
            port(b"0 0.0.0.0").endpoint(),
            port(b"38010 0.0.0.0 4").endpoint()
        ),
        (None, None, None)
    );
    assert_eq!(PortReply::new(endpoint("[fd91::1]:36318")).to_string(), "36318 fd91::1 6");
    assert_eq!(PortReply::new(endpoint("10.0.0.1:36318")).to_string(), "36318 10.0.0.1");
}

#[test]
fn sub_commands_that_were_carried_out() {
    let done = |body: &[u8]| [0, 1, 2].map(|number| Reply::new(body).has_done(number));
    assert_eq!(done(b"60 0 0 0 0"), [true, true, true]);
    assert_eq!(done(b"36584 10.91.1.1 && 0 && 36132 10.91.1.1"), [true, true, true]);
    assert_eq!(done(b"36584 10.91.1.1 && 0 && -1"), [true, false, false]);
    assert_eq!(done(b"36584 10.91.1.1 && -1"), [false, false, false]);
}

#[test]
fn ports_of_offer_and_answer() {
    let parts = Reply::new(b"36584 10.91.1.1 && 36132 10.91.1.1 && -1\n").ports().unwrap();
    let expected = |at| PortsReply::Port(PortReply::new(endpoint(at)));
    assert_eq!(
        parts,
        [expected("10.91.1.1:36584"), expected("10.91.1.1:36132"), PortsReply::Other(b"-1")]
    );
    assert_eq!(Reply::new(b"E3\n").ports().unwrap(), [PortsReply::Error(ErrorCode(3))]);
    assert_eq!(
        splice_reply(b"36584 10.91.1.1 && 36132 10.91.1.1\n", 1, b"9 ::1 6"),
        b"36584 10.91.1.1 && 9 ::1 6"
    );
    for body in [&b""[..], b"hello", b"70000 10.0.0.1", b"5 0 0 0 0", b"&& 5"] {
        assert!(Reply::new(body).ports().is_err(), "{}", body.escape_ascii());
    }
}

#[test]
fn errors_and_numbers() {
    let error = Reply::new(b"E50\n").error().unwrap();
    assert_eq!(
        (error, error.describe().unwrap().0, error_reply(error)),
        (ErrorCode::SESSION_NOT_FOUND, "session-not-found", b"E50".to_vec())
    );
    assert!(ErrorCode(77).describe().is_none());
    assert_eq!(
        (Reply::new(b"E5000").error(), Reply::new(b"E50 x").error(), Reply::new(b"").error()),
        (None, None, None)
    );
    assert_eq!(
        (Reply::new(b"20040107\n").number(), Reply::new(b"20040107").port()),
        (Some(20_040_107), None)
    );
    assert_eq!((Reply::new(b"1 2").number(), Reply::new(b"").number()), (None, None));
}

#[test]
fn the_reply_to_i() {
    let info = Info {
        sessions_created: 7,
        active_sessions: 2,
        active_streams: 4,
        packets_received: 9,
        packets_transmitted: 8,
        average_load: Some(0.5),
    };
    let text = info.to_string();
    assert!(text.ends_with("\naverage load: 0.500000"));
    assert_eq!(Info::parse(text.as_bytes()), Some(info));
    assert_eq!(Info::parse(b"sessions created: 1\nactive sessions: 1"), None);
}

#[test]
fn counters_are_read_in_every_form() {
    let read = |command: &str, reply: &str| -> Vec<(String, Option<u64>)> {
        let command = Command::parse(command.as_bytes()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        query_counters(&command, reply.as_bytes())
            .unwrap()
            .iter()
            .map(|c| (text(c.name), c.value()))
            .collect()
    };
    let plain = read("Q c a;1 b;1", "60 134 201 402 0\n");
    assert_eq!(
        plain[..3],
        [
            ("ttl".into(), Some(60)),
            ("npkts_ina".into(), Some(134)),
            ("npkts_ino".into(), Some(201))
        ]
    );
    assert_eq!(
        read("Qv c a;1 b;1", "ttl=6 npkts_ina=1 npkts_ino=2 nrelayed=3 ndropped=0")[4],
        ("ndropped".into(), Some(0))
    );
    assert_eq!(
        read("Q c a;1 b;1 nrelayed longest_ipi", "41 0.020000"),
        [("nrelayed".into(), Some(41)), ("longest_ipi".into(), None)]
    );
}

#[test]
fn counts_are_added_in_place() {
    let cases = [
        ("Q c a;1 b;1", "60 134 201 402 0\n", "60 234 221 405 0\n"),
        ("Q c a;1 b;1", "60  134\t201 402 0 \r\n", "60  234\t221 405 0 \r\n"),
        (
            "Qv c a;1 b;1",
            "ttl=60 npkts_ina=0 npkts_ino=0 nrelayed=0 ndropped=7",
            "ttl=60 npkts_ina=100 npkts_ino=20 nrelayed=3 ndropped=7",
        ),
        ("Q c a;1 b;1 nrelayed longest_ipi ttl", "9 0.020000 60", "12 0.020000 60"),
        ("Qv c a;1 b;1 npkts_ino", "npkts_ino=9\n", "npkts_ino=29\n"),
        ("Q c a;1 b;1 && S ttl=5", "5 0 0 0 0", "5 100 20 3 0"),
        ("Q c a;1 b;1", "60 1 2 3 4 && 0\n", "60 101 22 6 4 && 0\n"),
        ("Q c a;1 b;1", "E50\n", "E50\n"),
        ("Q c a;1 b;1", "3600 268 0 0 0", "3600 368 20 3 0"),
    ];
    let add = |name: &[u8]| match name {
        b"npkts_ina" => 100,
        b"npkts_ino" => 20,
        b"nrelayed" => 3,
        b"longest_ipi" => 9,
        _ => 0,
    };
    for (command, reply, expected) in cases {
        let command = Command::parse(command.as_bytes()).unwrap();
        let got = add_counts(&command, reply.as_bytes(), add).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), expected, "{reply}");
    }
    for (command, reply) in [
        ("Q c a;1 b;1", "60 1 2 3"),
        ("Q c a;1 b;1", ""),
        ("Q c a;1 b;1", "60 1 2 3 x"),
        ("Qv c a;1 b;1", "60 1 2 3 4"),
        ("D c a", "0"),
    ] {
        let command = Command::parse(command.as_bytes()).unwrap();
        assert!(add_counts(&command, reply.as_bytes(), add).is_err(), "{reply}");
    }
}

#[test]
fn notify_targets() {
    let parse = |text: &str, peer: Option<&str>| NotifyTarget::parse(text.as_bytes(), peer.map(|peer| peer.parse::<IpAddr>().unwrap()));
    assert_eq!(parse("tcp:[::1]:9", None), Ok(NotifyTarget::Tcp("[::1]:9".parse().unwrap())));
    assert_eq!(
        parse("tcp:%%CC_SELF%%:9", Some("fd91::1")),
        Ok(NotifyTarget::Tcp("[fd91::1]:9".parse().unwrap()))
    );
    let path = Ok(NotifyTarget::Unix("/run/opensips/n.sock".into()));
    assert_eq!(
        (parse("unix:/run/opensips/n.sock", None), parse("/run/opensips/n.sock", None)),
        (path.clone(), path)
    );
    assert!(parse("tcp:%%CC_SELF%%:9", None).is_err());
    for text in [
        "xmlrpc:http://127.0.0.1:8000/RPC2",
        "tcp:127.0.0.1",
        "tcp:127.0.0.1:0",
        "tcp:127.0.0.1:99999",
        "tcp:host.example:9",
        "tcp::9",
        "unix:",
        "unix:relative",
        "",
        "T1",
        "tcp:127.0.0.1:\u{663}",
    ] {
        assert!(parse(text, Some("127.0.0.1")).is_err(), "{text}");
    }
}

#[test]
fn notice_lines_are_url_decoded() {
    assert_eq!(notify_line(b"tag%20with%20space"), b"tag with space\n");
    assert_eq!(notify_line(b"T1.%zz%2"), b"T1.%zz%2\n");
}

#[test]
fn the_keep_alive_with_the_fewest_side_effects() {
    let method = |dates: &[u32]| capability::keepalive(|date| dates.contains(&date));
    assert_eq!(method(&[20_251_015, 20_210_524]), KeepAlive::TtlSubcommand);
    assert_eq!(method(&[20_210_524]), KeepAlive::TtlModifier);
    assert_eq!(method(&[]), KeepAlive::Lookup);
    assert!(capability::may_query(|date| date == 20_080_403) && !capability::may_query(|_| false));
    let asked = capability::OPENSIPS_HANDSHAKE
        .iter()
        .chain(&capability::KAMAILIO_HANDSHAKE)
        .chain(&capability::AGENT_HANDSHAKE);
    for date in asked {
        assert!(capability::MEANINGS.iter().any(|(known, _)| known == date), "{date}");
    }
}

#[test]
fn control_addresses() {
    for text in [
        "udp:127.0.0.1:22222",
        "tcp:[::1]:7722",
        "unix:/run/r.sock",
        "cunix:/run/r.sock",
        "udp:0.0.0.0:1",
    ] {
        assert_eq!(text.parse::<ControlAddress>().unwrap().to_string(), text);
    }
    assert_eq!("udp6:*:5".parse::<ControlAddress>().unwrap().to_string(), "udp:[::]:5");
    assert_eq!("tcp:*:5".parse::<ControlAddress>().unwrap().to_string(), "tcp:0.0.0.0:5");
    assert_eq!("/run/r.sock".parse::<ControlAddress>().unwrap().to_string(), "unix:/run/r.sock");
    let long = format!("unix:/{}", "x".repeat(107));
    for text in [
        "",
        "udp:127.0.0.1",
        "udp:127.0.0.1:70000",
        "udp:::1:5",
        "http:1.2.3.4:5",
        "unix:",
        "udp:[1.2.3.4]:5",
        long.as_str(),
    ] {
        assert!(text.parse::<ControlAddress>().is_err(), "{text}");
    }
}

#[test]
fn replies_end_where_they_end() {
    assert_eq!(take_line(b"V\r\nQ"), Some((&b"V"[..], 3)));
    assert_eq!(take_line(b"V"), None);
    assert_eq!(reply_length(b"Q c a", b"60 0 0 0 0\nE5"), Some(11));
    let info = b"sessions created: 1\nactive sessions: 1\nactive streams: 2\npackets received: 0\npackets transmitted: 0\n";
    assert_eq!(
        (reply_length(b"I", info), reply_length(b"Il", info), reply_length(b"I", &info[..50])),
        (Some(info.len()), None, None)
    );
    let more = [&info[..], b"average load: 0.000000\n", b"0\n"].concat();
    assert_eq!(reply_length(b"iL", &more), Some(more.len() - 2));
    assert_eq!(
        (reply_length(b"Ix", b"E18\n"), reply_length(b"Is 0", b"0 && c a;1\n")),
        (Some(4), Some(11))
    );
}

#[test]
fn the_list_of_sessions_reads_back_reply_by_reply() {
    let caller = Party {
        relay: Some(endpoint("10.0.0.1:35000")),
        signalled: Some(endpoint("192.168.0.2:6000")),
        learned: Some(endpoint("192.0.2.9:1024")),
        asymmetric: false,
    };
    let callee = Party {
        relay: Some(endpoint("[fd91::1]:35002")),
        asymmetric: true,
        ..Party::default()
    };
    let notify = Some((b"tcp:127.0.0.1:9999".to_vec(), b"T1%20".to_vec()));
    let calls: Vec<String> = (1..=300).map(|n| format!("call-{n}@host")).collect();
    let records: Vec<Record> = calls
        .iter()
        .enumerate()
        .map(|(n, call)| Record {
            call_id: call.as_bytes(),
            from: b"a;1",
            to: (n % 2 == 0).then_some(&b"b;1"[..]),
            ttl: 60,
            complete: n % 2 == 0,
            caller,
            callee: if n % 3 == 0 { callee } else { Party::default() },
            notify: notify.clone().filter(|_| n % 5 == 0),
        })
        .collect();
    let (mut after, mut got, mut rounds) = (0, Vec::new(), 0);
    loop {
        let mut writer = listing::Writer::default();
        let behind = records.iter().zip(1u64..).filter(|(_, number)| *number > after);
        for (record, number) in behind {
            if !writer.add(number, record) {
                break;
            }
        }
        let reply = writer.finish();
        assert!(reply.len() < 17_000 && !reply.contains(&b'\n'));
        let (next, read) = listing::read(&reply).unwrap();
        got.extend(read.iter().map(|record| records.iter().position(|known| known == record).unwrap()));
        rounds += 1;
        let Some(next) = next else { break };
        after = next;
    }
    assert_eq!(got, (0..300).collect::<Vec<_>>());
    assert!(rounds > 1 && listing::ask(7) == b"Is 7");
    assert_eq!(listing::read(b"0").unwrap(), (None, vec![]));
    assert!(listing::read(b"E1").is_none() && listing::read(b"0 && x y").unwrap().1.is_empty());
}
