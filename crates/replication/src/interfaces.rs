//! The interfaces that copies leave by, in the map that relayed packets take too.
//!
//! One egress program runs on all that a poll sends by an interface, whoever came first. So an interface is in this map, and relayed
//! packets run the same program, before the first copy leaves by it: for as long as the programs run that did not find it there.

use shunt_xdp::{DeviceMap, Hash, Loaded};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

pub struct Interfaces {
    map: OwnedFd,
    rows: Hash<u32, u64>,
    program: OwnedFd,
    /// Whether no program runs any more that did not find it in the map.
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

    /// Whether an interface is in the map. The kernel removes it with the interface, which may come back under its number.
    pub fn has(&self, ifindex: u32) -> shunt_xdp::Result<bool> {
        Ok(self.ready.contains_key(&ifindex) && self.rows.get(&ifindex)?.is_some())
    }

    /// Take over an interface that a former process has put into the map, with our program.
    pub fn adopt(&mut self, ifindex: u32) -> shunt_xdp::Result<()> {
        if self.rows.get(&ifindex)?.is_some() {
            self.add(ifindex)?;
            self.made_ready(ifindex);
        }
        Ok(())
    }

    /// Put an interface into the map. It is ready after a grace period.
    pub fn add(&mut self, ifindex: u32) -> shunt_xdp::Result<()> {
        DeviceMap::add(&self.map, ifindex, self.program.as_fd())?;
        self.ready.insert(ifindex, false);
        Ok(())
    }

    pub fn is_ready(&self, ifindex: u32) -> bool {
        self.ready.get(&ifindex).copied().unwrap_or(false)
    }

    /// A grace period has passed since the interface was put into the map.
    pub fn made_ready(&mut self, ifindex: u32) {
        if let Some(ready) = self.ready.get_mut(&ifindex) {
            *ready = true;
        }
    }

    /// Interfaces that were in the map and are not any more.
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
