//! Common parts of the packet replication engine's tables: entries named by a number.

use super::conference::tables;
use super::{Each, Position, Row, Table, Undo, next_key};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key};
use std::sync::Arc;

/// One table of the engine.
pub trait Kind: Copy + Send + Sync + 'static {
    fn numbers(&self, plane: &Plane) -> Result<Vec<u32>, BfrtError>;
    fn has(&self, plane: &Plane, number: u32) -> Result<bool, BfrtError>;
    /// # Errors
    /// What the engine refuses.
    fn insert(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError>;
    /// # Errors
    /// What the engine refuses.
    fn modify(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError>;
    /// # Errors
    /// What the engine refuses.
    fn delete(&self, plane: &mut Plane, number: u32) -> Result<(), BfrtError>;
    fn undo(&self, plane: &Plane, number: u32) -> Result<Undo, BfrtError>;
    fn row(&self, plane: &Plane, schema: &schema::Table, number: u32) -> Result<Row, BfrtError>;
}

/// A table of the engine.
pub struct Engine<K> {
    schema: Arc<schema::Table>,
    kind: K,
}

impl<K: Kind> Engine<K> {
    /// # Errors
    /// Never; as the other tables.
    pub fn new(schema: Arc<schema::Table>, kind: K) -> Result<Self, SchemaError> {
        Ok(Self { schema, kind })
    }
}

fn number(key: &Key<'_>) -> u32 {
    key.number(0) as u32
}

impl<K: Kind> Table for Engine<K> {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        self.kind.has(plane, number(key))
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        self.kind.insert(plane, &self.schema, number(key), data)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, _reset: bool) -> Result<(), BfrtError> {
        self.kind.modify(plane, &self.schema, number(key), data)
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        self.kind.delete(plane, number(key))
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some(number) = next_key(at, || self.kind.numbers(plane))? {
            if self.kind.has(plane, number)? {
                self.kind.delete(plane, number)?;
            }
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        tables(plane)?;
        self.kind.undo(plane, number(key))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        self.kind
            .numbers(plane)?
            .into_iter()
            .map(|number| self.kind.undo(plane, number))
            .collect()
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        if self.kind.has(plane, number(key))? {
            self.kind.row(plane, &self.schema, number(key))
        } else {
            Err(self.absent())
        }
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(number) = next_key(at, || self.kind.numbers(plane))? {
            if self.kind.has(plane, number)? && each(self.kind.row(plane, &self.schema, number)?).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(self.kind.numbers(plane)?.len())
    }
}
