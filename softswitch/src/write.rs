//! Write requests: a batch of updates, applied in slices, so that a large one delays no other client.

use crate::failures::{Failures, Words};
use crate::options::Options;
use crate::plane::{IdleConfig, Plane};
use crate::sessions::{Sessions, check_pipe};
use crate::slice::{Slice, pause};
use crate::tables::{Change, Position, Registry, Table, Undo};
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{Atomicity, WriteRequest};
use shunt_bfrt::pb::{self, entity, idle_table::IdleTableMode, mode::PredefinedMode, table_entry, update};
use shunt_bfrt::values::{Data, Key};
use shunt_bfrt::{BfrtError, Code};
use std::collections::BTreeMap;
use tokio::sync::Mutex;
use tonic::Status;

/// Updates that are decoded before the data plane is locked.
const BLOCK: usize = 256;
/// Updates per request of their routes to the kernel: few enough that other work is not delayed.
const TOGETHER: usize = 64;
const WORDS: Words = Words {
    status: "Write Error Status",
    members: "updates",
    done: "applied",
};

/// Results of the updates of one batch.
#[derive(Default)]
struct Batch {
    failures: Failures,
    /// Deletes of missing entries, if the client asks that these are no failures.
    ignored: Failures,
    ignores_absent: bool,
    /// Entries that INSERT_OR_MODIFY found.
    existed: Vec<usize>,
    /// Updates that were tried.
    served: usize,
    /// Reason why the remaining updates are not tried.
    broken_off: Option<Broken>,
}

/// Reason why a batch was broken off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    TooManyFailures,
    Deadline,
}

impl Batch {
    fn new(options: Options) -> Self {
        Self {
            ignores_absent: options.ignore_not_found,
            ..Self::default()
        }
    }

    fn fail(&mut self, position: usize, change: Option<Change>, error: BfrtError) {
        if self.ignores_absent && error.code == Code::NotFound && change == Some(Change::Delete) {
            self.ignored.add(position, error);
        } else {
            self.failures.add(position, error);
        }
    }

    /// Records the result of the next update.
    fn take(&mut self, result: Result<Done<'_>, BfrtError>, checked: &Checked<'_>) {
        match result {
            Ok(Done::Existed) => self.existed.push(self.served),
            Ok(_) => {}
            Err(error) => self.fail(self.served, change_of(checked.update), error),
        }
        self.served += 1;
    }

    /// Returns an update's status in the response.
    fn status(&self, position: usize) -> pb::Error {
        if self.existed.binary_search(&position).is_ok() {
            return pb::Error {
                message: "Entry aleady exists, perform MODIFY".into(),
                code: Code::Exists as i32,
                ..pb::Error::default()
            };
        }
        if self.ignored.has(position) {
            return pb::Error {
                canonical_code: 0,
                code: Code::NotFound as i32,
                ..self.ignored.error(position)
            };
        }
        self.failures.error(position)
    }
}

/// The server's state for a batch; `tables`: of the client's program.
pub struct Writer<'a> {
    pub plane: &'a Mutex<Plane>,
    pub tables: &'a Registry,
    pub sessions: &'a Sessions,
}

impl Writer<'_> {
    /// Applies a batch of a client that may write.
    ///
    /// # Errors
    /// With a detail for each update up to the last failed one, or the call's own status.
    pub async fn write(&self, request: WriteRequest, options: Options) -> Result<pb::WriteResponse, Status> {
        let batch = match request.atomicity() {
            Atomicity::DataplaneAtomic => {
                return Err(BfrtError::new(Code::Unsupported, "DATAPLANE_ATOMIC isn't implemented").into());
            }
            Atomicity::ContinueOnError => self.apply(&request, options).await?,
            Atomicity::RollbackOnError => self.apply_or_roll_back(&request, options).await?,
        };
        report(&batch, request.updates.len(), options)
    }

    async fn apply(&self, request: &WriteRequest, options: Options) -> Result<Batch, Status> {
        let mut batch = Batch::new(options);
        for block in request.updates.chunks(BLOCK) {
            let updates = decode(block, batch.served == 0)?;
            let updates: Vec<Checked<'_>> = updates.iter().map(|update| self.check(update)).collect();
            let mut rest = &updates[..];
            while !rest.is_empty() {
                if let Err(error) = options.check_deadline("Write") {
                    if batch.served == 0 {
                        return Err(error.into());
                    }
                    batch.broken_off = Some(Broken::Deadline);
                    return Ok(batch);
                }
                let clearing = {
                    let mut plane = self.plane.lock().await;
                    self.slice(&mut plane, &mut rest, |plane, update| {
                        match self.one(plane, request.client_id, update) {
                            Ok(Done::Clear(table)) => {
                                batch.served += 1;
                                Next::Clear(table)
                            }
                            result => {
                                batch.take(result, update);
                                Next::Update
                            }
                        }
                    })
                };
                if let Some(table) = clearing
                    && let Err(error) = self.clear(table).await
                {
                    batch.fail(batch.served - 1, Some(Change::Delete), error);
                }
                if batch.failures.is_beyond_naming(batch.served) {
                    batch.broken_off = Some(Broken::TooManyFailures);
                    return Ok(batch);
                }
                pause().await;
            }
        }
        Ok(batch)
    }

    /// Applies updates for a slice of time, at least one, and removes them from the rest. Returns a table to clear, if one follows.
    fn slice<'a>(
        &self,
        plane: &mut Plane,
        rest: &mut &[Checked<'_>],
        mut each: impl FnMut(&mut Plane, &Checked<'_>) -> Next<'a>,
    ) -> Option<&'a dyn Table> {
        let whole = Slice::begin();
        let mut found = Next::Update;
        while matches!(found, Next::Update) && !rest.is_empty() {
            let (mut part, _) = rest.split_at(rest.len().min(TOGETHER));
            self.prepare(plane, part);
            // The kernel's time to answer is no reason to stop before anything is done.
            let slice = Slice::begin();
            while let [update, others @ ..] = part {
                found = each(plane, update);
                (part, *rest) = (others, &rest[1..]);
                if !matches!(found, Next::Update) {
                    break;
                }
                if !slice.has_more() {
                    found = Next::Pause;
                    break;
                }
            }
            if matches!(found, Next::Update) && !whole.has_more() {
                found = Next::Pause;
            }
        }
        plane.hops.0.look_ahead([]);
        match found {
            Next::Clear(table) => Some(table),
            Next::Update | Next::Pause => None,
        }
    }

    /// Checks an update's key and data, if it concerns an entry.
    fn check<'a>(&'a self, decoded: &'a Decoded) -> Checked<'a> {
        let update = match decoded {
            Ok(update) => update,
            Err((stand_in, error)) => {
                return Checked {
                    update: stand_in,
                    parts: Err(error.clone()),
                };
            }
        };
        let parts = || {
            let Some(entity::Entity::TableEntry(entry)) = update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) else {
                return Ok((None, Data::default()));
            };
            let schema = self.tables.described(entry.table_id)?;
            let key = match &entry.value {
                Some(table_entry::Value::Key(key)) => Some(Key::decode(schema, key)?),
                _ => None,
            };
            Ok((key, Data::decode(schema, entry.data.as_ref())?))
        };
        Checked { update, parts: parts() }
    }

    /// Requests the routes that inserts of this block need, at once.
    fn prepare(&self, plane: &mut Plane, updates: &[Checked<'_>]) {
        let mut new: BTreeMap<u32, Vec<(&Key<'_>, &Data<'_>)>> = BTreeMap::new();
        for Checked { update, parts } in updates {
            if let Some(entity::Entity::TableEntry(entry)) = update.entity.as_ref().and_then(|entity| entity.entity.as_ref())
                && matches!(change_of(update), Some(Change::Insert | Change::Upsert))
                && let Ok((Some(key), data)) = parts
            {
                new.entry(entry.table_id).or_default().push((key, data));
            }
        }
        for (id, new) in &new {
            if let Some(table) = self.tables.get(*id) {
                table.prepare(plane, new);
            }
        }
    }

    /// Clears a table in slices.
    ///
    /// # Errors
    /// Those of the table.
    pub async fn clear(&self, table: &dyn Table) -> Result<(), BfrtError> {
        let mut at = Position::None;
        loop {
            let mut plane = self.plane.lock().await;
            let slice = Slice::begin();
            if table.clear(&mut plane, &mut at, &mut || slice.has_more())? {
                return Ok(());
            }
            drop(plane);
            pause().await;
        }
    }

    /// Clears a table, and collects what restores its entries.
    async fn clear_for_now(&self, table: &dyn Table, undos: &mut Vec<Undo>) -> Result<(), BfrtError> {
        let mut at = Position::None;
        loop {
            let plane = self.plane.lock().await;
            let slice = Slice::begin();
            let (found, ended) = table.undo_some(&plane, &mut at, &mut || slice.has_more())?;
            drop(plane);
            undos.extend(found);
            if ended {
                return self.clear(table).await;
            }
            pause().await;
        }
    }

    async fn apply_or_roll_back(&self, request: &WriteRequest, options: Options) -> Result<Batch, Status> {
        let mut batch = Batch::new(options);
        let mut undos: Vec<Undo> = Vec::new();
        'updates: for block in request.updates.chunks(BLOCK) {
            let updates = decode(block, batch.served == 0)?;
            let updates: Vec<Checked<'_>> = updates.iter().map(|update| self.check(update)).collect();
            let mut rest = &updates[..];
            while !rest.is_empty() {
                if let Err(error) = options.check_deadline("Write") {
                    self.roll_back(undos).await;
                    return Err(error.into());
                }
                let clearing = {
                    let mut plane = self.plane.lock().await;
                    self.slice(&mut plane, &mut rest, |plane, update| {
                        let result = self.undo_of(plane, update).and_then(|undo| {
                            let done = self.one(plane, request.client_id, update)?;
                            undos.extend(undo);
                            Ok(done)
                        });
                        if let Ok(Done::Clear(table)) = result {
                            batch.served += 1;
                            return Next::Clear(table);
                        }
                        batch.take(result, update);
                        if batch.failures.is_empty() { Next::Update } else { Next::Pause }
                    })
                };
                if let Some(table) = clearing
                    && let Err(error) = self.clear_for_now(table, &mut undos).await
                {
                    batch.fail(batch.served - 1, Some(Change::Delete), error);
                }
                if !batch.failures.is_empty() {
                    break 'updates;
                }
                pause().await;
            }
        }
        if !batch.failures.is_empty() {
            self.roll_back(undos).await;
            let last = batch.served - 1;
            batch.existed.retain(|position| *position < last);
        }
        Ok(batch)
    }

    async fn roll_back(&self, mut undos: Vec<Undo>) {
        while !undos.is_empty() {
            let mut plane = self.plane.lock().await;
            let slice = Slice::begin();
            while slice.has_more()
                && let Some(undo) = undos.pop()
            {
                if let Err(error) = undo(&mut plane) {
                    tracing::error!("an update cannot be rolled back: {error}");
                }
            }
            drop(plane);
            pause().await;
        }
    }

    fn undo_of(&self, plane: &Plane, checked: &Checked<'_>) -> Result<Option<Undo>, BfrtError> {
        let (Some(entity::Entity::TableEntry(entry)), Ok((Some(key), _))) = (
            checked.update.entity.as_ref().and_then(|entity| entity.entity.as_ref()),
            &checked.parts,
        ) else {
            return Ok(None);
        };
        match self.tables.get(entry.table_id) {
            Some(table) if !entry.is_default_entry => table.undo(plane, key).map(Some),
            _ => Ok(None),
        }
    }

    /// Applies one update.
    fn one(&self, plane: &mut Plane, client_id: u32, checked: &Checked<'_>) -> Result<Done<'_>, BfrtError> {
        let update = checked.update;
        match update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) {
            None if checked.parts.is_err() => checked.parts.as_ref().map(|_| Done::Plain).map_err(Clone::clone),
            Some(entity::Entity::TableEntry(entry)) => self.entry(plane, checked, entry),
            Some(entity::Entity::TableUsage(_)) => Err(BfrtError::new(Code::Unsupported, "Write operation not available on TableUsage")),
            Some(entity::Entity::TableAttribute(attribute)) => self.attribute(plane, client_id, attribute),
            Some(entity::Entity::TableOperation(operation)) => {
                let table = self.tables.described(operation.table_id)?;
                let wanted = &operation.table_operations_type;
                // Counters and hit states are always current here.
                let known = |name: &str| table.operations.iter().any(|operation| operation == name);
                if known(wanted) || (wanted == "Sync" && known("SyncCounters")) {
                    Ok(Done::Plain)
                } else {
                    Err(BfrtError::new(Code::Unsupported, "Operation not supported"))
                }
            }
            None if update.r#type() == update::Type::Delete => self.entry(plane, checked, &pb::TableEntry::default()),
            _ => Err(BfrtError::new(Code::Unsupported, "Invalid update.")),
        }
    }

    fn entry(&self, plane: &mut Plane, checked: &Checked<'_>, entry: &pb::TableEntry) -> Result<Done<'_>, BfrtError> {
        let update = checked.update;
        let schema = self.tables.described(entry.table_id)?;
        let table = self.tables.get(entry.table_id);
        let name = &schema.name;
        check_pipe(entry.entry_tgt.as_ref())?;
        let key = match &entry.value {
            Some(table_entry::Value::Key(key)) => Some(key),
            _ => None,
        };
        if entry.is_default_entry && key.is_some_and(|key| !key.fields.is_empty()) {
            return Err(BfrtError::new(Code::Invalid, "Non-empty key for default entry"));
        }
        let (decoded, data) = checked.parts.as_ref().map_err(Clone::clone)?;
        let change = change_of(update).ok_or_else(|| refused(name, update.r#type))?;
        if entry.is_default_entry {
            if change != Change::Modify && change != Change::Delete {
                return Err(BfrtError::new(
                    Code::Unsupported,
                    "INSERT of default entry is not supported. Please use MODIFY instead",
                ));
            }
            let failed = |code| Err(BfrtError::new(code, format!("Table Default entry set failed table:{name}")));
            if !table.is_some_and(|table| table.has_default()) {
                return failed(Code::Unsupported);
            }
            // A miss always goes to the relay server: NoAction is the only possible default.
            if change == Change::Modify && data.action.is_none_or(|action| action.table_only) {
                return failed(Code::Invalid);
            }
            return Ok(Done::Plain);
        }
        let Some(key) = decoded else {
            if change != Change::Delete {
                return Err(BfrtError::new(Code::Invalid, format!("Table key cannot be empty table:{name}")));
            }
            if entry.value.is_some() {
                return Err(BfrtError::new(
                    Code::Unsupported,
                    format!("Entries are deleted by key, not by handle; table:{name}"),
                ));
            }
            return Ok(table.map_or(Done::Plain, Done::Clear));
        };
        let Some(table) = table else {
            return Err(BfrtError::new(Code::Unsupported, format!("{} table:{name}", change.failed())));
        };
        let reset = entry.table_flags.is_some_and(|flags| flags.reset_stats);
        match change {
            Change::Insert => table.insert(plane, key, data)?,
            Change::Modify => table.modify(plane, key, data, reset)?,
            Change::Delete => table.delete(plane, key)?,
            Change::Upsert if table.has(plane, key)? => {
                table.modify(plane, key, data, true)?;
                return Ok(Done::Existed);
            }
            Change::Upsert => table.insert(plane, key, data)?,
        }
        Ok(Done::Plain)
    }

    fn attribute(&self, plane: &mut Plane, client_id: u32, message: &pb::TableAttribute) -> Result<Done<'_>, BfrtError> {
        let schema = self.tables.described(message.table_id)?;
        let name = &schema.name;
        let idle = self.tables.get(message.table_id).and_then(|table| table.idle());
        match &message.attribute {
            None => Err(BfrtError::new(Code::Invalid, "Invalid Attribute Type.")),
            Some(pb::table_attribute::Attribute::EntryScope(scope)) if schema.attributes.iter().any(|name| name == "EntryScope") => {
                let all = |mode: &Option<pb::Mode>| match mode.as_ref().and_then(|mode| mode.scope.as_ref()) {
                    None => true,
                    Some(pb::mode::Scope::Predef(kind)) => *kind == PredefinedMode::All as i32,
                    Some(pb::mode::Scope::UserDefined(_)) => false,
                };
                if all(&scope.gress_scope) && all(&scope.pipe_scope) && all(&scope.prsr_scope) {
                    Ok(Done::Plain)
                } else {
                    Err(BfrtError::new(Code::Unsupported, format!("There is one scope only; table:{name}")))
                }
            }
            Some(pb::table_attribute::Attribute::IdleTable(wanted)) if idle.is_some() => {
                let Ok(mode) = IdleTableMode::try_from(wanted.idle_table_mode) else {
                    return Err(BfrtError::new(Code::Invalid, "Invalid Idle Table Mode"));
                };
                let notify = mode == IdleTableMode::IdleTableNotifyMode;
                if notify && !self.sessions.wants_idle(client_id) {
                    let text = format!("idletimeout notifications are not enabled for client {client_id}");
                    return Err(BfrtError::new(Code::Invalid, text));
                }
                if notify && wanted.enable && wanted.max_ttl < wanted.min_ttl {
                    let text = format!("max_ttl {} is less than min_ttl {}; table:{name}", wanted.max_ttl, wanted.min_ttl);
                    return Err(BfrtError::new(Code::Invalid, text));
                }
                let held = &mut plane.notes.idle[self.tables.program][idle.unwrap_or(0)];
                *held = IdleConfig {
                    enable: wanted.enable,
                    notify,
                    interval: wanted.ttl_query_interval,
                    min_ttl: wanted.min_ttl,
                    max_ttl: wanted.max_ttl,
                    client_id,
                    generation: held.generation + 1,
                    ..IdleConfig::default()
                };
                plane.notes.idle_changed.notify_one();
                Ok(Done::Plain)
            }
            Some(other) => {
                let text = format!("Failed to allocate Attribute {} table:{name}", attribute_name(other));
                Err(BfrtError::new(Code::Unsupported, text))
            }
        }
    }
}

/// An update, with key and data as its table's schema has them, if it concerns an entry.
struct Checked<'a> {
    update: &'a pb::Update,
    parts: Result<(Option<Key<'a>>, Data<'a>), BfrtError>,
}

/// The continuation after an update in a slice.
enum Next<'a> {
    Update,
    Pause,
    /// All entries of a table must be deleted, in slices of its own.
    Clear(&'a dyn Table),
}

/// Result of an update.
enum Done<'a> {
    Plain,
    Existed,
    /// All entries of a table must be deleted.
    Clear(&'a dyn Table),
}

fn change_of(update: &pb::Update) -> Option<Change> {
    match update.r#type() {
        update::Type::Insert => Some(Change::Insert),
        update::Type::Modify => Some(Change::Modify),
        update::Type::Delete => Some(Change::Delete),
        update::Type::InsertOrModify => Some(Change::Upsert),
        update::Type::Unspecified | update::Type::ModifyInc | update::Type::Reset => None,
    }
}

fn refused(table: &str, kind: i32) -> BfrtError {
    match update::Type::try_from(kind) {
        Ok(update::Type::Unspecified) => BfrtError::new(Code::Invalid, "Unspecified update type"),
        Ok(update::Type::ModifyInc) => BfrtError::new(Code::Unsupported, format!("Table Entry modify incremental failed table:{table}")),
        Ok(update::Type::Reset) => BfrtError::new(Code::Unsupported, format!("Table Default Entry reset failed table:{table}")),
        _ => BfrtError::new(Code::Invalid, "Invalid update type"),
    }
}

/// Returns the name of an attribute in the protocol.
pub fn attribute_name(attribute: &pb::table_attribute::Attribute) -> &'static str {
    use pb::table_attribute::Attribute;
    match attribute {
        Attribute::IdleTable(_) => "idle_table",
        Attribute::EntryScope(_) => "entry_scope",
        Attribute::DynKeyMask(_) => "dyn_key_mask",
        Attribute::DynHashing(_) => "dyn_hashing",
        Attribute::ByteCountAdj(_) => "byte_count_adj",
        Attribute::PortStatusNotify(_) => "port_status_notify",
        Attribute::IntvlMs(_) => "intvl_ms",
        Attribute::PreDeviceConfig(_) => "pre_device_config",
        Attribute::SelectorUpdateNotify(_) => "selector_update_notify",
    }
}

/// An update, or an empty one and why it cannot be read.
type Decoded = Result<pb::Update, (pb::Update, BfrtError)>;

/// Decodes a block of a batch.
///
/// # Errors
/// For the first block, which rejects the whole request. In later blocks single updates fail; those before are applied.
fn decode(block: &[Bytes], first: bool) -> Result<Vec<Decoded>, Status> {
    let one = |bytes: &Bytes| match pb::Update::decode(bytes.clone()) {
        Ok(update) => Ok(Ok(update)),
        Err(error) if first => Err(Status::internal(format!("Exception deserializing request! {error}"))),
        Err(error) => Ok(Err((
            pb::Update::default(),
            BfrtError::new(Code::Invalid, format!("Exception deserializing update! {error}")),
        ))),
    };
    block.iter().map(one).collect()
}

/// Returns the answer to a batch.
fn report(batch: &Batch, sent: usize, options: Options) -> Result<pb::WriteResponse, Status> {
    if batch.broken_off == Some(Broken::Deadline) {
        let status = "Write RPC request timed out";
        return Err(batch.failures.timed_out(Words { status, ..WORDS }, sent, batch.served));
    }
    if !batch.failures.is_empty() {
        return Err(batch.failures.status(WORDS, sent, batch.broken_off.map(|_| batch.served)));
    }
    let status = if options.error_in_resp {
        (0..batch.served).map(|position| batch.status(position)).collect()
    } else {
        batch.existed.iter().map(|position| batch.status(*position)).collect()
    };
    Ok(pb::WriteResponse { status })
}
