//! A switch that counts on some streams only: which it counts, what is read of them, and what the next session finds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::double::settings;
use common::switch::{PIPES, Switch, register};
use common::{LONG, Lab, entry};
use shunt_calls::{Counters, Operation, Outcome, RelayEntry};
use shunt_net::FiveTuple;
use shunt_plane::Event;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const PROGRAM: &[u8] = include_bytes!("../../../../p4/generated/relay.tofino1.bf-rt.json");

fn switch(name: &str) -> Switch {
    Switch::start(name, PROGRAM, br#"{"tables": []}"#, b"")
}

fn inserts(count: u16) -> Vec<Operation> {
    (0..count).map(|at| Operation::Insert(made(at))).collect()
}

fn made(at: u16) -> RelayEntry {
    entry(at + 1, 10_000 + at, 2)
}

/// The source ports of the streams that are counted, with their registers.
fn counted(switch: &Switch) -> Vec<(u16, u16)> {
    let rows = switch.rows("Ingress.sample");
    let number = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    let index = |data: &shunt_bfrt::pb::TableData| match &data.fields[0].value {
        Some(shunt_bfrt::pb::data_field::Value::Stream(bytes)) => number(bytes),
        other => panic!("{other:?}"),
    };
    rows.iter().map(|(key, data)| (number(&key[2]), index(data))).collect()
}

async fn until_counted(switch: &Switch, count: usize) {
    let began = Instant::now();
    while counted(switch).len() != count {
        assert!(began.elapsed() < LONG, "{} streams are counted", counted(switch).len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Make the switch have counted this on a stream.
fn count(switch: &Switch, key: &FiveTuple, packets: u64, bytes: u64, missing: u16) {
    let (sample, register_table) = (switch.table("Ingress.sample"), switch.table("Ingress.missing"));
    let (_, index) = counted(switch).into_iter().find(|(port, _)| *port == key.src.port).unwrap();
    let mut state = switch.state();
    let rows = state.tables[&sample.id].keys();
    let place = rows.into_iter().find(|row| row[2].1 == key.src.port.to_be_bytes()).unwrap().clone();
    state.counted.insert((sample.id, place), (packets, bytes));
    let mut values = [0; PIPES];
    values[1] = missing;
    let index_field = register_table.key.iter().next().unwrap();
    let row = vec![(index_field.id, u32::from(index).to_be_bytes().to_vec())];
    let data = register(&register_table, values);
    state.tables.entry(register_table.id).or_default().insert(row, data);
}

async fn read(lab: &Lab, key: FiveTuple) -> Counters {
    lab.plane.counters(&[key]).await.unwrap()[0].1
}

#[tokio::test]
async fn streams_are_counted_with_their_losses_and_their_registers_are_used_again() {
    let switch = switch("samples");
    let mut lab = Lab::start(settings(&switch));
    let facts = lab.up().await;
    assert!(
        facts.lacks.iter().any(|lack| lack.contains("2048 streams only")),
        "{:?}",
        facts.lacks
    );
    // The first audit reads counters too.
    lab.until(|event| matches!(event, Event::Table { .. }).then_some(())).await;
    assert_eq!(lab.outcomes(&inserts(10)).await, [Outcome::Done; 10]);
    until_counted(&switch, 10).await;
    let key = made(3).key();
    // What an earlier stream left in the register.
    count(&switch, &key, 0, 0, 4711);
    assert_eq!(read(&lab, key).await, Counters::default());
    count(&switch, &key, 5, 1_000, 9_000);
    assert_eq!((read(&lab, key).await.packets, read(&lab, key).await.lost), (5, Some(0)));
    count(&switch, &key, 105, 21_000, 9_007);
    let after = read(&lab, key).await;
    assert_eq!((after.packets, after.bytes, after.lost), (105, 21_000, Some(7)));
    // One of them came late.
    count(&switch, &key, 106, 21_200, 9_006);
    lab.ask(1, &[Operation::Delete(key)]);
    let last = lab.results(1).await.remove(0).counters.unwrap();
    assert_eq!((last.packets, last.lost), (106, Some(6)));
    until_counted(&switch, 9).await;
    assert_eq!(lab.outcomes(&inserts(10)).await, [Outcome::Done; 10]);
    until_counted(&switch, 10).await;
    let registers: BTreeSet<u16> = counted(&switch).into_iter().map(|(_, index)| index).collect();
    assert_eq!(registers.len(), 10, "no two streams share one");
}

#[tokio::test]
async fn what_finds_no_register_is_offloaded_all_the_same_and_counted_when_there_is_one() {
    let switch = switch("few");
    let mut lab = Lab::start(settings(&switch));
    lab.up().await;
    let room = switch.table("Ingress.sample").size;
    let many = inserts(room as u16 + 20);
    assert_eq!(lab.outcomes(&many).await, vec![Outcome::Done; room + 20]);
    until_counted(&switch, room).await;
    assert_eq!(switch.rows("relay").len(), room + 20);
    let (port, _) = counted(&switch)[0];
    assert_eq!(lab.outcomes(&[Operation::Delete(made(port - 1).key())]).await, [Outcome::Done]);
    until_counted(&switch, room - 1).await;
    lab.plane.audit();
    until_counted(&switch, room).await;
}

#[tokio::test]
async fn the_next_session_goes_on_with_what_is_counted() {
    let switch = switch("again");
    let mut lab = Lab::start(settings(&switch));
    lab.up().await;
    assert_eq!(lab.outcomes(&inserts(5)).await, [Outcome::Done; 5]);
    until_counted(&switch, 5).await;
    let before = counted(&switch);
    switch.stop(true);
    // Somebody has deleted the entry of one of them meanwhile.
    let relay = switch.table("relay").id;
    switch
        .state()
        .tables
        .get_mut(&relay)
        .unwrap()
        .retain(|key, _| key[2].1 != 5_u16.to_be_bytes());
    switch.serve();
    lab.until(|event| matches!(event, Event::Down(_)).then_some(())).await;
    lab.up().await;
    until_counted(&switch, 4).await;
    assert_eq!(counted(&switch), before[..4]);
    assert_eq!(lab.outcomes(&[Operation::Insert(made(9))]).await, [Outcome::Done]);
    until_counted(&switch, 5).await;
}

#[tokio::test]
async fn a_build_with_counters_on_every_entry_counts_no_stream_by_itself() {
    let switch = Switch::start("counted", common::double::PROGRAM, br#"{"tables": []}"#, b"");
    let mut lab = Lab::start(settings(&switch));
    lab.up().await;
    assert_eq!(lab.outcomes(&inserts(1)).await, [Outcome::Done]);
    assert_eq!(
        (read(&lab, made(0).key()).await.packets, read(&lab, made(0).key()).await.bytes),
        (7, 7)
    );
    lab.plane.audit();
    lab.until(|event| matches!(event, Event::Table { .. }).then_some(())).await;
    assert!(counted(&switch).is_empty());
}
