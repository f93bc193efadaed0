//! Sessions with a double of bf_switchd: what is set in them, audits, notices, the lock of a client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::double::{PROGRAM, lab, media, settings};
use common::switch::Switch;
use common::{Lab, RELAY, entry};
use shunt_bfrt::pb::{self, stream_message_response::Update};
use shunt_bfrt::values::{exact, stream};
use shunt_calls::{Operation, Outcome, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use shunt_plane::Event;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

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
async fn the_table_names_the_ports_that_changed_while_it_was_read() {
    let (switch, mut lab) = lab("audit").await;
    let table = |event| {
        if let Event::Table { entries, changed, .. } = event {
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
async fn a_former_media_range_stays_the_agents_until_its_last_entry_is_gone() {
    let (switch, mut lab) = lab("former").await;
    let old = entry(1, 10_000, 2);
    assert_eq!(lab.outcomes(&[Operation::Insert(old)]).await, [Outcome::Done]);
    drop(lab);
    let mut moved = settings(&switch);
    moved.media[0].first_port = 20_000;
    moved.media[0].last_port = 29_999;
    // Also after a second restart.
    for _ in 0..2 {
        let mut lab = Lab::start(moved.clone());
        lab.up().await;
        let table = lab.until(|event| {
            if let Event::Table { entries, .. } = event {
                Some(entries)
            } else {
                None
            }
        });
        assert_eq!(table.await, [old]);
        assert_eq!(switch.rows("media").len(), 2);
    }
    moved.former_after = Duration::from_millis(100);
    let mut lab = Lab::start(moved);
    lab.up().await;
    assert_eq!(lab.outcomes(&[Operation::Delete(old.key())]).await, [Outcome::Done]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while switch.rows("media").len() > 1 {
        assert!(Instant::now() < deadline, "the former range stays");
        lab.plane.audit();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(switch.rows("media")[0].0[1][..2], 20_000_u16.to_be_bytes());
    // A call there that was held until now is offloaded again.
    assert_eq!(lab.outcomes(&[Operation::Insert(old)]).await, [Outcome::Done]);
    lab.plane.audit();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut found = false;
    while !found {
        assert!(Instant::now() < deadline, "no audit shows the entry");
        let table = lab.until(|event| {
            if let Event::Table { entries, .. } = event {
                Some(entries)
            } else {
                None
            }
        });
        found = table.await == [old];
        lab.plane.audit();
    }
}

#[tokio::test]
async fn the_table_names_the_ports_whose_entries_have_another_dscp() {
    let (switch, mut lab) = lab("marks").await;
    let written = entry(1, 10_000, 2);
    assert_eq!(lab.outcomes(&[Operation::Insert(written)]).await, [Outcome::Done]);
    drop(lab);
    let mut marking = settings(&switch);
    marking.marks = media().into_iter().map(|range| (range, 184)).collect();
    // A restart with another mark finds the entry marked otherwise until it is written again; so does one without a mark.
    for settings in [marking, settings(&switch)] {
        let mut lab = Lab::start(settings);
        lab.up().await;
        let mut found = Vec::new();
        for again in [false, true] {
            if again {
                assert_eq!(lab.outcomes(&[Operation::Modify(written)]).await, [Outcome::Done]);
                lab.plane.audit();
            }
            let table = lab.until(|event| match event {
                Event::Table {
                    entries, marked_otherwise, ..
                } => Some((entries, marked_otherwise)),
                _ => None,
            });
            let (entries, marked_otherwise) = table.await;
            assert_eq!(entries, [written]);
            found.push(marked_otherwise.contains(&written.port()));
        }
        assert_eq!(found, [true, false]);
    }
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

/// 200,000 entries at 50 µs each take 10 s, which is more than the agent's patience with a target that answers nothing. Here all is faster.
#[tokio::test]
async fn a_large_table_that_is_read_slowly_ends_no_session() {
    let switch = Switch::start("slow", PROGRAM, br#"{"tables": []}"#, b"");
    let mut settings = settings(&switch);
    settings.target.patience = Duration::from_secs(1);
    let mut lab = Lab::start(settings);
    lab.until(|event| matches!(event, Event::Table { .. }).then_some(())).await;
    let inserts: Vec<Operation> = (0..3_000).map(|at| Operation::Insert(entry(1, 10_000 + at, 2))).collect();
    assert_eq!(lab.outcomes(&inserts).await, [Outcome::Done; 3_000]);
    switch.state().faults.slow_entry = Duration::from_millis(1);
    lab.plane.audit();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // After that time without any answer, a question that is given up soon: an entry's final counters.
    switch.state().faults.slow_read = Duration::from_millis(200);
    lab.ask(1, &[Operation::Delete(entry(1, 10_000, 2).key())]);
    switch.state().faults.slow_read = Duration::ZERO;
    let mut deleted = false;
    let found = lab
        .until(|event| match event {
            Event::Down(reason) => panic!("the session ended: {reason}"),
            Event::Written(_) => {
                deleted = true;
                None
            }
            Event::Table { entries, .. } => Some(entries.len()),
            _ => None,
        })
        .await;
    assert!(deleted && found >= 2_999, "{deleted}, {found} entries");
    assert_eq!(switch.state().bound.len(), 1);
}

#[tokio::test]
async fn a_switch_that_answers_nothing_during_a_large_read_is_given_up() {
    let switch = Switch::start("stuck", PROGRAM, br#"{"tables": []}"#, b"");
    let mut settings = settings(&switch);
    settings.target.patience = Duration::from_secs(1);
    let mut lab = Lab::start(settings);
    lab.until(|event| matches!(event, Event::Table { .. }).then_some(())).await;
    switch.state().faults.dead = true;
    lab.plane.audit();
    let reason = lab
        .until(|event| if let Event::Down(reason) = event { Some(reason) } else { None })
        .await;
    assert!(reason.contains("answered nothing"), "{reason}");
}

#[tokio::test]
async fn a_switch_says_which_entries_are_idle() {
    let (switch, mut lab) = lab("idle").await;
    let (silent, active, missing) = (entry(1, 10_000, 2), entry(2, 10_002, 2), entry(3, 10_004, 2));
    assert_eq!(
        lab.outcomes(&[Operation::Insert(silent), Operation::Insert(active)]).await,
        [Outcome::Done; 2]
    );
    let relay = switch.table("relay");
    let ttl = relay.data.find("$ENTRY_TTL").unwrap().id;
    // What is left of the time-out.
    for (key, data) in switch.state().tables.get_mut(&relay.id).unwrap() {
        let left = if key[2].1 == [0, 1] { 0_u32 } else { 12_000 };
        for field in data.fields.iter_mut().filter(|field| field.field_id == ttl) {
            *field = stream(ttl, left.to_be_bytes());
        }
    }
    lab.plane.read_idle(vec![silent.key(), active.key(), missing.key()]);
    let read = lab
        .until(|event| if let Event::IdleTimes(read) = event { Some(read) } else { None })
        .await;
    let times: Vec<_> = read.iter().map(|idle| idle.idle).collect();
    assert_eq!(times, [Some(Duration::from_secs(30)), Some(Duration::ZERO), None]);
    // From then on the time counts.
    tokio::time::sleep(Duration::from_millis(200)).await;
    lab.plane.read_idle(vec![silent.key()]);
    let read = lab
        .until(|event| if let Event::IdleTimes(read) = event { Some(read) } else { None })
        .await;
    assert!(read[0].idle.unwrap() >= Duration::from_millis(30_200), "{read:?}");
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
