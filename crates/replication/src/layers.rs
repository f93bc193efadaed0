//! Which layer a template id or temporal id is.

use crate::Counted;
use crate::fault::{Fault, Result};
use shunt_abi::replicate::layer;
use shunt_xdp::{Hash, Loaded, Put};
use std::collections::HashMap;

/// The parameters of `set_layer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    pub layer: u8,
    /// Bit n: whoever can decode this frame can decode all of target n from here on.
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

    /// Say which layer a template is, from the next packet on; the counters of one that is there go on unless `reset`.
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

    /// Packets of this template are everybody's from now on; whether it had a layer.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn delete(&mut self, layers: u16, template: u8) -> Result<bool> {
        self.map.delete(&key(layers, template))?;
        Ok(self.rows.remove(&(layers, template)).is_some())
    }

    /// What has come of a template; nothing where there is no row.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn count(&self, layers: u16, template: u8) -> Result<Counted> {
        let found = self.map.get(&key(layers, template))?.unwrap_or_default();
        Ok(Counted {
            packets: found.packets,
            bytes: found.bytes,
            ..Default::default()
        })
    }

    /// Which layer a template is; None where nothing is said.
    #[must_use]
    pub fn get(&self, layers: u16, template: u8) -> Option<Layer> {
        self.rows.get(&(layers, template)).copied()
    }

    /// `layers` and template of all rows.
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

    /// Take over the rows of a former process.
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
