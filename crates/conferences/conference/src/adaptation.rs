//! Turns receivers' feedback about their downlinks into decisions: which layers each receiver gets of each sender, and which receiver's
//! feedback each sender gets.
//!
//! Estimates (REMB) and reports (RR, and the report blocks of an SR) are split by the senders that they concern. A sender gets the feedback
//! of only one receiver, the one with the best downlink; the data plane drops layers for the other receivers. TWCC is not forwarded,
//! because its sequence numbers count all packets of one transport, and a receiver's transport carries several senders.

use crate::best_downlink::BestDownlink;
use crate::downlink::{BEYOND, Climb, LossBound, STALE, Weights};
use crate::membership::TARGETS;
use crate::policy::{Estimate, Policy, Receiver as Pair};
use crate::tables::Name;
use shunt_latch::Time;
use shunt_rtp::MediaError;
use shunt_rtp::rtcp::{Kind, Report, receiver_report, remb, walk};
use std::collections::HashMap;
use std::time::Duration;

/// SSRC under which the agent requests key frames and forwards reports.
pub const OWN_SSRC: u32 = 1;
/// Receivers of audio send only reports, some seconds apart.
const STALE_AUDIO: Duration = Duration::from_secs(20);

/// A medium of a conference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    Audio,
    Video,
    Screen,
}

/// Facts about the streams of one conference.
pub trait Streams {
    /// Returns the bit/s that each level of a sender's medium needs, lowest first, including all lower levels; empty if not known yet.
    fn rates(&self, sender: &Name, medium: Medium) -> &[f64];
    /// Returns the level in force for a receiver.
    fn level(&self, sender: &Name, medium: Medium, receiver: &Name) -> Option<usize>;
    /// Returns whether a receiver needs a key frame to start decoding higher layers of this medium.
    fn needs_key_frame(&self, sender: &Name, medium: Medium) -> bool;
}

/// Actions for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Send RTCP to a sender, under the agent's SSRC.
    Forward { sender: Name, medium: Medium, packet: Vec<u8> },
    /// From now on the receiver gets this many layers of the sender; 0: none.
    Level {
        sender: Name,
        medium: Medium,
        receiver: Name,
        before: usize,
        level: usize,
        estimate: f64,
    },
    /// Ask the sender for a key frame.
    KeyFrame { sender: Name, medium: Medium },
    /// The sender gets another receiver's feedback from now on.
    Downlink {
        sender: Name,
        medium: Medium,
        receiver: Option<Name>,
        before: Option<Name>,
    },
    /// Input of the policy, where [`Adaptation::observed`] is set.
    Estimated {
        sender: Name,
        medium: Medium,
        receiver: Name,
        /// The receiver's share for this sender, and its latest total estimate, bit/s.
        estimate: f64,
        remb: Option<f64>,
        /// Share of this sender's packets, 0 to 1.
        lost: Option<f64>,
    },
    /// The policy returned an invalid level; nothing has changed.
    PolicyFailed { sender: Name, receiver: Name, reason: String },
}

/// One receiver's transport of one medium.
#[derive(Clone, Debug, Default)]
struct Transport {
    estimate: Option<(f64, Time)>,
    bound: LossBound,
    climb: Climb,
    /// The senders that the last REMB named.
    named: Vec<Name>,
    /// Set with the last REMB: the lowest bit/s at which a sender is useful, because the receiver's side drops anything below.
    least: Vec<(Name, f64)>,
}

#[derive(Clone, Debug, Default)]
struct Sender {
    best: Option<BestDownlink>,
    pairs: HashMap<Name, Pair>,
}

/// The feedback of one conference.
#[derive(Clone, Debug, Default)]
pub struct Adaptation {
    transports: HashMap<(Name, Medium, u8), Transport>,
    senders: HashMap<(Name, Medium), Sender>,
    pub estimates: u64,
    pub reports: u64,
    pub twcc_refused: u64,
    /// An external policy follows every estimate.
    pub observed: bool,
}

/// RTCP of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Feedback<'a> {
    pub receiver: &'a Name,
    pub medium: Medium,
    /// Index of the transport for the medium.
    pub transport: u8,
    /// The sender of each SSRC on this transport.
    pub streams: &'a [(u32, Name)],
    pub packet: &'a [u8],
}

/// Contents of one compound packet.
#[derive(Debug, Default)]
struct Said {
    bitrate: Option<u64>,
    named: Vec<Name>,
    least: Vec<(Name, f64)>,
    blocks: Vec<(Name, Report)>,
}

impl Adaptation {
    /// Returns the smoothed share that a receiver's estimates and losses leave for a sender, bit/s.
    #[must_use]
    pub fn estimate(&self, sender: &Name, medium: Medium, receiver: &str) -> Option<f64> {
        self.senders.get(&(sender.clone(), medium))?.best.as_ref()?.average(receiver)
    }

    /// Returns the receiver whose reports and estimates a sender gets.
    #[must_use]
    pub fn reported(&self, sender: &Name, medium: Medium) -> Option<&Name> {
        self.senders.get(&(sender.clone(), medium))?.best.as_ref()?.chosen()
    }

    /// Processes a compound packet of a receiver.
    ///
    /// # Errors
    /// The packet is malformed; no part of it is used.
    pub fn take(
        &mut self,
        feedback: &Feedback,
        streams: &dyn Streams,
        policy: &dyn Policy,
        now: Time,
    ) -> Result<Vec<Decision>, MediaError> {
        let said = self.read(feedback)?;
        let mut decisions = Vec::new();
        if said.named.is_empty() && said.blocks.is_empty() {
            return Ok(decisions);
        }
        let medium = feedback.medium;
        let mut senders: Vec<Name> = feedback.streams.iter().map(|(_, sender)| sender.clone()).collect();
        senders.sort();
        senders.dedup();
        let sent = |sender: &Name| sent_now(streams, sender, medium, feedback.receiver);
        let all = Weights::new(senders.iter().map(sent).collect());
        let place = (feedback.receiver.clone(), medium, feedback.transport);
        let transport = self.transports.entry(place).or_default();
        if !said.blocks.is_empty() {
            self.reports += 1;
            let lost: f64 = said.blocks.iter().map(|(_, block)| f64::from(block.fraction_lost) / 256.0).sum();
            if all.total() > 0.0 {
                transport.bound.report(lost / said.blocks.len() as f64, all.total());
            }
        }
        if let Some(bitrate) = said.bitrate {
            self.estimates += 1;
            transport.estimate = Some((bitrate as f64, now));
            transport.named.clone_from(&said.named);
            transport.least.clone_from(&said.least);
        }
        let mut judged: Vec<Name> = senders.iter().filter(|sender| transport.named.contains(sender)).cloned().collect();
        if judged.is_empty() {
            judged = senders;
        }
        let weights = Weights::new(judged.iter().map(sent).collect());
        let carried = transport.carries(weights.total(), now);
        let estimated = transport.estimate.is_some_and(|(_, at)| now.since(at) <= STALE);
        let least = transport.least.clone();
        let shares = carried.map(|carried| weights.split(carried)).unwrap_or_default();
        // The first estimate goes to the sender unchanged, as in a two-party call. Later estimates must not make the sender reduce its rate
        // because other senders have joined.
        let raw = said.bitrate.map(|bitrate| bitrate as f64).filter(|_| transport.climb.is_first());
        let told = match (raw, carried) {
            (Some(raw), Some(carried)) => weights.split(raw.min(carried)),
            _ => shares.clone(),
        };
        for (at, sender) in judged.iter().enumerate() {
            let named = said.named.contains(sender);
            let blocks: Vec<Report> = said
                .blocks
                .iter()
                .filter(|(whose, _)| whose == sender)
                .map(|(_, block)| *block)
                .collect();
            if !named && blocks.is_empty() {
                continue;
            }
            let share = shares.get(at).copied();
            if let (true, Some(estimate)) = (self.observed, share) {
                decisions.push(Decision::Estimated {
                    sender: sender.clone(),
                    medium,
                    receiver: feedback.receiver.clone(),
                    estimate,
                    remb: said.bitrate.map(|bitrate| bitrate as f64),
                    lost: blocks.first().map(|block| f64::from(block.fraction_lost) / 256.0),
                });
            }
            let least = least.iter().find(|(whose, _)| whose == sender).map(|(_, bitrate)| *bitrate);
            if !self.judge(feedback, sender, (share, estimated, least), streams, policy, now, &mut decisions) {
                continue;
            }
            let mut packet = receiver_report(OWN_SSRC, &blocks);
            if let (true, Some(told)) = (named, told.get(at)) {
                let ssrcs: Vec<u32> = feedback
                    .streams
                    .iter()
                    .filter(|(_, whose)| whose == sender)
                    .map(|(ssrc, _)| *ssrc)
                    .take(255)
                    .collect();
                // The rate is positive and below 2^64.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                packet.extend(remb(OWN_SSRC, told.round() as u64, &ssrcs)?);
            }
            decisions.push(Decision::Forward {
                sender: sender.clone(),
                medium,
                packet,
            });
        }
        Ok(decisions)
    }

    fn read(&mut self, feedback: &Feedback) -> Result<Said, MediaError> {
        let whose = |ssrc: u32| {
            feedback
                .streams
                .iter()
                .find(|(one, _)| *one == ssrc)
                .map(|(_, sender)| sender.clone())
        };
        let mut said = Said::default();
        for item in walk(feedback.packet) {
            let item = item?;
            said.blocks
                .extend(item.reports().filter_map(|block| Some((whose(block.ssrc)?, block))));
            if let Some(found) = item.remb() {
                said.bitrate = Some(found.bitrate);
                said.named = found.ssrcs().filter_map(whose).collect();
            }
            if let Some(least) = item.least_rate()
                && let Some(sender) = whose(least.media_ssrc)
            {
                said.least.push((sender, f64::from(least.bitrate)));
            }
            self.twcc_refused += u64::from(item.kind == Kind::Twcc);
        }
        if said.bitrate.is_some() && said.named.is_empty() {
            // An estimate that names none of the transport's streams covers all of them.
            said.named = feedback.streams.iter().map(|(_, sender)| sender.clone()).collect();
        }
        Ok(said)
    }

    /// Applies an estimate to a receiver of one sender. Returns whether this receiver's feedback goes to the sender. `estimated`: the share
    /// is known from more than losses. `least`: the lowest rate that is useful to the receiver, if below the rate of the lowest level.
    #[allow(clippy::too_many_arguments)]
    fn judge(
        &mut self,
        feedback: &Feedback,
        sender: &Name,
        (share, estimated, least): (Option<f64>, bool, Option<f64>),
        streams: &dyn Streams,
        policy: &dyn Policy,
        now: Time,
        decisions: &mut Vec<Decision>,
    ) -> bool {
        let (receiver, medium) = (feedback.receiver, feedback.medium);
        let stale = if medium == Medium::Audio { STALE_AUDIO } else { STALE };
        let state = self.senders.entry((sender.clone(), medium)).or_default();
        let rates = streams.rates(sender, medium);
        let best = state.best.get_or_insert_with(|| BestDownlink::new(stale));
        let before = best.chosen().cloned();
        // A sender of a medium with unknown rate (audio) gets the feedback of the first receiver.
        let chosen = best.estimate(receiver, share.unwrap_or(1.0), now);
        if best.chosen() != before.as_ref() {
            decisions.push(Decision::Downlink {
                sender: sender.clone(),
                medium,
                receiver: best.chosen().cloned(),
                before,
            });
        }
        let level = streams.level(sender, medium, receiver);
        // A stream without layers is sent or paused. The sender itself adapts to the receiver whose feedback it gets.
        let whole = medium != Medium::Audio && rates.len() == 1 && estimated && (!chosen || level == Some(0));
        if let (Some(bitrate), true) = (share, rates.len() > 1 || whole) {
            let level = level.unwrap_or(rates.len());
            let pair = state.pairs.entry(receiver.clone()).or_insert_with(|| Pair::new(level));
            // An operator may have set another level.
            pair.level = level;
            let mut needed = rates.to_vec();
            if let (Some(lowest), Some(least)) = (needed.first_mut(), least) {
                *lowest = lowest.min(least);
            }
            let estimate = Estimate {
                time: now,
                bitrate,
                rates: &needed,
            };
            match pair.estimate(policy, &estimate) {
                Ok(Some(before)) => changed(feedback, sender, (before, pair.level), bitrate, streams, decisions),
                Ok(None) => {}
                Err(error) => decisions.push(Decision::PolicyFailed {
                    sender: sender.clone(),
                    receiver: receiver.clone(),
                    reason: error.to_string(),
                }),
            }
        }
        chosen
    }

    /// Retries paused streams whose receivers have recently sent no estimate. Call it about once a second.
    pub fn tick(&mut self, streams: &dyn Streams, now: Time) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for ((sender, medium), state) in &mut self.senders {
            for (receiver, pair) in &mut state.pairs {
                if streams.level(sender, *medium, receiver) == Some(0) && pair.retry(now) {
                    decisions.push(Decision::Level {
                        sender: sender.clone(),
                        medium: *medium,
                        receiver: receiver.clone(),
                        before: 0,
                        level: of_targets(1, streams.rates(sender, *medium)),
                        estimate: 0.0,
                    });
                    decisions.push(Decision::KeyFrame {
                        sender: sender.clone(),
                        medium: *medium,
                    });
                }
            }
        }
        decisions
    }

    /// Removes a participant, as sender and as receiver.
    pub fn leave(&mut self, participant: &Name, now: Time) {
        self.transports.retain(|(receiver, ..), _| receiver != participant);
        self.senders.retain(|(sender, _), _| sender != participant);
        for state in self.senders.values_mut() {
            state.pairs.remove(participant);
            if let Some(best) = &mut state.best {
                best.leave(participant, now);
            }
        }
    }
}

/// Converts a level into decode targets: all of a stream without layers counts as all targets of a stream with layers.
fn of_targets(level: usize, rates: &[f64]) -> usize {
    if level >= rates.len() && level > 0 { TARGETS } else { level }
}

fn changed(
    feedback: &Feedback,
    sender: &Name,
    (before, level): (usize, usize),
    estimate: f64,
    streams: &dyn Streams,
    decisions: &mut Vec<Decision>,
) {
    let rates = streams.rates(sender, feedback.medium);
    decisions.push(Decision::Level {
        sender: sender.clone(),
        medium: feedback.medium,
        receiver: feedback.receiver.clone(),
        before: of_targets(before, rates),
        level: of_targets(level, rates),
        estimate,
    });
    if level > before && (before == 0 || streams.needs_key_frame(sender, feedback.medium)) {
        decisions.push(Decision::KeyFrame {
            sender: sender.clone(),
            medium: feedback.medium,
        });
    }
}

/// Returns the bit/s of a sender's medium that a receiver gets now; 0 if unknown or paused.
fn sent_now(streams: &dyn Streams, sender: &Name, medium: Medium, receiver: &Name) -> f64 {
    let rates = streams.rates(sender, medium);
    let level = streams.level(sender, medium, receiver).unwrap_or(rates.len()).min(rates.len());
    level.checked_sub(1).and_then(|at| rates.get(at)).copied().unwrap_or(0.0)
}

impl Transport {
    /// Returns the bit/s that a receiver's downlink can carry for a medium, given the `total` that its senders now use; `None` if unknown.
    fn carries(&mut self, total: f64, now: Time) -> Option<f64> {
        match self.estimate {
            Some((bitrate, at)) if now.since(at) <= STALE => {
                let carried = self.climb.carries(bitrate, total, now);
                Some(self.bound.bitrate.map_or(carried, |bound| carried.min(bound)))
            }
            _ if total == 0.0 => None,
            _ => Some(self.bound.bitrate.unwrap_or(BEYOND * total)),
        }
    }
}
