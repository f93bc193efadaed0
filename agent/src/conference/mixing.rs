//! Mixers of audio: which of them has which conference, and what it is told of it.
//!
//! A conference is placed when somebody in it is to get a mix, on the mixer with the most room. To the data plane the mixer is a participant of its own
//! (`#mixer`, a name that nobody else can have), which gets copies of all audio from one more relay address. A mixer that does not answer, or
//! has begun anew, loses its conferences; they are placed again, and until then all get copies.

use super::Conferences;
use super::mixer_client::{self as client, Audio, Codec, Description, Listing, Mix, MixerError, Participant, Status};
use super::state::{Room, State, canonical};
use super::store::KeptMixer;
use shunt_conference::adaptation::Medium;
use shunt_conference::participant::{Leg, Participant as Planned};
use shunt_conference::tables::Name;
use shunt_net::Endpoint;
use shunt_rtpproxy::framing::ControlAddress;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The mixer's name among participants.
const MIXER: &str = "#mixer";
/// Between two looks at mixers.
const LOOK: Duration = Duration::from_millis(500);
/// Changes that come together are told together.
const COALESCE: Duration = Duration::from_millis(20);
/// Payload types of those who named none (RFC 3551 section 6).
const STATIC: [(u8, &str); 3] = [(0, "PCMU"), (8, "PCMA"), (9, "G722")];

/// Where a conference's audio is mixed.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The mixer's control socket.
    pub control: String,
    /// Where it takes audio, and sends mixes from.
    pub audio: Endpoint,
    /// The relay port that copies to it come from.
    pub port: u16,
    /// Of each participant's mix.
    pub ssrcs: BTreeMap<Name, u32>,
    /// What it was told last, and in which of its runs; `None`: what it knows is not certain.
    told: Option<(u64, Description)>,
    pub speaker: Option<Name>,
    pub muted: BTreeSet<Name>,
}

impl Placed {
    fn new(control: String, audio: Endpoint, port: u16) -> Self {
        Self {
            control,
            audio,
            port,
            ssrcs: BTreeMap::new(),
            told: None,
            speaker: None,
            muted: BTreeSet::new(),
        }
    }

    /// As it was kept.
    #[must_use]
    pub fn restored(kept: &KeptMixer) -> Self {
        Self {
            ssrcs: kept.ssrcs.iter().map(|(name, ssrc)| (name.as_str().into(), *ssrc)).collect(),
            ..Self::new(kept.control.clone(), canonical(kept.audio), kept.port)
        }
    }
}

/// The mixers that are configured, and what they said last.
pub struct Mixers {
    all: Vec<ControlAddress>,
    known: Mutex<HashMap<String, Known>>,
}

/// What is known of a mixer: its status, or why there is none.
type Known = Result<Status, String>;

impl Mixers {
    #[must_use]
    pub fn new(all: &[ControlAddress]) -> Self {
        Self {
            all: all.to_vec(),
            known: Mutex::new(HashMap::new()),
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut HashMap<String, Known>) -> R) -> R {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn address(&self, control: &str) -> Option<&ControlAddress> {
        self.all.iter().find(|one| one.to_string() == control)
    }

    /// Those that take conferences, the one with the most room first.
    fn candidates(&self) -> Vec<(String, Status)> {
        let mut found: Vec<(String, Status)> = self.with(|known| {
            let there = known
                .iter()
                .filter_map(|(control, known)| Some((control.clone(), known.as_ref().ok()?.clone())));
            there.filter(|(_, status)| status.full.is_none()).collect()
        });
        found.sort_by(|(a, one), (b, other)| {
            let load = one.load.total_cmp(&other.load);
            one.receivers.cmp(&other.receivers).then(load).then(a.cmp(b))
        });
        found
    }

    /// A mixer did not do what was asked: it is not asked again before it has answered.
    fn lose(&self, control: &str, reason: &MixerError) {
        self.with(|known| known.insert(control.to_owned(), Err(reason.to_string())));
    }
}

impl State {
    /// A conference is mixed there from now on.
    pub fn place(&mut self, address: IpAddr, name: &Name, placed: Placed) {
        let Some(room) = self.rooms.get_mut(name) else {
            self.give_port(placed.port);
            return;
        };
        let mut leg = Leg::new(Endpoint::new(address, placed.port));
        (leg.source, leg.sends) = (Some(placed.audio), false);
        let mut mixer = Planned::new(MIXER.into());
        mixer.mixer = true;
        mixer.legs.insert((Medium::Audio, 0), leg);
        self.mixers_at.insert(placed.audio);
        room.mixer = Some(placed);
        // Nobody else has this name.
        let _ = room.conference.join(mixer);
        room.conference.settle();
    }

    /// A conference is no longer mixed where it was; returns where.
    pub fn unplace(&mut self, name: &str) -> Option<String> {
        let room = self.rooms.get_mut(name)?;
        let placed = room.mixer.take()?;
        let _ = room.conference.leave(MIXER);
        let name = room.conference.name.clone();
        self.give_port(placed.port);
        self.unplaced.insert((placed.control.clone(), name));
        Some(placed.control)
    }
}

fn socket(end: Endpoint) -> SocketAddr {
    SocketAddr::new(end.addr, end.port)
}

/// What a mixer is told of a conference; who has got no SSRC for its mix yet gets one.
fn description(room: &Room, address: IpAddr, port: u16, ssrcs: &mut BTreeMap<Name, u32>) -> Description {
    let conference = &room.conference;
    let mut participants = Vec::new();
    for one in conference.participants.iter().filter(|one| !one.mixer) {
        let Some(leg) = one.leg(Medium::Audio) else { continue };
        let carried = |ssrc: &&u32| conference.conflict(&one.name, Medium::Audio, **ssrc).is_none();
        let member = room.members.get(&one.name);
        let codecs = |further: u8| {
            let named = member.and_then(|member| member.legs.get(&(Medium::Audio, further)));
            let named: Vec<Codec> = named.map(|leg| leg.codecs.iter().map(codec).collect()).unwrap_or_default();
            if named.is_empty() {
                STATIC.iter().map(unnamed).collect()
            } else {
                named
            }
        };
        let mix = one.mix_leg().filter(|(_, to)| one.mixed && to.receives).and_then(|(further, to)| {
            let own = one.mix()?.number;
            Some(Mix {
                to: socket(to.relay),
                ssrc: *ssrcs.entry(one.name.clone()).or_insert_with(ssrc),
                codec: codecs(further).into_iter().find(|codec| codec.payload_type == own)?,
            })
        });
        participants.push(Participant {
            participant: one.name.to_string(),
            ssrcs: leg.ssrcs.iter().filter(carried).copied().collect(),
            codecs: codecs(0),
            mix,
        });
    }
    ssrcs.retain(|name, _| conference.get(name).is_some());
    let from = SocketAddr::new(address, port);
    Description {
        audio: Audio { from, participants },
    }
}

fn unnamed((payload_type, encoding): &(u8, &str)) -> Codec {
    Codec {
        payload_type: *payload_type,
        encoding: (*encoding).to_owned(),
        clock_rate: 8000,
    }
}

fn codec(one: &shunt_admin::Codec) -> Codec {
    Codec {
        payload_type: one.payload_type,
        encoding: one.encoding.clone(),
        clock_rate: one.clock_rate,
    }
}

/// Where the system has no random number, the clock's nanoseconds are as good as any: SSRCs are no secret.
fn ssrc() -> u32 {
    getrandom::u32().unwrap_or_else(|_| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.subsec_nanos())
    })
}

/// What is to be done about a conference.
enum Work {
    /// It has no mixer and needs one.
    Place(Description, u16, BTreeMap<Name, u32>),
    /// Its mixer has to know this.
    Tell(String, Description),
}

impl Conferences {
    #[must_use]
    pub fn has_mixers(&self) -> bool {
        !self.mixers.all.is_empty()
    }

    /// Mixers that do not answer, and why.
    #[must_use]
    pub fn lacking_mixers(&self) -> Vec<(String, String)> {
        self.mixers.with(|known| {
            let lacking = known
                .iter()
                .filter_map(|(control, known)| Some((control.clone(), known.as_ref().err()?.clone())));
            lacking.collect()
        })
    }

    /// Conferences that are on a mixer, and participants who get a mix.
    #[must_use]
    pub fn mixed_sizes(&self) -> (usize, usize) {
        self.with(|state| {
            let mut sizes = (0, 0);
            for room in state.rooms.values().filter(|room| room.mixer.is_some()) {
                sizes.0 += 1;
                sizes.1 += room.conference.participants.iter().filter(|one| one.mixed).count();
            }
            sizes
        })
    }

    /// For ever: place conferences on mixers, and tell these what they have to know.
    pub async fn mix(self: &Arc<Self>) {
        let mut looked: Option<Instant> = None;
        loop {
            let due = looked.map_or(Duration::ZERO, |looked| LOOK.saturating_sub(looked.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(due) => {
                    self.look_at_mixers().await;
                    looked = Some(Instant::now());
                }
                () = self.shared.mixing.notified() => tokio::time::sleep(COALESCE).await,
            }
            if !self.is_up() {
                // Without a data plane nothing arrives, and another agent may be in charge.
                continue;
            }
            self.drop_lost();
            self.end_unplaced().await;
            let works: Vec<(Name, Work)> = self.with(|state| self.works(state));
            for (name, work) in works {
                match work {
                    Work::Place(description, port, ssrcs) => self.place(&name, description, port, ssrcs).await,
                    Work::Tell(control, description) => self.tell_mixer(&name, &control, description).await,
                }
            }
        }
    }

    /// Ask all mixers how they are, and those that have conferences what they have heard.
    async fn look_at_mixers(self: &Arc<Self>) {
        let mut asked = JoinSet::new();
        let used: BTreeSet<String> = self.with(|state| {
            let placed = state.rooms.values().filter_map(|room| room.mixer.as_ref());
            placed.map(|placed| placed.control.clone()).collect()
        });
        for control in self.mixers.all.clone() {
            let is_used = used.contains(&control.to_string());
            asked.spawn(async move {
                let status = client::status(&control).await;
                let listing = if is_used && status.is_ok() {
                    client::listing(&control).await.ok()
                } else {
                    None
                };
                (control.to_string(), status, listing)
            });
        }
        while let Some(answered) = asked.join_next().await {
            let Ok((control, status, listing)) = answered else { continue };
            if let Ok(status) = &status {
                self.with(|state| state.mixers_at.insert(canonical(status.audio)));
            }
            let now = status.map_err(|error| error.to_string());
            let before = self.mixers.with(|known| known.insert(control.clone(), now.clone()));
            match (&now, before) {
                (Err(reason), None | Some(Ok(_))) => tracing::warn!("mixer {control} is not there: {reason}"),
                (Ok(_), None | Some(Err(_))) => tracing::info!("mixer {control} is there"),
                _ => {}
            }
            if let Some(listing) = listing {
                self.heard(&control, listing).await;
            }
        }
    }

    /// Who speaks, who has muted itself, and who has asked to leave.
    async fn heard(&self, control: &str, listing: Listing) {
        let mut leaving: Vec<(Name, String)> = Vec::new();
        self.with(|state| {
            for heard in listing.conferences {
                let Some(room) = state.rooms.get_mut(heard.conference.as_str()) else {
                    continue;
                };
                let name = room.conference.name.clone();
                let Some(placed) = room.mixer.as_mut().filter(|placed| placed.control == control) else {
                    continue;
                };
                if placed.told.as_ref().is_none_or(|(epoch, _)| *epoch != listing.epoch) {
                    continue;
                }
                let is_new = |one: &Name| room.conference.get(one).is_some();
                let speaker: Option<Name> = heard.speaker.map(Name::from).filter(is_new);
                if speaker != placed.speaker {
                    placed.speaker.clone_from(&speaker);
                    self.shared.tell(&name, "speaker", speaker.as_ref(), Some(Medium::Audio), |_| {});
                }
                for one in heard.participants {
                    let participant: Name = one.participant.as_str().into();
                    let changed = if one.muted {
                        placed.muted.insert(participant.clone())
                    } else {
                        placed.muted.remove(&participant)
                    };
                    if changed {
                        let what = if one.muted { "muted" } else { "unmuted" };
                        self.shared.tell(&name, what, Some(&participant), Some(Medium::Audio), |_| {});
                    }
                    if one.leave {
                        leaving.push((name.clone(), one.participant));
                    }
                }
            }
        });
        for (conference, participant) in leaving {
            // It may have left just now.
            let _ = self.leave(&conference, &participant, "keys").await;
        }
    }

    /// Conferences whose mixer is not there any more have none.
    fn drop_lost(&self) {
        let known: HashMap<String, Option<u64>> = self.mixers.with(|known| {
            let epochs = known
                .iter()
                .map(|(control, known)| (control.clone(), known.as_ref().ok().map(|status| status.epoch)));
            epochs.collect()
        });
        self.with(|state| {
            let mut lost = Vec::new();
            for (name, room) in &mut state.rooms {
                let Some(placed) = &mut room.mixer else { continue };
                match known.get(&placed.control) {
                    Some(Some(epoch)) => {
                        // One that has begun anew is told everything again.
                        placed.told = placed.told.take().filter(|(told, _)| told == epoch);
                    }
                    // Nobody has asked it yet.
                    None if self.mixers.address(&placed.control).is_some() => {}
                    _ => lost.push(name.clone()),
                }
            }
            for name in lost {
                self.lose(state, &name, "it does not answer");
            }
        });
    }

    fn lose(&self, state: &mut State, name: &Name, reason: &str) {
        let Some(control) = state.unplace(name) else { return };
        // It knows nothing of the conference, or will be told to forget it once it answers.
        tracing::warn!("conference {name}: mixer {control} is lost: {reason}");
        self.shared.tell(name, "mixer-lost", None, Some(Medium::Audio), |facts| {
            facts.insert("mixer".into(), control.into());
            facts.insert("detail".into(), reason.into());
        });
        self.kept(state, name);
    }

    fn kept(&self, state: &mut State, name: &Name) {
        if let Some(room) = state.rooms.get(name) {
            self.shared.store.put(&room.keep());
        }
        state.touch(&self.shared, name);
    }

    /// Tell mixers which conferences they need not have any more. One that does not answer is told when it does.
    async fn end_unplaced(&self) {
        let unplaced = self.with(|state| {
            let gone = std::mem::take(&mut state.unplaced);
            let is_placed = |control: &str, name: &Name| {
                let room = state.rooms.get(name);
                room.is_some_and(|room| room.mixer.as_ref().is_some_and(|placed| placed.control == control))
            };
            gone.into_iter()
                .filter(|(control, name)| !is_placed(control, name))
                .collect::<Vec<_>>()
        });
        for (control, name) in unplaced {
            let there = self.mixers.with(|known| known.get(&control).is_some_and(Result::is_ok));
            let Some(address) = self.mixers.address(&control) else { continue };
            let ended = there && client::end(address, &name).await.is_ok();
            if !ended {
                self.with(|state| state.unplaced.insert((control, name)));
            }
        }
    }

    fn works(&self, state: &mut State) -> Vec<(Name, Work)> {
        let names: Vec<Name> = state.rooms.keys().cloned().collect();
        let address = self.shared.address;
        let has_room = !self.mixers.candidates().is_empty();
        let mut works = Vec::new();
        for name in names {
            let Some(room) = state.rooms.get_mut(&name) else { continue };
            let needs = room.conference.participants.iter().any(|one| one.mixed);
            match room.mixer.take() {
                Some(mut placed) if needs => {
                    let description = description(room, address, placed.port, &mut placed.ssrcs);
                    if placed.told.as_ref().is_none_or(|(_, told)| *told != description) {
                        works.push((name, Work::Tell(placed.control.clone(), description)));
                    }
                    room.mixer = Some(placed);
                }
                Some(placed) => {
                    room.mixer = Some(placed);
                    state.unplace(&name);
                    self.kept(state, &name);
                }
                None if needs && has_room => {
                    let Ok(port) = state.take_port() else { continue };
                    let Some(room) = state.rooms.get(&name) else { continue };
                    let mut ssrcs = BTreeMap::new();
                    let description = description(room, address, port, &mut ssrcs);
                    works.push((name, Work::Place(description, port, ssrcs)));
                }
                None => {}
            }
        }
        works
    }

    /// Place a conference on the mixer with the most room that takes it.
    async fn place(&self, name: &Name, description: Description, port: u16, ssrcs: BTreeMap<Name, u32>) {
        for (control, _) in self.mixers.candidates() {
            let Some(address) = self.mixers.address(&control) else { continue };
            match client::describe(address, name, &description).await {
                Ok(accepted) => {
                    tracing::info!("conference {name}: audio is mixed by {control}");
                    self.with(|state| {
                        let mut placed = Placed::new(control.clone(), canonical(accepted.audio), port);
                        (placed.ssrcs, placed.told) = (ssrcs, Some((accepted.epoch, description)));
                        state.place(self.shared.address, name, placed);
                        self.shared.tell(name, "mixer", None, Some(Medium::Audio), |facts| {
                            facts.insert("mixer".into(), control.into());
                        });
                        self.kept(state, name);
                    });
                    return;
                }
                Err(MixerError::Full(reason)) => tracing::debug!("mixer {control} does not take {name}: {reason}"),
                Err(error) => {
                    tracing::warn!("mixer {control} does not take {name}: {error}");
                    self.mixers.lose(&control, &error);
                }
            }
        }
        self.with(|state| state.give_port(port));
    }

    /// A conference's mixer has to know of a change.
    async fn tell_mixer(&self, name: &Name, control: &str, description: Description) {
        let Some(address) = self.mixers.address(control) else { return };
        let told = client::describe(address, name, &description).await;
        self.with(|state| match told {
            Ok(accepted) => {
                let room = state.rooms.get_mut(name);
                if let Some(placed) = room.and_then(|room| room.mixer.as_mut()).filter(|placed| placed.control == control) {
                    let moved = placed.audio != canonical(accepted.audio);
                    placed.told = Some((accepted.epoch, description));
                    if moved {
                        self.lose(state, name, "its address is another");
                    } else {
                        self.kept(state, name);
                    }
                }
            }
            Err(error) => {
                if !matches!(error, MixerError::Full(_)) {
                    self.mixers.lose(control, &error);
                }
                self.lose(state, name, &error.to_string());
            }
        });
    }
}
