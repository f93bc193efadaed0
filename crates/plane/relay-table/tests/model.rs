//! The table on the kernel's maps against a plain map: any order of operations, adoption at any point. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_abi::relay::{detail, layout, layout_mark, slot, wide};
use shunt_net::{Endpoint, FiveTuple};
use shunt_relay_table::{Clock, Cursor, Fault, Hops, MediaRange, Moves, RelayEntry, RelayTable, chunk_count};
use shunt_xdp::{Load, Loaded, Shared};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

const CLOCK: Clock = Clock { tick: 1000, tick_ms: 4.0 };

/// A row for each pair of addresses, with its references.
#[derive(Default)]
struct Rows {
    held: BTreeMap<(IpAddr, IpAddr), (u16, u32)>,
    next: u16,
}

impl Hops for Rows {
    fn acquire(&mut self, dst: IpAddr, src: IpAddr) -> Option<u16> {
        let next = &mut self.next;
        let held = self.held.entry((dst, src)).or_insert_with(|| {
            *next += 1;
            (*next, 0)
        });
        held.1 += 1;
        Some(held.0)
    }

    fn release(&mut self, dst: IpAddr, src: IpAddr) {
        let held = self.held.get_mut(&(dst, src)).expect("a reference that was taken");
        held.1 -= 1;
        if held.1 == 0 {
            self.held.remove(&(dst, src));
        }
    }

    fn adopt(&mut self, dst: IpAddr, src: IpAddr, users: u32, row: u16, taken: &BTreeSet<u16>) -> u16 {
        assert!(taken.contains(&row));
        self.next = self.next.max(row);
        let held = self.held.entry((dst, src)).or_insert((row, 0));
        held.1 += users;
        held.0
    }
}

fn load(capacity: usize) -> Loaded {
    let chunks = chunk_count(capacity);
    let slots = chunks * 256;
    let sizes = BTreeMap::from([
        (".data.slots", slots * size_of::<slot>()),
        ("details", slots * size_of::<detail>() / size_of::<detail>()),
        ("wides", slots * size_of::<wide>() / size_of::<wide>()),
        ("overflow", capacity),
    ]);
    let loaded = Load {
        name: "relay",
        object: shunt_abi::RELAY_OBJECT,
        sizes,
        without: &[],
        ..Load::default()
    }
    .load()
    .unwrap();
    let mark = Shared::<layout_mark>::map(loaded.map("layout").unwrap(), 1).unwrap();
    mark.store(
        0,
        &layout_mark {
            magic: layout::LAYOUT_MAGIC.0,
            version: layout::LAYOUT_VERSION.0,
            capacity: capacity as u32,
            chunks: chunks as u32,
        },
    );
    loaded
}

fn table(loaded: &Loaded) -> RelayTable {
    RelayTable::new(loaded).unwrap()
}

fn empty(table: &mut RelayTable, hops: &mut Rows) {
    for v6 in [false, true] {
        let mut cursor = Cursor::default();
        while !table.clear(hops, &mut cursor, v6, |_| {}, || true).unwrap() {}
    }
    let ranges: Vec<MediaRange> = table.media().iter().copied().collect();
    for range in ranges {
        assert!(table.remove_media(range));
    }
}

fn all(table: &RelayTable) -> BTreeMap<FiveTuple, RelayEntry> {
    let mut found = BTreeMap::new();
    for v6 in [false, true] {
        let mut cursor = Cursor::default();
        // One entry a step: a scan that is broken off goes on where it was.
        while !table
            .scan(&mut cursor, v6, CLOCK, |entry, _| {
                assert!(found.insert(entry.key, *entry).is_none(), "an entry comes once");
                ControlFlow::Break(())
            })
            .unwrap()
        {}
    }
    found
}

#[derive(Clone, Debug)]
enum Step {
    Insert(RelayEntry),
    Modify(RelayEntry),
    Delete(FiveTuple),
    Save(FiveTuple),
    Adopt,
    Clear(bool),
    Media(MediaRange),
}

fn addr(v6: bool) -> impl Strategy<Value = IpAddr> {
    // Addresses that end alike share a shortcut.
    (0u8..3, 0u8..3).prop_map(move |(high, low)| {
        if v6 {
            Ipv6Addr::new(0xfd00, 0, 0, u16::from(high), 0, 0, 0, u16::from(low)).into()
        } else {
            Ipv4Addr::new(10, high, 7, low).into()
        }
    })
}

fn end(v6: bool) -> impl Strategy<Value = Endpoint> {
    (
        addr(v6),
        prop_oneof![Just(20000u16), Just(20001), Just(20255), Just(20480), Just(65535)],
    )
        .prop_map(|(addr, port)| Endpoint { addr, port })
}

fn key() -> impl Strategy<Value = FiveTuple> {
    any::<bool>().prop_flat_map(|v6| (end(v6), end(v6)).prop_map(|(src, dst)| FiveTuple { src, dst }))
}

fn entry() -> impl Strategy<Value = RelayEntry> {
    (key(), any::<bool>(), 0u32..3, proptest::option::of(0u8..64)).prop_flat_map(|(key, out6, ttl_ms, dscp)| {
        (end(out6), end(out6)).prop_map(move |(src, dst)| RelayEntry {
            key,
            src,
            dst,
            ttl_ms,
            dscp,
        })
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => entry().prop_map(Step::Insert),
        4 => entry().prop_map(Step::Modify),
        6 => key().prop_map(Step::Delete),
        2 => key().prop_map(Step::Save),
        1 => Just(Step::Adopt),
        1 => any::<bool>().prop_map(Step::Clear),
        1 => (any::<bool>().prop_flat_map(addr), 0u16..9).prop_map(|(addr, at)| Step::Media(MediaRange { addr, first: 20000, last: 20000 + at })),
    ]
}

fn check(table: &RelayTable, hops: &Rows, model: &BTreeMap<FiveTuple, RelayEntry>) {
    assert_eq!(&all(table), model);
    assert_eq!(table.len(), model.len());
    assert_eq!(table.count(true), model.keys().filter(|key| key.is_v6()).count());
    let mut users: BTreeMap<(IpAddr, IpAddr), u32> = BTreeMap::new();
    for entry in model.values() {
        *users.entry((entry.dst.addr, entry.src.addr)).or_default() += 1;
    }
    let held: BTreeMap<(IpAddr, IpAddr), u32> = hops.held.iter().map(|(names, (_, users))| (*names, *users)).collect();
    assert_eq!(held, users, "each entry holds one reference to its next hop");
}

#[test]
fn the_table_is_a_map_whatever_happens_to_it() {
    let capacity = 40;
    let loaded = load(capacity);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&proptest::collection::vec(step(), 1..120), |steps| {
        let mut table = table(&loaded);
        let mut hops = Rows::default();
        let mut model: BTreeMap<FiveTuple, RelayEntry> = BTreeMap::new();
        let mut media = BTreeSet::new();
        for step in steps {
            match step {
                Step::Insert(entry) => {
                    let expected = if model.contains_key(&entry.key) {
                        Err(Fault::Exists)
                    } else if model.len() == capacity {
                        Err(Fault::Full)
                    } else {
                        model.insert(entry.key, entry);
                        Ok(())
                    };
                    assert_eq!(table.insert(&mut hops, &entry, 1000), expected);
                }
                Step::Modify(entry) => {
                    let expected = if let Some(held) = model.get_mut(&entry.key) {
                        *held = entry;
                        Ok(())
                    } else {
                        Err(Fault::Absent)
                    };
                    assert_eq!(table.modify(&mut hops, &entry), expected);
                }
                Step::Delete(key) => assert_eq!(table.delete(&mut hops, &key), Ok(model.remove(&key).is_some())),
                Step::Save(key) => {
                    if let Some(saved) = table.save(&key).unwrap() {
                        assert!(table.delete(&mut hops, &key).unwrap());
                        table.restore(&mut hops, &saved).unwrap();
                    }
                }
                Step::Adopt => {
                    drop(table);
                    table = RelayTable::new(&loaded).unwrap();
                    hops = Rows::default();
                    let taken = table.rows().unwrap();
                    table.adopt(&mut hops, &taken).unwrap();
                    assert_eq!(table.media(), &media);
                }
                Step::Clear(v6) => {
                    let mut cursor = Cursor::default();
                    while !table.clear(&mut hops, &mut cursor, v6, |_| {}, || false).unwrap() {}
                    model.retain(|key, _| key.is_v6() != v6);
                }
                Step::Media(range) => {
                    let expected = if media.insert(range) { Ok(()) } else { Err(Fault::Exists) };
                    assert_eq!(table.add_media(range), expected);
                }
            }
        }
        check(&table, &hops, &model);
        for (key, entry) in &model {
            assert_eq!(table.get(key).unwrap(), Some(*entry));
            assert_eq!(table.stats(key, CLOCK).unwrap().map(|(entry, _)| entry), Some(*entry));
        }
        empty(&mut table, &mut hops);
        assert!(table.is_empty() && hops.held.is_empty());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn entries_of_one_port_cost_no_more_to_keep_than_others() {
    let loaded = load(20_000);
    let mut table = table(&loaded);
    let mut hops = Rows::default();
    let relay = Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), 20000);
    let made = |n: u32| RelayEntry {
        key: FiveTuple::new(Endpoint::new(Ipv4Addr::from(0x0b00_0000 + n), 4000), relay),
        src: relay,
        dst: Endpoint::new(Ipv4Addr::new(10, 0, 0, 2), 6000),
        ttl_ms: 5000,
        dscp: None,
    };
    for n in 0..20_000 {
        table.insert(&mut hops, &made(n), 1).unwrap();
    }
    assert_eq!(table.insert(&mut hops, &made(20_000), 1), Err(Fault::Full));
    let mut again = RelayTable::new(&loaded).unwrap();
    let mut adopted = Rows::default();
    let taken = again.rows().unwrap();
    again.adopt(&mut adopted, &taken).unwrap();
    assert_eq!((again.len(), taken.len(), adopted.held.len()), (20_000, 1, 1));
    let mut idle = 0;
    let clock = Clock { tick: 5000, tick_ms: 4.0 };
    while !again
        .expired(&mut Cursor::default(), false, clock, |found| {
            idle += usize::from(found.is_some());
            ControlFlow::Continue(())
        })
        .unwrap()
    {}
    assert_eq!(idle, 20_000);
    let mut moves = Moves::new(HashMap::from([(
        (Ipv4Addr::new(10, 0, 0, 2).into(), Ipv4Addr::new(10, 0, 0, 1).into()),
        77,
    )]));
    while !again.follow(&mut moves, || false).unwrap() {}
    assert_eq!(again.rows().unwrap(), BTreeSet::from([77]));
    empty(&mut again, &mut adopted);
    assert!(again.is_empty());
}
