//! Common parts of the tables of admitted sources: an address, in some tables a port, and a time to live.

use super::{Each, Position, Row, Table, Undo, address, next_key, port};
use crate::plane::Plane;
use crate::plane::ports::Program;
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key, exact, number, stream};
use shunt_bfrt::{BfrtError, Code, pb};
use shunt_net::{Endpoint, octets};
use shunt_relay_table::{Filters, TimedRow, TimedTable};
use shunt_xdp::Put;
use std::sync::Arc;

/// The subject of a key, which determines the program of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// A relay port: its program's.
    RelayPort,
    /// A relay address: its ports may belong to several programs, which share the row.
    RelayAddress,
    /// A source address: the row belongs to every program that has written it.
    Source,
}

/// The differences between these tables.
pub trait Kind: Copy + Send + Sync + 'static {
    /// A row of its map.
    type Row: TimedRow;
    /// The content of a row except its time.
    type More: Clone + Send + 'static;
    const NAMES: Names;

    fn table(filters: &Filters) -> &TimedTable<Self::Row>;
    fn table_mut(filters: &mut Filters) -> &mut TimedTable<Self::Row>;

    /// Decodes data except the time; numbers of fields begin at 2.
    ///
    /// # Errors
    /// The part that is wrong.
    fn decode(&self, key: &Endpoint, data: &Data<'_>) -> Result<Self::More, String>;

    /// Writes a row.
    ///
    /// # Errors
    /// The kernel rejects the write.
    fn put(&self, filters: &mut Filters, key: &Endpoint, ttl_ms: u32, more: &Self::More) -> shunt_xdp::Result<Put>;

    fn more(&self, row: &Self::Row, v6: bool) -> Self::More;

    /// Returns the part of a row for other programs' ports, if any.
    fn of_others(&self, _row: &Self::Row, _is_own: &dyn Fn(u16) -> bool) -> Option<Self::More> {
        None
    }

    /// Returns the content of a row that other programs share.
    ///
    /// # Errors
    /// Both do not fit.
    fn join(&self, own: Self::More, _others: Self::More) -> Result<Self::More, String> {
        Ok(own)
    }

    /// Returns the data fields except the time.
    fn encode(&self, schema: &schema::Table, more: &Self::More) -> Vec<pb::DataField>;
}

/// A table of one IP version.
pub struct Timed<K> {
    schema: Arc<schema::Table>,
    v6: bool,
    has_port: bool,
    program: Program,
    kind: K,
}

const TTL: u32 = 1;

impl<K: Kind> Timed<K> {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>, v6: bool, program: Program, kind: K) -> Result<Self, SchemaError> {
        if schema.data.named("ttl_ms")?.id != TTL {
            return Err(SchemaError(format!("{}: ttl_ms is not field {TTL}", schema.name)));
        }
        Ok(Self {
            v6,
            has_port: schema.key.len() > 1,
            program,
            kind,
            schema,
        })
    }

    fn end(&self, key: &Key<'_>) -> Endpoint {
        Endpoint::new(address(key.exact(0)), if self.has_port { port(key.exact(1)) } else { 0 })
    }

    fn invalid(&self, what: &str) -> BfrtError {
        BfrtError::new(Code::Invalid, format!("{what}; table:{}", self.schema.name))
    }

    fn kernel(&self, error: &shunt_xdp::Error) -> BfrtError {
        tracing::error!("{}: {error}", self.schema.name);
        BfrtError::new(Code::Internal, format!("{error}; table:{}", self.schema.name))
    }

    fn get(&self, plane: &Plane, end: &Endpoint) -> Result<Option<K::Row>, BfrtError> {
        K::table(&plane.filters).get(end).map_err(|error| self.kernel(&error))
    }

    fn write(&self, plane: &mut Plane, end: &Endpoint, data: &Data<'_>) -> Result<(), BfrtError> {
        let ttl = data.bytes(TTL).map_or(0, number) as u32;
        if ttl == 0 {
            return Err(self.invalid("ttl_ms is to be at least 1"));
        }
        let no_room = |what: &str| BfrtError::new(Code::NoSpace, format!("No room for {what} in table:{}", self.schema.name));
        let mut more = self.kind.decode(end, data).map_err(|what| self.invalid(&what))?;
        if let Some(others) = self.of_others(plane, end)? {
            more = self.kind.join(more, others).map_err(|what| no_room(&what))?;
        }
        let ttl = ttl.max(self.wanted_by_others(plane, end)?);
        match self
            .kind
            .put(&mut plane.filters, end, ttl, &more)
            .map_err(|error| self.kernel(&error))?
        {
            Put::Done => {
                self.hold(plane, end);
                Ok(())
            }
            Put::Full => Err(no_room(&end.to_string())),
        }
    }

    /// Returns the content of a row for other programs' ports.
    fn of_others(&self, plane: &Plane, end: &Endpoint) -> Result<Option<K::More>, BfrtError> {
        if K::NAMES != Names::RelayAddress {
            return Ok(None);
        }
        let is_own = |port| plane.notes.ports.program_of(&Endpoint::new(end.addr, port)) == Some(self.program);
        Ok(self.get(plane, end)?.and_then(|row| self.kind.of_others(&row, &is_own)))
    }

    /// Returns how many milliseconds a row stays in force for other programs.
    fn wanted_by_others(&self, plane: &Plane, end: &Endpoint) -> Result<u32, BfrtError> {
        if K::NAMES != Names::Source || !plane.notes.holders.has_others(self.program, &(self.schema.id, *end)) {
            return Ok(0);
        }
        Ok(self.get(plane, end)?.map_or(0, |row| TimedTable::remaining_ms(&row)))
    }

    fn hold(&self, plane: &mut Plane, end: &Endpoint) {
        if K::NAMES != Names::Source || plane.notes.idle.len() == 1 {
            return;
        }
        let (id, table) = (self.schema.id, K::table(&plane.filters));
        // Rows of other tables count as in force, because this table cannot look them up.
        let in_force = |source: &(u32, Endpoint)| source.0 != id || !matches!(table.get(&source.1), Ok(None));
        plane.notes.holders.hold(self.program, (id, *end), in_force);
    }

    /// Removes this program's part of a row.
    fn remove(&self, plane: &mut Plane, end: &Endpoint) -> Result<(), BfrtError> {
        if K::NAMES == Names::Source && !plane.notes.holders.release(self.program, &(self.schema.id, *end)) {
            return Ok(());
        }
        if let (Some(others), Some(row)) = (self.of_others(plane, end)?, self.get(plane, end)?) {
            let left = TimedTable::remaining_ms(&row).max(1);
            let kept = self.kind.put(&mut plane.filters, end, left, &others);
            return kept.map(drop).map_err(|error| self.kernel(&error));
        }
        K::table_mut(&mut plane.filters).remove(end).map_err(|error| self.kernel(&error))
    }

    fn row(&self, end: &Endpoint, row: &K::Row) -> Row {
        let mut key = vec![exact(1, &*octets(end.addr))];
        if self.has_port {
            key.push(exact(2, end.port.to_be_bytes()));
        }
        let mut data = vec![stream(TTL, TimedTable::remaining_ms(row).to_be_bytes())];
        data.extend(self.kind.encode(&self.schema, &self.kind.more(row, self.v6)));
        Row { key, action: 0, data }
    }

    fn ends(&self, plane: &Plane) -> Result<Vec<Endpoint>, BfrtError> {
        let rows = K::table(&plane.filters).rows().map_err(|error| self.kernel(&error))?;
        let is_own = |end: &Endpoint| K::NAMES != Names::RelayPort || plane.notes.ports.program_of(end) == Some(self.program);
        Ok(rows
            .into_iter()
            .map(|(end, _)| end)
            .filter(|end| end.addr.is_ipv6() == self.v6 && is_own(end))
            .collect())
    }

    fn undo_of(&self, plane: &Plane, end: Endpoint) -> Result<Undo, BfrtError> {
        let kind = self.kind;
        let before = self
            .get(plane, &end)?
            .map(|row| (TimedTable::remaining_ms(&row).max(1), kind.more(&row, self.v6)));
        Ok(Box::new(move |plane| {
            let result = match &before {
                Some((ttl, more)) => kind.put(&mut plane.filters, &end, *ttl, more).map(drop),
                None => K::table_mut(&mut plane.filters).remove(&end),
            };
            result.map_err(|error| BfrtError::new(Code::Internal, error.to_string()))
        }))
    }
}

impl<K: Kind> Table for Timed<K> {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(self.get(plane, &self.end(key))?.is_some())
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        if self.has(plane, key)? {
            return Err(BfrtError::new(
                Code::Exists,
                format!("Entry already exists in table:{}", self.schema.name),
            ));
        }
        self.write(plane, &self.end(key), data)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, _reset: bool) -> Result<(), BfrtError> {
        if !self.has(plane, key)? {
            return Err(self.absent());
        }
        self.write(plane, &self.end(key), data)
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        if !self.has(plane, key)? {
            return Err(self.absent());
        }
        self.remove(plane, &self.end(key))
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some(end) = next_key(at, || self.ends(plane))? {
            self.remove(plane, &end)?;
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        self.undo_of(plane, self.end(key))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        self.ends(plane)?.into_iter().map(|end| self.undo_of(plane, end)).collect()
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        let end = self.end(key);
        self.get(plane, &end)?.map(|row| self.row(&end, &row)).ok_or_else(|| self.absent())
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(end) = next_key(at, || self.ends(plane))? {
            if let Some(row) = self.get(plane, &end)?
                && each(self.row(&end, &row)).is_break()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(self.ends(plane)?.len())
    }
}
