//! `sample` and `sample6`, and the registers of sampled streams: writes and reads them.

use crate::error::PlaneError;
use crate::row::TableRow;
use crate::samples::Samples;
use crate::tuple::{Slot, TupleTable, fill_key};
use crate::wire::Part;
use bytes::{Bytes, BytesMut};
use prost::Message as _;
use shunt_bfrt::pb::{self, data_field, entity, key_field::MatchType, table_entry, update::Type};
use shunt_bfrt::schema::{Schema, SchemaError, Table};
use shunt_bfrt::values::{exact, number};
use shunt_bfrt_client::Session;
use shunt_calls::Counters;
use shunt_net::FiveTuple;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Rows per Write request, and keys per Read request.
const AT_ONCE: usize = 500;
/// Codes of google.rpc.Code.
const NOT_FOUND: i32 = 5;
const EXISTS: i32 = 6;

/// `sample` or `sample6`.
#[derive(Clone, Debug)]
struct SampleTable {
    name: String,
    tuple: TupleTable,
    room: u32,
    index: u32,
    packets: u32,
    bytes: u32,
    insert: Part<Slot>,
    modify: Part<Slot>,
    delete: Part<Slot>,
}

impl SampleTable {
    fn new(table: &Table) -> Result<Self, SchemaError> {
        let tuple = TupleTable::new(table)?;
        let named = |name: &str| table.data.named(name).map(|field| field.id);
        let mut actions = table.actions.iter().filter(|action| !action.default_only);
        let found = actions.find_map(|action| Some((action.id, action.fields.find("index")?)));
        let (action, index) = found.ok_or_else(|| SchemaError(format!("{}: no action names the registers of a stream", table.name)))?;
        let size = index
            .size()
            .filter(|size| (1..=4).contains(size))
            .ok_or_else(|| SchemaError(format!("{}: {} is no index", table.name, index.name)))?;
        let value = Part::new().number(1, index.id.into()).hole(2, size, Slot::Index);
        let data = Part::new().number(1, action.into()).message(2, &value);
        Ok(Self {
            name: table.name.clone(),
            room: u32::try_from(table.size).unwrap_or(u32::MAX),
            index: index.id,
            packets: named("$COUNTER_SPEC_PKTS")?,
            bytes: named("$COUNTER_SPEC_BYTES")?,
            insert: tuple.update(Type::Insert.into(), Some(&data)),
            modify: tuple.update(Type::Modify.into(), Some(&data)),
            delete: tuple.update(Type::Delete.into(), None),
            tuple,
        })
    }

    fn count(&self, arena: &mut BytesMut, key: &FiveTuple, index: u32, is_there: bool) -> Bytes {
        let template = if is_there { &self.modify } else { &self.insert };
        template.fill(arena, |slot, hole| match slot {
            Slot::Index => {
                let bytes = index.to_be_bytes();
                hole.copy_from_slice(&bytes[bytes.len() - hole.len()..]);
            }
            _ => fill_key(slot, hole, key),
        })
    }

    fn leave(&self, arena: &mut BytesMut, key: &FiveTuple) -> Bytes {
        self.delete.fill(arena, |slot, hole| fill_key(slot, hole, key))
    }
}

/// The target's tables for sampled streams, and the streams that it counts in this session.
#[derive(Debug)]
pub(crate) struct SampleTables {
    /// IPv4, IPv6.
    tables: [Option<SampleTable>; 2],
    /// The register that sums how far each packet was ahead of the expected number.
    missing: Option<Arc<Table>>,
    samples: Mutex<Samples>,
}

impl SampleTables {
    /// Resolves the tables; `None`: the target has none.
    ///
    /// # Errors
    /// A table of these names has another form than the agent knows.
    pub(crate) fn new(schema: &Schema) -> Result<Option<Self>, SchemaError> {
        let find = |name: &str| schema.table(name).map(|table| SampleTable::new(table)).transpose();
        let tables = [find("Ingress.sample")?, find("Ingress.sample6")?];
        let exists = tables.iter().any(Option::is_some);
        Ok(exists.then(|| Self {
            tables,
            missing: schema.table("Ingress.missing").cloned(),
            samples: Mutex::default(),
        }))
    }

    pub(crate) fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, key: &FiveTuple) -> Option<&SampleTable> {
        self.tables[usize::from(key.is_v6())].as_ref()
    }

    /// Returns the table of this IP version, if it counts.
    pub(crate) fn counting(&self, v6: bool) -> Option<&TupleTable> {
        self.tables[usize::from(v6)].as_ref().map(|table| &table.tuple)
    }

    fn table_of(&self, row: &TableRow<'_>) -> Option<&SampleTable> {
        self.tables.iter().flatten().find(|table| table.tuple.id == row.table_id)
    }

    /// Decodes key and counters of a row.
    pub(crate) fn counters(&self, row: &TableRow<'_>) -> Option<(FiveTuple, Counters)> {
        let table = self.table_of(row)?;
        let get = |id| row.data.number(id).unwrap_or(0);
        let counters = Counters {
            packets: get(table.packets),
            bytes: get(table.bytes),
            ..Counters::default()
        };
        Some((table.tuple.key_of(&row.key)?, counters))
    }

    /// Continues with the streams that the target counts already.
    pub(crate) async fn adopt(&self, session: &Session) -> Result<(), PlaneError> {
        let mut found = Vec::new();
        for table in self.tables.iter().flatten() {
            let take = |part: Vec<Bytes>| {
                found.extend(part.iter().filter_map(|entity| {
                    let row = TableRow::decode(entity).ok()??;
                    let index = row.data.number(table.index)?;
                    Some((table.tuple.key_of(&row.key)?, u32::try_from(index).ok()?))
                }));
            };
            session
                .read_all_encoded(vec![table.tuple.request_all()], crate::questions::ALL_TIMEOUT, take)
                .await?;
        }
        let room = self.tables.iter().flatten().map(|table| table.room).max().unwrap_or(0);
        *self.samples() = Samples::adopt(room, found);
        Ok(())
    }

    /// Writes all changes, some at a time. A rejected stream is not counted.
    pub(crate) async fn settle(&self, session: &Session) -> Result<(), PlaneError> {
        loop {
            let turn = self.samples().take(AT_ONCE);
            if turn.count.is_empty() && turn.leave.is_empty() {
                return Ok(());
            }
            let mut arena = BytesMut::new();
            let mut updates = Vec::with_capacity(turn.leave.len() + turn.count.len());
            updates.extend(turn.leave.iter().filter_map(|key| Some(self.of(key)?.leave(&mut arena, key))));
            let counted = turn.count.iter().filter(|(key, _)| self.of(key).is_some());
            let counted: Vec<(FiveTuple, u32)> = counted.copied().collect();
            updates.extend(
                counted
                    .iter()
                    .filter_map(|(key, index)| Some(self.of(key)?.count(&mut arena, key, *index, false))),
            );
            let mut answers = session.write(updates, TIMEOUT).await?.into_iter();
            for (key, answer) in turn.leave.iter().zip(answers.by_ref()) {
                match answer {
                    Err(error) if error.code != NOT_FOUND => tracing::debug!("the counters of {key} stay taken: {}", error.message),
                    _ => self.samples().release(key),
                }
            }
            let mut again = Vec::new();
            for ((key, index), answer) in counted.into_iter().zip(answers) {
                match answer {
                    Ok(()) => {}
                    Err(error) if error.code == EXISTS => again.push((key, index)),
                    Err(error) => {
                        tracing::debug!("{key} is not counted: {}", error.message);
                        self.samples().release(&key);
                    }
                }
            }
            if !again.is_empty() {
                let update = |(key, index): &(FiveTuple, u32)| Some(self.of(key)?.count(&mut arena, key, *index, true));
                let updates = again.iter().filter_map(update).collect();
                for ((key, _), answer) in again.iter().zip(session.write(updates, TIMEOUT).await?) {
                    if answer.is_err() {
                        self.samples().release(key);
                    }
                }
            }
        }
    }

    /// Adds the losses of these streams, as far as the target reports them.
    pub(crate) async fn add_losses(
        &self,
        session: &Session,
        found: &mut [(FiveTuple, Counters)],
        timeout: Duration,
    ) -> Result<(), PlaneError> {
        let Some(register) = &self.missing else { return Ok(()) };
        let place = register.key.named("$REGISTER_INDEX")?;
        let width = place.size().unwrap_or(4);
        for found in found.chunks_mut(AT_ONCE) {
            let mut asked: HashMap<u64, &mut (FiveTuple, Counters)> = HashMap::new();
            for one in found {
                let index = self.samples().index(&one.0);
                asked.extend(index.map(|index| (u64::from(index), one)));
            }
            let question = |index: &u64| {
                let bytes = index.to_be_bytes();
                let entry = pb::TableEntry {
                    table_id: register.id,
                    value: Some(table_entry::Value::Key(pb::TableKey {
                        fields: vec![exact(place.id, &bytes[bytes.len().saturating_sub(width)..])],
                    })),
                    table_flags: Some(pb::TableFlags {
                        from_hw: true,
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                pb::Entity {
                    entity: Some(entity::Entity::TableEntry(entry)),
                }
            };
            if asked.is_empty() {
                continue;
            }
            for entity in session.read(asked.keys().map(question).collect(), timeout).await? {
                let Some((index, sum)) = register_row(register, place.id, entity) else {
                    continue;
                };
                if let Some((key, counters)) = asked.get_mut(&index).map(|one| (one.0, &mut one.1)) {
                    self.samples().add_losses(&key, counters, sum);
                }
            }
        }
        Ok(())
    }

    /// Returns what it counts, for operators.
    pub(crate) fn describe(&self, v6: bool) -> Option<String> {
        let table = self.tables[usize::from(v6)].as_ref()?;
        let name = table.name.rsplit('.').next().unwrap_or(&table.name);
        Some(format!("packets, bytes and losses of {} streams only ({name})", table.room))
    }
}

/// Decodes index and value of a register. Each pipe has a value; only the pipe where the stream arrives changes.
fn register_row(register: &Table, place: u32, encoded: Bytes) -> Option<(u64, u16)> {
    let Some(entity::Entity::TableEntry(entry)) = pb::Entity::decode(encoded).ok()?.entity else {
        return None;
    };
    let Some(table_entry::Value::Key(key)) = entry.value else {
        return None;
    };
    let index = key.fields.iter().find(|field| field.field_id == place)?;
    let Some(MatchType::Exact(index)) = &index.match_type else {
        return None;
    };
    let value = register.data.iter().next()?.id;
    let data = entry.data.unwrap_or_default();
    let sum = data
        .fields
        .iter()
        .filter(|field| field.field_id == value)
        .fold(0_u16, |sum, field| {
            let bytes = match &field.value {
                Some(data_field::Value::Stream(bytes)) => number(bytes),
                _ => 0,
            };
            sum.wrapping_add(bytes as u16)
        });
    Some((number(&index.value), sum))
}
