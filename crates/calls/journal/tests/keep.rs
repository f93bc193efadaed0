//! What is kept, whom it is found by, and who holds the file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use proptest::prelude::*;
use shunt_calls::{Row, RowKey};
use shunt_journal::Journal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[tokio::test]
async fn rows_that_are_kept_are_there_again_and_removed_ones_are_not() {
    let folder = Folder::new("kept");
    let (journal, _, _events) = open(&folder.journal()).await;
    let rows = [row("a", None, 10_000, 1), row("a", Some(1), 10_004, 2)];
    rows.iter().for_each(|row| journal.put(row));
    journal.put(&row("b", None, 10_008, 1));
    journal.remove(key("b", None));
    assert!(journal.kept().await);
    assert_eq!((journal.status().pending, journal.status().error), (0, None));
    journal.close().await;
    assert_eq!(read(&folder.journal()).await, rows);
    assert!(folder.aside().is_empty());
}

#[tokio::test]
async fn rows_are_found_by_call_and_by_port_and_read_in_pieces() {
    let folder = Folder::new("found");
    let (journal, _, _events) = open(&folder.journal()).await;
    for number in 0..1000_u16 {
        journal.put(&row(&format!("call-{number}"), None, 10_000 + 4 * number, 0));
        journal.put(&row(&format!("call-{number}"), Some(2), 20_000 + 4 * number, 0));
    }
    assert!(journal.kept().await);
    journal.close().await;
    drop(journal);
    let (journal, reader, _events) = open(&folder.journal()).await;
    assert_eq!(reader.count().await, 1000);
    assert_eq!(reader.of_call(b"call-7").await.len(), 2);
    assert!(reader.of_call(b"call-1000").await.is_empty());
    // The RTCP port of the callee, who has the one at 10,402 and 10,403.
    let holders = reader.of_port(10_403).await;
    assert!(
        holders.iter().any(|row| row.key == key("call-100", None)) && holders.len() <= 3,
        "{holders:?}"
    );
    assert!(reader.of_port(9_000).await.is_empty());
    let mut count = 0;
    while let Some(piece) = reader.piece().await {
        assert!((1..=500).contains(&piece.len()));
        count += piece.len();
    }
    assert_eq!(count, 2000);
    assert_eq!(reader.of_call(b"call-7").await.len(), 2, "also when all are read");
    journal.close().await;
}

#[tokio::test]
async fn a_second_agent_is_told_who_holds_the_file_and_gets_it_when_that_ends() {
    let folder = Folder::new("lock");
    let (first, _, _first_events) = open(&folder.journal()).await;
    first.put(&row("a", None, 10_000, 1));
    let (second, mut events) = Journal::start(folder.journal()).unwrap();
    until(&second, |status| status.error.is_some()).await;
    let error = second.status().error.unwrap();
    assert!(
        error.contains("another agent") && error.contains(&std::process::id().to_string()),
        "{error}"
    );
    let begin = Instant::now();
    second.put(&row("b", None, 10_000, 1));
    assert!(
        !second.kept().await && begin.elapsed() < Duration::from_millis(100),
        "nobody waits for a store that fails"
    );
    first.close().await;
    assert!(events.recv().await.is_some());
    until(&second, |status| status.error.is_none() && status.pending == 0).await;
    second.close().await;
    assert_eq!(read(&folder.journal()).await.len(), 2);
}

#[tokio::test]
async fn the_time_of_a_commit_is_told() {
    let folder = Folder::new("time");
    let (journal, _, _events) = open(&folder.journal()).await;
    let mut times = Vec::new();
    for number in 0..2000 {
        let row = row(&number.to_string(), None, 10_000, 0);
        let begin = Instant::now();
        journal.put(&row);
        assert!(journal.kept().await, "{:?}", journal.status());
        times.push(begin.elapsed());
    }
    times.sort();
    println!(
        "put and kept: p50 {:?}, p99 {:?}, longest {:?}",
        times[1000], times[1980], times[1999]
    );
    journal.close().await;
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u64),
    Remove(u8),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..12_u8, any::<u64>()).prop_map(|(call, version)| Step::Put(call, version)),
        3 => (0..12_u8).prop_map(Step::Remove),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..60)
}

async fn play(steps: Vec<Step>) {
    let folder = Folder::new("steps");
    let mut model: BTreeMap<RowKey, Row> = BTreeMap::new();
    let (mut journal, ..) = open(&folder.journal()).await;
    for step in steps {
        match step {
            Step::Put(call, version) => {
                let row = row(&call.to_string(), Some(call.into()), 10_000 + u16::from(call), version);
                journal.put(&row);
                model.insert(row.key.clone(), row);
            }
            Step::Remove(call) => {
                let key = key(&call.to_string(), Some(call.into()));
                journal.remove(key.clone());
                model.remove(&key);
            }
            Step::Reopen => {
                journal.close().await;
                drop(journal);
                let (again, reader, _) = open(&folder.journal()).await;
                assert_eq!(all(&reader).await, model.values().cloned().collect::<Vec<_>>());
                journal = again;
            }
        }
    }
    journal.close().await;
    assert_eq!(read(&folder.journal()).await, model.into_values().collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_sequence_of_changes_gives_the_newest_rows(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps));
    }
}
