//! Calls of an rtpengine: what commands do to entries, what descriptions make of lines, and packets that the relay is shown.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use shunt_calls::*;
use shunt_ng::{CallDescription, Command, MediaDescription, MediaFlags, Reply, StreamDescription, StreamFlags, Subscription, Tag};
use std::collections::HashSet;
use std::time::Duration;

const OFFER: &str = "v=0\r\no=u 1 1 IN IP4 10.1.0.2\r\ns=-\r\nc=IN IP4 10.1.0.2\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n";
const ANSWER: &str = "v=0\r\no=u 1 1 IN IP4 10.2.0.2\r\ns=-\r\nc=IN IP4 10.2.0.2\r\nt=0 0\r\nm=audio 7000 RTP/AVP 0\r\n";

fn text(key: &str, value: &str) -> String {
    format!("{}:{key}{}:{value}", key.len(), value.len())
}

fn body(fields: &[(&str, &str)]) -> String {
    let fields: String = fields.iter().map(|(key, value)| text(key, value)).collect();
    format!("d{fields}e")
}

fn offer(sdp: &str) -> String {
    body(&[("sdp", sdp), ("call-id", "c1"), ("from-tag", "a"), ("command", "offer")])
}

fn answer(sdp: &str, to: &str) -> String {
    body(&[
        ("sdp", sdp),
        ("call-id", "c1"),
        ("from-tag", "a"),
        ("to-tag", to),
        ("command", "answer"),
    ])
}

fn replied(sdp: &str) -> String {
    body(&[("sdp", sdp), ("result", "ok")])
}

/// What rtpengine makes of a description: it stands in for the party.
fn relayed(port: u16) -> String {
    format!("v=0\r\no=u 1 1 IN IP4 10.9.0.1\r\ns=-\r\nc=IN IP4 10.9.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n")
}

fn stream(local: &str, at: &str, flags: StreamFlags) -> StreamDescription {
    StreamDescription {
        local: Some(end(local)),
        endpoint: Some(end(at)),
        advertised: Some(end(at)),
        flags,
        ..StreamDescription::default()
    }
}

fn next(text: &str) -> String {
    let (host, port) = text.rsplit_once(':').unwrap();
    format!("{host}:{}", port.parse::<u16>().unwrap() + 1)
}

fn media(index: u32, local: &str, at: &str) -> MediaDescription {
    MediaDescription {
        index,
        kind: "audio".into(),
        protocol: Some("RTP/AVP".into()),
        streams: vec![
            stream(local, at, StreamFlags::RTP),
            stream(&next(local), &next(at), StreamFlags::RTCP),
        ],
        ..MediaDescription::default()
    }
}

fn party(name: &str, peer: &str, created: i64, medias: Vec<MediaDescription>) -> Tag {
    let flow = Subscription {
        tag: peer.into(),
        offer_answer: true,
    };
    Tag {
        name: name.into(),
        created,
        subscriptions: vec![flow.clone()],
        subscribers: vec![flow],
        medias,
        ..Tag::default()
    }
}

/// Two parties: the caller sends to 36002, the callee to 36000.
fn call() -> CallDescription {
    CallDescription {
        tags: vec![
            party("a", "b", 1, vec![media(1, "10.9.0.1:36002", "10.1.0.2:6000")]),
            party("b", "a", 2, vec![media(1, "10.9.0.1:36000", "10.2.0.2:7000")]),
        ],
        ..CallDescription::default()
    }
}

struct Ng(Bench);

impl Ng {
    fn new() -> Self {
        Self(Bench::with_relay(Settings::default(), RelayKind::Rtpengine))
    }

    /// Returns how many writes the relay is to wait for.
    fn before(&mut self, text: &str) -> usize {
        let command = Command::parse(text.as_bytes()).unwrap();
        let (foreseen, decisions) = self.0.book.ng_command(self.0.now, &command);
        self.0.carry_out(decisions);
        foreseen.unwrap().wait.len()
    }

    fn after(&mut self, text: &str, reply: &str) -> After {
        let (command, reply) = (Command::parse(text.as_bytes()).unwrap(), Reply::parse(reply.as_bytes()).unwrap());
        let (after, decisions) = self.0.book.ng_replied(self.0.now, self.0.relay, &command, Some(&reply));
        self.0.carry_out(decisions);
        after
    }

    fn say(&mut self, text: &str, reply: &str) -> (usize, After) {
        (self.before(text), self.after(text, reply))
    }

    fn describe(&mut self, description: &CallDescription) {
        let decisions = self.0.book.ng_described(self.0.now, self.0.relay, b"c1", description);
        self.0.carry_out(decisions);
    }

    /// An answered call of which both parties talk.
    fn with_call() -> Self {
        let mut ng = Self::new();
        ng.say(&offer(OFFER), &replied(&relayed(36000)));
        ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002)));
        ng.describe(&call());
        ng.0.talk(36000);
        ng
    }

    fn held(&self) -> Vec<String> {
        let entries = self.0.held.values();
        entries
            .map(|entry| format!("{} => {}", entry.key(), entry.new_destination()))
            .collect()
    }

    fn reason(&self) -> Reason {
        self.0.reason("c1", Side::Caller)
    }
}

const BOTH_WAYS: [&str; 2] = [
    "10.2.0.2:7000 -> 10.9.0.1:36000 => 10.1.0.2:6000",
    "10.1.0.2:6000 -> 10.9.0.1:36002 => 10.2.0.2:7000",
];

#[test]
fn a_call_is_offloaded_once_it_is_answered_and_described() {
    let mut ng = Ng::new();
    assert_eq!(ng.say(&offer(OFFER), &replied(&relayed(36000))), (0, After::Nothing));
    assert_eq!(ng.reason(), Reason::WaitingForAnswer);
    // Early media stays on the relay.
    ng.0.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    assert!(ng.0.held.is_empty());
    assert_eq!(ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002))), (0, After::Describe));
    ng.describe(&call());
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
    ng.0.rtcp(36000);
    assert_eq!(ng.0.held.len(), 4);
}

#[test]
fn a_new_offer_takes_entries_out_before_the_relay_hears_of_it() {
    let mut ng = Ng::with_call();
    let moved = OFFER.replace("audio 6000", "audio 6200");
    assert_eq!(ng.before(&offer(&moved)), 2);
    assert!(ng.0.held.is_empty());
    assert_eq!(ng.reason(), Reason::ReInvite);
    assert_eq!(ng.after(&offer(&moved), &replied(&relayed(36010))), After::Nothing);
    ng.before(&answer(ANSWER, "b"));
    assert_eq!(ng.after(&answer(ANSWER, "b"), &replied(&relayed(36002))), After::Describe);
    // rtpengine gives the other party another port to send to.
    let mut description = call();
    description.tags[0].medias[0] = media(1, "10.9.0.1:36002", "10.1.0.2:6200");
    description.tags[1].medias[0] = media(1, "10.9.0.1:36010", "10.2.0.2:7000");
    ng.describe(&description);
    ng.0.packet("10.1.0.2:6200", "10.9.0.1:36002", 1);
    ng.0.packet("10.2.0.2:7000", "10.9.0.1:36010", 2);
    assert_eq!(
        ng.held(),
        [
            "10.1.0.2:6200 -> 10.9.0.1:36002 => 10.2.0.2:7000",
            "10.2.0.2:7000 -> 10.9.0.1:36010 => 10.1.0.2:6200",
        ]
    );
}

#[test]
fn what_is_said_again_leaves_entries_alone() {
    let mut ng = Ng::with_call();
    assert_eq!(ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002))), (0, After::Describe));
    ng.describe(&call());
    assert_eq!(ng.held(), BOTH_WAYS);
}

#[test]
fn a_re_invite_that_the_relay_refuses_leaves_the_call_as_it_was() {
    let mut ng = Ng::with_call();
    let moved = offer(&OFFER.replace("audio 6000", "audio 6200"));
    ng.before(&moved);
    let refused = body(&[("result", "error"), ("error-reason", "Failed to parse SDP")]);
    assert_eq!(ng.after(&moved, &refused), After::Nothing);
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
}

#[test]
fn a_description_for_a_subscription_ends_no_re_invite_before_its_answer() {
    let ok = body(&[("result", "ok")]);
    let subscribed = [("to-tag", "s1"), ("result", "ok")];
    let subscription = body(&[("call-id", "c1"), ("command", "subscribe request")]);
    let unsubscription = body(&[("call-id", "c1"), ("to-tag", "s1"), ("command", "unsubscribe")]);
    let moved = OFFER.replace("audio 6000", "audio 6200");
    let mut answered = call();
    answered.tags[0].medias[0] = media(1, "10.9.0.1:36002", "10.1.0.2:6200");
    // The description comes before the offer, during it, or after the relay's reply; one may show no line.
    for (late, empty) in [(0, false), (1, false), (2, false), (1, true), (2, true)] {
        let early = if empty { CallDescription::default() } else { answered.clone() };
        let mut ng = Ng::with_call();
        ng.say(&subscription, &body(&subscribed));
        assert_eq!(ng.say(&unsubscription, &ok), (0, After::DescribeCopies));
        for step in 0..3 {
            match step {
                1 => assert_eq!(ng.before(&offer(&moved)), 2),
                2 => assert_eq!(ng.after(&offer(&moved), &replied(&relayed(36000))), After::Nothing),
                _ => {}
            }
            if step == late {
                let early = if step == 0 { call() } else { early.clone() };
                let decisions = ng.0.book.ng_copies_described(ng.0.now, ng.0.relay, b"c1", &early);
                ng.0.carry_out(decisions);
            }
            if step > 0 {
                ng.0.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
                ng.0.packet("10.1.0.2:6200", "10.9.0.1:36002", 1);
                assert_eq!((ng.reason(), ng.held()), (Reason::ReInvite, vec![]), "{late} {empty} {step}");
            }
        }
        assert_eq!(ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002))).1, After::Describe);
        ng.describe(&answered);
        ng.0.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
        ng.0.packet("10.1.0.2:6200", "10.9.0.1:36002", 1);
        assert_eq!(ng.held().len(), 2, "{late} {empty}: {:?}", ng.reason());
    }
}

#[test]
fn a_delete_takes_entries_out_first_and_its_counts_are_known() {
    let mut ng = Ng::with_call();
    let delete = body(&[("call-id", "c1"), ("from-tag", "a"), ("command", "delete")]);
    assert_eq!(ng.before(&delete), 2);
    assert!(ng.0.held.is_empty());
    assert_eq!(ng.reason(), Reason::ByeSeen);
    let ports: Vec<String> = ng.0.book.ng_counts(b"c1").iter().map(|(port, _)| port.to_string()).collect();
    assert_eq!(ports, ["10.9.0.1:36002", "10.9.0.1:36000", "10.9.0.1:36003", "10.9.0.1:36001"]);
    ng.after(&delete, &body(&[("result", "ok")]));
    assert_eq!(ng.0.ended, [Reason::Released]);
}

#[test]
fn what_a_delete_has_ended_stays_ended_while_the_relay_still_lists_it() {
    // By its from-tag, by both tags, of the whole call, and by the callee.
    let deletes: [&[(&str, &str)]; 5] = [
        &[("from-tag", "a")],
        &[("from-tag", "a"), ("to-tag", "b")],
        &[],
        &[("from-tag", "b"), ("to-tag", "a")],
        &[("to-tag", "b")],
    ];
    for named in deletes {
        let mut ng = Ng::with_call();
        let fields = [&[("call-id", "c1")], named, &[("command", "delete")]].concat();
        ng.say(&body(&fields), &body(&[("result", "ok")]));
        for _ in 0..9 {
            ng.0.pass(10_000);
            ng.describe(&call());
            assert_eq!(ng.0.book.line_count(), 0, "{named:?}");
        }
        assert_eq!(ng.0.ended, [Reason::Released], "{named:?}");
    }
}

#[test]
fn a_delete_without_a_reply_ends_a_call_too() {
    let mut ng = Ng::with_call();
    let delete = body(&[("call-id", "c1"), ("from-tag", "a"), ("command", "delete")]);
    ng.before(&delete);
    let command = Command::parse(delete.as_bytes()).unwrap();
    let (_, decisions) = ng.0.book.ng_replied(ng.0.now, ng.0.relay, &command, None);
    ng.0.carry_out(decisions);
    ng.describe(&call());
    assert_eq!((ng.0.book.line_count(), ng.0.ended), (0, vec![Reason::Released]));
}

#[test]
fn a_branch_that_has_ended_leaves_the_others_of_its_fork() {
    let mut ng = Ng::with_call();
    let mut fork = call();
    fork.tags
        .push(party("c", "a", 3, vec![media(1, "10.9.0.1:36010", "10.2.0.3:7000")]));
    let third = Subscription {
        tag: b"c".to_vec(),
        offer_answer: true,
    };
    fork.tags[0].subscriptions.push(third.clone());
    fork.tags[0].subscribers.push(third);
    ng.describe(&fork);
    let delete = body(&[("call-id", "c1"), ("from-tag", "a"), ("to-tag", "b"), ("command", "delete")]);
    assert_eq!(ng.say(&delete, &body(&[("result", "ok")])).1, After::Describe);
    // Within the delete-delay both branches are listed.
    ng.describe(&fork);
    assert_eq!(ng.0.line("c1").other_tag(), Some(&b"c"[..]));
}

#[test]
fn an_offer_and_its_answer_begin_a_call_again_that_a_delete_has_ended() {
    let mut ng = Ng::with_call();
    ng.say(&body(&[("call-id", "c1"), ("command", "delete")]), &body(&[("result", "ok")]));
    ng.say(&offer(OFFER), &replied(&relayed(36000)));
    ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002)));
    ng.describe(&call());
    assert!(!ng.0.book.lacks_answer(b"c1") && ng.0.book.line_count() == 1);
    // A re-INVITE that has overtaken the BYE: its offer names both tags.
    ng.say(&body(&[("call-id", "c1"), ("command", "delete")]), &body(&[("result", "ok")]));
    let again = offer(OFFER).replace("7:command", "6:to-tag1:b7:command");
    ng.say(&again, &replied(&relayed(36000)));
    ng.describe(&call());
    assert_eq!(ng.0.book.line_count(), 1);
}

#[test]
fn an_answer_that_went_past_the_agent_is_found_in_the_description() {
    let mut ng = Ng::new();
    ng.say(&offer(OFFER), &replied(&relayed(36000)));
    assert!(ng.0.book.lacks_answer(b"c1"));
    ng.describe(&call());
    assert!(!ng.0.book.lacks_answer(b"c1"));
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
}

#[test]
fn a_delete_whose_reply_has_no_counts_waits_for_nothing() {
    let mut ng = Ng::with_call();
    let delete = body(&[("call-id", "c1"), ("command", "delete")]);
    assert_eq!(ng.before(&delete), 0);
    assert!(ng.0.held.is_empty());
    ng.after(&delete, &body(&[("result", "ok")]));
    assert_eq!(ng.0.ended, [Reason::Released]);
}

#[test]
fn a_delete_names_a_branch_by_its_tag_or_by_its_via_branch() {
    for (from, key, value, ends) in [
        ("a", "to-tag", "b", true),
        ("a", "to-tag", "x", false),
        ("a", "via-branch", "z1", true),
        ("a", "via-branch", "z2", false),
        ("a", "label", "x", true),
        ("x", "label", "x", false),
        // Without a from-tag rtpengine ends the call.
        ("", "to-tag", "x", true),
        ("", "via-branch", "z2", true),
    ] {
        let mut ng = Ng::with_call();
        let mut description = call();
        description.tags[1].via_branch = Some(b"z1".to_vec());
        ng.describe(&description);
        let delete = body(&[("call-id", "c1"), ("from-tag", from), (key, value), ("command", "delete")]);
        ng.say(&delete, &body(&[("result", "ok")]));
        assert_eq!(!ng.0.ended.is_empty(), ends, "{from} {key} {value}");
    }
}

#[test]
fn what_the_relay_has_to_see_goes_back_to_it_and_returns() {
    let ok = body(&[("result", "ok")]);
    let failed = body(&[("result", "error"), ("error-reason", "no")]);
    let command = |name: &str| body(&[("call-id", "c1"), ("command", name)]);
    for (begin, end, reason) in [
        ("start recording", "stop recording", Reason::Recording),
        ("start forwarding", "stop forwarding", Reason::Forwarding),
        ("block media", "unblock media", Reason::MediaBlocked),
        ("silence media", "unsilence media", Reason::MediaBlocked),
        ("block DTMF", "unblock DTMF", Reason::MediaBlocked),
        ("play media", "stop media", Reason::Playback),
    ] {
        let mut ng = Ng::with_call();
        assert_eq!(ng.before(&command(begin)), 2, "{begin}");
        ng.after(&command(begin), &ok);
        ng.0.talk(36000);
        assert_eq!((ng.reason(), ng.0.held.len()), (reason, 0), "{begin}");
        ng.say(&command(end), &ok);
        ng.0.talk(36000);
        assert_eq!(ng.held(), BOTH_WAYS, "{end}");
        // One that failed has begun nothing.
        ng.say(&command(begin), &failed);
        ng.0.talk(36000);
        assert_eq!(ng.held(), BOTH_WAYS, "{begin} that failed");
    }
    let mut ng = Ng::with_call();
    ng.say(&command("something new"), &ok);
    assert_eq!(ng.reason(), Reason::CommandUnknown);
}

#[test]
fn a_line_says_who_records_it_and_where_to_and_its_end_has_all_of_them() {
    let ok = body(&[("result", "ok")]);
    let mut ng = Ng::with_call();
    for tag in ["s1", "s2"] {
        let named = body(&[("to-tag", tag), ("result", "ok")]);
        ng.say(&body(&[("call-id", "c1"), ("command", "subscribe request")]), &named);
    }
    let sdp = ANSWER.replace("10.2.0.2", "10.5.0.1");
    let answer = [("call-id", "c1"), ("to-tag", "s1"), ("sdp", &*sdp), ("command", "subscribe answer")];
    ng.say(&body(&answer), &ok);
    ng.say(&body(&[("call-id", "c1"), ("from-tag", "a"), ("command", "start forwarding")]), &ok);
    let line = ng.0.line("c1");
    let holds = line.holds();
    let told: Vec<_> = holds
        .iter()
        .map(|hold| (&*hold.command, line.side_of(hold), hold.to.clone()))
        .collect();
    let expected = [
        ("start forwarding", Some(Side::Caller), vec![]),
        ("subscribe request", None, vec![end("10.5.0.1:7000")]),
        ("subscribe request", None, vec![]),
    ];
    assert_eq!(told, expected);
    assert_eq!((recorders(&holds), ng.0.book.recorder_count()), (3, 3));
    // One that rtpengine describes and no agent has seen.
    let mut description = call();
    description.tags[1].subscribers.push(Subscription {
        tag: b"s3".to_vec(),
        offer_answer: false,
    });
    ng.describe(&description);
    let last = ng.0.line("c1").holds().pop().unwrap();
    assert_eq!((&*last.command, last.holder), ("", Holder::Subscription(b"s3"[..].into())));
    ng.say(&body(&[("call-id", "c1"), ("to-tag", "s1"), ("command", "unsubscribe")]), &ok);
    ng.say(&body(&[("call-id", "c1"), ("command", "delete")]), &ok);
    let recorded: Vec<_> = ng.0.calls[0].lines[0]
        .recorded
        .iter()
        .map(|(hold, _)| hold.holder.clone())
        .collect();
    let subscription = |tag: &[u8]| Holder::Subscription(tag.into());
    assert_eq!(recorded.len(), 4);
    assert!([&b"s1"[..], b"s2", b"s3"].iter().all(|tag| recorded.contains(&subscription(tag))));
    assert_eq!(ng.0.book.recorder_count(), 0);
}

#[test]
fn what_the_relay_does_to_the_packets_keeps_a_line_there() {
    let flags: [(MediaFlags, Reason); 4] = [
        (MediaFlags::SDES, Reason::Srtp),
        (MediaFlags::DTLS_SRTP, Reason::Dtls),
        (MediaFlags::ICE, Reason::Ice),
        (MediaFlags::TRANSCODING, Reason::Transcoding),
    ];
    for (flag, reason) in flags {
        let mut ng = Ng::with_call();
        let mut description = call();
        description.tags[1].medias[0].flags |= flag;
        ng.describe(&description);
        assert_eq!((ng.reason(), ng.0.held.len()), (reason, 0));
        ng.describe(&call());
        ng.0.talk(36000);
        assert_eq!(ng.held(), BOTH_WAYS);
    }
}

#[test]
fn a_port_admits_everybody_where_the_relay_knows_its_party_by_ice_or_a_key() {
    let of = |ng: &Ng, port: &str| ng.0.filters.get(&end(port)).cloned();
    for (flag, everybody) in [
        (MediaFlags::ICE, true),
        (MediaFlags::DTLS_SRTP, true),
        (MediaFlags::SDES, true),
        (MediaFlags::TRANSCODING, false),
    ] {
        let mut ng = Ng::with_call();
        let mut description = call();
        description.tags[1].medias[0].flags |= flag;
        ng.describe(&description);
        let party = |addr: &str| Some(vec![if everybody { "255.255.255.255" } else { addr }.parse().unwrap()]);
        assert_eq!(of(&ng, "10.9.0.1:36000"), party("10.2.0.2"), "{flag:?}");
        assert_eq!(of(&ng, "10.9.0.1:36002"), party("10.1.0.2"), "{flag:?}");
        ng.describe(&call());
        assert_eq!(
            of(&ng, "10.9.0.1:36000"),
            Some(vec!["10.2.0.2".parse().unwrap()]),
            "plain RTP again"
        );
    }
}

#[test]
fn an_odd_port_has_no_filter() {
    let mut ng = Ng::with_call();
    let mut description = call();
    description.tags[1].medias = vec![media(1, "10.9.0.1:36011", "10.2.0.2:7000")];
    ng.describe(&description);
    assert_eq!(ng.0.filters.keys().map(|port| port.port).collect::<Vec<_>>(), [36002]);
}

#[test]
fn rtcp_in_the_rtp_stream_of_one_party_alone_is_the_relays_to_take_apart() {
    let mut ng = Ng::with_call();
    let mut description = call();
    description.tags[0].medias[0].streams = vec![stream("10.9.0.1:36002", "10.1.0.2:6000", StreamFlags::RTP.union(StreamFlags::RTCP))];
    ng.describe(&description);
    assert_eq!((ng.reason(), ng.0.held.len()), (Reason::RtcpDemux, 0));
    description.tags[1].medias[0].streams = vec![stream("10.9.0.1:36000", "10.2.0.2:7000", StreamFlags::RTP.union(StreamFlags::RTCP))];
    ng.describe(&description);
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
    let rtcp = ng.0.line("c1").stream(Side::Caller, Component::Rtcp).reason;
    assert_eq!(rtcp, Reason::RtcpMuxed);
}

#[test]
fn the_relay_is_shown_a_packet_of_each_stream_in_half_of_its_time_out() {
    let mut ng = Ng::with_call();
    ng.0.rtcp(36000);
    let offloads = ng.0.offloads.len();
    ng.0.pass(30_000);
    // RTP is out until a packet has gone to the relay; RTCP stays, because RTP flows.
    assert_eq!(ng.0.held.keys().map(|port| port.port).collect::<Vec<_>>(), [36001, 36003]);
    ng.0.talk(36000);
    assert_eq!(ng.0.held.len(), 4);
    assert_eq!(ng.0.offloads.len(), offloads, "an entry that is out for one packet is no event");
    // A stream that sends nothing just now says why it is not offloaded.
    ng.0.pass(30_000);
    ng.0.packet("10.2.0.2:7000", "10.9.0.1:36000", 2);
    ng.0.pass(1_100);
    assert_eq!((ng.reason(), ng.0.held.len()), (Reason::Refreshing, 3));
    ng.0.packet("10.1.0.2:6000", "10.9.0.1:36002", 1);
    assert_eq!((ng.reason(), ng.0.held.len()), (Reason::Offloaded, 4));
}

#[test]
fn a_relay_that_has_forgotten_the_call_is_shown_nothing() {
    let mut ng = Ng::with_call();
    ng.0.gone = true;
    ng.0.pass(30_000);
    assert_eq!(ng.held(), BOTH_WAYS, "the packets would be lost");
    ng.0.gone = false;
    ng.0.pass(30_000);
    assert!(ng.0.held.is_empty());
}

#[test]
fn a_stranger_does_not_bring_the_entry_back() {
    let mut ng = Ng::with_call();
    ng.0.pass(30_000);
    ng.0.packet("203.0.113.9:4000", "10.9.0.1:36002", 66);
    assert!(!ng.0.held.contains_key(&end("10.9.0.1:36002")));
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
}

#[test]
fn a_fork_moves_the_caller_to_the_callee_that_answered_last() {
    let mut ng = Ng::with_call();
    ng.say(&answer(&ANSWER.replace("7000", "7500"), "c"), &replied(&relayed(36030)));
    let mut left = party("b", "a", 2, vec![media(1, "10.9.0.1:36000", "10.2.0.2:7000")]);
    left.subscriptions.clear();
    let description = CallDescription {
        tags: vec![
            party("a", "c", 1, vec![media(1, "10.9.0.1:36030", "10.1.0.2:6000")]),
            left,
            party("c", "a", 2, vec![media(1, "10.9.0.1:36040", "10.2.0.2:7500")]),
        ],
        ..CallDescription::default()
    };
    ng.describe(&description);
    ng.0.packet("10.1.0.2:6000", "10.9.0.1:36030", 1);
    ng.0.packet("10.2.0.2:7500", "10.9.0.1:36040", 3);
    assert_eq!(
        ng.held(),
        [
            "10.1.0.2:6000 -> 10.9.0.1:36030 => 10.2.0.2:7500",
            "10.2.0.2:7500 -> 10.9.0.1:36040 => 10.1.0.2:6000",
        ]
    );
}

#[test]
fn a_line_that_is_switched_off_is_on_hold_and_comes_back() {
    let mut ng = Ng::with_call();
    let mut with_video = call();
    with_video.tags[0].medias.push(media(2, "10.9.0.1:36052", "10.1.0.2:6010"));
    with_video.tags[1].medias.push(media(2, "10.9.0.1:36050", "10.2.0.2:7010"));
    ng.describe(&with_video);
    assert_eq!(ng.0.book.lines_of_call(b"c1").count(), 2);
    let video = |ng: &mut Ng| {
        // Two lines of one address: each SSRC shows its continuity.
        for _ in 0..5 {
            ng.0.packet("10.1.0.2:6010", "10.9.0.1:36052", 5);
            ng.0.packet("10.2.0.2:7010", "10.9.0.1:36050", 6);
            ng.0.talk(36000);
            ng.0.pass(20);
        }
        ng.held().len()
    };
    assert_eq!(video(&mut ng), 4);
    ng.describe(&call());
    assert_eq!(video(&mut ng), 2);
    let off = ng.0.book.lines_of_call(b"c1").find(|line| line.media() == Some(2)).unwrap();
    assert_eq!(off.stream(Side::Caller, Component::Rtp).reason, Reason::OnHold);
    ng.describe(&with_video);
    assert_eq!(video(&mut ng), 4);
}

#[test]
fn a_port_of_a_call_that_the_relay_has_forgotten_stays_with_the_media_that_flows() {
    let mut ng = Ng::with_call();
    // rtpengine was restarted, and gives the ports out again.
    let (now, relay) = (ng.0.now, ng.0.relay);
    let mut other = call();
    other.tags[0].medias[0] = media(1, "10.9.0.1:36002", "10.1.0.9:6000");
    other.tags[1].medias[0] = media(1, "10.9.0.1:36060", "10.2.0.9:7000");
    let decisions = ng.0.book.ng_described(now, relay, b"c2", &other);
    ng.0.carry_out(decisions);
    assert_eq!(ng.held(), BOTH_WAYS);
    assert_eq!(ng.0.reason("c2", Side::Caller), Reason::PortTaken);
    assert!(!ng.0.filters.contains_key(&end("10.9.0.1:36002")), "the port is open to both");
    // One that met no packets any more gives way.
    ng.0.silent_since = Some(ng.0.now);
    ng.0.pass(31_000);
    let mut third = call();
    third.tags[0].medias[0] = media(1, "10.9.0.1:36062", "10.1.0.8:6000");
    third.tags[1].medias[0] = media(1, "10.9.0.1:36000", "10.2.0.8:7000");
    let now = ng.0.now;
    let decisions = ng.0.book.ng_described(now, relay, b"c3", &third);
    ng.0.carry_out(decisions);
    assert!(ng.0.book.lines_of_call(b"c1").next().is_none());
    assert_ne!(ng.0.reason("c3", Side::Callee), Reason::PortTaken);
}

#[test]
fn a_call_that_the_relay_names_is_adopted() {
    let mut ng = Ng::new();
    ng.describe(&call());
    ng.0.talk(36000);
    assert_eq!(ng.held(), BOTH_WAYS);
}

#[test]
fn entries_of_an_agent_before_this_one_are_adopted_or_make_room() {
    let mut before = Ng::with_call();
    before.0.rtcp(36000);
    let present: Vec<RelayEntry> = before.0.held.values().copied().collect();
    let after_restart = || {
        let mut ng = Ng::new();
        let decisions = ng.0.compare(ng.0.now, &present, HashSet::new());
        ng.0.carry_out(decisions);
        assert_eq!(ng.0.book.orphans().count(), 4);
        ng
    };
    // The relay names the call: it is adopted with its entries.
    let mut ng = after_restart();
    ng.describe(&call());
    let decisions = ng.0.compare(ng.0.now, &present, HashSet::new());
    ng.0.carry_out(decisions);
    assert_eq!((ng.reason(), ng.0.book.orphans().count()), (Reason::Offloaded, 0));
    // The call is over, and the relay gives its ports to a new one.
    let mut ng = after_restart();
    ng.say(&offer(OFFER), &replied(&relayed(36000)));
    ng.say(&answer(ANSWER, "b"), &replied(&relayed(36002)));
    ng.describe(&call());
    assert_eq!((ng.0.deleted.len(), ng.0.book.orphans().count()), (4, 0));
}

#[test]
fn a_silent_call_ends_when_the_relay_has_ended_it() {
    let mut ng = Ng::with_call();
    ng.0.silent_since = Some(ng.0.now);
    for _ in 0..100 {
        ng.0.pass(1000);
    }
    assert!(ng.0.ended.is_empty(), "the relay has it still: it may be on hold");
    let asked = ng.0.asked.len();
    assert!(asked < 10, "{asked} questions in 100 s");
    ng.0.gone = true;
    for _ in 0..40 {
        ng.0.pass(1000);
    }
    assert_eq!(ng.0.ended, [Reason::RelayTimeout]);
}

#[test]
fn a_restored_call_goes_on_as_it_was() {
    let mut ng = Ng::with_call();
    let mut description = call();
    description.tags[1].medias[0].flags |= MediaFlags::TRANSCODING;
    ng.describe(&description);
    let id = ng.0.line("c1").id();
    let row = ng.0.book.row(id, ng.0.now, Duration::from_secs(5000)).unwrap();
    let mut other = Ng::new();
    let text = serde_json::to_string(&row).unwrap();
    other
        .0
        .book
        .restore(other.0.now, Duration::from_secs(5000), &serde_json::from_str(&text).unwrap())
        .unwrap();
    assert_eq!(other.reason(), Reason::Transcoding);
}
