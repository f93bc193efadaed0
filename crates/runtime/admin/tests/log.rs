//! The event log: restarts, gaps, damage, and processes that are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Directory, PATIENCE, event, names, read, segments, settled, wait_until};
use serde_json::Value;
use shunt_admin::EventLog;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn append(log: &EventLog, calls: &[&str]) {
    for call in calls {
        log.append(event(call));
    }
    settled(log, 1 + calls.len() as u64);
}

fn add(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn number(line: &Value) -> u64 {
    line["seq"].as_u64().unwrap()
}

#[test]
fn events_are_kept_over_restarts() {
    let directory = Directory::new();
    let first = EventLog::open(directory.settings()).unwrap();
    append(&first, &["a", "b"]);
    let epoch = first.epoch();
    assert!(first.close(PATIENCE));
    drop(first);
    let second = EventLog::open(directory.settings()).unwrap();
    append(&second, &["c"]);
    let lines = read(&second, None);
    assert_eq!(names(&lines), ["started", "a", "b", "stopped", "started", "c"]);
    assert!(
        lines.windows(2).all(|pair| number(&pair[0]) < number(&pair[1])),
        "numbers rise: {lines:?}"
    );
    assert!(second.epoch() > epoch);
    assert_eq!(lines[4]["facts"]["previous_seq"], lines[3]["seq"]);
    assert_eq!(lines[4]["facts"]["clean"], true);
}

#[test]
fn what_counts_as_written_can_be_read() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    for count in 1..=50 {
        log.append(event("a"));
        settled(&log, 1 + count);
        assert_eq!(read(&log, None).len() as u64, 1 + count);
    }
}

#[test]
fn a_reader_beside_the_writer_sees_each_event_once() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    let mut follow = log.follow(None);
    let mut found = 0;
    for count in 1..=50 {
        log.append(event("a"));
        wait_until("the event is there", || {
            let mut lines = Vec::new();
            follow.read(&mut lines).unwrap();
            assert!(!String::from_utf8_lossy(&lines).contains("\"gap\""), "after {found} events");
            found += lines.iter().filter(|byte| **byte == b'\n').count();
            found > count
        });
        assert_eq!(found, count + 1);
    }
}

#[test]
fn a_reader_that_resumes_over_a_restart_sees_no_gap() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a"]);
    log.close(PATIENCE);
    let after = number(read(&log, None).last().unwrap()) + 1;
    drop(log);
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["b"]);
    assert_eq!(names(&read(&log, Some(after))), ["started", "b"]);
}

#[test]
fn a_reader_in_the_middle_gets_the_rest() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a", "b", "c"]);
    let lines = read(&log, None);
    assert_eq!(names(&read(&log, Some(number(&lines[2])))), ["b", "c"]);
    assert!(read(&log, Some(log.status().next)).is_empty());
}

#[test]
fn what_was_removed_to_make_room_is_a_gap_with_the_first_number_kept() {
    let directory = Directory::new();
    let mut settings = directory.settings();
    (settings.segment_bytes, settings.segments) = (4_096, 3);
    let log = EventLog::open(settings).unwrap();
    let begin = number(&read_first(&log));
    for group in 0..200 {
        append_more(&log, &format!("call-{group}"), 1 + group);
    }
    let status = log.status();
    assert!(status.bytes <= 3 * 4_096 + 4_096, "{status:?}");
    let lines = read(&log, Some(begin));
    assert_eq!((&lines[0]["kind"], &lines[0]["reason"]), (&"gap".into(), &"expired".into()));
    assert_eq!(
        (lines[0]["from"].as_u64(), lines[0]["first"].as_u64()),
        (Some(begin), Some(status.first))
    );
    assert_eq!(number(&lines[1]), status.first);
    assert_eq!(names(&lines).last().unwrap(), "call-199");
    assert_eq!(lines.iter().filter(|line| line["kind"] == "gap").count(), 1);
}

fn read_first(log: &EventLog) -> Value {
    settled(log, 1);
    read(log, None)[0].clone()
}

fn append_more(log: &EventLog, call: &str, before: u64) {
    log.append(event(call));
    settled(log, before + 1);
}

#[test]
fn what_the_queue_could_not_take_is_counted_and_shows_as_a_gap() {
    let directory = Directory::new();
    let mut settings = directory.settings();
    settings.queue = 16;
    let log = EventLog::open(settings).unwrap();
    let mut count = 1;
    while log.status().dropped == 0 {
        for _ in 0..1_000 {
            log.append(event("flood"));
        }
        count += 1_000;
    }
    settled(&log, count);
    append_more(&log, "after", count);
    let lines = read(&log, None);
    let (gaps, events): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["kind"] == "gap");
    assert!(gaps.iter().all(|gap| gap["reason"] == "lost"));
    let missing: u64 = gaps
        .iter()
        .map(|gap| gap["first"].as_u64().unwrap() - gap["from"].as_u64().unwrap())
        .sum();
    let status = log.status();
    assert_eq!((missing, events.len() as u64), (status.dropped, status.written));
}

#[test]
fn a_number_of_another_log_starts_anew_and_says_so() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a"]);
    assert_eq!(names(&read(&log, Some(u64::MAX))), ["gap:reset", "started", "a"]);
}

#[test]
fn a_torn_end_is_cut_off() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a"]);
    log.close(PATIENCE);
    drop(log);
    let path = segments(&directory.log()).pop().unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    add(&path, b"{\"seq\":99,\"epo");
    add(&path, &[0; 512]);
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["b"]);
    assert_eq!(names(&read(&log, None)), ["started", "a", "stopped", "started", "b"]);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
}

#[test]
fn damage_in_the_middle_costs_the_lines_that_it_hits() {
    let directory = Directory::new();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a", "bbbb", "c"]);
    log.close(PATIENCE);
    drop(log);
    let path = segments(&directory.log()).pop().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(text.find("bbbb").unwrap() as u64)).unwrap();
    file.write_all(b"\"\0\0\"").unwrap();
    let log = EventLog::open(directory.settings()).unwrap();
    settled(&log, 1);
    assert_eq!(names(&read(&log, None)), ["started", "a", "gap:lost", "c", "stopped", "started"]);
}

#[test]
fn a_file_that_is_only_damage_is_removed() {
    let directory = Directory::new();
    std::fs::create_dir(directory.log()).unwrap();
    std::fs::write(directory.log().join("events-00000000000000000005.ndjson"), [0xff; 1000]).unwrap();
    let log = EventLog::open(directory.settings()).unwrap();
    append(&log, &["a"]);
    assert_eq!(names(&read(&log, None)), ["started", "a"]);
    assert_eq!(segments(&directory.log()).len(), 1);
}

#[test]
fn events_wait_for_a_directory_that_cannot_be_used() {
    let directory = Directory::new();
    std::fs::write(directory.log(), "a file is in the way").unwrap();
    let log = EventLog::open(directory.settings()).unwrap();
    log.append(event("a"));
    let status = log.status();
    assert_eq!((status.written, status.dropped), (0, 0));
    assert!(status.error.as_deref().unwrap().contains("events"), "{status:?}");
    std::fs::remove_file(directory.log()).unwrap();
    wait_until("the log is written again", || log.status().written == 2);
    assert_eq!(log.status().error, None);
    assert_eq!(names(&read(&log, None)), ["started", "a"]);
}

#[test]
fn events_that_waited_in_vain_are_counted_at_the_end() {
    let directory = Directory::new();
    std::fs::write(directory.log(), "a file is in the way").unwrap();
    let log = EventLog::open(directory.settings()).unwrap();
    log.append(event("a"));
    assert!(log.close(PATIENCE));
    let status = log.status();
    assert_eq!((status.written, status.dropped), (0, 3));
}

#[test]
fn more_than_may_wait_is_dropped_and_shows_as_one_gap() {
    let directory = Directory::new();
    std::fs::write(directory.log(), "a file is in the way").unwrap();
    let log = EventLog::open(directory.settings()).unwrap();
    let mut count = 1;
    wait_until("events are dropped", || {
        for _ in 0..5_000 {
            log.append(event("flood"));
        }
        count += 5_000;
        log.status().dropped > 0
    });
    std::fs::remove_file(directory.log()).unwrap();
    settled(&log, count);
    append_more(&log, "after", count);
    let lines = read(&log, None);
    let gaps: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "gap").collect();
    let missing: u64 = gaps
        .iter()
        .map(|gap| gap["first"].as_u64().unwrap() - gap["from"].as_u64().unwrap())
        .sum();
    let status = log.status();
    assert!(gaps.iter().all(|gap| gap["reason"] == "lost"), "{gaps:?}");
    assert_eq!((missing, lines.len() as u64 - gaps.len() as u64), (status.dropped, status.written));
    assert_eq!(names(&lines).first().unwrap(), "started");
}

#[test]
fn a_second_process_does_not_write_the_same_directory() {
    let directory = Directory::new();
    let first = EventLog::open(directory.settings()).unwrap();
    append(&first, &["a"]);
    let second = EventLog::open(directory.settings()).unwrap();
    second.append(event("b"));
    assert!(second.status().error.unwrap().contains("in use by another process"));
    assert_eq!(names(&read(&first, None)), ["started", "a"]);
}

/// What the child of the next test does: append until it is killed, and say what was written.
fn append_for_ever(directory: &str) -> ! {
    let log = EventLog::open(shunt_admin::LogSettings::new(directory.into())).unwrap();
    loop {
        log.append(event("mid-append"));
        println!("written {}", log.status().written);
    }
}

#[test]
fn a_killed_process_leaves_a_log_that_is_whole() {
    if let Ok(directory) = std::env::var("SHUNT_TEST_CHILD") {
        append_for_ever(&directory);
    }
    let directory = Directory::new();
    let mut said = 0;
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_leaves_a_log_that_is_whole", "--nocapture"])
            .env("SHUNT_TEST_CHILD", directory.log())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut of_child = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            if let Some(count) = line.strip_prefix("written ").and_then(|count| count.parse::<u64>().ok()) {
                of_child = count;
            }
            if of_child > 500 * round {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        said += of_child;
    }
    let log = EventLog::open(directory.settings()).unwrap();
    settled(&log, 1);
    let lines = read(&log, None);
    let (gaps, events): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["kind"] == "gap");
    assert!(gaps.iter().all(|gap| gap["reason"] == "lost"), "{gaps:?}");
    // Every event that the child saw written is there, and each restart says that the one before did not end as it should.
    assert!(events.len() as u64 > said, "{} events, and {said} were written", events.len());
    let starts: Vec<&&Value> = events.iter().filter(|event| event["facts"]["what"] == "started").collect();
    assert_eq!(
        starts.iter().map(|start| start["facts"]["clean"].as_bool()).collect::<Vec<_>>(),
        [None, Some(false), Some(false), Some(false)]
    );
}
