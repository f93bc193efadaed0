//! Who gets one stream of audio, made of all others by a mixer, in place of copies of each sender's.
//!
//! To the data plane a mixer is a participant that only receives: copies of everybody's audio. What it makes goes by one relay entry to each
//! participant that it is for, from the mixer to the relay address that the participant sends to.

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
    /// Who plays one stream, and who cannot play what somebody sends.
    #[default]
    Auto,
    Yes,
    No,
}

/// Whether a mixer knows the codec.
fn is_mixable(one: &PayloadType) -> bool {
    let plain = one.codec.strip_suffix("/1").unwrap_or(&one.codec);
    CODECS.iter().any(|codec| codec.eq_ignore_ascii_case(plain))
}

impl Participant {
    /// Where a mix for it goes, and which of its legs for audio that is: the first that receives, since a browser has one more that only sends.
    #[must_use]
    pub fn mix_leg(&self) -> Option<(u8, &Leg)> {
        let audio = || self.legs.iter().filter(|((medium, _), _)| *medium == Medium::Audio);
        let found = audio().find(|(_, leg)| leg.receives).or_else(|| audio().next());
        found.map(|((_, further), leg)| (*further, leg))
    }

    /// The payload type that a mix for it has; `None`: none can be made.
    #[must_use]
    pub fn mix(&self) -> Option<&PayloadType> {
        let (_, leg) = self.mix_leg().filter(|_| !self.encrypted && self.mixer.is_none())?;
        leg.payload_types.iter().find(|one| is_mixable(one))
    }

    /// Whether its signalling shows a telephone: one description of audio, and no connectivity checks.
    fn plays_one(&self) -> bool {
        !self.ice && !self.legs.keys().any(|(medium, further)| *medium == Medium::Audio && *further > 0)
    }
}

impl Conference {
    /// The mixer that does a job for it.
    #[must_use]
    pub fn mixer(&self, job: Job) -> Option<&Participant> {
        self.participants.iter().find(|one| one.mixer == Some(job))
    }

    /// Whether a participant gets a mix, and no copies of audio. While no mixer serves the conference it gets copies.
    #[must_use]
    pub fn is_mixed(&self, participant: &str) -> bool {
        self.mixer(Job::Mixes).is_some() && self.get(participant).is_some_and(|one| one.mixed)
    }

    /// Settle who is to get a mix.
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

    /// Whether a participant knows the codecs of all others.
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

    /// The relay entries that bring mixes: 5-tuples as they come from the mixer, and as they go on.
    pub fn mixes(&self) -> impl Iterator<Item = (FiveTuple, FiveTuple)> {
        let from = self.mixer(Job::Mixes).and_then(|mixer| mixer.leg(Medium::Audio)?.source);
        let receivers = self.participants.iter().filter(|one| one.mixed);
        receivers.filter_map(move |one| {
            let (_, leg) = one.mix_leg().filter(|(_, leg)| leg.receives)?;
            Some((FiveTuple::new(from?, leg.relay), FiveTuple::new(leg.relay, leg.source?)))
        })
    }
}
