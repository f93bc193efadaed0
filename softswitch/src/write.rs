//! Write: a batch of updates, applied in slices, so that nobody is held up by a large one.

use crate::options::Options;
use crate::plane::{IdleConfig, Plane};
use crate::sessions::{Sessions, check_pipe};
use crate::slice::Slice;
use crate::tables::{Change, Position, Registry, Table, Undo};
use bytes::Bytes;
use prost::Message as _;
use shunt_bfrt::envelope::{Atomicity, WriteRequest};
use shunt_bfrt::google::rpc;
use shunt_bfrt::pb::{self, entity, idle_table::IdleTableMode, mode::PredefinedMode, table_entry, update};
use shunt_bfrt::values::{Data, Key};
use shunt_bfrt::{BfrtError, Code};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tokio::sync::Mutex;
use tonic::Status;

/// Updates that are decoded before the data plane is taken.
const BLOCK: usize = 256;
/// Updates whose needs the kernel is asked for in one go: few enough that its answers leave time for others.
const TOGETHER: usize = 64;
/// Up to this position each update has an error of its own in the status details, as P4 Studio's server has it. Beyond it they would
/// make a trailer of megabytes: failures are named in the status's text instead.
const DETAILED: usize = 65_536;
/// Runs of neighbouring updates with the same error that the text names; a batch with more is broken off, and the text says where.
const NAMED_RUNS: usize = 8_192;
const ERROR_TYPE: &str = "type.googleapis.com/bfrt_proto.Error";

/// The fate of the updates of one batch.
#[derive(Default)]
struct Batch {
    errors: BTreeMap<usize, BfrtError>,
    /// DELETE did not find these.
    gone: Vec<usize>,
    /// INSERT_OR_MODIFY found these there.
    existed: Vec<usize>,
    /// Updates that were looked at.
    served: usize,
    runs: usize,
    /// Broken off because of too many failures.
    broken_off: bool,
}

impl Batch {
    fn fail(&mut self, position: usize, change: Option<Change>, error: BfrtError) {
        if error.code == Code::NotFound && change == Some(Change::Delete) {
            self.gone.push(position);
        }
        let continues = position
            .checked_sub(1)
            .and_then(|last| self.errors.get(&last))
            .is_some_and(|last| last.code == error.code);
        self.runs += usize::from(!continues);
        self.errors.insert(position, error);
    }

    /// Note what became of the next update.
    fn take(&mut self, result: Result<Done<'_>, BfrtError>, checked: &Checked<'_>) {
        match result {
            Ok(Done::Existed) => self.existed.push(self.served),
            Ok(_) => {}
            Err(error) => self.fail(self.served, change_of(checked.update), error),
        }
        self.served += 1;
    }

    /// Whether the last update failed in a way that ends a batch which is rolled back.
    fn failed_last(&self, options: Options) -> bool {
        let Some(last) = self.served.checked_sub(1) else { return false };
        self.errors.contains_key(&last) && !(options.ignore_not_found && self.gone.contains(&last))
    }

    fn is_beyond_naming(&self) -> bool {
        self.served > DETAILED && self.runs >= NAMED_RUNS
    }
}

/// What a batch needs of the server.
pub struct Writer<'a> {
    pub plane: &'a Mutex<Plane>,
    pub tables: &'a Registry,
    pub sessions: &'a Sessions,
}

impl Writer<'_> {
    /// Apply a batch.
    ///
    /// # Errors
    /// With a detail for each update up to the last that failed, or the call's own status.
    pub async fn write(&self, request: WriteRequest, options: Options) -> Result<pb::WriteResponse, Status> {
        self.sessions
            .authorise(request.client_id, request.target.as_ref(), &request.p4_name)?;
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
        let mut batch = Batch::default();
        for block in request.updates.chunks(BLOCK) {
            let updates = decode(block)?;
            let updates: Vec<Checked<'_>> = updates.iter().map(|update| self.check(update)).collect();
            let mut rest = &updates[..];
            while !rest.is_empty() {
                options.check_deadline("Write")?;
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
                if batch.is_beyond_naming() {
                    batch.broken_off = true;
                    return Ok(batch);
                }
            }
        }
        Ok(batch)
    }

    /// Carry out updates for a slice of time, one at least, and take them off the rest. The table to clear, if it came to that.
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
            // What the kernel took to answer is no reason to stop before anything is done.
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

    /// Check an update's key and data, if it is about an entry.
    fn check<'a>(&'a self, update: &'a pb::Update) -> Checked<'a> {
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

    /// Ask for what inserts of this block need, in one go.
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

    /// Clear a table in slices.
    ///
    /// # Errors
    /// What the table says.
    pub async fn clear(&self, table: &dyn Table) -> Result<(), BfrtError> {
        let mut at = Position::None;
        loop {
            let mut plane = self.plane.lock().await;
            let slice = Slice::begin();
            if table.clear(&mut plane, &mut at, &mut || slice.has_more())? {
                return Ok(());
            }
        }
    }

    async fn apply_or_roll_back(&self, request: &WriteRequest, options: Options) -> Result<Batch, Status> {
        let mut batch = Batch::default();
        let mut undos: Vec<Undo> = Vec::new();
        'updates: for block in request.updates.chunks(BLOCK) {
            let updates = decode(block)?;
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
                        if batch.failed_last(options) { Next::Pause } else { Next::Update }
                    })
                };
                if let Some(table) = clearing {
                    let all = { table.undo_all(&*self.plane.lock().await) };
                    let result = match all {
                        Ok(all) => {
                            undos.extend(all);
                            self.clear(table).await
                        }
                        Err(error) => Err(error),
                    };
                    if let Err(error) = result {
                        batch.fail(batch.served - 1, Some(Change::Delete), error);
                    }
                }
                if batch.failed_last(options) {
                    break 'updates;
                }
            }
        }
        let failed = batch
            .errors
            .keys()
            .any(|position| !(options.ignore_not_found && batch.gone.contains(position)));
        if failed {
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

    /// Apply one update.
    fn one(&self, plane: &mut Plane, client_id: u32, checked: &Checked<'_>) -> Result<Done<'_>, BfrtError> {
        let update = checked.update;
        match update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) {
            Some(entity::Entity::TableEntry(entry)) => self.entry(plane, checked, entry),
            Some(entity::Entity::TableUsage(_)) => Err(BfrtError::new(Code::Unsupported, "Write operation not available on TableUsage")),
            Some(entity::Entity::TableAttribute(attribute)) => self.attribute(plane, client_id, attribute),
            Some(entity::Entity::TableOperation(operation)) => {
                let table = self.tables.described(operation.table_id)?;
                let wanted = &operation.table_operations_type;
                // Counters and hit states are always current here, so there is nothing to wait for.
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
            // A miss always goes on to the relay server: NoAction is the only default there can be.
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
                let held = &mut plane.notes.idle[idle.unwrap_or(0)];
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

/// An update, with its key and data as its table's schema has them; without both where it is not about an entry.
struct Checked<'a> {
    update: &'a pb::Update,
    parts: Result<(Option<Key<'a>>, Data<'a>), BfrtError>,
}

/// What comes after an update in a slice.
enum Next<'a> {
    Update,
    Pause,
    /// All entries of a table are to be deleted, in slices of its own.
    Clear(&'a dyn Table),
}

/// What an update has done.
enum Done<'a> {
    Plain,
    Existed,
    /// All entries of a table are to be deleted.
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

/// The name of an attribute in the protocol.
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

fn decode(block: &[Bytes]) -> Result<Vec<pb::Update>, Status> {
    let decoded: Result<Vec<pb::Update>, _> = block.iter().map(|bytes| pb::Update::decode(bytes.clone())).collect();
    decoded.map_err(|error| Status::internal(format!("Exception deserializing request! {error}")))
}

/// The answer to a batch.
fn report(batch: &Batch, sent: usize, options: Options) -> Result<pb::WriteResponse, Status> {
    let mut response = pb::WriteResponse::default();
    let ignored = |position: &usize| options.error_in_resp && options.ignore_not_found && batch.gone.contains(position);
    let statuses: Vec<usize> = if options.error_in_resp {
        (0..batch.served).collect()
    } else {
        batch.existed.clone()
    };
    for position in statuses {
        let error = batch.errors.get(&position);
        response.status.push(if batch.existed.contains(&position) {
            pb::Error {
                message: "Entry aleady exists, perform MODIFY".into(),
                code: Code::Exists as i32,
                ..pb::Error::default()
            }
        } else if let Some(error) = error {
            let mut status = status_of(error);
            if ignored(&position) {
                status.code = Code::NotFound as i32;
                status.canonical_code = 0;
            }
            status
        } else {
            pb::Error::default()
        });
    }
    let failed: BTreeMap<usize, &BfrtError> = batch
        .errors
        .iter()
        .filter(|(position, _)| !ignored(position))
        .map(|(position, error)| (*position, error))
        .collect();
    if failed.is_empty() {
        return Ok(response);
    }
    Err(failure("Write Error Status", &failed, batch, sent))
}

fn failure(message: &str, failed: &BTreeMap<usize, &BfrtError>, batch: &Batch, sent: usize) -> Status {
    let last = failed.keys().next_back().copied().unwrap_or(0);
    if last < DETAILED && !batch.broken_off {
        return details(message, failed);
    }
    let mut text = format!("{message}: {} of {sent} updates failed:", failed.len());
    let mut runs: Vec<(usize, usize, Code)> = Vec::new();
    for (position, error) in failed {
        match runs.last_mut() {
            Some((_, end, code)) if *end + 1 == *position && *code == error.code => *end = *position,
            _ => runs.push((*position, *position, error.code)),
        }
    }
    for (first, end, code) in &runs {
        let _ = if first == end {
            write!(text, " {first}")
        } else {
            write!(text, " {first}-{end}")
        };
        let _ = write!(text, " ({});", code.words());
    }
    if batch.broken_off {
        let _ = write!(text, " updates from {} on were not tried;", batch.served);
    }
    text.push_str(" all others were applied");
    let status = rpc::Status {
        code: Code::Unknown as i32,
        message: text.clone(),
        details: Vec::new(),
    };
    Status::with_details(tonic::Code::Unknown, text, status.encode_to_vec().into())
}

/// Status UNKNOWN with an error for each position up to the last that failed.
pub fn details(message: &str, failed: &BTreeMap<usize, &BfrtError>) -> Status {
    let last = failed.keys().next_back().copied().unwrap_or(0);
    let any = |error: pb::Error| prost_types::Any {
        type_url: ERROR_TYPE.into(),
        value: error.encode_to_vec(),
    };
    let details = (0..=last)
        .map(|position| any(failed.get(&position).map(|error| status_of(error)).unwrap_or_default()))
        .collect();
    let status = rpc::Status {
        code: Code::Unknown as i32,
        message: message.into(),
        details,
    };
    Status::with_details(tonic::Code::Unknown, message, status.encode_to_vec().into())
}

/// An error as it is sent.
pub fn status_of(error: &BfrtError) -> pb::Error {
    pb::Error {
        canonical_code: error.code as i32,
        message: error.to_string(),
        ..pb::Error::default()
    }
}
