//! Rows of rewritten sequence numbers: of streams (tracks), and of receivers (receiver sequence states).

use shunt_abi::replicate::{layer_size, receiver, sequence_state, slr, track};
use shunt_xdp::{Loaded, Shared};
use std::collections::HashMap;

/// Most streams, and most receivers, with rewritten sequence numbers.
pub const TRACKS: usize = 1 << 16;
/// Targets of a stream.
pub const TARGETS: u8 = layer_size::TARGETS.0 as u8;

/// The rows, and the number of users of each. Row 0 is unused.
pub struct Sequences {
    tracks: Shared<track>,
    receivers: Shared<receiver>,
    streams: HashMap<u32, u32>,
    copies: HashMap<u32, u32>,
    capacity: u32,
}

/// Initial `used` words of a stream: numbers that belong to other slots (slr_init).
fn fresh_track() -> track {
    let fresh = slr {
        used: std::array::from_fn(|n| n as u16 + 1),
        ..Default::default()
    };
    track {
        of: [fresh; TARGETS as usize],
        ..Default::default()
    }
}

impl Sequences {
    pub fn new(loaded: &Loaded, rows: u32) -> shunt_xdp::Result<Self> {
        Ok(Self {
            tracks: Shared::map(loaded.map("c_tracks")?, rows as usize)?,
            receivers: Shared::map(loaded.map("c_receivers")?, rows as usize)?,
            streams: HashMap::new(),
            copies: HashMap::new(),
            capacity: rows.saturating_sub(1),
        })
    }

    /// Returns the rows of either kind.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Adds a stream to this row (0: none). The first stream resets the row.
    pub fn track(&mut self, row: u32) {
        if row != 0 && hold(&mut self.streams, row) {
            self.tracks.store(row as usize, &fresh_track());
        }
    }

    pub fn untrack(&mut self, row: u32) {
        leave(&mut self.streams, row);
    }

    /// Adds a rewrite to this row (0: none). The first one resets the row, with its target in force.
    pub fn hold_sequence_state(&mut self, row: u32, target: u8) {
        if row != 0 && hold(&mut self.copies, row) {
            let fresh = receiver {
                sequence_state: sequence_state {
                    target: target.into(),
                    ..Default::default()
                },
                ..Default::default()
            };
            self.receivers.store(row as usize, &fresh);
        }
    }

    pub fn release_sequence_state(&mut self, row: u32) {
        leave(&mut self.copies, row);
    }

    /// Takes over one stream's row of a former process; its numbers continue.
    pub fn adopt_track(&mut self, row: u32) {
        if row != 0 {
            hold(&mut self.streams, row);
        }
    }

    /// Takes over one rewrite's row of a former process; its numbers continue.
    pub fn adopt_sequence_state(&mut self, row: u32) {
        if row != 0 {
            hold(&mut self.copies, row);
        }
    }
}

/// Returns whether this user is the first.
fn hold(users: &mut HashMap<u32, u32>, row: u32) -> bool {
    let count = users.entry(row).or_default();
    *count += 1;
    *count == 1
}

fn leave(users: &mut HashMap<u32, u32>, row: u32) {
    if let Some(count) = users.get_mut(&row) {
        *count -= 1;
        if *count == 0 {
            users.remove(&row);
        }
    }
}
