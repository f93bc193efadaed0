//! The stored state of a conference, from which the next agent restores it.

use super::mixers::Placed;
use super::wanted::{MEDIA, asked, check_name, names, parse_medium, payload_types, told, wish};
use super::{Book, Level, Member, Room, Turn, leg_name};
use crate::account::Account;
use crate::jobs::Job;
use crate::membership::STREAMS;
use crate::participant::{Leg, Participant};
use crate::tables::Name;
use serde::{Deserialize, Serialize};
use shunt_admin_model::TilingWish;
use shunt_calls::Counters;
use shunt_net::{Endpoint, FiveTuple};
use std::collections::HashSet;

/// Format version of a stored conference. Other versions are ignored.
pub const FORMAT: u32 = 2;

/// A stored conference.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub format: u32,
    pub conference: String,
    pub started_us: u64,
    pub participants: Vec<KeptParticipant>,
    /// (sender, receiver, quality).
    pub qualities: Vec<(String, String, String)>,
    /// (sender, receiver, medium, level).
    pub levels: Vec<(String, String, String, usize)>,
    /// Counter bases of relay entries that were another receiver's before.
    #[serde(default)]
    pub bases: Vec<KeptBase>,
    /// The mixer of its audio.
    #[serde(default)]
    pub mixer: Option<KeptMixer>,
    #[serde(default)]
    pub announcements: bool,
    /// The wanted tiled streams, and their mixer.
    #[serde(default)]
    pub tiling: Option<KeptTiling>,
    #[serde(default)]
    pub tiler: Option<KeptMixer>,
    /// The mixers of its columns, in two levels.
    #[serde(default)]
    pub columns: Vec<(u16, KeptMixer)>,
}

/// Stored tiled streams.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptTiling {
    pub wish: TilingWish,
    pub streams: Vec<KeptStream>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptStream {
    pub ssrc: u32,
    /// (place, participant, SSRC of its video).
    pub tiles: Vec<(u8, String, u32)>,
    /// (column, SSRC).
    #[serde(default)]
    pub columns: Vec<(u8, u32)>,
}

/// The mixer that a job of a conference is placed on.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptMixer {
    /// Control socket of the mixer.
    pub control: String,
    /// Address where the mixer receives the medium, and the relay port that copies come from.
    #[serde(rename = "audio")]
    pub at: Endpoint,
    pub port: u16,
    /// The SSRC of each participant's mix.
    pub ssrcs: Vec<(String, u32)>,
}

/// Counters of a relay entry when it became another receiver's.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptBase {
    source: Endpoint,
    destination: Endpoint,
    packets: u64,
    bytes: u64,
    lost: Option<u64>,
    reordered: Option<u64>,
    duplicates: Option<u64>,
}

impl KeptBase {
    #[must_use]
    pub fn new(flow: &FiveTuple, counters: &Counters) -> Self {
        Self {
            source: flow.src,
            destination: flow.dst,
            packets: counters.packets,
            bytes: counters.bytes,
            lost: counters.lost,
            reordered: counters.reordered,
            duplicates: counters.duplicates,
        }
    }

    #[must_use]
    pub fn counters(&self) -> (FiveTuple, Counters) {
        let counters = Counters {
            packets: self.packets,
            bytes: self.bytes,
            lost: self.lost,
            reordered: self.reordered,
            duplicates: self.duplicates,
            jitter_us: None,
            jitter_max_us: None,
        };
        (FiveTuple::new(self.source, self.destination), counters)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptParticipant {
    pub participant: String,
    pub call: Option<String>,
    pub joined_us: u64,
    pub ice: Option<crate::ice::Credentials>,
    #[serde(default)]
    pub signalling: Option<serde_json::Value>,
    pub encrypted: bool,
    #[serde(default)]
    pub mixed: shunt_admin_model::Mixed,
    pub legs: Vec<KeptLeg>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeptLeg {
    pub medium: String,
    pub port: u16,
    pub transport: String,
    pub source: Option<Endpoint>,
    pub rtcp: Option<Endpoint>,
    pub ssrcs: Vec<u32>,
    pub repair: Vec<u32>,
    pub payload_type: Option<u8>,
    pub signalled: Vec<std::net::IpAddr>,
    pub sends: bool,
    pub receives: bool,
    pub muxed: bool,
    pub codecs: Vec<shunt_admin_model::Codec>,
    pub layers: Option<shunt_admin_model::Layers>,
    #[serde(default)]
    pub destination: Option<Endpoint>,
    #[serde(default)]
    pub sent: Account,
    #[serde(default)]
    pub received: Account,
}

impl Room {
    /// Returns the state to store for the next agent.
    #[must_use]
    pub fn keep(&self) -> Kept {
        let participants = self.people().map(|(one, member)| {
            let legs = one.legs.iter().map(|(key, leg)| KeptLeg {
                medium: leg_name(*key),
                port: leg.relay.port,
                transport: leg.transport.clone(),
                source: leg.source,
                rtcp: leg.rtcp,
                ssrcs: leg.ssrcs.clone(),
                repair: leg.repair.clone(),
                payload_type: leg.payload_type,
                signalled: leg.signalled.clone(),
                sends: leg.sends,
                receives: leg.receives,
                muxed: leg.muxed,
                codecs: leg.codecs.clone(),
                layers: leg.layers.clone(),
                destination: leg.destination,
                sent: leg.sent,
                received: leg.received,
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

impl Book {
    /// Restores stored conferences. `all`: no more will follow.
    pub fn restore(&mut self, turn: &mut Turn, kept: Vec<Kept>, all: bool) {
        for one in kept {
            let name = one.conference.clone();
            if let Err(error) = self.restore_one(turn, one) {
                turn.log(Level::Error, format!("conference {name} cannot be carried on: {error}"));
                self.rooms.remove(&*name);
            }
        }
        let people: usize = self.rooms.values().map(|room| room.members.len()).sum();
        if people > 0 {
            turn.log(Level::Info, format!("conferences: {people} participants carried on"));
        }
        if all && !self.loaded {
            (self.loaded, self.unsure) = (true, true);
            turn.wake();
        }
    }

    /// Stores all conferences again, after the store has lost its contents.
    pub fn keep_all(&self, turn: &mut Turn) {
        self.rooms.keys().for_each(|name| turn.keep(name));
    }

    /// Restores one stored conference.
    ///
    /// # Errors
    /// The stored state is invalid; the error says why. Nothing has changed.
    fn restore_one(&mut self, turn: &mut Turn, kept: Kept) -> Result<(), String> {
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
            self.restore_participant(turn, &name, one)?;
        }
        if !self.settings.mixers.is_empty() {
            self.restore_mixers(turn, &name, kept.tiling, placed)?;
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

    /// Restores mixes and tiles with the mixers that made them.
    fn restore_mixers(
        &mut self,
        turn: &mut Turn,
        name: &Name,
        tiling: Option<KeptTiling>,
        placed: Vec<(Job, KeptMixer)>,
    ) -> Result<(), String> {
        if let Some(room) = self.rooms.get_mut(name) {
            let mixes = placed.iter().filter(|(job, _)| *job == Job::Mixes);
            let ssrcs = mixes.flat_map(|(_, mixer)| &mixer.ssrcs);
            room.mixes.ssrcs = ssrcs.map(|(name, ssrc)| (name.as_str().into(), *ssrc)).collect();
            if let Some(tiling) = tiling {
                room.restore_tiling(turn, tiling).map_err(|failure| failure.message)?;
            }
            // The data plane's limit of rewritten payload types is not known yet.
            room.conference.check_video(usize::MAX);
        }
        for (job, kept) in placed {
            self.ports.claim(kept.port);
            self.place(turn, name, job, Placed::restored(&kept));
        }
        Ok(())
    }

    fn restore_participant(&mut self, turn: &mut Turn, conference: &Name, kept: KeptParticipant) -> Result<(), String> {
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
                    last_packet: turn.now,
                },
            );
        }
        let mut signalled = HashSet::new();
        for one in kept.legs {
            let key = parse_medium(&one.medium).map_err(|failure| failure.message)?;
            self.ports.claim(one.port);
            let mut leg = Leg::new(Endpoint::new(self.settings.address, one.port));
            leg.source = one.source;
            (leg.sends, leg.receives, leg.muxed) = (one.sends, one.receives, one.muxed);
            leg.told = one.layers.as_ref().and_then(|layers| told(layers).ok());
            leg.payload_types = payload_types(&one.codecs);
            leg.repair = one.repair;
            leg.ssrcs = one.ssrcs.into_iter().take(STREAMS).collect();
            leg.latch.signal(turn.now, names(&one.signalled));
            if let Some(source) = leg.source {
                let media = leg.ssrcs.last().map(|ssrc| shunt_rtp::Source { ssrc: *ssrc, sequence: 0 });
                leg.latch.adopt(turn.now, source, media);
            }
            signalled.extend(one.signalled.iter().copied());
            (leg.signalled, leg.rtcp, leg.transport) = (one.signalled, one.rtcp, one.transport);
            (leg.codecs, leg.layers, leg.destination) = (one.codecs, one.layers, one.destination);
            (leg.payload_type, leg.sent, leg.received) = (one.payload_type, one.sent, one.received);
            self.install(turn, conference, &name, key, leg);
        }
        for addr in signalled {
            self.parties.join(addr.to_canonical());
        }
        Ok(())
    }
}
