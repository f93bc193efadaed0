//! Keys and data of table entries, checked against the schema. What a client must see follows P4 Studio's server.

use crate::pb::{self, data_field::Value as Given, key_field::MatchType};
use crate::schema::{Action, Field, Kind, Match, Table};
use crate::{BfrtError, Code};
use bytes::Bytes;

/// `$ENTRY_TTL`, milliseconds.
pub const ENTRY_TTL: u32 = 65543;
/// `$ENTRY_HIT_STATE`.
pub const ENTRY_HIT_STATE: u32 = 65544;
/// `$COUNTER_SPEC_BYTES`.
pub const COUNTER_BYTES: u32 = 65553;
/// `$COUNTER_SPEC_PKTS`.
pub const COUNTER_PKTS: u32 = 65554;

const LONGEST: usize = 16;
static ZEROS: [u8; LONGEST] = [0; LONGEST];

/// The value of a key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValue<'a> {
    Exact(&'a [u8]),
    Range(&'a [u8], &'a [u8]),
}

/// A whole key, by the fields' place in the schema.
#[derive(Clone, Debug)]
pub struct Key<'a> {
    values: Vec<KeyValue<'a>>,
}

impl<'a> Key<'a> {
    /// Check a key. Absent fields are zero.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn decode(table: &Table, key: &'a pb::TableKey) -> Result<Self, BfrtError> {
        let mut values: Vec<KeyValue<'a>> = table
            .key
            .iter()
            .map(|field| {
                let zero = &ZEROS[..field.size().unwrap_or(0).min(LONGEST)];
                if field.matches == Some(Match::Range) {
                    KeyValue::Range(zero, zero)
                } else {
                    KeyValue::Exact(zero)
                }
            })
            .collect();
        for given in &key.fields {
            let Some(value) = &given.match_type else {
                return Err(BfrtError::new(Code::Invalid, format!("Invalid match type table:{}", table.name)));
            };
            let Some((at, field)) = table.key.iter().enumerate().find(|(_, field)| field.id == given.field_id) else {
                return Err(BfrtError::new(
                    Code::NotFound,
                    format!("Failed to create key for field:{} table:{}", given.field_id, table.name),
                ));
            };
            values[at] = match (value, field.matches) {
                (MatchType::Exact(exact), Some(Match::Exact)) => {
                    if field.kind != Kind::String {
                        check_bytes(table, field, &exact.value)?;
                    }
                    KeyValue::Exact(&exact.value)
                }
                (MatchType::Range(range), Some(Match::Range)) => {
                    check_bytes(table, field, &range.low)?;
                    check_bytes(table, field, &range.high)?;
                    if range.low > range.high {
                        return Err(BfrtError::new(
                            Code::Invalid,
                            format!("{} begins after its end; table:{}", field.name, table.name),
                        ));
                    }
                    KeyValue::Range(&range.low, &range.high)
                }
                (value, matches) => {
                    let text = format!(
                        "Failed to create key for field:{}, which matches {}, not {}; table:{}",
                        field.id,
                        matches.map_or("nothing", Match::name),
                        kind_name(value),
                        table.name
                    );
                    return Err(BfrtError::new(Code::Invalid, text));
                }
            };
        }
        Ok(Self { values })
    }

    /// The bytes of an exact field.
    #[must_use]
    pub fn exact(&self, place: usize) -> &'a [u8] {
        match self.values.get(place) {
            Some(KeyValue::Exact(value) | KeyValue::Range(value, _)) => value,
            None => &[],
        }
    }

    /// The ends of a range.
    #[must_use]
    pub fn range(&self, place: usize) -> (&'a [u8], &'a [u8]) {
        match self.values.get(place) {
            Some(KeyValue::Range(low, high)) => (low, high),
            Some(KeyValue::Exact(value)) => (value, value),
            None => (&[], &[]),
        }
    }

    /// An exact field as a number.
    #[must_use]
    pub fn number(&self, place: usize) -> u64 {
        number(self.exact(place))
    }
}

fn kind_name(value: &MatchType) -> &'static str {
    match value {
        MatchType::Exact(_) => "exact",
        MatchType::Ternary(_) => "ternary",
        MatchType::Lpm(_) => "lpm",
        MatchType::Range(_) => "range",
        MatchType::Optional(_) => "optional",
    }
}

/// A number in network order.
#[must_use]
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_bytes(table: &Table, field: &Field, value: &[u8]) -> Result<(), BfrtError> {
    let size = field.size();
    if size != Some(value.len()) {
        let wanted = size.map_or("no".to_owned(), |size| size.to_string());
        let text = format!("{} takes {wanted} bytes, got {}; table:{}", field.name, value.len(), table.name);
        return Err(BfrtError::new(Code::Invalid, text));
    }
    if !field.fits(value) {
        let Kind::Bits(width) = field.kind else { return Ok(()) };
        let text = format!(
            "{} is {width} bits wide, {} does not fit; table:{}",
            field.name,
            hex(value),
            table.name
        );
        return Err(BfrtError::new(Code::Invalid, text));
    }
    Ok(())
}

/// The value of a data field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Bytes(&'a [u8]),
    Text(&'a str),
    Bool(bool),
    Numbers(&'a [u32]),
    Bools(&'a [bool]),
    Texts(&'a [String]),
}

/// The action and the given fields of an entry.
#[derive(Clone, Debug, Default)]
pub struct Data<'a> {
    pub action: Option<&'a Action>,
    pub fields: Vec<(u32, Value<'a>)>,
}

impl<'a> Data<'a> {
    /// Check data. Fields that are not given are absent.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn decode(table: &'a Table, data: Option<&'a pb::TableData>) -> Result<Self, BfrtError> {
        let Some(data) = data else { return Ok(Self::default()) };
        let action = match data.action_id {
            0 => None,
            id => Some(
                table
                    .actions
                    .by_id(id)
                    .ok_or_else(|| BfrtError::new(Code::NotFound, format!("Table data allocation failed for table : {}", table.name)))?,
            ),
        };
        let mut fields = Vec::with_capacity(data.fields.len());
        for given in &data.fields {
            let field = action
                .and_then(|action| action.fields.by_id(given.field_id))
                .or_else(|| table.data.by_id(given.field_id));
            let Some(field) = field else {
                return Err(BfrtError::new(
                    Code::NotFound,
                    format!("SetValue failed for field:{} table:{}", given.field_id, table.name),
                ));
            };
            let Some(value) = &given.value else { continue };
            fields.push((field.id, decode_value(table, field, value)?));
        }
        Ok(Self { action, fields })
    }

    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Value<'a>> {
        self.fields.iter().rev().find(|(field, _)| *field == id).map(|(_, value)| value)
    }

    /// The bytes of a field, if it is given.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<&'a [u8]> {
        match self.get(id) {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// A field as a number; 0 when it is not given.
    #[must_use]
    pub fn number(&self, id: u32) -> u64 {
        self.bytes(id).map_or(0, number)
    }

    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        self.get(id).is_some()
    }
}

fn decode_value<'a>(table: &Table, field: &Field, value: &'a Given) -> Result<Value<'a>, BfrtError> {
    let found = match (value, field.kind, field.repeated) {
        (Given::IntArrVal(array), Kind::Bits(_), true) => Value::Numbers(&array.val),
        (Given::BoolArrVal(array), Kind::Bool, true) => Value::Bools(&array.val),
        (Given::StrArrVal(array), Kind::String, true) => Value::Texts(&array.val),
        (Given::Stream(bytes), Kind::Bits(_), false) => {
            check_bytes(table, field, bytes)?;
            Value::Bytes(bytes)
        }
        (Given::StrVal(text), Kind::String, false) => {
            if !field.choices.is_empty() && !field.choices.contains(text) {
                let text = format!("{} is one of {}; table:{}", field.name, field.choices.join(", "), table.name);
                return Err(BfrtError::new(Code::Invalid, text));
            }
            Value::Text(text)
        }
        (Given::BoolVal(value), Kind::Bool, false) => Value::Bool(*value),
        _ => {
            let text = format!(
                "SetValue failed for field:{} ({}), which is {}; table:{}",
                field.id, field.name, field.type_name, table.name
            );
            return Err(BfrtError::new(Code::Invalid, text));
        }
    };
    Ok(found)
}

/// An exact key field as it is sent.
#[must_use]
pub fn exact(id: u32, value: impl AsRef<[u8]>) -> pb::KeyField {
    let value = Bytes::copy_from_slice(value.as_ref());
    pb::KeyField {
        field_id: id,
        match_type: Some(MatchType::Exact(pb::key_field::Exact { value })),
    }
}

/// A range as it is sent.
#[must_use]
pub fn range(id: u32, low: impl AsRef<[u8]>, high: impl AsRef<[u8]>) -> pb::KeyField {
    let (low, high) = (Bytes::copy_from_slice(low.as_ref()), Bytes::copy_from_slice(high.as_ref()));
    pb::KeyField {
        field_id: id,
        match_type: Some(MatchType::Range(pb::key_field::Range { low, high })),
    }
}

/// A data field of bytes as it is sent.
#[must_use]
pub fn stream(id: u32, value: impl AsRef<[u8]>) -> pb::DataField {
    pb::DataField {
        field_id: id,
        value: Some(Given::Stream(Bytes::copy_from_slice(value.as_ref()))),
    }
}

/// A data field of text as it is sent.
#[must_use]
pub fn text(id: u32, value: impl Into<String>) -> pb::DataField {
    pb::DataField {
        field_id: id,
        value: Some(Given::StrVal(value.into())),
    }
}

/// A data field with numbers as it is sent.
#[must_use]
pub fn numbers(id: u32, val: Vec<u32>) -> pb::DataField {
    pb::DataField {
        field_id: id,
        value: Some(Given::IntArrVal(pb::data_field::IntArray { val })),
    }
}

/// A data field with truth values as it is sent.
#[must_use]
pub fn bools(id: u32, val: Vec<bool>) -> pb::DataField {
    pb::DataField {
        field_id: id,
        value: Some(Given::BoolArrVal(pb::data_field::BoolArray { val })),
    }
}

/// A field of a given size with a number in network order; one that does not fit becomes the largest that does.
#[must_use]
pub fn sized(field: &Field, value: u64) -> pb::DataField {
    let Kind::Bits(width) = field.kind else {
        return stream(field.id, []);
    };
    let largest = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
    let bytes = value.min(largest).to_be_bytes();
    let size = width.div_ceil(8) as usize;
    stream(field.id, &bytes[8usize.saturating_sub(size)..])
}
