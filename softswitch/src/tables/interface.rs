//! `softswitch.interface`: the interfaces, and the mode of the program that is attached now. Read only.

use super::{Each, Position, Row, Table, next_key};
use crate::plane::{Interface, Plane};
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema;
use shunt_bfrt::values::{Key, exact, stream, text};
use shunt_xdp::Mode;
use std::sync::Arc;

/// The interfaces.
pub struct Interfaces {
    schema: Arc<schema::Table>,
}

fn row(interface: &Interface) -> Row {
    let data = vec![
        text(1, interface.name.clone()),
        text(2, interface.mode.map_or("none", Mode::name)),
        stream(3, interface.rx_queues.to_be_bytes()),
    ];
    Row {
        key: vec![exact(1, interface.ifindex.to_be_bytes())],
        action: 0,
        data,
    }
}

impl Interfaces {
    pub fn new(schema: Arc<schema::Table>) -> Self {
        Self { schema }
    }
}

impl Table for Interfaces {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        Ok(plane
            .interfaces()
            .iter()
            .any(|interface| u64::from(interface.ifindex) == key.number(0)))
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        let found = plane
            .interfaces()
            .into_iter()
            .find(|interface| u64::from(interface.ifindex) == key.number(0));
        found.map(|interface| row(&interface)).ok_or_else(|| self.absent())
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(interface) = next_key(at, || Ok(plane.interfaces()))? {
            if each(row(&interface)).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(plane.interfaces().len())
    }
}
