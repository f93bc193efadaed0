//! Selects the participants that get a mix of all audio from a mixer, instead of copies of each sender's audio.
//!
//! In the data plane a mixer is a receive-only participant that gets copies of all audio. One relay entry for each receiver carries its
//! mix, from the mixer to the relay address that the receiver sends to.

use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::membership::Conference;
use crate::participant::{Leg, Participant};
use crate::payload_types::{Direction, PayloadType};
use shunt_net::FiveTuple;

/// Codecs that a mixer decodes and encodes.
const CODECS: [&str; 4] = ["opus/48000/2", "g722/8000", "pcma/8000", "pcmu/8000"];

/// Whether a participant is to get a mix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mixed {
    /// A participant gets a mix if it plays only one stream, or cannot play another's codec.
    #[default]
    Auto,
    Yes,
    No,
}

/// Returns whether mixers support the codec.
fn is_mixable(one: &PayloadType) -> bool {
    let plain = one.codec.strip_suffix("/1").unwrap_or(&one.codec);
    CODECS.iter().any(|codec| codec.eq_ignore_ascii_case(plain))
}

impl Participant {
    /// Returns the leg and address for a mix: the first receiving audio leg, because a browser has one more leg that only sends.
    #[must_use]
    pub fn mix_leg(&self) -> Option<(u8, &Leg)> {
        let audio = || self.legs.iter().filter(|((medium, _), _)| *medium == Medium::Audio);
        let found = audio().find(|(_, leg)| leg.receives).or_else(|| audio().next());
        found.map(|((_, further), leg)| (*further, leg))
    }

    /// Returns the payload type of a participant's mix; `None`: it cannot receive a mix.
    #[must_use]
    pub fn mix(&self) -> Option<&PayloadType> {
        let (_, leg) = self.mix_leg().filter(|_| !self.encrypted && self.mixer.is_none())?;
        leg.payload_types.iter().find(|one| is_mixable(one))
    }

    /// Returns whether signalling suggests a telephone: one audio description, and no connectivity checks.
    fn plays_one(&self) -> bool {
        !self.ice && !self.legs.keys().any(|(medium, further)| *medium == Medium::Audio && *further > 0)
    }
}

impl Conference {
    /// Returns the mixer of a job.
    #[must_use]
    pub fn mixer(&self, job: Job) -> Option<&Participant> {
        self.participants.iter().find(|one| one.mixer == Some(job))
    }

    /// Returns whether a participant gets a mix instead of copies of audio. Without a mixer it gets copies.
    #[must_use]
    pub fn is_mixed(&self, participant: &str) -> bool {
        self.mixer(Job::Mixes).is_some() && self.get(participant).is_some_and(|one| one.mixed)
    }

    /// Recomputes which participants are to get a mix.
    pub(crate) fn settle_mixed(&mut self) {
        let mixed: Vec<bool> = self.participants.iter().map(|one| self.wants_mix(one)).collect();
        for (one, mixed) in self.participants.iter_mut().zip(mixed) {
            one.mixed = mixed;
        }
    }

    fn wants_mix(&self, one: &Participant) -> bool {
        let can = self.mixing && one.mix().is_some();
        match one.wish {
            Mixed::No => false,
            Mixed::Yes => can,
            Mixed::Auto => can && (one.plays_one() || !self.plays_all(one)),
        }
    }

    /// Returns whether a participant supports the codecs of all others.
    fn plays_all(&self, one: &Participant) -> bool {
        let Some(to) = one.leg(Medium::Audio) else { return true };
        let others = self.participants.iter().filter(|other| other.name != one.name);
        let mut senders = others.filter_map(|other| Some((other, other.leg(Medium::Audio).filter(|leg| leg.sends)?)));
        senders.all(|(sender, from)| {
            let direction = Direction {
                medium: Medium::Audio.name(),
                sender: &sender.name,
                receiver: &one.name,
                from: &from.payload_types,
                to: &to.payload_types,
                encrypted: false,
            };
            direction.check(usize::MAX).is_ok()
        })
    }

    /// Returns the relay entries of mixes: 5-tuples from the mixer, and 5-tuples towards the receivers.
    pub fn mixes(&self) -> impl Iterator<Item = (FiveTuple, FiveTuple)> {
        let from = self.mixer(Job::Mixes).and_then(|mixer| mixer.leg(Medium::Audio)?.source);
        let receivers = self.participants.iter().filter(|one| one.mixed);
        receivers.filter_map(move |one| {
            let (_, leg) = one.mix_leg().filter(|(_, leg)| leg.receives)?;
            Some((FiveTuple::new(from?, leg.relay), FiveTuple::new(leg.relay, leg.source?)))
        })
    }
}
