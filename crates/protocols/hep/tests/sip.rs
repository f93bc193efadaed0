//! SIP messages: usual ones, unusual but readable ones, and session descriptions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_hep::sip::{Direction, Message, SipError, Via};
use shunt_net::Endpoint;

const BYE: &str = "BYE sip:bob@198.51.100.7:5062 SIP/2.0\r\n\
    Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK1;rport\r\n\
    Max-Forwards: 70\r\n\
    From: \"Alice; tag=no\" <sip:alice@example.org;tag=inside>;tag=a73kszlfl\r\n\
    To: <sip:bob@example.org>;tag=1410948204\r\n\
    Call-ID: f81d4fae-7dec@192.0.2.10\r\n\
    CSeq: 231 BYE\r\n\
    Content-Length: 0\r\n\r\n";

const SDP: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.10\r\ns=-\r\nc=IN IP4 192.0.2.10\r\nt=0 0\r\n\
    m=audio 6000/2 RTP/AVP 0 101\r\nb=AS:x\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=ptime:20\r\na=rtcp:6101 IN IP4 192.0.2.77\r\n\
    m=video 0 RTP/AVP 96\r\n\
    m=audio 7000 RTP/AVP 8\r\nc=IN IP6 2001:db8::5\r\na=sendonly\r\na=rtcp-mux\r\n";

const COMPACT: &str = "\r\n\r\nCANCEL sip:bob@x SIP/2.0\nv: SIP/2.0/UDP x\n folded : junk\ni:\n  abc@host\nF:\tsip:a@x\n ;TAG=77\n\
    t : <sip:b@x>\nCSeq:\n 9\n CANCEL\n";

fn with_body(body: &str) -> String {
    format!(
        "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.10\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:b@x>;tag=2\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\
         Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// (method, status, Call-ID, From tag, To tag, method of CSeq)
fn facts(data: &str) -> (Option<String>, Option<u16>, String, String, Option<String>, String) {
    let message = Message::parse(data.as_bytes()).unwrap_or_else(|error| panic!("{data}: {error}"));
    let (method, to) = (message.method().map(text), message.to_tag().map(text));
    (
        method,
        message.status(),
        text(message.call_id()),
        text(message.from_tag()),
        to,
        text(message.cseq_method()),
    )
}

fn expected(
    method: &str,
    call_id: &str,
    from: &str,
    to: Option<&str>,
) -> (Option<String>, Option<u16>, String, String, Option<String>, String) {
    (
        Some(method.into()),
        None,
        call_id.into(),
        from.into(),
        to.map(Into::into),
        method.into(),
    )
}

fn bye(from: &str) -> (Option<String>, Option<u16>, String, String, Option<String>, String) {
    expected("BYE", "f81d4fae-7dec@192.0.2.10", from, Some("1410948204"))
}

fn endpoint(text: &str) -> Option<Endpoint> {
    let address: std::net::SocketAddr = text.parse().unwrap();
    Some(Endpoint::new(address.ip(), address.port()))
}

#[test]
fn tags_come_from_the_header_and_not_from_name_or_uri() {
    assert_eq!(facts(BYE), bye("a73kszlfl"));
    assert_eq!(facts(&BYE.replace(";tag=a73kszlfl", ";x=\"; tag=no\";tag=yes")), bye("yes"));
    assert_eq!(facts(&BYE.replace(";tag=a73kszlfl", "")), bye(""));
    assert_eq!(facts(&BYE.replace("\"Alice; tag=no\"", "Unclosed \"; tag=no")), bye("a73kszlfl"));
    let message = Message::parse(BYE.as_bytes()).unwrap();
    assert_eq!(
        (message.cseq(), message.vias(), message.record_routes(), message.body),
        (Some(231), 1, 0, &b""[..])
    );
}

#[test]
fn odd_but_readable_messages() {
    assert_eq!(facts(COMPACT), expected("CANCEL", "abc@host", "77", None));
    assert_eq!(facts(&BYE.replace("CSeq: 231 BYE\r\n", "")), bye("a73kszlfl"));
    assert_eq!(facts(&BYE.replace("\r\n", "\r")), bye("a73kszlfl"));
    assert_eq!(facts(&BYE.replace("Via", &("X: 1\r\n".repeat(300) + "Via"))), bye("a73kszlfl"));
    assert_eq!(facts(&BYE.replace("\r\n\r\n", "")), bye("a73kszlfl"));
    assert_eq!(
        facts(&BYE.replace("BYE sip:bob@198.51.100.7:5062", "BYE sip:bob smith@x")),
        bye("a73kszlfl")
    );
    assert_eq!(
        facts(&COMPACT.replace("CSeq", "From: <sip:a@x>;tag=78\nX")),
        expected("CANCEL", "abc@host", "77", None)
    );
    let ok = |status, call_id: &str| {
        (
            None,
            Some(status),
            call_id.to_owned(),
            "1".to_owned(),
            Some("2".to_owned()),
            "INVITE".to_owned(),
        )
    };
    assert_eq!(facts(&with_body("")), ok(200, "c1"));
    assert_eq!(
        facts("SIP/2.0 486\r\ni: c2\r\nf: <sip:a@x>;tag=1\r\nt: <sip:b@x>;tag=2\r\nCSeq: 1 INVITE\r\n\r\n"),
        ok(486, "c2")
    );
}

#[test]
fn a_call_id_beyond_ascii_stays_as_it_is() {
    let odd = [&b"BYE sip:b SIP/2.0\r\nCall-ID: f8\xff4fae\r\n\r\n"[..]].concat();
    assert_eq!(Message::parse(&odd).unwrap().call_id(), b"f8\xff4fae");
}

#[test]
fn what_is_no_sip_is_named() {
    let error = |text: &str| Message::parse(text.as_bytes()).unwrap_err();
    assert!(matches!(error("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), SipError::StartLine(_)));
    assert!(matches!(error("SIP/2.0 999 What\r\nCall-ID: 1\r\n\r\n"), SipError::StartLine(_)));
    assert!(matches!(error("SIP/2.0 20 What\r\nCall-ID: 1\r\n\r\n"), SipError::StartLine(_)));
    assert!(matches!(error("BYE SIP/2.0\r\nCall-ID: 1\r\n\r\n"), SipError::StartLine(_)));
    assert!(matches!(error(&BYE.replace("Call-ID", "Call-XX")), SipError::NoCallId(_)));
    assert!(Message::is_keepalive(b"\r\n\r\n\0") && !Message::is_keepalive(b"BYE"));
}

#[test]
fn the_topmost_via_says_where_a_request_came_from() {
    let parse = |via: &str| {
        let data = format!("OPTIONS sip:b SIP/2.0\r\nVia: {via}\r\nCall-ID: 1\r\n\r\n");
        let message = Message::parse(data.as_bytes()).unwrap();
        (message.via().and_then(|via| via.source()), message.vias())
    };
    assert_eq!(parse("SIP/2.0/UDP 192.0.2.10:5062;branch=z"), (endpoint("192.0.2.10:5062"), 1));
    assert_eq!(
        parse("SIP/2.0/UDP 10.0.0.1:5062;rport=1024;received=192.0.2.10;branch=z"),
        (endpoint("192.0.2.10:1024"), 1)
    );
    assert_eq!(
        parse("SIP/2.0/TCP [2001:db8::1]:5070 ; branch=z"),
        (endpoint("[2001:db8::1]:5070"), 1)
    );
    assert_eq!(
        parse("SIP/2.0/TCP [2001:db8::1];received=\"x\""),
        (endpoint("[2001:db8::1]:5060"), 1)
    );
    assert_eq!(
        parse("SIP/2.0/UDP proxy.example:5060;rport, SIP/2.0/UDP 192.0.2.1;received=192.0.2.9"),
        (None, 2)
    );
    assert_eq!(
        parse("SIP/2.0/UDP 192.0.2.3\r\nVia: SIP/2.0/UDP 192.0.2.2, SIP/2.0/UDP 192.0.2.1\r\nv: x"),
        (endpoint("192.0.2.3:5060"), 4)
    );
    assert_eq!(parse("nonsense"), (None, 1));
    let message = Message::parse(BYE.as_bytes()).unwrap();
    let via = message.via().unwrap();
    assert_eq!(
        via,
        Via {
            host: b"192.0.2.10",
            port: Some(5060),
            received: None,
            rport: None
        }
    );
}

#[test]
fn media_lines() {
    let data = with_body(SDP);
    let message = Message::parse(data.as_bytes()).unwrap();
    let sdp = message.sdp().unwrap();
    let [audio, video, six] = &sdp.media[..] else { panic!("{sdp:?}") };
    assert_eq!(
        (audio.kind, audio.rtp(), audio.rtcp()),
        (&b"audio"[..], endpoint("192.0.2.10:6000"), endpoint("192.0.2.77:6101"))
    );
    assert_eq!(
        (audio.direction, audio.ptime, audio.on_hold()),
        (Direction::SendRecv, Some(20), false)
    );
    let formats: Vec<_> = audio.formats.iter().map(|f| (f.payload_type, text(f.name), f.clock_rate)).collect();
    assert_eq!(formats, [(0, "PCMU".into(), 8000), (101, "telephone-event".into(), 8000)]);
    assert_eq!((video.port, video.rtp(), video.rtcp()), (0, None, None));
    assert_eq!(
        (six.rtp(), six.rtcp(), six.direction),
        (endpoint("[2001:db8::5]:7000"), endpoint("[2001:db8::5]:7000"), Direction::SendOnly)
    );
    assert!(six.on_hold());
}

#[test]
fn static_payload_types_need_no_rtpmap() {
    let formats = |lines: &str| -> Vec<(u8, String, u32)> {
        let body = with_body(&format!("v=0\r\nc=IN IP4 192.0.2.10\r\n{lines}"));
        let message = Message::parse(body.as_bytes()).unwrap();
        let sdp = message.sdp().unwrap();
        let found = sdp.media[0].formats.iter();
        found.map(|f| (f.payload_type, text(f.name), f.clock_rate)).collect()
    };
    let (ulaw, g722, events) = (
        (0, "PCMU".into(), 8000),
        (9, "G722".into(), 8000),
        (101, "telephone-event".into(), 8000),
    );
    assert_eq!(
        formats("m=audio 6000 RTP/AVP 0 9 101\r\na=rtpmap:101 telephone-event/8000\r\n"),
        [ulaw, g722, events]
    );
    assert_eq!(
        formats("m=audio 6000 RTP/SAVP 8\r\na=rtpmap:8 L16/16000\r\n"),
        [(8, "L16".into(), 16_000)],
        "what is said goes before"
    );
    assert_eq!(formats("m=audio 6000 RTP/AVP 77 96\r\n"), [], "types without a name");
    assert_eq!(formats("m=image 6000 udptl t38\r\n"), []);
    assert_eq!(formats("m=application 6000 UDP 0\r\n"), [], "no payload type");
}

#[test]
fn a_description_is_found_in_a_multipart_body_and_nowhere_else() {
    let multipart =
        format!("--b1\r\nContent-Type: application/sdp\r\n\r\n{SDP}\r\n--b1\r\nContent-Type: text/plain\r\n\r\nm=audio 1 x\r\n--b1--\r\n");
    let media = |body: &str| Message::parse(with_body(body).as_bytes()).unwrap().sdp().map(|sdp| sdp.media.len());
    assert_eq!(
        (media(&multipart), media("m=audio 1 RTP/AVP 0\r\n"), media("")),
        (Some(3), None, None)
    );
}

#[test]
fn hold_and_names_are_no_addresses() {
    let held = "v=0\r\nc=IN IP4 0.0.0.0\r\na=inactive\r\nm=audio 6000 RTP/AVP 0\r\nm=audio 99999 RTP/AVP 0\r\nc=IN IP4 host.example\r\na=sendrecv\r\n";
    let data = with_body(held);
    let message = Message::parse(data.as_bytes()).unwrap();
    let sdp = message.sdp().unwrap();
    assert_eq!(
        (sdp.media[0].rtp(), sdp.media[0].direction, sdp.media[0].on_hold()),
        (None, Direction::Inactive, true)
    );
    assert_eq!((sdp.media[1].port, sdp.media[1].address, sdp.media[1].on_hold()), (0, None, false));
    let next = with_body("v=0\nc=IN IP4 192.0.2.1\nm=audio 65535 RTP/AVP 0\nm=audio 6000 RTP/AVP 0\na=rtcp:7001\n");
    let message = Message::parse(next.as_bytes()).unwrap();
    let sdp = message.sdp().unwrap();
    assert_eq!((sdp.media[0].rtcp(), sdp.media[1].rtcp()), (None, endpoint("192.0.2.1:7001")));
}

#[test]
fn who_is_called_and_why_it_ended() {
    let bye = BYE.replace(
        "Max-Forwards: 70",
        "Reason: SIP;cause=200;text=\"Call completed elsewhere\"\r\nUser-Agent: phone/1",
    );
    let message = Message::parse(bye.as_bytes()).unwrap();
    assert_eq!(message.request_uri(), Some(&b"sip:bob@198.51.100.7:5062"[..]));
    assert_eq!(text(message.from_uri()), "sip:alice@example.org;tag=inside");
    assert_eq!(text(message.to_uri()), "sip:bob@example.org");
    assert_eq!(text(message.user_agent()), "phone/1");
    assert_eq!(text(message.reason()), "SIP;cause=200;text=\"Call completed elsewhere\"");
    assert_eq!(message.phrase(), None);
    let answer =
        "SIP/2.0 486  Busy Here\r\nFrom: sip:a@x;tag=1\r\nTo: Bob <sip:b@x\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\nServer: proxy\r\n\r\n";
    let message = Message::parse(answer.as_bytes()).unwrap();
    assert_eq!((message.phrase(), message.request_uri()), (Some(&b"Busy Here"[..]), None));
    assert_eq!(
        (text(message.from_uri()), text(message.to_uri())),
        ("sip:a@x".into(), "sip:b@x".into())
    );
    assert_eq!(text(message.user_agent()), "proxy");
    let bare = Message::parse(b"SIP/2.0 200\r\nCall-ID: c\r\n\r\n").unwrap();
    assert_eq!((bare.phrase(), bare.from_uri()), (Some(&b""[..]), &b""[..]));
}
