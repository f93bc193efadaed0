//! Audio mixes: descriptions for mixers, and mixers' reports.

use super::{Book, Random, Room, Turn};
use crate::adaptation::{Medium, OWN_SSRC};
use crate::jobs::Job;
use crate::mixer::{Audio, Codec, Description, Listing, Mix, Participant};
use crate::reports::for_receivers;
use crate::tables::Name;
use shunt_admin_model::{Failure, FailureKind};
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Payload types of participants that named none (RFC 3551 section 6).
const STATIC: [(u8, &str); 3] = [(0, "PCMU"), (8, "PCMA"), (9, "G722")];

/// The mixes of a conference on a mixer.
#[derive(Clone, Debug, Default)]
pub struct Mixes {
    /// SSRC of each participant's mix.
    pub ssrcs: BTreeMap<Name, u32>,
    pub speaker: Option<Name>,
    pub muted: BTreeSet<Name>,
}

impl Room {
    /// Describes the audio for a mixer. `port`: the relay port that copies come from. Allocates missing SSRCs of mixes. `None`: no
    /// participant gets a mix.
    pub(super) fn describe_mixes(&mut self, random: &mut Random, address: IpAddr, port: u16) -> Option<Description> {
        let Self {
            conference,
            mixes,
            announcements,
            ..
        } = self;
        if !conference.participants.iter().any(|one| one.mixed) {
            return None;
        }
        let mut participants = Vec::new();
        for one in conference.participants.iter().filter(|one| one.mixer.is_none()) {
            let Some(leg) = one.leg(Medium::Audio) else { continue };
            let carried = |ssrc: &&u32| conference.conflict(&one.name, Medium::Audio, **ssrc).is_none();
            let codecs = |further: u8| {
                let named = one.legs.get(&(Medium::Audio, further));
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
                    to: to.relay,
                    ssrc: *mixes.ssrcs.entry(one.name.clone()).or_insert_with(|| random.next()),
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
        mixes.ssrcs.retain(|name, _| conference.get(name).is_some());
        let from = Endpoint::new(address, port);
        Some(Description::Mixes {
            audio: Audio {
                from,
                announcements: *announcements,
                participants,
            },
        })
    }
}

impl Room {
    /// Distributes a mixer's RTCP: each receiver gets the part about its own mix.
    pub fn share_mixes(&self, turn: &mut Turn, data: &[u8]) {
        for (name, ssrc) in &self.mixes.ssrcs {
            let Some(one) = self.conference.get(name).filter(|one| one.mixed) else {
                continue;
            };
            let to = one.mix_leg().and_then(|(further, _)| self.leg(name, (Medium::Audio, further)));
            if let Some(leg) = to
                && let Ok(reports) = for_receivers(data, |one| one == *ssrc)
                && !reports.is_empty()
            {
                turn.send_rtcp(leg, &reports);
            }
        }
    }

    /// Forwards a participant's reports about its mix to the mixer.
    pub fn report_mix(&self, turn: &mut Turn, name: &Name, data: &[u8]) {
        let Some(ssrc) = self.mixes.ssrcs.get(name) else { return };
        let items = rtcp::walk(data).map_while(Result::ok);
        let blocks: Vec<rtcp::Report> = items
            .flat_map(|item| item.reports().collect::<Vec<_>>())
            .filter(|block| block.ssrc == *ssrc)
            .collect();
        let mixer = self.leg(&Job::Mixes.participant(), (Medium::Audio, 0));
        if let (false, Some(leg)) = (blocks.is_empty(), mixer) {
            turn.send_rtcp(leg, &rtcp::receiver_report(OWN_SSRC, &blocks));
        }
    }
}

fn unnamed((payload_type, encoding): &(u8, &str)) -> Codec {
    Codec {
        payload_type: *payload_type,
        encoding: (*encoding).to_owned(),
        clock_rate: 8000,
    }
}

fn codec(one: &shunt_admin_model::Codec) -> Codec {
    Codec {
        payload_type: one.payload_type,
        encoding: one.encoding.clone(),
        clock_rate: one.clock_rate,
    }
}

impl Book {
    /// Returns the number of mixed conferences, and of participants with a mix.
    #[must_use]
    pub fn mixed_sizes(&self) -> (usize, usize) {
        let rooms = self.rooms.values().filter(|room| room.placed.contains_key(&Job::Mixes));
        rooms.fold((0, 0), |(count, sum), room| {
            let mixed = room.conference.participants.iter().filter(|one| one.mixed);
            (count + 1, sum + mixed.count())
        })
    }

    /// Sets whether participants with a mix hear an announcement of each join and leave.
    ///
    /// # Errors
    /// There is no such conference, or no mixer is configured.
    pub fn set_announcements(&mut self, turn: &mut Turn, conference: &str, wanted: bool) -> Result<(), Failure> {
        let room = self.room_mut(conference)?;
        if wanted && !room.conference.mixing {
            return Err(Failure::new(FailureKind::Invalid, "there is no mixer (conference.mixer)"));
        }
        room.announcements = wanted;
        turn.kept(&room.conference.name);
        Ok(())
    }

    /// Records who speaks, and who has muted itself. Returns the participants that have asked to leave.
    pub fn reported(&mut self, turn: &mut Turn, control: &str, listing: Listing) -> Vec<(Name, Name)> {
        let mut leaving = Vec::new();
        for reported in listing.conferences {
            let Some(room) = self.rooms.get_mut(reported.conference.as_str()) else {
                continue;
            };
            if !room.is_made_by(Job::Mixes, control, listing.epoch) {
                continue;
            }
            let Room { conference, mixes, .. } = room;
            let name = &conference.name;
            let speaker = reported.speaker.map(Name::from).filter(|one| conference.get(one).is_some());
            if speaker != mixes.speaker {
                mixes.speaker.clone_from(&speaker);
                turn.tell(name, "speaker", speaker.as_ref(), Some(Medium::Audio), |_| {});
            }
            for one in reported.participants {
                let participant: Name = one.participant.as_str().into();
                let changed = if one.muted {
                    mixes.muted.insert(participant.clone())
                } else {
                    mixes.muted.remove(&participant)
                };
                if changed {
                    let what = if one.muted { "muted" } else { "unmuted" };
                    turn.tell(name, what, Some(&participant), Some(Medium::Audio), |_| {});
                }
                if one.leave {
                    leaving.push((name.clone(), participant));
                }
            }
        }
        leaving
    }
}
