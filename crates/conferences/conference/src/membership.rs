//! The participants of a conference, their media, which receiver gets which stream, and the resulting layout of trees.

use crate::adaptation::Medium;
use crate::jobs::Job;
use crate::participant::{Leg, Participant, Shown};
use crate::payload_types::{Direction, PayloadTypesDiffer, Translation, is_without_repair};
use crate::tables::Name;
use crate::tiling::Tiling;
use crate::trees::{Layers, Layout, Participant as Planned};
use std::collections::BTreeMap;
use thiserror::Error;

/// Decode targets of layered video. A level is the number of layers sent: 0 is paused, this number is all.
pub const TARGETS: usize = 3;
/// Trees of a set: one for audio, and for each decode target one for video and one for the screen.
pub const TREES: u32 = 1 + 2 * TARGETS as u32;
/// Most SSRCs of one medium of a participant; a new one replaces the oldest.
pub const STREAMS: usize = 4;
/// The tree of audio.
const AUDIO: Layers = 1;
const MEDIA: [Medium; 3] = [Medium::Audio, Medium::Video, Medium::Screen];

impl Medium {
    /// Returns the index of a medium's first tree within a set.
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

/// A request that cannot be fulfilled.
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
    /// Participants, in the order in which they joined.
    pub participants: Vec<Participant>,
    /// The highest medium that a receiver gets of a sender, if not all.
    pub qualities: BTreeMap<Pair, Medium>,
    /// The level of each pair and medium that has ever had one. The entry stays when the level returns to everything, because numbers that
    /// were once rewritten must be rewritten until the end.
    pub levels: BTreeMap<(Pair, Medium), usize>,
    /// Recently lowered levels: the receiver stays in the trees until its numbers have switched over.
    pub held: BTreeMap<(Pair, Medium), usize>,
    /// Whether mixers are configured.
    pub mixing: bool,
    /// The wanted tiled streams.
    pub tiling: Option<Tiling>,
    /// Receivers that cannot play a sender's video as sent, with reasons. They joined while they got tiled streams instead.
    pub differing: BTreeMap<Pair, PayloadTypesDiffer>,
    /// Payload types per copy that the data plane could rewrite at that time.
    pub(crate) rewritable: usize,
    /// The owner of each SSRC of a medium: the first sender of the SSRC, as long as it sends it.
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
    /// There is no participant of this name.
    pub fn get_mut(&mut self, participant: &str) -> Result<&mut Participant, MembershipError> {
        let conference = &self.name;
        let found = self.participants.iter_mut().find(|one| &*one.name == participant);
        found.ok_or_else(|| MembershipError::NoParticipant(conference.clone(), participant.to_owned()))
    }

    /// # Errors
    /// The name is in use.
    pub fn join(&mut self, participant: Participant) -> Result<(), MembershipError> {
        if self.get(&participant.name).is_some() {
            return Err(MembershipError::Taken(self.name.clone(), participant.name));
        }
        self.participants.push(participant);
        Ok(())
    }

    /// # Errors
    /// There is no participant of this name.
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

    /// Records a packet of a new SSRC on a participant's leg. `repair`: the stream repairs others.
    ///
    /// # Errors
    /// There is no participant of this name.
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

    /// Recomputes the owner of each SSRC (the first sender keeps it), who gets a mix or tiled streams, and which leg delivers which sender.
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
                // A single leg delivers everything.
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

    /// Returns the owner of an SSRC, if it is another participant. The stream is then not forwarded, because a third participant could not
    /// tell the two streams apart. In a two-party conference both parties may use the same SSRC.
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

    /// Sets the highest medium that a receiver gets of a sender.
    ///
    /// # Errors
    /// A participant is missing.
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

    /// Sets how many layers of a sender's medium a receiver gets; 0 pauses it. With a lower level it stays in its trees until
    /// [`Conference::let_go`].
    ///
    /// # Errors
    /// A participant is missing, the level does not exist, or the sender's media cannot be rewritten.
    pub fn set_level(&mut self, sender: &Name, receiver: &Name, medium: Medium, level: usize) -> Result<(), MembershipError> {
        self.check_pair(sender, receiver)?;
        if level > TARGETS {
            return Err(MembershipError::Level(level, medium.name()));
        }
        // A pause requires no rewriting.
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

    /// Removes a receiver from the other trees after its numbers have switched over to fewer layers.
    pub fn let_go(&mut self, sender: &Name, receiver: &Name, medium: Medium) -> bool {
        self.held.remove(&((sender.clone(), receiver.clone()), medium)).is_some()
    }

    /// Returns the decode target in a receiver's row of `copy` for a sender's medium; `None` if the receiver has the sender's numbers.
    #[must_use]
    pub fn target(&self, sender: &Name, receiver: &Name, medium: Medium) -> Option<usize> {
        let level = self.levels.get(&((sender.clone(), receiver.clone()), medium))?;
        let told = self.get(sender)?.leg(medium)?.told.is_some();
        told.then(|| level.saturating_sub(1))
    }

    /// Returns whether any receiver's numbers of a sender's medium are rewritten.
    #[must_use]
    pub fn is_tracked(&self, sender: &Name, medium: Medium) -> bool {
        let told = self
            .get(sender)
            .and_then(|one| one.leg(medium))
            .is_some_and(|leg| leg.told.is_some());
        told && self.levels.keys().any(|(pair, kind)| pair.0 == *sender && *kind == medium)
    }

    /// Returns whether a stream is withheld from a receiver: repair packets are useless if their numbers differ for this receiver, or if it
    /// did not agree to them.
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

    /// Returns the rewriting of a sender's payload types for a receiver.
    #[must_use]
    pub fn payload_types(&self, sender: &Name, receiver: &Name, medium: Medium) -> Translation {
        let from = self.get(sender).and_then(|one| one.leg(medium));
        // A mixer knows the payload types of each of its sources.
        let to = self.get(receiver).filter(|one| one.mixer.is_none());
        let to = to.and_then(|one| one.leg_for(sender, medium));
        from.zip(to)
            .map(|(from, to)| Translation::between(&from.payload_types, &to.payload_types))
            .unwrap_or_default()
    }

    /// Checks whether a participant and the others can receive each other's payload types. `room`: how many the data plane rewrites in one
    /// copy. Participants on hold count as usual. A mix has the receiver's own payload type, and tiled streams go only to participants that
    /// know the codec.
    ///
    /// # Errors
    /// Names the participant that cannot, and why.
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

    /// Returns the trees of its sender that a receiver is in.
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

    /// Returns the layout to build trees for: the present participants, with the streams that they send. `port`: the data plane's port
    /// towards a participant.
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
            // A limit without effect needs no trees.
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
        // A relay entry also forwards a port's STUN and RTCP, and rewrites neither numbers nor payload types.
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

    /// Applies tiling to the targets. Receivers of tiled streams get no other video, and no one else gets tiled streams. Mixers get the
    /// video of their tiles. No receiver gets video that it cannot play. Senders that receive no video are in no video tree, because an
    /// audience has many of them.
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

/// Returns one direction of a medium between two participants.
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

/// Returns the trees of a medium.
fn trees_of(medium: Medium) -> Layers {
    match medium {
        Medium::Audio => AUDIO,
        pictures => ((1 << TARGETS) - 1) << pictures.first_tree(),
    }
}

/// Returns the layout's name of a stream.
#[must_use]
pub fn stream_name(medium: Medium, ssrc: u32) -> Name {
    format!("{}:{ssrc:08x}", medium.name()).into()
}

/// Returns medium and SSRC from a stream's name.
#[must_use]
pub fn stream_of(name: &str) -> Option<(Medium, u32)> {
    let (medium, ssrc) = name.split_once(':')?;
    let medium = MEDIA.into_iter().find(|one| one.name() == medium)?;
    Some((medium, u32::from_str_radix(ssrc, 16).ok()?))
}
