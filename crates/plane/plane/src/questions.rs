//! Questions to the data plane, in the caller's task.

use crate::batch::{counters_of, reading_of};
use crate::error::PlaneError;
use crate::row::TableRow;
use crate::rows::{self, Row};
use crate::tables::Tables;
use bytes::{Bytes, BytesMut};
use shunt_bfrt::pb::{self, entity};
use shunt_bfrt::schema::Table;
use shunt_bfrt_client::Session;
use shunt_calls::{Counters, Idle, Reading, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline for a whole table. A switch answers only when it has read all of it: a million entries take a minute or two.
pub(crate) const ALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Keys per Read request. A larger one would delay the writes after it.
const AT_ONCE: usize = 500;

/// The data plane's answer to a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub verdict: String,
    pub reason: String,
    pub out_src: String,
    pub out_dst: String,
    pub out_interface: String,
}

/// Reads entries by key, some hundred at a time, and decodes them.
async fn ask_for<T>(
    session: &Session,
    keys: &[FiveTuple],
    request: impl Fn(&mut BytesMut, &FiveTuple) -> Option<Bytes>,
    read: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, PlaneError> {
    let (mut arena, mut found) = (BytesMut::new(), Vec::with_capacity(keys.len()));
    for keys in keys.chunks(AT_ONCE) {
        let requests: Vec<Bytes> = keys.iter().filter_map(|key| request(&mut arena, key)).collect();
        if !requests.is_empty() {
            found.extend(
                session
                    .read_encoded(requests, TIMEOUT)
                    .await?
                    .iter()
                    .filter_map(|entity| read(entity)),
            );
        }
    }
    Ok(found)
}

pub(crate) async fn readings(session: &Session, tables: &Tables, keys: &[FiveTuple]) -> Result<Vec<Reading>, PlaneError> {
    let request = |arena: &mut BytesMut, key: &FiveTuple| Some(tables.counting(key.is_v6())?.request(arena, key));
    let mut found = ask_for(session, keys, request, |entity| reading_of(tables, entity)).await?;
    if let Some(samples) = &tables.samples {
        let mut counted: Vec<(FiveTuple, Counters)> = found.iter().map(|reading| (reading.key, reading.counters)).collect();
        samples.add_losses(session, &mut counted, TIMEOUT).await?;
        for (reading, (_, counters)) in found.iter_mut().zip(counted) {
            reading.counters = counters;
        }
    }
    Ok(found)
}

/// Reads when entries last matched a packet: one result for each key.
pub(crate) async fn idle_times(session: &Session, tables: &Tables, keys: &[FiveTuple]) -> Result<Vec<Idle>, PlaneError> {
    let request = |arena: &mut BytesMut, key: &FiveTuple| Some(tables.timing(key.is_v6())?.request(arena, key));
    let read = |entity: &[u8]| tables.idle(&TableRow::decode(entity).ok()??);
    let found: HashMap<FiveTuple, Duration> = ask_for(session, keys, request, read).await?.into_iter().collect();
    let idle = keys.iter().map(|key| Idle {
        key: *key,
        idle: found.get(key).copied(),
        sequence: None,
    });
    Ok(idle.collect())
}

/// Reads all relay entries with the client for large reads, and the ports of those with another DSCP than the configured one. Entries that
/// the agent cannot have written are left out.
pub(crate) async fn entries(session: &Session, tables: &Tables) -> Result<(Vec<RelayEntry>, HashSet<Endpoint>), PlaneError> {
    let (mut found, mut marked_otherwise) = (Vec::new(), HashSet::new());
    for relay in tables.relay.iter().flatten() {
        let request = relay.tuple.request_all();
        let take = |part: Vec<Bytes>| {
            for row in part.iter().filter_map(|entity| TableRow::decode(entity).ok()?) {
                let Some(entry) = tables.entry(&row) else { continue };
                if tables.is_marked_otherwise(&row, &entry) {
                    marked_otherwise.insert(entry.port());
                }
                found.push(entry);
            }
        };
        session.read_all_encoded(vec![request], ALL_TIMEOUT, take).await?;
    }
    Ok((found, marked_otherwise))
}

pub(crate) async fn all_counters(session: &Session, tables: &Tables) -> Result<Vec<(FiveTuple, Counters)>, PlaneError> {
    let mut found = Vec::new();
    for table in [false, true].into_iter().filter_map(|v6| tables.counting(v6)) {
        let take = |part: Vec<Bytes>| found.extend(part.iter().filter_map(|entity| counters_of(tables, entity)));
        session.read_all_encoded(vec![table.request_all()], ALL_TIMEOUT, take).await?;
    }
    if let Some(samples) = &tables.samples {
        samples.add_losses(session, &mut found, TIMEOUT).await?;
    }
    Ok(found)
}

pub(crate) fn whole(table: &Table, default: bool) -> pb::Entity {
    let entry = pb::TableEntry {
        table_id: table.id,
        is_default_entry: default,
        ..Default::default()
    };
    pb::Entity {
        entity: Some(entity::Entity::TableEntry(entry)),
    }
}

/// Reads a whole table with the client for large reads.
pub(crate) async fn read_table(session: &Session, table: &Table, timeout: Duration) -> Result<Vec<Row>, PlaneError> {
    let mut found = Vec::new();
    let take = |part: Vec<Bytes>| found.extend(part.into_iter().filter_map(|entity| rows::decode(table, entity)));
    session.read_all(vec![whole(table, false)], timeout, take).await?;
    Ok(found)
}

/// Reads counters of the whole data plane by name; at least `entries` and `capacity`.
pub(crate) async fn totals(session: &Session, tables: &Tables) -> Result<BTreeMap<String, u64>, PlaneError> {
    let Some(table) = &tables.totals else {
        let entries = usage(session, tables).await?.values().map(|(used, _)| used).sum();
        let capacity = tables.relay.iter().flatten().map(|relay| relay.size as u64).sum();
        let mut totals = BTreeMap::from([("entries".to_owned(), entries), ("capacity".to_owned(), capacity)]);
        totals.extend(tables.drops.read(session, TIMEOUT).await?);
        return Ok(totals);
    };
    let found = session.read(vec![whole(table, true)], TIMEOUT).await?;
    let row = found.into_iter().find_map(|entity| rows::decode(table, entity));
    let row = row.ok_or_else(|| PlaneError::Refused(format!("{} has no row", table.name)))?;
    let numbers = row.data.iter().filter_map(|(name, _)| Some((name.clone(), row.number(name)?)));
    Ok(numbers.collect())
}

/// Reads the interfaces, each with the mode of its program; `None`: the data plane has no such table.
pub(crate) async fn interfaces(session: &Session, tables: &Tables) -> Result<Option<Vec<(String, String)>>, PlaneError> {
    let Some(table) = &tables.interface else { return Ok(None) };
    let found = read_table(session, table, TIMEOUT).await?;
    let text = |row: &Row, name| row.text(name).unwrap_or_default().to_owned();
    Ok(Some(found.iter().map(|row| (text(row, "name"), text(row, "mode"))).collect()))
}

/// Reads the number of entries in each relay table, and its size.
pub(crate) async fn usage(session: &Session, tables: &Tables) -> Result<BTreeMap<String, (u64, u64)>, PlaneError> {
    use prost::Message as _;
    let mut usage = BTreeMap::new();
    for relay in tables.relay.iter().flatten() {
        let question = pb::TableUsage {
            table_id: relay.tuple.id,
            ..Default::default()
        };
        let entity = entity::Entity::TableUsage(question);
        let found = session.read(vec![pb::Entity { entity: Some(entity) }], TIMEOUT).await?;
        let answers = found.into_iter().filter_map(|entity| pb::Entity::decode(entity).ok()?.entity);
        for answer in answers {
            if let entity::Entity::TableUsage(answer) = answer {
                usage.insert(relay.name.clone(), (answer.usage.into(), relay.size as u64));
            }
        }
    }
    Ok(usage)
}

pub(crate) async fn trace(session: &Session, tables: &Tables, key: &FiveTuple) -> Result<Trace, PlaneError> {
    let Some((tuple, table)) = &tables.trace[usize::from(key.is_v6())] else {
        return Err(PlaneError::Schema("this data plane cannot trace packets".into()));
    };
    let found = session
        .read_encoded(vec![tuple.request(&mut BytesMut::new(), key)], TIMEOUT)
        .await?;
    let row = found.into_iter().find_map(|entity| rows::decode(table, entity));
    let row = row.ok_or_else(|| PlaneError::Refused(format!("no answer to a trace of {key}")))?;
    let text = |name| row.text(name).unwrap_or_default().to_owned();
    Ok(Trace {
        verdict: text("verdict"),
        reason: text("reason"),
        out_src: text("out_src"),
        out_dst: text("out_dst"),
        out_interface: text("out_interface"),
    })
}
