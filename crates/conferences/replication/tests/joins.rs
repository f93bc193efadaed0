//! Fifty participants join one conference at once, while a thread in the background runs rounds: no change waits itself. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::Namespace;
use common::{Pins, Process, Route, Table, ip, maps};
use nix::time::{ClockId, clock_gettime};
use shunt_net::{Endpoint, FiveTuple};
use shunt_replication::{Action, Member, Name, Replication, Rewrite, StreamKey};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PARTICIPANTS: u16 = 50;
const TREE: u16 = 1;

struct Tables {
    replication: Replication,
    hops: Table,
}

/// CPU time of this thread.
fn busy() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn key(participant: u16, stream: u16) -> StreamKey {
    let port = 1000 + 10 * participant + stream;
    let flow = FiveTuple::new(Endpoint::new([10, 1, 0, 2], port), Endpoint::new([10, 1, 0, 1], port));
    StreamKey { flow, ssrc: port.into() }
}

fn number(participant: u16, stream: u16) -> u32 {
    u32::from(participant) * 10 + u32::from(stream)
}

/// What the agent writes when a participant joins those before it: rows that nobody meets, then the tree, then its own streams.
fn join(tables: &Mutex<Tables>, who: u16, streams: u16, longest: &mut Duration) {
    let mut change = |what: &mut dyn FnMut(&mut Tables)| {
        let mut tables = tables.lock().unwrap();
        let begun = busy();
        what(&mut tables);
        *longest = (*longest).max(busy() - begun);
    };
    let rewrite = |to: u16| Rewrite {
        src: Endpoint::new([10, 2, 0, 1], 20_000 + to),
        dst: Endpoint::new([10, 2, 0, 2], 30_000 + to),
        nexthop: 0,
        target: 0,
        sequence_state: 0,
        cadence: 0,
        payload_types: Default::default(),
    };
    change(&mut |tables| tables.replication.insert_node(who.into(), who, &[0], &[]).unwrap());
    for other in 1..who {
        for (sender, receiver) in [(other, who), (who, other)] {
            for stream in 0..streams {
                let name = Name {
                    number: number(sender, stream),
                    rid: receiver,
                };
                let made = |tables: &mut Tables| tables.replication.insert_copy(&mut tables.hops, name, rewrite(receiver)).unwrap();
                change(&mut { made });
            }
        }
    }
    let members: Vec<Member> = (1..=who)
        .map(|node| Member {
            node: node.into(),
            xid: None,
        })
        .collect();
    change(&mut |tables| tables.replication.modify_tree(TREE, &members).unwrap());
    for stream in 0..streams {
        let action = Action {
            mgid: TREE,
            rid: who,
            l2_xid: 1,
            number: number(who, stream),
            ..Action::default()
        };
        change(&mut |tables| tables.replication.insert_stream(key(who, stream), action, 0).unwrap());
    }
}

fn everybody_joins(streams: u16) {
    let namespace = Namespace::new();
    namespace.run("ip link add v0 type veth peer name w0");
    namespace.enter();
    let pins = Pins::new();
    let route = Route {
        ifindex: namespace.ifindex("v0"),
        to: [2; 6],
        from: [2; 6],
        vlan: 0,
    };
    let Process {
        mut replication,
        mut hops,
        relay,
        loaded,
    } = Process::start(&pins, 16_384, &HashMap::from([(ip("10.2.0.2"), route)]));
    replication.prepare([route.ifindex]);
    replication.insert_tree(TREE, &[]).unwrap();
    replication.set_prune(1, &[0]).unwrap();
    while let Some(round) = replication.begin() {
        let passed = round.run();
        replication.finish(&mut hops, passed);
    }
    let before = replication.inline_waits();
    let tables = Mutex::new(Tables { replication, hops });
    let joined = AtomicBool::new(false);
    let mut longest = Duration::ZERO;
    let (used, taken) = std::thread::scope(|scope| {
        scope.spawn(|| {
            namespace.enter();
            loop {
                let ended = joined.load(Ordering::Acquire);
                let round = tables.lock().unwrap().replication.begin();
                let Some(round) = round else {
                    if ended {
                        return;
                    }
                    std::thread::yield_now();
                    continue;
                };
                let passed = round.run();
                let Tables { replication, hops } = &mut *tables.lock().unwrap();
                replication.finish(hops, passed);
            }
        });
        let (begun, now) = (busy(), Instant::now());
        for who in 1..=PARTICIPANTS {
            join(&tables, who, streams, &mut longest);
        }
        let outcome = (busy() - begun, now.elapsed());
        joined.store(true, Ordering::Release);
        outcome
    });
    println!(
        "{PARTICIPANTS} participants with {streams} streams: {used:?} of processor time, {taken:?} in all, the longest change {longest:?}"
    );
    let Tables { replication, hops } = tables.into_inner().unwrap();
    assert_eq!(replication.inline_waits(), before, "a change waited for a grace period");
    let process = Process {
        replication,
        hops,
        relay,
        loaded,
    };
    let copies = maps::copies(&process);
    assert_eq!(copies.len(), usize::from(PARTICIPANTS * streams));
    for who in 1..=PARTICIPANTS {
        for stream in 0..streams {
            let found: Vec<u16> = copies[&key(who, stream).flow.src.port][0].iter().map(|(_, to)| to.port).collect();
            let others: Vec<u16> = (1..=PARTICIPANTS)
                .filter(|other| *other != who)
                .map(|other| 30_000 + other)
                .collect();
            assert_eq!(found, others, "participant {who}");
        }
    }
}

#[test]
fn fifty_participants_with_two_streams() {
    everybody_joins(2);
}

#[test]
fn fifty_participants_with_four_streams() {
    everybody_joins(4);
}
