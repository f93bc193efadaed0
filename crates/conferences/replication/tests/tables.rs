//! Changes of all tables by chance, on real maps: each stream's list is what the tables call for, also for the next process. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::Namespace;
use common::model::{Change, Model, change, make, routes};
use common::{Chance, Pins, Process, maps};
use shunt_replication::Fault;
use std::collections::BTreeMap;

const COPIES: usize = 64;

/// A namespace for this thread with this many interfaces; their numbers.
fn interfaces(count: u32) -> (Namespace, Vec<u32>) {
    let made = Namespace::new();
    for n in 0..count {
        made.run(&format!("ip link add v{n} type veth peer name w{n}"));
    }
    let found = (0..count).map(|n| made.ifindex(&format!("v{n}"))).collect();
    made.enter();
    (made, found)
}

/// What the tables say, and what the maps say, against the model.
fn check(process: &Process, model: &Model, routes: &std::collections::HashMap<std::net::IpAddr, common::Route>, after: &str) {
    assert_eq!(&Model::of(&process.replication), model, "the tables after {after}");
    assert_eq!(maps::copies(process), model.copies(routes), "the lists after {after}");
}

fn rejected_rightly(model: &Model, change: &Change, fault: &Fault) -> bool {
    match fault {
        // Behind five interfaces at once there may be no copies.
        Fault::NoSpace(text) => text.contains("by at most 4 interfaces"),
        Fault::Exists(_) | Fault::NotFound(_) => !model.clone().make(change),
        _ => false,
    }
}

fn run(seed: u64, steps: usize) {
    let mut chance = Chance::new(seed);
    let pins = Pins::new();
    let (_namespace, interfaces) = interfaces(5);
    let routes = routes(&interfaces);
    let mut process = Process::start(&pins, COPIES, &routes);
    let mut model = Model::default();
    for step in 0..steps {
        if step == steps / 2 {
            process = process.reload(&pins, COPIES);
            check(&process, &model, &routes, &format!("a reload, seed {seed}"));
        }
        let change = change(&mut chance);
        let after = format!("seed {seed}, step {step}, {change:?}");
        match make(&mut process, &change) {
            Ok(()) => assert!(model.make(&change), "{after}"),
            Err(fault) => assert!(rejected_rightly(&model, &change, &fault), "{fault} after {after}"),
        }
        check(&process, &model, &routes, &after);
        match chance.below(40) {
            0 => process.settle(),
            1..=3 => {
                process = process.restart();
                check(&process, &model, &routes, &format!("a restart after {after}"));
            }
            _ => {}
        }
    }
    while !process.replication.clear(3).unwrap() {}
    process.settle();
    let usage = process.replication.usage();
    assert_eq!(
        (usage.words, usage.rewrites, usage.streams, usage.retired),
        (4, 0, 0, 0),
        "all room comes back"
    );
    assert_eq!(process.hops.held(), BTreeMap::new());
    check(&process, &Model::default(), &routes, "clearing");
}

#[test]
fn lists_are_what_the_tables_call_for() {
    for seed in 0..3 {
        run(seed, 600);
    }
}
