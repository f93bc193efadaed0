//! Conferences as the admin API shows them.

use super::ice::Credentials;
use super::leg_name;
use super::state::{Member, Room, State};
use crate::events::socket;
use shunt_admin::{Conference, ConferenceSummary, Direction, Participant, ParticipantMedium, Quality, StreamRate, Subscription};
use shunt_conference::adaptation::Medium;
use shunt_conference::membership::{TARGETS, stream_of};
use shunt_conference::rows::Key;
use shunt_conference::tables::Name;
use shunt_conference::trees::Design;
use std::collections::{BTreeMap, HashMap};

/// A quality as the API names it.
#[must_use]
pub fn quality(medium: Medium) -> Quality {
    match medium {
        Medium::Audio => Quality::Audio,
        Medium::Video => Quality::Video,
        Medium::Screen => Quality::Screen,
    }
}

#[must_use]
pub fn medium(quality: Quality) -> Medium {
    match quality {
        Quality::Audio => Medium::Audio,
        Quality::Video => Medium::Video,
        Quality::Screen => Medium::Screen,
    }
}

fn bits(rate: f64) -> u64 {
    rate.max(0.0) as u64
}

#[must_use]
pub fn summary(state: &State, room: &Room) -> ConferenceSummary {
    let design = state.planner.design(&room.conference.name).unwrap_or(Design::TwoParty);
    ConferenceSummary {
        conference: room.conference.name.as_bytes().into(),
        participants: room.conference.participants.len() as u64,
        design: design.name().to_ascii_lowercase(),
        problem: room.problem.clone().or_else(|| state.problem.clone()),
    }
}

#[must_use]
pub fn participant(room: &Room, one: &shunt_conference::participant::Participant, member: &Member) -> Participant {
    let media = one.legs.iter().map(|(key, leg)| {
        let rates = room.rates.get(&(one.name.clone(), key.0)).map_or(&[][..], Vec::as_slice);
        let streams = leg.ssrcs.iter().map(|ssrc| StreamRate {
            ssrc: *ssrc,
            payload_type: member
                .legs
                .get(key)
                .and_then(|state| state.payload_type)
                .filter(|_| !leg.repair.contains(ssrc)),
            packets: room.packets.get(&(one.name.clone(), key.0, *ssrc)).copied().unwrap_or(0),
            bits_per_s: rates.last().copied().map(bits),
            targets_bits_per_s: rates.iter().copied().map(bits).collect(),
        });
        ParticipantMedium {
            medium: leg_name(*key),
            address: socket(leg.relay),
            direction: match (leg.sends, leg.receives) {
                (true, true) => Direction::SendRecv,
                (true, false) => Direction::SendOnly,
                (false, true) => Direction::RecvOnly,
                (false, false) => Direction::Inactive,
            },
            latched: leg.source.map(socket),
            streams: streams.collect(),
        }
    });
    Participant {
        participant: one.name.as_bytes().into(),
        call: member.call.as_ref().map(|call| call.as_bytes().into()),
        joined_us: member.joined_us,
        media: media.collect(),
        ice: member.ice.as_ref().map(|Credentials { ufrag, password }| shunt_admin::Credentials {
            ufrag: ufrag.clone(),
            password: password.clone(),
        }),
    }
}

/// A conference with the packets that its copies have counted.
#[must_use]
pub fn conference(state: &State, room: &Room, counted: &HashMap<Key, u64>) -> Conference {
    let members = room
        .conference
        .participants
        .iter()
        .filter_map(|one| Some(participant(room, one, room.members.get(&one.name)?)));
    Conference {
        summary: summary(state, room),
        started_us: room.started_us,
        members: members.collect(),
        subscriptions: subscriptions(state, room, counted),
    }
}

fn subscriptions(state: &State, room: &Room, counted: &HashMap<Key, u64>) -> Vec<Subscription> {
    let mut packets: BTreeMap<(Name, Name, Medium), Option<u64>> = BTreeMap::new();
    for (key, copy) in state.planner.copies(&room.conference.name) {
        if let Some((medium, _)) = stream_of(&copy.source.stream) {
            let of = (copy.source.sender.clone(), copy.receiver.clone(), medium);
            let sum = packets.entry(of).or_default();
            if let Some(count) = counted.get(&key) {
                *sum = Some(sum.unwrap_or(0) + count);
            }
        }
    }
    let two: Vec<_> = room.conference.participants.iter().filter(|one| one.is_present()).collect();
    if let ([a, b], true) = (&two[..], packets.is_empty()) {
        for (from, to) in [(a, b), (b, a)] {
            let legs = from.legs.iter().filter(|(_, leg)| leg.source.is_some() && !leg.ssrcs.is_empty());
            for ((medium, _), leg) in legs {
                let relayed = leg
                    .ssrcs
                    .iter()
                    .filter_map(|ssrc| room.packets.get(&(from.name.clone(), *medium, *ssrc)))
                    .sum();
                packets.insert((from.name.clone(), to.name.clone(), *medium), Some(relayed));
            }
        }
    }
    let subscription = |((sender, receiver, of), packets): ((Name, Name, Medium), Option<u64>)| {
        let pair = (sender.clone(), receiver.clone());
        let level = room.conference.levels.get(&(pair.clone(), of)).copied().unwrap_or(TARGETS);
        let highest = room.conference.qualities.get(&pair).copied().unwrap_or(Medium::Screen);
        Subscription {
            sender: sender.as_bytes().into(),
            receiver: receiver.as_bytes().into(),
            medium: of.name().to_owned(),
            quality: quality(highest),
            target: level.checked_sub(1).and_then(|target| u8::try_from(target).ok()),
            decided_by: match room.decided.get(&pair) {
                Some(decided) if decided.external => "external",
                Some(_) => "operator",
                None => "policy",
            }
            .to_owned(),
            packets,
        }
    };
    packets.into_iter().map(subscription).collect()
}
