//! Mixes of audio: what a mixer is told of them, and what it reports.

use super::Conferences;
use super::mixer_client::{Audio, Codec, Description, Listing, Mix, Participant};
use super::mixers::random_ssrc;
use super::state::Room;
use shunt_admin::{Failure, FailureKind};
use shunt_conference::adaptation::{Medium, OWN_SSRC};
use shunt_conference::jobs::Job;
use shunt_conference::reports::for_receivers;
use shunt_conference::tables::Name;
use shunt_net::Endpoint;
use shunt_rtp::rtcp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Payload types of those who named none (RFC 3551 section 6).
const STATIC: [(u8, &str); 3] = [(0, "PCMU"), (8, "PCMA"), (9, "G722")];

/// The mixes of a conference that a mixer has.
#[derive(Clone, Debug, Default)]
pub struct Mixes {
    /// Of each participant's mix.
    pub ssrcs: BTreeMap<Name, u32>,
    pub speaker: Option<Name>,
    pub muted: BTreeSet<Name>,
}

impl Room {
    /// What a mixer is told of the audio, copies of which come from this port. Who has got no SSRC for its mix yet gets one. `None`: nobody gets a mix.
    pub fn describe_mixes(&mut self, address: IpAddr, port: u16) -> Option<Description> {
        let Self {
            conference,
            members,
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
            let member = members.get(&one.name);
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
                    to: to.relay,
                    ssrc: *mixes.ssrcs.entry(one.name.clone()).or_insert_with(random_ssrc),
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
    /// RTCP of the mixer: to each receiver what is of its own mix.
    pub fn share_mixes(&self, data: &[u8]) {
        for (name, ssrc) in &self.mixes.ssrcs {
            let Some(one) = self.conference.get(name).filter(|one| one.mixed) else {
                continue;
            };
            let to = one.mix_leg().and_then(|(further, _)| self.leg(name, (Medium::Audio, further)));
            if let Some((leg, state)) = to
                && let Some(source) = leg.source
                && let Ok(reports) = for_receivers(data, |one| one == *ssrc)
                && !reports.is_empty()
            {
                state.send_rtcp(source, leg.muxed, &reports);
            }
        }
    }

    /// RTCP of a participant: the mixer gets its reports on its mix.
    pub fn report_mix(&self, name: &Name, data: &[u8]) {
        let Some(ssrc) = self.mixes.ssrcs.get(name) else { return };
        let items = rtcp::walk(data).map_while(Result::ok);
        let blocks: Vec<rtcp::Report> = items
            .flat_map(|item| item.reports().collect::<Vec<_>>())
            .filter(|block| block.ssrc == *ssrc)
            .collect();
        let mixer = self.leg(&Job::Mixes.participant(), (Medium::Audio, 0));
        if let (false, Some((leg, state))) = (blocks.is_empty(), mixer)
            && let Some(source) = leg.source
        {
            state.send_rtcp(source, leg.muxed, &rtcp::receiver_report(OWN_SSRC, &blocks));
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

fn codec(one: &shunt_admin::Codec) -> Codec {
    Codec {
        payload_type: one.payload_type,
        encoding: one.encoding.clone(),
        clock_rate: one.clock_rate,
    }
}

impl Conferences {
    /// Conferences that are on a mixer, and participants who get a mix.
    #[must_use]
    pub fn mixed_sizes(&self) -> (usize, usize) {
        self.with(|state| {
            let mut sizes = (0, 0);
            for room in state.rooms.values().filter(|room| room.placed.contains_key(&Job::Mixes)) {
                sizes.0 += 1;
                sizes.1 += room.conference.participants.iter().filter(|one| one.mixed).count();
            }
            sizes
        })
    }

    /// Whether those who get a mix hear who joins and who leaves.
    ///
    /// # Errors
    /// There is no such conference, or no mixer.
    pub fn set_announcements(&self, conference: &str, wanted: bool) -> Result<(), Failure> {
        self.with(|state| {
            let room = state.room_mut(conference)?;
            if wanted && !room.conference.mixing {
                return Err(Failure::new(FailureKind::Invalid, "there is no mixer (conference.mixer)"));
            }
            room.announcements = wanted;
            let name = room.conference.name.clone();
            self.kept(state, &name);
            Ok(())
        })
    }

    /// Who speaks, who has muted itself, and who has asked to leave.
    pub async fn reported(&self, control: &str, listing: Listing) {
        let mut leaving: Vec<(Name, String)> = Vec::new();
        self.with(|state| {
            for reported in listing.conferences {
                let Some(room) = state.rooms.get_mut(reported.conference.as_str()) else {
                    continue;
                };
                let name = room.conference.name.clone();
                if !room.is_made_by(Job::Mixes, control, listing.epoch) {
                    continue;
                }
                let mixes = &mut room.mixes;
                let is_new = |one: &Name| room.conference.get(one).is_some();
                let speaker: Option<Name> = reported.speaker.map(Name::from).filter(is_new);
                if speaker != mixes.speaker {
                    mixes.speaker.clone_from(&speaker);
                    self.shared.tell(&name, "speaker", speaker.as_ref(), Some(Medium::Audio), |_| {});
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
}
