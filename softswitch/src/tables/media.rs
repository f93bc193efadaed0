//! `media` and `media6`: the relay's ports at which packets without an entry raise learn notices.

use super::{Change, Each, Position, Row, Table, Undo, address, next_key, port};
use crate::plane::Plane;
use crate::plane::ports::{Name, Program};
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key, exact, number, range};
use shunt_bfrt::{BfrtError, Code};
use shunt_net::octets;
use shunt_relay_table::{Fault, MediaRange};
use std::sync::Arc;

/// `$MATCH_PRIORITY`.
const PRIORITY: u32 = 65537;

/// The media ports of one IP version of a program.
pub struct Media {
    schema: Arc<schema::Table>,
    program: Program,
    action: u32,
    v6: bool,
}

fn name(key: &Key<'_>) -> Name {
    let (first, last) = key.range(1);
    (
        MediaRange {
            addr: address(key.exact(0)),
            first: port(first),
            last: port(last),
        },
        number(key.exact(2)) as u32,
    )
}

fn add(plane: &mut Plane, program: Program, name: Name) -> Result<(), Fault> {
    // The same ports may exist at another priority.
    if !plane.relay.media().contains(&name.0) {
        plane.relay.add_media(name.0)?;
    }
    plane.notes.ports.insert(program, name);
    Ok(())
}

fn remove(plane: &mut Plane, name: &Name) {
    plane.notes.ports.remove(name);
    if !plane.notes.ports.is_used(&name.0) {
        plane.relay.remove_media(name.0);
    }
}

fn restore(plane: &mut Plane, program: Program, name: Name, there: bool) -> Result<(), BfrtError> {
    match (there, plane.notes.ports.has(program, &name)) {
        (true, false) => add(plane, program, name).map_err(|fault| BfrtError::new(Code::Internal, fault.to_string())),
        (false, true) => {
            remove(plane, &name);
            Ok(())
        }
        _ => Ok(()),
    }
}

impl Media {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>, program: Program) -> Result<Self, SchemaError> {
        let action = schema.actions.iter().find(|action| !action.default_only);
        let action = action.ok_or_else(|| SchemaError(format!("{} has no action", schema.name)))?.id;
        let v6 = schema.key.named("dst_addr")?.size() == Some(16);
        Ok(Self {
            action,
            v6,
            program,
            schema,
        })
    }

    fn names(&self, plane: &Plane) -> Vec<Name> {
        plane.notes.ports.of(self.program, self.v6)
    }

    fn row(&self, (media, priority): &Name) -> Row {
        let key = vec![
            exact(1, &*octets(media.addr)),
            range(2, media.first.to_be_bytes(), media.last.to_be_bytes()),
            exact(PRIORITY, priority.to_be_bytes()),
        ];
        Row {
            key,
            action: self.action,
            data: Vec::new(),
        }
    }

    fn check(&self, change: Change, data: &Data<'_>) -> Result<(), BfrtError> {
        let name = &self.schema.name;
        match data.action {
            Some(action) if action.id == self.action => Ok(()),
            Some(action) => Err(BfrtError::new(
                Code::Invalid,
                format!("{} is for the default entry only; table:{name}", action.name),
            )),
            None => Err(BfrtError::new(
                Code::Invalid,
                format!("{}: no action given; table:{name}", change.failed()),
            )),
        }
    }
}

impl Table for Media {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(plane.notes.ports.has(self.program, &name(key)))
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        self.check(Change::Insert, data)?;
        let name = name(key);
        let failed = |fault| self.fault(Change::Insert, &fault);
        if plane.notes.ports.has(self.program, &name) {
            return Err(failed(Fault::Exists));
        }
        if let Some((_, other)) = plane.notes.ports.rival(self.program, &name.0) {
            let name = &self.schema.name;
            let text = format!(
                "Ports {} to {} of {} are another program's; table:{name}",
                other.first, other.last, other.addr
            );
            return Err(BfrtError::new(Code::Invalid, text));
        }
        if self.names(plane).len() >= self.schema.size {
            return Err(failed(Fault::Full));
        }
        add(plane, self.program, name).map_err(failed)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, _reset: bool) -> Result<(), BfrtError> {
        self.check(Change::Modify, data)?;
        if self.has(plane, key)? {
            Ok(())
        } else {
            Err(self.fault(Change::Modify, &Fault::Absent))
        }
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        if !self.has(plane, key)? {
            return Err(self.fault(Change::Delete, &Fault::Absent));
        }
        remove(plane, &name(key));
        Ok(())
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some(name) = next_key(at, || Ok(self.names(plane)))? {
            remove(plane, &name);
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        let (program, name, there) = (self.program, name(key), self.has(plane, key)?);
        Ok(Box::new(move |plane| restore(plane, program, name, there)))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        let program = self.program;
        Ok(self
            .names(plane)
            .into_iter()
            .map(|name| Box::new(move |plane: &mut Plane| restore(plane, program, name, true)) as Undo)
            .collect())
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        if self.has(plane, key)? {
            Ok(self.row(&name(key)))
        } else {
            Err(self.absent())
        }
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(name) = next_key(at, || Ok(self.names(plane)))? {
            if plane.notes.ports.has(self.program, &name) && each(self.row(&name)).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(self.names(plane).len())
    }

    fn has_default(&self) -> bool {
        true
    }
}
