//! Damaged files, disks without room, and a writer that is killed: the journal opens, or says why not, and nobody waits for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use proptest::prelude::*;
use rusqlite::Connection;
use shunt_journal::{Event, Journal};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A closed journal of so many rows.
async fn written(path: &Path, rows: u16) {
    let (journal, ..) = open(path).await;
    for number in 0..rows {
        journal.put(&row(&format!("call-{number:05}"), None, 10_000 + 4 * number, number.into()));
    }
    until(&journal, |status| status.pending == 0).await;
    journal.close().await;
}

/// It takes rows, and has them when it is opened again.
async fn serves(path: &Path) {
    let (journal, reader, _events) = open(path).await;
    while reader.piece().await.is_some() {}
    journal.put(&row("new", None, 9_000, 1));
    until(&journal, |status| status.pending == 0 && status.error.is_none()).await;
    journal.close().await;
    assert!(read(path).await.contains(&row("new", None, 9_000, 1)));
}

#[tokio::test]
async fn what_is_no_journal_is_moved_aside_each_time_to_another_name() {
    let folder = Folder::new("no-journal");
    for number in 1..=3 {
        fs::write(folder.journal(), [number; 5000]).unwrap();
        serves(&folder.journal()).await;
        assert_eq!(folder.aside().len(), usize::from(number));
    }
    let contents: Vec<u8> = folder.aside().iter().map(|path| fs::read(path).unwrap()[0]).collect();
    assert_eq!(contents, [1, 2, 3]);
    fs::remove_file(folder.journal()).unwrap();
    fs::create_dir(folder.journal()).unwrap();
    serves(&folder.journal()).await;
    assert!(folder.aside().last().unwrap().is_dir());
}

#[tokio::test]
async fn a_database_of_another_program_or_version_is_moved_aside() {
    let folder = Folder::new("version");
    let other = Connection::open(folder.journal()).unwrap();
    other.execute_batch("CREATE TABLE call (call_id TEXT, body TEXT)").unwrap();
    drop(other);
    serves(&folder.journal()).await;
    let newer = Connection::open(folder.journal()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    serves(&folder.journal()).await;
    assert_eq!(folder.aside().len(), 2);
}

#[tokio::test]
async fn bad_rows_are_kept_apart_and_the_others_restored() {
    let folder = Folder::new("bad-rows");
    written(&folder.journal(), 10).await;
    let database = Connection::open(folder.journal()).unwrap();
    for (number, body) in [(2, "no JSON"), (5, "{}"), (7, "{\"format\": 2}")] {
        let call = format!("call-{number:05}");
        let changed = database.execute("UPDATE lines SET row = ?1 WHERE call_id = CAST(?2 AS BLOB)", [body, &call]);
        assert_eq!(changed.unwrap(), 1);
    }
    let other = "UPDATE lines SET row = (SELECT row FROM lines WHERE call_id = CAST('call-00008' AS BLOB)) \
        WHERE call_id = CAST('call-00009' AS BLOB)";
    assert_eq!(database.execute(other, []).unwrap(), 1);
    drop(database);
    assert_eq!(read(&folder.journal()).await.len(), 6);
    let database = Connection::open(folder.journal()).unwrap();
    let bad: i64 = database
        .query_row("SELECT count(*) FROM bad_rows WHERE reason != ''", [], |row| row.get(0))
        .unwrap();
    let left: i64 = database.query_row("SELECT count(*) FROM lines", [], |row| row.get(0)).unwrap();
    assert_eq!((bad, left), (4, 6));
    assert!(folder.aside().is_empty());
}

#[tokio::test]
async fn a_damaged_page_costs_the_rows_that_it_holds() {
    let folder = Folder::new("page");
    written(&folder.journal(), 2000).await;
    let mut bytes = fs::read(folder.journal()).unwrap();
    // The rows are somewhere in the middle; a page of theirs is overwritten.
    let page = bytes
        .chunks(4096)
        // Pages of the indexes have the name too, but not the row.
        .position(|page| page.windows(22).any(|part| part == br#""call_id":"call-01000""#))
        .unwrap();
    bytes[page * 4096..(page + 1) * 4096].fill(0xA5);
    fs::write(folder.journal(), &bytes).unwrap();
    let (journal, reader, mut events) = open(&folder.journal()).await;
    let rows = all(&reader).await;
    assert!(rows.len() > 1900 && rows.len() < 2000, "{}", rows.len());
    let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await;
    assert!(matches!(event, Ok(Some(Event::Emptied))), "{event:?}");
    assert_eq!(folder.aside().len(), 1, "{:?}", folder.aside());
    rows.iter().for_each(|row| journal.put(row));
    until(&journal, |status| status.pending == 0).await;
    journal.close().await;
    assert_eq!(read(&folder.journal()).await, rows);
}

#[tokio::test]
async fn a_file_that_loses_its_pages_while_it_is_open_is_replaced() {
    let folder = Folder::new("lost-pages");
    written(&folder.journal(), 500).await;
    let (journal, reader, mut events) = open(&folder.journal()).await;
    let size = fs::metadata(folder.journal()).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(folder.journal()).unwrap();
    file.set_len(size / 3).unwrap();
    let mut replaced = false;
    for number in 0..1000_u16 {
        journal.put(&row(&format!("more-{number}"), None, number, 0));
        journal.kept().await;
        if matches!(events.try_recv(), Ok(Event::Emptied)) {
            replaced = true;
            break;
        }
    }
    assert!(replaced && folder.aside().len() == 1);
    while reader.piece().await.is_some() {}
    until(&journal, |status| status.error.is_none() && status.pending == 0).await;
    journal.close().await;
}

#[tokio::test]
async fn a_place_that_cannot_be_opened_is_tried_again_and_is_no_damage() {
    let folder = Folder::new("no-place");
    let path = folder.0.join("a/b/journal");
    let (journal, mut events) = Journal::start(path.clone()).unwrap();
    until(&journal, |status| status.error.is_some()).await;
    journal.put(&row("a", None, 10_000, 1));
    assert!(!journal.kept().await);
    assert_eq!(journal.status().pending, 1);
    fs::create_dir(folder.0.join("a")).unwrap();
    assert!(matches!(events.recv().await, Some(Event::Opened(_))));
    until(&journal, |status| status.error.is_none() && status.pending == 0).await;
    journal.close().await;
    assert_eq!(read(&path).await.len(), 1);
}

/// SQLite fills a last page that is there in part with zeros: rows of it have the id 0, below those that were read.
#[tokio::test]
async fn a_journal_cut_off_within_its_last_page_has_an_end() {
    let folder = Folder::new("within");
    written(&folder.journal(), 100).await;
    let whole = fs::read(folder.journal()).unwrap();
    for missing in (1..4096).step_by(61) {
        let folder = Folder::new("within-cut");
        fs::write(folder.journal(), &whole[..whole.len() - missing]).unwrap();
        let (journal, reader, _events) = open(&folder.journal()).await;
        assert!(all(&reader).await.len() <= 100, "{missing} bytes are missing");
        journal.close().await;
    }
}

#[test]
fn a_journal_cut_off_at_any_byte_opens_and_has_only_rows_that_were_written() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = Folder::new("cut");
    runtime.block_on(written(&folder.journal(), 100));
    let whole = fs::read(folder.journal()).unwrap();
    let lengths = prop_oneof![Just(0), 1..200_usize, 0..whole.len()];
    proptest!(ProptestConfig::with_cases(60), |(length in lengths)| {
        let folder = Folder::new("cut-off");
        fs::write(folder.journal(), &whole[..length]).unwrap();
        runtime.block_on(async {
            let (journal, reader, _events) = open(&folder.journal()).await;
            for row in all(&reader).await {
                let number: u16 = String::from_utf8_lossy(&row.key.call_id.0)[5..].parse().unwrap();
                assert_eq!(row, common::row(&format!("call-{number:05}"), None, 10_000 + 4 * number, number.into()));
            }
            journal.close().await;
            serves(&folder.journal()).await;
        });
    });
}

/// Not a test by itself: the process that is killed. It says of each row that it is kept.
#[tokio::test]
#[ignore = "a_killed_writer_loses_nothing_that_was_kept runs it"]
async fn writes_until_it_is_killed() {
    let path = std::env::var("SHUNT_JOURNAL").unwrap();
    let (journal, ..) = open(Path::new(&path)).await;
    for number in 0..u64::MAX {
        journal.put(&row(&(number % 500).to_string(), None, 10_000, number));
        if journal.kept().await {
            fs::write(format!("{path}.new"), number.to_string()).unwrap();
            fs::rename(format!("{path}.new"), format!("{path}.kept")).unwrap();
        }
    }
}

#[tokio::test]
async fn a_killed_writer_loses_nothing_that_was_kept() {
    let folder = Folder::new("killed");
    for round in 1..=5 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--ignored"])
            .env("SHUNT_JOURNAL", folder.journal())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let kept = || -> u64 {
            let text = fs::read_to_string(folder.0.join("journal.kept")).unwrap_or_default();
            text.parse().unwrap_or_default()
        };
        // It is killed in the midst of its work, each time somewhere else.
        while kept() <= 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(37 * round)).await;
        writer.kill().unwrap();
        writer.wait().unwrap();
        let kept = kept();
        let rows = read(&folder.journal()).await;
        let newest = rows.iter().map(|row| row.created_ms).max().unwrap();
        assert!(newest >= kept, "{newest}, {kept} was kept");
        assert!(folder.aside().is_empty());
        fs::remove_file(folder.0.join("journal.kept")).unwrap();
    }
}

/// A small file system in memory, gone after the test.
struct SmallDisk(Folder);

impl SmallDisk {
    /// `None` where this user cannot mount.
    fn new(test: &str) -> Option<Self> {
        let folder = Folder::new(test);
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"])
            .arg(&folder.0)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }

    fn fill(&self) {
        let _ = fs::write(self.0.0.join("filler"), vec![0; 1 << 20]);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_holds_nobody_up_and_gets_all_when_it_has_room() {
    let Some(disk) = SmallDisk::new("full") else { return };
    let path = disk.0.journal();
    let (journal, ..) = open(&path).await;
    disk.fill();
    for number in 0..200 {
        let begin = Instant::now();
        journal.put(&row(&number.to_string(), None, 10_000, number));
        journal.kept().await;
        assert!(begin.elapsed() < Duration::from_millis(300));
    }
    until(&journal, |status| status.error.is_some()).await;
    assert!(journal.status().pending > 0 && journal.status().failures > 0);
    fs::remove_file(disk.0.0.join("filler")).unwrap();
    until(&journal, |status| status.error.is_none() && status.pending == 0).await;
    journal.close().await;
    assert_eq!(read(&path).await.len(), 200);
}

#[tokio::test]
async fn a_full_disk_at_the_start_is_no_damage() {
    let Some(disk) = SmallDisk::new("full-start") else { return };
    disk.fill();
    let (journal, _events) = Journal::start(disk.0.journal()).unwrap();
    until(&journal, |status| status.error.is_some()).await;
    fs::remove_file(disk.0.0.join("filler")).unwrap();
    until(&journal, |status| status.error.is_none()).await;
    journal.close().await;
    assert!(disk.0.aside().is_empty());
}

#[tokio::test]
async fn a_read_only_disk_is_no_damage() {
    let Some(disk) = SmallDisk::new("read-only") else { return };
    written(&disk.0.journal(), 5).await;
    let remount = |how: &str| {
        Command::new("mount")
            .args(["-o", &format!("remount,{how}")])
            .arg(&disk.0.0)
            .status()
            .unwrap()
    };
    assert!(remount("ro").success());
    let (journal, _events) = Journal::start(disk.0.journal()).unwrap();
    until(&journal, |status| status.error.is_some()).await;
    assert!(remount("rw").success());
    until(&journal, |status| status.error.is_none()).await;
    journal.close().await;
    assert_eq!(read(&disk.0.journal()).await.len(), 5);
    assert!(disk.0.aside().is_empty());
}

#[tokio::test]
async fn a_file_that_may_not_be_read_is_moved_aside() {
    let folder = Folder::new("permissions");
    fs::write(folder.journal(), "").unwrap();
    fs::set_permissions(folder.journal(), Permissions::from_mode(0o000)).unwrap();
    // Root may read it all the same.
    let readable = fs::File::open(folder.journal()).is_ok();
    serves(&folder.journal()).await;
    assert_eq!(folder.aside().len(), usize::from(!readable));
}
