//! What happened, for people: an event of the admin API, and for some a line of the log.

use shunt_admin::{
    AgentFacts, AgentWhat, CallFacts, CallWhat, ControlFacts, Direction, EndedFacts, EndedLine, EndedParty, Entry, Event, EventLog, Facts,
    Format, LinkFacts, LinkWhat, SdpLine, SipFacts, SipStart, StateFacts, Text,
};
use shunt_calls::{Book, Counters, Ended, LineView, Reason, Refusal, RelayEntry, State, StreamId, Time};
use shunt_hep::sip::{Message, SdpMedia};
use shunt_latch::Found;
use shunt_net::Endpoint;
use shunt_rtpproxy::Command;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Bytes of a command or reply that an event holds.
const KEPT: usize = 1024;

/// Where events go.
#[derive(Debug)]
pub struct Events {
    /// `None`: nowhere.
    log: Option<EventLog>,
}

/// A command that has had its reply.
pub struct Answered<'a> {
    pub command: &'a Command<'a>,
    /// `None`: no reply.
    pub reply: Option<&'a [u8]>,
    pub peer: Option<IpAddr>,
    pub took: Duration,
    pub relay: Option<&'a str>,
}

/// An endpoint as the standard library has it.
#[must_use]
pub fn socket(endpoint: Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.addr, endpoint.port)
}

/// An entry as the admin API has it.
#[must_use]
pub fn entry(entry: RelayEntry) -> Entry {
    Entry {
        source: socket(entry.key().src),
        destination: socket(entry.key().dst),
        new_source: Some(socket(entry.new_source())),
        new_destination: Some(socket(entry.new_destination())),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn counted(counters: Counters) -> Option<shunt_admin::Counters> {
    (counters.packets > 0).then(|| counters.into())
}

impl Events {
    #[must_use]
    pub fn new(log: Option<EventLog>) -> Self {
        Self { log }
    }

    #[must_use]
    pub fn log(&self) -> Option<&EventLog> {
        self.log.as_ref()
    }

    fn append(&self, make: impl FnOnce() -> Event) {
        if let Some(log) = &self.log {
            log.append(make());
        }
    }

    /// A command was answered, or not.
    pub fn command(&self, answered: &Answered) {
        self.append(|| {
            let command = answered.command;
            let session = command.session();
            let facts = ControlFacts {
                verb: command.raw.first().map(|verb| char::from(verb.to_ascii_uppercase())),
                command: Text::cut(command.raw, KEPT),
                reply: answered.reply.map(|reply| Text::cut(reply, KEPT)),
                relay: answered.relay.map(|name| name.as_bytes().into()),
                peer: answered.peer,
                took_us: micros(answered.took),
            };
            Event {
                ago: answered.took,
                call: session.map(|session| session.call_id.into()),
                media: session.and_then(|session| session.from.media),
                ..Event::of_agent(Facts::Control(Box::new(facts)))
            }
        });
    }

    /// A copy of a SIP message.
    pub fn sip(&self, source: Endpoint, destination: Endpoint, message: &Message) {
        self.append(|| {
            let known = |end: Endpoint| (end.port != 0).then(|| socket(end));
            let start = match (message.method(), message.status()) {
                (Some(method), _) => SipStart::Method(method.into()),
                (None, status) => SipStart::Status(status.unwrap_or(0)),
            };
            let facts = SipFacts {
                start,
                phrase: None,
                source: known(source),
                destination: known(destination),
                cseq_method: message.cseq_method().into(),
                cseq: None,
                from: None,
                to: None,
                from_tag: Some(message.from_tag().into()),
                to_tag: message.to_tag().map(Into::into),
                request_uri: None,
                user_agent: None,
                reason: None,
                sdp: message.sdp().map(|sdp| sdp.media.iter().map(sdp_line).collect()),
            };
            Event::of_call(message.call_id(), Facts::Sip(Box::new(facts)))
        });
    }

    /// A limit has refused a session.
    pub fn refused(&self, command: &Command, refusal: &Refusal) {
        let call_id = command.session().map(|session| session.call_id.escape_ascii().to_string());
        tracing::warn!(call_id, "refused: {refusal}");
        self.agent(AgentWhat::Limit, &refusal.to_string());
    }

    /// A scanner is blocked.
    pub fn blocked(&self, found: Found) {
        let source = match found {
            Found::Source(source) => source.to_string(),
            Found::Address(addr) => addr.to_string(),
        };
        tracing::warn!("{source} scans ports: blocked");
    }

    /// A stream is in another state, or has another reason for it.
    pub fn changed(&self, book: &Book, id: StreamId, before: State, state: State, reason: Reason) {
        self.append(|| {
            let line = book.line(id.line);
            let stream = line.map(|line| line.stream(id.sender, id.component));
            let stays = state == State::Offloaded;
            let facts = StateFacts {
                state,
                before,
                reason,
                detail: None,
                entry: stream.and_then(|stream| stream.entry).filter(|_| stays).map(entry),
                counters: stream
                    .filter(|_| before == State::Offloaded && !stays)
                    .and_then(|stream| counted(stream.counters)),
                after_us: None,
            };
            Event {
                media: line.and_then(|line| line.media()),
                party: Some(id.sender),
                component: Some(id.component.into()),
                ..of_line(line, Facts::State(facts))
            }
        });
    }

    /// A media line has had no packet for the relay's time-out.
    pub fn timed_out(&self, line: Option<LineView>) {
        self.append(|| Event {
            media: line.and_then(|line| line.media()),
            ..of_line(line, Facts::Call(CallFacts::of(CallWhat::MediaTimeout)))
        });
    }

    /// A media line is over. `relay`: its name; `wall`: the Unix time of `now`.
    pub fn ended(&self, ended: &Ended, relay: &str, now: Time, wall: Duration) {
        self.append(|| {
            let duration = now.since(ended.created);
            let line = EndedLine {
                media: ended.media,
                reason: ended.reason,
                caller: party(&ended.caller),
                callee: party(&ended.callee),
            };
            let facts = EndedFacts {
                reason: ended.reason,
                relay: relay.as_bytes().into(),
                from_tag: (&*ended.tag).into(),
                to_tag: ended.other_tag.as_deref().map(Into::into),
                started_us: micros(wall.saturating_sub(duration)),
                duration_s: duration.as_secs_f64(),
                lines: vec![line],
            };
            Event {
                media: ended.media,
                ..Event::of_call(&ended.call, Facts::Ended(Box::new(facts)))
            }
        });
    }

    /// A relay answers again, or no longer.
    pub fn relay(&self, name: &str, up: bool) {
        self.append(|| Event::of_agent(Facts::Relay(link(name, up, None))));
    }

    /// The data plane can be used, or no longer, and why.
    pub fn data_plane(&self, target: &str, down: Option<&str>) {
        self.append(|| Event::of_agent(Facts::DataPlane(link(target, down.is_none(), down))));
    }

    /// Something happened to the agent as a whole.
    pub fn agent(&self, what: AgentWhat, detail: &str) {
        self.append(|| {
            let mut facts = AgentFacts::of(what);
            facts.detail = (!detail.is_empty()).then(|| detail.as_bytes().into());
            Event::of_agent(Facts::Agent(facts))
        });
    }

    /// Write what is queued.
    pub fn close(&self) {
        if let Some(log) = &self.log {
            log.close(Duration::from_secs(1));
        }
    }
}

fn party(ended: &shunt_calls::EndedParty) -> EndedParty {
    EndedParty {
        signalled: ended.signalled.map(socket),
        source: ended.learned.map(socket),
        relay_port: ended.relay.map(socket),
        rtp: counted(ended.rtp),
        rtcp: counted(ended.rtcp),
        payload_types: ended.payload_types.clone(),
        offloaded: ended.was_offloaded,
        source_mismatches: ended.mismatches,
        ..EndedParty::default()
    }
}

fn sdp_line(media: &SdpMedia) -> SdpLine {
    SdpLine {
        medium: media.kind.into(),
        address: media.address,
        port: media.port,
        direction: match media.direction {
            shunt_hep::sip::Direction::SendRecv => Direction::SendRecv,
            shunt_hep::sip::Direction::SendOnly => Direction::SendOnly,
            shunt_hep::sip::Direction::RecvOnly => Direction::RecvOnly,
            shunt_hep::sip::Direction::Inactive => Direction::Inactive,
        },
        formats: media
            .formats
            .iter()
            .map(|format| Format {
                payload_type: format.payload_type,
                encoding: format.name.into(),
                clock_rate: format.clock_rate,
            })
            .collect(),
        ptime_ms: media.ptime,
        rtcp_mux: media.rtcp_mux,
    }
}

fn of_line(line: Option<LineView>, facts: Facts) -> Event {
    match line {
        Some(line) => Event::of_call(line.call_id(), facts),
        None => Event::of_agent(facts),
    }
}

fn link(name: &str, up: bool, detail: Option<&str>) -> LinkFacts {
    LinkFacts {
        what: if up { LinkWhat::Up } else { LinkWhat::Down },
        name: name.as_bytes().into(),
        detail: detail.map(|detail| detail.as_bytes().into()),
    }
}
