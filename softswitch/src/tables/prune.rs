//! `$pre.prune`: the ports that an L2 XID prunes. To the driver every L2 XID has an entry, which may be empty.

use super::conference::{fault, numbers as array, tables, tables_mut};
use super::pre::Kind;
use super::{Row, Undo};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Data, exact, numbers};
use shunt_replication::L2_XIDS;

#[derive(Clone, Copy)]
pub struct Prunes;

impl Kind for Prunes {
    fn numbers(&self, plane: &Plane) -> Result<Vec<u32>, BfrtError> {
        Ok(tables(plane)?.engine().prunes().map(u32::from).collect())
    }

    fn has(&self, plane: &Plane, number: u32) -> Result<bool, BfrtError> {
        tables(plane)?;
        Ok(number < u32::from(L2_XIDS))
    }

    fn insert(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        self.modify(plane, schema, number, data)
    }

    fn modify(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        tables_mut(plane)?
            .set_prune(number as u16, &array(schema, data, "$DEV_PORT")?)
            .map_err(fault)
    }

    fn delete(&self, plane: &mut Plane, number: u32) -> Result<(), BfrtError> {
        tables_mut(plane)?.set_prune(number as u16, &[]).map_err(fault)
    }

    fn undo(&self, plane: &Plane, number: u32) -> Result<Undo, BfrtError> {
        let ports: Vec<u32> = tables(plane)?
            .engine()
            .pruned_ports(number as u16)
            .into_iter()
            .map(u32::from)
            .collect();
        Ok(Box::new(move |plane| {
            tables_mut(plane)?.set_prune(number as u16, &ports).map_err(fault)
        }))
    }

    fn row(&self, plane: &Plane, schema: &schema::Table, number: u32) -> Result<Row, BfrtError> {
        let ports = tables(plane)?
            .engine()
            .pruned_ports(number as u16)
            .into_iter()
            .map(u32::from)
            .collect();
        let id = schema.data.find("$DEV_PORT").map_or(0, |field| field.id);
        Ok(Row {
            key: vec![exact(1, (number as u16).to_be_bytes())],
            action: 0,
            data: vec![numbers(id, ports)],
        })
    }
}
