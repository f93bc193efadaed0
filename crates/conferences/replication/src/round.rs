//! One grace period of the kernel, and the maps that are made in it.

use crate::outputs::{BARRIER, Task, places};
use shunt_xdp::{DeviceMap, set_inner_map, set_inner_maps};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// The array of device maps. A write to one of its rows returns after every program has ended that was running before.
pub struct Array {
    map: OwnedFd,
    program: OwnedFd,
    /// For the row that no list names.
    spare: DeviceMap,
}

impl Array {
    /// Opens the array. `map`: `c_outputs`; `program`: runs on each copy.
    pub fn new(map: OwnedFd, program: OwnedFd) -> shunt_xdp::Result<Self> {
        Ok(Self {
            map,
            program,
            spare: DeviceMap::with_room(1)?,
        })
    }

    fn wait(&self) -> shunt_xdp::Result<()> {
        set_inner_map(&self.map, BARRIER.into(), &self.spare)
    }

    fn make(&self, task: &Task) -> shunt_xdp::Result<DeviceMap> {
        match task {
            Task::Empty { room, .. } => DeviceMap::with_room(*room),
            Task::Full { composition, .. } => DeviceMap::new(&places(composition).collect::<Vec<_>>(), &self.program),
        }
    }
}

/// The work of one grace period. Run it without the lock of the tables, and give the outcome to `Replication::finish()`.
#[must_use = "its outcome belongs to finish()"]
pub struct Round {
    pub(crate) array: Arc<Array>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) until: u64,
}

/// The outcome of a round.
#[must_use = "it belongs to finish()"]
pub struct Passed {
    pub(crate) maps: Vec<(u16, Option<DeviceMap>)>,
    /// Records retired up to this epoch are unread; `None` if the wait failed.
    pub(crate) until: Option<u64>,
}

impl Round {
    /// Makes device maps and waits until every program has ended that was running before: 10 to 30 ms.
    pub fn run(self) -> Passed {
        let made = self.tasks.iter().map(|task| {
            let map = self.array.make(task);
            (
                task.row(),
                map.inspect_err(|error| tracing::warn!("a device map for copies is missing: {error}"))
                    .ok(),
            )
        });
        let mut maps: Vec<(u16, Option<DeviceMap>)> = made.collect();
        let rows: Vec<_> = maps
            .iter()
            .filter_map(|(row, map)| Some((u32::from(*row), map.as_ref()?.as_fd())))
            .collect();
        let mut waited = false;
        if !rows.is_empty() {
            match set_inner_maps(&self.array.map, &rows) {
                Ok(()) => waited = true,
                Err(error) => {
                    tracing::warn!("device maps for copies are missing: {error}");
                    maps.iter_mut().for_each(|(_, map)| *map = None);
                }
            }
        }
        if !waited {
            match self.array.wait() {
                Ok(()) => waited = true,
                Err(error) => tracing::error!("cannot wait for the programs that are running: {error}"),
            }
        }
        Passed {
            maps,
            until: waited.then_some(self.until),
        }
    }
}
