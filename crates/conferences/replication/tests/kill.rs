//! A process that changes the tables is killed at any moment: the next one finds every change made or not made. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::Namespace;
use common::model::{Change, Model, change, make, routes};
use common::{Chance, Pins, Process, maps};
use shunt_replication::MAPS;
use shunt_xdp::{Directory, Loaded};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const COPIES: usize = 64;
const PROGRAM: &str = "replicate_copy";
const NEXTHOPS: &str = ".data.nexthops";
const CHILD: &str = "SHUNT_REPLICATION_CHILD";
const KILLS: u64 = 60;

/// What a process without loading takes from the pins.
fn pinned(pins: &Pins) -> (Loaded, Loaded) {
    let directory = Directory::open(&pins.0).unwrap();
    let get = |name: &str| (name.to_owned(), directory.get(name).unwrap());
    let relay = Loaded {
        programs: BTreeMap::new(),
        maps: BTreeMap::from([get(NEXTHOPS)]),
    };
    let loaded = Loaded {
        programs: BTreeMap::from([get(PROGRAM)]),
        maps: MAPS.into_iter().map(get).collect(),
    };
    (relay, loaded)
}

/// The changes of one process: the same for the same seed.
struct Script(Chance);

impl Script {
    fn next(&mut self) -> (Change, bool) {
        (change(&mut self.0), self.0.below(12) == 0)
    }
}

/// Interfaces of this thread's namespace.
fn interfaces() -> Vec<u32> {
    (0..5)
        .map(|n| nix::net::if_::if_nametoindex(format!("v{n}").as_str()).unwrap())
        .collect()
}

/// The process that is killed: says before each change that it begins, and after it whether it was made.
#[test]
#[ignore = "run by the other test"]
fn child() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let (seed, path) = given.split_once(' ').unwrap();
    let pins = Pins(PathBuf::from(path));
    let (relay, loaded) = pinned(&pins);
    let mut process = Process::adopt(relay, loaded, &routes(&interfaces()));
    let mut script = Script(Chance::new(seed.parse().unwrap()));
    let mut out = std::io::stdout().lock();
    writeln!(out).unwrap();
    loop {
        let (change, settle) = script.next();
        writeln!(out, "begin").unwrap();
        out.flush().unwrap();
        let made = make(&mut process, &change).is_ok();
        writeln!(out, "{}", if made { "made" } else { "rejected" }).unwrap();
        out.flush().unwrap();
        if settle {
            process.settle();
        }
    }
}

#[test]
fn every_change_is_made_or_not_made() {
    let namespace = Namespace::new();
    for n in 0..5 {
        namespace.run(&format!("ip link add v{n} type veth peer name w{n}"));
    }
    namespace.enter();
    let pins = Pins::new();
    let routes = routes(&interfaces());
    let mut process = Process::start(&pins, COPIES, &routes);
    let directory = Directory::open(&pins.0).unwrap();
    directory.pin(PROGRAM, process.loaded.program(PROGRAM).unwrap()).unwrap();
    directory.pin(NEXTHOPS, process.relay.map(NEXTHOPS).unwrap()).unwrap();
    drop(directory);
    let mut model = Model::default();
    let mut chance = Chance::new(99);
    let mut unfinished = 0;
    for seed in 0..KILLS {
        let Process { relay, loaded, .. } = process;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{seed} {}", pins.0.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut said: Vec<String> = Vec::new();
        let wanted = 1 + chance.below(200) as usize;
        let is_word = |line: &String| ["begin", "made", "rejected"].contains(&line.as_str());
        while said.len() < wanted {
            said.extend(lines.next().filter(is_word));
        }
        std::thread::sleep(Duration::from_micros(chance.below(300).into()));
        child.kill().unwrap();
        said.extend(lines.filter(is_word));
        child.wait().unwrap();
        let mut script = Script(Chance::new(seed));
        let mut open = None;
        for pair in said.chunks(2) {
            let (change, _) = script.next();
            match pair.get(1).map(String::as_str) {
                Some("made") => assert!(model.make(&change), "{change:?}"),
                Some(_) => {}
                None => open = Some(change),
            }
        }
        process = Process::adopt(relay, loaded, &routes);
        let found = Model::of(&process.replication);
        if let Some(change) = open.filter(|_| found != model) {
            let before = model.clone();
            assert!(model.make(&change), "seed {seed}: {change:?} cannot be made, and changed something");
            assert_eq!(found, model, "seed {seed}: neither before nor after {change:?}, of {before:?}");
            unfinished += 1;
        }
        assert_eq!(found, model, "seed {seed}");
        assert_eq!(maps::copies(&process), model.copies(&routes), "seed {seed}");
    }
    println!("{unfinished} of {KILLS} kills between a change's coming into force and its end");
    while !process.replication.clear(100).unwrap() {}
    process.settle();
    let usage = process.replication.usage();
    assert_eq!((usage.words, usage.rewrites, usage.streams), (4, 0, 0), "nothing is lost to a kill");
}
