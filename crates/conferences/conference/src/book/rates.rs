//! Evaluates the data plane's counters: senders' rates, participants' activity, and the choice of streams whose packets are copied to the
//! agent.

use super::{Book, Place, Room, Turn};
use crate::adaptation::Medium;
use crate::membership::{TARGETS, stream_of};
use crate::repair::{Begins, Cache};
use crate::rows::{Counted, Key};
use crate::tables::{Name, Source};
use shunt_admin_model::Failure;
use shunt_calls::Counters;
use shunt_latch::Time;
use shunt_net::FiveTuple;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const WEIGHT: f64 = 0.5;
/// Seconds between two checks of streams with unknown layers.
const STRUCTURES_EVERY: u64 = 2;
/// Streams that are copied to the agent without a retransmission request, so that small systems cache every stream.
const SPARE: usize = 64;
/// Most streams that are copied to the agent. Each is limited to 640 packets/s.
const MOST: usize = 256;
/// How long a stream is copied after a NACK.
const NACKED: Duration = Duration::from_secs(30);

/// The rates of a sender's medium, from periodic counter readings: in total and by layer.
#[derive(Debug, Default)]
pub struct Meter {
    last: Option<Time>,
    counted: HashMap<Key, u64>,
    rates: Option<[f64; TARGETS + 1]>,
}

impl Meter {
    /// Records the counters of rows, with the layer of each (0: a whole stream). A new row counts from its second reading.
    fn take(&mut self, now: Time, counted: Vec<(Key, usize, u64)>) {
        if let Some(last) = self.last
            && now > last
        {
            let seconds = now.since(last).as_secs_f64();
            let mut grown = [0.0; TARGETS + 1];
            for (key, layer, octets) in &counted {
                if let (Some(before), Some(sum)) = (self.counted.get(key), grown.get_mut(*layer)) {
                    *sum += octets.saturating_sub(*before) as f64 * 8.0 / seconds;
                }
            }
            let rates = self.rates.get_or_insert(grown);
            for (rate, new) in rates.iter_mut().zip(grown) {
                *rate += WEIGHT * (new - *rate);
            }
        }
        self.last = Some(now);
        self.counted = counted.into_iter().map(|(key, _, octets)| (key, octets)).collect();
    }

    /// Returns the bit/s that each level needs, lowest first, including all lower levels. Packets without a known layer count for every
    /// level.
    fn levels(&self) -> Vec<f64> {
        let Some([whole, layers @ ..]) = self.rates else {
            return Vec::new();
        };
        let sum: f64 = layers.iter().sum();
        let total = whole.max(sum);
        if layers.iter().skip(1).all(|rate| *rate < 1.0) {
            return vec![total];
        }
        let above = |level: usize| layers.iter().skip(level + 1).sum::<f64>();
        (0..TARGETS).map(|level| total - above(level)).collect()
    }
}

impl Book {
    /// Runs once a second. Returns whether counters are worth reading.
    pub fn second(&mut self, turn: &mut Turn) -> bool {
        let ready = self.problem.is_none();
        if !ready {
            // Without a data plane no packet is counted.
            for room in self.rooms.values_mut() {
                room.members.values_mut().for_each(|member| member.last_packet = turn.now);
            }
        }
        ready && !self.rooms.is_empty()
    }

    /// Evaluates this second's counters. `observed`: an external policy follows the estimates.
    pub fn consider(&mut self, turn: &mut Turn, observed: bool) {
        self.seconds += 1;
        self.try_levels(turn, observed);
        self.choose_copied(turn);
        if self.seconds.is_multiple_of(STRUCTURES_EVERY) {
            self.want_structures(turn);
        }
    }

    /// Records counters of rows of `conference` and `layer`.
    pub fn counted(&mut self, turn: &Turn, read: Vec<Counted>) {
        let now = turn.now;
        let mut layers: HashMap<(u32, u8), u64> = HashMap::new();
        let mut streams: HashMap<(Name, Name, Medium), Vec<(u32, Counted)>> = HashMap::new();
        for one in read {
            match one.key {
                Key::Layer(number, template) => {
                    layers.insert((number, template), one.octets);
                }
                Key::Stream(flow, ssrc) => {
                    if let Some(place) = self.at.get(&flow.dst.port).filter(|_| flow.dst.addr == self.settings.address) {
                        let of = (place.conference.clone(), place.participant.clone(), place.leg.0);
                        streams.entry(of).or_default().push((ssrc, one));
                    }
                }
                _ => {}
            }
        }
        for ((conference, sender, medium), rows) in streams {
            let Some(room) = self.rooms.get_mut(&conference) else { continue };
            let packets = rows.iter().map(|(_, counted)| counted.packets).sum();
            note_packets(room, &sender, medium, packets, now);
            let mut counted: Vec<(Key, usize, u64)> = Vec::new();
            for (ssrc, Counted { key, packets, octets }) in rows {
                room.packets.insert((sender.clone(), medium, ssrc), packets);
                counted.push((key, 0, octets));
                if medium == Medium::Audio {
                    continue;
                }
                let source = Source {
                    conference: conference.clone(),
                    sender: sender.clone(),
                    stream: crate::membership::stream_name(medium, ssrc),
                };
                for ((number, template), row) in self.planner.numbering.rows(&source) {
                    if let Some(octets) = layers.get(&(number, template)) {
                        counted.push((Key::Layer(number, template), 1 + usize::from(row.layer).min(TARGETS - 1), *octets));
                    }
                }
            }
            let meter = room.meters.entry((sender.clone(), medium)).or_default();
            meter.take(now, counted);
            room.rates.insert((sender, medium), meter.levels());
        }
    }

    /// Records counters of relay entries, in two-party conferences.
    pub fn relayed(&mut self, turn: &Turn, read: &[(FiveTuple, Counters)]) {
        let now = turn.now;
        for (flow, counters) in read {
            let Some(place) = self.at.get(&flow.dst.port).cloned() else {
                continue;
            };
            let Some(room) = self.rooms.get_mut(&place.conference) else {
                continue;
            };
            note_packets(room, &place.participant, place.leg.0, counters.packets, now);
            let ssrcs: Vec<u32> = room
                .leg(&place.participant, place.leg)
                .map(|leg| leg.ssrcs.clone())
                .unwrap_or_default();
            if let [ssrc] = ssrcs[..] {
                room.packets
                    .insert((place.participant.clone(), place.leg.0, ssrc), counters.packets);
            }
        }
    }

    /// Returns the relay entries of two-party conferences.
    #[must_use]
    pub fn relay_keys(&self) -> Vec<FiveTuple> {
        let mut keys = Vec::new();
        for room in self.rooms.values() {
            if self.planner.design(&room.conference.name) != Some(crate::trees::Design::TwoParty) {
                continue;
            }
            let legs = room.conference.participants.iter().flat_map(|one| one.legs.values());
            keys.extend(legs.filter_map(|leg| Some(FiveTuple::new(leg.source?, leg.relay))));
        }
        keys
    }

    /// Returns the relay entries of a conference, if it has two parties, and whether it has copies.
    ///
    /// # Errors
    /// There is no such conference.
    pub fn counters_of(&self, name: &str) -> Result<(Vec<FiveTuple>, bool), Failure> {
        self.room(name)?;
        let keys = self.relay_keys().into_iter();
        let relays = keys.filter(|key| self.at.get(&key.dst.port).is_some_and(|place| &*place.conference == name));
        Ok((relays.collect(), self.planner.copies(name).next().is_some()))
    }

    /// Returns the rows and the relay entry that match a leg's packets.
    #[must_use]
    pub fn rows_of_leg(&self, place: &Place) -> Option<(Vec<Key>, FiveTuple)> {
        let leg = self.rooms.get(&place.conference)?.leg(&place.participant, place.leg)?;
        let flow = FiveTuple::new(leg.source?, leg.relay);
        Some((leg.ssrcs.iter().map(|ssrc| Key::Stream(flow, *ssrc)).collect(), flow))
    }

    /// Returns the participants that have sent nothing for this time and are not on hold.
    #[must_use]
    pub fn silent(&self, now: Time, timeout: Duration) -> Vec<(Name, Name)> {
        let mut silent = Vec::new();
        for room in self.rooms.values() {
            for (one, member) in room.people() {
                let sends = one.legs.values().any(|leg| leg.sends);
                if sends && now.since(member.last_packet) > timeout {
                    silent.push((room.conference.name.clone(), one.name.clone()));
                }
            }
        }
        silent
    }

    /// Selects the streams whose packets are copied to the agent. Streams with rewritten numbers or with recent NACKs come first.
    fn choose_copied(&mut self, turn: &mut Turn) {
        if self.planner.keeps_registers() {
            // A switch numbers copies by rules that caches do not implement. A receiver that misses packets gets a key frame, or the NACK
            // goes to the sender.
            return;
        }
        let now = turn.now;
        let (mut needed, mut others) = (Vec::new(), Vec::new());
        for room in self.rooms.values_mut() {
            room.nacked.retain(|_, at| now.since(*at) < NACKED);
            for source in self.planner.streams(&room.conference.name) {
                let Some((medium, ssrc)) = stream_of(&source.stream) else {
                    continue;
                };
                let repairs = room
                    .conference
                    .get(&source.sender)
                    .and_then(|one| one.leg(medium))
                    .is_none_or(|leg| leg.repair.contains(&ssrc));
                if medium == Medium::Audio || repairs {
                    continue;
                }
                if room.nacked.contains_key(source) || room.conference.is_tracked(&source.sender, medium) {
                    needed.push(source.clone());
                } else {
                    others.push(source.clone());
                }
            }
        }
        // Streams that have a cache keep it.
        others.sort_by_key(|source| {
            self.rooms
                .get(&source.conference)
                .is_none_or(|room| !room.caches.contains_key(source))
        });
        needed.truncate(MOST);
        let spare = SPARE.saturating_sub(needed.len());
        let chosen: HashSet<Source> = needed.into_iter().chain(others.into_iter().take(spare)).collect();
        let mut changed = Vec::new();
        for room in self.rooms.values_mut() {
            let name = room.conference.name.clone();
            let before = room.caches.len();
            room.caches.retain(|source, _| chosen.contains(source));
            let mut touched = room.caches.len() != before;
            for source in chosen.iter().filter(|source| source.conference == name) {
                if !room.caches.contains_key(source) {
                    let cache = new_cache(room, source);
                    room.caches.insert(source.clone(), cache);
                    touched = true;
                }
            }
            if touched {
                changed.push(name);
            }
        }
        for name in changed {
            turn.touch(&name);
        }
    }
}

/// Makes a cache for a stream that its receivers already get.
fn new_cache(room: &Room, source: &Source) -> Cache {
    let medium = stream_of(&source.stream).map_or(Medium::Video, |(medium, _)| medium);
    let told = room
        .conference
        .get(&source.sender)
        .and_then(|one| one.leg(medium))
        .and_then(|leg| leg.told);
    let mut cache = Cache::new(told, TARGETS);
    for (_, receiver) in room.flows.iter().filter(|(flow, _)| flow == source) {
        cache.begin(receiver, Begins::Before);
        if let Some(target) = room.conference.target(&source.sender, receiver, medium) {
            cache.retarget(receiver, target, target);
            cache.written(receiver);
        }
    }
    // The start of the receivers' own numbers is unknown.
    cache.missed();
    cache
}

/// Records that a participant sends: the counters of a leg have grown or restarted.
fn note_packets(room: &mut Room, participant: &Name, medium: Medium, packets: u64, now: Time) {
    let Some(leg) = room.leg_mut(participant, (medium, 0)).filter(|leg| leg.packets != packets) else {
        return;
    };
    leg.packets = packets;
    if let Some(member) = room.members.get_mut(participant) {
        member.last_packet = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_what_is_left_when_the_layers_above_are_left_out() {
        let (mut meter, second) = (Meter::default(), Duration::from_secs(1));
        let start = Time::from_nanos(0);
        let rows = |times: u64| {
            vec![
                (Key::Copy(1, 1), 0, 1000 * times),
                (Key::Layer(1, 0), 1, 400 * times),
                (Key::Layer(1, 1), 2, 200 * times),
                (Key::Layer(1, 2), 3, 400 * times),
            ]
        };
        meter.take(start, rows(1));
        assert!(meter.levels().is_empty(), "one reading is no rate");
        meter.take(start + second, rows(2));
        assert_eq!(meter.levels(), [3200.0, 4800.0, 8000.0]);
        let mut whole = Meter::default();
        for (at, octets) in [(start, 0), (start + second, 1000)] {
            whole.take(at, vec![(Key::Copy(1, 1), 0, octets)]);
        }
        assert_eq!(whole.levels(), [8000.0]);
    }
}
