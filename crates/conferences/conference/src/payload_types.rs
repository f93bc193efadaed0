//! Maps a sender's payload types to a receiver's. Both named the codecs in their own SDP (RFC 3264 section 5.1).

use crate::tables::Name;
use thiserror::Error;

/// A payload type as SDP describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadType {
    pub number: u8,
    /// rtpmap: `opus/48000/2`.
    pub codec: String,
    /// fmtp; empty if none.
    pub parameters: String,
}

/// Returns the payload type that a repair format refers to (`apt`, RFC 4588 section 8.6).
fn apt(one: &PayloadType) -> Option<u8> {
    let parameters = one.parameters.split(';').map(str::trim);
    parameters
        .filter_map(|part| part.strip_prefix("apt="))
        .find_map(|number| number.parse().ok())
}

fn is_one_of(one: &PayloadType, encodings: &[&str]) -> bool {
    let encoding = one.codec.split('/').next().unwrap_or_default();
    encodings.iter().any(|name| encoding.eq_ignore_ascii_case(name))
}

fn is_rtx(one: &PayloadType) -> bool {
    is_one_of(one, &["rtx"])
}

/// Returns whether payloads of a format contain payload types (RFC 2198 section 3, RFC 5109 section 7.3, RFC 8627 section 4.2.2).
fn contains_others(one: &PayloadType) -> bool {
    is_one_of(one, &["red", "ulpfec", "flexfec", "flexfec-03"])
}

/// Returns whether a receiver can do without a format: repair that it did not agree to, or tones and comfort noise between the codec's
/// packets.
fn is_optional(one: &PayloadType) -> bool {
    is_one_of(one, &["rtx", "telephone-event", "CN"])
}

/// Compares codecs; `opus/48000` and `OPUS/48000/1` are equal, because one channel is the default.
fn same_codec(a: &str, b: &str) -> bool {
    let plain = |codec: &str| codec.strip_suffix("/1").unwrap_or(codec).to_ascii_lowercase();
    plain(a) == plain(b)
}

/// Returns the receiver's number of one of the sender's payload types. Among several with the same codec, one with the same parameters is
/// preferred, then the first. `None`: the receiver did not name the codec.
#[must_use]
pub fn translate(one: &PayloadType, sender: &[PayloadType], receiver: &[PayloadType]) -> Option<u8> {
    if is_rtx(one) {
        let primary = sender.iter().find(|other| Some(other.number) == apt(one) && !is_rtx(other))?;
        let theirs = translate(primary, sender, receiver)?;
        return receiver
            .iter()
            .find(|other| is_rtx(other) && apt(other) == Some(theirs))
            .map(|other| other.number);
    }
    let mut same = receiver.iter().filter(|other| same_codec(&one.codec, &other.codec));
    let first = same.clone().next()?;
    Some(same.find(|other| other.parameters == one.parameters).unwrap_or(first).number)
}

/// Rewriting from a sender to a receiver, and formats that the receiver cannot get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// (sender's number, receiver's number), where they differ.
    pub rewritten: Vec<(u8, u8)>,
    /// The sender's numbers of codecs that the receiver did not name.
    pub unknown: Vec<u8>,
    /// The sender's numbers of formats whose payloads contain numbers that need rewriting.
    pub containing: Vec<u8>,
}

impl Translation {
    /// If a side named no codecs, nothing is rewritten.
    #[must_use]
    pub fn between(sender: &[PayloadType], receiver: &[PayloadType]) -> Self {
        let mut made = Self::default();
        if receiver.is_empty() || sender == receiver {
            return made;
        }
        for one in sender {
            match translate(one, sender, receiver) {
                Some(number) if number == one.number => {}
                Some(number) => made.rewritten.push((one.number, number)),
                None => made.unknown.push(one.number),
            }
        }
        let contained =
            |one: &&PayloadType| !contains_others(one) && !is_rtx(one) && made.rewritten.iter().any(|(from, _)| *from == one.number);
        if sender.iter().any(|one| contained(&one)) {
            let containing = sender
                .iter()
                .filter(|one| contains_others(one) && !made.unknown.contains(&one.number));
            made.containing = containing.map(|one| one.number).collect();
        }
        made
    }
}

/// Returns whether the receiver agreed to the sender's codec but not to its retransmissions (RFC 4588).
#[must_use]
pub fn is_without_repair(sender: &[PayloadType], receiver: &[PayloadType]) -> bool {
    let mut repairs = sender.iter().filter(|one| is_rtx(one)).peekable();
    repairs.peek().is_some() && !receiver.is_empty() && repairs.all(|one| translate(one, sender, receiver).is_none())
}

/// Why a sender's packets cannot be rewritten for a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PayloadTypesDiffer {
    #[error(
        "{medium}: {sender} has payload type {from} for what {receiver} has {to} for, and the data plane does not rewrite payload types"
    )]
    NotRewritten {
        medium: &'static str,
        sender: Name,
        receiver: Name,
        from: u8,
        to: u8,
    },
    #[error("{medium}: {sender} has payload type {from} for what {receiver} has {to} for, and SRTP authenticates it")]
    Authenticated {
        medium: &'static str,
        sender: Name,
        receiver: Name,
        from: u8,
        to: u8,
    },
    #[error("{medium}: {count} payload types of {sender} are others for {receiver}, and the data plane rewrites {room} in one copy")]
    TooMany {
        medium: &'static str,
        sender: Name,
        receiver: Name,
        count: usize,
        room: usize,
    },
    #[error("{medium}: {sender} has payload type {number} for {codec}, and {receiver} has none")]
    Unknown {
        medium: &'static str,
        sender: Name,
        receiver: Name,
        number: u8,
        codec: String,
    },
    #[error(
        "{medium}: {codec} of {sender} has payload types in its payload, which are others for {receiver}, and no data plane rewrites them"
    )]
    Contained {
        medium: &'static str,
        sender: Name,
        receiver: Name,
        codec: String,
    },
}

/// One direction of one medium.
pub struct Direction<'a> {
    pub medium: &'static str,
    pub sender: &'a Name,
    pub receiver: &'a Name,
    pub from: &'a [PayloadType],
    pub to: &'a [PayloadType],
    /// The sender's packets are authenticated, so they cannot be rewritten.
    pub encrypted: bool,
}

impl Direction<'_> {
    /// `room`: number of payload types that the data plane can rewrite in one copy.
    ///
    /// # Errors
    /// The receiver cannot get everything that the sender may send.
    pub fn check(&self, room: usize) -> Result<(), PayloadTypesDiffer> {
        let found = Translation::between(self.from, self.to);
        let (medium, sender, receiver) = (self.medium, self.sender.clone(), self.receiver.clone());
        let codec = |number: u8| {
            self.from
                .iter()
                .find(|one| one.number == number)
                .map_or_else(String::new, |one| one.codec.clone())
        };
        let matters = |one: &&PayloadType| !is_optional(one) || !is_rtx(one) && self.to.iter().any(|other| other.number == one.number);
        let mut unknown = self.from.iter().filter(|one| found.unknown.contains(&one.number));
        if let Some(one) = unknown.find(matters) {
            let (number, codec) = (one.number, one.codec.clone());
            return Err(PayloadTypesDiffer::Unknown {
                medium,
                sender,
                receiver,
                number,
                codec,
            });
        }
        if let Some(number) = found.containing.first() {
            return Err(PayloadTypesDiffer::Contained {
                medium,
                sender,
                receiver,
                codec: codec(*number),
            });
        }
        let Some((from, to)) = found.rewritten.first().copied() else {
            return Ok(());
        };
        if self.encrypted {
            return Err(PayloadTypesDiffer::Authenticated {
                medium,
                sender,
                receiver,
                from,
                to,
            });
        }
        if room == 0 {
            return Err(PayloadTypesDiffer::NotRewritten {
                medium,
                sender,
                receiver,
                from,
                to,
            });
        }
        let count = found.rewritten.len();
        if count > room {
            return Err(PayloadTypesDiffer::TooMany {
                medium,
                sender,
                receiver,
                count,
                room,
            });
        }
        Ok(())
    }
}

/// Sets an RTP packet's payload type to the receiver's; the marker bit stays.
pub fn rewrite(packet: &mut [u8], pairs: &[(u8, u8)]) {
    let Some(octet) = packet.get_mut(1) else { return };
    if let Some((_, to)) = pairs.iter().find(|(from, _)| *from == *octet & 0x7f) {
        *octet = *octet & 0x80 | to & 0x7f;
    }
}
