//! Session descriptions (RFC 8866): where and how media is sent.

use super::lines::{number, split_line, trim, words};
use super::via::address;
use shunt_net::Endpoint;
use std::net::IpAddr;

const MOST_LINES: usize = 64;
const MOST_FORMATS: usize = 32;
const LONGEST_NAME: usize = 32;

/// Who sends on a media line (RFC 8866 section 6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    #[default]
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

/// A format of an m= line: of `a=rtpmap`, else of the static payload types (RFC 3551 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format<'a> {
    pub payload_type: u8,
    /// As sent; names are compared without case.
    pub name: &'a [u8],
    /// Hz.
    pub clock_rate: u32,
}

/// One media line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SdpMedia<'a> {
    /// `audio`, `video`, …
    pub kind: &'a [u8],
    /// 0: the line is rejected.
    pub port: u16,
    /// Of its own c= or the session's; `None` if that has no address.
    pub address: Option<IpAddr>,
    pub direction: Direction,
    pub formats: Vec<Format<'a>>,
    /// Packet time, ms.
    pub ptime: Option<u32>,
    /// `a=rtcp` (RFC 3605).
    pub rtcp_port: Option<u16>,
    pub rtcp_address: Option<IpAddr>,
    /// `a=rtcp-mux` (RFC 5761): RTCP uses the RTP port.
    pub rtcp_mux: bool,
}

impl SdpMedia<'_> {
    /// Where the party wants RTP; `None` if the line is rejected, on hold by a null address, or has no address.
    #[must_use]
    pub fn rtp(&self) -> Option<Endpoint> {
        let address = self.address.filter(|address| !address.is_unspecified())?;
        (self.port != 0).then(|| Endpoint::new(address, self.port))
    }

    /// Where the party wants RTCP: the address of `a=rtcp`, with `a=rtcp-mux` the RTP port, otherwise the next one (RFC 3550 section 11).
    #[must_use]
    pub fn rtcp(&self) -> Option<Endpoint> {
        let rtp = self.rtp()?;
        let port = if self.rtcp_mux {
            Some(rtp.port)
        } else {
            self.rtcp_port.or(rtp.port.checked_add(1))
        };
        let address = self.rtcp_address.filter(|address| !address.is_unspecified()).unwrap_or(rtp.addr);
        port.map(|port| Endpoint::new(address, port))
    }

    /// The party wants no media: the null address of older phones (RFC 3264 section 8.4), or a direction in which it does not receive.
    #[must_use]
    pub fn on_hold(&self) -> bool {
        let null = self.address.is_some_and(|address| address.is_unspecified());
        null || matches!(self.direction, Direction::SendOnly | Direction::Inactive)
    }
}

/// The media lines of a session description, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sdp<'a> {
    pub media: Vec<SdpMedia<'a>>,
}

impl<'a> Sdp<'a> {
    /// Reads a body, which may have the description as one part. Lines that violate the RFC are ignored. `None` without a description.
    #[must_use]
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let mut session = SdpMedia::default();
        let mut media: Vec<SdpMedia> = Vec::new();
        let mut rest = body;
        loop {
            // The description begins with v=. The head of a multipart body may precede it.
            if rest.is_empty() {
                return None;
            }
            let (line, after) = split_line(rest);
            rest = after;
            if line.starts_with(b"v=0") {
                break;
            }
        }
        while !rest.is_empty() {
            let (line, after) = split_line(rest);
            rest = after;
            match line {
                [b'm', b'=', text @ ..] if media.len() == MOST_LINES || text.is_empty() => break,
                [b'm', b'=', text @ ..] => media.extend(media_line(text, &session)),
                [b'c', b'=', text @ ..] => connection(text, media.last_mut().unwrap_or(&mut session)),
                [b'a', b'=', text @ ..] => attribute(trim(text), media.last_mut().unwrap_or(&mut session)),
                // The boundary after a multipart body's description.
                [b'-', b'-', ..] if !media.is_empty() => break,
                _ => {}
            }
        }
        Some(Self { media })
    }
}

/// A new line with the session's values for all lines.
fn media_line<'a>(text: &'a [u8], session: &SdpMedia<'a>) -> Option<SdpMedia<'a>> {
    let mut words = words(text);
    let (kind, port, protocol) = (words.next()?, words.next()?, words.next());
    let formats = if protocol.is_some_and(|protocol| protocol.windows(3).any(|part| part == b"RTP")) {
        words.filter_map(number).filter_map(static_format).take(MOST_FORMATS).collect()
    } else {
        Vec::new()
    };
    let port = port
        .split(|&byte| byte == b'/')
        .next()
        .and_then(number)
        .and_then(|port| u16::try_from(port).ok());
    Some(SdpMedia {
        kind,
        port: port.unwrap_or_default(),
        address: session.address,
        direction: session.direction,
        ptime: session.ptime,
        formats,
        ..SdpMedia::default()
    })
}

/// Payload types that need no `a=rtpmap` (RFC 3551 tables 4 and 5).
fn static_format(payload_type: u32) -> Option<Format<'static>> {
    let (name, clock_rate) = match payload_type {
        0 => ("PCMU", 8_000),
        3 => ("GSM", 8_000),
        4 => ("G723", 8_000),
        5 => ("DVI4", 8_000),
        6 => ("DVI4", 16_000),
        7 => ("LPC", 8_000),
        8 => ("PCMA", 8_000),
        9 => ("G722", 8_000),
        10 | 11 => ("L16", 44_100),
        12 => ("QCELP", 8_000),
        13 => ("CN", 8_000),
        14 => ("MPA", 90_000),
        15 => ("G728", 8_000),
        16 => ("DVI4", 11_025),
        17 => ("DVI4", 22_050),
        18 => ("G729", 8_000),
        25 => ("CelB", 90_000),
        26 => ("JPEG", 90_000),
        28 => ("nv", 90_000),
        31 => ("H261", 90_000),
        32 => ("MPV", 90_000),
        33 => ("MP2T", 90_000),
        34 => ("H263", 90_000),
        _ => return None,
    };
    Some(Format {
        payload_type: u8::try_from(payload_type).ok()?,
        name: name.as_bytes(),
        clock_rate,
    })
}

/// `a=rtpmap` of a payload type overrides the static assignment.
fn add_format<'a>(formats: &mut Vec<Format<'a>>, added: Format<'a>) {
    if let Some(known) = formats.iter_mut().find(|known| known.payload_type == added.payload_type) {
        *known = added;
    } else if formats.len() < MOST_FORMATS {
        formats.push(added);
    }
}

fn connection(text: &[u8], line: &mut SdpMedia) {
    if let Some(word) = words(text).nth(2) {
        line.address = word.split(|&byte| byte == b'/').next().and_then(address);
    }
}

fn attribute<'a>(text: &'a [u8], line: &mut SdpMedia<'a>) {
    let colon = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
    let value = trim(text.get(colon + 1..).unwrap_or_default());
    match &text[..colon] {
        b"sendrecv" => line.direction = Direction::SendRecv,
        b"sendonly" => line.direction = Direction::SendOnly,
        b"recvonly" => line.direction = Direction::RecvOnly,
        b"inactive" => line.direction = Direction::Inactive,
        b"rtcp-mux" => line.rtcp_mux = true,
        b"rtpmap" => {
            if let Some(added) = format(value) {
                add_format(&mut line.formats, added);
            }
        }
        b"ptime" => line.ptime = number(value).filter(|ms| *ms < 10_000).or(line.ptime),
        b"rtcp" => {
            let mut words = words(value);
            line.rtcp_port = words
                .next()
                .and_then(number)
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port != 0);
            line.rtcp_address = words.nth(2).and_then(address);
        }
        _ => {}
    }
}

/// `0 PCMU/8000`, `111 opus/48000/2`.
fn format(value: &[u8]) -> Option<Format<'_>> {
    let mut words = words(value);
    let payload_type = words.next().and_then(number).and_then(|number| u8::try_from(number).ok())?;
    let mut parts = words.next()?.split(|&byte| byte == b'/');
    let name = parts.next().filter(|name| (1..=LONGEST_NAME).contains(&name.len()))?;
    let clock_rate = parts.next().and_then(number)?;
    Some(Format {
        payload_type,
        name,
        clock_rate,
    })
}
