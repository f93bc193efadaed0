//! The journal in real SQLite files: what is kept, what is damaged, who holds it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_calls::{RowKey, Text};
use shunt_journal::{OpenError, open};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// A new folder, named after the test.
fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("shunt-journal-{test}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn key(call: &str, media: Option<u32>) -> RowKey {
    RowKey {
        call_id: Text(call.into()),
        tag: Text(b"tag".to_vec()),
        media,
    }
}

#[tokio::test]
async fn rows_that_are_kept_are_there_again_and_removed_ones_are_not() {
    let folder = folder("kept");
    let path = folder.join("journal");
    let opened = open(&path).unwrap();
    opened.journal.put(key("a", None), b"{}".to_vec());
    opened.journal.put(key("a", Some(1)), b"{\"x\":1}".to_vec());
    opened.journal.put(key("b", None), b"{}".to_vec());
    opened.journal.remove(key("b", None));
    assert!(opened.journal.kept().await);
    assert_eq!(opened.journal.pending(), 0);
    drop(opened);
    let again = open(&path).unwrap();
    let expected = vec![(key("a", None), b"{}".to_vec()), (key("a", Some(1)), b"{\"x\":1}".to_vec())];
    assert_eq!((again.rows.clone(), again.damaged.clone()), (expected, None));
    drop(again);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_is_no_database_and_a_directory_are_moved_aside() {
    let folder = folder("damaged");
    let path = folder.join("journal");
    fs::write(&path, [7; 5000]).unwrap();
    let opened = open(&path).unwrap();
    assert_eq!(fs::read(opened.damaged.clone().unwrap()).unwrap(), [7; 5000]);
    drop(opened);
    let path = folder.join("other");
    fs::create_dir(&path).unwrap();
    assert!(open(&path).unwrap().damaged.unwrap().is_dir());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_second_agent_is_told_who_holds_the_file() {
    let folder = folder("lock");
    let path = folder.join("journal");
    let first = open(&path).unwrap();
    let Err(OpenError::Lock(error)) = open(&path) else {
        panic!("opened twice")
    };
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(first);
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn the_time_of_a_commit_is_told() {
    let folder = folder("time");
    let opened = open(&folder.join("journal")).unwrap();
    let mut times = Vec::new();
    for n in 0..1000 {
        let begin = Instant::now();
        opened.journal.put(key(&n.to_string(), None), vec![b' '; 800]);
        assert!(opened.journal.kept().await, "{:?}", opened.journal.failing());
        times.push(begin.elapsed());
    }
    times.sort();
    println!("put and kept: p50 {:?}, p99 {:?}", times[500], times[990]);
    drop(opened);
    fs::remove_dir_all(folder).unwrap();
}
