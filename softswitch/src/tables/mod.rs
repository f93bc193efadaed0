//! The tables of the schema, each in its own file.
//!
//! To add a table: a file here with an implementation of [`Table`], its description in `schema/*.json`, and a line in [`Registry::new`].
//! The server needs no change.

mod allowlist;
mod blocklist;
mod conference;
mod copies;
mod greylist;
mod interface;
mod layers;
mod media;
mod mgid;
mod node;
mod pre;
mod prune;
mod quality;
mod reception;
mod relay;
mod source_filter;
mod streams;
mod timed;
mod totals;
mod trace;

use crate::plane::Plane;
use crate::plane::ports::Program;
use shunt_bfrt::schema::{self, Schema, SchemaError};
use shunt_bfrt::values::{Data, Key, exact, number};
use shunt_bfrt::{BfrtError, Code, pb};
use shunt_net::{Endpoint, FiveTuple, octets};
use shunt_relay_table::Fault;
use std::any::Any;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use timed::Timed;

/// Restores an entry.
pub type Undo = Box<dyn FnOnce(&mut Plane) -> Result<(), BfrtError> + Send>;
/// Position of a scan that runs in steps; its content belongs to the table.
pub type Position = Option<Box<dyn Any + Send>>;

/// The operation of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Insert,
    Modify,
    Delete,
    /// INSERT_OR_MODIFY.
    Upsert,
}

impl Change {
    /// The driver's text for a failed update.
    #[must_use]
    pub fn failed(self) -> &'static str {
        match self {
            Self::Insert => "Table Add failed",
            Self::Modify => "Table Entry modify failed",
            Self::Delete => "Table Entry delete failed",
            Self::Upsert => "Table AddOrMod failed",
        }
    }
}

/// One entry as read. The server omits what a request does not want.
pub struct Row {
    pub key: Vec<pb::KeyField>,
    pub action: u32,
    pub data: Vec<pb::DataField>,
}

/// Returned by a step of a scan: whether it wants more.
pub type Each<'a> = &'a mut dyn FnMut(Row) -> ControlFlow<()>;

/// One table of the schema. An operation succeeds as a whole or has no effect. Methods that a table does not override are not supported
/// there.
pub trait Table: Send + Sync + 'static {
    fn schema(&self) -> &Arc<schema::Table>;

    /// Returns whether there is an entry with this key.
    ///
    /// # Errors
    /// With the code for the client, as in all methods.
    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError>;

    /// Adds an entry.
    ///
    /// # Errors
    /// As in the driver.
    fn insert(&self, _plane: &mut Plane, _key: &Key<'_>, _data: &Data<'_>) -> Result<(), BfrtError> {
        Err(self.unsupported(Change::Insert))
    }

    /// Modifies an entry. `reset`: its counters restart.
    ///
    /// # Errors
    /// As in the driver.
    fn modify(&self, _plane: &mut Plane, _key: &Key<'_>, _data: &Data<'_>, _reset: bool) -> Result<(), BfrtError> {
        Err(self.unsupported(Change::Modify))
    }

    /// Deletes an entry.
    ///
    /// # Errors
    /// As in the driver.
    fn delete(&self, _plane: &mut Plane, _key: &Key<'_>) -> Result<(), BfrtError> {
        Err(self.unsupported(Change::Delete))
    }

    /// Continues to delete all entries until `more` returns false. Returns whether all are deleted.
    ///
    /// # Errors
    /// As in the driver.
    fn clear(&self, _plane: &mut Plane, _at: &mut Position, _more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        Err(BfrtError::new(
            Code::Unsupported,
            format!("Table Entry delete all failed table:{}", self.schema().name),
        ))
    }

    /// Returns what restores the entry with this key, or its absence.
    ///
    /// # Errors
    /// As in the driver.
    fn undo(&self, _plane: &Plane, _key: &Key<'_>) -> Result<Undo, BfrtError> {
        Ok(Box::new(|_| Ok(())))
    }

    /// Returns what restores all entries, one by one, for the rollback of a clear.
    ///
    /// # Errors
    /// As in the driver.
    fn undo_all(&self, _plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        Ok(Vec::new())
    }

    /// `undo_all` in steps: continues until `more` returns false. Returns whether it is complete.
    ///
    /// # Errors
    /// As in the driver.
    fn undo_some(&self, plane: &Plane, _at: &mut Position, _more: &mut dyn FnMut() -> bool) -> Result<(Vec<Undo>, bool), BfrtError> {
        Ok((self.undo_all(plane)?, true))
    }

    /// Returns an entry.
    ///
    /// # Errors
    /// `NotFound`.
    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError>;

    /// Continues a scan over all entries until `each` breaks it off. Returns whether it is complete.
    ///
    /// # Errors
    /// As in the driver.
    fn scan(&self, _plane: &Plane, _at: &mut Position, _each: Each<'_>) -> Result<bool, BfrtError> {
        Ok(true)
    }

    /// Returns the number of entries.
    ///
    /// # Errors
    /// The driver does not report it.
    fn usage(&self, _plane: &Plane) -> Result<usize, BfrtError> {
        Err(BfrtError::new(Code::Unsupported, "Unable to get usage"))
    }

    /// Returns the default entry, which follows all others.
    ///
    /// # Errors
    /// It cannot be read.
    fn default_entry(&self, _plane: &Plane) -> Result<Option<Row>, BfrtError> {
        let default = self.schema().actions.iter().find(|action| action.default_only);
        Ok(default.map(|action| Row {
            key: Vec::new(),
            action: action.id,
            data: Vec::new(),
        }))
    }

    /// Returns whether the default entry may be written with its present value.
    fn has_default(&self) -> bool {
        false
    }

    /// Returns the 5-tuple of a key, if entries have handles.
    fn handle_key(&self, _key: &Key<'_>) -> Option<FiveTuple> {
        None
    }

    /// Returns an entry by its handle's 5-tuple.
    ///
    /// # Errors
    /// `NotFound`.
    fn read_flow(&self, _plane: &Plane, _flow: &FiveTuple) -> Result<Row, BfrtError> {
        Err(self.absent())
    }

    /// Prepares the data plane for inserts of these keys.
    fn prepare(&self, _plane: &mut Plane, _new: &[(&Key<'_>, &Data<'_>)]) {}

    /// Returns the number of the table's idle attribute: 0 for IPv4, 1 for IPv6.
    fn idle(&self) -> Option<usize> {
        None
    }

    /// Returns the key of a flow, for idle notices.
    fn flow_key(&self, _flow: &FiveTuple) -> Vec<pb::KeyField> {
        Vec::new()
    }

    /// Returns the error for a missing entry.
    fn absent(&self) -> BfrtError {
        BfrtError::new(Code::NotFound, format!("Entry not found in table:{}", self.schema().name))
    }

    /// Returns the error for a change that the table does not support.
    fn unsupported(&self, change: Change) -> BfrtError {
        BfrtError::new(Code::Unsupported, format!("{} table:{}", change.failed(), self.schema().name))
    }

    /// Converts an error of the relay table.
    fn fault(&self, change: Change, fault: &Fault) -> BfrtError {
        let table = &self.schema().name;
        let (code, why) = match fault {
            Fault::Exists => (Code::Exists, String::new()),
            Fault::Absent => (Code::NotFound, String::new()),
            Fault::Full => (Code::NoSpace, String::new()),
            Fault::Invalid(why) => (Code::Invalid, format!(": {why}")),
            Fault::Kernel(why) => {
                tracing::error!("{table}: {why}");
                (Code::Internal, format!(": {why}"))
            }
        };
        BfrtError::new(code, format!("{}{why} table:{table}", change.failed()))
    }
}

/// Returns the next key of a list that is made at the beginning of a scan.
///
/// # Errors
/// Those of `list`.
pub fn next_key<K: Send + 'static>(at: &mut Position, list: impl FnOnce() -> Result<Vec<K>, BfrtError>) -> Result<Option<K>, BfrtError> {
    if at.is_none() {
        let mut keys = list()?;
        keys.reverse();
        *at = Some(Box::new(keys));
    }
    Ok(at.as_mut().and_then(|keys| keys.downcast_mut::<Vec<K>>()).and_then(Vec::pop))
}

/// Returns an address as bytes of one of the two lengths.
#[must_use]
pub fn address(bytes: &[u8]) -> IpAddr {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(bytes), _) => Ipv4Addr::from(bytes).into(),
        (_, Ok(bytes)) => Ipv6Addr::from(bytes).into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Returns a number of a port's width.
#[must_use]
pub fn port(bytes: &[u8]) -> u16 {
    number(bytes) as u16
}

/// Returns the 5-tuple of a key whose first four fields are source and destination address, source and destination port.
#[must_use]
pub fn flow(key: &Key<'_>) -> FiveTuple {
    FiveTuple::new(
        Endpoint::new(address(key.exact(0)), port(key.exact(2))),
        Endpoint::new(address(key.exact(1)), port(key.exact(3))),
    )
}

/// Returns the key fields 1 to 4 of a 5-tuple.
#[must_use]
pub fn flow_fields(flow: &FiveTuple) -> Vec<pb::KeyField> {
    vec![
        exact(1, &*octets(flow.src.addr)),
        exact(2, &*octets(flow.dst.addr)),
        exact(3, flow.src.port.to_be_bytes()),
        exact(4, flow.dst.port.to_be_bytes()),
    ]
}

/// A program's tables by their ids, and the schema that describes them.
pub struct Registry {
    pub program: Program,
    tables: HashMap<u32, Box<dyn Table>>,
    pub schema: Schema,
}

impl Registry {
    /// Makes every table of a program.
    ///
    /// # Errors
    /// The schema lacks one of them.
    pub fn new(schema: Schema, program: Program) -> Result<Self, SchemaError> {
        let mut all = Self {
            program,
            tables: HashMap::new(),
            schema,
        };
        for (v6, six) in [(false, ""), (true, "6")] {
            all.add(&format!("pipe.Ingress.relay{six}"), |table| relay::Relay::new(table, v6, program))?;
            all.add(&format!("pipe.Ingress.media{six}"), |table| media::Media::new(table, program))?;
            all.add(&format!("softswitch.quality{six}"), |table| Ok(quality::Quality::new(table, v6)))?;
            all.add(&format!("softswitch.trace{six}"), |table| Ok(trace::TraceTable::new(table)))?;
            all.add(&format!("softswitch.blocklist{six}"), |table| {
                Timed::new(table, v6, program, blocklist::Blocklist)
            })?;
            all.add(&format!("softswitch.allowlist{six}"), |table| {
                Timed::new(table, v6, program, allowlist::Allowlist)
            })?;
            all.add(&format!("softswitch.source_filter{six}"), |table| {
                Timed::new(table, v6, program, source_filter::SourceFilter)
            })?;
            all.add(&format!("softswitch.greylist{six}"), |table| {
                Timed::new(table, v6, program, greylist::Greylist)
            })?;
        }
        if all.schema.table("pipe.Ingress.conference").is_some() {
            for (v6, six) in [(false, ""), (true, "6")] {
                all.add(&format!("pipe.Ingress.conference{six}"), |table| streams::Streams::new(table, v6))?;
                all.add(&format!("softswitch.reception{six}"), |table| {
                    Ok(reception::Receptions::new(table, v6))
                })?;
            }
            all.add("pipe.Ingress.layer", layers::Layers::new)?;
            all.add("pipe.Egress.copy", copies::Copies::new)?;
            all.add("$pre.mgid", |table| pre::Engine::new(table, mgid::Trees))?;
            all.add("$pre.node", |table| pre::Engine::new(table, node::Nodes))?;
            all.add("$pre.prune", |table| pre::Engine::new(table, prune::Prunes))?;
        }
        all.add("softswitch.totals", |table| Ok(totals::Totals::new(table)))?;
        all.add("softswitch.interface", |table| Ok(interface::Interfaces::new(table)))?;
        Ok(all)
    }

    fn add<T: Table>(&mut self, name: &str, make: impl FnOnce(Arc<schema::Table>) -> Result<T, SchemaError>) -> Result<(), SchemaError> {
        let described = self
            .schema
            .table(name)
            .ok_or_else(|| SchemaError(format!("the schema has no table {name}")))?;
        let table = make(Arc::clone(described))?;
        self.tables.insert(described.id, Box::new(table));
        Ok(())
    }

    /// Returns a table that is served here; `None` for one that is only described.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&dyn Table> {
        self.tables.get(&id).map(|table| &**table)
    }

    /// Returns all tables.
    pub fn all(&self) -> impl Iterator<Item = &dyn Table> {
        self.tables.values().map(|table| &**table)
    }
}

impl Registry {
    /// Returns the description of a table.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn described(&self, id: u32) -> Result<&Arc<schema::Table>, BfrtError> {
        self.schema
            .table_by_id(id)
            .ok_or_else(|| BfrtError::new(Code::NotFound, format!("Table not found for id {id}")))
    }
}
