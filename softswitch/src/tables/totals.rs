//! `softswitch.totals`: counters of the whole data plane. It has a default entry only.

use super::{Row, Table};
use crate::plane::Plane;
use shunt_abi::relay::reason;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Key, sized};
use std::sync::Arc;

/// The totals.
pub struct Totals {
    schema: Arc<schema::Table>,
}

impl Totals {
    pub fn new(schema: Arc<schema::Table>) -> Self {
        Self { schema }
    }
}

impl Table for Totals {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, _plane: &Plane, _key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(false)
    }

    fn read(&self, _plane: &Plane, _key: &Key<'_>) -> Result<Row, BfrtError> {
        Err(self.absent())
    }

    fn default_entry(&self, plane: &Plane) -> Result<Option<Row>, BfrtError> {
        let totals = plane.totals();
        let all: u64 = totals.reasons.iter().sum();
        let elsewhere: u64 = [
            reason::RELAYED,
            reason::MISS,
            reason::SOURCE_MISMATCH,
            reason::OVER_LIMIT,
            reason::CONFERENCE,
            reason::BLOCKED,
        ]
        .into_iter()
        .map(|one| totals.of(one))
        .sum();
        let agent = plane.agent_counts();
        let value = |name: &str| match name {
            "rx_packets" => all,
            "relayed_packets" => totals.of(reason::RELAYED),
            "relayed_bytes" => totals.relayed_bytes,
            "missed_packets" => totals.of(reason::MISS),
            "source_mismatch_packets" => totals.of(reason::SOURCE_MISMATCH),
            "passed_packets" => all - elsewhere,
            "blocked_packets" => totals.of(reason::BLOCKED),
            "limited_packets" => totals.of(reason::OVER_LIMIT),
            "conference_packets" => totals.of(reason::CONFERENCE),
            "too_big_packets" => totals.of(reason::TOO_BIG),
            "unrouted_packets" => totals.of(reason::NO_NEXTHOP),
            "other_mac_packets" => totals.of(reason::NOT_FOR_US),
            "learn_notices" => totals.notices,
            "learn_suppressed" => totals.suppressed,
            "learn_lost" => totals.lost,
            "agent_packets" => agent.copied,
            "agent_suppressed" => agent.suppressed,
            "agent_lost" => agent.lost,
            "entries" => plane.relay.len() as u64,
            "capacity" => plane.relay.capacity() as u64,
            _ => 0,
        };
        let data = self.schema.data.iter().map(|field| sized(field, value(&field.name))).collect();
        Ok(Some(Row {
            key: Vec::new(),
            action: 0,
            data,
        }))
    }
}
