//! Common parts of the conference tables, and their errors.

use super::{Row, Table};
use crate::plane::Plane;
use shunt_bfrt::schema;
use shunt_bfrt::values::{COUNTER_BYTES, COUNTER_PKTS, Data, sized, stream};
use shunt_bfrt::{BfrtError, Code, pb};
use shunt_replication::{Counted, Fault, Replication};

/// Returns the conference tables.
///
/// # Errors
/// There are none.
pub fn tables(plane: &Plane) -> Result<&Replication, BfrtError> {
    plane.conference.as_ref().map(|conference| &conference.tables).ok_or_else(none)
}

/// Returns the conference tables for a change.
///
/// # Errors
/// There are none.
pub fn tables_mut(plane: &mut Plane) -> Result<&mut Replication, BfrtError> {
    plane.conference.as_mut().map(|conference| &mut conference.tables).ok_or_else(none)
}

/// Returns the error without conferences.
pub fn none() -> BfrtError {
    BfrtError::new(
        Code::Unsupported,
        "There are no conferences here: softswitch.conference_copies is 0",
    )
}

/// Returns the error of a rejected change.
pub fn fault(fault: Fault) -> BfrtError {
    let (code, text) = match fault {
        Fault::Exists(text) => (Code::Exists, text),
        Fault::NotFound(text) => (Code::NotFound, text),
        Fault::NoSpace(text) => (Code::NoSpace, text),
        Fault::Invalid(text) => (Code::Invalid, text),
        Fault::Unsupported(text) => (Code::Unsupported, text),
        Fault::Kernel(error) => {
            tracing::error!("{error}");
            (Code::Internal, error.to_string())
        }
    };
    BfrtError::new(code, text)
}

/// The action of data, and its parameters by name; missing ones are zero.
pub struct Given<'a> {
    action: &'a schema::Action,
    data: &'a Data<'a>,
}

impl<'a> Given<'a> {
    /// Decodes the action.
    ///
    /// # Errors
    /// There is no action, or a counter is not set to zero.
    pub fn of(table: &dyn Table, data: &'a Data<'a>) -> Result<Self, BfrtError> {
        let name = &table.schema().name;
        let action = data
            .action
            .ok_or_else(|| BfrtError::new(Code::Invalid, format!("No action given; table:{name}")))?;
        if action.default_only {
            return Err(BfrtError::new(
                Code::Invalid,
                format!("{} is for the default entry only; table:{name}", action.name),
            ));
        }
        for counter in [COUNTER_PKTS, COUNTER_BYTES] {
            if data.number(counter) != 0 {
                return Err(BfrtError::new(
                    Code::Unsupported,
                    format!("Counters can be set to zero only; table:{name}"),
                ));
            }
        }
        Ok(Self { action, data })
    }

    pub fn number(&self, name: &str) -> u64 {
        self.action.fields.find(name).map_or(0, |field| self.data.number(field.id))
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let field = self.action.fields.find(name);
        let zero = || vec![0; field.and_then(schema::Field::size).unwrap_or(0)];
        field.and_then(|field| self.data.bytes(field.id)).map_or_else(zero, <[u8]>::to_vec)
    }
}

/// Returns whether data names a counter, which resets it.
pub fn names_counter(data: &Data<'_>) -> bool {
    data.has(COUNTER_PKTS) || data.has(COUNTER_BYTES)
}

/// Encodes a row of an action with number parameters and counters.
pub fn counted_row(key: Vec<pb::KeyField>, action: &schema::Action, value: impl Fn(&str) -> u64, counted: &Counted) -> Row {
    let mut data: Vec<pb::DataField> = action.fields.iter().map(|field| sized(field, value(&field.name))).collect();
    data.push(stream(COUNTER_BYTES, counted.bytes.to_be_bytes()));
    data.push(stream(COUNTER_PKTS, counted.packets.to_be_bytes()));
    Row {
        key,
        action: action.id,
        data,
    }
}

/// Returns the action of a table that is not for the default entry.
///
/// # Errors
/// There is none.
pub fn action(schema: &schema::Table, name: &str) -> Result<schema::Action, schema::SchemaError> {
    schema.actions.named(name).cloned()
}

/// Returns the numbers of an array field; a missing field is empty.
///
/// # Errors
/// A number exceeds the field's width.
pub fn numbers(table: &schema::Table, data: &Data<'_>, name: &str) -> Result<Vec<u32>, BfrtError> {
    let Some(field) = table.data.find(name) else {
        return Ok(Vec::new());
    };
    let Some(shunt_bfrt::values::Value::Numbers(numbers)) = data.get(field.id) else {
        return Ok(Vec::new());
    };
    let schema::Kind::Bits(width) = field.kind else {
        return Ok(Vec::new());
    };
    if width < 32 && numbers.iter().any(|number| number >> width != 0) {
        return Err(BfrtError::new(
            Code::Invalid,
            format!("{name} is {width} bits wide; table:{}", table.name),
        ));
    }
    Ok(numbers.to_vec())
}
