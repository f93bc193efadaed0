//! Usage accounting: what rows have counted for the legs whose packets they take and bring.
//!
//! A row counts for the leg whose relay address stands in it: streams for who sends them, copies for who gets them, relay entries for both. What a
//! row has counted is added to its legs when it goes, or becomes another leg's; of who leaves, what its rows have counted until then.

use super::state::{Place, Room, State};
use serde::{Deserialize, Serialize};
use shunt_admin::{MediumUsage, Usage};
use shunt_calls::Counters;
use shunt_conference::diff::Step;
use shunt_conference::rows::{Data, Key};
use shunt_conference::tables::Name;
use shunt_net::FiveTuple;
use shunt_plane::{Plane, PlaneError};
use std::collections::{HashMap, HashSet};

/// Counters of rows, as read just now.
pub type Readings = HashMap<Key, Counters>;

/// What rows that are out have counted for a leg.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Account {
    usage: Usage,
    /// No reading is lost.
    complete: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            usage: Usage::default(),
            complete: true,
        }
    }
}

impl Account {
    /// Add what a row has counted; `None`: nobody knows.
    fn add(&mut self, counted: Option<Counters>) {
        let Some(counted) = counted else {
            self.complete = false;
            return;
        };
        let usage = &mut self.usage;
        usage.rows += 1;
        usage.packets += counted.packets;
        usage.bytes += counted.bytes;
        let Some(lost) = counted.lost.filter(|_| counted.packets > 0) else {
            return;
        };
        if let Some(jitter) = counted.jitter_us {
            let (jitter, before) = (f64::from(jitter) / 1000.0, usage.measured as f64);
            let sum = usage.jitter_ms.unwrap_or(0.0) * before + jitter * counted.packets as f64;
            usage.jitter_ms = Some(sum / (before + counted.packets as f64));
            usage.jitter_max_ms = Some(usage.jitter_max_ms.unwrap_or(0.0).max(jitter));
        }
        usage.measured += counted.packets;
        usage.lost += lost;
        usage.reordered += counted.reordered.unwrap_or(0);
        usage.duplicates += counted.duplicates.unwrap_or(0);
    }

    fn told(&self) -> Option<Usage> {
        self.complete.then_some(self.usage)
    }
}

/// What was counted after `base`; all of it where the row counts anew.
fn since(now: Counters, base: Option<&Counters>) -> Counters {
    let Some(base) = base.filter(|base| base.packets <= now.packets) else {
        return now;
    };
    let less = |now: Option<u64>, base: Option<u64>| now.map(|now| now.saturating_sub(base.unwrap_or(0)));
    Counters {
        packets: now.packets - base.packets,
        bytes: now.bytes.saturating_sub(base.bytes),
        lost: less(now.lost, base.lost),
        reordered: less(now.reordered, base.reordered),
        duplicates: less(now.duplicates, base.duplicates),
        jitter_us: now.jitter_us,
        jitter_max_us: None,
    }
}

/// The packets of a copy, without what only a stream's reception says.
fn plain(counted: Counters) -> Counters {
    Counters {
        packets: counted.packets,
        bytes: counted.bytes,
        ..Counters::default()
    }
}

/// Read the counters of rows; those that are not there are left out.
///
/// # Errors
/// The data plane does not answer.
pub async fn read(plane: &Plane, keys: &[Key]) -> Result<Readings, PlaneError> {
    let mut found = Readings::new();
    let of = |wanted: fn(&Key) -> bool| keys.iter().filter(|key| wanted(key)).cloned().collect::<Vec<Key>>();
    let mut plainly = of(|key| matches!(key, Key::Copy(..)));
    let streams = of(|key| matches!(key, Key::Stream(..)));
    if !streams.is_empty() {
        match plane.reception(&streams).await? {
            Some(read) => found.extend(read),
            None => plainly.extend(streams),
        }
    }
    if !plainly.is_empty() {
        let read = plane.conference_counters(Some(&plainly)).await?;
        found.extend(read.into_iter().map(|one| {
            let counters = Counters {
                packets: one.packets,
                bytes: one.octets,
                ..Counters::default()
            };
            (one.key, counters)
        }));
    }
    let flow = |key: &Key| match key {
        Key::Relay(flow) => Some(*flow),
        _ => None,
    };
    let relays: Vec<FiveTuple> = keys.iter().filter_map(flow).collect();
    if !relays.is_empty() {
        let read = plane.counters(&relays).await?;
        found.extend(read.into_iter().map(|(flow, counters)| (Key::Relay(flow), counters)));
    }
    Ok(found)
}

impl State {
    /// Whose packets a row takes, and who gets them.
    fn owners(&self, key: &Key, data: &Data) -> [Option<&Place>; 2] {
        let at = |port: u16| self.at.get(&port);
        match (key, data) {
            (Key::Stream(flow, _), _) => [at(flow.dst.port), None],
            (Key::Copy(..), Data::Copy(copy)) => [None, at(copy.addresses.src.port)],
            // A mix comes to the relay address that it leaves from.
            (Key::Relay(flow), Data::Relay(new)) if flow.dst == new.src => [None, at(new.src.port)],
            (Key::Relay(flow), Data::Relay(new)) => [at(flow.dst.port), at(new.src.port)],
            _ => [None, None],
        }
    }

    /// Rows that count for others, or not at all, once these steps are carried out.
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

    /// A step is about to be noted as carried out: what its row has counted is added to its legs. Returns the conferences that it is about.
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
            let member = room.and_then(|room| room.members.get_mut(&place.participant));
            if let Some(leg) = member.and_then(|member| member.legs.get_mut(&place.leg)) {
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

    /// The data plane came back without these rows: what they had counted is lost.
    pub fn account_lost(&mut self, found: &HashSet<&Key>) {
        let lost: Vec<Key> = self.planner.keys().filter(|key| !found.contains(key)).cloned().collect();
        for key in lost {
            self.credit(&key, None);
        }
    }

    /// The rows that count for a participant.
    #[must_use]
    pub fn rows_of(&self, conference: &str, participant: &str) -> Vec<Key> {
        let own = |place: &&Place| &*place.conference == conference && &*place.participant == participant;
        let rows = self.planner.owned(conference);
        rows.filter(|(key, data)| self.owners(key, data).into_iter().flatten().any(|place| own(&place)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// What a participant's media have carried until now. `read`: its rows, read just now; `None`: they could not be.
    ///
    /// # Errors
    /// There is nobody of this name.
    pub fn usage(
        &self,
        room: &Room,
        participant: &str,
        keys: &[Key],
        read: Option<&Readings>,
    ) -> Result<Vec<MediumUsage>, shunt_admin::Failure> {
        let (one, member) = room.member(participant)?;
        let mut made = Vec::new();
        for (key, leg) in &one.legs {
            let Some(state) = member.legs.get(key) else { continue };
            let (mut sent, mut received) = (state.sent, state.received);
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
                payload_type: state.payload_type,
                codecs: state.codecs.clone(),
                sent: sent.told(),
                received: received.told(),
            });
        }
        Ok(made)
    }
}

/// The relay port that a row's packets leave from.
fn receiving_port(data: &Data) -> Option<u16> {
    match data {
        Data::Relay(new) => Some(new.src.port),
        Data::Copy(copy) => Some(copy.addresses.src.port),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(packets: u64, lost: Option<u64>, jitter_us: Option<u32>) -> Counters {
        Counters {
            packets,
            bytes: packets * 200,
            lost,
            reordered: lost.map(|_| 0),
            duplicates: lost.map(|_| 0),
            jitter_us,
            jitter_max_us: None,
        }
    }

    #[test]
    fn rows_are_summed_and_jitter_is_weighted_by_packets() {
        let mut account = Account::default();
        account.add(Some(counters(100, Some(3), Some(2000))));
        account.add(Some(counters(300, Some(1), Some(6000))));
        account.add(Some(counters(50, None, None)));
        let usage = account.told().unwrap();
        assert_eq!((usage.rows, usage.packets, usage.measured, usage.lost), (3, 450, 400, 4));
        assert_eq!((usage.jitter_ms, usage.jitter_max_ms), (Some(5.0), Some(6.0)));
    }

    #[test]
    fn a_lost_reading_leaves_no_figure_that_is_too_small() {
        let mut account = Account::default();
        account.add(Some(counters(100, None, None)));
        account.add(None);
        assert_eq!(account.told(), None);
    }

    #[test]
    fn a_row_that_had_counted_for_others_counts_from_there_and_one_that_begins_anew_from_0() {
        let base = counters(40, Some(2), None);
        assert_eq!(since(counters(100, Some(5), None), Some(&base)).packets, 60);
        assert_eq!(since(counters(100, Some(5), None), Some(&base)).lost, Some(3));
        assert_eq!(since(counters(10, Some(0), None), Some(&base)).packets, 10);
    }
}
