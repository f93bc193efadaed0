//! Tests of the retransmission cache, against a plain list as its model.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

fn at(seconds: u64) -> Time {
    Time::from(Duration::from_secs(seconds))
}

impl Waits for SocketAddr {
    fn peer(&self) -> SocketAddr {
        *self
    }
}

fn cache(protocol: Protocol) -> Retransmissions<SocketAddr> {
    Retransmissions::new(protocol, Limits::of(protocol))
}

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn ticket(seen: &Seen) -> Ticket {
    match seen {
        Seen::New(ticket) => *ticket,
        other => panic!("{other:?} is not new"),
    }
}

#[test]
fn a_repetition_gets_the_first_reply_for_35_s() {
    let mut cache = cache(Protocol::Rtpproxy);
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    assert_eq!(cache.begin(at(1), peer(1), b"k", b"V"), Seen::InProgress);
    assert_eq!(cache.finish(at(2), first, Some(b"20040107")), [peer(1)]);
    assert_eq!(cache.begin(at(36), peer(1), b"k", b"V"), Seen::Answered(b"20040107"));
    ticket(&cache.begin(at(37), peer(1), b"k", b"V"));
}

#[test]
fn another_sender_another_cookie_or_another_split_is_another_command() {
    let mut cache = cache(Protocol::Rtpproxy);
    ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    ticket(&cache.begin(at(0), peer(2), b"k", b"V"));
    ticket(&cache.begin(at(0), peer(1), b"kV", b""));
    assert_eq!(cache.entries.len(), 3);
}

#[test]
fn a_restarted_client_is_not_sent_the_reply_to_its_predecessor() {
    let mut cache = cache(Protocol::Rtpproxy);
    let old = ticket(&cache.begin(at(0), peer(1), b"k", b"D a f"));
    let new = ticket(&cache.begin(at(1), peer(1), b"k", b"D b f"));
    assert!(cache.finish(at(2), old, Some(b"E50")).is_empty());
    assert_eq!(cache.begin(at(2), peer(1), b"k", b"D b f"), Seen::InProgress);
    assert_eq!(cache.finish(at(2), new, Some(b"0")), [peer(1)]);
    assert_eq!(cache.begin(at(3), peer(1), b"k", b"D b f"), Seen::Answered(b"0"));
}

#[test]
fn a_command_without_a_reply_is_executed_again() {
    let mut cache = cache(Protocol::Rtpproxy);
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    assert!(cache.finish(at(1), first, None).is_empty());
    assert!(cache.entries.is_empty());
    ticket(&cache.begin(at(1), peer(1), b"k", b"V"));
}

#[test]
fn ng_goes_by_host_cookie_and_command_whatever_the_port() {
    let mut cache = cache(Protocol::Ng);
    let other_host = SocketAddr::from(([127, 0, 0, 2], 1));
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"offer"));
    let second = ticket(&cache.begin(at(0), other_host, b"k", b"offer"));
    assert_eq!(cache.begin(at(0), peer(1), b"k", b"offer"), Seen::InProgress);
    assert_eq!(cache.begin(at(0), peer(2), b"k", b"offer"), Seen::InProgress);
    assert_eq!(cache.finish(at(1), first, Some(b"first")), [peer(1), peer(2)]);
    assert_eq!(cache.finish(at(1), second, Some(b"second")), [other_host]);
    assert_eq!(cache.begin(at(30), peer(3), b"k", b"offer"), Seen::Answered(b"first"));
    assert_eq!(cache.begin(at(30), other_host, b"k", b"offer"), Seen::Answered(b"second"));
    ticket(&cache.begin(at(31), peer(1), b"k", b"offer"));
}

#[test]
fn two_ng_servers_behind_one_address_with_the_same_cookie_get_their_own_replies() {
    let mut cache = cache(Protocol::Ng);
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"offer of one"));
    let second = ticket(&cache.begin(at(0), peer(2), b"k", b"offer of the other"));
    assert_eq!(cache.finish(at(1), first, Some(b"first")), [peer(1)]);
    assert_eq!(cache.finish(at(1), second, Some(b"second")), [peer(2)]);
    assert_eq!(cache.begin(at(2), peer(1), b"k", b"offer of one"), Seen::Answered(b"first"));
    assert_eq!(cache.begin(at(2), peer(2), b"k", b"offer of the other"), Seen::Answered(b"second"));
    ticket(&cache.begin(at(2), peer(1), b"k", b"delete"));
}

#[test]
fn an_ipv4_sender_is_the_same_host_at_an_ipv6_socket() {
    let mut cache = cache(Protocol::Ng);
    ticket(&cache.begin(at(0), peer(1), b"k", b"offer"));
    let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
    assert_eq!(cache.begin(at(0), mapped, b"k", b"offer"), Seen::InProgress);
}

#[test]
fn a_bounded_number_of_ports_waits_for_one_reply() {
    let mut cache = cache(Protocol::Ng);
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"offer"));
    for port in 1..1000 {
        assert_eq!(cache.begin(at(0), peer(port), b"k", b"offer"), Seen::InProgress);
    }
    assert_eq!(cache.finish(at(1), first, Some(b"reply")).len(), WAITING);
}

const LIMITS: Limits = Limits {
    age: Duration::from_secs(10),
    replies: 5,
    bytes: 20,
};

/// One step: a command comes, or the n-th command in progress ends with a reply of so many bytes or without one.
#[derive(Clone, Debug)]
enum Step {
    Begin { port: u16, cookie: u8, body: u8 },
    Finish { which: usize, reply: Option<usize> },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let begin = (1..3u16, 0..3u8, 0..2u8).prop_map(|(port, cookie, body)| Step::Begin { port, cookie, body });
    let finish = (any::<usize>(), prop::option::of(0..9usize)).prop_map(|(which, reply)| Step::Finish { which, reply });
    prop::collection::vec(prop_oneof![4 => begin, 4 => finish, 1 => (0..6u64).prop_map(Step::Wait)], 0..200)
}

proptest! {
    #[test]
    fn nothing_is_executed_twice_nor_kept_beyond_the_limits(steps in steps()) {
        let (mut cache, mut now) = (Retransmissions::new(Protocol::Rtpproxy, LIMITS), 0);
        // The commands under way, and the last reply to a sender's cookie with the time it came.
        let mut under_way: Vec<((u16, u8), u8, Ticket)> = Vec::new();
        let mut replies: HashMap<(u16, u8), (u8, Vec<u8>, u64)> = HashMap::new();
        for step in steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Begin { port, cookie, body } => {
                    let key = (port, cookie);
                    let last = under_way.iter().rev().find(|(of, ..)| *of == key).map(|(_, body, _)| *body);
                    match cache.begin(at(now), peer(port), &[cookie], &[body]) {
                        Seen::New(ticket) => {
                            prop_assert_ne!(last, Some(body), "executed twice at the same time");
                            under_way.push((key, body, ticket));
                            replies.remove(&key);
                        }
                        Seen::InProgress => prop_assert_eq!(last, Some(body)),
                        Seen::Answered(reply) => {
                            let (of, known, when) = &replies[&key];
                            prop_assert_eq!((*of, &known[..]), (body, reply));
                            prop_assert!(now - when < 10, "kept for too long");
                        }
                    }
                }
                Step::Finish { which, reply } if !under_way.is_empty() => {
                    let (key, body, ticket) = under_way.remove(which % under_way.len());
                    let reply = reply.map(|size| vec![body; size]);
                    let superseded = under_way.iter().any(|(of, _, other)| *of == key && other.serial > ticket.serial)
                        || cache.entries.get(&ticket.key).is_none_or(|entry| entry.serial != ticket.serial);
                    let wanted = !cache.finish(at(now), ticket, reply.as_deref()).is_empty();
                    prop_assert_eq!(wanted, reply.is_some() && !superseded);
                    if let (true, Some(reply)) = (wanted, reply) {
                        replies.insert(key, (body, reply, now));
                    }
                    // An older command of the same cookie has nobody left who waits for it.
                    under_way.retain(|(of, _, other)| *of != key || other.serial > ticket.serial);
                }
                Step::Finish { .. } => {}
            }
            let answered = cache.entries.values().filter(|entry| matches!(entry.progress, Progress::Answered(_)));
            let kept: Vec<usize> = answered.map(Entry::bytes).collect();
            prop_assert_eq!(cache.bytes, kept.iter().sum::<usize>());
            prop_assert!(cache.bytes <= LIMITS.bytes && kept.len() <= LIMITS.replies && cache.ages.len() <= LIMITS.replies);
        }
    }
}
