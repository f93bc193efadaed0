//! Rows and folders for the tests of the journal.
#![allow(dead_code, reason = "each test binary uses some")]

use shunt_calls::{Row, RowKey, Text};
use shunt_journal::{Event, Journal, Reader};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

/// A folder that is gone after the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shunt-journal-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// Files that were moved aside.
    pub fn aside(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut aside: Vec<PathBuf> = entries
            .filter(|path| path.extension().is_some_and(|end| end.to_string_lossy().starts_with("damaged-")))
            .filter(|path| !path.to_string_lossy().ends_with("-wal") && !path.to_string_lossy().ends_with("-shm"))
            .collect();
        aside.sort();
        aside
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A row of this call; `port` is that of the caller, `version` something that changes.
pub fn row(call: &str, media: Option<u32>, port: u16, version: u64) -> Row {
    let leg =
        |port: u16| serde_json::json!({"signalled": null, "relay": format!("192.0.2.1:{port}"), "modifiers": "Uc8,0,101", "names": []});
    serde_json::from_value(serde_json::json!({
        "format": 3,
        "key": {"call_id": call, "tag": "tag", "media": media},
        "relay": "local",
        "created_ms": version,
        "strong": true,
        "caller": leg(port),
        "callee": leg(port.wrapping_add(2)),
    }))
    .unwrap()
}

pub fn key(call: &str, media: Option<u32>) -> RowKey {
    RowKey {
        call_id: Text(call.into()),
        tag: Text(b"tag".to_vec()),
        media,
    }
}

/// The journal with what is found in it.
pub async fn open(path: &Path) -> (Journal, Reader, UnboundedReceiver<Event>) {
    let (journal, mut events) = Journal::start(path.into()).unwrap();
    let event = timeout(Duration::from_secs(10), events.recv()).await;
    let Ok(Some(Event::Opened(reader))) = event else {
        panic!("{event:?}: {:?}", journal.status())
    };
    (journal, reader, events)
}

pub async fn all(reader: &Reader) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(piece) = reader.piece().await {
        rows.extend(piece);
        assert!(rows.len() < 100_000, "the rows have no end");
    }
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows
}

/// All rows of a file, which is closed again.
pub async fn read(path: &Path) -> Vec<Row> {
    let (journal, reader, _events) = open(path).await;
    let rows = all(&reader).await;
    journal.close().await;
    rows
}

/// Waits for a status.
pub async fn until(journal: &Journal, wanted: impl Fn(&shunt_journal::Status) -> bool) {
    for _ in 0..1000 {
        if wanted(&journal.status()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", journal.status());
}
