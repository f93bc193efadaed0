//! Random writes against a plain map, with a data plane that fails: once all is quiet, both agree.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::switch::{Faults, Switch};
use common::{Lab, entry, key_of, target};
use proptest::prelude::*;
use shunt_calls::{Operation, Outcome, RelayEntry, WriteId};
use shunt_net::FiveTuple;
use shunt_plane::{Event, Settings, StoredHash};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const PROGRAM: &[u8] = include_bytes!("../../../../p4/generated/relay-counted.tofino1.bf-rt.json");

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Operation>),
    Faults {
        not_ready: usize,
        breaks: usize,
    },
    /// The process dies and comes back, with its tables or without.
    Restart {
        keep: bool,
    },
    Pause(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Few keys at few ports, so that writes meet.
    (0..3_u16, 0..4_u16, 1..3_u16, 0..3).prop_map(|(source, port, destination, kind)| {
        let entry = entry(1000 + source, 10_000 + 2 * port, destination);
        match kind {
            0 => Operation::Insert(entry),
            1 => Operation::Modify(entry),
            _ => Operation::Delete(entry.key()),
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(operation(), 1..8).prop_map(Step::Write),
        2 => (0..4_usize, 0..6_usize).prop_map(|(not_ready, breaks)| Step::Faults { not_ready, breaks }),
        1 => any::<bool>().prop_map(|keep| Step::Restart { keep }),
        2 => (0..12_u64).prop_map(Step::Pause),
    ]
}

/// The wishes, and what is known of them.
struct Model {
    lab: Lab,
    last: u64,
    /// The last write to each key, and what became of it.
    wishes: BTreeMap<FiveTuple, (u64, Operation, Option<Outcome>)>,
    open: HashMap<WriteId, FiveTuple>,
}

impl Model {
    fn write(&mut self, operations: Vec<Operation>) {
        let mut writes = Vec::new();
        for operation in operations {
            self.last += 1;
            let (id, key) = (WriteId::new(self.last), key_of(&operation));
            self.wishes.insert(key, (self.last, operation, None));
            self.open.insert(id, key);
            writes.push((id, operation));
        }
        self.lab.plane.write(writes);
    }

    /// Until every write has its result.
    async fn settle(&mut self) {
        while !self.open.is_empty() {
            let Event::Written(results) = self.lab.event().await else {
                continue;
            };
            for written in results {
                let key = self.open.remove(&written.id).expect("one result for each write");
                let (last, _, outcome) = self.wishes.get_mut(&key).unwrap();
                if WriteId::new(*last) == written.id {
                    *outcome = Some(written.outcome);
                }
            }
        }
    }

    /// Writes without an answer are asked for again, as the book does.
    async fn repeat(&mut self) {
        loop {
            self.settle().await;
            let undone = self.wishes.values().filter(|(_, _, outcome)| *outcome != Some(Outcome::Done));
            let undone: Vec<(Operation, Option<Outcome>)> = undone.map(|(_, operation, outcome)| (*operation, *outcome)).collect();
            if undone.is_empty() {
                return;
            }
            for (operation, outcome) in &undone {
                assert_eq!(*outcome, Some(Outcome::Unavailable), "{operation:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.write(undone.into_iter().map(|(operation, _)| operation).collect());
        }
    }

    /// A data plane that has lost its entries gets them again.
    async fn write_all_again(&mut self) {
        let operations = self.wishes.values().map(|(_, operation, _)| *operation).collect();
        self.write(operations);
        self.repeat().await;
    }

    fn wanted(&self) -> Vec<RelayEntry> {
        let entries = self.wishes.values().filter_map(|(_, operation, _)| match operation {
            Operation::Insert(entry) | Operation::Modify(entry) => Some(*entry),
            Operation::Delete(_) => None,
        });
        entries.collect()
    }
}

async fn run(number: usize, steps: Vec<Step>) -> (Vec<RelayEntry>, Vec<RelayEntry>) {
    let switch = Switch::start(&format!("property-{number}"), PROGRAM, br#"{"tables": []}"#, b"");
    let mut settings = Settings::new(target(format!("unix:{}", switch.path.display())));
    settings.stored_hash = StoredHash::None;
    let mut lab = Lab::start(settings);
    lab.up().await;
    let mut model = Model {
        lab,
        last: 0,
        wishes: BTreeMap::new(),
        open: HashMap::new(),
    };
    let mut lost = false;
    for step in steps {
        match step {
            Step::Write(operations) => model.write(operations),
            Step::Faults { not_ready, breaks } => {
                // Fewer than the plane writes again for.
                let breaks = if breaks == 1 { 2 } else { breaks };
                switch.state().faults = Faults {
                    not_ready,
                    breaks,
                    ..Faults::default()
                };
            }
            Step::Restart { keep } => {
                lost |= !keep;
                switch.stop(keep);
                switch.serve();
            }
            Step::Pause(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        }
    }
    switch.state().faults = Faults::default();
    model.repeat().await;
    if lost {
        model.write_all_again().await;
    }
    model.lab.plane.audit();
    let mut found = loop {
        let table = model.lab.until(|event| {
            if let Event::Table { entries, changed, .. } = event {
                Some((entries, changed))
            } else {
                None
            }
        });
        let (entries, changed) = table.await;
        if changed.is_empty() {
            break entries;
        }
        model.lab.plane.audit();
    };
    found.sort_unstable_by_key(RelayEntry::key);
    let _ = std::fs::remove_file(&switch.path);
    (found, model.wanted())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn after_quiet_the_table_is_what_was_wanted(steps in prop::collection::vec(step(), 1..25)) {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (found, wanted) = runtime.block_on(run(number, steps));
        prop_assert_eq!(found, wanted);
    }
}
