//! The device maps for broadcasts, one for each composition, in rows of an array of maps.
//!
//! Putting a map into the array takes a grace period; filling an existing map takes none. The array therefore has a stock of empty maps of
//! several sizes. A new composition takes one of them. It keeps the map after its last user, until its row is needed.

use crate::fault::{Fault, Result};
use crate::lists::{Composition, MAX_COPIES};
use shunt_abi::replicate::conference_size;
use shunt_xdp::DeviceMap;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Rows of the array.
pub const OUTPUTS: usize = conference_size::OUTPUTS.0 as usize;
/// A row that no list names, used to wait.
pub const BARRIER: u16 = 0;
/// Sizes of maps: for 1, 2, 4 ... 512 copies.
const SIZES: usize = MAX_COPIES.trailing_zeros() as usize + 1;
/// Empty maps of each size.
const STOCK: usize = 16;

/// State of a row.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// Unused.
    Free,
    /// A map is being made.
    Making { size: usize },
    /// An empty map.
    Empty,
    /// The map of a composition.
    Of {
        composition: Composition,
        users: u32,
        /// When its last user left; not used while it has users.
        left: u64,
        made: By,
    },
}

/// State of a row's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Us,
    /// Made by a former process with its egress program, or lacks an interface.
    Other,
    /// The same, and its replacement is being made.
    OtherYet,
}

/// A map to be put into a row.
#[derive(Debug)]
pub enum Task {
    Empty { row: u16, room: u32 },
    Full { row: u16, composition: Composition },
}

impl Task {
    pub fn row(&self) -> u16 {
        match self {
            Self::Empty { row, .. } | Self::Full { row, .. } => *row,
        }
    }
}

pub struct Outputs {
    program: OwnedFd,
    rows: Vec<Row>,
    by_composition: HashMap<Composition, u16>,
    /// Rows with empty maps, by size.
    empty: [Vec<(u16, DeviceMap)>; SIZES],
    making: [usize; SIZES],
    free: Vec<u16>,
    /// Rows of unused compositions, the longest unused first.
    unused: BTreeMap<u64, u16>,
    /// Rows whose maps must be replaced.
    outdated: BTreeSet<u16>,
    leaves: u64,
}

impl Outputs {
    /// Makes an array with free rows. `program`: runs on each copy.
    pub fn new(program: OwnedFd) -> Self {
        Self {
            program,
            rows: vec![Row::Free; OUTPUTS],
            by_composition: HashMap::new(),
            empty: Default::default(),
            making: Default::default(),
            free: (1..OUTPUTS as u16).rev().collect(),
            unused: BTreeMap::new(),
            outdated: BTreeSet::new(),
            leaves: 0,
        }
    }

    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Returns the row of the map with these interfaces, for one more user; `None` if no empty map is left.
    ///
    /// # Errors
    /// `NoSpace` if an interface cannot be in a map.
    pub fn acquire(&mut self, composition: &Composition) -> Result<Option<u16>> {
        if let Some(row) = self.by_composition.get(composition).copied() {
            if let Row::Of { users, left, .. } = &mut self.rows[usize::from(row)] {
                if *users == 0 {
                    self.unused.remove(left);
                }
                *users += 1;
            }
            return Ok(Some(row));
        }
        let Some((row, map)) = (size_for(composition)..SIZES).find_map(|size| self.empty[size].pop()) else {
            return Ok(None);
        };
        if let Err(error) = self.fill(&map, composition) {
            self.rows[usize::from(row)] = Row::Free;
            self.free.push(row);
            return Err(Fault::NoSpace(format!("no device map: {error}")));
        }
        self.by_composition.insert(*composition, row);
        self.rows[usize::from(row)] = Row::Of {
            composition: *composition,
            users: 1,
            left: 0,
            made: By::Us,
        };
        Ok(Some(row))
    }

    fn fill(&self, map: &DeviceMap, composition: &Composition) -> shunt_xdp::Result<()> {
        (0..)
            .zip(places(composition))
            .try_for_each(|(position, ifindex)| map.set(position, ifindex, self.program()))
    }

    /// Removes one user. No program may read a list of this user any more.
    pub fn release(&mut self, row: u16) {
        let Row::Of {
            composition, users, left, ..
        } = &mut self.rows[usize::from(row)]
        else {
            return;
        };
        *users -= 1;
        if *users > 0 {
            return;
        }
        if self.by_composition.get(composition) == Some(&row) {
            self.leaves += 1;
            *left = self.leaves;
            self.unused.insert(self.leaves, row);
        } else {
            self.drop_row(row);
        }
    }

    fn drop_row(&mut self, row: u16) {
        // A map that is being made for this row must arrive first.
        if matches!(self.rows[usize::from(row)], Row::Of { made: By::OtherYet, .. }) {
            return;
        }
        self.outdated.remove(&row);
        self.rows[usize::from(row)] = Row::Free;
        self.free.push(row);
    }

    /// Handles a removed interface, whose number may be used again: maps lack it. Lists in use get replacements.
    pub fn forget(&mut self, ifindex: u32) {
        for row in 1..OUTPUTS as u16 {
            let Row::Of {
                composition,
                users,
                left,
                made,
            } = &mut self.rows[usize::from(row)]
            else {
                continue;
            };
            if composition.devices().iter().all(|(one, _)| *one != ifindex) {
                continue;
            }
            if self.by_composition.get(composition) == Some(&row) {
                self.by_composition.remove(composition);
            }
            if *users == 0 {
                self.unused.remove(left);
                self.drop_row(row);
            } else if *made == By::Us {
                *made = By::Other;
                self.outdated.insert(row);
            }
        }
    }

    /// Takes over a list's row of a former process. Returns whether it can belong to this composition.
    pub fn adopt(&mut self, row: u16, composition: &Composition) -> bool {
        match self.rows.get_mut(usize::from(row)) {
            Some(Row::Of {
                composition: found, users, ..
            }) if found == composition => {
                *users += 1;
                true
            }
            Some(place @ Row::Free) if row != BARRIER => {
                *place = Row::Of {
                    composition: *composition,
                    users: 1,
                    left: 0,
                    made: By::Other,
                };
                self.by_composition.entry(*composition).or_insert(row);
                self.outdated.insert(row);
                true
            }
            _ => false,
        }
    }

    /// Ends the take-over of rows.
    pub fn finish_adoption(&mut self) {
        self.free.retain(|row| matches!(self.rows[usize::from(*row)], Row::Free));
    }

    /// Returns up to `limit` maps to make: first empty ones, a few of each size at a time, then replacements of outdated ones.
    pub fn tasks(&mut self, limit: usize) -> Vec<Task> {
        let mut found = Vec::new();
        for have in 0..STOCK {
            for size in 0..SIZES {
                if self.empty[size].len() + self.making[size] > have || found.len() == limit {
                    continue;
                }
                let Some(row) = self.take_row() else { break };
                self.making[size] += 1;
                self.rows[usize::from(row)] = Row::Making { size };
                found.push(Task::Empty { row, room: 1 << size });
            }
        }
        while found.len() < limit {
            let Some(row) = self.outdated.pop_first() else { break };
            if let Row::Of { composition, made, .. } = &mut self.rows[usize::from(row)] {
                *made = By::OtherYet;
                found.push(Task::Full {
                    row,
                    composition: *composition,
                });
            }
        }
        found
    }

    fn take_row(&mut self) -> Option<u16> {
        while self.free.is_empty() {
            let (_, row) = self.unused.pop_first()?;
            if let Row::Of { composition, .. } = &self.rows[usize::from(row)] {
                self.by_composition.remove(composition);
            }
            self.drop_row(row);
        }
        self.free.pop()
    }

    /// Records that a map was put into the array, or (`None`) could not be.
    pub fn put(&mut self, row: u16, map: Option<DeviceMap>) {
        match (&mut self.rows[usize::from(row)], map) {
            (place @ Row::Making { .. }, map) => {
                let Row::Making { size } = *place else { return };
                self.making[size] -= 1;
                if let Some(map) = map {
                    *place = Row::Empty;
                    self.empty[size].push((row, map));
                } else {
                    *place = Row::Free;
                    self.free.push(row);
                }
            }
            (
                Row::Of {
                    made, users, composition, ..
                },
                _,
            ) => {
                *made = By::Us;
                if *users == 0 && self.by_composition.get(composition) != Some(&row) {
                    self.drop_row(row);
                }
            }
            _ => {}
        }
    }
}

/// Returns the interface of each copy.
pub fn places(composition: &Composition) -> impl Iterator<Item = u32> {
    composition
        .devices()
        .iter()
        .flat_map(|(ifindex, copies)| std::iter::repeat_n(*ifindex, *copies as usize))
}

fn size_for(composition: &Composition) -> usize {
    composition.copies().max(1).next_power_of_two().trailing_zeros() as usize
}
