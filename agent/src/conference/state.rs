//! The one owner of conferences: who takes part, by which ports, from which sources. Nothing here waits.

use super::accounting::Account;
use super::mixers::Placed;
use super::mixing::Mixes;
use super::rates::Meter;
use super::sockets::LegSockets;
use super::store::{FORMAT, Kept, KeptBase, KeptLeg, KeptMixer, KeptParticipant, KeptTiling};
use super::tiling::Tiling;
use shunt_admin::{Codec, Direction, Failure, FailureKind, JoinMedium, Layers, Mixed};
use shunt_calls::Counters;
use shunt_conference::adaptation::{Adaptation, Medium};
use shunt_conference::ice::Credentials;
use shunt_conference::jobs::Job;
use shunt_conference::key_frames::KeyFrames;
use shunt_conference::membership::{Conference, Pair, STREAMS};
use shunt_conference::mixing;
use shunt_conference::packets::Told;
use shunt_conference::participant::{Leg, Participant};
use shunt_conference::payload_types::PayloadType;
use shunt_conference::planner::Planner;
use shunt_conference::repair::Cache;
use shunt_conference::tables::{Name, Source};
use shunt_latch::{Component, Latch, Names, Parties, Scanners, Time};
use shunt_net::{Endpoint, FiveTuple};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;

/// A medium of a participant; further ones of a medium (`video/2`) bring it one sender each.
pub type LegKey = (Medium, u8);

pub const MEDIA: [Medium; 3] = [Medium::Audio, Medium::Video, Medium::Screen];
/// Legs of one medium.
const MOST_LEGS: u8 = 16;

/// Whose an even port is.
#[derive(Clone, Debug)]
pub struct Place {
    pub conference: Name,
    pub participant: Name,
    pub leg: LegKey,
}

/// What is to be done later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A request for a key frame that was held back.
    KeyFrame(Name, Name, Medium),
    /// A receiver of fewer layers may leave the trees of the others.
    LetGo(Name, Pair, Medium),
    /// Bring a conference to what it is to be, once more.
    Again(Name),
}

pub struct State {
    pub rooms: BTreeMap<Name, Room>,
    ports: Ports,
    pub at: HashMap<u16, Place>,
    pub planner: Planner,
    /// Why nobody can be let in.
    pub problem: Option<String>,
    pub dirty: BTreeSet<Name>,
    pub timers: BTreeSet<(Time, Timer)>,
    pub scanners: Scanners,
    pub parties: Parties,
    /// Mixers are configured.
    pub mixing: bool,
    /// Where mixers send from: no participant's packets come from there.
    pub mixers_at: HashSet<Endpoint>,
    /// What mixers need not make any more: by control socket, which job, of which conference.
    pub unplaced: BTreeSet<(String, Job, Name)>,
}

/// One conference, with what belongs to it besides its membership.
pub struct Room {
    pub conference: Conference,
    /// Those of its mixers too.
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
    /// Changes of levels that are not in the data plane yet: receiver, sender, medium, the target before and from now on.
    pub retargets: Vec<(Pair, Medium, usize, usize)>,
    /// When a NACK for a stream came last.
    pub nacked: HashMap<Source, Time>,
    /// Who decides of a pair's levels besides the policy, and until when.
    pub decided: HashMap<Pair, Decided>,
    /// Packets of each stream, when last read.
    pub packets: HashMap<(Name, Medium, u32), u64>,
    /// Who gets which video, when the data plane was last brought to it.
    pub flows: HashSet<(Source, Name)>,
    /// What relay entries had counted when they became another receiver's.
    pub bases: HashMap<FiveTuple, Counters>,
    /// Streams whose SSRC is somebody else's, and whose, as last told.
    pub conflicting: BTreeMap<(Name, Medium, u32), Name>,
    /// Where its audio is mixed, and its video tiled.
    pub placed: BTreeMap<Job, Placed>,
    pub mixes: Mixes,
    /// Those who get a mix hear who joins and who leaves.
    pub announcements: bool,
    /// The tiled streams that are wanted of it.
    pub tiling: Option<Tiling>,
    /// Legs to which nothing goes because a switch has no way there: why.
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
    /// What its signalling needs to go on; nobody here reads it.
    pub signalling: Option<serde_json::Value>,
    /// The last sign of life.
    pub last_packet: Time,
    pub legs: BTreeMap<LegKey, LegState>,
}

/// What belongs to a leg besides its membership.
pub struct LegState {
    pub latch: Latch,
    pub signalled: Vec<IpAddr>,
    pub sockets: Option<LegSockets>,
    /// Where its RTCP came from last.
    pub rtcp: Option<Endpoint>,
    pub transport: String,
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
    /// Of the first stream that was learned.
    pub payload_type: Option<u8>,
    pub packets: u64,
    pub new_ssrc_at: Option<Time>,
    /// A change of source is being looked into.
    pub moving: bool,
    /// Where signalling says that this medium is to go.
    pub destination: Option<Endpoint>,
    /// Of rows that are out: what came of it, and what went to it.
    pub sent: Account,
    pub received: Account,
}

/// Even ports; freed ones are given out last, so that late packets of who left find nobody.
struct Ports {
    free: VecDeque<u16>,
}

impl Ports {
    fn take(&mut self) -> Result<u16, Failure> {
        let none = || Failure::new(FailureKind::Conflict, "all ports of conference.ports are taken");
        self.free.pop_front().ok_or_else(none)
    }

    /// Take this very one; whether it was free.
    fn claim(&mut self, port: u16) -> bool {
        let found = self.free.iter().position(|free| *free == port);
        found.is_some_and(|at| self.free.remove(at).is_some())
    }
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, text)
}

/// The name of a leg, as `video/2`.
#[must_use]
pub fn leg_name((medium, further): LegKey) -> String {
    match further {
        0 => medium.name().to_owned(),
        further => format!("{}/{}", medium.name(), further + 1),
    }
}

/// # Errors
/// There is no such medium.
pub fn parse_medium(text: &str) -> Result<LegKey, Failure> {
    let (name, number) = text.split_once('/').unwrap_or((text, "1"));
    let medium = MEDIA.into_iter().find(|medium| medium.name() == name);
    let further = number
        .parse::<u8>()
        .ok()
        .filter(|number| (1..=MOST_LEGS).contains(number) && (text.contains('/') == (*number > 1)));
    match (medium, further) {
        (Some(medium), Some(number)) => Ok((medium, number - 1)),
        _ => Err(invalid(format!("medium {text:?} is none of audio, video, screen"))),
    }
}

/// # Errors
/// The text is no name.
pub fn check_name(what: &str, text: &str) -> Result<Name, Failure> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = text.bytes().next().is_some_and(word) && text.len() <= 63 && text.bytes().all(|byte| word(byte) || b".@+-".contains(&byte));
    if good {
        Ok(text.into())
    } else {
        Err(invalid(format!(
            "{what} {text:?}: a name has 1 to 63 letters, digits, '_', '.', '@', '+' or '-', and starts with a letter, digit or '_'"
        )))
    }
}

fn encrypted(transport: &str) -> Result<bool, Failure> {
    match transport.to_ascii_uppercase().as_str() {
        "RTP/AVP" | "RTP/AVPF" => Ok(false),
        "RTP/SAVP" | "RTP/SAVPF" => Ok(true),
        upper if upper.contains("SAVP") => Err(invalid(format!(
            "transport {transport:?}: each DTLS association has keys of its own, and nobody ends it here: receivers could not read what is sent to them"
        ))),
        _ => Err(invalid(format!(
            "transport {transport:?} is none of RTP/AVP, RTP/AVPF, RTP/SAVP, RTP/SAVPF"
        ))),
    }
}

fn told(layers: &Layers) -> Result<Told, Failure> {
    match (layers.by.as_str(), layers.extension_id) {
        ("dependency-descriptor", Some(id @ 1..=14)) => Ok(Told::DependencyDescriptor(id)),
        ("frame-marking", Some(id @ 1..=14)) => Ok(Told::FrameMarking(id)),
        ("vp8", _) => Ok(Told::Vp8),
        ("vp9", _) => Ok(Told::Vp9),
        ("dependency-descriptor" | "frame-marking", _) => {
            Err(invalid("layers.extension_id: the id of the header extension, 1 to 14, is missing"))
        }
        (by, _) => Err(invalid(format!(
            "layers.by {by:?} is none of dependency-descriptor, frame-marking, vp8, vp9"
        ))),
    }
}

fn payload_types(codecs: &[Codec]) -> Vec<PayloadType> {
    let codec = |codec: &Codec| match codec.channels {
        Some(channels) => format!("{}/{}/{channels}", codec.encoding, codec.clock_rate),
        None => format!("{}/{}", codec.encoding, codec.clock_rate),
    };
    let made = codecs.iter().map(|one| PayloadType {
        number: one.payload_type,
        codec: codec(one),
        parameters: one.fmtp.clone().unwrap_or_default(),
    });
    made.collect()
}

/// A medium as asked for, checked.
pub struct Wanted {
    pub key: LegKey,
    asked: JoinMedium,
    encrypted: bool,
    told: Option<Told>,
}

/// # Errors
/// One of them cannot be.
pub fn check_media(media: &[JoinMedium]) -> Result<Vec<Wanted>, Failure> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for asked in media {
        let key = parse_medium(&asked.medium)?;
        if wanted.iter().any(|other| other.key == key) {
            return Err(invalid(format!("medium {:?} is given twice", asked.medium)));
        }
        let encrypted = encrypted(&asked.transport)?;
        let told = asked.layers.as_ref().map(told).transpose()?;
        if let Some(codec) = asked.codecs.iter().find(|codec| codec.payload_type > 127) {
            return Err(invalid(format!("payload_type {} is not in 0..127", codec.payload_type)));
        }
        if told.is_some() && key.0 == Medium::Audio {
            return Err(invalid("layers: audio has none"));
        }
        if told.is_some() && encrypted {
            return Err(invalid("layers: SRTP authenticates sequence numbers, so nothing of it is left out"));
        }
        wanted.push(Wanted {
            key,
            asked: asked.clone(),
            encrypted,
            told,
        });
    }
    for one in wanted.iter().filter(|one| one.key.1 > 0) {
        if !wanted.iter().any(|other| other.key == (one.key.0, 0)) {
            return Err(invalid(format!(
                "medium {:?}: the first {} is missing",
                one.asked.medium,
                one.key.0.name()
            )));
        }
    }
    wanted.sort_by_key(|one| one.key);
    Ok(wanted)
}

fn sends(direction: Direction) -> bool {
    matches!(direction, Direction::SendRecv | Direction::SendOnly)
}

fn receives(direction: Direction) -> bool {
    matches!(direction, Direction::SendRecv | Direction::RecvOnly)
}

/// What was asked for, as the engine has it.
#[must_use]
pub fn wish(mixed: Mixed) -> mixing::Mixed {
    match mixed {
        Mixed::Auto => mixing::Mixed::Auto,
        Mixed::Yes => mixing::Mixed::Yes,
        Mixed::No => mixing::Mixed::No,
    }
}

/// The same the other way round.
#[must_use]
pub fn asked(wish: mixing::Mixed) -> Mixed {
    match wish {
        mixing::Mixed::Auto => Mixed::Auto,
        mixing::Mixed::Yes => Mixed::Yes,
        mixing::Mixed::No => Mixed::No,
    }
}

/// The addresses that signalling names, as a latch takes them.
#[must_use]
pub fn names(signalled: &[IpAddr]) -> Names {
    let mut names = Names::default();
    for addr in signalled {
        names.add(shunt_latch::Name::address(addr.to_canonical()));
    }
    names
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

    /// Streams whose SSRC is somebody else's, and whose.
    #[must_use]
    pub fn conflicts(&self) -> BTreeMap<(Name, Medium, u32), Name> {
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

    /// Those who take part, without mixers.
    pub fn people(&self) -> impl Iterator<Item = (&Participant, &Member)> {
        let people = self.conference.participants.iter().filter(|one| one.mixer.is_none());
        people.filter_map(|one| Some((one, self.members.get(&one.name)?)))
    }

    /// One of these.
    ///
    /// # Errors
    /// There is nobody of this name.
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

    /// A leg of a participant, with what belongs to it.
    #[must_use]
    pub fn leg(&self, participant: &str, key: LegKey) -> Option<(&Leg, &LegState)> {
        let leg = self.conference.get(participant)?.legs.get(&key)?;
        Some((leg, self.members.get(participant)?.legs.get(&key)?))
    }

    /// The leg by which a receiver gets a sender's medium.
    #[must_use]
    pub fn leg_for(&self, receiver: &Participant, sender: &Name, medium: Medium) -> Option<(&LegState, Endpoint, bool)> {
        self.leg_of(receiver, receiver.leg_for(sender, medium)?)
    }

    /// The leg by which a receiver gets one of a sender's streams.
    #[must_use]
    pub fn leg_for_stream(&self, receiver: &Participant, sender: &Name, medium: Medium, ssrc: u32) -> Option<(&LegState, Endpoint, bool)> {
        self.leg_of(receiver, receiver.leg_for_stream(sender, medium, ssrc)?)
    }

    /// All legs by which a receiver gets streams of a sender's medium.
    #[must_use]
    pub fn legs_for(&self, receiver: &Participant, sender: &Participant, medium: Medium) -> Vec<(&LegState, Endpoint, bool)> {
        let ssrcs = sender.leg(medium).map_or(&[][..], |leg| &leg.ssrcs);
        let mut legs: Vec<&Leg> = Vec::new();
        for leg in ssrcs.iter().filter_map(|ssrc| receiver.leg_for_stream(&sender.name, medium, *ssrc)) {
            if legs.iter().all(|other| other.relay != leg.relay) {
                legs.push(leg);
            }
        }
        if legs.is_empty() {
            legs.extend(receiver.leg_for(&sender.name, medium));
        }
        legs.into_iter().filter_map(|leg| self.leg_of(receiver, leg)).collect()
    }

    fn leg_of(&self, receiver: &Participant, leg: &Leg) -> Option<(&LegState, Endpoint, bool)> {
        let key = receiver.legs.iter().find(|(_, other)| other.relay == leg.relay)?.0;
        Some((self.members.get(&receiver.name)?.legs.get(key)?, leg.source?, leg.muxed))
    }

    /// A source is latched, or no longer.
    pub fn set_source(&mut self, participant: &Name, key: LegKey, source: Option<Endpoint>, now: Time) {
        if let Some(member) = self.members.get_mut(participant) {
            member.last_packet = now;
            if let Some(state) = member.legs.get_mut(&key) {
                state.rtcp = state.rtcp.filter(|rtcp| Some(rtcp.addr) == source.map(|source| source.addr));
            }
        }
        if let Ok(one) = self.conference.get_mut(participant)
            && let Some(leg) = one.legs.get_mut(&key)
        {
            leg.source = source;
            leg.ssrcs.clear();
            leg.repair.clear();
        }
        self.conference.settle();
    }

    /// Media on which a participant sends nothing go where signalling says, once it is certain that the address is its own: another of its media comes
    /// from there. Returns those that are served from now on.
    pub fn serve_listening(&mut self, participant: &Name, now: Time) -> Vec<(LegKey, Endpoint)> {
        let (Some(member), Some(one)) = (self.members.get(participant), self.conference.get(participant)) else {
            return Vec::new();
        };
        if member.ice.is_some() {
            return Vec::new();
        }
        let own: HashSet<IpAddr> = one.legs.values().filter_map(|leg| Some(leg.source?.addr)).collect();
        let listens = one.legs.iter().filter(|(_, leg)| leg.source.is_none() && !leg.sends);
        let found: Vec<(LegKey, Endpoint)> = listens
            .filter_map(|(key, _)| {
                let to = member.legs.get(key)?.destination?;
                (to.port != 0 && own.contains(&to.addr)).then_some((*key, to))
            })
            .collect();
        for (key, to) in &found {
            self.set_source(participant, *key, Some(*to), now);
            if let Some(state) = self.members.get_mut(participant).and_then(|member| member.legs.get_mut(key)) {
                state.latch.adopt(now, *to, None);
            }
        }
        found
    }

    /// A packet of an SSRC that is not known yet; whether it repairs others, by its payload type.
    pub fn learn(&mut self, participant: &Name, key: LegKey, ssrc: u32, payload_type: Option<u8>, now: Time) -> bool {
        let Some(state) = self.members.get_mut(participant).and_then(|member| member.legs.get_mut(&key)) else {
            return false;
        };
        state.new_ssrc_at = Some(now);
        let first = *state.payload_type.get_or_insert(payload_type.unwrap_or(0));
        let repair = key.0 != Medium::Audio && payload_type.is_some_and(|payload_type| payload_type != first);
        // It names nobody who is not there.
        let _ = self.conference.learn(participant, key.0, ssrc, repair);
        repair
    }

    /// As it is to be carried on by the next agent.
    #[must_use]
    pub fn keep(&self) -> Kept {
        let participants = self.people().map(|(one, member)| {
            let legs = one.legs.iter().filter_map(|(key, leg)| {
                let state = member.legs.get(key)?;
                Some(KeptLeg {
                    medium: leg_name(*key),
                    port: leg.relay.port,
                    transport: state.transport.clone(),
                    source: leg.source,
                    rtcp: state.rtcp,
                    ssrcs: leg.ssrcs.clone(),
                    repair: leg.repair.clone(),
                    payload_type: state.payload_type,
                    signalled: state.signalled.clone(),
                    sends: leg.sends,
                    receives: leg.receives,
                    muxed: leg.muxed,
                    codecs: state.codecs.clone(),
                    layers: state.layers.clone(),
                    destination: state.destination,
                    sent: state.sent,
                    received: state.received,
                })
            });
            KeptParticipant {
                participant: one.name.to_string(),
                call: member.call.clone(),
                joined_us: member.joined_us,
                ice: member.ice.clone(),
                signalling: member.signalling.clone(),
                encrypted: one.encrypted,
                mixed: asked(one.wish),
                legs: legs.collect(),
            }
        });
        let mixer = |job: Job| {
            let placed = self.placed.get(&job)?;
            let ssrcs = self.mixes.ssrcs.iter().filter(|_| job == Job::Mixes);
            Some(KeptMixer {
                control: placed.control.clone(),
                at: placed.at,
                port: placed.port,
                ssrcs: ssrcs.map(|(name, ssrc)| (name.to_string(), *ssrc)).collect(),
            })
        };
        let column = |job: &Job| match job {
            Job::Column(number) => Some((*number, mixer(*job)?)),
            _ => None,
        };
        let qualities = self.conference.qualities.iter();
        let levels = self.conference.levels.iter();
        Kept {
            format: FORMAT,
            conference: self.conference.name.to_string(),
            started_us: self.started_us,
            participants: participants.collect(),
            qualities: qualities
                .map(|((sender, receiver), quality)| (sender.to_string(), receiver.to_string(), quality.name().to_owned()))
                .collect(),
            levels: levels
                .map(|(((sender, receiver), medium), level)| (sender.to_string(), receiver.to_string(), medium.name().to_owned(), *level))
                .collect(),
            bases: self.bases.iter().map(|(flow, counters)| KeptBase::new(flow, counters)).collect(),
            mixer: mixer(Job::Mixes),
            announcements: self.announcements,
            tiling: self.keep_tiling(),
            tiler: mixer(Job::Tiles),
            columns: self.placed.keys().filter_map(column).collect(),
        }
    }
}

impl State {
    #[must_use]
    pub fn new(first: u16, last: u16) -> Self {
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
            mixing: false,
            mixers_at: HashSet::new(),
            unplaced: BTreeSet::new(),
        }
    }

    /// A conference without participants.
    #[must_use]
    pub fn new_room(&self, name: Name, started_us: u64) -> Room {
        let mut room = Room::new(name, started_us);
        room.conference.mixing = self.mixing;
        room
    }

    /// A port for copies to a mixer.
    ///
    /// # Errors
    /// All are taken.
    pub fn take_port(&mut self) -> Result<u16, Failure> {
        self.ports.take()
    }

    pub fn give_port(&mut self, port: u16) {
        self.ports.free.push_back(port);
    }

    /// # Errors
    /// There is none of this name.
    pub fn room(&self, name: &str) -> Result<&Room, Failure> {
        let none = || Failure::new(FailureKind::NotFound, format!("there is no conference {name:?}"));
        self.rooms.get(name).ok_or_else(none)
    }

    /// # Errors
    /// There is none of this name.
    pub fn room_mut(&mut self, name: &str) -> Result<&mut Room, Failure> {
        let none = || Failure::new(FailureKind::NotFound, format!("there is no conference {name:?}"));
        self.rooms.get_mut(name).ok_or_else(none)
    }

    /// Give a participant these media, each with a relay address of its own.
    ///
    /// # Errors
    /// All ports are taken; nothing has changed.
    pub fn add_legs(
        &mut self,
        address: IpAddr,
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
            let mut leg = Leg::new(Endpoint::new(address, port));
            one.shape(&mut leg);
            leg.muxed = one.asked.rtcp_mux.unwrap_or(false);
            let mut state = LegState::new(&one.asked);
            state.signalled = signalled.to_vec();
            state.latch.signal(Time::default(), names(signalled));
            self.install(conference, participant, one.key, leg, state);
        }
        for addr in signalled {
            self.parties.join(addr.to_canonical());
        }
        Ok(())
    }

    pub fn install(&mut self, conference: &Name, participant: &Name, key: LegKey, leg: Leg, state: LegState) {
        let place = Place {
            conference: conference.clone(),
            participant: participant.clone(),
            leg: key,
        };
        self.at.insert(leg.relay.port, place);
        let Some(room) = self.rooms.get_mut(conference) else { return };
        if let Some(member) = room.members.get_mut(participant) {
            member.legs.insert(key, state);
        }
        if let Ok(one) = room.conference.get_mut(participant) {
            one.legs.insert(key, leg);
        }
    }

    /// A participant leaves; its ports are free.
    ///
    /// # Errors
    /// There is no such conference or participant.
    pub fn leave(&mut self, conference: &str, participant: &str, now: Time) -> Result<Member, Failure> {
        let room = self.rooms.get_mut(conference);
        let room = room.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("there is no conference {conference:?}")))?;
        let (name, gone) = match room.conference.leave(participant) {
            Ok(gone) => (gone.name.clone(), gone),
            Err(error) => return Err(Failure::new(FailureKind::NotFound, error.to_string())),
        };
        for leg in gone.legs.values() {
            self.at.remove(&leg.relay.port);
            self.ports.free.push_back(leg.relay.port);
        }
        room.adaptation.leave(&name, now);
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
        let member = member.ok_or_else(|| Failure::new(FailureKind::NotFound, format!("there is no participant {participant:?}")))?;
        let signalled: HashSet<IpAddr> = member.legs.values().flat_map(|leg| leg.signalled.iter().copied()).collect();
        for addr in signalled {
            self.parties.leave(addr.to_canonical());
        }
        Ok(member)
    }

    /// Carry on with a conference that was kept. Returns why it cannot be.
    ///
    /// # Errors
    /// It is not what it should be; nothing has changed.
    pub fn restore(&mut self, address: IpAddr, kept: Kept, now: Time) -> Result<(), String> {
        let name = check_name("conference", &kept.conference).map_err(|failure| failure.message)?;
        let taken = |port: &u16| !self.ports.free.contains(port);
        let legs = kept.participants.iter().flat_map(|one| one.legs.iter().map(|leg| leg.port));
        let mut placed: Vec<(Job, KeptMixer)> = kept
            .columns
            .into_iter()
            .map(|(number, mixer)| (Job::Column(number), mixer))
            .collect();
        placed.extend(kept.tiler.map(|mixer| (Job::Tiles, mixer)));
        placed.extend(kept.mixer.map(|mixer| (Job::Mixes, mixer)));
        if let Some(port) = legs.chain(placed.iter().map(|(_, mixer)| mixer.port)).find(taken) {
            return Err(format!("port {port} is not free in conference.ports"));
        }
        let mut room = self.new_room(name.clone(), kept.started_us);
        room.announcements = kept.announcements;
        self.rooms.insert(name.clone(), room);
        for one in kept.participants {
            self.restore_participant(address, &name, one, now)?;
        }
        if self.mixing {
            self.restore_mixers(address, &name, kept.tiling, placed, now)?;
        }
        let Some(room) = self.rooms.get_mut(&name) else { return Ok(()) };
        room.bases = kept.bases.iter().map(KeptBase::counters).collect();
        let medium = |text: &str| MEDIA.into_iter().find(|medium| medium.name() == text);
        for (sender, receiver, quality) in kept.qualities {
            if let Some(quality) = medium(&quality) {
                let _ = room.conference.set_quality(&sender.into(), &receiver.into(), quality);
            }
        }
        for (sender, receiver, of, level) in kept.levels {
            if let Some(of) = medium(&of) {
                room.conference.levels.insert(((sender.into(), receiver.into()), of), level);
            }
        }
        room.conference.settle();
        Ok(())
    }

    /// What mixers make goes on where it was made.
    fn restore_mixers(
        &mut self,
        address: IpAddr,
        name: &Name,
        tiling: Option<KeptTiling>,
        placed: Vec<(Job, KeptMixer)>,
        now: Time,
    ) -> Result<(), String> {
        if let Some(room) = self.rooms.get_mut(name) {
            let mixes = placed.iter().filter(|(job, _)| *job == Job::Mixes);
            let ssrcs = mixes.flat_map(|(_, mixer)| &mixer.ssrcs);
            room.mixes.ssrcs = ssrcs.map(|(name, ssrc)| (name.as_str().into(), *ssrc)).collect();
            if let Some(tiling) = tiling {
                room.restore_tiling(tiling).map_err(|failure| failure.message)?;
            }
            // What the data plane rewrites is not known yet.
            room.conference.check_video(usize::MAX);
        }
        for (job, kept) in placed {
            self.ports.claim(kept.port);
            self.place(address, name, job, Placed::restored(&kept), now);
        }
        Ok(())
    }

    fn restore_participant(&mut self, address: IpAddr, conference: &Name, kept: KeptParticipant, now: Time) -> Result<(), String> {
        let name = check_name("participant", &kept.participant).map_err(|failure| failure.message)?;
        if let Some(room) = self.rooms.get_mut(conference) {
            let mut one = Participant::new(name.clone());
            (one.ice, one.encrypted) = (kept.ice.is_some(), kept.encrypted);
            one.wish = wish(kept.mixed);
            room.conference.join(one).map_err(|error| error.to_string())?;
            room.members.insert(
                name.clone(),
                Member {
                    call: kept.call,
                    joined_us: kept.joined_us,
                    ice: kept.ice,
                    signalling: kept.signalling,
                    last_packet: now,
                    legs: BTreeMap::new(),
                },
            );
        }
        let mut signalled = HashSet::new();
        for one in kept.legs {
            let key = parse_medium(&one.medium).map_err(|failure| failure.message)?;
            self.ports.claim(one.port);
            let mut leg = Leg::new(Endpoint::new(address, one.port));
            leg.source = one.source;
            (leg.sends, leg.receives, leg.muxed) = (one.sends, one.receives, one.muxed);
            leg.told = one.layers.as_ref().and_then(|layers| told(layers).ok());
            leg.payload_types = payload_types(&one.codecs);
            leg.repair = one.repair;
            leg.ssrcs = one.ssrcs.into_iter().take(STREAMS).collect();
            let mut latch = Latch::new(Component::Rtp);
            latch.signal(now, names(&one.signalled));
            if let Some(source) = leg.source {
                let media = leg.ssrcs.last().map(|ssrc| shunt_rtp::Source { ssrc: *ssrc, sequence: 0 });
                latch.adopt(now, source, media);
            }
            signalled.extend(one.signalled.iter().copied());
            let state = LegState {
                latch,
                signalled: one.signalled,
                sockets: None,
                rtcp: one.rtcp,
                transport: one.transport,
                codecs: one.codecs,
                layers: one.layers,
                payload_type: one.payload_type,
                packets: 0,
                new_ssrc_at: None,
                moving: false,
                destination: one.destination,
                sent: one.sent,
                received: one.received,
            };
            self.install(conference, &name, key, leg, state);
        }
        for addr in signalled {
            self.parties.join(addr.to_canonical());
        }
        Ok(())
    }
}

impl Member {
    /// Of a mixer, which nobody lets in or takes out but the agent itself.
    #[must_use]
    pub fn of_mixer(now: Time) -> Self {
        Self {
            call: None,
            joined_us: 0,
            ice: None,
            signalling: None,
            last_packet: now,
            legs: BTreeMap::new(),
        }
    }
}

impl LegState {
    /// Of a mixer, whose address it has told itself.
    #[must_use]
    pub fn of_mixer(at: Endpoint, now: Time) -> Self {
        let mut latch = Latch::new(Component::Rtp);
        latch.adopt(now, at, None);
        Self {
            latch,
            signalled: Vec::new(),
            sockets: None,
            rtcp: None,
            transport: String::new(),
            codecs: Vec::new(),
            layers: None,
            payload_type: None,
            packets: 0,
            new_ssrc_at: None,
            moving: false,
            destination: None,
            sent: Account::default(),
            received: Account::default(),
        }
    }

    fn new(asked: &JoinMedium) -> Self {
        Self {
            latch: Latch::new(Component::Rtp),
            signalled: Vec::new(),
            sockets: None,
            rtcp: None,
            transport: asked.transport.clone(),
            codecs: asked.codecs.clone(),
            layers: asked.layers.clone(),
            payload_type: None,
            packets: 0,
            new_ssrc_at: None,
            moving: false,
            destination: asked.destination,
            sent: Account::default(),
            received: Account::default(),
        }
    }

    /// Send RTCP to a participant, to where its own comes from, or by custom ought to (RFC 3550 section 11).
    pub fn send_rtcp(&self, source: Endpoint, muxed: bool, data: &[u8]) {
        let Some(sockets) = &self.sockets else { return };
        if muxed {
            sockets.send(false, source, data);
        } else {
            let next = source.port.checked_add(1).map(|port| Endpoint::new(source.addr, port));
            if let Some(to) = self.rtcp.filter(|rtcp| rtcp.addr == source.addr).or(next) {
                sockets.send(true, to, data);
            }
        }
    }
}

impl Wanted {
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// What signalling says of a leg; what it leaves out stays.
    pub fn shape(&self, leg: &mut Leg) {
        leg.sends = sends(self.asked.direction) && self.key.1 == 0;
        leg.receives = receives(self.asked.direction);
        if !self.asked.codecs.is_empty() {
            leg.payload_types = payload_types(&self.asked.codecs);
        }
        if self.told.is_some() {
            leg.told = self.told;
        }
    }

    /// The same of a medium that is there already, with what belongs to it besides. Returns whether its direction or its layers have changed.
    pub fn apply(&self, leg: &mut Leg, state: &mut LegState) -> bool {
        let before = (leg.sends, leg.receives, leg.told);
        self.shape(leg);
        if !self.asked.codecs.is_empty() {
            state.codecs.clone_from(&self.asked.codecs);
        }
        if self.told.is_some() {
            state.layers.clone_from(&self.asked.layers);
        }
        if self.asked.destination.is_some() {
            state.destination = self.asked.destination;
        }
        before != (leg.sends, leg.receives, leg.told)
    }
}
