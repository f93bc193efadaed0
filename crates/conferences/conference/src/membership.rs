//! Who takes part in a conference, with which media, and who gets what of whom; and the layout of trees that follows.

use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::participant::{Leg, Participant, Shown};
use crate::payload_types::{Direction, PayloadTypesDiffer, Translation, is_without_repair};
use crate::tables::Name;
use crate::tiling::Tiling;
use crate::trees::{Layers, Layout, Participant as Planned};
use std::collections::BTreeMap;
use thiserror::Error;

/// Decode targets of a picture with layers. A level is how many of them go: 0 is paused, this many everything.
pub const TARGETS: usize = 3;
/// Trees of a set: one of audio, and one of video and of the screen for each decode target.
pub const TREES: u32 = 1 + 2 * TARGETS as u32;
/// SSRCs of one medium of one participant: further ones push the oldest out.
pub const STREAMS: usize = 4;
/// The tree of audio.
const AUDIO: Layers = 1;
const MEDIA: [Medium; 3] = [Medium::Audio, Medium::Video, Medium::Screen];

impl Medium {
    /// Where in a set of trees a medium's begin.
    #[must_use]
    pub fn first_tree(self) -> u32 {
        match self {
            Self::Audio => 0,
            Self::Video => 1,
            Self::Screen => 1 + TARGETS as u32,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Audio => "audio",
            Self::Video => "video",
            Self::Screen => "screen",
        }
    }
}

/// What was asked for cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MembershipError {
    #[error("conference {0} has no participant {1:?}")]
    NoParticipant(Name, String),
    #[error("{1} takes part in {0} already")]
    Taken(Name, Name),
    #[error("{0} cannot receive itself")]
    Itself(Name),
    #[error("level {0} of {1} is not in 0..={TARGETS}")]
    Level(usize, &'static str),
    #[error("{0}'s media are encrypted end to end (SRTP authenticates sequence numbers), so they go on whole")]
    Encrypted(Name),
}

/// A sender and a receiver.
pub type Pair = (Name, Name);

#[derive(Clone, Debug)]
pub struct Conference {
    pub name: Name,
    /// In the order in which they joined.
    pub participants: Vec<Participant>,
    /// The highest medium that a receiver gets of a sender, where it is not all.
    pub qualities: BTreeMap<Pair, Medium>,
    /// The level of each pair and medium that has ever had one: it stays when it is everything again, because numbers that were rewritten once
    /// are rewritten to the end.
    pub levels: BTreeMap<(Pair, Medium), usize>,
    /// Levels that were higher until just now: who gets less stays in the trees until its numbers have changed over.
    pub held: BTreeMap<(Pair, Medium), usize>,
    /// Whether there are mixers.
    pub mixing: bool,
    /// The tiled streams that are wanted.
    pub tiling: Option<Tiling>,
    /// Who cannot be given a sender's video as it is sent, and why. Those have joined while tiled streams came in its place.
    pub differing: BTreeMap<Pair, PayloadTypesDiffer>,
    /// Payload types that the data plane rewrote in one copy when that was found.
    pub(crate) rewritable: usize,
    /// Whose an SSRC of a medium is: the first's who sent it, as long as it sends it.
    owners: BTreeMap<(Medium, u32), Name>,
}

impl Conference {
    #[must_use]
    pub fn new(name: Name) -> Self {
        Self {
            name,
            participants: Vec::new(),
            qualities: BTreeMap::new(),
            levels: BTreeMap::new(),
            held: BTreeMap::new(),
            mixing: false,
            tiling: None,
            differing: BTreeMap::new(),
            rewritable: 0,
            owners: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn get(&self, participant: &str) -> Option<&Participant> {
        self.participants.iter().find(|one| &*one.name == participant)
    }

    /// # Errors
    /// There is nobody of this name.
    pub fn get_mut(&mut self, participant: &str) -> Result<&mut Participant, MembershipError> {
        let conference = &self.name;
        let found = self.participants.iter_mut().find(|one| &*one.name == participant);
        found.ok_or_else(|| MembershipError::NoParticipant(conference.clone(), participant.to_owned()))
    }

    /// # Errors
    /// The name is taken.
    pub fn join(&mut self, participant: Participant) -> Result<(), MembershipError> {
        if self.get(&participant.name).is_some() {
            return Err(MembershipError::Taken(self.name.clone(), participant.name));
        }
        self.participants.push(participant);
        Ok(())
    }

    /// # Errors
    /// There is nobody of this name.
    pub fn leave(&mut self, participant: &str) -> Result<Participant, MembershipError> {
        let at = self.participants.iter().position(|one| &*one.name == participant);
        let at = at.ok_or_else(|| MembershipError::NoParticipant(self.name.clone(), participant.to_owned()))?;
        let stays = |pair: &Pair| &*pair.0 != participant && &*pair.1 != participant;
        self.qualities.retain(|pair, _| stays(pair));
        self.levels.retain(|(pair, _), _| stays(pair));
        self.held.retain(|(pair, _), _| stays(pair));
        let gone = self.participants.remove(at);
        self.settle();
        Ok(gone)
    }

    /// A packet of a new SSRC came to a participant's leg. `repair`: it repairs others.
    ///
    /// # Errors
    /// There is nobody of this name.
    pub fn learn(&mut self, participant: &str, medium: Medium, ssrc: u32, repair: bool) -> Result<(), MembershipError> {
        let one = self.get_mut(participant)?;
        let Some(leg) = one.legs.get_mut(&(medium, 0)) else { return Ok(()) };
        if !leg.ssrcs.contains(&ssrc) {
            leg.ssrcs.push(ssrc);
            if leg.ssrcs.len() > STREAMS {
                leg.ssrcs.remove(0);
            }
            if repair {
                leg.repair.push(ssrc);
            }
            let ssrcs = &leg.ssrcs;
            leg.repair.retain(|ssrc| ssrcs.contains(ssrc));
        }
        self.settle();
        Ok(())
    }

    /// Settle whose each SSRC is (who sent it first keeps it), who gets a mix or tiled streams, and which leg brings whom.
    pub fn settle(&mut self) {
        self.settle_made();
        let mut senders: BTreeMap<(Medium, u32), Vec<&Name>> = BTreeMap::new();
        for one in &self.participants {
            for ((medium, _), leg) in &one.legs {
                for ssrc in &leg.ssrcs {
                    senders.entry((*medium, *ssrc)).or_default().push(&one.name);
                }
            }
        }
        let owner = |key: &(Medium, u32), names: &[&Name]| {
            self.owners
                .get(key)
                .filter(|name| names.contains(name))
                .cloned()
                .or_else(|| names.first().map(|name| (*name).clone()))
        };
        self.owners = senders.iter().filter_map(|(key, names)| Some((*key, owner(key, names)?))).collect();
        self.settle_mixed();
        self.settle_tiled();
        self.settle_differing();
        for medium in MEDIA {
            let sending = |one: &&Participant| one.leg(medium).is_some_and(|leg| !leg.ssrcs.is_empty());
            let senders: Vec<&Participant> = self.participants.iter().filter(sending).collect();
            let shown = |one: &Participant| {
                // Who has one leg gets all by that.
                if !one.legs.keys().any(|(of, further)| *of == medium && *further > 0) {
                    return Vec::new();
                }
                let others = senders.iter().filter(|sender| sender.name != one.name);
                let theirs = others.filter(|sender| medium != Medium::Video || self.is_for(sender, one, medium));
                theirs.flat_map(|sender| sender.shown(medium)).collect::<Vec<Shown>>()
            };
            let shown: Vec<Vec<Shown>> = self.participants.iter().map(shown).collect();
            for (one, others) in self.participants.iter_mut().zip(shown) {
                one.show(medium, &others);
            }
        }
    }

    /// Whose an SSRC is, if it is somebody else's than this sender's: its stream is not carried, because a third could not tell the two apart.
    /// Two hear only each other, so theirs may be the same.
    #[must_use]
    pub fn conflict(&self, sender: &Name, medium: Medium, ssrc: u32) -> Option<&Name> {
        let many = self.participants.iter().filter(|one| one.is_present()).count() > 2;
        self.owners.get(&(medium, ssrc)).filter(|owner| many && *owner != sender)
    }

    fn check_pair(&self, sender: &Name, receiver: &Name) -> Result<(), MembershipError> {
        if sender == receiver {
            return Err(MembershipError::Itself(sender.clone()));
        }
        for name in [sender, receiver] {
            if self.get(name).is_none() {
                return Err(MembershipError::NoParticipant(self.name.clone(), name.to_string()));
            }
        }
        Ok(())
    }

    /// The highest medium that a receiver gets of a sender.
    ///
    /// # Errors
    /// They are not both here.
    pub fn set_quality(&mut self, sender: &Name, receiver: &Name, quality: Medium) -> Result<(), MembershipError> {
        self.check_pair(sender, receiver)?;
        let pair = (sender.clone(), receiver.clone());
        if quality == Medium::Screen {
            self.qualities.remove(&pair);
        } else {
            self.qualities.insert(pair, quality);
        }
        Ok(())
    }

    /// How many layers of a sender's medium a receiver gets: 0 pauses it. Who gets less stays in its trees until [`Conference::let_go`].
    ///
    /// # Errors
    /// They are not both here, there is no such level, or the sender's media cannot be rewritten.
    pub fn set_level(&mut self, sender: &Name, receiver: &Name, medium: Medium, level: usize) -> Result<(), MembershipError> {
        self.check_pair(sender, receiver)?;
        if level > TARGETS {
            return Err(MembershipError::Level(level, medium.name()));
        }
        // A pause rewrites nothing.
        if (1..TARGETS).contains(&level) && self.get(sender).is_some_and(|one| one.encrypted) {
            return Err(MembershipError::Encrypted(sender.clone()));
        }
        let key = ((sender.clone(), receiver.clone()), medium);
        let before = self.levels.get(&key).copied().unwrap_or(TARGETS);
        if level == before {
            return Ok(());
        }
        if level < before && level > 0 {
            let held = self.held.get(&key).map_or(before, |held| before.max(*held));
            self.held.insert(key.clone(), held);
        } else {
            self.held.remove(&key);
        }
        self.levels.insert(key, level);
        Ok(())
    }

    /// A receiver's numbers have changed over to fewer layers: it may leave the trees of the others.
    pub fn let_go(&mut self, sender: &Name, receiver: &Name, medium: Medium) -> bool {
        self.held.remove(&((sender.clone(), receiver.clone()), medium)).is_some()
    }

    /// The decode target that a receiver's row of `copy` names for a sender's medium; `None` where it has the sender's numbers.
    #[must_use]
    pub fn target(&self, sender: &Name, receiver: &Name, medium: Medium) -> Option<usize> {
        let level = self.levels.get(&((sender.clone(), receiver.clone()), medium))?;
        let told = self.get(sender)?.leg(medium)?.told.is_some();
        told.then(|| level.saturating_sub(1))
    }

    /// Whether numbers of a sender's medium are rewritten for anybody.
    #[must_use]
    pub fn is_tracked(&self, sender: &Name, medium: Medium) -> bool {
        let told = self
            .get(sender)
            .and_then(|one| one.leg(medium))
            .is_some_and(|leg| leg.told.is_some());
        told && self.levels.keys().any(|(pair, kind)| pair.0 == *sender && *kind == medium)
    }

    /// Whether a receiver does not get a stream: what repairs packets that have other numbers for it, or that it did not agree to, is of no use.
    #[must_use]
    pub fn is_kept_back(&self, sender: &Name, receiver: &Name, medium: Medium, ssrc: u32) -> bool {
        let Some(leg) = self.get(sender).and_then(|one| one.leg(medium)) else {
            return false;
        };
        let unknown = || {
            let to = self.get(receiver).and_then(|one| one.leg_for(sender, medium));
            to.is_some_and(|to| is_without_repair(&leg.payload_types, &to.payload_types))
        };
        leg.repair.contains(&ssrc) && (self.target(sender, receiver, medium).is_some() || unknown())
    }

    /// What of a sender's payload types has to be rewritten for a receiver.
    #[must_use]
    pub fn payload_types(&self, sender: &Name, receiver: &Name, medium: Medium) -> Translation {
        let from = self.get(sender).and_then(|one| one.leg(medium));
        // A mixer knows what each of its sources sends.
        let to = self.get(receiver).filter(|one| one.mixer.is_none());
        let to = to.and_then(|one| one.leg_for(sender, medium));
        from.zip(to)
            .map(|(from, to)| Translation::between(&from.payload_types, &to.payload_types))
            .unwrap_or_default()
    }

    /// Whether a participant and the others can be given each other's payload types. `room`: how many the data plane rewrites in one copy.
    /// Who is on hold counts as before; who gets a mix gets it in a payload type of its own, and tiled streams are only for those who know the codec.
    ///
    /// # Errors
    /// Who cannot, and why.
    pub fn check_payload_types(&self, participant: &Name, room: usize) -> Result<(), PayloadTypesDiffer> {
        let sends = |leg: &Leg| leg.sends || !leg.receives;
        let receives = |leg: &Leg| leg.receives || !leg.sends;
        let pairs = self.participants.iter().flat_map(|a| self.participants.iter().map(move |b| (a, b)));
        let people = pairs.filter(|(a, b)| a.name != b.name && a.mixer.is_none() && b.mixer.is_none());
        for (sender, receiver) in people.filter(|(a, b)| a.name == *participant || b.name == *participant) {
            for ((medium, _), to) in receiver.legs.iter().filter(|(_, leg)| receives(leg)) {
                let Some(from) = sender.leg(*medium).filter(|leg| sends(leg)) else {
                    continue;
                };
                let is_made = *medium == Medium::Audio && receiver.mixed || *medium == Medium::Video && receiver.tiled;
                if is_made || *medium == Medium::Video && self.differs(sender, receiver) {
                    continue;
                }
                direction(sender, receiver, *medium, from, to).check(room)?;
            }
        }
        Ok(())
    }

    /// The trees of its sender that a receiver is in.
    fn trees(&self, pair: &Pair) -> Layers {
        let highest = self.qualities.get(pair).copied().unwrap_or(Medium::Screen);
        let media = [Medium::Video, Medium::Screen].into_iter().filter(|medium| *medium <= highest);
        let mask = media.map(|medium| {
            let key = (pair.clone(), medium);
            let level = self
                .levels
                .get(&key)
                .copied()
                .unwrap_or(TARGETS)
                .max(self.held.get(&key).copied().unwrap_or(0));
            ((1 << level) - 1) << medium.first_tree()
        });
        mask.fold(1, |all, one: Layers| all | one)
    }

    /// What trees are laid out for: those who are present, with the streams that they send. `port`: by which port of the data plane a
    /// participant is reached.
    #[must_use]
    pub fn layout(&self, port: impl Fn(&Participant) -> Option<u32>) -> Layout {
        let here: Vec<&Participant> = self.participants.iter().filter(|one| one.is_present()).collect();
        let mut layout = Layout::empty(self.name.clone());
        let mut sent: BTreeMap<Name, Layers> = BTreeMap::new();
        for one in &here {
            let sending = one
                .legs
                .iter()
                .filter(|((_, further), leg)| *further == 0 && leg.source.is_some() && !leg.ssrcs.is_empty());
            let (mut streams, mut mask) = (Vec::new(), 0);
            for ((medium, _), leg) in sending {
                let carried = leg.ssrcs.iter().filter(|ssrc| self.conflict(&one.name, *medium, **ssrc).is_none());
                streams.extend(carried.map(|ssrc| (stream_name(*medium, *ssrc), *medium != Medium::Audio)));
                mask |= (if leg.told.is_some() { (1 << TARGETS) - 1 } else { 1 }) << medium.first_tree();
            }
            sent.insert(one.name.clone(), mask);
            layout.participants.push(Planned {
                name: one.name.clone(),
                port: port(one),
                streams,
            });
        }
        for pair in self.qualities.keys().chain(self.levels.keys().map(|(pair, _)| pair)) {
            let wanted = self.trees(pair);
            // A limit that holds nothing back needs no trees.
            if let (Some(mask), true) = (sent.get(&pair.0), sent.contains_key(&pair.1))
                && mask & !wanted != 0
            {
                layout.targets.insert(pair.clone(), wanted);
            }
        }
        self.tile(&here, &sent, &mut layout.targets);
        let muxed: Vec<bool> = here.iter().flat_map(|one| one.legs.values().map(|leg| leg.muxed)).collect();
        let alike = muxed.windows(2).all(|pair| pair[0] == pair[1]);
        let tracked = here
            .iter()
            .any(|one| MEDIA.iter().any(|medium| self.is_tracked(&one.name, *medium)));
        // A relay entry takes a port's STUN and RTCP along, and rewrites neither numbers nor payload types.
        layout.relayed = !here.iter().any(|one| one.ice) && alike && !tracked && !self.translates(&here);
        for (mixer, job) in here.iter().filter_map(|one| Some((one, one.mixer?))) {
            layout.limits.insert(mixer.name.clone(), trees_of(job.medium()));
        }
        if here.iter().any(|one| one.mixer == Some(Job::Mixes)) {
            let mixed = here.iter().filter(|one| one.mixed);
            layout.limits.extend(mixed.map(|one| (one.name.clone(), !AUDIO)));
        }
        if !layout.targets.is_empty() || !layout.limits.is_empty() {
            layout.sent = sent;
        }
        layout
    }

    /// Who gets tiled streams gets no other video, nobody else gets those, mixers get what they have tiles of, and nobody gets what it cannot
    /// play. Who only sends video is in no tree of it: an audience has many of these.
    fn tile(&self, here: &[&Participant], sent: &BTreeMap<Name, Layers>, targets: &mut BTreeMap<Pair, Layers>) {
        let makes_video = |one: &&Participant| one.mixer.is_some_and(|job| job.medium() == Medium::Video);
        if self.tiling.is_none() && !here.iter().any(makes_video) && self.differing.is_empty() {
            return;
        }
        let video = trees_of(Medium::Video);
        for sender in here.iter().filter(|one| sent.get(&one.name).is_some_and(|mask| mask & video != 0)) {
            let receivers = here.iter().filter(|one| one.mixer != Some(Job::Mixes) && one.name != sender.name);
            for receiver in receivers {
                if !receiver.receives(Medium::Video) || !self.is_for(sender, receiver, Medium::Video) {
                    let pair = (sender.name.clone(), receiver.name.clone());
                    let wanted = self.trees(&pair) & !video;
                    targets.insert(pair, wanted);
                }
            }
        }
    }

    fn translates(&self, here: &[&Participant]) -> bool {
        let pairs = here
            .iter()
            .flat_map(|a| here.iter().filter(move |b| a.name != b.name).map(move |b| (a, b)));
        pairs.into_iter().any(|(a, b)| {
            MEDIA
                .iter()
                .any(|medium| !self.payload_types(&a.name, &b.name, *medium).rewritten.is_empty())
        })
    }
}

/// What one is to be given of another.
pub(crate) fn direction<'a>(
    sender: &'a Participant,
    receiver: &'a Participant,
    medium: Medium,
    from: &'a Leg,
    to: &'a Leg,
) -> Direction<'a> {
    Direction {
        medium: medium.name(),
        sender: &sender.name,
        receiver: &receiver.name,
        from: &from.payload_types,
        to: &to.payload_types,
        encrypted: sender.encrypted,
    }
}

/// The trees of a medium.
fn trees_of(medium: Medium) -> Layers {
    match medium {
        Medium::Audio => AUDIO,
        pictures => ((1 << TARGETS) - 1) << pictures.first_tree(),
    }
}

/// How layouts call a stream.
#[must_use]
pub fn stream_name(medium: Medium, ssrc: u32) -> Name {
    format!("{}:{ssrc:08x}", medium.name()).into()
}

/// Medium and SSRC of a stream's name.
#[must_use]
pub fn stream_of(name: &str) -> Option<(Medium, u32)> {
    let (medium, ssrc) = name.split_once(':')?;
    let medium = MEDIA.into_iter().find(|one| one.name() == medium)?;
    Some((medium, u32::from_str_radix(ssrc, 16).ok()?))
}
