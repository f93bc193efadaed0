//! `copy`: the rewrite of a copy for a receiver, by the stream's number and the RID.

use super::conference::{Given, action, counted_row, fault, names_counter, none, tables, tables_mut};
use super::{Each, Position, Row, Table, Undo, address, next_key};
use crate::plane::Plane;
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key, exact, stream};
use shunt_bfrt::{BfrtError, Code, pb};
use shunt_net::{Endpoint, octets};
use shunt_replication::{Name, PAYLOAD_TYPES, Rewrite};
use std::sync::Arc;

/// The rewrites of copies.
pub struct Copies {
    schema: Arc<schema::Table>,
    to: schema::Action,
    to_v6: schema::Action,
}

fn name(key: &Key<'_>) -> Name {
    Name {
        number: key.number(0) as u32,
        rid: key.number(1) as u16,
    }
}

/// Encodes pairs of payload types: an octet each, the first pair in the lowest two.
fn pairs(number: u64) -> [(u8, u8); PAYLOAD_TYPES] {
    std::array::from_fn(|n| ((number >> (16 * n + 8)) as u8, (number >> (16 * n)) as u8))
}

fn number(pairs: &[(u8, u8); PAYLOAD_TYPES]) -> u64 {
    let pair = |(from, to): &(u8, u8)| u64::from(*from) << 8 | u64::from(*to);
    pairs.iter().rev().fold(0, |all, one| all << 16 | pair(one))
}

fn names(plane: &Plane) -> Result<Vec<Name>, BfrtError> {
    Ok(tables(plane)?.copies().collect())
}

impl Copies {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>) -> Result<Self, SchemaError> {
        Ok(Self {
            to: action(&schema, "copy_to")?,
            to_v6: action(&schema, "copy_to_v6")?,
            schema,
        })
    }

    /// Returns whether the programs may send these copies: nothing else can.
    fn permitted(&self, plane: &mut Plane, rewrite: &Rewrite) -> Result<(), BfrtError> {
        let Some(why) = plane.denies_output(rewrite.src, rewrite.dst) else {
            return Ok(());
        };
        let text = format!("Copies to {}: {why}; table:{}", rewrite.dst, self.schema.name);
        Err(BfrtError::new(Code::FailedPrecondition, text))
    }

    fn rewrite(&self, data: &Data<'_>) -> Result<Rewrite, BfrtError> {
        let given = Given::of(self, data)?;
        let end = |addr, port| Endpoint::new(address(&given.bytes(addr)), given.number(port) as u16);
        Ok(Rewrite {
            src: end("src_addr", "src_port"),
            dst: end("dst_addr", "dst_port"),
            nexthop: given.number("nexthop") as u16,
            target: given.number("target") as u8,
            sequence_state: given.number("sequence_state") as u32,
            cadence: given.number("cadence") as u8,
            payload_types: pairs(given.number("payload_types")),
        })
    }

    fn row(&self, plane: &Plane, name: Name) -> Result<Option<Row>, BfrtError> {
        let tables = tables(plane)?;
        let Some(rewrite) = tables.copy(name) else { return Ok(None) };
        let counted = tables.count_copy(name).map_err(fault)?;
        let action = if rewrite.dst.addr.is_ipv6() { &self.to_v6 } else { &self.to };
        let value = |field: &str| match field {
            "src_port" => rewrite.src.port.into(),
            "dst_port" => rewrite.dst.port.into(),
            "nexthop" => rewrite.nexthop.into(),
            "target" => rewrite.target.into(),
            "sequence_state" => rewrite.sequence_state.into(),
            "cadence" => rewrite.cadence.into(),
            "payload_types" => number(&rewrite.payload_types),
            _ => 0,
        };
        let key = vec![exact(1, &name.number.to_be_bytes()[1..]), exact(2, name.rid.to_be_bytes())];
        let mut row = counted_row(key, action, value, &counted);
        for (field, addr) in [("src_addr", rewrite.src.addr), ("dst_addr", rewrite.dst.addr)] {
            let id = action.fields.find(field).map_or(0, |field| field.id);
            let wanted: pb::DataField = stream(id, &*octets(addr));
            if let Some(held) = row.data.iter_mut().find(|held| held.field_id == id) {
                *held = wanted;
            }
        }
        Ok(Some(row))
    }

    fn undo_of(plane: &Plane, name: Name) -> Result<Undo, BfrtError> {
        let before = tables(plane)?.copy(name);
        Ok(Box::new(move |plane| {
            let (tables, hops) = plane.conference_tables().ok_or_else(none)?;
            match (before, tables.copy(name)) {
                (Some(rewrite), Some(_)) => tables.modify_copy(hops, name, rewrite),
                (Some(rewrite), None) => tables.insert_copy(hops, name, rewrite),
                (None, Some(_)) => tables.delete_copy(name),
                (None, None) => Ok(()),
            }
            .map_err(fault)
        }))
    }
}

impl Table for Copies {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(tables(plane)?.copy(name(key)).is_some())
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        let rewrite = self.rewrite(data)?;
        self.permitted(plane, &rewrite)?;
        let (tables, hops) = plane.conference_tables().ok_or_else(none)?;
        tables.insert_copy(hops, name(key), rewrite).map_err(fault)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, reset: bool) -> Result<(), BfrtError> {
        let rewrite = self.rewrite(data)?;
        self.permitted(plane, &rewrite)?;
        let (tables, hops) = plane.conference_tables().ok_or_else(none)?;
        tables.modify_copy(hops, name(key), rewrite).map_err(fault)?;
        if reset || names_counter(data) {
            tables.reset_copy(name(key)).map_err(fault)
        } else {
            Ok(())
        }
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        tables_mut(plane)?.delete_copy(name(key)).map_err(fault)
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some(name) = next_key(at, || names(plane))? {
            tables_mut(plane)?.delete_copy(name).map_err(fault)?;
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        Self::undo_of(plane, name(key))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        names(plane)?.into_iter().map(|name| Self::undo_of(plane, name)).collect()
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        self.row(plane, name(key))?.ok_or_else(|| self.absent())
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(name) = next_key(at, || names(plane))? {
            if let Some(row) = self.row(plane, name)?
                && each(row).is_break()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(tables(plane)?.copy_count())
    }
}
