//! The rtpproxy commands as the relay executes them: a command's bytes in, the reply's bytes out. Time comes in; sockets are behind [`Media`].
//!
//! Replies and error numbers are rtpproxy 3.2's. Where they are not, that is on purpose: U and L never answer E7 to E10, which would make
//! OpenSIPS give the whole relay up; resizing (Z) is accepted and not done, as a call with another packet time is better than none; recording,
//! copying, playing and DTMF catching are refused with an error that concerns that command alone, and VF does not claim them.

mod listing;
mod media;
mod offer;
mod shape;
mod statistics;
mod steps;
#[cfg(test)]
mod tests;

pub use media::{Counts, Media, Totals};

use crate::session::{Session, SessionId};
use crate::table::{Deletion, Table};
use crate::timeouts::Timeouts;
use shunt_control::Rare;
use shunt_latch::Time;
use shunt_notify::Permit;
use shunt_rtpproxy::framing::MAX_COMMAND;
use shunt_rtpproxy::{Command, ErrorCode, PROTOCOL_VERSION, Request, StreamVerb, Tag, capability, error_reply};
use statistics::{Ended, PacketRate};
use std::net::IpAddr;
use std::time::Duration;

/// Sessions of one Call-ID; a call has one for each media line and branch.
const MOST_OF_A_CALL: usize = 1000;

/// Dates that VF answers with 1. Not RESIZE, COPY, STOP_RECORDING and the counters of sequence tracking, which are not there; nor SUBCOMMANDS,
/// from which OpenSIPS concludes that DTMF can be caught.
pub const SUPPORTED: [u32; 16] = [
    capability::BASIC,
    capability::MULTIPLE_STREAMS,
    capability::VERSION_PARAMETER,
    capability::QUERY,
    capability::CODECS,
    capability::NOTIFY,
    capability::AUTOBRIDGE,
    capability::LOAD,
    capability::COUNTERS,
    capability::NEW_PORT,
    capability::NOTIFY_SELF,
    capability::TTL_FLAG,
    capability::TTL_MODIFIER,
    capability::TTL_SUBCOMMAND,
    capability::OFFER_AND_ANSWER,
    capability::SESSION_LISTING,
];

/// What the configuration says of sessions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The relay's own: the first is I (internal), the second E (external). Without letters both legs use the first of the packet's IP version.
    pub addresses: Vec<IpAddr>,
    /// The addresses in replies, in the order of `addresses`; empty: those themselves.
    pub advertised: Vec<IpAddr>,
    /// The media time-out.
    pub ttl: Duration,
    /// The same until the answer came.
    pub setup_ttl: Duration,
    /// Learn no addresses unless modifier S asks for it, as rtpproxy does in bridging mode.
    pub asymmetric: bool,
    /// Which notify sockets a U may name.
    pub notify: Permit,
}

impl Settings {
    /// Returns the address that a reply names for one of the relay's own.
    fn told(&self, address: IpAddr) -> IpAddr {
        let place = self.addresses.iter().position(|own| *own == address);
        place.and_then(|place| self.advertised.get(place).copied()).unwrap_or(address)
    }
}

/// A command that is not done: the reply.
#[derive(Debug)]
enum Refusal {
    Error(ErrorCode),
    /// L on an unknown session.
    Zero,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self::Error(code)
    }
}

impl Refusal {
    fn reply(&self) -> Vec<u8> {
        match self {
            Self::Error(code) => error_reply(*code),
            Self::Zero => b"0".to_vec(),
        }
    }
}

/// Executes commands on a table of sessions.
#[derive(Debug)]
pub struct Engine<M> {
    settings: Settings,
    table: Table,
    pub media: M,
    timeouts: Timeouts,
    ended: Ended,
    rate: PacketRate,
    not_understood: Rare,
    no_port: Rare,
    no_notice: Rare,
}

impl<M: Media> Engine<M> {
    #[must_use]
    pub fn new(settings: Settings, media: M) -> Self {
        Self {
            settings,
            table: Table::default(),
            media,
            timeouts: Timeouts::default(),
            ended: Ended::default(),
            rate: PacketRate::default(),
            not_understood: Rare::default(),
            no_port: Rare::default(),
            no_notice: Rare::default(),
        }
    }

    /// How many sessions there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.table.len()
    }

    /// A command came again, and was answered as before.
    pub fn on_repetition(&mut self) {
        self.ended.commands += 1;
        self.ended.duplicates += 1;
    }

    /// The reply to one command, both without cookie and line end. `peer`: the sender's address, if it has one.
    pub fn execute(&mut self, now: Time, body: &[u8], peer: Option<IpAddr>) -> Vec<u8> {
        self.ended.commands += 1;
        match self.run(now, body, peer) {
            Ok(reply) => {
                self.ended.succeeded += 1;
                reply
            }
            Err(refusal) => {
                self.ended.failed += 1;
                refusal.reply()
            }
        }
    }

    fn run(&mut self, now: Time, body: &[u8], peer: Option<IpAddr>) -> Result<Vec<u8>, Refusal> {
        let command = self.read(now, body)?;
        let found = command.session().and_then(|about| {
            let to = about.to.map(|tag| tag.raw);
            self.table.find(about.call_id, about.from.raw, to)
        });
        match &command.request {
            Request::Version => Ok(PROTOCOL_VERSION.to_string().into_bytes()),
            Request::Capability => Ok(if supports(&command) { b"1".to_vec() } else { b"0".to_vec() }),
            Request::Update(media) => self.update(now, &command, media, found, peer),
            Request::Lookup(media) => self.lookup(now, &command, media, found),
            Request::Delete(about) => self.delete(now, &command, about.call_id, about.from, about.to),
            Request::Query(_) => self.query(now, &command, found),
            Request::Stream(verb, _) => self.stream(*verb, found),
            Request::Info if command.has_modifier(b'S') => self.list(&command),
            Request::Info => self.info(now, &command),
            Request::Statistics => self.statistics(now, &command),
            Request::DeleteAll => {
                for session in self.table.clear() {
                    self.removed(now, &session);
                }
                Ok(b"0".to_vec())
            }
            Request::Unknown => Err(ErrorCode::UNKNOWN_COMMAND.into()),
        }
    }

    /// Count the words and read the command.
    fn read<'a>(&mut self, now: Time, body: &'a [u8]) -> Result<Command<'a>, Refusal> {
        let result = if body.len() > MAX_COMMAND {
            Err(ErrorCode::SYNTAX)
        } else {
            shape::check(body).and_then(|()| Command::parse(body).map_err(|error| error.fault.code()))
        };
        result.map_err(|code| {
            if let Some(left_out) = self.not_understood.write(now) {
                let shown = body[..body.len().min(120)].escape_ascii();
                let meaning = code.describe().map_or("", |(_, meaning)| meaning);
                tracing::info!(
                    "command of {} bytes answered with {code} ({meaning}): {shown}; {left_out} more since the last such line",
                    body.len()
                );
            }
            code.into()
        })
    }

    fn delete(&mut self, now: Time, command: &Command, call_id: &[u8], from: Tag, to: Option<Tag>) -> Result<Vec<u8>, Refusal> {
        if !command.modifiers.iter().all(|byte| byte.eq_ignore_ascii_case(&b'w')) {
            return Err(ErrorCode::BAD_DELETE_MODIFIER.into());
        }
        let done = self.drop_sessions(now, call_id, from.raw, to.map(|tag| tag.raw), !command.modifiers.is_empty());
        if done.matched() {
            Ok(b"0".to_vec())
        } else {
            Err(ErrorCode::SESSION_NOT_FOUND.into())
        }
    }

    fn drop_sessions(&mut self, now: Time, call_id: &[u8], from: &[u8], to: Option<&[u8]>, weak: bool) -> Deletion {
        let done = self.table.delete(call_id, from, to, weak);
        for session in &done.removed {
            self.removed(now, session);
        }
        done
    }

    /// A session is out of the table.
    fn removed(&mut self, now: Time, session: &Session) {
        self.timeouts.forget(session.id);
        let counts = self.media.close(now, session.id);
        self.ended.add(now, session, &counts);
    }

    /// P, R and C are refused; S and N stop what never runs here, so they succeed.
    fn stream(&mut self, verb: StreamVerb, found: Option<(SessionId, usize)>) -> Result<Vec<u8>, Refusal> {
        found.ok_or(ErrorCode::SESSION_NOT_FOUND)?;
        match verb {
            StreamVerb::StopPlaying | StreamVerb::StopRecording => Ok(b"0".to_vec()),
            StreamVerb::Play => Err(ErrorCode::CANNOT_PLAY.into()),
            StreamVerb::Record | StreamVerb::Copy => Err(ErrorCode::CANNOT_RECORD.into()),
        }
    }

    /// The session may time out at another time than before.
    fn look_again(&mut self, now: Time, id: SessionId) {
        if let Some(session) = self.table.get(id) {
            // At least a moment ahead: what is due now would be due again at once.
            let due = session.due(self.media.last_packet(id)).max(now + Duration::from_millis(10));
            self.timeouts.look(id, due);
        }
    }

    /// End the sessions whose time is up; they come back, with their notices.
    pub fn sweep(&mut self, now: Time) -> Vec<Session> {
        let mut over = Vec::new();
        while let Some(id) = self.timeouts.next(now) {
            let Some(session) = self.table.get(id) else { continue };
            if session.due(self.media.last_packet(id)) > now {
                self.look_again(now, id);
                continue;
            }
            if let Some(session) = self.table.remove(id) {
                self.removed(now, &session);
                self.ended.timeouts += 1;
                over.push(session);
            }
        }
        over
    }
}

fn supports(command: &Command) -> bool {
    let date = command
        .arguments
        .first()
        .and_then(|date| std::str::from_utf8(date).ok()?.parse::<u32>().ok());
    date.is_some_and(|date| SUPPORTED.contains(&date))
}
