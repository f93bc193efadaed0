//! Usage accounting: counters of rows, summed by the legs whose packets the rows match and deliver.
//!
//! A row counts for the leg whose relay address it contains: a stream's row for the sender, a copy for the receiver, and a relay entry for
//! both. The counters of a row are added to its legs when the row is removed or passes to another leg. A leaving participant's total
//! includes the last reading of its rows.

use super::{Book, Place, Room};
use crate::account::{plain, since};
use crate::diff::Step;
use crate::rows::{Data, Key};
use crate::tables::Name;
use shunt_admin_model::MediumUsage;
use shunt_calls::Counters;
use std::collections::{HashMap, HashSet};

/// Counters of rows, just read.
pub type Readings = HashMap<Key, Counters>;

impl Book {
    /// Returns the legs whose packets a row matches and delivers.
    fn owners(&self, key: &Key, data: &Data) -> [Option<&Place>; 2] {
        let at = |port: u16| self.at.get(&port);
        match (key, data) {
            (Key::Stream(flow, _), _) => [at(flow.dst.port), None],
            (Key::Copy(..), Data::Copy(copy)) => [None, at(copy.addresses.src.port)],
            // A mix arrives at the relay address that it leaves from.
            (Key::Relay(flow), Data::Relay(new)) if flow.dst == new.src => [None, at(new.src.port)],
            (Key::Relay(flow), Data::Relay(new)) => [at(flow.dst.port), at(new.src.port)],
            _ => [None, None],
        }
    }

    /// Returns the rows that count for other legs, or for none, once these steps are executed.
    #[must_use]
    pub fn ending(&self, steps: &[Step<Key, Data>]) -> Vec<Key> {
        let ends = |step: &Step<Key, Data>| {
            let (key, new) = match step {
                Step::Delete(key) => (key, None),
                Step::Modify(key @ Key::Relay(_), data) => (key, Some(data)),
                _ => return None,
            };
            let before = self.planner.row(key)?;
            let moved = new.is_none_or(|new| receiving_port(new) != receiving_port(before));
            (moved && self.owners(key, before).iter().any(Option::is_some)).then(|| key.clone())
        };
        steps.iter().filter_map(ends).collect()
    }

    /// Adds a row's counters to its legs before a step is recorded as executed. Returns the affected conferences.
    pub fn account(&mut self, step: &Step<Key, Data>, read: Option<&Readings>) -> HashSet<Name> {
        let (Step::Delete(key) | Step::Modify(key, _)) = step else {
            return HashSet::new();
        };
        let counted = read.and_then(|read| read.get(key).copied());
        let touched = self.credit(key, counted);
        if let (Step::Modify(Key::Relay(flow), _), Some(counted)) = (step, counted)
            && let Some(room) = self.at.get(&flow.dst.port).and_then(|place| self.rooms.get_mut(&place.conference))
        {
            room.bases.insert(*flow, counted);
        }
        touched
    }

    fn credit(&mut self, key: &Key, counted: Option<Counters>) -> HashSet<Name> {
        let Some(data) = self.planner.row(key) else {
            return HashSet::new();
        };
        let [sender, receiver] = self.owners(key, data).map(Option::<&Place>::cloned);
        let base = match key {
            Key::Relay(flow) => sender
                .as_ref()
                .or(receiver.as_ref())
                .and_then(|place| self.rooms.get_mut(&place.conference)?.bases.remove(flow)),
            _ => None,
        };
        let counted = counted.map(|counted| since(counted, base.as_ref()));
        let mut touched = HashSet::new();
        for (place, sends) in [(sender, true), (receiver, false)] {
            let Some(place) = place else { continue };
            let room = self.rooms.get_mut(&place.conference);
            if let Some(leg) = room.and_then(|room| room.leg_mut(&place.participant, place.leg)) {
                if sends {
                    leg.sent.add(counted);
                } else {
                    leg.received.add(counted.map(plain));
                }
                touched.insert(place.conference);
            }
        }
        touched
    }

    /// Marks counters as lost, because the data plane came back without these rows.
    pub fn account_lost(&mut self, found: &HashSet<&Key>) {
        let lost: Vec<Key> = self.planner.keys().filter(|key| !found.contains(key)).cloned().collect();
        for key in lost {
            self.credit(&key, None);
        }
    }

    /// Returns the rows that count for a participant.
    #[must_use]
    pub fn rows_of(&self, conference: &str, participant: &str) -> Vec<Key> {
        let own = |place: &&Place| &*place.conference == conference && &*place.participant == participant;
        let rows = self.planner.owned(conference);
        rows.filter(|(key, data)| self.owners(key, data).into_iter().flatten().any(|place| own(&place)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Returns a participant's usage so far. `read`: its rows, just read; `None` if reading failed.
    ///
    /// # Errors
    /// There is no participant of this name.
    pub fn usage(
        &self,
        room: &Room,
        participant: &str,
        keys: &[Key],
        read: Option<&Readings>,
    ) -> Result<Vec<MediumUsage>, shunt_admin_model::Failure> {
        let (one, _) = room.member(participant)?;
        let mut made = Vec::new();
        for (key, leg) in &one.legs {
            let (mut sent, mut received) = (leg.sent, leg.received);
            for row in keys {
                let Some(data) = self.planner.row(row) else { continue };
                let base = match row {
                    Key::Relay(flow) => room.bases.get(flow),
                    _ => None,
                };
                let counted = read.and_then(|read| read.get(row)).map(|counted| since(*counted, base));
                let [sender, receiver] = self.owners(row, data);
                let mine = |place: Option<&Place>| place.is_some_and(|place| place.participant == one.name && place.leg == *key);
                if mine(sender) {
                    sent.add(counted);
                }
                if mine(receiver) {
                    received.add(counted.map(plain));
                }
            }
            made.push(MediumUsage {
                medium: super::leg_name(*key),
                address: leg.relay,
                latched: leg.source,
                payload_type: leg.payload_type,
                codecs: leg.codecs.clone(),
                sent: sent.told(),
                received: received.told(),
            });
        }
        Ok(made)
    }
}

/// Returns the relay port that a row's packets leave from.
fn receiving_port(data: &Data) -> Option<u16> {
    match data {
        Data::Relay(new) => Some(new.src.port),
        Data::Copy(copy) => Some(copy.addresses.src.port),
        _ => None,
    }
}
