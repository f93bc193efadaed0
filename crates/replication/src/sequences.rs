//! Rows that keep rewritten sequence numbers: of streams (tracks), and of receivers (receiver sequence states).

use shunt_abi::replicate::{layer_size, receiver, sequence_state, slr, track};
use shunt_xdp::{Loaded, Shared};
use std::collections::HashMap;

/// Streams, and receivers, whose sequence numbers can be rewritten.
pub const TRACKS: usize = 1 << 16;
/// Qualities of a stream.
pub const TARGETS: u8 = layer_size::TARGETS.0 as u8;

/// How many users each row has, and the rows. Row 0 is nobody's.
pub struct Sequences {
    tracks: Shared<track>,
    receivers: Shared<receiver>,
    streams: HashMap<u32, u32>,
    copies: HashMap<u32, u32>,
    capacity: u32,
}

/// What a stream that is new starts with: of its sequence numbers given out lately, some that do not belong there (slr_init).
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

    /// Rows of either kind.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// One more stream keeps its sequence numbers in this row (0: in none); the first of them begins anew.
    pub fn track(&mut self, row: u32) {
        if row != 0 && hold(&mut self.streams, row) {
            self.tracks.store(row as usize, &fresh_track());
        }
    }

    pub fn untrack(&mut self, row: u32) {
        leave(&mut self.streams, row);
    }

    /// One more rewrite takes sequence numbers by this row (0: by none); the first of them begins anew, with its target in force.
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

    /// Take over one stream's row of a former process, which goes on.
    pub fn adopt_track(&mut self, row: u32) {
        if row != 0 {
            hold(&mut self.streams, row);
        }
    }

    /// Take over one rewrite's row of a former process, which goes on.
    pub fn adopt_sequence_state(&mut self, row: u32) {
        if row != 0 {
            hold(&mut self.copies, row);
        }
    }
}

/// Whether this user is the first.
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
