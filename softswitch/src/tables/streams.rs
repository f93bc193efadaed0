//! `conference` and `conference6`: senders' streams, and the trees that replicate their packets.

use super::conference::{Given, action, counted_row, fault, names_counter, tables, tables_mut};
use super::{Each, Position, Row, Table, Undo, flow, flow_fields, next_key};
use crate::plane::Plane;
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key, exact};
use shunt_bfrt::{BfrtError, pb};
use shunt_replication::{Action, StreamKey};
use std::sync::Arc;

/// The streams of one IP version.
pub struct Streams {
    schema: Arc<schema::Table>,
    replicate: schema::Action,
    v6: bool,
}

/// Returns the stream of a key.
pub fn stream_key(key: &Key<'_>) -> StreamKey {
    StreamKey {
        flow: flow(key),
        ssrc: key.number(4) as u32,
    }
}

/// Returns the key fields of a stream.
pub fn stream_fields(key: &StreamKey) -> Vec<pb::KeyField> {
    let mut fields = flow_fields(&key.flow);
    fields.push(exact(5, key.ssrc.to_be_bytes()));
    fields
}

/// Returns all streams of an IP version.
///
/// # Errors
/// There are no conferences.
pub fn keys(plane: &Plane, v6: bool) -> Result<Vec<StreamKey>, BfrtError> {
    Ok(tables(plane)?.streams().filter(|key| key.flow.is_v6() == v6).copied().collect())
}

impl Streams {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>, v6: bool) -> Result<Self, SchemaError> {
        Ok(Self {
            replicate: action(&schema, if v6 { "replicate6" } else { "replicate" })?,
            v6,
            schema,
        })
    }

    fn action(&self, data: &Data<'_>) -> Result<Action, BfrtError> {
        let given = Given::of(self, data)?;
        let number = |name| given.number(name);
        Ok(Action {
            mgid: number("mgid") as u16,
            l1_xid: number("l1_xid") as u16,
            rid: number("rid") as u16,
            l2_xid: number("l2_xid") as u16,
            number: number("stream") as u32,
            to_agent: number("to_agent") != 0,
            trees: number("trees") as u8,
            layers: number("layers") as u16,
            extension: number("extension") as u8,
            descriptor: number("descriptor") as u8,
            track: number("track") as u32,
        })
    }

    fn row(&self, plane: &Plane, key: &StreamKey) -> Result<Option<Row>, BfrtError> {
        let tables = tables(plane)?;
        let Some(action) = tables.stream(key) else { return Ok(None) };
        let counted = tables.count_stream(key, 0).map_err(fault)?;
        let value = |name: &str| match name {
            "mgid" => action.mgid.into(),
            "l1_xid" => action.l1_xid.into(),
            "rid" => action.rid.into(),
            "l2_xid" => action.l2_xid.into(),
            "stream" => action.number.into(),
            "to_agent" => action.to_agent.into(),
            "trees" => action.trees.into(),
            "layers" => action.layers.into(),
            "extension" => action.extension.into(),
            "descriptor" => action.descriptor.into(),
            "track" => action.track.into(),
            _ => 0,
        };
        Ok(Some(counted_row(stream_fields(key), &self.replicate, value, &counted)))
    }

    fn undo_of(plane: &Plane, key: StreamKey) -> Result<Undo, BfrtError> {
        let before = tables(plane)?.stream(&key);
        Ok(Box::new(move |plane| {
            let now = plane.tick();
            let tables = tables_mut(plane)?;
            match (before, tables.stream(&key)) {
                (Some(action), Some(_)) => tables.modify_stream(&key, action),
                (Some(action), None) => tables.insert_stream(key, action, now),
                (None, Some(_)) => tables.delete_stream(&key),
                (None, None) => Ok(()),
            }
            .map_err(fault)
        }))
    }
}

impl Table for Streams {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(tables(plane)?.stream(&stream_key(key)).is_some())
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        let (action, now) = (self.action(data)?, plane.tick());
        tables_mut(plane)?.insert_stream(stream_key(key), action, now).map_err(fault)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, reset: bool) -> Result<(), BfrtError> {
        let (key, now) = (stream_key(key), plane.tick());
        let action = self.action(data)?;
        let tables = tables_mut(plane)?;
        tables.modify_stream(&key, action).map_err(fault)?;
        if reset || names_counter(data) {
            tables.reset_stream(&key, now).map_err(fault)
        } else {
            Ok(())
        }
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        tables_mut(plane)?.delete_stream(&stream_key(key)).map_err(fault)
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some(key) = next_key(at, || keys(plane, self.v6))? {
            tables_mut(plane)?.delete_stream(&key).map_err(fault)?;
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        Self::undo_of(plane, stream_key(key))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        keys(plane, self.v6)?.into_iter().map(|key| Self::undo_of(plane, key)).collect()
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
