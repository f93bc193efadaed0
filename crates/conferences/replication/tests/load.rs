//! Loading on what a former process has pinned. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::lab::Namespace;
use common::model::{Model, key};
use common::{Pins, load, load_relay};
use shunt_abi::replicate::conference_mark;
use shunt_replication::{Action, MAPS, Replication, unpin};
use shunt_xdp::{Directory, Loaded, Shared};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// What is logged meanwhile.
fn logged<T>(what: impl FnOnce() -> T) -> (T, String) {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let done = tracing::subscriber::with_default(subscriber, what);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    (done, text)
}

fn one_stream(loaded: &Loaded) {
    let mut table = Replication::new(loaded).unwrap();
    table.insert_tree(3, &[]).unwrap();
    table.insert_stream(key(1), Action::default(), 0).unwrap();
}

fn tables(loaded: &Loaded) -> Model {
    let mut table = Replication::new(loaded).unwrap();
    let mut hops = common::Table::new(&load_relay());
    let rows = table.rows();
    table.adopt(&mut hops, &rows).unwrap();
    Model::of(&table)
}

#[test]
fn maps_are_adopted_or_make_room() {
    Namespace::new().enter();
    let pins = Pins::new();
    let directory = Directory::open(&pins.0).unwrap();
    let relay = load_relay();
    let (loaded, text) = logged(|| load(&directory, 64, &relay));
    assert_eq!(text, "");
    assert!(MAPS.iter().all(|name| directory.has(name)));
    one_stream(&loaded);
    drop(loaded);

    // Other room takes effect once they are unloaded.
    let (loaded, text) = logged(|| load(&directory, 10, &relay));
    assert!(
        text.contains("have room for 64 rewrites; 10 takes effect after they are unloaded"),
        "{text}"
    );
    assert_eq!(tables(&loaded).streams.len(), 1);
    assert_eq!(Replication::new(&loaded).unwrap().capacity(), 64);

    // Another layout, of a version with one map fewer.
    let mark = Shared::<conference_mark>::map(loaded.map("c_layout").unwrap(), 1).unwrap();
    let mut other = mark.load(0);
    other.version += 1;
    mark.store(0, &other);
    directory.remove(MAPS[MAPS.len() - 1]);
    drop(loaded);
    let (loaded, text) = logged(|| load(&directory, 64, &relay));
    let words = format!(
        "have layout {}, this program has {}: they are removed",
        other.version,
        other.version - 1
    );
    assert!(text.contains(&words), "{text}");
    assert_eq!(tables(&loaded), Model::default());
    one_stream(&loaded);
    drop(loaded);

    // A process that was killed while it pinned them: the mark is missing.
    directory.remove(MAPS[0]);
    let (loaded, text) = logged(|| load(&directory, 64, &relay));
    assert_eq!(text, "");
    assert_eq!(tables(&loaded), Model::default());
    unpin(&directory);
    assert_eq!(directory.names(), [""; 0]);
}
