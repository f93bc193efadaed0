//! The target's schema, resolved to numbers once for each session.

use crate::admission_tables::AdmissionTables;
use crate::conference::ConferenceTables;
use crate::drops::DropCounters;
use crate::event::Facts;
use crate::hash::{LinearHash, from_context};
use crate::notice::LearnFilter;
use crate::relay::{QualityTable, RelayTable};
use crate::row::TableRow;
use crate::sample_tables::SampleTables;
use crate::settings::{Settings, StoredHash};
use crate::tuple::TupleTable;
use bytes::Bytes;
use shunt_bfrt::schema::{Schema, SchemaError, Table};
use shunt_calls::{Counters, Reading, RelayEntry};
use shunt_net::FiveTuple;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The agent's tables.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) schema: Arc<Schema>,
    /// IPv4, IPv6.
    pub(crate) relay: [Option<RelayTable>; 2],
    pub(crate) quality: [Option<QualityTable>; 2],
    pub(crate) trace: [Option<(TupleTable, Arc<Table>)>; 2],
    pub(crate) media: [Option<Arc<Table>>; 2],
    pub(crate) totals: Option<Arc<Table>>,
    pub(crate) drops: DropCounters,
    pub(crate) interface: Option<Arc<Table>>,
    pub(crate) admission: AdmissionTables,
    /// `None`: the target counts on every relay entry, or on none.
    pub(crate) samples: Option<Arc<SampleTables>>,
    /// `None`: the target has no tables for conferences.
    pub(crate) conference: Option<ConferenceTables>,
    pub(crate) learns: Vec<LearnFilter>,
    /// The hash functions under which each relay table may store its keys.
    pub(crate) hashes: [Vec<LinearHash>; 2],
}

fn both<T>(name: &str, make: impl Fn(&str) -> Result<Option<T>, SchemaError>) -> Result<[Option<T>; 2], SchemaError> {
    Ok([make(name)?, make(&format!("{name}6"))?])
}

impl Tables {
    /// Resolves all tables.
    ///
    /// # Errors
    /// What the target lacks, if it cannot serve.
    pub(crate) fn new(schema: &Arc<Schema>, contexts: &[Bytes], settings: &Settings) -> Result<Self, SchemaError> {
        let relay = both("relay", |name| {
            let table = schema.table(name);
            table
                .map(|table| RelayTable::new(table, settings.entry_idle, &settings.marks))
                .transpose()
        })?;
        if relay.iter().all(Option::is_none) {
            return Err(SchemaError("the target has no relay table".into()));
        }
        let mut hashed = HashMap::new();
        for context in contexts {
            hashed.extend(from_context(context).map_err(|error| SchemaError(error.to_string()))?);
        }
        let totals = schema.table("softswitch.totals").cloned();
        let counts = schema.table("softswitch.quality").is_some() || relay.iter().flatten().any(|relay| relay.counters.is_some());
        let whole = totals.is_some() || settings.stored_hash == StoredHash::None;
        let stored = |relay: &Option<RelayTable>| match relay {
            Some(relay) => stored_hashes(declared(&hashed, &relay.name), whole),
            None => Ok(Vec::new()),
        };
        let hashes = [stored(&relay[0])?, stored(&relay[1])?];
        Ok(Self {
            quality: both("softswitch.quality", |name| {
                schema.table(name).map(|table| QualityTable::new(table)).transpose()
            })?,
            trace: both("softswitch.trace", |name| {
                let table = schema.table(name);
                table.map(|table| Ok((TupleTable::new(table)?, Arc::clone(table)))).transpose()
            })?,
            media: both("media", |name| Ok(schema.table(name).cloned()))?,
            interface: schema.table("softswitch.interface").cloned(),
            admission: AdmissionTables::new(schema)?,
            samples: if counts { None } else { SampleTables::new(schema)?.map(Arc::new) },
            conference: ConferenceTables::new(schema),
            drops: DropCounters::new(schema),
            learns: LearnFilter::all(schema)?,
            schema: Arc::clone(schema),
            relay,
            totals,
            hashes,
        })
    }

    pub(crate) fn relay_of(&self, key: &FiveTuple) -> Option<&RelayTable> {
        self.relay[usize::from(key.is_v6())].as_ref()
    }

    /// Returns the table that knows the idle time of an entry of this IP version: `softswitch.quality`, or the relay table itself if it
    /// ages.
    pub(crate) fn timing(&self, v6: bool) -> Option<&TupleTable> {
        let (quality, relay) = (&self.quality[usize::from(v6)], &self.relay[usize::from(v6)]);
        let relay = relay.as_ref().filter(|relay| relay.ttl.is_some()).map(|relay| &relay.tuple);
        quality.as_ref().map(|quality| &quality.tuple).or(relay)
    }

    /// Decodes key and idle time of an entry that [`Tables::timing`] returned.
    pub(crate) fn idle(&self, row: &TableRow<'_>) -> Option<(FiveTuple, Duration)> {
        if let Some(quality) = self.quality.iter().flatten().find(|quality| quality.tuple.id == row.table_id) {
            return Some((quality.tuple.key_of(&row.key)?, quality.idle(row)?));
        }
        let relay = self.relay.iter().flatten().find(|relay| relay.tuple.id == row.table_id)?;
        Some((relay.tuple.key_of(&row.key)?, relay.idle(row)?))
    }

    /// Returns the table with counters for entries of this IP version: `softswitch.quality`, the relay table itself, or the one of sampled
    /// streams.
    pub(crate) fn counting(&self, v6: bool) -> Option<&TupleTable> {
        let (quality, relay) = (&self.quality[usize::from(v6)], &self.relay[usize::from(v6)]);
        let relay = relay.as_ref().filter(|relay| relay.counters.is_some()).map(|relay| &relay.tuple);
        let samples = || self.samples.as_ref()?.counting(v6);
        quality.as_ref().map(|quality| &quality.tuple).or(relay).or_else(samples)
    }

    /// Decodes an entry of [`Tables::counting`].
    pub(crate) fn reading(&self, row: &TableRow<'_>) -> Option<Reading> {
        if let Some(quality) = self.quality.iter().flatten().find(|quality| quality.tuple.id == row.table_id) {
            return Some(Reading {
                key: quality.tuple.key_of(&row.key)?,
                counters: quality.counters(row),
                idle: quality.idle(row),
            });
        }
        if let Some(found) = self.samples.as_ref().and_then(|samples| samples.counters(row)) {
            return Some(Reading {
                key: found.0,
                counters: found.1,
                idle: None,
            });
        }
        let relay = self.relay.iter().flatten().find(|relay| relay.tuple.id == row.table_id)?;
        let (packets, bytes) = relay.counts(row)?;
        let counters = Counters {
            packets,
            bytes,
            ..Counters::default()
        };
        Some(Reading {
            key: relay.tuple.key_of(&row.key)?,
            counters,
            idle: relay.idle(row),
        })
    }

    pub(crate) fn entry(&self, row: &TableRow<'_>) -> Option<RelayEntry> {
        let relay = self.relay.iter().flatten().find(|relay| relay.tuple.id == row.table_id)?;
        relay.entry(row)
    }

    /// Returns whether an entry has another DSCP than the configured one.
    pub(crate) fn is_marked_otherwise(&self, row: &TableRow<'_>, entry: &RelayEntry) -> bool {
        let mut relays = self.relay.iter().flatten();
        let relay = relays.find(|relay| relay.tuple.id == row.table_id);
        relay.is_some_and(|relay| relay.is_marked_otherwise(row, entry))
    }

    pub(crate) fn facts(&self, name: String, capacity: u64) -> Facts {
        let relays = || self.relay.iter().flatten();
        Facts {
            name,
            capacity,
            lacks: self.lacks(),
            stores_hashes: self.hashes.iter().any(|hashes| !hashes.is_empty()),
            reports_idle: relays().all(|relay| relay.ages),
            knows_idle_times: self.quality.iter().any(Option::is_some),
            filters_sources: self.admission.filter_sources(),
            filter_addresses: self.admission.filter_addresses(),
            former_media: Vec::new(),
        }
    }

    /// Returns the missing functions of the target. Each disables itself only.
    fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        for (at, version) in [(0, 4), (1, 6)] {
            let Some(relay) = &self.relay[at] else {
                lacks.push(format!("no relay table for IPv{version}: such media stays on the relay"));
                continue;
            };
            lacks.extend(relay.lacks());
            if self.quality[at].is_none() {
                let samples = self.samples.as_ref().and_then(|samples| samples.describe(at == 1));
                let counts = match (&relay.counters, samples) {
                    (Some(_), _) => "packets and bytes only".to_owned(),
                    (None, Some(samples)) => samples,
                    (None, None) => "nothing is counted".to_owned(),
                };
                lacks.push(format!("no softswitch.quality for IPv{version}: no jitter or idle times, {counts}"));
            }
            if self.media[at].is_none() {
                lacks.push(format!("no media table for IPv{version}: no source can be learned"));
            }
        }
        if !self.admission.filter_sources() {
            lacks.push("no softswitch.source_filter: before the offload a relay gets what unknown sources send".into());
        }
        if !self.admission.blocks_sources() {
            lacks.push("no softswitch.blocklist: a relay gets what scanners send to its ports".into());
        }
        if self.trace.iter().all(Option::is_none) {
            lacks.push("no softswitch.trace: packets cannot be traced through the data plane".into());
        }
        lacks
    }
}

/// Finds a table in a context.json, which names it without the pipe.
fn declared<'a>(hashed: &'a HashMap<String, Vec<LinearHash>>, table: &str) -> Option<&'a Vec<LinearHash>> {
    hashed
        .iter()
        .find(|(name, _)| table == name.as_str() || table.ends_with(&format!(".{name}")))
        .map(|(_, hashes)| hashes)
}

/// Returns the hash functions under which a relay table stores its keys. `whole`: a table that context.json does not describe has none.
///
/// # Errors
/// They are unknown: an agent that computed another function would not see which entries take each other's packets.
fn stored_hashes(described: Option<&Vec<LinearHash>>, whole: bool) -> Result<Vec<LinearHash>, SchemaError> {
    match described {
        Some(hashes) => Ok(hashes.clone()),
        None if whole => Ok(Vec::new()),
        None => Err(SchemaError(
            "the target sends no context.json of its relay table, so the hash under which it stores 5-tuples is unknown; \
             with a build that stores them whole (RELAY_KEY=exact, BMv2) set data_plane.hash to none"
                .into(),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_nothing_describes_is_none_of_the_agents_guesses() {
        let described = from_context(include_bytes!("../../../../p4/generated/hash48-own.tofino1.context.json")).unwrap();
        let own = &described["Ingress.relay"];
        for whole in [false, true] {
            assert_eq!(
                &stored_hashes(Some(own), whole).unwrap(),
                own,
                "the compiler's word precedes the operator's"
            );
            assert_eq!(stored_hashes(Some(&Vec::new()), whole).unwrap(), [], "RELAY_KEY=exact");
        }
        assert_eq!(stored_hashes(None, true).unwrap(), []);
        assert!(stored_hashes(None, false).unwrap_err().to_string().contains("data_plane.hash"));
    }
}
