//! One conference: what everybody sends, decoded once, and for each receiver the sum of all others.

use crate::FRAME;
use crate::codec::{Codec, CodecError, Encoder};
use crate::jitter::Counts;
use crate::keys::Command;
use crate::output::{Contribution, Output};
use crate::source::Source;
use shunt_rtp::{Header, MediaError};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub use crate::source::Format;

pub type Name = Arc<str>;

/// Another speaker is louder by that much, for that many frames, until it is the one (dB; 300 ms).
const LOUDER: f32 = 3.0;
const FOR: u32 = 15;
/// Sounds that wait; of more than that the latest are left out.
const SOUNDS: usize = 4;
/// What is heard where nobody speaks, so that a line does not seem dead: the most that a sample has (about -66 dBov).
const NOISE: i16 = 28;

/// A participant as signalling knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The streams that it sends.
    pub ssrcs: Vec<u32>,
    /// Its payload types.
    pub formats: Vec<(u8, Format)>,
    /// The id of RFC 6464's header extension.
    pub level_extension: Option<u8>,
    pub muted: bool,
    /// What it gets; `None`: nothing of the mixer.
    pub mix: Option<Mix>,
}

/// The stream that a receiver gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    pub ssrc: u32,
    pub codec: Codec,
    pub payload_type: u8,
    /// The id of RFC 6465's header extension.
    pub levels_extension: Option<u8>,
}

struct Member {
    source: Source,
    output: Option<Output>,
    /// Where it hears others than everybody else does: what only it gets.
    own: Option<Encoder>,
    /// The mute of the last description: a later one by keys stays until signalling says something new.
    described_muted: bool,
}

/// What is known of a participant's audio.
#[derive(Clone, Debug)]
pub struct Report {
    pub name: Name,
    pub speaks: bool,
    /// dBov.
    pub level: f32,
    pub muted: bool,
    pub counts: Counts,
    pub unknown: u64,
    /// Added by the jitter buffer, µs.
    pub added: i64,
}

/// What a room has done in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub decoded: u64,
    pub encoded: u64,
    pub sent: u64,
}

#[derive(Default)]
pub struct Room {
    members: BTreeMap<Name, Member>,
    by_ssrc: HashMap<u32, Name>,
    /// The encoders of those who hear everybody that speaks.
    common: BTreeMap<Codec, Encoder>,
    speaker: Option<Name>,
    challenger: Option<(Name, u32)>,
    noise: u32,
    /// Sounds that all receivers hear besides, one after the other, and how far the first has been played.
    sounds: VecDeque<Arc<[i16]>>,
    played: usize,
    /// Packets of streams that are nobody's.
    pub strangers: u64,
}

impl Room {
    /// Who takes part from now on. Who stays goes on as it was.
    pub fn describe(&mut self, described: &BTreeMap<Name, Described>) {
        self.members.retain(|name, _| described.contains_key(name));
        self.by_ssrc.clear();
        for (name, one) in described {
            let member = self.members.entry(name.clone()).or_insert_with(|| Member {
                source: Source::default(),
                output: None,
                own: None,
                described_muted: false,
            });
            member.source.formats.clone_from(&one.formats);
            member.source.level_extension = one.level_extension;
            if one.muted != member.described_muted {
                member.described_muted = one.muted;
                member.source.muted = one.muted;
            }
            let same = |output: &Output, mix: &Mix| {
                (output.ssrc, output.codec, output.payload_type, output.levels_extension)
                    == (mix.ssrc, mix.codec, mix.payload_type, mix.levels_extension)
            };
            let output = member.output.take();
            member.output = one.mix.as_ref().map(|mix| {
                let kept = output.filter(|output| same(output, mix));
                kept.unwrap_or_else(|| Output::new(mix.ssrc, mix.codec, mix.payload_type, mix.levels_extension))
            });
            member.own = member.own.take().filter(|_| member.output.is_some());
            self.by_ssrc.extend(one.ssrcs.iter().map(|ssrc| (*ssrc, name.clone())));
        }
    }

    /// A packet came at `now` (µs); what its sender asks for by keys.
    ///
    /// # Errors
    /// It is no RTP.
    pub fn packet(&mut self, now: u64, packet: &[u8]) -> Result<Option<(Name, Command)>, MediaError> {
        let header = Header::parse(packet)?;
        let Some(name) = self.by_ssrc.get(&header.ssrc) else {
            self.strangers += 1;
            return Ok(None);
        };
        let Some(member) = self.members.get_mut(name) else {
            return Ok(None);
        };
        let command = member.source.packet(now, &header);
        if command == Some(Command::Mute) {
            member.source.muted = !member.source.muted;
        }
        Ok(command.map(|command| (name.clone(), command)))
    }

    /// Play a sound of 16,000 Hz to all receivers, after those that are played.
    pub fn play(&mut self, sound: Arc<[i16]>) {
        if self.sounds.len() < SOUNDS {
            self.sounds.push_back(sound);
        }
    }

    /// Add the next frame of what is played; whether something is.
    fn add_sound(&mut self, sum: &mut [i32; FRAME]) -> bool {
        let Some(sound) = self.sounds.front() else { return false };
        let rest = sound.get(self.played..).unwrap_or_default();
        sum.iter_mut().zip(rest).for_each(|(sum, sample)| *sum += i32::from(*sample));
        self.played += FRAME;
        if self.played >= sound.len() {
            self.sounds.pop_front();
            self.played = 0;
        }
        true
    }

    /// Who speaks, of several the one that has been loudest for a while.
    #[must_use]
    pub fn speaker(&self) -> Option<&Name> {
        self.speaker.as_ref()
    }

    /// Who takes part.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.members.keys()
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    #[must_use]
    pub fn is_receiver(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|member| member.output.is_some())
    }

    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (
            self.members.len(),
            self.members.values().filter(|member| member.output.is_some()).count(),
        )
    }

    pub fn reports(&self) -> impl Iterator<Item = Report> {
        self.members.iter().map(|(name, member)| Report {
            name: name.clone(),
            speaks: member.source.activity.speaks() && !member.source.muted,
            level: member.source.activity.level,
            muted: member.source.muted,
            counts: member.source.counts(),
            unknown: member.source.unknown,
            added: member.source.added(),
        })
    }

    /// The streams of mixes, and for whom each is.
    pub fn outputs(&self) -> impl Iterator<Item = (&Name, &Output)> {
        self.members
            .iter()
            .filter_map(|(name, member)| Some((name, member.output.as_ref()?)))
    }

    /// The streams that come.
    pub fn sources(&self) -> impl Iterator<Item = u32> {
        self.members.values().filter_map(|member| member.source.ssrc())
    }

    /// Of each sender that is not silent: its SSRC, the RTP timestamp of what goes out with the next frame, and the clock rate of that.
    pub fn playing(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.members.values().filter_map(|member| {
            let (timestamp, clock) = member.source.playing()?;
            Some((member.source.ssrc()?, timestamp, clock))
        })
    }

    /// 20 ms have passed: `send` gets a packet for each receiver.
    ///
    /// # Errors
    /// A codec fails; who has it gets nothing of this frame.
    pub fn tick(&mut self, now: u64, mut send: impl FnMut(&Name, &[u8])) -> Result<Done, CodecError> {
        let mut done = Done::default();
        let mut sum = [0_i32; FRAME];
        let mut heard: Vec<(Name, Contribution)> = Vec::new();
        for (name, member) in &mut self.members {
            if !member.source.pull(now) {
                continue;
            }
            done.decoded += 1;
            sum.iter_mut()
                .zip(&member.source.frame)
                .for_each(|(sum, sample)| *sum += i32::from(*sample));
            if let Some(ssrc) = member.source.ssrc() {
                let level = member.source.activity.level;
                heard.push((name.clone(), Contribution { ssrc, level }));
            }
        }
        let announced = self.add_sound(&mut sum);
        heard.sort_by(|a, b| b.1.level.total_cmp(&a.1.level));
        self.choose_speaker(&heard);
        let everybody: Vec<Contribution> = heard.iter().map(|(_, one)| *one).collect();
        let mut payloads: BTreeMap<Codec, Vec<u8>> = BTreeMap::new();
        let (mut samples, mut packet, mut payload) = ([0; FRAME], Vec::new(), Vec::new());
        let mut failed = Ok(());
        self.saturate(&sum, heard.is_empty() && !announced, &mut samples);
        self.fork_encoders(&heard);
        // An encoder that went on hears all frames, also those of which nobody gets it just now.
        for codec in [Codec::Pcmu, Codec::Pcma, Codec::G722, Codec::Opus] {
            let used = self
                .members
                .values()
                .any(|one| one.output.as_ref().is_some_and(|output| output.codec == codec));
            if !used {
                self.common.remove(&codec);
                continue;
            }
            match encode(&mut self.common, codec, &samples, &mut payload) {
                Ok(()) => {
                    done.encoded += 1;
                    payloads.insert(codec, std::mem::take(&mut payload));
                }
                Err(error) => failed = Err(error),
            }
        }
        let noise = self.noise;
        for (name, member) in &mut self.members {
            let Some(output) = &mut member.output else { continue };
            let in_it = heard.iter().any(|(other, _)| other == name);
            if !in_it {
                member.own = None;
                match payloads.get(&output.codec) {
                    Some(payload) => output.packet(payload, &everybody, &mut packet),
                    None => {
                        output.skip();
                        continue;
                    }
                }
            } else {
                let others: Vec<Contribution> = heard.iter().filter(|(other, _)| other != name).map(|(_, one)| *one).collect();
                let mut without = sum;
                without
                    .iter_mut()
                    .zip(&member.source.frame)
                    .for_each(|(sum, sample)| *sum -= i32::from(*sample));
                let mut own = [0; FRAME];
                fill(&without, others.is_empty() && !announced, noise, &mut own);
                let encoder = match member.own.take() {
                    Some(encoder) => Ok(encoder),
                    None => Encoder::new(output.codec),
                };
                let encoded = encoder.and_then(|mut encoder| {
                    let encoded = encoder.encode(&own, &mut payload);
                    member.own = Some(encoder);
                    encoded
                });
                if let Err(error) = encoded {
                    failed = Err(error);
                    output.skip();
                    continue;
                }
                done.encoded += 1;
                output.packet(&payload, &others, &mut packet);
            }
            done.sent += 1;
            send(name, &packet);
        }
        failed.map(|()| done)
    }

    /// Who begins to speak hears others than everybody else from this frame on: its encoder goes on from the common one.
    fn fork_encoders(&mut self, heard: &[(Name, Contribution)]) {
        for (name, _) in heard {
            if let Some(member) = self.members.get_mut(name)
                && let (Some(output), None) = (&member.output, &member.own)
            {
                member.own = self.common.get(&output.codec).and_then(Encoder::fork);
            }
        }
    }

    fn saturate(&mut self, sum: &[i32; FRAME], silent: bool, out: &mut [i16; FRAME]) {
        fill(sum, silent, self.noise, out);
        self.noise = next(self.noise.wrapping_add(FRAME as u32));
    }

    fn choose_speaker(&mut self, heard: &[(Name, Contribution)]) {
        let members = &self.members;
        let smooth = |name: &Name| members.get(name).map_or(-127.0, |member| member.source.activity.smooth);
        let loudest = heard.iter().map(|(name, _)| name).max_by(|a, b| smooth(a).total_cmp(&smooth(b)));
        let Some(loudest) = loudest else {
            // Who spoke last stays the speaker while nobody does.
            self.speaker = self.speaker.take().filter(|name| members.contains_key(name));
            self.challenger = None;
            return;
        };
        let goes_on = self
            .speaker
            .as_ref()
            .is_some_and(|name| heard.iter().any(|(other, _)| other == name));
        let holds = self
            .speaker
            .as_ref()
            .is_some_and(|name| name == loudest || goes_on && smooth(loudest) < smooth(name) + LOUDER);
        if holds {
            self.challenger = None;
            return;
        }
        let frames = match &self.challenger {
            Some((name, frames)) if name == loudest => frames + 1,
            _ => 1,
        };
        // Where the one before is silent or gone, nobody is waited for.
        if frames >= FOR || !goes_on {
            (self.speaker, self.challenger) = (Some(loudest.clone()), None);
        } else {
            self.challenger = Some((loudest.clone(), frames));
        }
    }
}

fn encode(encoders: &mut BTreeMap<Codec, Encoder>, codec: Codec, samples: &[i16; FRAME], payload: &mut Vec<u8>) -> Result<(), CodecError> {
    let encoder = match encoders.remove(&codec) {
        Some(encoder) => encoder,
        None => Encoder::new(codec)?,
    };
    encoders.entry(codec).or_insert(encoder).encode(samples, payload)
}

/// A linear congruential generator (Knuth's MMIX has the 64-bit one; this is Numerical Recipes').
fn next(state: u32) -> u32 {
    state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

/// The sum within what a sample can be; noise where nobody speaks.
fn fill(sum: &[i32; FRAME], silent: bool, mut noise: u32, out: &mut [i16; FRAME]) {
    for (sample, sum) in out.iter_mut().zip(sum) {
        *sample = if silent {
            noise = next(noise);
            let spread = (noise >> 16) % (2 * NOISE.unsigned_abs() as u32 + 1);
            // At most twice NOISE.
            spread as i16 - NOISE
        } else {
            // Clamped, so it fits.
            (*sum).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
        };
    }
}
