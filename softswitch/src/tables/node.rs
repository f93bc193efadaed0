//! `$pre.node`: L1 nodes, each with a RID and at most one port.

use super::conference::{fault, numbers as array, tables, tables_mut};
use super::pre::Kind;
use super::{Row, Undo};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Data, exact, number as value_of, numbers, stream};

#[derive(Clone, Copy)]
pub struct Nodes;

fn rid(schema: &schema::Table, data: &Data<'_>) -> Option<u16> {
    let field = schema.data.find("$MULTICAST_RID")?;
    data.bytes(field.id).map(|bytes| value_of(bytes) as u16)
}

impl Kind for Nodes {
    fn numbers(&self, plane: &Plane) -> Result<Vec<u32>, BfrtError> {
        Ok(tables(plane)?.engine().nodes().map(|(number, _)| number).collect())
    }

    fn has(&self, plane: &Plane, number: u32) -> Result<bool, BfrtError> {
        Ok(tables(plane)?.engine().node(number).is_ok())
    }

    fn insert(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        let (ports, lags) = (array(schema, data, "$DEV_PORT")?, array(schema, data, "$MULTICAST_LAG_ID")?);
        tables_mut(plane)?
            .insert_node(number, rid(schema, data).unwrap_or(0), &ports, &lags)
            .map_err(fault)
    }

    fn modify(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        let (ports, lags) = (array(schema, data, "$DEV_PORT")?, array(schema, data, "$MULTICAST_LAG_ID")?);
        tables_mut(plane)?
            .modify_node(number, rid(schema, data), &ports, &lags)
            .map_err(fault)
    }

    fn delete(&self, plane: &mut Plane, number: u32) -> Result<(), BfrtError> {
        tables_mut(plane)?.delete_node(number).map_err(fault)
    }

    fn undo(&self, plane: &Plane, number: u32) -> Result<Undo, BfrtError> {
        let engine = tables(plane)?.engine();
        let before = engine.node(number).ok().copied();
        let tree = before
            .and_then(|node| node.mgid)
            .map(|mgid| engine.members(mgid).map(|members| (mgid, members)));
        let tree = tree.transpose().map_err(fault)?;
        Ok(Box::new(move |plane| {
            let tables = tables_mut(plane)?;
            let there = tables.engine().node(number).is_ok();
            let ports = |port: Option<u16>| port.map(u32::from).into_iter().collect::<Vec<u32>>();
            match (before, there) {
                (Some(node), true) => tables.modify_node(number, Some(node.rid), &ports(node.port), &[]),
                (Some(node), false) => tables.insert_node(number, node.rid, &ports(node.port), &[]),
                (None, true) => tables.delete_node(number),
                (None, false) => Ok(()),
            }
            .map_err(fault)?;
            // A deleted node had left its tree.
            match tree {
                Some((mgid, members)) if !there => tables.modify_tree(mgid, &members).map_err(fault),
                _ => Ok(()),
            }
        }))
    }

    fn row(&self, plane: &Plane, schema: &schema::Table, number: u32) -> Result<Row, BfrtError> {
        let node = *tables(plane)?.engine().node(number).map_err(fault)?;
        let id = |name: &str| schema.data.find(name).map_or(0, |field| field.id);
        let data = vec![
            stream(id("$MULTICAST_RID"), node.rid.to_be_bytes()),
            numbers(id("$MULTICAST_LAG_ID"), Vec::new()),
            numbers(id("$DEV_PORT"), node.port.map(u32::from).into_iter().collect()),
        ];
        Ok(Row {
            key: vec![exact(1, number.to_be_bytes())],
            action: 0,
            data,
        })
    }
}
