//! The neighbours of the rows in use: the known state of each, and the queue of neighbours whose state must be requested again.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::kernel::Neighbour;

/// A neighbour: interface and address.
pub(crate) type At = (u32, IpAddr);

#[derive(Default)]
pub(crate) struct Watched {
    pub known: Option<Neighbour>,
    /// The rows that lead to it, one for each MTU.
    pub rows: Vec<u16>,
    queued: bool,
}

impl Watched {
    pub(crate) fn is_kept(&self) -> bool {
        self.known.is_some_and(|known| known.is_kept())
    }
}

/// The neighbours of all rows.
#[derive(Default)]
pub(crate) struct Neighbours {
    by_address: HashMap<At, Watched>,
    /// Neighbours whose state must be requested. It may contain removed neighbours.
    queue: VecDeque<At>,
}

impl Neighbours {
    pub(crate) fn get(&self, at: At) -> Option<&Watched> {
        self.by_address.get(&at)
    }

    /// Returns whether the neighbour is new.
    pub(crate) fn insert(&mut self, at: At) -> bool {
        let mut new = false;
        self.by_address.entry(at).or_insert_with(|| {
            new = true;
            Watched::default()
        });
        new
    }

    pub(crate) fn set(&mut self, at: At, known: Option<Neighbour>) {
        if let Some(watched) = self.by_address.get_mut(&at) {
            watched.known = known;
        }
    }

    pub(crate) fn add_row(&mut self, at: At, row: u16) {
        if let Some(watched) = self.by_address.get_mut(&at) {
            watched.rows.push(row);
        }
    }

    pub(crate) fn remove_row(&mut self, at: At, row: u16) {
        if let Some(watched) = self.by_address.get_mut(&at) {
            watched.rows.retain(|&one| one != row);
        }
    }

    /// Removes a neighbour if it has no rows; returns its last known state.
    pub(crate) fn remove_unused(&mut self, at: At) -> Option<Neighbour> {
        if self.by_address.get(&at)?.rows.is_empty() {
            self.by_address.remove(&at)?.known
        } else {
            None
        }
    }

    /// Returns all neighbours for which `choose` holds.
    pub(crate) fn select(&self, choose: impl Fn(&At, &Watched) -> bool) -> Vec<At> {
        self.by_address
            .iter()
            .filter(|(at, watched)| choose(at, watched))
            .map(|(&at, _)| at)
            .collect()
    }

    /// Queues a request for a neighbour's state.
    pub(crate) fn queue(&mut self, at: At) {
        if let Some(watched) = self.by_address.get_mut(&at).filter(|watched| !watched.queued) {
            watched.queued = true;
            self.queue.push_back(at);
        }
    }

    pub(crate) fn next_queued(&mut self) -> Option<At> {
        while let Some(at) = self.queue.pop_front() {
            if let Some(watched) = self.by_address.get_mut(&at) {
                watched.queued = false;
                return Some(at);
            }
        }
        None
    }

    pub(crate) fn any_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Panics if a neighbour has no row, or a row of another neighbour. `of`: the neighbour of a row.
    #[cfg(test)]
    pub(crate) fn check(&self, of: impl Fn(u16) -> Option<At>) {
        for (at, watched) in &self.by_address {
            assert!(!watched.rows.is_empty(), "neighbour {at:?} has no row");
            for &row in &watched.rows {
                assert_eq!(of(row), Some(*at), "neighbour of row {row}");
            }
        }
    }
}
