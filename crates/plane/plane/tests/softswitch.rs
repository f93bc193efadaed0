//! The plane against the real softswitch, which needs root and its built binary (`SHUNT_SOFTSWITCH`, or target/release/shunt-softswitch).
//! Run with `cargo test -p shunt-plane --test softswitch -- --ignored`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Lab, RELAY, entry, target};
use shunt_calls::{MediaRange, Operation, Outcome, RelayEntry, WriteId};
use shunt_latch::Found;
use shunt_net::Endpoint;
use shunt_plane::{Change, Event, Plane, Row, Settings, TableWrite, Value};
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon without interfaces, in a folder of its own.
struct Softswitch {
    binary: String,
    folder: PathBuf,
    child: Child,
}

impl Softswitch {
    fn start(name: &str, capacity: u32) -> Self {
        let binary = std::env::var("SHUNT_SOFTSWITCH")
            .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/release/shunt-softswitch").into());
        assert!(std::path::Path::new(&binary).exists(), "{binary} is not built: make daemons");
        let folder = std::env::temp_dir().join(format!("plane-{}-{name}", std::process::id()));
        std::fs::create_dir_all(folder.join("pins")).unwrap();
        let settings = serde_json::json!({"softswitch": {
            "interfaces": [], "listen": [format!("unix:{}/bfrt.sock", folder.display())], "capacity": capacity, "mode": "auto", "tls": null,
            "packet_limit": 0, "conference_copies": 100, "pin_dir": folder.join("pins"), "source_mismatch": "drop",
            "owners": ["unix"], "socket_group": "root", "request_limit": 32 << 20,
        }});
        let file = folder.join("softswitch.json");
        std::fs::write(&file, settings.to_string()).unwrap();
        let mut command = Command::new(&binary);
        command.arg("-c").arg(file).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the softswitch starts");
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(
            said.into_iter().any(|line| line.starts_with("READY")),
            "the softswitch did not become ready: is this root?"
        );
        Self { binary, folder, child }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(target(format!("unix:{}/bfrt.sock", self.folder.display())));
        settings.media = vec![MediaRange {
            addr: RELAY.into(),
            first_port: 10_000,
            last_port: 59_999,
        }];
        settings
    }
}

impl Drop for Softswitch {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = Command::new(&self.binary).arg("--unload").arg(self.folder.join("pins")).status();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn rows(plane: &Plane, table: &str, count: usize) -> Vec<Row> {
    let began = Instant::now();
    loop {
        let found = plane.read(table).await.unwrap();
        if found.len() == count || began.elapsed() > common::LONG {
            assert_eq!(found.len(), count, "{table}: {found:?}");
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn numbered(operations: impl IntoIterator<Item = Operation>) -> Vec<(WriteId, Operation)> {
    let operations = operations.into_iter().enumerate();
    operations.map(|(at, operation)| (WriteId::new(at as u64), operation)).collect()
}

impl Lab {
    /// Write, and wait for all results.
    async fn write(&mut self, operations: Vec<Operation>) -> Vec<shunt_plane::Written> {
        let count = operations.len();
        self.plane.write(numbered(operations));
        let mut found = Vec::new();
        while found.len() < count {
            found.extend(
                self.until(|event| if let Event::Written(more) = event { Some(more) } else { None })
                    .await,
            );
        }
        found
    }
}

#[tokio::test]
#[ignore = "needs root and the built softswitch"]
async fn entries_filters_blocks_and_rows_reach_the_softswitch() {
    let softswitch = Softswitch::start("all", 2_000);
    let mut lab = Lab::start(softswitch.settings());
    let facts = lab.up().await;
    assert!(facts.filters_sources && facts.knows_idle_times && !facts.stores_hashes);
    assert_eq!((facts.capacity, facts.filter_addresses), (2_000, 4));
    assert_eq!(facts.name, "softswitch (no interface)");
    assert!(facts.lacks.is_empty(), "{:?}", facts.lacks);
    rows(&lab.plane, "softswitch.greylist", 1).await;

    let entries: Vec<RelayEntry> = (0..500).map(|number| entry(number + 1, 10_000 + 2 * number, 2)).collect();
    let written = lab.write(entries.iter().copied().map(Operation::Insert).collect()).await;
    assert!(written.iter().all(|written| written.outcome == Outcome::Done));
    assert_eq!(lab.plane.totals().await.unwrap()["entries"], 500);
    lab.plane.audit();
    let mut found = lab
        .until(|event| {
            if let Event::Table { entries, .. } = event {
                (!entries.is_empty()).then_some(entries)
            } else {
                None
            }
        })
        .await;
    found.sort_unstable_by_key(RelayEntry::key);
    assert_eq!(found, entries);
    assert_eq!(lab.plane.counters(&[entries[0].key()]).await.unwrap().len(), 1);
    lab.plane.read_idle(vec![entries[0].key(), entry(9, 9, 9).key()]);
    let idle = lab
        .until(|event| if let Event::IdleTimes(idle) = event { Some(idle) } else { None })
        .await;
    assert_eq!(idle.iter().map(|idle| idle.idle.is_some()).collect::<Vec<_>>(), [true, false]);
    let written = lab
        .write(entries.iter().map(|entry| Operation::Delete(entry.key())).collect())
        .await;
    assert!(
        written
            .iter()
            .all(|written| written.outcome == Outcome::Done && written.counters.is_some_and(|counters| counters.packets == 0))
    );

    let (party, port) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 7)), Endpoint::new(RELAY, 20_000));
    lab.plane.filter(port, Some([].into()));
    lab.plane.filter(port, Some([party].into()));
    lab.plane.filter(Endpoint::new(RELAY, 20_002), Some([party].into()));
    let filters = rows(&lab.plane, "softswitch.source_filter", 2).await;
    assert!(
        filters
            .iter()
            .all(|row| row.number("allowed0") == Some(0x0a00_0007) && row.number("allowed1") == Some(0)),
        "{filters:?}"
    );
    rows(&lab.plane, "softswitch.allowlist", 1).await;
    lab.plane.filter(Endpoint::new(RELAY, 20_002), None);
    rows(&lab.plane, "softswitch.source_filter", 1).await;
    lab.plane.block(Found::Address(Ipv4Addr::new(192, 0, 2, 1).into()));
    lab.plane.block(Found::Source(Endpoint::new(Ipv4Addr::new(192, 0, 2, 2), 9)));
    rows(&lab.plane, "softswitch.blocklist", 2).await;
    lab.plane.allow(vec![Ipv4Addr::new(192, 0, 2, 1).into()]);
    rows(&lab.plane, "softswitch.blocklist", 1).await;

    let node = TableWrite {
        table: "$pre.node".into(),
        change: Change::Insert,
        key: vec![("$MULTICAST_NODE_ID".into(), Value::Number(5))],
        action: None,
        data: vec![
            ("$MULTICAST_RID".into(), Value::Number(9)),
            ("$DEV_PORT".into(), Value::Numbers(vec![1])),
        ],
    };
    assert_eq!(lab.plane.rows(std::slice::from_ref(&node)).await.unwrap(), [Ok(())]);
    assert_eq!(
        lab.plane.rows(&[node]).await.unwrap()[0].as_ref().unwrap_err().code,
        6,
        "it is there"
    );
    assert_eq!(rows(&lab.plane, "$pre.node", 1).await[0].number("$MULTICAST_RID"), Some(9));
    let trace = lab.plane.trace(entries[0].key()).await.unwrap();
    assert!(!trace.verdict.is_empty(), "{trace:?}");
}

#[tokio::test]
#[ignore = "needs root and the built softswitch"]
async fn of_a_large_batch_that_fails_each_result_is_known() {
    let softswitch = Softswitch::start("failed", 2_000);
    let mut lab = Lab::start(softswitch.settings());
    lab.up().await;
    let node = |number: u16| TableWrite {
        table: "$pre.node".into(),
        change: Change::Delete,
        key: vec![("$MULTICAST_NODE_ID".into(), Value::Number(number.into()))],
        action: None,
        data: vec![],
    };
    let answers = lab.plane.rows(&(1..=1_000).map(node).collect::<Vec<_>>()).await.unwrap();
    let codes: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_err(|error| error.code)).collect();
    assert_eq!(codes, [Err(5); 1_000], "not one is there");
}

#[tokio::test]
#[ignore = "needs root and the built softswitch"]
async fn a_new_session_has_the_filters_in_force_and_no_others() {
    let softswitch = Softswitch::start("again", 2_000);
    let mut lab = Lab::start(softswitch.settings());
    lab.up().await;
    let wanted = Endpoint::new(RELAY, 20_000);
    lab.plane.filter(wanted, Some([].into()));
    rows(&lab.plane, "softswitch.source_filter", 1).await;
    drop(lab);
    // The next agent wants another one.
    let mut lab = Lab::start(softswitch.settings());
    lab.plane
        .filter(Endpoint::new(RELAY, 20_004), Some([Ipv4Addr::LOCALHOST.into()].into()));
    lab.up().await;
    let found = rows(&lab.plane, "softswitch.source_filter", 1).await;
    assert_eq!(found[0].number("hdr.udp.dst_port"), Some(20_004));
}

/// Prints figures; `--nocapture` shows them.
#[tokio::test]
#[ignore = "a measurement: needs root, the built softswitch and an idle machine"]
async fn how_long_writes_take() {
    let softswitch = Softswitch::start("speed", 200_000);
    let mut lab = Lab::start(softswitch.settings());
    lab.up().await;
    let mut times = Vec::new();
    for number in 0..500 {
        let entry = entry(number + 1, 10_000 + 2 * number, 2);
        lab.write(vec![Operation::Insert(entry)]).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let began = Instant::now();
        lab.write(vec![Operation::Delete(entry.key())]).await;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!("a delete alone: p50 {:?} p99 {:?}", times[250], times[495]);
    let (before, began, calls) = (cpu_time(), Instant::now(), 20_000_u32);
    for round in 1..=calls / 1000 {
        let entries: Vec<RelayEntry> = (0..4000).map(|number| entry(number + 1, 10_000 + number, round as u16)).collect();
        lab.write(entries.iter().copied().map(Operation::Insert).collect()).await;
        lab.write(entries.iter().map(|entry| Operation::Delete(entry.key())).collect())
            .await;
    }
    let (cpu, elapsed) = ((cpu_time() - before) / calls, began.elapsed() / calls);
    println!("the four entries of a call written and deleted, in large batches: {cpu:?} CPU, {elapsed:?}");
    for rate in [300, 1500] {
        at_a_rate(&mut lab, rate, 3).await;
    }
}

/// Calls at a rate: two entries, two entries, all four deleted; with the wait of each delete.
async fn at_a_rate(lab: &mut Lab, rate: u32, seconds: u32) {
    let (before, batches, calls) = (cpu_time(), lab.plane.statistics().batches, rate * seconds);
    let began = Instant::now();
    let (mut asked, mut waits, mut left) = (std::collections::HashMap::new(), Vec::new(), 8 * calls);
    let mut next = 0;
    while left > 0 {
        let due = began + Duration::from_secs(1) * next / (3 * rate);
        tokio::select! {
            event = lab.event() => {
                let Event::Written(results) = event else { continue };
                left -= results.len() as u32;
                waits.extend(results.iter().filter_map(|written| asked.remove(&written.id)).map(|at: Instant| at.elapsed()));
            }
            () = tokio::time::sleep_until(due.into()), if next < 3 * calls => {
                let (call, part) = (next / 3, next % 3);
                let entries: Vec<RelayEntry> = (0..4).map(|number| entry(1 + call as u16, 10_000 + (4 * call % 40_000) as u16 + number, 9)).collect();
                let operations: Vec<Operation> = match part {
                    0 | 1 => entries[2 * part as usize..][..2].iter().copied().map(Operation::Insert).collect(),
                    _ => entries.iter().map(|entry| Operation::Delete(entry.key())).collect(),
                };
                let ids = (0..).map(|at| WriteId::new(u64::from(8 * next + at)));
                let writes: Vec<_> = ids.zip(operations).collect();
                if part == 2 {
                    asked.insert(writes[0].0, Instant::now());
                }
                lab.plane.write(writes);
                next += 1;
            }
        }
    }
    waits.sort_unstable();
    let (cpu, batches) = ((cpu_time() - before) / calls, lab.plane.statistics().batches - batches);
    println!(
        "{rate} calls/s: {cpu:?} CPU a call, {} batches/s; a delete's wait p50 {:?} p99 {:?}",
        batches / u64::from(seconds),
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100]
    );
}

/// Of this process.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    let main: u64 = text.split(' ').next().unwrap().parse().unwrap();
    let others = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(others.sum::<u64>().max(main))
}
