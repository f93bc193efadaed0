//! `$pre.mgid`: multicast trees, each with its L1 nodes.

use super::conference::{fault, numbers as array, tables, tables_mut};
use super::pre::Kind;
use super::{Row, Undo};
use crate::plane::Plane;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Data, Value, bools, exact, numbers};
use shunt_bfrt::{BfrtError, Code};
use shunt_replication::Member;

#[derive(Clone, Copy)]
pub struct Trees;

fn members(schema: &schema::Table, data: &Data<'_>) -> Result<Vec<Member>, BfrtError> {
    let list = |name: &str| schema.data.find(name).and_then(|field| data.get(field.id));
    let valid_of = |name: &str| match list(name) {
        Some(Value::Bools(valid)) => valid.to_vec(),
        _ => Vec::new(),
    };
    let nodes = array(schema, data, "$MULTICAST_NODE_ID")?;
    let valid = valid_of("$MULTICAST_NODE_L1_XID_VALID");
    let xids = array(schema, data, "$MULTICAST_NODE_L1_XID")?;
    if nodes.len() != valid.len() || nodes.len() != xids.len() {
        let text = format!(
            "Multicast Node IDs size {}, Node L1 XIDs Valid size {} and Node L1 XIDs size {} do not match; table:{}",
            nodes.len(),
            valid.len(),
            xids.len(),
            schema.name
        );
        return Err(BfrtError::new(Code::Invalid, text));
    }
    let ecmp = !array(schema, data, "$MULTICAST_ECMP_ID")?.is_empty() || !array(schema, data, "$MULTICAST_ECMP_L1_XID")?.is_empty();
    if ecmp || !valid_of("$MULTICAST_ECMP_L1_XID_VALID").is_empty() {
        return Err(BfrtError::new(
            Code::Invalid,
            format!("There are no ECMP groups here; table:{}", schema.name),
        ));
    }
    let member = |((node, valid), xid): ((u32, bool), u32)| Member {
        node,
        xid: valid.then_some(xid as u16),
    };
    Ok(nodes.into_iter().zip(valid).zip(xids).map(member).collect())
}

impl Kind for Trees {
    fn numbers(&self, plane: &Plane) -> Result<Vec<u32>, BfrtError> {
        Ok(tables(plane)?.engine().trees().map(u32::from).collect())
    }

    fn has(&self, plane: &Plane, number: u32) -> Result<bool, BfrtError> {
        Ok(tables(plane)?.engine().has_tree(number as u16))
    }

    fn insert(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        tables_mut(plane)?
            .insert_tree(number as u16, &members(schema, data)?)
            .map_err(fault)
    }

    fn modify(&self, plane: &mut Plane, schema: &schema::Table, number: u32, data: &Data<'_>) -> Result<(), BfrtError> {
        tables_mut(plane)?
            .modify_tree(number as u16, &members(schema, data)?)
            .map_err(fault)
    }

    fn delete(&self, plane: &mut Plane, number: u32) -> Result<(), BfrtError> {
        tables_mut(plane)?.delete_tree(number as u16).map_err(fault)
    }

    fn undo(&self, plane: &Plane, number: u32) -> Result<Undo, BfrtError> {
        let mgid = number as u16;
        let engine = tables(plane)?.engine();
        let before = if engine.has_tree(mgid) {
            Some(engine.members(mgid).map_err(fault)?)
        } else {
            None
        };
        Ok(Box::new(move |plane| {
            let tables = tables_mut(plane)?;
            match (&before, tables.engine().has_tree(mgid)) {
                (Some(members), true) => tables.modify_tree(mgid, members),
                (Some(members), false) => tables.insert_tree(mgid, members),
                (None, true) => tables.delete_tree(mgid),
                (None, false) => Ok(()),
            }
            .map_err(fault)
        }))
    }

    fn row(&self, plane: &Plane, schema: &schema::Table, number: u32) -> Result<Row, BfrtError> {
        let members = tables(plane)?.engine().members(number as u16).map_err(fault)?;
        let id = |name: &str| schema.data.find(name).map_or(0, |field| field.id);
        let data = vec![
            numbers(id("$MULTICAST_NODE_ID"), members.iter().map(|member| member.node).collect()),
            bools(
                id("$MULTICAST_NODE_L1_XID_VALID"),
                members.iter().map(|member| member.xid.is_some()).collect(),
            ),
            numbers(
                id("$MULTICAST_NODE_L1_XID"),
                members.iter().map(|member| member.xid.unwrap_or(0).into()).collect(),
            ),
            numbers(id("$MULTICAST_ECMP_ID"), Vec::new()),
            bools(id("$MULTICAST_ECMP_L1_XID_VALID"), Vec::new()),
            numbers(id("$MULTICAST_ECMP_L1_XID"), Vec::new()),
        ];
        Ok(Row {
            key: vec![exact(1, (number as u16).to_be_bytes())],
            action: 0,
            data,
        })
    }
}
