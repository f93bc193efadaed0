//! U and L: the media address of one party, and the request for a port of the relay.

use crate::command::Session;
use crate::error::{Fault, ParseError};
use crate::modifiers::{MediaFlags, parse_address};
use crate::tag::Tag;
use crate::words::number;
use shunt_net::Endpoint;
use std::net::IpAddr;

/// The part that only U and L have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Media<'a> {
    pub session: Session<'a>,
    pub flags: MediaFlags<'a>,
    /// The media address as sent; `-` if there is none.
    pub address: &'a [u8],
    pub port: u16,
    pub notify: Option<NotifyArguments<'a>>,
}

/// Where the relay reports a media time-out; only on U.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyArguments<'a> {
    pub socket: &'a [u8],
    /// Offset of the socket in the command.
    pub at: usize,
    /// Still URL-encoded: [`crate::notify_line`] makes the notice.
    pub tag: Option<&'a [u8]>,
}

type Word<'a> = (usize, &'a [u8]);

impl<'a> Media<'a> {
    /// `callid address port from [to] [socket tag] …`. Also returns the remaining arguments.
    pub(crate) fn parse(verb: char, flags: MediaFlags<'a>, args: &[Word<'a>], end: usize) -> Result<(Self, Vec<&'a [u8]>), ParseError> {
        const NAMES: [&str; 4] = ["call-id", "address", "port", "from-tag"];
        if let Some(missing) = NAMES.get(args.len()) {
            return Err(ParseError::new(Fault::Missing(verb, missing), end));
        }
        let ((_, call_id), (_, address), (_, from)) = (args[0], args[1], args[3]);
        let port = parse_port(args[2])?;
        let (to, notify, rest) = split_rest(verb, &args[4..]);
        let session = Session {
            call_id,
            from: Tag::parse(from),
            to: to.map(|(_, tag)| Tag::parse(tag)),
        };
        let notify = match notify {
            [] => None,
            [(at, socket)] => Some(NotifyArguments {
                socket,
                at: *at,
                tag: None,
            }),
            [(at, socket), tag, ..] => Some(NotifyArguments {
                socket,
                at: *at,
                tag: Some(check_escapes(*tag)?),
            }),
        };
        let rest = rest.iter().map(|(_, word)| *word).collect();
        Ok((
            Self {
                session,
                flags,
                address,
                port,
                notify,
            },
            rest,
        ))
    }

    /// `address port` of a sub-command L.
    pub(crate) fn answer(flags: MediaFlags<'a>, session: Session<'a>, address: Word<'a>, port: Word<'a>) -> Result<Self, ParseError> {
        Ok(Self {
            session,
            flags,
            address: address.1,
            port: parse_port(port)?,
            notify: None,
        })
    }

    /// The address; `None` for `-` and for a host name.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        parse_address(self.address).map(|address| address.to_canonical())
    }

    /// The media address and port; `None` without an address, and for the null address.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.ip().filter(|ip| !ip.is_unspecified()).map(|ip| Endpoint::new(ip, self.port))
    }

    /// The null address: hold by older phones (RFC 3264 section 8.4).
    #[must_use]
    pub fn on_hold(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Whether no address was given.
    #[must_use]
    pub fn is_dash(&self) -> bool {
        self.address == b"-"
    }
}

fn parse_port((at, word): Word) -> Result<u16, ParseError> {
    let port = number(word, 5).and_then(|port| u16::try_from(port).ok());
    port.ok_or(ParseError::new(Fault::Port, at))
}

/// A SIP tag is a token (RFC 3261 section 25.1), which has neither ":" nor "/". Every notify socket has one of them.
fn looks_like_socket(word: &[u8]) -> bool {
    word.iter().any(|byte| matches!(byte, b':' | b'/'))
}

/// The arguments after the from-tag: to-tag, notify arguments, and the remaining ones.
fn split_rest<'s, 'a>(verb: char, rest: &'s [Word<'a>]) -> (Option<Word<'a>>, &'s [Word<'a>], &'s [Word<'a>]) {
    if verb == 'L' || rest.len() <= 1 {
        return (rest.first().copied(), &[], rest.get(1..).unwrap_or_default());
    }
    if let [first, second] = rest {
        // `from socket tag`. Or Kamailio's `from to socket` of a re-INVITE with timeout_socket set, which rtpproxy reads as socket and tag.
        if looks_like_socket(second.1) && !looks_like_socket(first.1) {
            return (Some(*first), &rest[1..], &[]);
        }
        return (None, rest, &[]);
    }
    (Some(rest[0]), &rest[1..3], &rest[3..])
}

fn check_escapes((at, tag): Word<'_>) -> Result<&[u8], ParseError> {
    let bad = |&(i, byte): &(usize, &u8)| *byte == b'%' && !tag.get(i + 1..i + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    match tag.iter().enumerate().find(bad) {
        Some((i, _)) => Err(ParseError::new(Fault::NotifyTag, at + i)),
        None => Ok(tag),
    }
}
