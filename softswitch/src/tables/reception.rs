//! `softswitch.reception` and `reception6`: reception of conference streams (RFC 3550). Read only.

use super::conference::{fault, tables};
use super::streams::{keys, stream_fields, stream_key};
use super::{Change, Each, Position, Row, Table, next_key};
use crate::plane::Plane;
use shunt_bfrt::values::{Data, Key, sized};
use shunt_bfrt::{BfrtError, Code, schema};
use shunt_relay_table::stats_of;
use shunt_replication::StreamKey;
use std::sync::Arc;

/// Reception of one IP version.
pub struct Receptions {
    schema: Arc<schema::Table>,
    v6: bool,
}

impl Receptions {
    pub fn new(schema: Arc<schema::Table>, v6: bool) -> Self {
        Self { schema, v6 }
    }

    fn row(&self, plane: &Plane, key: &StreamKey) -> Result<Option<Row>, BfrtError> {
        let tables = tables(plane)?;
        if tables.stream(key).is_none() {
            return Ok(None);
        }
        let clock = plane.clock().map_err(|error| self.fault(Change::Modify, &error))?;
        let (slot, detail) = tables.reception(key).map_err(fault)?;
        let stats = stats_of(&slot, &detail, 0, clock);
        let reception = stats.reception.unwrap_or_default();
        let value = |name: &str| match name {
            "packets" => stats.packets,
            "bytes" => stats.bytes,
            "idle_ms" => stats.idle_ms,
            "lost" => reception.lost.into(),
            "reordered" => reception.reordered.into(),
            "duplicates" => reception.duplicates.into(),
            "jitter_us" => reception.jitter_us.into(),
            _ => 0,
        };
        let data = self.schema.data.iter().map(|field| sized(field, value(&field.name))).collect();
        Ok(Some(Row {
            key: stream_fields(key),
            action: 0,
            data,
        }))
    }

    fn read_only(&self) -> BfrtError {
        BfrtError::new(Code::Unsupported, format!("{} can only be read", self.schema.name))
    }
}

impl Table for Receptions {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(tables(plane)?.stream(&stream_key(key)).is_some())
    }

    fn insert(&self, _plane: &mut Plane, _key: &Key<'_>, _data: &Data<'_>) -> Result<(), BfrtError> {
        Err(self.read_only())
    }

    fn modify(&self, _plane: &mut Plane, _key: &Key<'_>, _data: &Data<'_>, _reset: bool) -> Result<(), BfrtError> {
        Err(self.read_only())
    }

    fn delete(&self, _plane: &mut Plane, _key: &Key<'_>) -> Result<(), BfrtError> {
        Err(self.read_only())
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        self.row(plane, &stream_key(key))?.ok_or_else(|| self.absent())
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(key) = next_key(at, || keys(plane, self.v6))? {
            if let Some(row) = self.row(plane, &key)?
                && each(row).is_break()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(keys(plane, self.v6)?.len())
    }
}
