//! Read requests: entries, usage, attributes, ids and handles, in messages of bounded size.

use crate::failures::{Failures, Words};
use crate::options::Options;
use crate::plane::Plane;
use crate::sessions::check_pipe;
use crate::slice::{Slice, pause};
use crate::tables::{Position, Registry, Row, Table};
use crate::write::attribute_name;
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{ReadRequest, ReadResponse};
use shunt_bfrt::pb::{self, entity, idle_table::IdleTableMode, mode, object_id, table_attribute, table_entry};
use shunt_bfrt::schema;
use shunt_bfrt::values::Key;
use shunt_bfrt::{BfrtError, Code};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};
use tonic::Status;

/// Entities per message.
const CHUNK: usize = 1024;
const WORDS: Words = Words {
    status: "Read Error Status",
    members: "entities",
    done: "read",
};

type Sender = mpsc::Sender<Result<ReadResponse, Status>>;

/// One Read of the tables of the client's program.
pub struct Reader {
    pub plane: Arc<Mutex<Plane>>,
    pub tables: Arc<Registry>,
    pub sender: Sender,
    out: Vec<Bytes>,
    sent: bool,
}

/// The client has disconnected.
struct Closed;

/// Reason why an entity has no answer.
enum Stop {
    Error(BfrtError),
    Closed,
}

impl From<BfrtError> for Stop {
    fn from(error: BfrtError) -> Self {
        Self::Error(error)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl Reader {
    pub fn new(plane: Arc<Mutex<Plane>>, tables: Arc<Registry>, sender: Sender) -> Self {
        Self {
            plane,
            tables,
            sender,
            out: Vec::new(),
            sent: false,
        }
    }

    /// Answers a request: first all results, then the status.
    pub async fn read(mut self, request: ReadRequest, options: Options) {
        let last = match self.all(&request, options).await {
            Ok(status) => status,
            Err(Stop::Error(error)) => Some(error.into()),
            Err(Stop::Closed) => return,
        };
        if let Some(status) = last {
            let _ = self.sender.send(Err(status)).await;
        }
    }

    async fn all(&mut self, request: &ReadRequest, options: Options) -> Result<Option<Status>, Stop> {
        let mut failures = Failures::default();
        let mut broken_off = None;
        for (position, encoded) in request.entities.iter().enumerate() {
            options.check_deadline("Read")?;
            if !options.error_in_resp && failures.is_beyond_naming(position) {
                broken_off = Some(position);
                break;
            }
            let entity = match pb::Entity::decode(encoded.clone()) {
                Ok(entity) => entity,
                Err(error) if position == 0 => return Ok(Some(Status::internal(format!("Exception deserializing request! {error}")))),
                Err(error) => {
                    failures.add(
                        position,
                        BfrtError::new(Code::Invalid, format!("Exception deserializing entity! {error}")),
                    );
                    continue;
                }
            };
            match self.one(&entity).await {
                Ok(()) => {}
                Err(Stop::Error(error)) => {
                    if matches!(entity.entity, Some(entity::Entity::TableOperation(_))) {
                        return Err(Stop::Error(error));
                    }
                    failures.add(position, error);
                }
                Err(Stop::Closed) => return Err(Stop::Closed),
            }
        }
        if options.error_in_resp {
            let status = (0..request.entities.len()).map(|position| failures.error(position)).collect();
            let entities = std::mem::take(&mut self.out);
            self.send(ReadResponse { entities, status }).await?;
            return Ok(None);
        }
        if !self.out.is_empty() || !self.sent {
            self.flush().await?;
        }
        if failures.is_empty() {
            return Ok(None);
        }
        Ok(Some(failures.status(WORDS, request.entities.len(), broken_off)))
    }

    async fn send(&mut self, response: ReadResponse) -> Result<(), Closed> {
        self.sent = true;
        self.sender.send(Ok(response)).await.map_err(|_| Closed)
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        let entities = std::mem::take(&mut self.out);
        self.send(ReadResponse {
            entities,
            status: Vec::new(),
        })
        .await
    }

    async fn put(&mut self, entity: entity::Entity) -> Result<(), Closed> {
        self.out.push(pb::Entity { entity: Some(entity) }.encode_to_vec().into());
        if self.out.len() >= CHUNK { self.flush().await } else { Ok(()) }
    }

    async fn one(&mut self, entity: &pb::Entity) -> Result<(), Stop> {
        let answer = match &entity.entity {
            Some(entity::Entity::TableEntry(entry)) => return self.entries(entry).await,
            Some(entity::Entity::TableUsage(usage)) => self.usage(usage).await?,
            Some(entity::Entity::TableAttribute(attribute)) => self.attribute(attribute).await?,
            Some(entity::Entity::ObjectId(object)) => {
                let id = self.id_of(object)?;
                entity::Entity::ObjectId(pb::ObjectId { object: None, id })
            }
            Some(entity::Entity::Handle(handle)) => self.handle(handle).await?,
            Some(entity::Entity::TableOperation(_)) => {
                return Err(BfrtError::new(Code::Unsupported, "Read operation not available on TableOperation").into());
            }
            None => return Err(BfrtError::new(Code::Invalid, "Invalid Read entity received").into()),
        };
        Ok(self.put(answer).await?)
    }

    async fn entries(&mut self, request: &pb::TableEntry) -> Result<(), Stop> {
        let tables = Arc::clone(&self.tables);
        let described = tables.described(request.table_id)?;
        check_pipe(request.entry_tgt.as_ref())?;
        let view = View::new(described, request)?;
        let table = tables.get(request.table_id);
        let missing = || BfrtError::new(Code::NotFound, format!("Entry not found in table:{}", described.name));
        match &request.value {
            Some(table_entry::Value::Key(key)) => {
                let key = Key::decode(described, key)?;
                let row = table.ok_or_else(missing)?.read(&*self.plane.lock().await, &key)?;
                Ok(self.put(view.keyed(row)?).await?)
            }
            Some(table_entry::Value::HandleId(handle)) => {
                let row = {
                    let plane = self.plane.lock().await;
                    let flow = plane.notes.by_handle(*handle).ok_or_else(missing)?;
                    table.ok_or_else(missing)?.read_flow(&plane, &flow)?
                };
                Ok(self.put(view.keyed(row)?).await?)
            }
            None => {
                let Some(table) = table else {
                    return self.described_default(described, &view).await;
                };
                if !request.is_default_entry {
                    self.scan(table, &view).await?;
                }
                let default = table.default_entry(&*self.plane.lock().await)?;
                if let Some(row) = default {
                    self.put(view.default_entry(row)?).await?;
                }
                Ok(())
            }
        }
    }

    /// Returns the default entry of a table that is described but not served.
    async fn described_default(&mut self, described: &schema::Table, view: &View<'_>) -> Result<(), Stop> {
        if let Some(action) = described.actions.iter().find(|action| action.default_only) {
            let row = Row {
                key: Vec::new(),
                action: action.id,
                data: Vec::new(),
            };
            self.put(view.default_entry(row)?).await?;
        }
        Ok(())
    }

    async fn scan(&mut self, table: &dyn Table, view: &View<'_>) -> Result<(), Stop> {
        let mut at = Position::None;
        let mut listed = false;
        loop {
            let mut failed = None;
            let ended = {
                let plane = self.plane.lock().await;
                let slice = Slice::begin();
                let out = &mut self.out;
                table.scan(&plane, &mut at, &mut |row| {
                    match view.listed(row, listed) {
                        Ok(Some(entity)) => {
                            listed = true;
                            out.push(pb::Entity { entity: Some(entity) }.encode_to_vec().into());
                        }
                        Ok(None) => {}
                        Err(error) => {
                            failed = Some(error);
                            return ControlFlow::Break(());
                        }
                    }
                    if out.len() < CHUNK && slice.has_more() {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })?
            };
            if let Some(error) = failed {
                return Err(error.into());
            }
            if self.out.len() >= CHUNK {
                self.flush().await?;
            }
            if ended {
                return Ok(());
            }
            pause().await;
        }
    }

    async fn usage(&self, request: &pb::TableUsage) -> Result<entity::Entity, BfrtError> {
        self.tables.described(request.table_id)?;
        let usage = match self.tables.get(request.table_id) {
            Some(table) => table.usage(&*self.plane.lock().await)?,
            None => 0,
        };
        Ok(entity::Entity::TableUsage(pb::TableUsage {
            table_id: request.table_id,
            usage: u32::try_from(usage).unwrap_or(u32::MAX),
            ..pb::TableUsage::default()
        }))
    }

    async fn attribute(&self, request: &pb::TableAttribute) -> Result<entity::Entity, BfrtError> {
        let table = self.tables.described(request.table_id)?;
        let idle = self.tables.get(request.table_id).and_then(|table| table.idle());
        let attribute = match &request.attribute {
            None => return Err(BfrtError::new(Code::Invalid, "Invalid Attribute Type.")),
            Some(table_attribute::Attribute::EntryScope(_)) if table.attributes.iter().any(|name| name == "EntryScope") => {
                let all = || {
                    Some(pb::Mode {
                        scope: Some(mode::Scope::Predef(mode::PredefinedMode::All.into())),
                        args: 0,
                    })
                };
                table_attribute::Attribute::EntryScope(pb::EntryScope {
                    gress_scope: all(),
                    pipe_scope: all(),
                    prsr_scope: all(),
                })
            }
            Some(table_attribute::Attribute::IdleTable(_)) if idle.is_some() => {
                let plane = self.plane.lock().await;
                let held = &plane.notes.idle[self.tables.program][idle.unwrap_or(0)];
                let mut answer = pb::IdleTable {
                    enable: held.enable,
                    ..pb::IdleTable::default()
                };
                if held.notify {
                    answer.set_idle_table_mode(IdleTableMode::IdleTableNotifyMode);
                    (answer.ttl_query_interval, answer.max_ttl, answer.min_ttl) = (held.interval, held.max_ttl, held.min_ttl);
                }
                table_attribute::Attribute::IdleTable(answer)
            }
            Some(other) => {
                let text = format!("Failed to allocate Attribute {} table:{}", attribute_name(other), table.name);
                return Err(BfrtError::new(Code::Unsupported, text));
            }
        };
        Ok(entity::Entity::TableAttribute(pb::TableAttribute {
            table_id: table.id,
            attribute: Some(attribute),
        }))
    }

    async fn handle(&self, request: &pb::HandleId) -> Result<entity::Entity, BfrtError> {
        let Some(pb::handle_id::Value::Key(key)) = &request.value else {
            return Err(BfrtError::new(Code::Invalid, "Invalid key is mandatory for get handle operation."));
        };
        let described = self.tables.described(request.table_id)?;
        let key = Key::decode(described, key)?;
        let table = self.tables.get(request.table_id);
        let Some((table, flow)) = table.and_then(|table| Some((table, table.handle_key(&key)?))) else {
            return Err(BfrtError::new(
                Code::Unsupported,
                format!("Entry not found in table:{}", described.name),
            ));
        };
        let mut plane = self.plane.lock().await;
        if !table.has(&plane, &key)? {
            return Err(table.absent());
        }
        let handle = plane.notes.handle(&flow);
        Ok(entity::Entity::Handle(pb::HandleId {
            table_id: described.id,
            value: Some(pb::handle_id::Value::HandleId(handle)),
        }))
    }

    /// Returns the id of a named object.
    fn id_of(&self, request: &pb::ObjectId) -> Result<u32, BfrtError> {
        let schema = &self.tables.schema;
        let missing = |what: &str| BfrtError::new(Code::NotFound, what);
        let found = match &request.object {
            Some(object_id::Object::TableObject(wanted)) => {
                let table = schema.table(&wanted.table_name).ok_or_else(|| missing("Table not found."))?;
                match &wanted.names {
                    None => Some(table.id),
                    Some(object_id::table_object::Names::ActionName(name)) => table.actions.find(&name.action).map(|action| action.id),
                    Some(object_id::table_object::Names::KeyFieldName(name)) => table.key.find(&name.field).map(|field| field.id),
                    Some(object_id::table_object::Names::DataFieldName(name)) => {
                        let action = if name.action.is_empty() {
                            None
                        } else {
                            table.actions.find(&name.action)
                        };
                        let own = action.and_then(|action| action.fields.find(&name.field));
                        own.or_else(|| table.data.find(&name.field)).map(|field| field.id)
                    }
                }
            }
            Some(object_id::Object::LearnObject(wanted)) => {
                let learn = schema.learn(&wanted.learn_name).ok_or_else(|| missing("Learn Obj not found."))?;
                match wanted.data_field_name.as_ref().map(|name| name.field.as_str()) {
                    None | Some("") => Some(learn.id),
                    Some(field) => learn.fields.find(field).map(|field| field.id),
                }
            }
            None => return Err(BfrtError::new(Code::Invalid, "Wrong Option for ID get")),
        };
        found.ok_or_else(|| missing("Id get faild."))
    }
}

/// The parts of an entry that a request wants.
struct View<'a> {
    table: &'a schema::Table,
    request: &'a pb::TableEntry,
    key_only: bool,
    /// Field ids; `None`: all.
    wanted: Vec<u32>,
    action: u32,
}

impl<'a> View<'a> {
    #[allow(deprecated)]
    fn new(table: &'a schema::Table, request: &'a pb::TableEntry) -> Result<Self, BfrtError> {
        let data = request.data.as_ref();
        let action = data.map_or(0, |data| data.action_id);
        if action != 0 && table.actions.by_id(action).is_none() && !table.actions.is_empty() {
            return Err(BfrtError::new(
                Code::NotFound,
                format!("Data Allocate failed for table:{}", table.name),
            ));
        }
        Ok(Self {
            table,
            request,
            key_only: request.table_flags.is_some_and(|flags| flags.key_only)
                || request.table_read_flag.is_some_and(|flags| flags.key_only),
            wanted: data
                .map(|data| data.fields.iter().map(|field| field.field_id).collect())
                .unwrap_or_default(),
            action,
        })
    }

    fn fill(&self, row: Row, entry: &mut pb::TableEntry) -> Result<(), BfrtError> {
        if !row.key.is_empty() {
            entry.value = Some(table_entry::Value::Key(pb::TableKey { fields: row.key }));
        }
        if self.key_only {
            return Ok(());
        }
        let mut fields = row.data;
        if !self.wanted.is_empty() {
            if let Some(missing) = self
                .wanted
                .iter()
                .filter(|id| !fields.iter().any(|field| field.field_id == **id))
                .min()
            {
                let text = format!("ERROR Field ID {missing} doesn't exist table:{}", self.table.name);
                return Err(BfrtError::new(Code::NotFound, text));
            }
            fields.retain(|field| self.wanted.contains(&field.field_id));
        }
        entry.data = Some(pb::TableData {
            action_id: row.action,
            fields,
        });
        Ok(())
    }

    fn begin(&self) -> pb::TableEntry {
        pb::TableEntry {
            table_id: self.table.id,
            entry_tgt: self.request.entry_tgt,
            ..pb::TableEntry::default()
        }
    }

    /// Returns the answer to a read by key.
    #[allow(deprecated)]
    fn keyed(&self, row: Row) -> Result<entity::Entity, BfrtError> {
        if self.action != 0 && row.action != self.action {
            let name = self.table.actions.by_id(row.action).map_or("", |action| action.name.as_str());
            let text = format!("Entry not found in table:{}: its action is {name}", self.table.name);
            return Err(BfrtError::new(Code::Invalid, text));
        }
        let mut entry = self.begin();
        let flag = |given: Option<bool>| given.unwrap_or(false);
        entry.table_read_flag = Some(pb::TableReadFlag {
            key_only: flag(self.request.table_read_flag.map(|flags| flags.key_only)),
            from_hw: false,
        });
        entry.table_flags = Some(pb::TableFlags {
            key_only: flag(self.request.table_flags.map(|flags| flags.key_only)),
            ..pb::TableFlags::default()
        });
        self.fill(row, &mut entry)?;
        Ok(entity::Entity::TableEntry(entry))
    }

    /// Returns one of all entries. An entry with another action than the requested one has no key and data, and clients skip it; such a
    /// first entry of a table is omitted.
    fn listed(&self, row: Row, others: bool) -> Result<Option<entity::Entity>, BfrtError> {
        if self.action != 0 && row.action != self.action {
            let bare = pb::TableEntry {
                table_id: self.table.id,
                ..pb::TableEntry::default()
            };
            return Ok(others.then_some(entity::Entity::TableEntry(bare)));
        }
        let mut entry = self.begin();
        self.fill(row, &mut entry)?;
        Ok(Some(entity::Entity::TableEntry(entry)))
    }

    fn default_entry(&self, row: Row) -> Result<entity::Entity, BfrtError> {
        let mut entry = self.begin();
        entry.is_default_entry = true;
        if row.data.is_empty() && !self.key_only {
            entry.data = Some(pb::TableData {
                action_id: row.action,
                fields: Vec::new(),
            });
        } else {
            self.fill(row, &mut entry)?;
        }
        Ok(entity::Entity::TableEntry(entry))
    }
}
