//! Commands and replies: what they say, what they need, what they do to a call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{command, recordings};
use shunt_ng::framing::{FrameError, MAX_MESSAGE, take};
use shunt_ng::sdp::{self, Direction};
use shunt_ng::{
    All, Cause, Command, Counts, Effect, Encoding, EndpointLearning, Fault, Ice, Needs, Reply, ReplyResult, RtcpMux, Value, Verb, Whom,
    add_counts, build, decode, encode,
};
use std::borrow::Cow;

fn text(text: &str) -> Value<'_> {
    Value::Text(Cow::Borrowed(text.as_bytes()))
}

fn list<'a>(items: &[&'a str]) -> Value<'a> {
    Value::List(items.iter().map(|item| text(item)).collect())
}

fn dictionary<'a>(entries: &[(&'a str, Value<'a>)]) -> Value<'a> {
    let entry = |(key, value): &(&'a str, Value<'a>)| (Cow::Borrowed(key.as_bytes()), value.clone());
    Value::Dictionary(entries.iter().map(entry).collect())
}

/// A command with these keys, read in both encodings.
fn with<T>(verb: &str, keys: &[(&str, Value<'_>)], check: impl Fn(&Command<'_>) -> T) -> T {
    let mut entries = vec![("command", text(verb)), ("call-id", text("c1"))];
    entries.extend(keys.iter().cloned());
    let body = dictionary(&entries);
    check(&Command::parse(&encode(&body, Encoding::Json)).unwrap());
    check(&Command::parse(&encode(&body, Encoding::Bencode)).unwrap())
}

fn needs(keys: &[(&str, Value<'_>)]) -> Needs {
    with("offer", keys, |command| command.needs())
}

fn flag(flag: &str) -> Needs {
    needs(&[("flags", list(&[flag]))])
}

fn sdp_needs(lines: &str) -> Needs {
    let sdp = format!("v=0\r\no=u 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n{lines}");
    needs(&[("sdp", text(&sdp))])
}

#[test]
fn an_offer_of_opensips() {
    let message = command("03_opensips_flags.txt", &cookie_of("03_opensips_flags.txt", Verb::Offer));
    let offer = Command::parse(message.body()).unwrap();
    assert_eq!(
        (offer.verb, offer.encoding, offer.raw),
        (Verb::Offer, Encoding::Bencode, message.body())
    );
    assert!(offer.from_tag.is_some() && offer.to_tag.is_none() && offer.sdp.as_ref().unwrap().starts_with(b"v=0"));
    assert_eq!(offer.received_from, Some("10.91.1.2".parse().unwrap()));
    let interfaces = offer.options.direction.each_ref().map(|name| name.as_deref().unwrap());
    assert_eq!(interfaces, [&b"external"[..], b"internal"]);
    assert!(offer.options.trust_address);
    assert_eq!(
        (offer.needs(), offer.effect(), offer.whom()),
        (Needs::NONE, Effect::Negotiates, Whom::Parties)
    );
}

/// The cookie of a recording's first command of this kind.
fn cookie_of(name: &str, verb: Verb) -> String {
    let all = recordings().into_iter().find(|(known, _)| known == name).unwrap().1;
    let is_it =
        |message: &&common::Recorded| message.is_command && Command::parse(message.body()).is_ok_and(|command| command.verb == verb);
    String::from_utf8(all.iter().find(is_it).unwrap().cookie().to_vec()).unwrap()
}

#[test]
fn needs_of_recorded_offers() {
    let expected = [
        ("01_opensips_basic.txt", Needs::NONE),
        ("02_kamailio_basic.txt", Needs::NONE),
        ("14b_opensips_rtcpmux_demux.txt", Needs::NONE),
        ("15_opensips_webrtc_to_rtp.txt", Needs::SRTP | Needs::DTLS),
        ("16_opensips_sdes_passthrough.txt", Needs::SRTP),
        ("16b_opensips_sdes_to_rtp.txt", Needs::SRTP),
        ("16c_opensips_rtp_to_sdes.txt", Needs::SRTP),
        ("17_opensips_transcode.txt", Needs::TRANSCODING),
        ("17b_opensips_record.txt", Needs::RECORDING),
        ("26_kamailio_sdes_to_rtp.txt", Needs::SRTP),
    ];
    for (name, expected) in expected {
        let message = command(name, &cookie_of(name, Verb::Offer));
        assert_eq!(Command::parse(message.body()).unwrap().needs(), expected, "{name}");
    }
    let demux = command(
        "14b_opensips_rtcpmux_demux.txt",
        &cookie_of("14b_opensips_rtcpmux_demux.txt", Verb::Offer),
    );
    assert_eq!(Command::parse(demux.body()).unwrap().options.rtcp_mux, RtcpMux::DEMUX);
    let v6 = command("11_opensips_ipv6.txt", &cookie_of("11_opensips_ipv6.txt", Verb::Offer));
    assert_eq!(Command::parse(v6.body()).unwrap().received_from, Some("fd91:1::2".parse().unwrap()));
    let bridged = command("11b_opensips_4to6.txt", &cookie_of("11b_opensips_4to6.txt", Verb::Offer));
    assert_eq!(
        Command::parse(bridged.body()).unwrap().options.address_family.as_deref(),
        Some(&b"IP6"[..])
    );
}

#[test]
fn each_spelling_of_a_key() {
    for key in ["record call", "record-call", "record_call"] {
        assert_eq!(needs(&[(key, text("on"))]), Needs::RECORDING, "{key}");
        assert_eq!(needs(&[(key, text("no"))]), Needs::NONE, "{key}");
    }
    for key in ["transport protocol", "transport-protocol"] {
        assert_eq!(needs(&[(key, text("RTP/SAVP"))]), Needs::SRTP);
        assert_eq!(needs(&[(key, text("UDP/TLS/RTP/SAVPF"))]), Needs::SRTP | Needs::DTLS);
        assert_eq!(needs(&[(key, text("RTP/AVPF"))]), Needs::NONE);
    }
    let delay = with("delete", &[("delete delay", text("30"))], |command| command.options.delete_delay);
    assert_eq!(delay, Some(30));
    assert_eq!(
        with("offer", &[("TOS", Value::Integer(184))], |command| command.options.tos),
        Some(184)
    );
}

#[test]
fn needs_by_keys() {
    assert_eq!(needs(&[("ICE", text("force"))]), Needs::ICE);
    assert_eq!(needs(&[("ICE", list(&["optional", "trickle"]))]), Needs::ICE);
    assert_eq!(needs(&[("ICE", text("remove"))]), Needs::NONE);
    for operation in ["transcode", "mask", "set", "accept", "consume", "ignore"] {
        let codec = dictionary(&[(operation, list(&["opus"]))]);
        assert_eq!(needs(&[("codec", codec)]), Needs::TRANSCODING, "{operation}");
    }
    let strip = dictionary(&[("strip", list(&["G729"])), ("offer", list(&["PCMA"])), ("except", list(&["PCMU"]))]);
    assert_eq!(needs(&[("codec", strip)]), Needs::NONE);
    assert_eq!(needs(&[("ptime", Value::Integer(40))]), Needs::TRANSCODING);
    assert_eq!(needs(&[("ptime-reverse", Value::Integer(0))]), Needs::NONE);
    assert_eq!(needs(&[("T.38", list(&["decode"]))]), Needs::T38);
    assert_eq!(needs(&[("media echo", text("blackhole"))]), Needs::MEDIA_ECHO);
    assert_eq!(needs(&[("drop-traffic", text("start"))]), Needs::DROP_TRAFFIC);
    assert_eq!(needs(&[("drop-traffic", text("stop"))]), Needs::NONE);
    assert_eq!(needs(&[("generate RTCP", text("on"))]), Needs::GENERATE_RTCP);
    assert_eq!(needs(&[("delay-buffer", Value::Integer(80))]), Needs::DELAY_BUFFER);
    assert_eq!(needs(&[("audio-player", text("always"))]), Needs::AUDIO_PLAYER);
    assert_eq!(needs(&[("audio-player", text("off"))]), Needs::NONE);
    assert_eq!(needs(&[("moh", dictionary(&[("file", text("x.wav"))]))]), Needs::AUDIO_PLAYER);
    assert_eq!(needs(&[("DTMF-security", text("tone"))]), Needs::BLOCK_DTMF);
    assert_eq!(needs(&[("DTMF-security", text("off"))]), Needs::NONE);
    assert_eq!(needs(&[("vsc-start-rec", text("*1"))]), Needs::RECORDING_VSC);
    assert_eq!(needs(&[("extmap", dictionary(&[("mask", list(&["all"]))]))]), Needs::EXTMAP);
    assert_eq!(needs(&[("extmap", dictionary(&[("strip", list(&["all"]))]))]), Needs::NONE);
    assert_eq!(needs(&[("bundle", list(&["require"]))]), Needs::BUNDLE);
    assert_eq!(needs(&[("template", text("x"))]), Needs::TEMPLATE);
    assert_eq!(needs(&[("OSRTP", list(&["offer"]))]), Needs::SRTP);
    assert_eq!(
        needs(&[("OSRTP", list(&["accept"])), ("SDES", list(&["off"])), ("DTLS", text("passive"))]),
        Needs::NONE
    );
}

#[test]
fn needs_by_flags() {
    let expected = [
        ("transcode-G729", Needs::TRANSCODING),
        ("codec-mask-all", Needs::TRANSCODING),
        ("codec-strip-all", Needs::NONE),
        ("always-transcode", Needs::TRANSCODING),
        ("record-call", Needs::RECORDING),
        ("record call", Needs::RECORDING),
        ("inject-DTMF", Needs::INJECT_DTMF),
        ("detect DTMF", Needs::DETECT_DTMF),
        ("block-DTMF", Needs::BLOCK_DTMF),
        ("block short packets", Needs::BLOCK_SHORT),
        ("generate-RTCP", Needs::GENERATE_RTCP),
        ("T38-decode", Needs::T38),
        ("T.38-force", Needs::T38),
        ("OSRTP-offer", Needs::SRTP),
        ("SDES-off", Needs::NONE),
        ("ICE-force", Needs::ICE),
        ("WebRTC", Needs::SRTP.union(Needs::DTLS).union(Needs::ICE)),
        ("recording announcement", Needs::AUDIO_PLAYER),
        ("trust-address", Needs::NONE),
        ("nonsense", Needs::NONE),
    ];
    for (name, expected) in expected {
        assert_eq!(flag(name), expected, "{name}");
    }
}

#[test]
fn needs_by_sdp() {
    assert_eq!(sdp_needs("m=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"), Needs::NONE);
    assert_eq!(sdp_needs("m=audio 6000 RTP/SAVP 0\r\n"), Needs::SRTP);
    assert_eq!(sdp_needs("m=audio 6000 RTP/AVP 0\r\na=crypto:1 X inline:Y\r\n"), Needs::SRTP);
    assert_eq!(sdp_needs("m=audio 6000 UDP/TLS/RTP/SAVPF 0\r\n"), Needs::SRTP | Needs::DTLS);
    assert_eq!(sdp_needs("a=fingerprint:sha-256 00\r\nm=audio 6000 RTP/AVP 0\r\n"), Needs::DTLS);
    assert_eq!(sdp_needs("m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n"), Needs::DTLS);
    assert_eq!(sdp_needs("m=audio 6000 RTP/AVP 0\r\na=ice-ufrag:x\r\n"), Needs::ICE);
    assert_eq!(sdp_needs("m=image 6000 udptl t38\r\n"), Needs::T38);
    let ice = text("v=0\r\nm=audio 6000 RTP/AVP 0\r\na=candidate:1 1 UDP 1 192.0.2.1 6000 typ host\r\n");
    assert_eq!(needs(&[("sdp", ice.clone()), ("ICE", text("remove"))]), Needs::NONE);
    assert_eq!(needs(&[("sdp", ice), ("ICE", text("default"))]), Needs::ICE);
    let bundled = text("v=0\r\na=group:BUNDLE 0 1\r\nm=audio 6000 RTP/AVP 0\r\n");
    assert_eq!(needs(&[("sdp", bundled.clone())]), Needs::NONE);
    assert_eq!(needs(&[("sdp", bundled), ("flags", list(&["BUNDLE-accept"]))]), Needs::BUNDLE);
}

#[test]
fn needs_that_query_does_not_show() {
    let all = Needs::SRTP | Needs::TRANSCODING | Needs::RECORDING | Needs::MEDIA_ECHO;
    assert_eq!(all.hidden(), Needs::RECORDING | Needs::MEDIA_ECHO);
    assert_eq!(all.to_string(), "SRTP, transcoding, recording, media echo");
    assert!(with("publish", &[], |command| command.needs()).contains(Needs::SUBSCRIPTIONS));
}

#[test]
fn options_by_flags_and_keys() {
    let flags = list(&[
        "strict source",
        "media-handover",
        "asymmetric",
        "port-latching",
        "symmetric",
        "rtcp-mux-require",
        "endpoint-learning-immediate",
        "all",
        "from-tags-Ab",
        "from-tags-cD",
    ]);
    let keys = [
        ("flags", flags),
        ("rtcp-mux", list(&["offer"])),
        ("supports", list(&["load limit"])),
        ("media address", text("203.0.113.5")),
        ("received from", list(&["IP6", "[2001:DB8::1]"])),
        ("xmlrpc-callback", text("http://%%/RPC2")),
        ("DTMF-log-dest", text("192.0.2.1:9")),
    ];
    with("offer", &keys, |command| {
        let options = &command.options;
        assert!(options.strict_source && options.media_handover && options.asymmetric && options.symmetric && options.port_latching);
        assert!(!options.no_port_latching && !options.trust_address && options.dtmf_log);
        assert_eq!(options.rtcp_mux, RtcpMux::OFFER | RtcpMux::REQUIRE);
        assert_eq!(
            (options.endpoint_learning, options.all),
            (Some(EndpointLearning::Immediate), All::All)
        );
        assert_eq!(command.from_tags, [&b"Ab"[..], b"cD"]);
        assert_eq!(command.media_address, Some("203.0.113.5".parse().unwrap()));
        assert_eq!(command.received_from, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(options.xmlrpc_callback.as_deref(), Some(&b"http://%%/RPC2"[..]));
        assert_eq!(command.needs(), Needs::NONE);
    });
    assert_eq!(
        with("offer", &[("endpoint-learning", text("off"))], |c| c.options.endpoint_learning),
        Some(EndpointLearning::Off)
    );
}

#[test]
fn all_flags_in_one_string() {
    let string = "trust-address  replace-origin ICE=remove codec=[transcode=[PCMA G729] strip=[all]] direction=priv direction=pub to-tag=T \
                  rtcp-mux=[offer require] via-branch=z9 label=A[1] strict-source";
    with("offer", &[("rtpp-flags", text(string)), ("from-tag", text("F"))], |command| {
        assert_eq!(command.needs(), Needs::TRANSCODING);
        let options = &command.options;
        assert!(options.trust_address && options.strict_source && !options.directional);
        assert_eq!(
            (options.ice, options.rtcp_mux),
            (Some(Ice::Remove), RtcpMux::OFFER | RtcpMux::REQUIRE)
        );
        assert_eq!(
            options.direction.each_ref().map(|name| name.as_deref().unwrap()),
            [&b"priv"[..], b"pub"]
        );
        let tags = [&command.from_tag, &command.to_tag, &command.via_branch, &command.label].map(|tag| tag.as_deref().unwrap());
        assert_eq!(tags, [&b"F"[..], b"T", b"z9", b"A[1]"]);
    });
    let of = |string: &str| needs(&[("rtpp_flags", text(string))]);
    assert_eq!(of("external internal RTP/SAVP"), Needs::SRTP);
    assert_eq!(of("SRTP AVPF"), Needs::SRTP);
    assert_eq!(of("UDP/TLS/RTP/SAVPF ICE=force"), Needs::SRTP | Needs::DTLS | Needs::ICE);
    assert_eq!(of("transcode=PCMU"), Needs::TRANSCODING);
    assert_eq!(of("codec-mask=G722 codec-transcode=PCMA"), Needs::TRANSCODING);
    assert_eq!(of("record-call=yes"), Needs::RECORDING);
    assert_eq!(of("record-call"), Needs::RECORDING);
    assert_eq!(of("T.38=[decode]"), Needs::T38);
    assert_eq!(of("codec=[strip=all except=PCMU]"), Needs::NONE);
}

#[test]
fn what_a_command_does_to_a_call() {
    let expected = [
        ("ping", Effect::None),
        ("query", Effect::None),
        ("list", Effect::None),
        ("statistics", Effect::None),
        ("offer", Effect::Negotiates),
        ("answer", Effect::Negotiates),
        ("create answer", Effect::Negotiates),
        ("delete", Effect::Ends),
        ("start recording", Effect::Blocks(Cause::Recording)),
        ("pause recording", Effect::Unblocks(Cause::Recording)),
        ("stop recording", Effect::Unblocks(Cause::Recording)),
        ("start forwarding", Effect::Blocks(Cause::Forwarding)),
        ("stop forwarding", Effect::Unblocks(Cause::Forwarding)),
        ("block DTMF", Effect::Blocks(Cause::BlockDtmf)),
        ("unblock DTMF", Effect::Unblocks(Cause::BlockDtmf)),
        ("block media", Effect::Blocks(Cause::BlockMedia)),
        ("unblock media", Effect::Unblocks(Cause::BlockMedia)),
        ("silence media", Effect::Blocks(Cause::SilenceMedia)),
        ("unsilence media", Effect::Unblocks(Cause::SilenceMedia)),
        ("play media", Effect::Blocks(Cause::PlayMedia)),
        ("stop media", Effect::Unblocks(Cause::PlayMedia)),
        ("play DTMF", Effect::Blocks(Cause::PlayDtmf)),
        ("publish", Effect::Subscribes),
        ("subscribe request", Effect::Subscribes),
        ("subscribe answer", Effect::Subscribes),
        ("unsubscribe", Effect::Unblocks(Cause::Subscription)),
        ("inject start", Effect::Blocks(Cause::Inject)),
        ("inject stop", Effect::Unblocks(Cause::Inject)),
        ("connect", Effect::Subscribes),
        ("mesh", Effect::Subscribes),
        ("transform", Effect::Blocks(Cause::Transform)),
        ("cli", Effect::Blocks(Cause::Unknown)),
        ("Block Media", Effect::Blocks(Cause::Unknown)),
    ];
    for (name, effect) in expected {
        assert_eq!(with(name, &[], |command| command.effect()), effect, "{name}");
    }
    assert_eq!(
        Command::parse(b"d7:command6:foobare").unwrap().effect(),
        Effect::None,
        "an unknown command about no call"
    );
    let mesh = Command::parse(b"d7:command4:mesh5:callsl1:a1:bee").unwrap();
    assert_eq!(mesh.calls().collect::<Vec<_>>(), [b"a", b"b"]);
    let connect = Command::parse(b"d7:command7:connect7:call-id1:a10:to-call-id1:be").unwrap();
    assert_eq!(connect.calls().collect::<Vec<_>>(), [b"a", b"b"]);
}

#[test]
fn whom_a_command_is_about() {
    let tag = ("from-tag", text("f"));
    assert_eq!(with("block media", &[], |command| command.whom()), Whom::Call);
    assert_eq!(
        with("block media", std::slice::from_ref(&tag), |command| command.whom()),
        Whom::Parties
    );
    assert_eq!(
        with("block media", &[("address", text("192.0.2.1"))], |command| command.whom()),
        Whom::Parties
    );
    assert_eq!(
        with("block media", &[("label", text("x"))], |command| command.whom()),
        Whom::Parties
    );
    assert_eq!(
        with("unblock media", &[("flags", list(&["all"])), tag.clone()], |command| command.whom()),
        Whom::Everyone
    );
    assert_eq!(
        with("unblock media", &[("all", text("all"))], |command| command.whom()),
        Whom::Everyone
    );
    assert_eq!(
        with("unblock media", &[("all", text("flows")), tag.clone()], |command| command.whom()),
        Whom::Parties
    );
    assert_eq!(
        with("start recording", std::slice::from_ref(&tag), |command| command.whom()),
        Whom::Call
    );
    assert_eq!(with("delete", &[], |command| command.whom()), Whom::Call);
    assert_eq!(with("delete", std::slice::from_ref(&tag), |command| command.whom()), Whom::Call);
    assert_eq!(with("delete", &[("to-tag", text("t"))], |command| command.whom()), Whom::Call);
    assert_eq!(
        with("delete", &[tag.clone(), ("to-tag", text("t"))], |command| command.whom()),
        Whom::Parties
    );
    assert_eq!(
        with("delete", &[tag, ("via-branch", text("b"))], |command| command.whom()),
        Whom::Parties
    );
}

#[test]
fn every_verb_by_name() {
    for name in ["ping", "offer", "play DTMF", "unsilence media", "create answer", "cli"] {
        assert_eq!(Verb::named(name.as_bytes()).name(), name);
    }
    assert_eq!((Verb::named(b"Ping"), Verb::Other.name()), (Verb::Other, ""));
}

#[test]
fn replies() {
    let ok = Reply::parse(b"d3:sdp3:v=06:result2:oke").unwrap();
    assert_eq!(
        (ok.result.clone(), ok.sdp.as_deref(), ok.is_ok()),
        (ReplyResult::Ok, Some(&b"v=0"[..]), true)
    );
    let error = Reply::parse(b"d6:result5:error12:error-reason15:Unknown call-ide").unwrap();
    assert_eq!(
        (&error.result, error.is_ok()),
        (&ReplyResult::Error(Cow::Borrowed(b"Unknown call-id")), false)
    );
    let limit = Reply::parse(b"d6:result10:load limit7:message30:Parallel session limit reachede").unwrap();
    assert_eq!(limit.result, ReplyResult::LoadLimit);
    assert_eq!(Reply::parse(&build::pong(Encoding::Json)).unwrap().result, ReplyResult::Pong);
    let gone = Reply::parse(b"d7:warning38:Call-ID not found or tags didn't match6:result2:oke").unwrap();
    assert!(gone.warning.is_some() && gone.is_ok());
    let recorded = Reply::parse(b"d10:recordingsl6:a.pcape6:result2:oke").unwrap();
    assert!(recorded.recordings && !Reply::parse(b"d10:recordingsle6:result2:oke").unwrap().recordings);
    let list = Reply::parse(br#"{"calls":["a","b\n"],"result":"ok"}"#).unwrap();
    assert_eq!(
        (list.calls, list.encoding),
        (vec![Cow::Borrowed(&b"a"[..]), Cow::Borrowed(b"b\n")], Encoding::Json)
    );
    assert_eq!(Reply::parse(b"d8:durationi1500e6:result2:oke").unwrap().duration, Some(1500));
    let sdp = Reply::parse(b"d3:sdp58:v=0\r\nm=audio 1 RTP/SAVP 0\r\na=candidate:x\r\na=crypto:1 a b\r\n6:result2:oke").unwrap();
    assert_eq!(sdp.needs(), Needs::SRTP | Needs::ICE);
    assert_eq!(Reply::parse(b"hello").unwrap_err().fault, Fault::Format);
}

#[test]
fn commands_of_our_own() {
    assert_eq!(build::ping(), b"d7:command4:pinge");
    assert_eq!(build::query(b"a:b"), b"d7:command5:query7:call-id3:a:be");
    assert_eq!(build::list(100_000), b"d7:command4:list5:limiti100000ee");
    assert_eq!(build::statistics(), b"d7:command10:statisticse");
    assert_eq!(build::delete(b"c", None, None, None), b"d7:command6:delete7:call-id1:ce");
    let delete = build::delete(b"c", Some(b"f"), Some(b"t"), Some(0));
    assert_eq!(delete, b"d7:command6:delete7:call-id1:c8:from-tag1:f6:to-tag1:t12:delete-delayi0ee");
    assert_eq!(Command::parse(&delete).unwrap().options.delete_delay, Some(0));
    assert_eq!(
        build::error("no relay", Encoding::Bencode),
        b"d6:result5:error12:error-reason8:no relaye"
    );
    assert_eq!(build::error("a\"b", Encoding::Json), br#"{"result":"error","error-reason":"a\"b"}"#);
}

#[test]
fn counts_in_a_reply_as_it_was_written() {
    let reply = br#"{ "tags" : {"a":{"medias":[{"streams":[
        {"local port":10,"local address":"192.0.2.1","flags":["RTP"],"stats":{"packets": 1,"bytes":20,"errors":0}},
        {"local port":11,"local address":"192.0.2.1","flags":["RTCP"],"stats":{"packets":2,"bytes":-1}},
        {"local port":0,"local address":"192.0.2.1","flags":["RTCP"],"stats":{"packets":3}}, 7 ]}]}, "b": 1},
        "totals":{"RTP":{"packets":1,"bytes":20},"RTCP":{"packets":999999}},"result":"ok" }"#;
    let added = add_counts(reply, |local| Counts {
        packets: u64::from(local.port),
        bytes: 100,
    });
    let expected = br#"{ "tags" : {"a":{"medias":[{"streams":[
        {"local port":10,"local address":"192.0.2.1","flags":["RTP"],"stats":{"packets": 11,"bytes":120,"errors":0}},
        {"local port":11,"local address":"192.0.2.1","flags":["RTCP"],"stats":{"packets":13,"bytes":99}},
        {"local port":0,"local address":"192.0.2.1","flags":["RTCP"],"stats":{"packets":3}}, 7 ]}]}, "b": 1},
        "totals":{"RTP":{"packets":11,"bytes":120},"RTCP":{"packets":1000010}},"result":"ok" }"#;
    assert_eq!(added.unwrap().escape_ascii().to_string(), expected.escape_ascii().to_string());
    assert_eq!(add_counts(b"d6:result2:oke", |_| Counts { packets: 1, bytes: 1 }), None);
    assert_eq!(add_counts(b"E", |_| Counts { packets: 1, bytes: 1 }), None);
}

#[test]
fn what_is_no_body() {
    let fault = |body: &[u8]| decode(body).unwrap_err().fault;
    for body in [&b""[..], b"x", b"l1:ae", b"i1e", b"[1]", b"\"a\"", b" d1:a1:be"] {
        assert_eq!(fault(body), Fault::Format, "{}", body.escape_ascii());
    }
    for body in [
        &b"d"[..],
        b"d1:a",
        b"d1:a1:b",
        b"d1:a5:be",
        b"d1:ai12",
        b"d12",
        b"{",
        b"{\"a\":1",
        b"{\"a",
    ] {
        assert_eq!(fault(body), Fault::Truncated, "{}", body.escape_ascii());
    }
    for body in [
        &b"d1:ae"[..],
        b"d1:aiee",
        b"d1:ai1x",
        b"d1:ai99999999999999999999ee",
        b"d1:xx",
        b"d-1:ae",
        b"d1x:ae",
        b"d0000000001:ae",
    ] {
        assert_eq!(fault(body), Fault::Bencode, "{}", body.escape_ascii());
    }
    assert_eq!((fault(b"di1e1:ae"), fault(b"dle1:ae")), (Fault::Key, Fault::Key));
    for body in [
        &b"{\"a\" 1}"[..],
        b"{1:2}",
        b"{\"a\":01}",
        b"{} {}",
        b"{\"a\":\"\xff\"}",
        b"{\"a\":\"\\ud800\"}",
    ] {
        assert_eq!(fault(body), Fault::Json, "{}", body.escape_ascii());
    }
    let error = decode(b"d1:a1:b2:cd").unwrap_err();
    assert_eq!((error.at, error.to_string().as_str()), (11, "ends too early at byte 11"));
    assert_eq!(decode(b"{\"a\":\n  x}").unwrap_err().at, 9);
}

#[test]
fn limits() {
    let nested = |depth: usize| [b"d1:a".repeat(depth), b"e".repeat(depth)].concat();
    let json = |depth: usize| ["{\"a\":".repeat(depth), "1".to_owned(), "}".repeat(depth)].concat();
    assert_eq!(
        decode(&[b"d1:a".repeat(33), b"e".repeat(33)].concat()).unwrap_err().fault,
        Fault::Depth
    );
    assert_eq!(decode(&nested(30_000)).unwrap_err().fault, Fault::Depth);
    assert!(decode(json(32).as_bytes()).is_ok());
    assert_eq!(decode(json(33).as_bytes()).unwrap_err().fault, Fault::Depth);
    assert!(decode(json(12_000).as_bytes()).is_err());
    let many = [b"d1:al".as_slice(), &b"le".repeat(30_000), b"ee"].concat();
    assert_eq!(decode(&many).unwrap_err().fault, Fault::Elements);
    let many = format!("{{\"a\":[{}1]}}", "1,".repeat(30_000));
    assert_eq!(decode(many.as_bytes()).unwrap_err().fault, Fault::Elements);
    let string = ["a=".repeat(5), "[".repeat(60_000)].concat();
    assert_eq!(needs(&[("rtpp-flags", text(&string))]), Needs::NONE);
}

#[test]
fn ends_of_messages_in_a_stream() {
    for part in [
        &b""[..],
        b"\r\n",
        b"c1",
        b"c1 ",
        b"c1 d",
        b"c1 d7:command4:ping",
        b"c1 {\"command\":\"ping\"",
    ] {
        assert_eq!(take(part), Ok(None), "{}", part.escape_ascii());
    }
    let (message, length) = take(b"\n c1 {\"a\":\"}\"}c2 d").unwrap().unwrap();
    assert_eq!((message.cookie, message.body, length), (&b"c1"[..], &b"{\"a\":\"}\"}"[..], 14));
    assert!(matches!(take(b"c1 x"), Err(FrameError::Body(_))));
    assert!(matches!(take(b"c1 d1:ax"), Err(FrameError::Body(_))));
    assert_eq!(take(&vec![b'c'; MAX_MESSAGE]), Ok(None));
    assert_eq!(take(&vec![b'c'; MAX_MESSAGE + 1]), Err(FrameError::TooLong));
    let long = [b"c1 d1:a65000:".as_slice(), &vec![b'x'; 65_000], b"e"].concat();
    assert_eq!(take(&long).unwrap().unwrap().1, long.len());
    let longer = [b"c1 d1:a65600:".as_slice(), &vec![b'x'; 65_600], b"e"].concat();
    assert_eq!(take(&longer), Err(FrameError::TooLong));
}

#[test]
fn what_an_sdp_says_of_media() {
    let sdp = sdp::scan(
        b"v=0\r\nc=IN IP4 192.0.2.1\r\na=sendonly\r\nm=audio 6000 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n\
          a=rtcp:6051 IN IP4 192.0.2.9\r\nm=video 0 RTP/AVPF 96\nc=IN IP6 2001:db8::1\na=rtcp-mux\na=inactive\nm=x\n",
    );
    let [audio, video, bad] = &sdp.media[..] else { panic!("{sdp:?}") };
    assert_eq!(
        (audio.kind.as_str(), audio.port, audio.protocol.as_str()),
        ("audio", 6000, "RTP/AVP")
    );
    assert_eq!(
        (audio.connection, audio.direction, audio.rtcp),
        (Some("192.0.2.1".parse().unwrap()), Direction::SendOnly, Some(6051))
    );
    assert_eq!((&audio.telephone_events[..], audio.rtcp_mux), (&[101][..], false));
    assert_eq!(
        (video.port, video.connection, video.direction),
        (0, Some("2001:db8::1".parse().unwrap()), Direction::Inactive)
    );
    assert!(video.rtcp_mux && bad.port == 0 && !sdp.ice && sdp.needs.is_empty());
}
