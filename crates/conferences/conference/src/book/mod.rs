//! The owner of all conferences. Events go in: commands of the admin API, learn notices, RTCP, connectivity checks, copies of packets,
//! counters, mixers' reports, results of writes, and time. [`Decision`]s come out. There is no I/O here.
//!
//! | file | subject |
//! | --- | --- |
//! | `commands` | the admin API: joins, leaves, changes, qualities and targets |
//! | `learning` | latched sources, checks, SSRCs, copies of packets |
//! | `feedback` | RTCP, levels, requests for key frames and retransmissions |
//! | `rates`, `accounting` | counters of the data plane |
//! | `rounds` | writes of rows to the data plane |
//! | `mixers`, `mixing`, `tiling` | jobs of mixers, and their descriptions |
//! | `kept`, `view` | a conference's stored state, and its view in the admin API |

mod accounting;
mod commands;
mod decision;
mod feedback;
mod kept;
mod learning;
mod mixers;
mod mixing;
mod rates;
mod room;
mod rounds;
mod tiling;
mod view;
mod wanted;

pub use accounting::Readings;
pub use decision::{Count, Decision, Level, Turn};
pub use kept::{FORMAT, Kept};
pub use learning::Asked;
pub use mixers::{MixerWork, Placing};
use room::{Member, Room};
pub use rounds::Next;
pub use view::Reading;
pub use wanted::leg_name;

use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::membership::Pair;
use crate::mixer::Status;
use crate::participant::{Leg, LegKey};
use crate::planner::Planner;
use crate::tables::Name;
use rounds::{Found, Round};
use shunt_admin_model::{Failure, FailureKind, TilingWish};
use shunt_latch::{Parties, Policy, Scanners, Time};
use shunt_net::Endpoint;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use wanted::{Wanted, names};

/// Settings from the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of all relay ports.
    pub address: IpAddr,
    /// First and last port.
    pub ports: (u16, u16),
    pub policy: Policy,
    /// Control sockets of the mixers.
    pub mixers: Vec<String>,
    /// Default tiled streams and announcements of new conferences.
    pub tiling: Option<TilingWish>,
    pub announcements: bool,
    /// Seed for the SSRCs of mixes and tiles.
    pub seed: u64,
}

/// The owner of an even port.
#[derive(Clone, Debug)]
pub struct Place {
    pub conference: Name,
    pub participant: Name,
    pub leg: LegKey,
}

/// A deferred task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Send a key frame request that was held back.
    KeyFrame(Name, Name, Medium),
    /// Remove a receiver with fewer layers from the trees of the others.
    LetGo(Name, Pair, Medium),
    /// Bring a conference's rows up to date once more.
    Again(Name),
}

/// All conferences of an agent.
pub struct Book {
    settings: Settings,
    rooms: BTreeMap<Name, Room>,
    ports: Ports,
    at: HashMap<u16, Place>,
    planner: Planner,
    /// Why no participant can join.
    problem: Option<String>,
    dirty: BTreeSet<Name>,
    timers: BTreeSet<(Time, Timer)>,
    scanners: Scanners,
    parties: Parties,
    random: Random,
    /// Whether the data plane is usable.
    up: bool,
    /// Whether the stored conferences are loaded. Before that, their rows would look like orphan rows.
    loaded: bool,
    /// Whether the data plane's contents must be read.
    unsure: bool,
    round: Option<Round>,
    found: Option<Found>,
    /// Pause of the writer after a failed write.
    pause: Option<Duration>,
    seconds: u64,
    /// The last status of each mixer, or why there is none.
    known: HashMap<String, Result<Status, String>>,
    /// Addresses that mixers send from. No participant's packets come from there.
    mixers_at: HashSet<Endpoint>,
    /// Jobs to end on mixers: control socket, job, conference.
    unplaced: BTreeSet<(String, Job, Name)>,
}

/// Even ports. Freed ports are reused last, so that late packets of a former participant match nobody.
struct Ports {
    free: VecDeque<u16>,
}

impl Ports {
    fn take(&mut self) -> Result<u16, Failure> {
        let none = || Failure::new(FailureKind::Conflict, "all ports of conference.ports are taken");
        self.free.pop_front().ok_or_else(none)
    }

    /// Allocates this port. Returns whether it was free.
    fn claim(&mut self, port: u16) -> bool {
        let found = self.free.iter().position(|free| *free == port);
        found.is_some_and(|at| self.free.remove(at).is_some())
    }
}

/// Generates SSRCs, which are not secret (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

impl Book {
    /// `loaded`: [`Book::restore`] will not be called before rows are written.
    #[must_use]
    pub fn new(settings: Settings, loaded: bool) -> Self {
        let (first, last) = settings.ports;
        Self {
            rooms: BTreeMap::new(),
            ports: Ports {
                free: (first..last).step_by(2).collect(),
            },
            at: HashMap::new(),
            planner: Planner::empty(),
            problem: Some("the data plane has not been connected yet".into()),
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            scanners: Scanners::default(),
            parties: Parties::default(),
            random: Random(settings.seed),
            up: false,
            loaded,
            unsure: true,
            round: None,
            found: None,
            pause: None,
            seconds: 0,
            known: HashMap::new(),
            mixers_at: HashSet::new(),
            unplaced: BTreeSet::new(),
            settings,
        }
    }

    /// Makes a conference without participants.
    fn new_room(&self, name: Name, started_us: u64) -> Room {
        let mut room = Room::new(name, started_us);
        room.conference.mixing = !self.settings.mixers.is_empty();
        room
    }

    /// Returns why no participant can join; `None`: the data plane is up to date.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns whether the stored conferences are loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Returns whether this agent may write conferences and command mixers: no other agent is in charge.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up && self.loaded
    }

    /// # Errors
    /// There is no conference of this name.
    fn room(&self, name: &str) -> Result<&Room, Failure> {
        let none = || Failure::new(FailureKind::NotFound, format!("there is no conference {name:?}"));
        self.rooms.get(name).ok_or_else(none)
    }

    /// # Errors
    /// There is no conference of this name.
    fn room_mut(&mut self, name: &str) -> Result<&mut Room, Failure> {
        let none = || Failure::new(FailureKind::NotFound, format!("there is no conference {name:?}"));
        self.rooms.get_mut(name).ok_or_else(none)
    }

    /// Adds these media to a participant, each with its own relay address.
    ///
    /// # Errors
    /// All ports are in use; nothing has changed.
    fn add_legs(
        &mut self,
        turn: &mut Turn,
        conference: &Name,
        participant: &Name,
        wanted: &[Wanted],
        signalled: &[IpAddr],
    ) -> Result<(), Failure> {
        let mut ports = Vec::new();
        for _ in wanted {
            match self.ports.take() {
                Ok(port) => ports.push(port),
                Err(full) => {
                    ports.into_iter().rev().for_each(|port| self.ports.free.push_front(port));
                    return Err(full);
                }
            }
        }
        for (one, port) in wanted.iter().zip(ports) {
            let mut leg = Leg::new(Endpoint::new(self.settings.address, port));
            one.begin(&mut leg);
            leg.signalled = signalled.to_vec();
            leg.latch.signal(Time::default(), names(signalled));
            self.install(turn, conference, participant, one.key, leg);
        }
        for addr in signalled {
            self.parties.join(addr.to_canonical());
        }
        Ok(())
    }

    fn install(&mut self, turn: &mut Turn, conference: &Name, participant: &Name, key: LegKey, leg: Leg) {
        let place = Place {
            conference: conference.clone(),
            participant: participant.clone(),
            leg: key,
        };
        self.at.insert(leg.relay.port, place);
        turn.decide(Decision::Hold(leg.relay));
        let room = self.rooms.get_mut(conference);
        if let Some(one) = room.and_then(|room| room.conference.get_mut(participant).ok()) {
            one.legs.insert(key, leg);
        }
    }

    /// Removes a participant and frees its ports.
    ///
    /// # Errors
    /// There is no such conference or participant.
    fn take_out(&mut self, turn: &mut Turn, conference: &str, participant: &str) -> Result<Member, Failure> {
        let room = self.rooms.get_mut(conference);
        let room = room.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("there is no conference {conference:?}")))?;
        let (name, gone) = match room.conference.leave(participant) {
            Ok(gone) => (gone.name.clone(), gone),
            Err(error) => return Err(Failure::new(FailureKind::NotFound, error.to_string())),
        };
        let signalled: HashSet<IpAddr> = gone.legs.values().flat_map(|leg| leg.signalled.iter().copied()).collect();
        for addr in signalled {
            self.parties.leave(addr.to_canonical());
        }
        for leg in gone.legs.values() {
            self.at.remove(&leg.relay.port);
            turn.decide(Decision::Release(leg.relay));
            self.ports.free.push_back(leg.relay.port);
        }
        room.adaptation.leave(&name, turn.now);
        room.flows.retain(|(source, receiver)| source.sender != name && *receiver != name);
        room.rates.retain(|(sender, _), _| *sender != name);
        room.meters.retain(|(sender, _), _| *sender != name);
        room.key_frames.retain(|(sender, _), _| *sender != name);
        room.packets.retain(|(sender, ..), _| *sender != name);
        room.nacked.retain(|source, _| source.sender != name);
        room.decided.retain(|pair, _| pair.0 != name && pair.1 != name);
        room.caches.retain(|source, _| source.sender != name);
        room.caches.values_mut().for_each(|cache| cache.end(participant));
        let member = room.members.remove(participant);
        member.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("there is no participant {participant:?}")))
    }
}
