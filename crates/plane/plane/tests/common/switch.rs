//! A double of bf_switchd: it keeps the tables of any schema in memory as the protocol has them, serves one call of a client at a time, keeps 24
//! bits of the client id for its callbacks, and fails as it is told.

use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::pb::bf_runtime_server::BfRuntimeServer;
use shunt_bfrt::pb::{self, entity, stream_message_response, table_entry, update::Type};
use shunt_bfrt::schema::{Match, Schema, Table};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Mutex as CallLock, mpsc};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;

type Notices = mpsc::Sender<Result<pb::StreamMessageResponse, Status>>;
pub type Key = Vec<(u32, Vec<u8>)>;

/// A register has a value for each.
pub const PIPES: usize = 4;

pub(super) const COOKIE: u32 = 0x00ff_ffff;
const NOT_FOUND: (i32, &str) = (5, "Object not found");
const EXISTS: (i32, &str) = (6, "Already exists");
const NO_SPACE: (i32, &str) = (8, "Not enough space");
const NOT_READY: (i32, &str) = (14, "Not ready");

/// How it fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// It carries Writes out and answers none.
    pub mute: bool,
    /// It neither carries out nor answers.
    pub dead: bool,
    /// So many updates are answered "not ready" first.
    pub not_ready: usize,
    /// Entries that a relay table has room for.
    pub room: Option<usize>,
    /// A Read takes so long.
    pub slow_read: Duration,
    /// And so long for each entry that it returns.
    pub slow_entry: Duration,
    /// Every so-manieth call is answered Unavailable; of these every other one is carried out.
    pub breaks: usize,
}

#[derive(Default)]
pub struct State {
    pub faults: Faults,
    pub tables: HashMap<u32, BTreeMap<Key, pb::TableData>>,
    pub writes: usize,
    pub reads: usize,
    pub attributes: Vec<pb::TableAttribute>,
    pub bound: Vec<u32>,
    /// Packets and bytes counted, by table and key; 7 of anything else.
    pub counted: HashMap<(u32, Key), (u64, u64)>,
    calls: usize,
    pub(super) streams: HashMap<u32, Notices>,
    pub(super) cookie: Option<u32>,
    locks: HashMap<u32, Arc<CallLock<()>>>,
}

#[derive(Clone)]
pub struct Switch {
    pub schema: Arc<Schema>,
    pub(super) documents: [Bytes; 2],
    pub(super) context: Bytes,
    state: Arc<Mutex<State>>,
    pub path: PathBuf,
    serving: Arc<Mutex<Option<tokio::task::JoinHandle<()>>>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.streams.clear();
    }
}

impl Switch {
    /// Serve these two documents at a socket of its own.
    pub fn start(name: &str, program: &[u8], fixed: &[u8], context: &[u8]) -> Self {
        let texts = [program, fixed].map(|text| std::str::from_utf8(text).unwrap());
        let path = std::env::temp_dir().join(format!("plane-{}-{name}.sock", std::process::id()));
        let switch = Self {
            schema: Arc::new(Schema::parse(&texts).unwrap()),
            documents: [Bytes::copy_from_slice(program), Bytes::copy_from_slice(fixed)],
            context: Bytes::copy_from_slice(context),
            state: Arc::default(),
            path,
            serving: Arc::default(),
        };
        switch.serve();
        switch
    }

    pub fn serve(&self) {
        let _ = std::fs::remove_file(&self.path);
        let listener = UnixListener::bind(&self.path).unwrap();
        let service = BfRuntimeServer::new(self.clone()).max_decoding_message_size(usize::MAX);
        let serving = tonic::transport::Server::builder().add_service(service);
        let task = tokio::spawn(async move { serving.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() });
        *self.serving.lock().unwrap() = Some(task);
    }

    /// The process dies: connections end, and with `keep` the tables stay.
    pub fn stop(&self, keep: bool) {
        if let Some(task) = self.serving.lock().unwrap().take() {
            task.abort();
        }
        let mut state = self.state();
        state.streams.clear();
        (state.cookie, state.locks) = (None, HashMap::new());
        if !keep {
            state.tables.clear();
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn table(&self, name: &str) -> Arc<Table> {
        Arc::clone(self.schema.table(name).unwrap())
    }

    /// The rows of a table: its keys' values in the order of the schema, and its data.
    pub fn rows(&self, name: &str) -> Vec<(Vec<Vec<u8>>, pb::TableData)> {
        let rows = self.state().tables.get(&self.table(name).id).cloned().unwrap_or_default();
        rows.into_iter()
            .map(|(key, data)| (key.into_iter().map(|(_, value)| value).collect(), data))
            .collect()
    }

    /// Tell the client that the callbacks' cookie names. False if there is no such client.
    pub fn notify(&self, update: stream_message_response::Update) -> bool {
        let state = self.state();
        let stream = state.cookie.and_then(|cookie| state.streams.get(&cookie));
        stream.is_some_and(|stream| stream.try_send(Ok(pb::StreamMessageResponse { update: Some(update) })).is_ok())
    }

    pub(super) fn lock(&self, client: u32) -> Arc<CallLock<()>> {
        Arc::clone(self.state().locks.entry(client).or_default())
    }

    /// Whether this call breaks, and is carried out all the same.
    pub(super) fn breaks(&self) -> Option<bool> {
        let mut state = self.state();
        state.calls += 1;
        let (calls, every) = (state.calls, state.faults.breaks);
        (every > 0 && calls % every == 0).then(|| calls / every % 2 == 0)
    }

    pub(super) fn apply(&self, encoded: &Bytes) -> Result<(), (i32, &'static str)> {
        let update = pb::Update::decode(encoded.clone()).unwrap();
        let kind = update.r#type();
        let entry = match update.entity.unwrap().entity.unwrap() {
            entity::Entity::TableEntry(entry) => entry,
            entity::Entity::TableAttribute(attribute) => {
                self.state().attributes.push(attribute);
                return Ok(());
            }
            other => panic!("an update of {other:?}"),
        };
        let table = self.schema.table_by_id(entry.table_id).expect("a known table").clone();
        let mut state = self.state();
        if state.faults.not_ready > 0 {
            state.faults.not_ready -= 1;
            return Err(NOT_READY);
        }
        let room = state.faults.room.filter(|_| table.name.contains("relay")).unwrap_or(table.size);
        let rows = state.tables.entry(table.id).or_default();
        let Some(table_entry::Value::Key(key)) = entry.value else {
            assert_eq!(kind, Type::Delete, "no key");
            rows.clear();
            return Ok(());
        };
        let key = key_of(&table, &key);
        if table.table_type == "Register" {
            // All of its rows are there.
            rows.insert(key, entry.data.unwrap_or_default());
            return Ok(());
        }
        match (kind, rows.contains_key(&key)) {
            (Type::Delete, true) => drop(rows.remove(&key)),
            (Type::Delete | Type::Modify, false) => return Err(NOT_FOUND),
            (Type::Insert, true) => return Err(EXISTS),
            (_, false) if rows.len() >= room => return Err(NO_SPACE),
            _ => drop(rows.insert(key, checked(&table, entry.data.unwrap_or_default()))),
        }
        Ok(())
    }

    pub(super) fn answer(&self, encoded: &Bytes) -> Result<Vec<Bytes>, (i32, &'static str)> {
        let state = self.state();
        let entry = match pb::Entity::decode(encoded.clone()).unwrap().entity.unwrap() {
            entity::Entity::TableEntry(entry) => entry,
            entity::Entity::TableUsage(usage) => {
                let count = state.tables.get(&usage.table_id).map_or(0, BTreeMap::len);
                let usage = pb::TableUsage {
                    usage: count as u32,
                    ..usage
                };
                return Ok(vec![encode(entity::Entity::TableUsage(usage))]);
            }
            other => panic!("a read of {other:?}"),
        };
        let table = self.schema.table_by_id(entry.table_id).expect("a known table");
        let empty = BTreeMap::new();
        let rows = state.tables.get(&table.id).unwrap_or(&empty);
        if let Some(table_entry::Value::Key(key)) = &entry.value {
            let key = key_of(table, key);
            if table.table_type == "Register" {
                let zeros = register(table, [0; PIPES]);
                return Ok(vec![encode_row(table, &key, rows.get(&key).unwrap_or(&zeros), None)]);
            }
            let data = rows.get(&key).ok_or(NOT_FOUND)?;
            return Ok(vec![encode_row(table, &key, data, state.counted.get(&(table.id, key.clone())))]);
        }
        let mut found: Vec<Bytes> = rows
            .iter()
            .map(|(key, data)| encode_row(table, key, data, state.counted.get(&(table.id, key.clone()))))
            .collect();
        if !table.actions.is_empty() {
            let default = pb::TableEntry {
                table_id: table.id,
                is_default_entry: true,
                data: Some(pb::TableData::default()),
                ..Default::default()
            };
            found.push(encode(entity::Entity::TableEntry(default)));
        }
        Ok(found)
    }
}

fn encode(entity: entity::Entity) -> Bytes {
    pb::Entity { entity: Some(entity) }.encode_to_vec().into()
}

/// A row of a register of one field: its values in the pipes.
pub fn register(table: &Table, values: [u16; PIPES]) -> pb::TableData {
    let field = table.data.iter().next().unwrap();
    let fields = values.iter().map(|value| {
        let bytes = u64::from(*value).to_be_bytes();
        shunt_bfrt::values::stream(field.id, &bytes[8 - field.size().unwrap()..])
    });
    pb::TableData {
        action_id: 0,
        fields: fields.collect(),
    }
}

fn encode_row(table: &Table, key: &Key, data: &pb::TableData, counted: Option<&(u64, u64)>) -> Bytes {
    use pb::key_field::{Exact, MatchType, Range};
    let fields = key.iter().map(|(id, value)| {
        let is_range = table.key.by_id(*id).unwrap().matches == Some(Match::Range);
        let match_type = if is_range {
            let (low, high) = value.split_at(value.len() / 2);
            MatchType::Range(Range {
                low: Bytes::copy_from_slice(low),
                high: Bytes::copy_from_slice(high),
            })
        } else {
            MatchType::Exact(Exact {
                value: Bytes::copy_from_slice(value),
            })
        };
        pb::KeyField {
            field_id: *id,
            match_type: Some(match_type),
        }
    });
    let mut data = data.clone();
    let (packets, bytes) = counted.copied().unwrap_or((7, 7));
    for (name, count) in [("$COUNTER_SPEC_PKTS", packets), ("$COUNTER_SPEC_BYTES", bytes)] {
        if let Some(field) = table
            .data
            .find(name)
            .filter(|field| !data.fields.iter().any(|given| given.field_id == field.id))
        {
            data.fields.push(shunt_bfrt::values::stream(field.id, count.to_be_bytes()));
        }
    }
    let entry = pb::TableEntry {
        table_id: table.id,
        value: Some(table_entry::Value::Key(pb::TableKey { fields: fields.collect() })),
        data: Some(data),
        ..Default::default()
    };
    encode(entity::Entity::TableEntry(entry))
}

/// Every field of the key must be there, and have its size.
fn key_of(table: &Table, key: &pb::TableKey) -> Key {
    use pb::key_field::MatchType;
    let value = |id: u32| {
        let field = key.fields.iter().find(|field| field.field_id == id).expect("a whole key");
        match field.match_type.as_ref().unwrap() {
            MatchType::Exact(exact) => exact.value.to_vec(),
            MatchType::Range(range) => [&range.low[..], &range.high].concat(),
            other => panic!("{other:?}"),
        }
    };
    let mut found: Key = Vec::new();
    for field in &table.key {
        let bytes = value(field.id);
        let size = field.size().unwrap() * if field.matches == Some(Match::Range) { 2 } else { 1 };
        assert_eq!(bytes.len(), size, "{} of {}", field.name, table.name);
        found.push((field.id, bytes));
    }
    assert_eq!(found.len(), key.fields.len());
    found
}

/// The server's own checks of an entry's data.
fn checked(table: &Table, data: pb::TableData) -> pb::TableData {
    shunt_bfrt::values::Data::decode(table, Some(&data)).unwrap();
    data
}
