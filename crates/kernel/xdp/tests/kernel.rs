//! The relay's object on the running kernel: loading, sizes, constants, shared memory, hash maps, test runs. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use shunt_abi::relay;
use shunt_xdp::{Constant, Hash, Load, Loaded, Put, Scan, Shared, test_run};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

const SLOTS: usize = 1024;

fn load() -> Loaded {
    let last = u32::try_from((SLOTS - 1) * size_of::<relay::slot>()).unwrap();
    let constants = [Constant {
        offset: offset_of!(relay::rodata, last_slot),
        bytes: last.to_le_bytes().to_vec(),
    }];
    let sizes = BTreeMap::from([
        (".data.slots", SLOTS * size_of::<relay::slot>()),
        ("details", SLOTS),
        ("wides", SLOTS),
        ("overflow", 2),
    ]);
    Load {
        name: "relay",
        object: shunt_abi::RELAY_OBJECT,
        sizes,
        constants: &constants,
        ..Load::default()
    }
    .load()
    .unwrap()
}

#[test]
fn slots_have_the_size_asked_for_and_are_shared_memory() {
    let loaded = load();
    let slots = Shared::<relay::slot>::map(loaded.map(".data.slots").unwrap(), SLOTS).unwrap();
    let again = Shared::<relay::slot>::map(loaded.map(".data.slots").unwrap(), SLOTS).unwrap();
    let entry = relay::slot {
        nexthop: 7,
        saddr: 0x0101_0101,
        sport: 9,
        last_jiffies: 3,
        rtp_state: 1,
        ..Default::default()
    };
    slots.retire(SLOTS - 1);
    slots.store_range(SLOTS - 1, &entry, 4..size_of::<relay::slot>());
    assert_eq!(again.generation(SLOTS - 1), 0);
    slots.publish(SLOTS - 1);
    assert_eq!(again.generation(SLOTS - 1), 1);
    let read = again.load(SLOTS - 1);
    assert_eq!(
        (read.nexthop, read.saddr, read.sport, read.last_jiffies, read.rtp_state),
        (7, 0x0101_0101, 9, 3, 1)
    );
    slots.retire(SLOTS - 1);
    assert_eq!(again.generation(SLOTS - 1), 2);
    slots
        .u16_at(SLOTS - 1, offset_of!(relay::slot, nexthop))
        .store(9, Ordering::Relaxed);
    assert_eq!(again.load(SLOTS - 1).nexthop, 9);
}

#[test]
fn a_full_hash_map_says_so_and_elements_come_back() {
    let loaded = load();
    let overflow = Hash::<relay::flow_key, relay::overflow_entry>::new(loaded.map("overflow").unwrap()).unwrap();
    let key = |port| relay::flow_key {
        sport: port,
        ..Default::default()
    };
    let value = relay::overflow_entry::default();
    assert_eq!(overflow.put(&key(1), &value).unwrap(), Put::Done);
    assert_eq!(overflow.put(&key(2), &value).unwrap(), Put::Done);
    assert_eq!(overflow.put(&key(3), &value).unwrap(), Put::Full);
    assert!(overflow.get(&key(2)).unwrap().is_some());
    assert!(overflow.get(&key(3)).unwrap().is_none());
    let mut ports: Vec<u16> = overflow.elements().unwrap().iter().map(|(key, _)| key.sport).collect();
    ports.sort_unstable();
    assert_eq!(ports, [1, 2]);
    assert!(overflow.delete(&key(1)).unwrap());
    assert!(!overflow.delete(&key(1)).unwrap());
}

#[test]
fn an_element_is_inserted_once_and_many_are_deleted_at_once() {
    let loaded = load();
    let overflow = Hash::<relay::flow_key, relay::overflow_entry>::new(loaded.map("overflow").unwrap()).unwrap();
    let key = |port| relay::flow_key {
        sport: port,
        ..Default::default()
    };
    let value = relay::overflow_entry::default();
    assert_eq!(overflow.insert(&key(1), &value).unwrap(), Some(Put::Done));
    assert_eq!(overflow.insert(&key(1), &value).unwrap(), None);
    assert_eq!(overflow.insert(&key(2), &value).unwrap(), Some(Put::Done));
    let absent = [key(7), key(1), key(8), key(9), key(2), key(10)];
    overflow.delete_all(&absent).unwrap();
    assert!(overflow.elements().unwrap().is_empty());
}

#[test]
fn a_scan_in_batches_finds_every_element_once() {
    let loaded = load();
    let overflow = Hash::<relay::flow_key, relay::overflow_entry>::new(loaded.map("overflow").unwrap()).unwrap();
    let key = |port| relay::flow_key {
        sport: port,
        ..Default::default()
    };
    for port in [1, 2] {
        overflow.put(&key(port), &relay::overflow_entry::default()).unwrap();
    }
    let (mut scan, mut ports) = (Scan::default(), Vec::new());
    while let Some(batch) = overflow.batch(&mut scan, 1).unwrap() {
        ports.extend(batch.iter().map(|(key, _)| key.sport));
    }
    ports.sort_unstable();
    assert_eq!(ports, [1, 2]);
    assert!(overflow.batch(&mut scan, 1).unwrap().is_none());
}

#[test]
fn the_tick_program_runs_and_an_unknown_packet_passes() {
    let loaded = load();
    let tick = test_run(loaded.program("tick").unwrap(), &[0; 14], None, 1).unwrap().verdict;
    let later = test_run(loaded.program("tick").unwrap(), &[0; 14], None, 1).unwrap().verdict;
    assert!(later.wrapping_sub(tick) < 100_000);
    let run = test_run(loaded.program("relay_native").unwrap(), &[0; 60], None, 1).unwrap();
    assert_eq!((run.verdict, run.packet.len()), (2, 60));
}

#[test]
fn a_section_of_another_size_is_used_again_without_harm_to_its_neighbours() {
    let first = load();
    let slots = first.map(".data.slots").unwrap();
    let reuse = BTreeMap::from([(".data.slots".to_owned(), slots)]);
    for _ in 0..8 {
        let again = Load {
            name: "relay",
            object: shunt_abi::RELAY_OBJECT,
            reuse: reuse.clone(),
            ..Load::default()
        }
        .load()
        .unwrap();
        let shared = Shared::<relay::slot>::map(again.map(".data.slots").unwrap(), SLOTS).unwrap();
        let own = Shared::<relay::slot>::map(slots, SLOTS).unwrap();
        own.u32_at(SLOTS - 1, 0).store(77, Ordering::Relaxed);
        assert_eq!(shared.generation(SLOTS - 1), 77);
    }
}
