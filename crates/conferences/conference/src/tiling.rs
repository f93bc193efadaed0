//! Selects the participants that get few streams with all senders' video, tiled by a mixer, instead of one stream per sender.
//!
//! In the data plane that mixer is a participant. It gets copies of the video for its tiles, and its output is copied to its receivers.
//! These are the participants or, for a column, the mixer that joins the column with others ([`crate::tiles`]).

use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::membership::{Conference, Pair, direction};
use crate::participant::{Leg, Participant};
use crate::payload_types::{PayloadType, PayloadTypesDiffer, translate};
use crate::tables::Name;
use crate::tiles::Tiles;
use std::collections::{BTreeMap, BTreeSet};

/// Settings of tiled streams, and their receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Payload type of the tiled streams.
    pub payload_type: PayloadType,
    /// `None`: every participant that can play them.
    pub receivers: Option<BTreeSet<Name>>,
    pub tiles: Tiles,
}

impl Tiling {
    /// Checks whether a participant can get tiled streams: it receives video, knows the codec or has named none, and does not use SRTP.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn serves(&self, one: &Participant) -> Result<(), &'static str> {
        let mut video = one
            .legs
            .iter()
            .filter(|((medium, _), leg)| *medium == Medium::Video && leg.receives);
        let Some((_, leg)) = video.next() else {
            return Err("it gets no video");
        };
        if one.encrypted {
            return Err("its media are encrypted");
        }
        let own = std::slice::from_ref(&self.payload_type);
        if leg.payload_types.is_empty() || translate(&self.payload_type, own, &leg.payload_types).is_some() {
            Ok(())
        } else {
            Err("it has not named the codec")
        }
    }
}

/// Returns why a receiver without tiled streams cannot play a sender's video.
fn video_differs(sender: &Participant, receiver: &Participant, room: usize) -> Option<PayloadTypesDiffer> {
    if sender.mixer.is_some() || receiver.mixer.is_some() || receiver.tiled {
        return None;
    }
    let from = sender.leg(Medium::Video).filter(|leg| leg.sends)?;
    let mut video = receiver
        .legs
        .iter()
        .filter(|((medium, _), leg)| *medium == Medium::Video && leg.receives);
    video.find_map(|(_, to)| direction(sender, receiver, Medium::Video, from, to).check(room).err())
}

impl Leg {
    /// Returns the video stream to tile: the latest one that is not a repair stream.
    #[must_use]
    pub fn picture(&self) -> Option<u32> {
        self.ssrcs.iter().rev().find(|ssrc| !self.repair.contains(ssrc)).copied()
    }
}

impl Conference {
    /// Recomputes what video mixers send.
    pub(crate) fn settle_made(&mut self) {
        let Some(tiling) = &self.tiling else { return };
        for one in &mut self.participants {
            let job = one.mixer.filter(|job| job.medium() == Medium::Video);
            if let (Some(job), Some(leg)) = (job, one.legs.get_mut(&(Medium::Video, 0))) {
                leg.ssrcs = tiling.tiles.ssrcs(job);
                leg.payload_types = vec![tiling.payload_type.clone()];
            }
        }
    }

    /// Recomputes which job tiles which sender, and who gets tiled streams. While no mixer makes them, their receivers get no video.
    pub(crate) fn settle_tiled(&mut self) {
        let tiling = self.tiling.as_ref();
        let sources: BTreeMap<&Name, Job> = tiling.map(|tiling| tiling.tiles.sources().collect()).unwrap_or_default();
        for one in &mut self.participants {
            let tiling = tiling.filter(|_| one.mixer.is_none());
            one.goes_into = match one.mixer {
                None => sources.get(&one.name).copied(),
                Some(Job::Column(_)) => Some(Job::Tiles),
                Some(Job::Mixes | Job::Tiles) => None,
            };
            one.tiled = tiling.is_some_and(|tiling| {
                let meant = tiling.receivers.as_ref().is_none_or(|names| names.contains(&one.name));
                meant && tiling.serves(one).is_ok()
            });
        }
    }

    /// Recomputes who can play each sender's video directly, after the tiled streams have changed. `room`: payload types that the data
    /// plane rewrites in one copy.
    pub fn check_video(&mut self, room: usize) {
        let mut found: BTreeMap<Pair, PayloadTypesDiffer> = BTreeMap::new();
        for sender in &self.participants {
            for receiver in self.participants.iter().filter(|one| one.name != sender.name) {
                if let Some(differ) = video_differs(sender, receiver, room) {
                    found.insert((sender.name.clone(), receiver.name.clone()), differ);
                }
            }
        }
        (self.differing, self.rewritable) = (found, room);
        self.settle();
    }

    /// Removes entries that no longer apply, because a participant has changed its payload types or left.
    pub(crate) fn settle_differing(&mut self) {
        let mut differing = std::mem::take(&mut self.differing);
        differing.retain(|(sender, receiver), _| {
            let pair = self.get(sender).zip(self.get(receiver));
            pair.is_some_and(|(sender, receiver)| video_differs(sender, receiver, self.rewritable).is_some())
        });
        self.differing = differing;
    }

    /// Returns whether a receiver cannot play a sender's video but was admitted anyway.
    #[must_use]
    pub fn differs(&self, sender: &Participant, receiver: &Participant) -> bool {
        !self.differing.is_empty() && self.differing.contains_key(&(sender.name.clone(), receiver.name.clone()))
    }

    /// Returns whether a receiver gets a sender's medium, as far as mixers matter: with a mix or tiled streams it gets nothing else of that
    /// medium.
    #[must_use]
    pub fn is_for(&self, sender: &Participant, receiver: &Participant, medium: Medium) -> bool {
        match (sender.mixer, receiver.mixer) {
            (None, Some(Job::Mixes)) => medium == Medium::Audio,
            (_, Some(Job::Mixes)) => false,
            (_, Some(job)) => medium == Medium::Video && sender.goes_into == Some(job),
            (Some(_), None) => sender.mixer == Some(Job::Tiles) && medium == Medium::Video && receiver.tiled,
            (None, None) => match medium {
                Medium::Audio => !(receiver.mixed && self.mixer(Job::Mixes).is_some()),
                Medium::Video => !receiver.tiled && !self.differs(sender, receiver),
                Medium::Screen => true,
            },
        }
    }
}
