//! Packets that a switch has dropped, by reason: the counters `Ingress.dropped` and `Egress.dropped` of its program (docs/switch.md).

use crate::error::PlaneError;
use crate::rows::{self, Value};
use shunt_bfrt::pb::{self, entity};
use shunt_bfrt::schema::{Schema, Table};
use shunt_bfrt_client::Session;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The reason of each row of a counter (p4/include/config.p4).
type Reasons = &'static [(u64, &'static str)];

const COUNTERS: [(&str, Reasons); 2] = [
    ("Ingress.dropped", &[(1, "not_addressed"), (2, "not_ip"), (3, "unrouted")]),
    (
        "Egress.dropped",
        &[
            (1, "unknown_nexthop"),
            (2, "turned_back"),
            (3, "too_big"),
            (4, "no_copy"),
            (5, "above_target"),
            (6, "late_copy"),
        ],
    ),
];

/// Prefix of the names of these totals; the reason follows.
pub const DROPPED: &str = "dropped.";

/// The counters of a target; the softswitch has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct DropCounters(Vec<(Arc<Table>, Reasons)>);

impl DropCounters {
    pub(crate) fn new(schema: &Schema) -> Self {
        let found = COUNTERS.iter().filter_map(|(name, reasons)| {
            let table = schema.table(name).filter(|table| table.table_type == "Counter")?;
            Some((Arc::clone(table), *reasons))
        });
        Self(found.collect())
    }

    /// Reads the packets of all pipes by reason.
    ///
    /// # Errors
    /// The target does not answer, or has no such rows.
    pub(crate) async fn read(&self, session: &Session, timeout: Duration) -> Result<BTreeMap<String, u64>, PlaneError> {
        let mut found = BTreeMap::new();
        for (table, reasons) in &self.0 {
            let questions = reasons.iter().map(|(index, _)| question(table, *index));
            let answers = session.read(questions.collect::<Result<_, _>>()?, timeout).await?;
            for row in answers.into_iter().filter_map(|entity| rows::decode(table, entity)) {
                let reason = reasons.iter().find(|(index, _)| row.number("$COUNTER_INDEX") == Some(*index));
                if let (Some((_, reason)), Some(packets)) = (reason, row.number("$COUNTER_SPEC_PKTS")) {
                    found.insert(format!("{DROPPED}{reason}"), packets);
                }
            }
        }
        Ok(found)
    }
}

fn question(table: &Table, index: u64) -> Result<pb::Entity, PlaneError> {
    let mut question = rows::question(table, &[("$COUNTER_INDEX".to_owned(), Value::Number(index))])?;
    if let Some(entity::Entity::TableEntry(entry)) = &mut question.entity {
        // Otherwise a switch answers with the values that its driver read last.
        entry.table_flags = Some(pb::TableFlags {
            from_hw: true,
            ..Default::default()
        });
    }
    Ok(question)
}
