//! The output interfaces of copies, in the map that relayed packets use too.
//!
//! One egress program runs on all frames that a poll sends by an interface, and the first frame selects it. Therefore an interface enters
//! this map, and its relayed packets run the same program, before the first copy leaves by it. The wait lasts until every program has ended
//! that did not find the interface in the map.

use shunt_xdp::{DeviceMap, Hash, Loaded};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

pub struct Interfaces {
    map: OwnedFd,
    rows: Hash<u32, u64>,
    program: OwnedFd,
    /// Whether every program that did not find it in the map has ended.
    ready: HashMap<u32, bool>,
}

impl Interfaces {
    pub fn new(loaded: &Loaded, program: OwnedFd) -> shunt_xdp::Result<Self> {
        let map = loaded.map("c_devices")?;
        Ok(Self {
            rows: Hash::new(map)?,
            map: map
                .try_clone_to_owned()
                .map_err(|error| shunt_xdp::Error::new("cannot duplicate a file descriptor", error))?,
            program,
            ready: HashMap::new(),
        })
    }

    /// Returns whether an interface is in the map. The kernel removes it with the interface, whose number may be used again.
    pub fn has(&self, ifindex: u32) -> shunt_xdp::Result<bool> {
        Ok(self.ready.contains_key(&ifindex) && self.rows.get(&ifindex)?.is_some())
    }

    /// Takes over an interface that a former process has put into the map with our program.
    pub fn adopt(&mut self, ifindex: u32) -> shunt_xdp::Result<()> {
        if self.rows.get(&ifindex)?.is_some() {
            self.add(ifindex)?;
            self.made_ready(ifindex);
        }
        Ok(())
    }

    /// Puts an interface into the map. It is ready after a grace period.
    pub fn add(&mut self, ifindex: u32) -> shunt_xdp::Result<()> {
        DeviceMap::add(&self.map, ifindex, self.program.as_fd())?;
        self.ready.insert(ifindex, false);
        Ok(())
    }

    pub fn is_ready(&self, ifindex: u32) -> bool {
        self.ready.get(&ifindex).copied().unwrap_or(false)
    }

    /// Marks interfaces as ready after a grace period.
    pub fn made_ready(&mut self, ifindex: u32) {
        if let Some(ready) = self.ready.get_mut(&ifindex) {
            *ready = true;
        }
    }

    /// Returns interfaces that have disappeared from the map.
    pub fn removed(&self) -> shunt_xdp::Result<Vec<u32>> {
        let mut found = Vec::new();
        for ifindex in self.ready.keys() {
            if self.rows.get(ifindex)?.is_none() {
                found.push(*ifindex);
            }
        }
        Ok(found)
    }
}
