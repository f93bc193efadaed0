//! Rows of any table by the names in the schema, for tables other than the relay's (conferences).

use crate::error::PlaneError;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::{self, data_field, entity, key_field::MatchType, table_entry, update::Type};
use shunt_bfrt::schema::{Action, Field, Kind, Match, Schema, Table};
use shunt_bfrt::values::{bools, exact, number, numbers, range, sized, stream, text};
use shunt_net::octets;
use std::net::IpAddr;

/// The operation on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Insert,
    Modify,
    /// Insert, or modify an existing row.
    Put,
    /// With an empty key: all rows.
    Delete,
}

/// The value of a key or data field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Address(IpAddr),
    Bytes(Bytes),
    Text(String),
    Bool(bool),
    Numbers(Vec<u32>),
    Bools(Vec<bool>),
    /// A key field that matches a range: first and last value.
    Range(u64, u64),
    /// A key field that matches by longest prefix: its bytes, and the number of bits that count. Read only.
    Prefix(Bytes, u32),
}

/// A write to one row. A name may be any unique dotted suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWrite {
    pub table: String,
    pub change: Change,
    pub key: Vec<(String, Value)>,
    pub action: Option<String>,
    pub data: Vec<(String, Value)>,
}

/// A row that was read, with the schema's full names. A bit string is [`Value::Bytes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub key: Vec<(String, Value)>,
    pub action: Option<String>,
    pub data: Vec<(String, Value)>,
}

impl Row {
    fn get(&self, name: &str) -> Option<&Value> {
        let mut fields = self.key.iter().chain(&self.data);
        fields.find(|(full, _)| full == name).map(|(_, value)| value)
    }

    /// Returns a key or data field as a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Bytes(bytes) if bytes.len() <= 8 => Some(number(bytes)),
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn wrong(table: &Table, name: &str, value: &Value) -> PlaneError {
    PlaneError::Schema(format!("{}: {name} takes no {value:?}", table.name))
}

fn bits(field: &Field, value: &Value) -> Option<Vec<u8>> {
    let bytes = match value {
        Value::Number(value) => return fit(field, *value),
        Value::Bool(value) => return fit(field, u64::from(*value)),
        Value::Address(addr) => octets(*addr).to_vec(),
        Value::Bytes(bytes) => bytes.to_vec(),
        _ => return None,
    };
    (field.size() == Some(bytes.len()) && field.fits(&bytes)).then_some(bytes)
}

/// Encodes a number; `None` if it does not fit.
fn fit(field: &Field, value: u64) -> Option<Vec<u8>> {
    let Some(data_field::Value::Stream(bytes)) = sized(field, value).value else {
        return None;
    };
    (bytes.len() > 8 || number(&bytes) == value).then(|| bytes.to_vec())
}

fn key_field(table: &Table, name: &str, value: &Value) -> Result<pb::KeyField, PlaneError> {
    let field = table.key.named(name)?;
    let made = match (field.matches, value) {
        (Some(Match::Range), Value::Range(low, high)) => fit(field, *low)
            .zip(fit(field, *high))
            .map(|(low, high)| range(field.id, low, high)),
        (Some(Match::Exact), Value::Text(text)) if field.kind == Kind::String => Some(exact(field.id, text)),
        (Some(Match::Exact), value) => bits(field, value).map(|bytes| exact(field.id, bytes)),
        _ => None,
    };
    made.ok_or_else(|| wrong(table, name, value))
}

fn data_field(table: &Table, action: Option<&Action>, name: &str, value: &Value) -> Result<pb::DataField, PlaneError> {
    let field = action.and_then(|action| action.fields.find(name));
    let field = field.map_or_else(|| table.data.named(name), Ok)?;
    let made = match (value, field.kind, field.repeated) {
        (Value::Numbers(values), Kind::Bits(_), true) => Some(numbers(field.id, values.clone())),
        (Value::Bools(values), Kind::Bool, true) => Some(bools(field.id, values.clone())),
        (Value::Text(value), Kind::String, false) => Some(text(field.id, value)),
        (Value::Bool(value), Kind::Bool, false) => Some(pb::DataField {
            field_id: field.id,
            value: Some(data_field::Value::BoolVal(*value)),
        }),
        (value, Kind::Bits(_), false) => bits(field, value).map(|bytes| stream(field.id, bytes)),
        _ => None,
    };
    made.ok_or_else(|| wrong(table, name, value))
}

fn named<'a>(schema: &'a Schema, name: &str) -> Result<&'a Table, PlaneError> {
    let table = schema.table(name).map(AsRef::as_ref);
    table.ok_or_else(|| PlaneError::Schema(format!("the data plane has no table {name}")))
}

/// Encodes an `Update`.
///
/// # Errors
/// The schema has no such table, field or action, or a value does not fit.
pub(crate) fn encode(schema: &Schema, write: &TableWrite) -> Result<Bytes, PlaneError> {
    let table = named(schema, &write.table)?;
    let action = write.action.as_ref().map(|name| table.actions.named(name)).transpose()?;
    let key: Vec<pb::KeyField> = write
        .key
        .iter()
        .map(|(name, value)| key_field(table, name, value))
        .collect::<Result<_, _>>()?;
    let data = write.data.iter().map(|(name, value)| data_field(table, action, name, value));
    let fields = data.collect::<Result<Vec<_>, _>>()?;
    let kind = match write.change {
        Change::Insert => Type::Insert,
        Change::Modify => Type::Modify,
        Change::Put => Type::InsertOrModify,
        Change::Delete => Type::Delete,
    };
    if key.is_empty() && !table.key.is_empty() && kind != Type::Delete {
        return Err(PlaneError::Schema(format!("{}: a row needs a key", table.name)));
    }
    let has_data = kind != Type::Delete;
    let entry = pb::TableEntry {
        table_id: table.id,
        value: (!key.is_empty()).then_some(table_entry::Value::Key(pb::TableKey { fields: key })),
        data: has_data.then(|| pb::TableData {
            action_id: action.map_or(0, |action| action.id),
            fields,
        }),
        ..Default::default()
    };
    let entity = entity::Entity::TableEntry(entry);
    Ok(crate::admission_tables::update(kind, pb::Entity { entity: Some(entity) }))
}

/// Encodes a request for one row.
///
/// # Errors
/// The table has no such key.
pub(crate) fn question(table: &Table, key: &[(String, Value)]) -> Result<pb::Entity, PlaneError> {
    let fields = key.iter().map(|(name, value)| key_field(table, name, value));
    let entry = pb::TableEntry {
        table_id: table.id,
        value: Some(table_entry::Value::Key(pb::TableKey {
            fields: fields.collect::<Result<_, _>>()?,
        })),
        ..Default::default()
    };
    Ok(pb::Entity {
        entity: Some(entity::Entity::TableEntry(entry)),
    })
}

/// Decodes a row; `None` for the default entry.
pub(crate) fn decode(table: &Table, encoded: Bytes) -> Option<Row> {
    decode_any(table, encoded).filter(|row| !row.key.is_empty() || table.key.is_empty())
}

/// Decodes a row; the default entry is a row without a key.
pub(crate) fn decode_any(table: &Table, encoded: Bytes) -> Option<Row> {
    let Some(entity::Entity::TableEntry(entry)) = pb::Entity::decode(encoded).ok()?.entity else {
        return None;
    };
    let key = match entry.value {
        Some(table_entry::Value::Key(key)) => key.fields,
        _ => vec![],
    };
    let data = entry.data.unwrap_or_default();
    let action = table.actions.by_id(data.action_id);
    let read_key = |field: pb::KeyField| {
        let name = table.key.by_id(field.field_id)?.name.clone();
        Some((name, key_value(table, field)?))
    };
    let read_data = |field: pb::DataField| {
        let known = action.and_then(|action| action.fields.by_id(field.field_id));
        let known = known.or_else(|| table.data.by_id(field.field_id))?;
        Some((known.name.clone(), data_value(field.value?)?))
    };
    Some(Row {
        key: key.into_iter().filter_map(read_key).collect(),
        action: action.map(|action| action.name.clone()),
        data: data.fields.into_iter().filter_map(read_data).collect(),
    })
}

fn key_value(table: &Table, field: pb::KeyField) -> Option<Value> {
    let is_text = table.key.by_id(field.field_id)?.kind == Kind::String;
    match field.match_type? {
        MatchType::Exact(value) if is_text => Some(Value::Text(String::from_utf8_lossy(&value.value).into_owned())),
        MatchType::Exact(value) => Some(Value::Bytes(value.value)),
        MatchType::Lpm(value) => Some(Value::Prefix(value.value, u32::try_from(value.prefix_len).ok()?)),
        MatchType::Range(value) => Some(Value::Range(number(&value.low), number(&value.high))),
        _ => None,
    }
}

fn data_value(value: data_field::Value) -> Option<Value> {
    match value {
        data_field::Value::Stream(bytes) => Some(Value::Bytes(bytes)),
        data_field::Value::StrVal(text) => Some(Value::Text(text)),
        data_field::Value::BoolVal(value) => Some(Value::Bool(value)),
        data_field::Value::IntArrVal(array) => Some(Value::Numbers(array.val)),
        data_field::Value::BoolArrVal(array) => Some(Value::Bools(array.val)),
        _ => None,
    }
}
