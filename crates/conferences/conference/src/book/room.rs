//! One conference: its participants, their legs and their sources.

use super::mixers::Placed;
use super::mixing::Mixes;
use super::rates::Meter;
use super::tiling::Tiling;
use super::{LegKey, Level, Place, Turn};
use crate::adaptation::{Adaptation, Medium};
use crate::ice::Credentials;
use crate::jobs::Job;
use crate::key_frames::KeyFrames;
use crate::membership::{Conference, Pair};
use crate::participant::{Leg, Participant};
use crate::repair::Cache;
use crate::tables::{Name, Source};
use shunt_admin_model::{Failure, FailureKind};
use shunt_calls::Counters;
use shunt_latch::Time;
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

/// A conference's membership and related state.
pub struct Room {
    pub conference: Conference,
    /// Members, including the conference's mixers.
    pub members: BTreeMap<Name, Member>,
    /// Unix time, µs.
    pub started_us: u64,
    pub problem: Option<String>,
    pub adaptation: Adaptation,
    /// bit/s of each level of a sender's medium.
    pub rates: HashMap<(Name, Medium), Vec<f64>>,
    pub meters: HashMap<(Name, Medium), Meter>,
    pub key_frames: HashMap<(Name, Medium), KeyFrames>,
    pub caches: HashMap<Source, Cache>,
    /// Changes of levels that the data plane does not have yet: receiver, sender, medium, target before, target after.
    pub retargets: Vec<(Pair, Medium, usize, usize)>,
    /// Time of the last NACK for a stream.
    pub nacked: HashMap<Source, Time>,
    /// External decisions on a pair's levels, and until when they hold.
    pub decided: HashMap<Pair, Decided>,
    /// Packets of each stream at the last reading.
    pub packets: HashMap<(Name, Medium, u32), u64>,
    /// The receivers of each video stream, when the data plane was last up to date.
    pub flows: HashSet<(Source, Name)>,
    /// Counters of relay entries when they became another receiver's.
    pub bases: HashMap<FiveTuple, Counters>,
    /// Streams whose SSRC belongs to another participant, as last reported.
    pub conflicting: BTreeMap<(Name, Medium, u32), Name>,
    /// The mixers of its audio and video.
    pub placed: BTreeMap<Job, Placed>,
    pub mixes: Mixes,
    /// Whether participants with a mix hear an announcement of each join and leave.
    pub announcements: bool,
    /// The wanted tiled streams.
    pub tiling: Option<Tiling>,
    /// Legs that get nothing because a switch has no route to them, with reasons.
    pub unreached: BTreeMap<(Name, LegKey), String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    pub external: bool,
    pub until: Option<Time>,
}

pub struct Member {
    pub call: Option<String>,
    /// Unix time, µs.
    pub joined_us: u64,
    pub ice: Option<Credentials>,
    /// Opaque data that the signalling component needs after a restart.
    pub signalling: Option<serde_json::Value>,
    /// Time of the last sign that the participant is active.
    pub last_packet: Time,
}

impl Room {
    #[must_use]
    pub fn new(name: Name, started_us: u64) -> Self {
        Self {
            conference: Conference::new(name),
            members: BTreeMap::new(),
            started_us,
            problem: None,
            adaptation: Adaptation::default(),
            rates: HashMap::new(),
            meters: HashMap::new(),
            key_frames: HashMap::new(),
            caches: HashMap::new(),
            retargets: Vec::new(),
            nacked: HashMap::new(),
            decided: HashMap::new(),
            packets: HashMap::new(),
            flows: HashSet::new(),
            bases: HashMap::new(),
            conflicting: BTreeMap::new(),
            placed: BTreeMap::new(),
            mixes: Mixes::default(),
            announcements: false,
            tiling: None,
            unreached: BTreeMap::new(),
        }
    }

    /// Returns the streams whose SSRC belongs to another participant, with that participant.
    fn conflicts(&self) -> BTreeMap<(Name, Medium, u32), Name> {
        let mut found = BTreeMap::new();
        for one in &self.conference.participants {
            for ((medium, _), leg) in &one.legs {
                for ssrc in &leg.ssrcs {
                    if let Some(owner) = self.conference.conflict(&one.name, *medium, *ssrc) {
                        found.insert((one.name.clone(), *medium, *ssrc), owner.clone());
                    }
                }
            }
        }
        found
    }

    /// Returns the participants, without mixers.
    pub fn people(&self) -> impl Iterator<Item = (&Participant, &Member)> {
        let people = self.conference.participants.iter().filter(|one| one.mixer.is_none());
        people.filter_map(|one| Some((one, self.members.get(&one.name)?)))
    }

    /// Returns one participant.
    ///
    /// # Errors
    /// There is no participant of this name.
    pub fn member(&self, name: &str) -> Result<(&Participant, &Member), Failure> {
        let found = self.conference.get(name).zip(self.members.get(name));
        let found = found.filter(|(one, _)| one.mixer.is_none());
        found.ok_or_else(|| {
            Failure::new(
                FailureKind::NotFound,
                format!("conference {} has no participant {name:?}", self.conference.name),
            )
        })
    }

    /// Returns a leg of a participant.
    #[must_use]
    pub fn leg(&self, participant: &str, key: LegKey) -> Option<&Leg> {
        self.conference.get(participant)?.legs.get(&key)
    }

    pub fn leg_mut(&mut self, participant: &str, key: LegKey) -> Option<&mut Leg> {
        self.conference.get_mut(participant).ok()?.legs.get_mut(&key)
    }

    /// Returns all legs by which a receiver gets streams of a sender's medium.
    #[must_use]
    pub fn legs_for<'a>(receiver: &'a Participant, sender: &Participant, medium: Medium) -> Vec<&'a Leg> {
        let ssrcs = sender.leg(medium).map_or(&[][..], |leg| &leg.ssrcs);
        let mut legs: Vec<&'a Leg> = Vec::new();
        for leg in ssrcs.iter().filter_map(|ssrc| receiver.leg_for_stream(&sender.name, medium, *ssrc)) {
            if legs.iter().all(|other| other.relay != leg.relay) {
                legs.push(leg);
            }
        }
        if legs.is_empty() {
            legs.extend(receiver.leg_for(&sender.name, medium));
        }
        legs
    }

    /// Sets or clears the latched source of a leg.
    pub fn set_source(&mut self, participant: &Name, key: LegKey, source: Option<Endpoint>, now: Time) {
        if let Some(member) = self.members.get_mut(participant) {
            member.last_packet = now;
        }
        if let Some(leg) = self.leg_mut(participant, key) {
            leg.rtcp = leg.rtcp.filter(|rtcp| Some(rtcp.addr) == source.map(|source| source.addr));
            leg.source = source;
            leg.ssrcs.clear();
            leg.repair.clear();
        }
        self.conference.settle();
    }

    /// Finds receive-only media whose destination is certain. Media on which a participant sends nothing go to the signalled address once
    /// another medium of the participant has come from there. Returns the media that are now sent.
    fn find_listening(&mut self, participant: &Name, now: Time) -> Vec<(LegKey, Endpoint)> {
        let (Some(member), Some(one)) = (self.members.get(participant), self.conference.get(participant)) else {
            return Vec::new();
        };
        if member.ice.is_some() {
            return Vec::new();
        }
        let own: HashSet<IpAddr> = one.legs.values().filter_map(|leg| Some(leg.source?.addr)).collect();
        let listens = one.legs.iter().filter(|(_, leg)| leg.source.is_none() && !leg.sends);
        let found: Vec<(LegKey, Endpoint)> = listens
            .filter_map(|(key, leg)| {
                let to = leg.destination?;
                (to.port != 0 && own.contains(&to.addr)).then_some((*key, to))
            })
            .collect();
        for (key, to) in &found {
            self.set_source(participant, *key, Some(*to), now);
            if let Some(leg) = self.leg_mut(participant, *key) {
                leg.latch.adopt(now, *to, None);
            }
        }
        found
    }

    /// Records the SSRC of a packet. Returns whether the stream repairs others, by its payload type.
    pub fn learn(&mut self, participant: &Name, key: LegKey, ssrc: u32, payload_type: Option<u8>, now: Time) -> bool {
        let Some(leg) = self.leg_mut(participant, key) else {
            return false;
        };
        leg.new_ssrc_at = Some(now);
        let first = *leg.payload_type.get_or_insert(payload_type.unwrap_or(0));
        let repair = key.0 != Medium::Audio && payload_type.is_some_and(|payload_type| payload_type != first);
        // The participant exists, so this cannot fail.
        let _ = self.conference.learn(participant, key.0, ssrc, repair);
        repair
    }

    /// Starts sending to receive-only media at the signalled addresses.
    pub fn serve_listening(&mut self, turn: &mut Turn, participant: &Name) {
        for (leg, to) in self.find_listening(participant, turn.now) {
            let place = Place {
                conference: self.conference.name.clone(),
                participant: participant.clone(),
                leg,
            };
            turn.tell_source(&place, Some(to));
        }
    }

    /// Reports new and ended SSRC conflicts. A stream with another participant's SSRC is not forwarded.
    pub fn tell_conflicts(&mut self, turn: &mut Turn) {
        let found = self.conflicts();
        let before = std::mem::replace(&mut self.conflicting, found);
        let name = &self.conference.name;
        let tell = |turn: &mut Turn, what: &'static str, (participant, medium, ssrc): &(Name, Medium, u32), owner: &Name| {
            turn.tell(name, what, Some(participant), Some(*medium), |facts| {
                facts.insert("ssrc".into(), (*ssrc).into());
                facts.insert("owner".into(), owner.to_string().into());
            });
        };
        for (stream, owner) in self.conflicting.iter().filter(|(stream, _)| !before.contains_key(stream)) {
            let (participant, medium, ssrc) = stream;
            let medium = medium.name();
            turn.log(
                Level::Warn,
                format!("conference {name}: {medium} of {participant} with SSRC {ssrc:08x} goes to nobody: {owner} has sent it before"),
            );
            tell(turn, "ssrc-conflict", stream, owner);
        }
        for (stream, owner) in before.iter().filter(|(stream, _)| !self.conflicting.contains_key(stream)) {
            tell(turn, "ssrc-free", stream, owner);
        }
    }
}

impl Member {
    /// Returns whether a name is a mixer's. Only the agent adds and removes mixers.
    #[must_use]
    pub fn of_mixer(now: Time) -> Self {
        Self {
            call: None,
            joined_us: 0,
            ice: None,
            signalling: None,
            last_packet: now,
        }
    }
}
