//! Replies, read and written.

use crate::error::{ErrorCode, Fault, ParseError};
use crate::modifiers::parse_address;
use crate::words::{Words, number, trim, trim_line_end};
use shunt_net::Endpoint;
use std::fmt;
use std::net::IpAddr;

/// A reply, or one part of a reply to a command with sub-commands, without cookie and line end. Its meaning depends on the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub raw: &'a [u8],
}

/// A reply that begins with a port: `36884 10.91.1.1`, `36318 fd91:1::1 6`, `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortReply {
    /// 0: rejected, the answer to L for an unknown session.
    pub port: u16,
    pub address: Option<IpAddr>,
    /// The third word: `6` (rtpproxy, IPv6 only), or `4` or `6` (rtpengine, always).
    pub family: Option<u8>,
}

/// One part of the reply to U or L.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortsReply<'a> {
    Port(PortReply),
    Error(ErrorCode),
    /// A sub-command's own answer.
    Other(&'a [u8]),
}

impl<'a> Reply<'a> {
    /// Drops a line end.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self { raw: trim_line_end(body) }
    }

    fn words(&self) -> Words<'a> {
        Words::new(self.raw)
    }

    /// The number of an error reply.
    #[must_use]
    pub fn error(&self) -> Option<ErrorCode> {
        let (b'E' | b'e', digits) = trim(self.raw).split_first()? else {
            return None;
        };
        number(digits, 3).and_then(|code| u16::try_from(code).ok()).map(ErrorCode)
    }

    /// The reply as a number: of V, VF, D, X and S.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        number(trim(self.raw), 19)
    }

    /// The reply as a port; `None` for other replies.
    #[must_use]
    pub fn port(&self) -> Option<PortReply> {
        let mut words = self.words().map(|(_, word)| word);
        let port = u16::try_from(number(words.next()?, 19)?).ok()?;
        let Some(address) = words.next() else {
            return Some(PortReply {
                port,
                address: None,
                family: None,
            });
        };
        let address = Some(parse_address(address)?.to_canonical());
        let family = words.next();
        if words.next().is_some() {
            return None;
        }
        let family = family.and_then(|word| number(word, 1)).and_then(|family| u8::try_from(family).ok());
        Some(PortReply { port, address, family })
    }

    /// Whether the relay executed sub-command `number` (from 0). The first failure, a negative number, ends the sequence. Successes without
    /// an answer are omitted at the end of the reply. Not for a reply that rejects the command itself.
    #[must_use]
    pub fn has_done(&self, number: usize) -> bool {
        split_parts(self.raw)
            .skip(1)
            .take(number + 1)
            .all(|part| part.first() != Some(&b'-'))
    }

    /// The parts of a reply to U or L: its own, then one for each sub-command that answered.
    ///
    /// # Errors
    /// The first part is neither a port nor an error.
    pub fn ports(&self) -> Result<Vec<PortsReply<'a>>, ParseError> {
        let parts: Vec<PortsReply<'a>> = split_parts(self.raw).map(part).collect();
        match parts.first() {
            None | Some(PortsReply::Other(_)) => Err(ParseError::new(Fault::NoPort, 0)),
            Some(_) => Ok(parts),
        }
    }
}

fn part(raw: &[u8]) -> PortsReply<'_> {
    let reply = Reply::new(raw);
    match (reply.error(), reply.port()) {
        (Some(code), _) => PortsReply::Error(code),
        (None, Some(port)) => PortsReply::Port(port),
        (None, None) => PortsReply::Other(reply.raw),
    }
}

/// The text between the `&&`, without surrounding blanks.
pub(crate) fn split_parts(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut marks = Words::new(raw).filter(|(_, word)| *word == b"&&").map(|(at, _)| at);
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let start = next?;
        let mark = marks.next();
        next = mark.map(|mark| mark + 2);
        Some(trim(&raw[start..mark.unwrap_or(raw.len())]))
    })
}

impl PortReply {
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let family = endpoint.addr.is_ipv6().then_some(6);
        Self {
            port: endpoint.port,
            address: Some(endpoint.addr),
            family,
        }
    }

    /// The relay's address and port; `None` if one is missing, for port 0 and for the null address.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        let address = self.address.filter(|address| !address.is_unspecified())?;
        (self.port != 0).then(|| Endpoint::new(address, self.port))
    }
}

/// As on the wire.
impl fmt::Display for PortReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.port)?;
        if let Some(address) = self.address {
            write!(f, " {address}")?;
        }
        self.family.map_or(Ok(()), |family| write!(f, " {family}"))
    }
}

/// The body of an error reply: `E50`.
#[must_use]
pub fn error_reply(code: ErrorCode) -> Vec<u8> {
    code.to_string().into_bytes()
}

/// The reply to I, one line for each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Info {
    pub sessions_created: u64,
    pub active_sessions: u64,
    pub active_streams: u64,
    pub packets_received: u64,
    pub packets_transmitted: u64,
    /// Modifier l: share of a processor, percent.
    pub average_load: Option<f64>,
}

impl Info {
    /// `None` if a line is missing. Unknown lines are ignored.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let find = |wanted: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(wanted)?.strip_prefix(':'))
                .map(str::trim)
        };
        Some(Self {
            sessions_created: find("sessions created")?.parse().ok()?,
            active_sessions: find("active sessions")?.parse().ok()?,
            active_streams: find("active streams")?.parse().ok()?,
            packets_received: find("packets received")?.parse().ok()?,
            packets_transmitted: find("packets transmitted")?.parse().ok()?,
            average_load: find("average load").and_then(|value| value.parse().ok()),
        })
    }
}

/// As on the wire, without the last line end.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sessions created: {}", self.sessions_created)?;
        writeln!(f, "active sessions: {}", self.active_sessions)?;
        writeln!(f, "active streams: {}", self.active_streams)?;
        writeln!(f, "packets received: {}", self.packets_received)?;
        write!(f, "packets transmitted: {}", self.packets_transmitted)?;
        self.average_load.map_or(Ok(()), |load| write!(f, "\naverage load: {load:.6}"))
    }
}
