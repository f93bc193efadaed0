//! Validates requests of the admin API about participants and their media.

use super::LegKey;
use crate::adaptation::Medium;
use crate::mixing;
use crate::packets::Told;
use crate::participant::Leg;
use crate::payload_types::PayloadType;
use crate::tables::Name;
use shunt_admin_model::{Codec, Direction, Failure, FailureKind, JoinMedium, Layers, Mixed};
use shunt_latch::Names;
use std::net::IpAddr;

pub(super) const MEDIA: [Medium; 3] = [Medium::Audio, Medium::Video, Medium::Screen];
/// Most legs of one medium.
const MOST_LEGS: u8 = 16;

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, text)
}

/// Returns the name of a leg, such as `video/2`.
#[must_use]
pub fn leg_name((medium, further): LegKey) -> String {
    match further {
        0 => medium.name().to_owned(),
        further => format!("{}/{}", medium.name(), further + 1),
    }
}

/// # Errors
/// There is no such medium.
pub fn parse_medium(text: &str) -> Result<LegKey, Failure> {
    let (name, number) = text.split_once('/').unwrap_or((text, "1"));
    let medium = MEDIA.into_iter().find(|medium| medium.name() == name);
    let further = number
        .parse::<u8>()
        .ok()
        .filter(|number| (1..=MOST_LEGS).contains(number) && (text.contains('/') == (*number > 1)));
    match (medium, further) {
        (Some(medium), Some(number)) => Ok((medium, number - 1)),
        _ => Err(invalid(format!("medium {text:?} is none of audio, video, screen"))),
    }
}

/// # Errors
/// The text is not a valid name.
pub fn check_name(what: &str, text: &str) -> Result<Name, Failure> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = text.bytes().next().is_some_and(word) && text.len() <= 63 && text.bytes().all(|byte| word(byte) || b".@+-".contains(&byte));
    if good {
        Ok(text.into())
    } else {
        Err(invalid(format!(
            "{what} {text:?}: a name has 1 to 63 letters, digits, '_', '.', '@', '+' or '-', and starts with a letter, digit or '_'"
        )))
    }
}

fn encrypted(transport: &str) -> Result<bool, Failure> {
    match transport.to_ascii_uppercase().as_str() {
        "RTP/AVP" | "RTP/AVPF" => Ok(false),
        "RTP/SAVP" | "RTP/SAVPF" => Ok(true),
        upper if upper.contains("SAVP") => Err(invalid(format!(
            "transport {transport:?}: each DTLS association has keys of its own, and nobody ends it here: receivers could not read what is sent to them"
        ))),
        _ => Err(invalid(format!(
            "transport {transport:?} is none of RTP/AVP, RTP/AVPF, RTP/SAVP, RTP/SAVPF"
        ))),
    }
}

pub(super) fn told(layers: &Layers) -> Result<Told, Failure> {
    match (layers.by.as_str(), layers.extension_id) {
        ("dependency-descriptor", Some(id @ 1..=14)) => Ok(Told::DependencyDescriptor(id)),
        ("frame-marking", Some(id @ 1..=14)) => Ok(Told::FrameMarking(id)),
        ("vp8", _) => Ok(Told::Vp8),
        ("vp9", _) => Ok(Told::Vp9),
        ("dependency-descriptor" | "frame-marking", _) => {
            Err(invalid("layers.extension_id: the id of the header extension, 1 to 14, is missing"))
        }
        (by, _) => Err(invalid(format!(
            "layers.by {by:?} is none of dependency-descriptor, frame-marking, vp8, vp9"
        ))),
    }
}

pub(super) fn payload_types(codecs: &[Codec]) -> Vec<PayloadType> {
    let codec = |codec: &Codec| match codec.channels {
        Some(channels) => format!("{}/{}/{channels}", codec.encoding, codec.clock_rate),
        None => format!("{}/{}", codec.encoding, codec.clock_rate),
    };
    let made = codecs.iter().map(|one| PayloadType {
        number: one.payload_type,
        codec: codec(one),
        parameters: one.fmtp.clone().unwrap_or_default(),
    });
    made.collect()
}

/// A requested medium, validated.
pub struct Wanted {
    pub key: LegKey,
    asked: JoinMedium,
    encrypted: bool,
    told: Option<Told>,
}

/// # Errors
/// A medium is invalid.
pub fn check_media(media: &[JoinMedium]) -> Result<Vec<Wanted>, Failure> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for asked in media {
        let key = parse_medium(&asked.medium)?;
        if wanted.iter().any(|other| other.key == key) {
            return Err(invalid(format!("medium {:?} is given twice", asked.medium)));
        }
        let encrypted = encrypted(&asked.transport)?;
        let told = asked.layers.as_ref().map(told).transpose()?;
        if let Some(codec) = asked.codecs.iter().find(|codec| codec.payload_type > 127) {
            return Err(invalid(format!("payload_type {} is not in 0..127", codec.payload_type)));
        }
        if told.is_some() && key.0 == Medium::Audio {
            return Err(invalid("layers: audio has none"));
        }
        if told.is_some() && encrypted {
            return Err(invalid("layers: SRTP authenticates sequence numbers, so nothing of it is left out"));
        }
        wanted.push(Wanted {
            key,
            asked: asked.clone(),
            encrypted,
            told,
        });
    }
    for one in wanted.iter().filter(|one| one.key.1 > 0) {
        if !wanted.iter().any(|other| other.key == (one.key.0, 0)) {
            return Err(invalid(format!(
                "medium {:?}: the first {} is missing",
                one.asked.medium,
                one.key.0.name()
            )));
        }
    }
    wanted.sort_by_key(|one| one.key);
    Ok(wanted)
}

fn sends(direction: Direction) -> bool {
    matches!(direction, Direction::SendRecv | Direction::SendOnly)
}

fn receives(direction: Direction) -> bool {
    matches!(direction, Direction::SendRecv | Direction::RecvOnly)
}

/// Converts a requested mix.
#[must_use]
pub fn wish(mixed: Mixed) -> mixing::Mixed {
    match mixed {
        Mixed::Auto => mixing::Mixed::Auto,
        Mixed::Yes => mixing::Mixed::Yes,
        Mixed::No => mixing::Mixed::No,
    }
}

/// Converts back.
#[must_use]
pub fn asked(wish: mixing::Mixed) -> Mixed {
    match wish {
        mixing::Mixed::Auto => Mixed::Auto,
        mixing::Mixed::Yes => Mixed::Yes,
        mixing::Mixed::No => Mixed::No,
    }
}

/// Returns the signalled addresses, as a latch takes them.
#[must_use]
pub fn names(signalled: &[IpAddr]) -> Names {
    let mut names = Names::default();
    for addr in signalled {
        names.add(shunt_latch::Name::address(addr.to_canonical()));
    }
    names
}

impl Wanted {
    /// Applies signalling to a new leg.
    pub fn begin(&self, leg: &mut Leg) {
        self.shape(leg);
        leg.muxed = self.asked.rtcp_mux.unwrap_or(false);
        leg.transport.clone_from(&self.asked.transport);
        leg.codecs.clone_from(&self.asked.codecs);
        leg.layers.clone_from(&self.asked.layers);
        leg.destination = self.asked.destination;
    }

    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Applies signalling to a leg; values that the request leaves out stay. Returns whether anything has changed.
    pub fn shape(&self, leg: &mut Leg) -> bool {
        let before = (leg.sends, leg.receives, leg.told, leg.payload_types.clone());
        leg.sends = sends(self.asked.direction) && self.key.1 == 0;
        leg.receives = receives(self.asked.direction);
        if !self.asked.codecs.is_empty() {
            leg.payload_types = payload_types(&self.asked.codecs);
        }
        if self.told.is_some() {
            leg.told = self.told;
        }
        before.0 != leg.sends || before.1 != leg.receives || before.2 != leg.told || before.3 != leg.payload_types
    }

    /// Applies signalling to an existing medium and the state that depends on it. Returns whether its direction or its layers have changed.
    pub fn apply(&self, leg: &mut Leg) -> bool {
        let before = (leg.sends, leg.receives, leg.told);
        self.shape(leg);
        if !self.asked.codecs.is_empty() {
            leg.codecs.clone_from(&self.asked.codecs);
        }
        if self.told.is_some() {
            leg.layers.clone_from(&self.asked.layers);
        }
        if self.asked.destination.is_some() {
            leg.destination = self.asked.destination;
        }
        before != (leg.sends, leg.receives, leg.told)
    }
}
