//! The plane with the double of bf_switchd: how it is started, asked and looked at.

use super::switch::Switch;
use super::{Lab, RELAY, target};
use shunt_calls::{MediaRange, Operation, Outcome, WriteId};
use shunt_plane::{Event, Settings, StoredHash, Written};
use std::collections::BTreeSet;

pub const PROGRAM: &[u8] = include_bytes!("../../../../../p4/generated/relay-counted.tofino1.bf-rt.json");
pub const HASH32: &[u8] = include_bytes!("../../../../../p4/generated/hash32.tofino1.context.json");

pub fn media() -> Vec<MediaRange> {
    vec![MediaRange {
        addr: RELAY.into(),
        first_port: 10_000,
        last_port: 19_999,
    }]
}

pub fn settings(switch: &Switch) -> Settings {
    let mut settings = Settings::new(target(format!("unix:{}", switch.path.display())));
    settings.media = media();
    settings.stored_hash = StoredHash::None;
    settings
}

pub async fn lab(name: &str) -> (Switch, Lab) {
    let switch = Switch::start(name, PROGRAM, br#"{"tables": []}"#, b"");
    let mut lab = Lab::start(settings(&switch));
    lab.up().await;
    (switch, lab)
}

impl Lab {
    pub fn ask(&self, first: u64, operations: &[Operation]) {
        let numbered = operations.iter().enumerate();
        self.plane.write(
            numbered
                .map(|(at, operation)| (WriteId::new(first + at as u64), *operation))
                .collect(),
        );
    }

    /// The results of so many writes, in the order of their ids.
    pub async fn results(&mut self, count: usize) -> Vec<Written> {
        let mut found = Vec::new();
        while found.len() < count {
            let more = self.until(|event| if let Event::Written(more) = event { Some(more) } else { None });
            found.extend(more.await);
        }
        found.sort_by_key(|written| written.id);
        found
    }

    pub async fn outcomes(&mut self, operations: &[Operation]) -> Vec<Outcome> {
        self.ask(1, operations);
        self.results(operations.len())
            .await
            .into_iter()
            .map(|written| written.outcome)
            .collect()
    }
}

pub fn keys(switch: &Switch) -> BTreeSet<u16> {
    let rows = switch.rows("relay");
    rows.into_iter()
        .map(|(key, _)| u16::from_be_bytes([key[2][0], key[2][1]]))
        .collect()
}
