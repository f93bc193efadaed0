//! The list of sessions, an extension of shunt-relay (capability [`crate::capability::SESSION_LISTING`]).
//!
//! `Is <number>` asks for the sessions behind a number, first 0. The reply is one line: the number to ask with next (0: there are no more),
//! then ` && ` and the words of each session: `callid fromtag;N totag;N|- ttl complete|setup CALLER CALLEE notify|- tag|-`. A party is
//! `relay/signalled/learned/flags`, each `-` where there is none; the relay's port is the one that the party sends to, flags are `a` for an
//! asymmetric leg.

use crate::modifiers::parse_address;
use crate::reply::split_parts;
use crate::words::{Words, number};
use shunt_net::Endpoint;
use std::fmt::Write as _;

/// Usable bytes of a reply, so that it fits a datagram with its cookie.
const FULL: usize = 16_000;

/// One party of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// Where the party sends to.
    pub relay: Option<Endpoint>,
    pub signalled: Option<Endpoint>,
    /// The latched source of its RTP.
    pub learned: Option<Endpoint>,
    pub asymmetric: bool,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub call_id: &'a [u8],
    /// The tag of the first U's sender, with the media index.
    pub from: &'a [u8],
    pub to: Option<&'a [u8]>,
    /// The media time-out, s.
    pub ttl: u64,
    /// Whether it was answered.
    pub complete: bool,
    /// The party that the first U described.
    pub caller: Party,
    pub callee: Party,
    /// Notify socket and tag, URL-encoded.
    pub notify: Option<(Vec<u8>, Vec<u8>)>,
}

fn write_endpoint(out: &mut String, endpoint: Option<Endpoint>) {
    // Writing to a String cannot fail.
    let _ = match endpoint {
        Some(endpoint) => write!(out, "{endpoint}/"),
        None => write!(out, "-/"),
    };
}

fn read_endpoint(text: &[u8]) -> Option<Option<Endpoint>> {
    if text == b"-" {
        return Some(None);
    }
    let at = text.iter().rposition(|&byte| byte == b':')?;
    let host = text[..at]
        .strip_prefix(b"[")
        .and_then(|host| host.strip_suffix(b"]"))
        .unwrap_or(&text[..at]);
    let port = u16::try_from(number(&text[at + 1..], 5)?).ok()?;
    Some(Some(Endpoint::new(parse_address(host)?, port)))
}

impl Party {
    fn write(self, out: &mut String) {
        for endpoint in [self.relay, self.signalled, self.learned] {
            write_endpoint(out, endpoint);
        }
        out.push(if self.asymmetric { 'a' } else { '-' });
    }

    fn read(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&byte| byte == b'/');
        let mut endpoint = || read_endpoint(parts.next()?);
        let (relay, signalled, learned) = (endpoint()?, endpoint()?, endpoint()?);
        Some(Self {
            relay,
            signalled,
            learned,
            asymmetric: parts.next()?.contains(&b'a'),
        })
    }
}

impl<'a> Record<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut middle = format!(" {} {} ", self.ttl, if self.complete { "complete" } else { "setup" });
        self.caller.write(&mut middle);
        middle.push(' ');
        self.callee.write(&mut middle);
        let (socket, tag) = self.notify.as_ref().map_or((&b"-"[..], &b"-"[..]), |(socket, tag)| (socket, tag));
        for part in [
            b" && ",
            self.call_id,
            b" ",
            self.from,
            b" ",
            self.to.unwrap_or(b"-"),
            middle.as_bytes(),
            b" ",
            socket,
            b" ",
            tag,
        ] {
            out.extend_from_slice(part);
        }
    }

    fn read(part: &'a [u8]) -> Option<Self> {
        let mut words = Words::new(part).map(|(_, word)| word);
        let mut word = || words.next();
        let dash = |word: &'a [u8]| (word != b"-").then_some(word);
        Some(Self {
            call_id: word()?,
            from: word()?,
            to: dash(word()?),
            ttl: number(word()?, 19)?,
            complete: word()? == b"complete",
            caller: Party::read(word()?)?,
            callee: Party::read(word()?)?,
            notify: match (word()?, word()?) {
                (b"-", _) => None,
                (socket, tag) => Some((socket.to_vec(), tag.to_vec())),
            },
        })
    }
}

/// Writes a reply.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    records: Vec<u8>,
    next: u64,
    full: bool,
}

impl Writer {
    /// Adds the session with this number; false if the reply is full, and the session belongs to the next one.
    pub fn add(&mut self, number: u64, record: &Record) -> bool {
        if self.records.len() >= FULL {
            self.full = true;
            return false;
        }
        record.write(&mut self.records);
        self.next = number;
        true
    }

    /// The reply.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let next = if self.full { self.next } else { 0 };
        [next.to_string().into_bytes(), self.records].concat()
    }
}

/// The command that requests the sessions after a number.
#[must_use]
pub fn ask(after: u64) -> Vec<u8> {
    format!("Is {after}").into_bytes()
}

/// The next number to request (`None`: no more sessions) and the sessions of a reply. `None` for another reply. Malformed sessions are
/// omitted.
#[must_use]
pub fn read(reply: &[u8]) -> Option<(Option<u64>, Vec<Record<'_>>)> {
    let mut parts = split_parts(reply);
    let next = number(parts.next()?, 19)?;
    Some(((next != 0).then_some(next), parts.filter_map(Record::read).collect()))
}
