//! Tests of the retransmission cache, against a plain list as its model.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

fn at(seconds: u64) -> Time {
    Time::from(Duration::from_secs(seconds))
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
    let mut cache = Retransmissions::default();
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    assert_eq!(cache.begin(at(1), peer(1), b"k", b"V"), Seen::InProgress);
    assert!(cache.finish(at(2), first, Some(b"20040107")));
    assert_eq!(cache.begin(at(36), peer(1), b"k", b"V"), Seen::Answered(b"20040107"));
    ticket(&cache.begin(at(37), peer(1), b"k", b"V"));
}

#[test]
fn another_sender_another_cookie_or_another_split_is_another_command() {
    let mut cache = Retransmissions::default();
    ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    ticket(&cache.begin(at(0), peer(2), b"k", b"V"));
    ticket(&cache.begin(at(0), peer(1), b"kV", b""));
    assert_eq!(cache.len(), 3);
}

#[test]
fn a_restarted_client_is_not_sent_the_reply_to_its_predecessor() {
    let mut cache = Retransmissions::default();
    let old = ticket(&cache.begin(at(0), peer(1), b"k", b"D a f"));
    let new = ticket(&cache.begin(at(1), peer(1), b"k", b"D b f"));
    assert!(!cache.finish(at(2), old, Some(b"E50")));
    assert_eq!(cache.begin(at(2), peer(1), b"k", b"D b f"), Seen::InProgress);
    assert!(cache.finish(at(2), new, Some(b"0")));
    assert_eq!(cache.begin(at(3), peer(1), b"k", b"D b f"), Seen::Answered(b"0"));
}

#[test]
fn a_command_without_a_reply_is_executed_again() {
    let mut cache = Retransmissions::default();
    let first = ticket(&cache.begin(at(0), peer(1), b"k", b"V"));
    assert!(!cache.finish(at(1), first, None));
    assert!(cache.is_empty());
    ticket(&cache.begin(at(1), peer(1), b"k", b"V"));
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
        let (mut cache, mut now) = (Retransmissions::new(LIMITS), 0);
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
                    let wanted = cache.finish(at(now), ticket, reply.as_deref());
                    prop_assert_eq!(wanted, reply.is_some() && !superseded);
                    if let (true, Some(reply)) = (wanted, reply) {
                        replies.insert(key, (body, reply, now));
                    }
                    // An older command of the same cookie has nobody left who waits for it.
                    under_way.retain(|(of, _, other)| *of != key || other.serial > ticket.serial);
                }
                Step::Finish { .. } => {}
            }
            let kept: Vec<usize> = cache.entries.values().filter_map(|entry| entry.reply.as_ref().map(Vec::len)).collect();
            prop_assert_eq!(cache.bytes, kept.iter().sum::<usize>());
            prop_assert!(cache.bytes <= LIMITS.bytes && kept.len() <= LIMITS.replies && cache.ages.len() <= LIMITS.replies);
        }
    }
}
