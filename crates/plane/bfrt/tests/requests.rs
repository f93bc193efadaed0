//! Requests as any client may send them: no bytes panic, and what the undecoded members hold is what decoding the whole message says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use shunt_bfrt::envelope::{ReadRequest, WriteRequest};
use shunt_bfrt::pb::{self, data_field, entity, key_field, table_entry};
use shunt_bfrt::schema::Schema;
use shunt_bfrt::values::{Data, Key};
use std::sync::LazyLock;

/// `WriteRequest` as bfruntime.proto has it, with its members decoded.
#[derive(Clone, PartialEq, prost::Message)]
struct WholeWrite {
    #[prost(message, optional, tag = "1")]
    target: Option<pb::TargetDevice>,
    #[prost(uint32, tag = "2")]
    client_id: u32,
    #[prost(message, repeated, tag = "3")]
    updates: Vec<pb::Update>,
    #[prost(int32, tag = "4")]
    atomicity: i32,
    #[prost(string, tag = "5")]
    p4_name: String,
}

/// `ReadRequest`, likewise.
#[derive(Clone, PartialEq, prost::Message)]
struct WholeRead {
    #[prost(message, optional, tag = "1")]
    target: Option<pb::TargetDevice>,
    #[prost(uint32, tag = "2")]
    client_id: u32,
    #[prost(message, repeated, tag = "3")]
    entities: Vec<pb::Entity>,
    #[prost(string, tag = "4")]
    p4_name: String,
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    Schema::parse(&[
        include_str!("../../../../softswitch/schema/relay.json"),
        include_str!("../../../../softswitch/schema/conference.json"),
        include_str!("../../../../softswitch/schema/fixed.json"),
    ])
    .unwrap()
});

fn members<M: Message + Default>(encoded: &[Bytes]) -> Option<Vec<M>> {
    encoded.iter().map(|bytes| M::decode(bytes.clone()).ok()).collect()
}

/// A WriteRequest, by way of its envelope.
fn by_envelope(bytes: &[u8]) -> Option<WholeWrite> {
    let read = WriteRequest::decode(bytes).ok()?;
    Some(WholeWrite {
        updates: members(&read.updates)?,
        target: read.target,
        client_id: read.client_id,
        atomicity: read.atomicity,
        p4_name: read.p4_name,
    })
}

fn read_by_envelope(bytes: &[u8]) -> Option<WholeRead> {
    let read = ReadRequest::decode(bytes).ok()?;
    Some(WholeRead {
        entities: members(&read.entities)?,
        target: read.target,
        client_id: read.client_id,
        p4_name: read.p4_name,
    })
}

/// Look at everything that an entry says, against the schema of every table with its id, and of some table.
fn look_at(entry: &pb::TableEntry) {
    let own = SCHEMA.table_by_id(entry.table_id);
    for table in own.into_iter().chain(SCHEMA.table("relay")).chain(SCHEMA.table("$pre.mgid")) {
        if let Some(table_entry::Value::Key(key)) = &entry.value
            && let Ok(key) = Key::decode(table, key)
        {
            for place in 0..=table.key.len() {
                let _ = (key.exact(place), key.range(place), key.number(place));
            }
        }
        if let Ok(data) = Data::decode(table, entry.data.as_ref()) {
            for (id, _) in &data.fields {
                assert!(data.has(*id));
                let _ = (data.bytes(*id), data.number(*id));
            }
        }
    }
}

fn look_at_entity(entity: &pb::Entity) {
    if let Some(entity::Entity::TableEntry(entry)) = &entity.entity {
        look_at(entry);
    }
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0..12u32, 65536..65560u32, any::<u32>()]
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn key_field() -> impl Strategy<Value = pb::KeyField> {
    let kind = prop_oneof![
        4 => value().prop_map(|value| key_field::MatchType::Exact(key_field::Exact { value })),
        1 => (value(), value()).prop_map(|(low, high)| key_field::MatchType::Range(key_field::Range { low, high })),
        1 => (value(), value()).prop_map(|(value, mask)| key_field::MatchType::Ternary(key_field::Ternary { value, mask })),
    ];
    (id(), prop::option::of(kind)).prop_map(|(field_id, match_type)| pb::KeyField { field_id, match_type })
}

fn data_field() -> impl Strategy<Value = pb::DataField> {
    let kind = prop_oneof![
        4 => value().prop_map(data_field::Value::Stream),
        1 => any::<String>().prop_map(data_field::Value::StrVal),
        1 => any::<bool>().prop_map(data_field::Value::BoolVal),
        1 => prop::collection::vec(any::<u32>(), 0..4).prop_map(|val| data_field::Value::IntArrVal(data_field::IntArray { val })),
        1 => prop::collection::vec(any::<bool>(), 0..4).prop_map(|val| data_field::Value::BoolArrVal(data_field::BoolArray { val })),
    ];
    (id(), prop::option::of(kind)).prop_map(|(field_id, value)| pb::DataField { field_id, value })
}

fn table_id() -> impl Strategy<Value = u32> {
    let known: Vec<u32> = SCHEMA.tables.iter().map(|table| table.id).collect();
    prop_oneof![4 => prop::sample::select(known), 1 => any::<u32>()]
}

fn entity() -> impl Strategy<Value = pb::Entity> {
    let key = prop::option::of(prop::collection::vec(key_field(), 0..6));
    let data = prop::option::of((id(), prop::collection::vec(data_field(), 0..6)));
    let entry = (table_id(), key, data, any::<bool>()).prop_map(|(table_id, key, data, is_default_entry)| pb::TableEntry {
        table_id,
        value: key.map(|fields| table_entry::Value::Key(pb::TableKey { fields })),
        data: data.map(|(action_id, fields)| pb::TableData { action_id, fields }),
        is_default_entry,
        ..pb::TableEntry::default()
    });
    let made = prop_oneof![
        8 => entry.prop_map(entity::Entity::TableEntry),
        1 => table_id().prop_map(|table_id| entity::Entity::TableUsage(pb::TableUsage { table_id, ..Default::default() })),
    ];
    prop::option::of(made).prop_map(|entity| pb::Entity { entity })
}

fn target() -> impl Strategy<Value = Option<pb::TargetDevice>> {
    prop::option::of((any::<u32>(), any::<u32>()).prop_map(|(device_id, pipe_id)| pb::TargetDevice {
        device_id,
        pipe_id,
        ..Default::default()
    }))
}

prop_compose! {
    fn write()(
        target in target(),
        client_id in any::<u32>(),
        updates in prop::collection::vec((-1..8i32, prop::option::of(entity())), 0..8),
        atomicity in -1..4i32,
        p4_name in any::<String>(),
    ) -> WholeWrite {
        let updates = updates.into_iter().map(|(kind, entity)| pb::Update { r#type: kind, entity }).collect();
        WholeWrite { target, client_id, updates, atomicity, p4_name }
    }
}

prop_compose! {
    fn read()(
        target in target(),
        client_id in any::<u32>(),
        entities in prop::collection::vec(entity(), 0..8),
        p4_name in any::<String>(),
    ) -> WholeRead {
        WholeRead { target, client_id, entities, p4_name }
    }
}

/// What happens to a message on its way from a client with a fault.
#[derive(Clone, Debug)]
enum Damage {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        4 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, more)| Damage::Insert(at, more)),
    ];
    prop::collection::vec(one, 0..4)
}

fn damaged(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for one in damage {
        if bytes.is_empty() {
            break;
        }
        match one {
            Damage::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_write_reads_as_it_was_built(write in write()) {
        prop_assert_eq!(by_envelope(&write.encode_to_vec()), Some(write));
    }

    #[test]
    fn a_read_reads_as_it_was_built(read in read()) {
        prop_assert_eq!(read_by_envelope(&read.encode_to_vec()), Some(read));
    }

    /// The envelope takes a damaged message exactly when the whole would be taken, and for the same.
    #[test]
    fn damaged_writes(write in write(), damage in damage()) {
        let bytes = damaged(write.encode_to_vec(), &damage);
        let whole = WholeWrite::decode(&bytes[..]).ok();
        for update in whole.iter().flat_map(|whole| &whole.updates) {
            update.entity.iter().for_each(look_at_entity);
        }
        prop_assert_eq!(by_envelope(&bytes), whole);
    }

    #[test]
    fn damaged_reads(read in read(), damage in damage()) {
        let bytes = damaged(read.encode_to_vec(), &damage);
        let whole = WholeRead::decode(&bytes[..]).ok();
        whole.iter().flat_map(|whole| &whole.entities).for_each(look_at_entity);
        prop_assert_eq!(read_by_envelope(&bytes), whole);
    }

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(by_envelope(&bytes), WholeWrite::decode(&bytes[..]).ok());
        prop_assert_eq!(read_by_envelope(&bytes), WholeRead::decode(&bytes[..]).ok());
    }
}
