//! What an SDP says of media, as far as it matters to who forwards the packets.

use crate::needs::Needs;
use crate::options::{address, protocol_needs};
use std::net::IpAddr;

/// Media sections that are read.
const MAX_MEDIA: usize = 128;

/// The direction of a media section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    #[default]
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

/// One m= line with its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// `audio`, `video`, `image` …
    pub kind: String,
    /// 0 where the section is off.
    pub port: u16,
    pub protocol: String,
    /// The section's own c= line, else the session's.
    pub connection: Option<IpAddr>,
    /// The port of `a=rtcp`.
    pub rtcp: Option<u16>,
    pub rtcp_mux: bool,
    pub direction: Direction,
    /// Payload types of telephone-event.
    pub telephone_events: Vec<u8>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sdp {
    pub media: Vec<Media>,
    /// `a=candidate` or `a=ice-ufrag` in any section.
    pub ice: bool,
    /// `a=group:BUNDLE`.
    pub bundle: bool,
    /// SRTP, DTLS and T.38, by protocol and attributes. ICE is in [`Sdp::ice`].
    pub needs: Needs,
}

/// Read an SDP. Lines that mean nothing here are passed over, so are those that make no sense.
#[must_use]
pub fn scan(text: &[u8]) -> Sdp {
    let (mut sdp, mut session, mut direction) = (Sdp::default(), None, Direction::default());
    for line in text.split(|&byte| matches!(byte, b'\r' | b'\n')) {
        let Some((kind, value)) = line.split_at_checked(2) else {
            continue;
        };
        match kind {
            b"m=" if sdp.media.len() < MAX_MEDIA => {
                let media = section(value, session, direction);
                sdp.needs |= protocol_needs(media.protocol.as_bytes());
                if media.kind == "image" {
                    sdp.needs |= Needs::T38;
                }
                sdp.media.push(media);
            }
            b"c=" => {
                let found = word(value, 2).and_then(connection);
                match sdp.media.last_mut() {
                    Some(media) => media.connection = found.or(media.connection),
                    None => session = found,
                }
            }
            b"a=" => {
                if let (Some(way), None) = (way(value), sdp.media.last()) {
                    direction = way;
                }
                attribute(value, &mut sdp);
            }
            _ => {}
        }
    }
    sdp
}

fn section(value: &[u8], connection: Option<IpAddr>, direction: Direction) -> Media {
    let text = |at| word(value, at).map_or_else(String::new, |word| String::from_utf8_lossy(word).into_owned());
    Media {
        kind: text(0),
        port: word(value, 1).and_then(number).unwrap_or(0),
        protocol: text(2),
        connection,
        direction,
        ..Media::default()
    }
}

fn attribute(value: &[u8], sdp: &mut Sdp) {
    let end = value.iter().position(|&byte| byte == b':').unwrap_or(value.len());
    let (name, rest) = (&value[..end], value.get(end + 1..).unwrap_or_default());
    match name {
        b"candidate" | b"ice-ufrag" => sdp.ice = true,
        b"crypto" => sdp.needs |= Needs::SRTP,
        b"fingerprint" => sdp.needs |= Needs::DTLS,
        b"group" if rest.starts_with(b"BUNDLE") => sdp.bundle = true,
        _ => {}
    }
    let Some(media) = sdp.media.last_mut() else { return };
    match name {
        b"rtcp" => media.rtcp = word(rest, 0).and_then(number),
        b"rtcp-mux" => media.rtcp_mux = true,
        b"rtpmap" => {
            let event = word(rest, 1).is_some_and(|name| name.to_ascii_lowercase().starts_with(b"telephone-event/"));
            let payload = word(rest, 0).and_then(number).and_then(|number| u8::try_from(number).ok());
            media.telephone_events.extend(payload.filter(|_| event));
        }
        _ => media.direction = way(name).unwrap_or(media.direction),
    }
}

fn way(name: &[u8]) -> Option<Direction> {
    Some(match name {
        b"sendrecv" => Direction::SendRecv,
        b"sendonly" => Direction::SendOnly,
        b"recvonly" => Direction::RecvOnly,
        b"inactive" => Direction::Inactive,
        _ => return None,
    })
}

/// The address of a c= line without the part of multicast.
fn connection(text: &[u8]) -> Option<IpAddr> {
    address(text.split(|&byte| byte == b'/').next()?)
}

fn word(text: &[u8], at: usize) -> Option<&[u8]> {
    text.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).nth(at)
}

fn number(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
