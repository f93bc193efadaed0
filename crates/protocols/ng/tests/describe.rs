//! What replies to `query` tell: recorded calls of every shape.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::reply;
use shunt_net::Endpoint;
use shunt_ng::{CallDescription, Fault, LineDescription, MediaFlags, PartyDescription, RelayReason, StreamFlags, describe};

const SHAPES: &str = "50_shapes.txt";
const FORKS: &str = "37_early_media_forks.txt";
const KINDS: &str = "34_recognise.txt";

fn call(name: &str, cookie: &str) -> CallDescription {
    describe(reply(name, cookie).body()).unwrap()
}

fn lines(name: &str, cookie: &str) -> Vec<LineDescription> {
    call(name, cookie).lines()
}

fn line(name: &str, cookie: &str) -> LineDescription {
    let mut all = lines(name, cookie);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn at(text: &str) -> Option<Endpoint> {
    let (addr, port) = text.rsplit_once(':').unwrap();
    Some(Endpoint::new(
        addr.trim_matches(['[', ']']).parse::<std::net::IpAddr>().unwrap(),
        port.parse().unwrap(),
    ))
}

fn tags(line: &LineDescription) -> [&str; 2] {
    line.tags.each_ref().map(|tag| std::str::from_utf8(tag).unwrap())
}

fn ports(party: &PartyDescription) -> (Option<Endpoint>, Option<Endpoint>) {
    (party.local_rtp, party.local_rtcp)
}

#[test]
fn a_basic_call() {
    let call = call("02_kamailio_basic.txt", "0_14783_1");
    assert_eq!((call.created, call.tags.len()), (1_795_262_778, 2));
    let lines = call.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (tags(line), line.index, line.kind.as_str()),
        (["14795UACtag1", "14792UAStag1"], 1, "audio")
    );
    let [caller, callee] = &line.parties;
    assert_eq!(ports(caller), (at("10.91.1.1:38016"), at("10.91.1.1:38017")));
    assert_eq!(
        (caller.endpoint, caller.advertised_rtcp),
        (at("10.91.1.2:6000"), at("10.91.1.2:6001"))
    );
    assert_eq!(ports(callee), (at("10.91.1.1:38000"), at("10.91.1.1:38001")));
    assert_eq!(callee.endpoint, at("10.91.2.2:7000"));
    assert_eq!(caller.codec.as_deref(), Some("PCMA/8000"));
    let confirmed =
        StreamFlags::RTP | StreamFlags::FILLED | StreamFlags::CONFIRMED | StreamFlags::KERNELIZED | StreamFlags::NO_KERNEL_SUPPORT;
    assert_eq!((caller.flags, callee.flags), (confirmed, confirmed));
    assert_eq!(
        (line.rtcp_mux, line.needs_relay(), line.filters_rtcp()),
        ([false, false], None, false)
    );
    let stream = &call.tags[0].medias[0].streams[0];
    assert!(
        stream.packets > 100 && stream.bytes > 172 * 100 && stream.errors == 0 && stream.ssrc.is_some(),
        "{stream:?}"
    );
}

#[test]
fn behind_nat_the_endpoint_is_learned_and_the_advertised_one_stays() {
    let line = line("10c_opensips_nat_query.txt", "ag19883_6");
    assert_eq!(line.parties[0].endpoint, at("10.91.3.2:40420"));
    assert_eq!(line.parties[0].advertised, at("192.168.50.2:6000"));
    assert!(line.parties[0].flags.contains(StreamFlags::CONFIRMED));
}

#[test]
fn audio_and_video() {
    let lines = lines("25_kamailio_av.txt", "0_17887_1");
    let kinds: Vec<_> = lines.iter().map(|line| (line.index, line.kind.as_str())).collect();
    assert_eq!(kinds, [(1, "audio"), (2, "video")]);
    assert_eq!(ports(&lines[1].parties[0]), (at("10.91.1.1:38046"), at("10.91.1.1:38047")));
    assert_eq!(lines[1].parties[1].advertised, at("10.91.2.2:7002"));
    assert!(lines.iter().all(|line| line.needs_relay().is_none()));
}

#[test]
fn video_that_was_refused_or_deleted_is_no_line() {
    assert_eq!(lines(SHAPES, "r19254_3").len(), 2);
    for cookie in ["r19254_6", "r19254_9", "r19254_10"] {
        let call = call(SHAPES, cookie);
        let video = &call.tags[0].medias[1];
        assert_eq!((video.index, video.streams[0].local), (2, None), "{cookie}");
        let lines = call.lines();
        assert_eq!((lines.len(), lines[0].index), (1, 1), "{cookie}");
    }
    let refused = call(SHAPES, "r19254_6");
    assert_eq!(refused.tags[1].medias[1].streams[0].advertised, None, "port 0");
}

#[test]
fn rtcp_mux_on_both_sides_and_on_one() {
    let both = line("14_opensips_rtcpmux.txt", "ag19883_2");
    assert_eq!(both.rtcp_mux, [true, true]);
    assert_eq!(ports(&both.parties[0]), (at("10.91.1.1:38018"), None));
    assert_eq!(ports(&both.parties[1]), (at("10.91.1.1:38000"), None));
    let demux = line("14b_opensips_rtcpmux_demux.txt", "ag19883_2");
    assert_eq!((demux.rtcp_mux, demux.needs_relay()), ([true, false], None));
    assert_eq!(ports(&demux.parties[0]), (at("10.91.1.1:38013"), None));
    assert_eq!(ports(&demux.parties[1]), (at("10.91.1.1:38000"), at("10.91.1.1:38001")));
    assert_eq!(demux.parties[1].advertised_rtcp, at("10.91.2.2:7001"));
    let offered = line(KINDS, "d18601_84");
    assert_eq!(offered.rtcp_mux, [false, true]);
    assert_eq!(ports(&offered.parties[0]), (at("10.91.1.1:38800"), at("10.91.1.1:38801")));
    let sections = lines(SHAPES, "r19254_70");
    assert_eq!(
        sections.iter().map(|line| line.rtcp_mux).collect::<Vec<_>>(),
        [[true, true], [false, false]]
    );
}

#[test]
fn a_port_of_rtcp_that_the_sdp_names() {
    let line = line("14c_opensips_rtcp_attr.txt", "ag19883_2");
    assert_eq!(
        line.parties.each_ref().map(|party| party.advertised_rtcp),
        [at("10.91.1.2:6051"), at("10.91.2.2:7051")]
    );
}

#[test]
fn early_media_before_any_answer() {
    for (cookie, packets) in [("d20221_2", 0), ("d20221_3", 5)] {
        let call = call(FORKS, cookie);
        let lines = call.lines();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(tags(line), ["fromA", ""]);
        let callee = &line.parties[1];
        assert_eq!(
            (callee.local_rtp, callee.endpoint, callee.advertised),
            (at("10.91.1.1:38000"), None, None)
        );
        assert!(!callee.flags.contains(StreamFlags::FILLED) && !callee.media.contains(MediaFlags::INITIALIZED));
        assert_eq!(call.tags[1].medias[0].streams[0].packets, packets);
    }
}

#[test]
fn a_fork_without_via_branch_moves_the_line_to_the_last_answer() {
    assert_eq!(tags(&line(FORKS, "d20221_5")), ["fromA", "toB"]);
    let call = call(FORKS, "d20221_7");
    assert_eq!(
        call.tags.iter().map(|tag| tag.name.as_slice()).collect::<Vec<_>>(),
        [b"fromA" as &[u8], b"toB", b"toC"]
    );
    let lines = call.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((tags(line), line.needs_relay()), (["fromA", "toC"], None));
    assert_eq!(line.parties[0].local_rtp, at("10.91.1.1:38030"));
    assert_eq!(line.parties[1].endpoint, at("10.91.2.2:7500"));
}

#[test]
fn forks_with_via_branches() {
    let answered = line(FORKS, "d20221_12");
    assert_eq!(tags(&answered), ["fromA", "t2"]);
    assert_eq!(answered.parties[1].via_branch.as_deref(), Some(&b"br2"[..]));
    let open = line(SHAPES, "r19254_19");
    assert_eq!(
        (tags(&open), open.parties[1].via_branch.as_deref()),
        (["fA", ""], Some(&b"br2"[..]))
    );
    let first = line(SHAPES, "r19254_21");
    assert_eq!((tags(&first), first.parties[1].local_rtp), (["fA", "t1"], at("10.91.1.1:38080")));
    assert_eq!(line(SHAPES, "r19254_23"), first, "the other branch was deleted");
}

#[test]
fn a_deleted_branch_is_no_line() {
    let call = call(FORKS, "d20221_16");
    assert_eq!(call.tags.len(), 3);
    assert_eq!(call.lines(), []);
}

#[test]
fn the_first_tag_is_the_older_one_whatever_the_query_named() {
    let mut call = call(FORKS, "d20221_15");
    assert_eq!(call.tags[0].name, b"t2");
    call.tags[0].created += 1;
    assert_eq!(tags(&call.lines()[0]), ["fromA", "t2"]);
}

#[test]
fn what_rtpengine_does_to_packets_is_a_reason() {
    let expected = [
        ("plain", "d18601_3", None),
        ("SDES on both sides", "d18601_6", Some(RelayReason::Sdes)),
        ("SDES to RTP", "d18601_9", Some(RelayReason::Sdes)),
        ("RTP to SDES", "d18601_12", Some(RelayReason::Sdes)),
        ("crypto under RTP/AVP", "d18601_15", Some(RelayReason::Sdes)),
        ("DTLS on both sides", "d18601_18", Some(RelayReason::DtlsSrtp)),
        ("DTLS, passive", "d18601_21", Some(RelayReason::DtlsSrtp)),
        ("WebRTC to RTP", "d18601_24", Some(RelayReason::DtlsSrtp)),
        ("ICE", "d18601_27", Some(RelayReason::Ice)),
        ("ICE removed", "d18601_30", None),
        ("ICE not offered", "d18601_33", None),
        ("ICE forced, not accepted", "d18601_36", None),
        ("PCMU to G722", "d18601_39", Some(RelayReason::Transcoding)),
        ("a codec stripped", "d18601_42", None),
        ("transcoding offered, not used", "d18601_45", None),
        ("an answer with another codec", "d18601_48", Some(RelayReason::Transcoding)),
        ("recorded, which query does not show", "d18601_51", None),
        ("asymmetric", "d18601_60", None),
        ("ptime", "d18601_72", Some(RelayReason::Transcoding)),
    ];
    for (what, cookie, reason) in expected {
        assert_eq!(line(KINDS, cookie).needs_relay(), reason, "{what}");
    }
    assert_eq!(
        line("15_opensips_webrtc_to_rtp.txt", "ag19883_2").needs_relay(),
        Some(RelayReason::DtlsSrtp)
    );
    assert_eq!(line(SHAPES, "r19254_26").needs_relay(), Some(RelayReason::T38));
    assert_eq!(
        line(KINDS, "d18601_6").parties[0].crypto_suite.as_deref(),
        Some("AES_CM_128_HMAC_SHA1_80")
    );
}

#[test]
fn flags_of_streams_and_media() {
    let strict = line(KINDS, "d18601_63");
    assert!(strict.parties.iter().all(|party| party.flags.contains(StreamFlags::STRICT_SOURCE)));
    let handover = line("30c_latch_handover.txt", "d18025_3");
    assert!(
        handover
            .parties
            .iter()
            .all(|party| party.flags.contains(StreamFlags::MEDIA_HANDOVER))
    );
    let asymmetric = line(KINDS, "d18601_60");
    assert!(asymmetric.parties.iter().all(|party| party.media.contains(MediaFlags::ASYMMETRIC)));
    let webrtc = line("15_opensips_webrtc_to_rtp.txt", "ag19883_2");
    let flags = MediaFlags::DTLS_SRTP | MediaFlags::DTLS_ACTIVE | MediaFlags::ICE | MediaFlags::RTCP_MUX;
    assert!(webrtc.parties[0].media.contains(flags) && !webrtc.parties[1].media.intersects(flags));
    assert_eq!(
        webrtc.parties[0].media.to_string(),
        "initialized, send, recv, rtcp-mux, DTLS-SRTP, DTLS role active, ICE"
    );
}

#[test]
fn ipv6_and_from_ipv4_to_ipv6() {
    let v6 = line(SHAPES, "r19254_13");
    assert_eq!(ports(&v6.parties[0]), (at("[fd91:1::1]:38010"), at("[fd91:1::1]:38011")));
    assert_eq!(
        v6.parties.each_ref().map(|party| party.endpoint),
        [at("[fd91:1::2]:6000"), at("[fd91:2::2]:7000")]
    );
    let mixed = line(SHAPES, "r19254_16");
    assert_eq!(
        mixed.parties.each_ref().map(|party| party.local_rtp),
        [at("10.91.1.1:38060"), at("[fd91:1::1]:38022")]
    );
    assert_eq!(
        mixed.parties.each_ref().map(|party| party.advertised),
        [at("10.91.1.2:6000"), at("[fd91:2::2]:7000")]
    );
    assert_eq!(mixed.needs_relay(), None);
}

#[test]
fn feedback_that_one_side_does_not_take() {
    let line = line(SHAPES, "r19254_29");
    assert_eq!(
        line.parties.each_ref().map(|party| party.protocol.as_deref()),
        [Some("RTP/AVPF"), Some("RTP/AVP")]
    );
    assert!(line.filters_rtcp() && line.needs_relay().is_none());
}

#[test]
fn a_label_and_a_party_on_hold() {
    let line = line(SHAPES, "r19254_34");
    assert_eq!(line.parties[0].label.as_deref(), Some(&b"alice"[..]));
    assert_eq!(line.parties[0].advertised, at("0.0.0.0:6000"));
    let [caller, callee] = line.parties.each_ref().map(|party| party.media);
    assert!(caller.contains(MediaFlags::RECV) && !caller.contains(MediaFlags::SEND));
    assert!(callee.contains(MediaFlags::SEND) && !callee.contains(MediaFlags::RECV));
}

#[test]
fn a_subscription_makes_a_media_fork() {
    let forked = line(SHAPES, "r19254_39");
    assert_eq!((tags(&forked), forked.needs_relay()), (["fA", "tB"], Some(RelayReason::MediaFork)));
    let over = line(SHAPES, "r19254_41");
    assert_eq!((tags(&over), over.needs_relay()), (["fA", "tB"], None));
    assert_eq!(lines(SHAPES, "r19254_43"), [], "publish alone");
}

#[test]
fn the_same_call_in_json() {
    let line = line(SHAPES, "r19254_64");
    assert_eq!((tags(&line), line.parties[1].endpoint), (["fA", "tB"], at("10.91.2.2:7000")));
    assert_eq!(line.needs_relay(), None);
}

#[test]
fn what_a_newer_rtpengine_adds_is_passed_over() {
    let text = r#"{"created":5,"created_ts":5000000,"last signal":6,"tags":{"a":{"tag":"a","tag-aliases":["x"],"created":5,
        "subscriptions":[{"tag":"b","type":"offer/answer"}],"subscribers":[{"tag":"b","type":"offer/answer"}],"VSC":[],
        "medias":[{"index":1,"type":"audio","protocol":"RTP/AVP","flags":["send","from the future"],"ingress SSRCs":[{"SSRC":1,"bytes":2}],
            "streams":[{"local port":2,"local address":"::1","family":"IPv6","endpoint":{"family":"IPv6","address":"::2","port":4},
                "advertised endpoint":{},"flags":["RTP","new"],"stats":{"packets":1,"bytes":2,"errors":0},"stats_out":{"packets":9}}]}]}},
        "recording":{"call recording":1},"result":"ok"}"#;
    let call = describe(text.as_bytes()).unwrap();
    assert_eq!((call.created, call.last_signal), (5, 6));
    let media = &call.tags[0].medias[0];
    assert_eq!(
        (media.flags, &media.other[..]),
        (MediaFlags::SEND, &["from the future".to_owned()][..])
    );
    assert_eq!((media.streams[0].other[0].as_str(), media.streams[0].packets), ("new", 1));
    assert_eq!(call.lines(), []);
}

#[test]
fn a_reply_without_a_call() {
    for body in [&b"d6:result2:oke"[..], b"d4:tagsle6:result2:oke", br#"{"result":"error"}"#] {
        assert_eq!(describe(body).unwrap_err().fault, Fault::Missing("tags"));
    }
    assert_eq!(describe(b"d4:tags").unwrap_err().fault, Fault::Truncated);
    assert_eq!(describe(b"d4:tagsdee").unwrap(), CallDescription::default());
}
