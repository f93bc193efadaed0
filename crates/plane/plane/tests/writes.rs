//! Writes to a double of bf_switchd: outcomes, order, faults, hash collisions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::double::{HASH32, PROGRAM, keys, lab, settings};
use common::switch::{Faults, Switch};
use common::{Lab, entry};
use shunt_calls::{Operation, Outcome, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use shunt_plane::{Event, StoredHash};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

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
