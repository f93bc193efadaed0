//! Relay entries as a bench lists them in a file, and as updates in the shape of P4 Studio's client.

use crate::Failure;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::{self, data_field, key_field, update};
use shunt_bfrt::schema::{Field, Names, Schema};
use shunt_bfrt::values::ENTRY_TTL;
use std::ops::Range;
use std::path::Path;

/// Bytes of one entry in the file, all in network order: source and destination address of the key, source and destination port of
/// the key, new destination address, new destination port, new source port.
const RECORD: usize = 20;
/// Time to live of every entry: nothing falls idle while a bench runs.
const TTL_MS: u32 = 3_600_000;

/// Where the values of a key and of `relay_to` are in a record. P4 Studio's client sends fields in the order of their names.
const KEY: [(&str, Range<usize>); 4] = [("dst_addr", 4..8), ("dst_port", 10..12), ("src_addr", 0..4), ("src_port", 8..10)];
const ACTION: [(&str, Range<usize>); 3] = [("dst_addr", 12..16), ("dst_port", 16..18), ("src_port", 18..20)];

/// What is known of the relay table.
pub struct Relay {
    pub table: u32,
    action: u32,
    key: Vec<(u32, Range<usize>)>,
    data: Vec<(u32, Range<usize>)>,
}

/// The ids of fields, each with the place of its value in a record.
fn places(fields: &Names<Field>, wanted: &[(&str, Range<usize>)]) -> Result<Vec<(u32, Range<usize>)>, Failure> {
    let place = |(name, range): &(&str, Range<usize>)| Ok((fields.named(name)?.id, range.clone()));
    wanted.iter().map(place).collect()
}

impl Relay {
    /// # Errors
    /// When the schema has no such table.
    pub fn of(schema: &Schema) -> Result<Self, Failure> {
        let table = schema
            .table("relay")
            .ok_or_else(|| Failure("the schema has no table relay".into()))?;
        let action = table.actions.named("relay_to")?;
        Ok(Self {
            table: table.id,
            action: action.id,
            key: places(&table.key, &KEY)?,
            data: places(&action.fields, &ACTION)?,
        })
    }

    /// An update of one entry. A DELETE has the key alone.
    pub fn update(&self, kind: update::Type, record: &[u8]) -> Bytes {
        let key = pb::TableKey {
            fields: self.key.iter().map(|(id, range)| exact(*id, &record[range.clone()])).collect(),
        };
        let data = (kind != update::Type::Delete).then(|| pb::TableData {
            action_id: self.action,
            fields: std::iter::once(stream(ENTRY_TTL, &TTL_MS.to_be_bytes()))
                .chain(self.data.iter().map(|(id, range)| stream(*id, &record[range.clone()])))
                .collect(),
        });
        let entry = pb::TableEntry {
            table_id: self.table,
            value: Some(pb::table_entry::Value::Key(key)),
            data,
            ..pb::TableEntry::default()
        };
        encoded(kind, entry)
    }

    /// The update that empties the table: a DELETE without a key.
    pub fn clear(&self) -> Bytes {
        let entry = pb::TableEntry {
            table_id: self.table,
            ..pb::TableEntry::default()
        };
        encoded(update::Type::Delete, entry)
    }
}

fn encoded(kind: update::Type, entry: pb::TableEntry) -> Bytes {
    let entity = pb::Entity {
        entity: Some(pb::entity::Entity::TableEntry(entry)),
    };
    let update = pb::Update {
        r#type: kind.into(),
        entity: Some(entity),
    };
    update.encode_to_vec().into()
}

fn exact(id: u32, value: &[u8]) -> pb::KeyField {
    pb::KeyField {
        field_id: id,
        match_type: Some(key_field::MatchType::Exact(key_field::Exact {
            value: Bytes::copy_from_slice(value),
        })),
    }
}

fn stream(id: u32, value: &[u8]) -> pb::DataField {
    pb::DataField {
        field_id: id,
        value: Some(data_field::Value::Stream(Bytes::copy_from_slice(value))),
    }
}

/// The records of a file.
///
/// # Errors
/// When it cannot be read, or ends within a record.
pub fn read(path: &Path) -> Result<Vec<Bytes>, Failure> {
    let raw = std::fs::read(path).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
    let records = raw.chunks_exact(RECORD);
    if records.remainder().is_empty() {
        Ok(records.map(Bytes::copy_from_slice).collect())
    } else {
        Err(Failure(format!("{} ends within a record of {RECORD} bytes", path.display())))
    }
}
