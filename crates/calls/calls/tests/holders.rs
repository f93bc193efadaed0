//! A media line leaves the relay when its last holder lets go. Starts and stops of several holders in any order are compared with a model of the relay.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use proptest::prelude::*;
use shunt_calls::*;
use shunt_ng::{CallDescription, Command, MediaDescription, Reply, StreamDescription, StreamFlags, Subscription, Tag};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

const WALL: Duration = Duration::from_secs(1_800_000_000);

/// What the relay makes of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Done,
    Refused,
    /// The relay has carried it out, and the reply is lost.
    Lost,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![6 => Just(Outcome::Done), 1 => Just(Outcome::Refused), 1 => Just(Outcome::Lost)]
}

/// Both parties send, and time goes on.
fn talk(bench: &mut Bench) {
    for _ in 0..5 {
        bench.pass(20);
        bench.talk(36000);
    }
}

/// The agent restarts: another book with the journal's rows and the entries that are in the data plane.
fn restart(bench: &Bench) -> Bench {
    let mut next = Bench::with_relay(Settings::default(), bench.kind);
    (next.now, next.number, next.held) = (bench.now, bench.number, bench.held.clone());
    for line in bench.book.lines() {
        let row = bench.book.row(line.id(), bench.now, WALL).unwrap();
        let row: Row = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        next.book.restore(next.now, WALL, &row).unwrap();
    }
    let present: Vec<RelayEntry> = bench.held.values().copied().collect();
    let decisions = next.compare(next.now, &present, HashSet::new());
    next.carry_out(decisions);
    next
}

fn check(bench: &mut Bench, holders: usize) -> Result<(), TestCaseError> {
    talk(bench);
    let reasons = (bench.reason("c1", Side::Caller), bench.reason("c1", Side::Callee));
    let counted: usize = bench.book.lines().map(|line| recorders(&line.holds())).sum();
    prop_assert_eq!(bench.book.recorder_count(), counted);
    prop_assert_eq!(
        bench.held.len(),
        if holders == 0 { 2 } else { 0 },
        "{} holders, {:?}",
        holders,
        reasons
    );
    Ok(())
}

// -- rtpproxy --------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
enum Step {
    Play(bool, Outcome),
    StopPlaying(bool, Outcome),
    Record(bool, Outcome),
    Copy(bool, u8, Outcome),
    StopRecording {
        callee: bool,
        both: bool,
        outcome: Outcome,
    },
    /// A re-INVITE; whether U and L ask to resize packets.
    Again([bool; 2]),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (any::<bool>(), outcome()).prop_map(|(callee, outcome)| Step::Play(callee, outcome)),
        2 => (any::<bool>(), outcome()).prop_map(|(callee, outcome)| Step::StopPlaying(callee, outcome)),
        1 => (any::<bool>(), outcome()).prop_map(|(callee, outcome)| Step::Record(callee, outcome)),
        2 => (any::<bool>(), 0..2u8, outcome()).prop_map(|(callee, to, outcome)| Step::Copy(callee, to, outcome)),
        3 => (any::<bool>(), prop::bool::weighted(0.2), outcome())
            .prop_map(|(callee, both, outcome)| Step::StopRecording { callee, both, outcome }),
        1 => any::<[bool; 2]>().prop_map(Step::Again),
        1 => Just(Step::Restart),
    ]
}

/// What rtpproxy does to the media of caller and callee. It has one record of each stream.
#[derive(Default)]
struct Rtpproxy {
    plays: [bool; 2],
    records: [bool; 2],
    resizes: [bool; 2],
}

fn ask(bench: &mut Bench, text: &str, outcome: Outcome) {
    bench.before(text);
    let command = shunt_rtpproxy::Command::parse(text.as_bytes()).unwrap();
    let reply = match outcome {
        Outcome::Done => Some(&b"0"[..]),
        Outcome::Refused => Some(&b"E50"[..]),
        Outcome::Lost => None,
    };
    let decisions = bench.book.replied(bench.now, None, bench.relay, &command, reply).unwrap();
    bench.carry_out(decisions);
}

fn run(bench: &mut Bench, relay: &mut Rtpproxy, step: &Step) {
    let tags = |callee: bool| if callee { "b;1 a;1" } else { "a;1 b;1" };
    // A stop whose reply is lost may not have come: the line stays.
    let begins = |outcome| outcome != Outcome::Refused;
    let ends = |outcome| outcome == Outcome::Done;
    match *step {
        Step::Play(callee, outcome) => {
            ask(bench, &format!("P-1 c1 file 0 {}", tags(callee)), outcome);
            relay.plays[usize::from(callee)] |= begins(outcome);
        }
        Step::StopPlaying(callee, outcome) => {
            ask(bench, &format!("S c1 {}", tags(callee)), outcome);
            relay.plays[usize::from(callee)] &= !ends(outcome);
        }
        Step::Record(callee, outcome) => {
            ask(bench, &format!("R c1 {}", tags(callee)), outcome);
            relay.records[usize::from(callee)] |= begins(outcome);
        }
        Step::Copy(callee, to, outcome) => {
            ask(bench, &format!("C c1 udp:10.5.0.{to}:4000 {}", tags(callee)), outcome);
            relay.records[usize::from(callee)] |= begins(outcome);
        }
        Step::StopRecording { callee, both, outcome } => {
            ask(bench, &format!("N{} c1 {}", if both { "a" } else { "" }, tags(callee)), outcome);
            for (side, records) in relay.records.iter_mut().enumerate() {
                *records &= !(ends(outcome) && (both || side == usize::from(callee)));
            }
        }
        Step::Again(resizes) => {
            let [u, l] = resizes.map(|resizes| if resizes { "Z20" } else { "" });
            bench.say(&format!("U{u} c1 10.1.0.2 6000 a;1"), "36000 10.9.0.1");
            bench.say(&format!("L{l} c1 10.2.0.2 7000 a;1 b;1"), "36002 10.9.0.1");
            relay.resizes = resizes;
        }
        Step::Restart => *bench = restart(bench),
    }
}

// -- rtpengine -------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Call,
    Party(u8),
    Everyone,
}

fn whom() -> impl Strategy<Value = Whom> {
    prop_oneof![2 => Just(Whom::Call), 3 => (0..2u8).prop_map(Whom::Party), 1 => Just(Whom::Everyone)]
}

/// Commands by pairs.
const PAIRS: [[&str; 2]; 5] = [
    ["start forwarding", "stop forwarding"],
    ["block media", "unblock media"],
    ["silence media", "unsilence media"],
    ["block DTMF", "unblock DTMF"],
    ["play media", "stop media"],
];

#[derive(Clone, Debug)]
enum NgStep {
    Start(usize, Whom, Outcome),
    Stop(usize, Whom, Outcome),
    /// Duration in seconds.
    Play(Whom, u8),
    StartRecording(Outcome),
    StopRecording(Outcome),
    Subscribe(Outcome),
    /// One of the subscriptions that were ever made.
    Answer(usize, Outcome),
    Refresh(usize, Outcome),
    Unsubscribe(usize, Outcome),
    Describe,
    Pass(u16),
    Restart,
}

fn ng_step() -> impl Strategy<Value = NgStep> {
    prop_oneof![
        4 => (0..PAIRS.len(), whom(), outcome()).prop_map(|(pair, whom, outcome)| NgStep::Start(pair, whom, outcome)),
        6 => (0..PAIRS.len(), whom(), outcome()).prop_map(|(pair, whom, outcome)| NgStep::Stop(pair, whom, outcome)),
        1 => (whom(), 0..20u8).prop_map(|(whom, seconds)| NgStep::Play(whom, seconds)),
        1 => outcome().prop_map(NgStep::StartRecording),
        2 => outcome().prop_map(NgStep::StopRecording),
        3 => outcome().prop_map(NgStep::Subscribe),
        1 => (0..4usize, outcome()).prop_map(|(which, outcome)| NgStep::Answer(which, outcome)),
        1 => (0..4usize, outcome()).prop_map(|(which, outcome)| NgStep::Refresh(which, outcome)),
        5 => (0..4usize, outcome()).prop_map(|(which, outcome)| NgStep::Unsubscribe(which, outcome)),
        1 => Just(NgStep::Describe),
        1 => (0..12_000u16).prop_map(NgStep::Pass),
        1 => Just(NgStep::Restart),
    ]
}

/// What rtpengine does to the media, and when it ends by itself.
#[derive(Default)]
struct Rtpengine {
    /// Whether its description shows subscriptions; versions differ.
    shows: bool,
    works: BTreeMap<(usize, Whom), Option<Time>>,
    recorded: bool,
    made: usize,
    subscriptions: BTreeSet<usize>,
}

impl Rtpengine {
    fn holders(&self) -> usize {
        self.works.len() + usize::from(self.recorded) + self.subscriptions.len()
    }

    fn description(&self) -> CallDescription {
        let tag = |name: &str, peer: &str, created, local: u16, at: &str| {
            let flow = |tag: String, offer_answer| Subscription {
                tag: tag.into(),
                offer_answer,
            };
            let stream = |step: u16, flags| {
                let at = end(at);
                let at = shunt_net::Endpoint::new(at.addr, at.port + step);
                StreamDescription {
                    local: Some(end(&format!("10.9.0.1:{}", local + step))),
                    endpoint: Some(at),
                    advertised: Some(at),
                    flags,
                    ..StreamDescription::default()
                }
            };
            let mut subscribers = vec![flow(peer.into(), true)];
            subscribers.extend(
                self.subscriptions
                    .iter()
                    .filter(|_| self.shows)
                    .map(|number| flow(format!("s{number}"), false)),
            );
            Tag {
                name: name.into(),
                created,
                subscriptions: vec![flow(peer.into(), true)],
                subscribers,
                medias: vec![MediaDescription {
                    index: 1,
                    kind: "audio".into(),
                    protocol: Some("RTP/AVP".into()),
                    streams: vec![stream(0, StreamFlags::RTP), stream(1, StreamFlags::RTCP)],
                    ..MediaDescription::default()
                }],
                ..Tag::default()
            }
        };
        CallDescription {
            tags: vec![tag("a", "b", 1, 36002, "10.1.0.2:6000"), tag("b", "a", 2, 36000, "10.2.0.2:7000")],
            ..CallDescription::default()
        }
    }
}

fn describe(bench: &mut Bench, relay: &Rtpengine) {
    let decisions = bench.book.ng_described(bench.now, bench.relay, b"c1", &relay.description());
    bench.carry_out(decisions);
}

fn body(fields: &[(&str, &str)]) -> String {
    let text = |text: &str| format!("{}:{text}", text.len());
    let fields: String = fields.iter().map(|(key, value)| text(key) + &text(value)).collect();
    format!("d{fields}e")
}

/// `change`: what the command does at the relay.
fn ask_ng(
    bench: &mut Bench,
    relay: &mut Rtpengine,
    fields: &[(&str, &str)],
    reply: &str,
    outcome: Outcome,
    change: impl FnOnce(&mut Rtpengine),
) {
    let text = body(&[fields, &[("call-id", "c1")]].concat());
    let command = Command::parse(text.as_bytes()).unwrap();
    let (foreseen, decisions) = bench.book.ng_command(bench.now, &command);
    foreseen.unwrap();
    bench.carry_out(decisions);
    let refusal = body(&[("result", "error"), ("error-reason", "no")]);
    let reply = match outcome {
        Outcome::Done => Some(Reply::parse(reply.as_bytes()).unwrap()),
        Outcome::Refused => Some(Reply::parse(refusal.as_bytes()).unwrap()),
        Outcome::Lost => None,
    };
    if outcome != Outcome::Refused {
        change(relay);
    }
    let (after, decisions) = bench.book.ng_replied(bench.now, bench.relay, &command, reply.as_ref());
    bench.carry_out(decisions);
    match after {
        After::Nothing => {}
        After::Describe => describe(bench, relay),
        After::DescribeCopies => {
            let decisions = bench.book.ng_copies_described(bench.now, bench.relay, b"c1", &relay.description());
            bench.carry_out(decisions);
        }
    }
}

fn run_ng(bench: &mut Bench, relay: &mut Rtpengine, step: &NgStep) {
    let ok = body(&[("result", "ok")]);
    let named = |verb: &'static str, whom: Whom| {
        let mut fields = vec![("command", verb)];
        match whom {
            Whom::Call => {}
            Whom::Party(party) => fields.push(("from-tag", ["a", "b"][usize::from(party)])),
            Whom::Everyone => fields.push(("all", "all")),
        }
        fields
    };
    // `all` begins for the call.
    let holder = |whom| if whom == Whom::Everyone { Whom::Call } else { whom };
    let now = bench.now;
    match *step {
        NgStep::Start(pair, whom, outcome) => {
            ask_ng(bench, relay, &named(PAIRS[pair][0], whom), &ok, outcome, |relay| {
                relay.works.insert((pair, holder(whom)), None);
            });
        }
        NgStep::Stop(pair, whom, outcome) => {
            ask_ng(bench, relay, &named(PAIRS[pair][1], whom), &ok, outcome, |relay| {
                // Where the reply is lost nobody knows of the end.
                let done = outcome == Outcome::Done;
                relay
                    .works
                    .retain(|(of, by), _| !done || *of != pair || (whom != Whom::Everyone && *by != whom));
            });
        }
        NgStep::Play(whom, seconds) => {
            let reply = format!("d8:durationi{}e6:result2:oke", u32::from(seconds) * 1000);
            ask_ng(bench, relay, &named("play media", whom), &reply, Outcome::Done, |relay| {
                let ends = now + Duration::from_secs(u64::from(seconds));
                relay.works.insert((4, holder(whom)), Some(ends));
            });
        }
        NgStep::StartRecording(outcome) => {
            ask_ng(bench, relay, &[("command", "start recording")], &ok, outcome, |relay| {
                relay.recorded = true
            });
        }
        NgStep::StopRecording(outcome) => {
            ask_ng(bench, relay, &[("command", "stop recording")], &ok, outcome, |relay| {
                relay.recorded &= outcome != Outcome::Done;
            });
        }
        NgStep::Subscribe(outcome) => {
            let (number, name) = (relay.made, format!("s{}", relay.made));
            let reply = body(&[("result", "ok"), ("to-tag", &name)]);
            ask_ng(
                bench,
                relay,
                &[("command", "subscribe request"), ("all", "all")],
                &reply,
                outcome,
                |relay| {
                    // One whose tag is not known copies nothing.
                    if outcome == Outcome::Done {
                        relay.made += 1;
                        relay.subscriptions.insert(number);
                    }
                },
            );
        }
        NgStep::Answer(which, outcome) | NgStep::Refresh(which, outcome) if which < relay.made && relay.subscriptions.contains(&which) => {
            let verb = if matches!(step, NgStep::Answer(..)) {
                "subscribe answer"
            } else {
                "subscribe request"
            };
            let name = format!("s{which}");
            let reply = body(&[("result", "ok"), ("to-tag", &name)]);
            ask_ng(bench, relay, &[("command", verb), ("to-tag", &name)], &reply, outcome, |_| {});
        }
        NgStep::Unsubscribe(which, outcome) if which < relay.made => {
            let name = format!("s{which}");
            ask_ng(
                bench,
                relay,
                &[("command", "unsubscribe"), ("to-tag", &name)],
                &ok,
                outcome,
                |relay| {
                    if outcome == Outcome::Done {
                        relay.subscriptions.remove(&which);
                    }
                },
            );
        }
        NgStep::Answer(..) | NgStep::Refresh(..) | NgStep::Unsubscribe(..) => {}
        NgStep::Describe => describe(bench, relay),
        NgStep::Pass(milliseconds) => bench.pass(u64::from(milliseconds)),
        NgStep::Restart => *bench = restart(bench),
    }
    // A while after its end a playback is over for the book too.
    let now = bench.now;
    if relay.works.values().flatten().any(|ends| *ends <= now) {
        bench.pass(600);
        relay.works.retain(|_, ends| ends.is_none_or(|ends| ends > now));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn a_call_of_rtpproxy_is_offloaded_exactly_when_it_has_no_holder(steps in prop::collection::vec(step(), 1..60)) {
        let mut bench = Bench::new(Settings::default());
        bench.call("c1", 36000);
        let mut relay = Rtpproxy::default();
        for step in &steps {
            run(&mut bench, &mut relay, step);
            let holders = [relay.plays, relay.records, relay.resizes].concat().into_iter().filter(|held| *held).count();
            check(&mut bench, holders)?;
        }
    }

    #[test]
    fn a_call_of_rtpengine_is_offloaded_exactly_when_it_has_no_holder(shows: bool, steps in prop::collection::vec(ng_step(), 1..60)) {
        let mut bench = Bench::with_relay(Settings::default(), RelayKind::Rtpengine);
        let mut relay = Rtpengine { shows, ..Rtpengine::default() };
        describe(&mut bench, &relay);
        for step in &steps {
            run_ng(&mut bench, &mut relay, step);
            check(&mut bench, relay.holders())?;
            let known = bench.line("c1").holds().iter().filter(|hold| hold.reason == Reason::Subscription).count();
            prop_assert_eq!(known, relay.subscriptions.len());
        }
    }
}
