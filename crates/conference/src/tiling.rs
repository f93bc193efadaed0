//! Who gets the pictures of all in few streams, tiled by a mixer, in place of a stream for each sender.
//!
//! To the data plane that mixer is a participant: it gets copies of everybody's video, and what it makes is copied to those that it is for.

use crate::adaptation::Medium;
use crate::membership::{Conference, Pair, direction};
use crate::participant::{Leg, Participant};
use crate::payload_types::{PayloadType, PayloadTypesDiffer, translate};
use crate::tables::Name;
use std::collections::{BTreeMap, BTreeSet};

/// What is made, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Of the tiled streams.
    pub payload_type: PayloadType,
    /// `None`: everybody who can play them.
    pub receivers: Option<BTreeSet<Name>>,
}

impl Tiling {
    /// Whether a participant can be given tiled streams: it gets video, knows the codec or has named none, and its media are not SRTP.
    ///
    /// # Errors
    /// Why it cannot.
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

/// Why a receiver that gets no tiled streams cannot be given a sender's video.
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
    /// The stream of video that a tile can be made of: the latest one that is no repair.
    #[must_use]
    pub fn picture(&self) -> Option<u32> {
        self.ssrcs.iter().rev().find(|ssrc| !self.repair.contains(ssrc)).copied()
    }
}

impl Conference {
    /// Settle who gets tiled streams. While no mixer makes them, they get no video.
    pub(crate) fn settle_tiled(&mut self) {
        for one in &mut self.participants {
            let tiling = self.tiling.as_ref().filter(|_| one.mixer.is_none());
            one.tiled = tiling.is_some_and(|tiling| {
                let meant = tiling.receivers.as_ref().is_none_or(|names| names.contains(&one.name));
                meant && tiling.serves(one).is_ok()
            });
        }
    }

    /// Tiled streams are no longer what they were: find out who can be given whose video as it is sent. `room`: payload types that the data plane
    /// rewrites in one copy.
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

    /// What differed may do so no longer, since somebody has other payload types or is gone.
    pub(crate) fn settle_differing(&mut self) {
        let mut differing = std::mem::take(&mut self.differing);
        differing.retain(|(sender, receiver), _| {
            let pair = self.get(sender).zip(self.get(receiver));
            pair.is_some_and(|(sender, receiver)| video_differs(sender, receiver, self.rewritable).is_some())
        });
        self.differing = differing;
    }

    /// Whether a receiver cannot be given a sender's video, and has been let in all the same.
    #[must_use]
    pub fn differs(&self, sender: &Participant, receiver: &Participant) -> bool {
        self.differing.contains_key(&(sender.name.clone(), receiver.name.clone()))
    }

    /// Whether a sender's medium is for a receiver, as far as it depends on mixers: who gets a mix or tiled streams gets nothing else of that medium.
    #[must_use]
    pub fn is_for(&self, sender: &Participant, receiver: &Participant, medium: Medium) -> bool {
        match (sender.mixer, receiver.mixer) {
            (Some(_), Some(_)) => false,
            (Some(made), None) => made == Medium::Video && medium == made && receiver.tiled,
            (None, Some(made)) => medium == made,
            (None, None) => match medium {
                Medium::Audio => !(receiver.mixed && self.mixer(Medium::Audio).is_some()),
                Medium::Video => !receiver.tiled && !self.differs(sender, receiver),
                Medium::Screen => true,
            },
        }
    }
}
