//! `softswitch.trace` and `trace6`: where a packet of a 5-tuple would go. Read only, by key.

use super::{Change, Row, Table, flow, flow_fields};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Key, text};
use std::sync::Arc;

/// Traces of one IP version.
pub struct TraceTable {
    schema: Arc<schema::Table>,
}

impl TraceTable {
    pub fn new(schema: Arc<schema::Table>) -> Self {
        Self { schema }
    }
}

impl Table for TraceTable {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, _plane: &Plane, _key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(true)
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        let flow = flow(key);
        let found = plane.trace(&flow).map_err(|fault| self.fault(Change::Modify, &fault))?;
        let value = |name: &str| match name {
            "verdict" => found.verdict.clone(),
            "reason" => found.reason.clone(),
            "out_src" => found.out_src.clone(),
            "out_dst" => found.out_dst.clone(),
            "out_interface" => found.out_interface.clone(),
            _ => String::new(),
        };
        let data = self.schema.data.iter().map(|field| text(field.id, value(&field.name))).collect();
        Ok(Row {
            key: flow_fields(&flow),
            action: 0,
            data,
        })
    }
}
