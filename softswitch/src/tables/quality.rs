//! `softswitch.quality` and `quality6`: counters of relay entries, and reception by RFC 3550. Read only.

use super::{Change, Each, Position, Row, Table, flow, flow_fields};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Key, sized};
use shunt_relay_table::{Cursor, RelayEntry, StreamStats};
use std::sync::Arc;

/// The statistics of one IP version.
pub struct Quality {
    schema: Arc<schema::Table>,
    v6: bool,
}

impl Quality {
    pub fn new(schema: Arc<schema::Table>, v6: bool) -> Self {
        Self { schema, v6 }
    }

    fn row(&self, entry: &RelayEntry, stats: &StreamStats) -> Row {
        let reception = stats.reception.unwrap_or_default();
        let value = |name: &str| match name {
            "packets" => stats.packets,
            "bytes" => stats.bytes,
            "idle_ms" => stats.idle_ms,
            "lost" => reception.lost.into(),
            "reordered" => reception.reordered.into(),
            "duplicates" => reception.duplicates.into(),
            "jitter_us" => reception.jitter_us.into(),
            "ssrc" => reception.ssrc.into(),
            "source_mismatch" => stats.source_mismatch.into(),
            _ => 0,
        };
        let data = self.schema.data.iter().map(|field| sized(field, value(&field.name))).collect();
        Row {
            key: flow_fields(&entry.key),
            action: 0,
            data,
        }
    }
}

impl Table for Quality {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(plane
            .relay
            .get(&flow(key))
            .map_err(|fault| self.fault(Change::Modify, &fault))?
            .is_some())
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        let found = plane.clock().and_then(|clock| plane.relay.stats(&flow(key), clock));
        let (entry, stats) = found
            .map_err(|fault| self.fault(Change::Modify, &fault))?
            .ok_or_else(|| self.absent())?;
        Ok(self.row(&entry, &stats))
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        let cursor = at.get_or_insert_with(|| Box::new(Cursor::default())).downcast_mut::<Cursor>();
        let Some(cursor) = cursor else { return Ok(true) };
        let failed = |fault| self.fault(Change::Modify, &fault);
        let clock = plane.clock().map_err(failed)?;
        plane
            .relay
            .scan(cursor, self.v6, clock, |entry, stats| each(self.row(entry, stats)))
            .map_err(failed)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(plane.relay.count(self.v6))
    }

    fn handle_key(&self, key: &Key<'_>) -> Option<shunt_net::FiveTuple> {
        Some(flow(key))
    }
}
