//! `layer`: the layer of a template (of a dependency descriptor, or a temporal id).

use super::conference::{Given, action, counted_row, fault, names_counter, tables, tables_mut};
use super::{Change, Each, Position, Row, Table, Undo, next_key};
use crate::plane::Plane;
use shunt_bfrt::BfrtError;
use shunt_bfrt::schema::{self, SchemaError};
use shunt_bfrt::values::{Data, Key, exact};
use shunt_relay_table::Fault;
use shunt_replication::Layer;
use std::sync::Arc;

/// The layers.
pub struct Layers {
    schema: Arc<schema::Table>,
    set_layer: schema::Action,
}

type Name = (u16, u8);

fn name(key: &Key<'_>) -> Name {
    (key.number(0) as u16, key.number(1) as u8)
}

fn names(plane: &Plane) -> Result<Vec<Name>, BfrtError> {
    Ok(tables(plane)?.layers().keys().collect())
}

impl Layers {
    /// # Errors
    /// When the schema's table is not as this code reads it.
    pub fn new(schema: Arc<schema::Table>) -> Result<Self, SchemaError> {
        Ok(Self {
            set_layer: action(&schema, "set_layer")?,
            schema,
        })
    }

    fn layer(&self, data: &Data<'_>) -> Result<Layer, BfrtError> {
        let given = Given::of(self, data)?;
        Ok(Layer {
            layer: given.number("layer") as u8,
            switches: given.number("switches") as u16,
        })
    }

    fn row(&self, plane: &Plane, (layers, template): Name) -> Result<Option<Row>, BfrtError> {
        let all = tables(plane)?.layers();
        let Some(layer) = all.get(layers, template) else { return Ok(None) };
        let counted = all.count(layers, template).map_err(fault)?;
        let value = |field: &str| match field {
            "layer" => layer.layer.into(),
            "switches" => layer.switches.into(),
            _ => 0,
        };
        let key = vec![exact(1, layers.to_be_bytes()), exact(2, [template])];
        Ok(Some(counted_row(key, &self.set_layer, value, &counted)))
    }

    fn undo_of(plane: &Plane, (layers, template): Name) -> Result<Undo, BfrtError> {
        let before = tables(plane)?.layers().get(layers, template);
        Ok(Box::new(move |plane| {
            let all = tables_mut(plane)?.layers_mut();
            match before {
                Some(layer) => all.put(layers, template, layer, false),
                None => all.delete(layers, template).map(drop),
            }
            .map_err(fault)
        }))
    }
}

impl Table for Layers {
    fn schema(&self) -> &Arc<schema::Table> {
        &self.schema
    }

    fn has(&self, plane: &Plane, key: &Key<'_>) -> Result<bool, BfrtError> {
        let (layers, template) = name(key);
        Ok(tables(plane)?.layers().get(layers, template).is_some())
    }

    fn insert(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>) -> Result<(), BfrtError> {
        let layer = self.layer(data)?;
        if self.has(plane, key)? {
            return Err(self.fault(Change::Insert, &Fault::Exists));
        }
        let (layers, template) = name(key);
        tables_mut(plane)?.layers_mut().put(layers, template, layer, true).map_err(fault)
    }

    fn modify(&self, plane: &mut Plane, key: &Key<'_>, data: &Data<'_>, reset: bool) -> Result<(), BfrtError> {
        let layer = self.layer(data)?;
        if !self.has(plane, key)? {
            return Err(self.absent());
        }
        let (layers, template) = name(key);
        tables_mut(plane)?
            .layers_mut()
            .put(layers, template, layer, reset || names_counter(data))
            .map_err(fault)
    }

    fn delete(&self, plane: &mut Plane, key: &Key<'_>) -> Result<(), BfrtError> {
        if !self.has(plane, key)? {
            return Err(self.absent());
        }
        let (layers, template) = name(key);
        tables_mut(plane)?.layers_mut().delete(layers, template).map(drop).map_err(fault)
    }

    fn clear(&self, plane: &mut Plane, at: &mut Position, more: &mut dyn FnMut() -> bool) -> Result<bool, BfrtError> {
        while let Some((layers, template)) = next_key(at, || names(plane))? {
            tables_mut(plane)?.layers_mut().delete(layers, template).map_err(fault)?;
            if !more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn undo(&self, plane: &Plane, key: &Key<'_>) -> Result<Undo, BfrtError> {
        Self::undo_of(plane, name(key))
    }

    fn undo_all(&self, plane: &Plane) -> Result<Vec<Undo>, BfrtError> {
        names(plane)?.into_iter().map(|name| Self::undo_of(plane, name)).collect()
    }

    fn read(&self, plane: &Plane, key: &Key<'_>) -> Result<Row, BfrtError> {
        self.row(plane, name(key))?.ok_or_else(|| self.absent())
    }

    fn scan(&self, plane: &Plane, at: &mut Position, each: Each<'_>) -> Result<bool, BfrtError> {
        while let Some(name) = next_key(at, || names(plane))? {
            if let Some(row) = self.row(plane, name)?
                && each(row).is_break()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn usage(&self, plane: &Plane) -> Result<usize, BfrtError> {
        Ok(tables(plane)?.layers().len())
    }
}
