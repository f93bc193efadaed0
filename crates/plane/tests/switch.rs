//! The plane against a double of bf_switchd: outcomes, faults, notices, hash collisions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::switch::{Faults, Switch};
use common::{Lab, RELAY, entry, target};
use shunt_bfrt::pb::{self, stream_message_response::Update};
use shunt_bfrt::values::{exact, stream};
use shunt_calls::{MediaRange, Operation, Outcome, RelayEntry, WriteId};
use shunt_net::{Endpoint, FiveTuple};
use shunt_plane::{Event, Settings, StoredHash, Written};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const PROGRAM: &[u8] = include_bytes!("../../../p4/generated/relay-counted.tofino1.bf-rt.json");
const HASH32: &[u8] = include_bytes!("../../../p4/generated/hash32.tofino1.context.json");

fn media() -> Vec<MediaRange> {
    vec![MediaRange {
        addr: RELAY.into(),
        first_port: 10_000,
        last_port: 19_999,
    }]
}

fn settings(switch: &Switch) -> Settings {
    let mut settings = Settings::new(target(format!("unix:{}", switch.path.display())));
    settings.media = media();
    settings.stored_hash = StoredHash::None;
    settings
}

async fn lab(name: &str) -> (Switch, Lab) {
    let switch = Switch::start(name, PROGRAM, br#"{"tables": []}"#, b"");
    let mut lab = Lab::start(settings(&switch));
    lab.up().await;
    (switch, lab)
}

impl Lab {
    fn ask(&self, first: u64, operations: &[Operation]) {
        let numbered = operations.iter().enumerate();
        self.plane.write(
            numbered
                .map(|(at, operation)| (WriteId::new(first + at as u64), *operation))
                .collect(),
        );
    }

    /// The results of so many writes, in the order of their ids.
    async fn results(&mut self, count: usize) -> Vec<Written> {
        let mut found = Vec::new();
        while found.len() < count {
            let more = self.until(|event| if let Event::Written(more) = event { Some(more) } else { None });
            found.extend(more.await);
        }
        found.sort_by_key(|written| written.id);
        found
    }

    async fn outcomes(&mut self, operations: &[Operation]) -> Vec<Outcome> {
        self.ask(1, operations);
        self.results(operations.len())
            .await
            .into_iter()
            .map(|written| written.outcome)
            .collect()
    }
}

fn keys(switch: &Switch) -> BTreeSet<u16> {
    let rows = switch.rows("relay");
    rows.into_iter()
        .map(|(key, _)| u16::from_be_bytes([key[2][0], key[2][1]]))
        .collect()
}

#[tokio::test]
async fn it_sets_media_ranges_and_idle_notices_and_says_what_is_lacking() {
    let switch = Switch::start("up", PROGRAM, br#"{"tables": []}"#, b"");
    let mut lab = Lab::start(settings(&switch));
    let facts = lab.up().await;
    assert_eq!(facts.capacity, 8192);
    assert!(!facts.filters_sources && !facts.stores_hashes && facts.reports_idle);
    assert!(
        facts.lacks.iter().any(|lack| lack.contains("no softswitch.quality")),
        "{:?}",
        facts.lacks
    );
    assert_eq!(switch.rows("media").len(), 1);
    let state_attributes = switch.state().attributes.clone();
    assert_eq!(state_attributes.len(), 2);
    // The next session finds the range, and the same bits of the client id.
    switch.stop(true);
    switch.serve();
    lab.until(|event| matches!(event, Event::Down(_)).then_some(())).await;
    lab.up().await;
    assert_eq!(switch.rows("media").len(), 1);
    assert_eq!(switch.state().bound, [0x00ab_cdef; 2]);
}

#[tokio::test]
async fn a_target_without_a_relay_table_is_refused_with_the_reason() {
    let switch = Switch::start("none", br#"{"tables": []}"#, br#"{"tables": []}"#, b"");
    let mut lab = Lab::start(settings(&switch));
    let reason = lab
        .until(|event| if let Event::Down(reason) = event { Some(reason) } else { None })
        .await;
    assert!(reason.contains("no relay table"), "{reason}");
    assert!(lab.plane.totals().await.unwrap_err().to_string().contains("no relay table"));
}

#[tokio::test]
async fn answers_become_outcomes() {
    let (switch, mut lab) = lab("outcomes").await;
    let (first, second) = (entry(1, 10_000, 2), entry(2, 10_002, 2));
    let other = RelayEntry::new(first.key(), first.new_source(), second.new_destination()).unwrap();
    assert_eq!(
        lab.outcomes(&[Operation::Insert(first), Operation::Insert(second)]).await,
        [Outcome::Done; 2]
    );
    // Already there, with the same rewrite or another one; gone; never there.
    assert_eq!(lab.outcomes(&[Operation::Insert(first)]).await, [Outcome::Done]);
    assert_eq!(lab.outcomes(&[Operation::Insert(other)]).await, [Outcome::Done]);
    assert_eq!(lab.outcomes(&[Operation::Delete(second.key())]).await, [Outcome::Done]);
    assert_eq!(
        lab.outcomes(&[Operation::Delete(second.key()), Operation::Modify(second)]).await,
        [Outcome::Done; 2]
    );
    assert_eq!(keys(&switch), BTreeSet::from([1, 2]));
    assert_eq!(lab.plane.totals().await.unwrap()["entries"], 2);
    switch.state().faults = Faults {
        room: Some(2),
        not_ready: 3,
        ..Faults::default()
    };
    assert_eq!(lab.outcomes(&[Operation::Insert(entry(3, 10_004, 2))]).await, [Outcome::TableFull]);
    assert_eq!(switch.state().faults.not_ready, 0, "written again until it was ready");
}

#[tokio::test]
async fn writes_to_one_port_keep_their_order_and_deletes_bring_final_counters() {
    let (switch, mut lab) = lab("order").await;
    let entries: Vec<RelayEntry> = (1..6).map(|source| entry(source, 10_000, 2)).collect();
    let operations: Vec<Operation> = entries
        .iter()
        .flat_map(|entry| [Operation::Insert(*entry), Operation::Delete(entry.key())])
        .collect();
    lab.ask(1, &operations);
    lab.ask(100, &[Operation::Insert(entries[0])]);
    let results = lab.results(11).await;
    assert!(results.iter().all(|written| written.outcome == Outcome::Done), "{results:?}");
    let counted: Vec<_> = results
        .iter()
        .filter_map(|written| written.counters)
        .map(|counters| counters.packets)
        .collect();
    assert_eq!(counted, [7; 5]);
    assert_eq!(keys(&switch), BTreeSet::from([1]));
}

#[tokio::test]
async fn a_server_that_answers_nothing_ends_as_unavailable_and_is_found_again() {
    let (switch, mut lab) = lab("mute").await;
    switch.state().faults.mute = true;
    let began = Instant::now();
    lab.ask(1, &[Operation::Insert(entry(1, 10_000, 2))]);
    let results = lab.results(1).await;
    assert_eq!(results[0].outcome, Outcome::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(30), "bounded");
    lab.until(|event| matches!(event, Event::Down(_)).then_some(())).await;
    assert_eq!(
        lab.outcomes(&[Operation::Insert(entry(2, 10_002, 2))]).await,
        [Outcome::Unavailable],
        "at once"
    );
    switch.state().faults.mute = false;
    lab.up().await;
    // What was written without an answer shows in the table that is read after each connect.
    let entries = lab
        .until(|event| {
            if let Event::Table { entries, .. } = event {
                Some(entries)
            } else {
                None
            }
        })
        .await;
    assert_eq!(entries, [entry(1, 10_000, 2)]);
}

#[tokio::test]
async fn a_restart_in_mid_batch_leaves_no_write_without_a_result() {
    let (switch, mut lab) = lab("restart").await;
    let entries: Vec<RelayEntry> = (0..2000).map(|number| entry(number + 1, 10_000 + number, 2)).collect();
    let operations: Vec<Operation> = entries.iter().copied().map(Operation::Insert).collect();
    lab.ask(1, &operations);
    tokio::time::sleep(Duration::from_millis(8)).await;
    switch.stop(false);
    switch.serve();
    let results = lab.results(2000).await;
    assert!(
        results
            .iter()
            .all(|written| matches!(written.outcome, Outcome::Done | Outcome::Unavailable))
    );
    lab.plane.audit();
    assert_eq!(lab.outcomes(&[Operation::Delete(entries[0].key())]).await.len(), 1);
}

#[tokio::test]
async fn the_table_names_the_ports_that_changed_while_it_was_read() {
    let (switch, mut lab) = lab("audit").await;
    let table = |event| {
        if let Event::Table { entries, changed } = event {
            Some((entries, changed))
        } else {
            None
        }
    };
    lab.until(table).await;
    let outside = RelayEntry::new(
        FiveTuple::new(Endpoint::new(Ipv4Addr::LOCALHOST, 1), Endpoint::new(RELAY, 9_000)),
        Endpoint::new(RELAY, 9_002),
        Endpoint::new(RELAY, 5),
    )
    .unwrap();
    assert_eq!(
        lab.outcomes(&[Operation::Insert(entry(1, 10_000, 2)), Operation::Insert(outside)])
            .await,
        [Outcome::Done; 2]
    );
    switch.state().faults.slow_read = Duration::from_millis(300);
    lab.plane.audit();
    tokio::time::sleep(Duration::from_millis(50)).await;
    lab.ask(1, &[Operation::Insert(entry(2, 10_002, 2))]);
    let (entries, changed) = lab.until(table).await;
    assert!(
        changed.contains(&Endpoint::new(RELAY, 10_002)) && !changed.contains(&Endpoint::new(RELAY, 10_000)),
        "{changed:?}"
    );
    assert!(entries.contains(&entry(1, 10_000, 2)));
    assert!(!entries.contains(&outside), "another agent's");
}

#[tokio::test]
async fn a_write_does_not_wait_for_a_large_read() {
    let (switch, mut lab) = lab("lock").await;
    lab.until(|event| matches!(event, Event::Table { .. }).then_some(())).await;
    switch.state().faults.slow_read = Duration::from_secs(5);
    let reads = switch.state().reads;
    lab.plane.audit();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    assert_eq!(lab.outcomes(&[Operation::Insert(entry(1, 10_000, 2))]).await, [Outcome::Done]);
    assert!(began.elapsed() < Duration::from_secs(4), "the session's lock is the other client's");
    assert_eq!(switch.state().reads, reads, "the read goes on");
}

#[tokio::test]
async fn notices_come_to_the_client_that_is_bound() {
    let (switch, mut lab) = lab("notices").await;
    let learn = switch.schema.learn("learn").unwrap();
    let field = |name: &str, value: &[u8]| stream(learn.fields.find(name).unwrap().id, value);
    let fields = vec![
        field("src_addr", &[10, 0, 0, 1]),
        field("dst_addr", &RELAY.octets()),
        field("src_port", &5_u16.to_be_bytes()),
        field("dst_port", &10_000_u16.to_be_bytes()),
        field("rtp_version", &[2]),
        field("payload_type", &[8]),
        field("seq", &[0, 9]),
        field("ssrc", &[0, 0, 0, 1]),
    ];
    let digest = pb::DigestList {
        digest_id: learn.id,
        data: vec![pb::TableData { action_id: 0, fields }],
        ..Default::default()
    };
    assert!(switch.notify(Update::Digest(digest)), "the cookie names a client");
    let notices = lab
        .until(|event| if let Event::Notices(notices) = event { Some(notices) } else { None })
        .await;
    let key = FiveTuple::new(Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), 5), Endpoint::new(RELAY, 10_000));
    assert_eq!(
        (notices[0].key, notices[0].payload_type, notices[0].media.unwrap().sequence),
        (key, Some(8), 9)
    );
    let relay = switch.table("relay");
    let id = |name: &str| relay.key.find(name).unwrap().id;
    let fields = vec![
        exact(id("src_addr"), [10, 0, 0, 1]),
        exact(id("dst_addr"), RELAY.octets()),
        exact(id("src_port"), 5_u16.to_be_bytes()),
        exact(id("dst_port"), 10_000_u16.to_be_bytes()),
    ];
    for kind in [1, 0] {
        let entry = pb::TableEntry {
            table_id: relay.id,
            value: Some(pb::table_entry::Value::Key(pb::TableKey { fields: fields.clone() })),
            ..Default::default()
        };
        let notice = pb::IdleTimeoutNotification {
            table_entry: Some(entry),
            r#type: kind,
            ..Default::default()
        };
        assert!(switch.notify(Update::IdleTimeoutNotification(notice)));
    }
    assert_eq!(
        lab.until(|event| if let Event::Idle(key) = event { Some(key) } else { None }).await,
        key
    );
    assert_eq!(lab.event().await, Event::Active(key));
}

#[tokio::test]
async fn what_the_target_cannot_do_is_rejected_and_says_why() {
    let (_switch, mut lab) = lab("reject").await;
    // A table of IPv6 whose entry leaves as IPv4 by way of an address that is not its own exists; a relay table of no such action does not.
    let program = String::from_utf8(PROGRAM.to_vec()).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&program).unwrap();
    let tables = document["tables"].as_array_mut().unwrap();
    tables.retain(|table| table["name"] == "pipe.Ingress.relay");
    tables[0]["action_specs"]
        .as_array_mut()
        .unwrap()
        .retain(|action| action["name"] == "Ingress.relay_to");
    let switch = Switch::start("small", document.to_string().as_bytes(), br#"{"tables": []}"#, b"");
    let mut small = Lab::start(settings(&switch));
    let facts = small.up().await;
    assert!(
        facts.lacks.iter().any(|lack| lack.contains("no action with a source address")),
        "{:?}",
        facts.lacks
    );
    let plain = entry(1, 10_000, 2);
    let bridged = RelayEntry::new(plain.key(), Endpoint::new(Ipv4Addr::new(198, 18, 0, 2), 7), plain.new_destination()).unwrap();
    small.ask(1, &[Operation::Insert(plain)]);
    assert_eq!(small.results(1).await[0].outcome, Outcome::Done);
    small.ask(1, &[Operation::Modify(bridged)]);
    let written = small.results(1).await.remove(0);
    assert_eq!(written.outcome, Outcome::Rejected);
    assert!(written.detail.unwrap().contains("no action that sends"));
    assert_eq!(
        lab.outcomes(&[Operation::Insert(bridged)]).await,
        [Outcome::Done],
        "the whole program has one"
    );
}

#[tokio::test]
async fn in_a_hashed_build_two_streams_of_one_hash_have_no_entry() {
    let switch = Switch::start("hashed", PROGRAM, br#"{"tables": []}"#, HASH32);
    let mut settings = settings(&switch);
    settings.stored_hash = StoredHash::Auto;
    settings.media.clear();
    let mut lab = Lab::start(settings);
    let facts = lab.up().await;
    assert!(facts.stores_hashes && facts.name.contains("32-bit"), "{}", facts.name);
    // CRC-32 is linear: flipping the bits of its polynomial, shifted to the source address, changes nothing of the hash.
    let (first, second) = colliding();
    assert_eq!(lab.outcomes(&[Operation::Insert(first)]).await, [Outcome::Done]);
    lab.ask(1, &[Operation::Insert(second)]);
    let mut holder = None;
    let outcome = lab
        .until(|event| match event {
            Event::Collision { key, holder: other } => {
                assert_eq!(key, second.key());
                holder = Some(other);
                None
            }
            Event::Written(written) => Some(written[0].outcome),
            _ => None,
        })
        .await;
    assert_eq!((outcome, holder), (Outcome::HashCollision, Some(first.key())));
    assert_eq!(lab.outcomes(&[Operation::Delete(first.key())]).await, [Outcome::Done]);
    assert_eq!(
        lab.outcomes(&[Operation::Insert(first)]).await,
        [Outcome::HashCollision],
        "both are in use"
    );
    lab.plane.expect(vec![second.key()]);
    assert_eq!(lab.plane.statistics().collisions, 2);
}

/// Two entries whose 5-tuples have one CRC-32: a multiple of the generator polynomial is added to the key.
fn colliding() -> (RelayEntry, RelayEntry) {
    let first = entry(1, 10_000, 2);
    let (src, dst) = (first.key().src, first.key().dst);
    // 33 bits, reflected, from the first bit of the source address on: bit 0 first, as CRC-32 takes each byte.
    let polynomial: u64 = 0x1_db71_0641;
    let mut bits = [0_u8; 12];
    for place in 0..33 {
        if polynomial >> place & 1 == 1 {
            bits[place / 8] ^= 1 << (place % 8);
        }
    }
    let address = |old: std::net::IpAddr, flip: &[u8]| {
        let std::net::IpAddr::V4(old) = old else { panic!("IPv4") };
        let new: Vec<u8> = old.octets().iter().zip(flip).map(|(old, flip)| old ^ flip).collect();
        Ipv4Addr::new(new[0], new[1], new[2], new[3])
    };
    let key = FiveTuple::new(
        Endpoint::new(address(src.addr, &bits[..4]), src.port),
        Endpoint::new(address(dst.addr, &bits[4..8]), dst.port),
    );
    let second = RelayEntry::new(key, Endpoint::new(key.dst.addr, 7), first.new_destination()).unwrap();
    (first, second)
}
