//! The layer of each template id or temporal id.

use crate::Counted;
use crate::fault::{Fault, Result};
use shunt_abi::replicate::layer;
use shunt_xdp::{Hash, Loaded, Put};
use std::collections::HashMap;

/// The parameters of `set_layer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    pub layer: u8,
    /// Bit n: a receiver that decodes this frame can decode all of target n from here on.
    pub switches: u16,
}

/// The kernel's table of layers.
pub struct Layers {
    map: Hash<u32, layer>,
    rows: HashMap<(u16, u8), Layer>,
}

fn key(layers: u16, template: u8) -> u32 {
    u32::from(layers) << 8 | u32::from(template)
}

impl Layers {
    pub(crate) fn new(loaded: &Loaded) -> shunt_xdp::Result<Self> {
        Ok(Self {
            map: Hash::new(loaded.map("c_layers")?)?,
            rows: HashMap::new(),
        })
    }

    /// Sets the layer of a template from the next packet on. The counters of an existing row continue unless `reset`.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn put(&mut self, layers: u16, template: u8, row: Layer, reset: bool) -> Result<()> {
        let counted = if reset { Counted::default() } else { self.count(layers, template)? };
        let value = layer {
            layer: row.layer,
            switches: row.switches,
            packets: counted.packets,
            bytes: counted.bytes,
            ..Default::default()
        };
        if self.map.put(&key(layers, template), &value)? == Put::Full {
            let text = format!("There is no room for one more layer, there are {}", self.rows.len());
            return Err(Fault::NoSpace(text));
        }
        self.rows.insert((layers, template), row);
        Ok(())
    }

    /// Makes all receivers get packets of this template from now on. Returns whether it had a layer.
    ///
    /// # Errors
    /// The kernel rejects the deletion.
    pub fn delete(&mut self, layers: u16, template: u8) -> Result<bool> {
        self.map.delete(&key(layers, template))?;
        Ok(self.rows.remove(&(layers, template)).is_some())
    }

    /// Returns the counters of a template; `None` without a row.
    ///
    /// # Errors
    /// The kernel rejects the lookup.
    pub fn count(&self, layers: u16, template: u8) -> Result<Counted> {
        let found = self.map.get(&key(layers, template))?.unwrap_or_default();
        Ok(Counted {
            packets: found.packets,
            bytes: found.bytes,
            ..Default::default()
        })
    }

    /// Returns the layer of a template, if it has a row.
    #[must_use]
    pub fn get(&self, layers: u16, template: u8) -> Option<Layer> {
        self.rows.get(&(layers, template)).copied()
    }

    /// Returns `layers` and template of all rows.
    pub fn keys(&self) -> impl Iterator<Item = (u16, u8)> {
        self.rows.keys().copied()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes over the rows of a former process.
    pub(crate) fn adopt(&mut self) -> Result<()> {
        for (key, value) in self.map.elements()? {
            let row = Layer {
                layer: value.layer,
                switches: value.switches,
            };
            self.rows.insert(((key >> 8) as u16, key as u8), row);
        }
        Ok(())
    }
}
