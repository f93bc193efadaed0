//! Hashes that the data plane may store instead of 5-tuples.

use super::Engine;
use crate::collisions::Collisions;
use crate::event::Event;
use crate::queue::Job;
use crate::tables::Tables;
use shunt_calls::{Operation, RelayEntry};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    pub(super) fn collisions_of(&mut self, key: &FiveTuple) -> Option<&mut Collisions> {
        self.collisions[usize::from(key.is_v6())].as_mut()
    }

    /// Returns why an entry cannot be inserted if another 5-tuple of its hash is in use.
    pub(super) fn claim(&mut self, now: Instant, job: Job) -> Option<Arc<str>> {
        if matches!(job.operation, Operation::Delete(_)) {
            return None;
        }
        let key = job.key();
        let collision = self.collisions_of(&key)?.claim(now, key)?;
        let holder = collision.other;
        if collision.holds {
            self.out.push(Event::Collision { key, holder });
        }
        self.shared.counts.collided();
        Some(format!("{holder} has the same hash in the data plane").into())
    }

    /// Records the holder of each hash. Of two entries with one hash, left by an agent that knew no hashes, one is removed.
    pub(super) fn hold_hashes(&mut self, now: Instant, entries: &mut Vec<RelayEntry>, changed: &HashSet<Endpoint>) {
        if self.collisions.iter().all(Option::is_none) {
            return;
        }
        let present: HashSet<FiveTuple> = entries.iter().map(RelayEntry::key).collect();
        for collisions in self.collisions.iter_mut().flatten() {
            for key in collisions.keys() {
                if !present.contains(&key) && !changed.contains(&key.dst) {
                    collisions.release(&key);
                }
            }
        }
        let mut colliding = Vec::new();
        entries.retain(|entry| {
            let key = entry.key();
            let collisions = self.collisions[usize::from(key.is_v6())].as_mut();
            let held = collisions
                .and_then(|collisions| collisions.claim(now, key))
                .filter(|collision| collision.holds);
            if let Some(collision) = held {
                tracing::error!("{} and {key} have the same hash: the second is deleted", collision.other);
                colliding.push(key);
            }
            held.is_none()
        });
        for key in colliding {
            self.push(now, None, Operation::Delete(key));
        }
    }

    /// All keys that held a hash may still have entries; reading the table tells.
    pub(super) fn note_hashes(&mut self, now: Instant, tables: &Tables) {
        for (collisions, hashes) in self.collisions.iter_mut().zip(&tables.hashes) {
            let held = collisions.as_ref().map_or_else(Vec::new, Collisions::keys);
            *collisions = (!hashes.is_empty()).then(|| Collisions::new(hashes.clone()));
            for key in held {
                if let Some(collisions) = collisions {
                    collisions.claim(now, key);
                }
            }
        }
    }
}
