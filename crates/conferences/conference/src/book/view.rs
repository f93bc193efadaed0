//! Conferences in the form of the admin API.

use super::wanted::asked;
use super::{Book, Member, Room, leg_name};
use crate::adaptation::Medium;
use crate::ice::Credentials;
use crate::jobs::Job;
use crate::membership::{TARGETS, stream_of};
use crate::participant::Leg;
use crate::rows::Key;
use crate::tables::Name;
use shunt_admin_model::{
    Conference, ConferenceSummary, CopiedStream, Direction, Failure, PairQuality, Participant, ParticipantMedium, Quality, StreamRate,
    Subscription, Unjoined,
};
use shunt_latch::Time;
use std::collections::{BTreeMap, HashMap};

/// Returns the API's name of a quality.
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

/// Counters of all copies, from one reading.
#[derive(Debug)]
pub struct Reading {
    pub packets: HashMap<Key, u64>,
    /// When the reading started.
    pub begun: Time,
}

/// Returns the direction of a leg, as its participant sees it.
#[must_use]
pub fn direction(leg: &Leg) -> Direction {
    match (leg.sends, leg.receives) {
        (true, true) => Direction::SendRecv,
        (true, false) => Direction::SendOnly,
        (false, true) => Direction::RecvOnly,
        (false, false) => Direction::Inactive,
    }
}

fn bits(rate: f64) -> u64 {
    rate.max(0.0) as u64
}

#[must_use]
pub fn summary(book: &Book, room: &Room) -> ConferenceSummary {
    let design = book.planner.design(&room.conference.name);
    ConferenceSummary {
        conference: room.conference.name.as_bytes().into(),
        participants: room.people().count() as u64,
        design: design.map_or_else(|| "empty".to_owned(), |design| design.name().to_ascii_lowercase()),
        problem: room.problem.clone().or_else(|| book.problem.clone()),
    }
}

#[must_use]
pub fn participant(room: &Room, one: &crate::participant::Participant, member: &Member, now: Time) -> Participant {
    let media = one.legs.iter().map(|(key, leg)| {
        let rates = room.rates.get(&(one.name.clone(), key.0)).map_or(&[][..], Vec::as_slice);
        let streams = leg.ssrcs.iter().map(|ssrc| StreamRate {
            ssrc: *ssrc,
            payload_type: leg.payload_type.filter(|_| !leg.repair.contains(ssrc)),
            packets: room.packets.get(&(one.name.clone(), key.0, *ssrc)).copied().unwrap_or(0),
            bits_per_s: rates.last().copied().map(bits),
            targets_bits_per_s: rates.iter().copied().map(bits).collect(),
            repair: leg.repair.contains(ssrc),
            conflicts_with: room
                .conference
                .conflict(&one.name, key.0, *ssrc)
                .map(|owner| owner.as_bytes().into()),
        });
        ParticipantMedium {
            medium: leg_name(*key),
            address: leg.relay,
            direction: direction(leg),
            latched: leg.source,
            contested: leg.latch.is_contested(),
            transport: leg.transport.clone(),
            codecs: leg.codecs.clone(),
            layers: leg.layers.clone(),
            rtcp_mux: leg.muxed,
            shows: one.shows.get(key).map(|shown| shown.sender.as_bytes().into()),
            shows_ssrc: one.shows.get(key).and_then(|shown| shown.ssrc),
            streams: streams.collect(),
        }
    });
    Participant {
        participant: one.name.as_bytes().into(),
        call: member.call.as_ref().map(|call| call.as_bytes().into()),
        joined_us: member.joined_us,
        present: one.is_present(),
        silent_s: now.since(member.last_packet).as_secs_f64(),
        encrypted: one.encrypted,
        media: media.collect(),
        ice: member
            .ice
            .as_ref()
            .map(|Credentials { ufrag, password }| shunt_admin_model::Credentials {
                ufrag: ufrag.clone(),
                password: password.clone(),
            }),
        signalling: member.signalling.clone(),
        mixed: asked(one.wish),
        gets_mix: room.conference.is_mixed(&one.name),
        muted: room.mixes.muted.contains(&one.name),
        gets_tiles: one.tiled && room.placed.contains_key(&Job::Tiles),
    }
}

/// Returns a conference with its copies' packet counters from the latest reading.
#[must_use]
fn conference(book: &Book, room: &Room, counted: Option<&Reading>, now: Time) -> Conference {
    let members = room.people().map(|(one, member)| participant(room, one, member, now));
    Conference {
        summary: summary(book, room),
        started_us: room.started_us,
        members: members.collect(),
        mixing: room.conference.mixing,
        mixer: room.placed.get(&Job::Mixes).map(|placed| placed.control.clone()),
        speaker: room.mixes.speaker.as_ref().map(|speaker| speaker.as_bytes().into()),
        announcements: room.announcements,
        tiling: room.view_tiling(),
        unjoined: room
            .conference
            .differing
            .iter()
            .map(|((sender, receiver), differ)| Unjoined {
                sender: sender.as_bytes().into(),
                receiver: receiver.as_bytes().into(),
                reason: differ.to_string(),
            })
            .collect(),
        qualities: room
            .conference
            .qualities
            .iter()
            .map(|((sender, receiver), highest)| PairQuality {
                sender: sender.as_bytes().into(),
                receiver: receiver.as_bytes().into(),
                quality: quality(*highest),
            })
            .collect(),
        subscriptions: subscriptions(book, room, counted),
        counters_age_s: counted.map(|counted| now.since(counted.begun).as_secs_f64()),
    }
}

/// By sender, receiver and medium: the counters of each SSRC's copies.
type Copied = BTreeMap<(Name, Name, Medium), BTreeMap<u32, Option<u64>>>;

fn copied(book: &Book, room: &Room, counted: Option<&Reading>) -> Copied {
    let mut found = Copied::new();
    for (key, copy) in book.planner.copies(&room.conference.name) {
        if let Some((medium, ssrc)) = stream_of(&copy.source.stream) {
            // A receiver on hold, or without an address yet, has no row.
            if !book.planner.holds(&key) || !super::feedback::permits(&room.conference, &copy.source.sender, &copy.receiver, medium) {
                continue;
            }
            let of = (copy.source.sender.clone(), copy.receiver.clone(), medium);
            let sum = found.entry(of).or_default().entry(ssrc).or_default();
            if let Some(count) = counted.and_then(|counted| counted.packets.get(&key)) {
                *sum = Some(sum.unwrap_or(0) + count);
            }
        }
    }
    if !found.is_empty() {
        return found;
    }
    let two: Vec<_> = room.conference.participants.iter().filter(|one| one.is_present()).collect();
    let [a, b] = two[..] else { return found };
    for (from, to) in [(a, b), (b, a)] {
        let sends = from.legs.iter().filter(|(_, leg)| leg.source.is_some() && !leg.ssrcs.is_empty());
        for ((medium, _), leg) in sends {
            if to
                .leg_for(&from.name, *medium)
                .is_none_or(|leg| !leg.receives || leg.source.is_none())
            {
                continue;
            }
            let count = |ssrc: &u32| (*ssrc, room.packets.get(&(from.name.clone(), *medium, *ssrc)).copied());
            found.insert((from.name.clone(), to.name.clone(), *medium), leg.ssrcs.iter().map(count).collect());
        }
    }
    found
}

fn subscriptions(book: &Book, room: &Room, counted: Option<&Reading>) -> Vec<Subscription> {
    let subscription = |((sender, receiver, of), streams): ((Name, Name, Medium), BTreeMap<u32, Option<u64>>)| {
        let pair = (sender.clone(), receiver.clone());
        let level = room.conference.levels.get(&(pair.clone(), of)).copied().unwrap_or(TARGETS);
        let highest = room.conference.qualities.get(&pair).copied().unwrap_or(Medium::Screen);
        let packets = streams.values().try_fold(0, |sum: u64, packets| Some(sum + (*packets)?));
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
            streams: streams.into_iter().map(|(ssrc, packets)| CopiedStream { ssrc, packets }).collect(),
            estimate_bits_per_s: room.adaptation.estimate(&sender, of, &receiver).map(bits),
            reported: room.adaptation.reported(&sender, of) == Some(&receiver),
        }
    };
    copied(book, room, counted).into_iter().map(subscription).collect()
}

impl Book {
    #[must_use]
    pub fn list(&self) -> Vec<ConferenceSummary> {
        self.rooms.values().map(|room| summary(self, room)).collect()
    }

    /// Returns conferences, participants, and the number of rows in the data plane.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        let participants = self.rooms.values().map(|room| room.people().count()).sum();
        (self.rooms.len(), participants, self.planner.row_count())
    }

    /// Returns a conference, with its copies' counters.
    ///
    /// # Errors
    /// There is no such conference.
    pub fn look(&self, name: &str, counted: Option<&Reading>, now: Time) -> Result<Conference, Failure> {
        Ok(conference(self, self.room(name)?, counted, now))
    }
}
