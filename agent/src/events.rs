//! Reports what happened: as an event of the admin API, and for some events as a log line.

use crate::captures::Captures;
use crate::facts::{KEPT, counted, entry, happened, micros, table};
use crate::{clock::Clock, facts};
use shunt_admin::{
    AgentFacts, AgentWhat, CallFacts, CallWhat, ControlFacts, Event, EventLog, Facts, LearnFacts, LinkFacts, LinkWhat, Repeated, Repeats,
    StateFacts, Text, Verdict,
};
use shunt_calls::{Book, Ended, Happening, LineId, LineView, Notice, Reason, Refusal, RelayId, State, StreamId, Time};
use shunt_control::Rare;
use shunt_hep::sip::Message;
use shunt_latch::Found;
use shunt_net::Endpoint;
use shunt_plane::Written;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Coalescing window for packets with the same source and verdict, and the number of combinations that are distinguished.
const GATHERED: Duration = Duration::from_secs(1);
const MOST_GATHERED: usize = 512;

/// A limit that is reached repeatedly is one event until it was not reached for this time.
const CALM: Duration = Duration::from_secs(60);

/// When a limit was last reached.
#[derive(Debug, Default)]
struct Episode(Option<Duration>);

impl Episode {
    /// Records that the limit is reached. Returns true for the first time after a pause.
    fn begins(&mut self, now: Duration) -> bool {
        let last = self.0.replace(now);
        last.is_none_or(|last| now.saturating_sub(last) >= CALM)
    }
}

/// Packets with the same stream, source and verdict as an earlier one.
type Alike = (StreamId, Endpoint, Verdict);

/// Destination of events.
pub struct Events {
    /// `None`: events are discarded.
    log: Option<EventLog>,
    captures: Captures,
    clock: Clock,
    learned: Mutex<Repeats<Alike, Event>>,
    overflow: Mutex<Episode>,
    limits: Mutex<Rare>,
}

/// An answered command.
pub struct Answered<'a> {
    pub body: &'a [u8],
    /// A letter of rtpproxy's protocol, a word of NG. `None`: it was not understood.
    pub verb: Option<Box<str>>,
    /// The Call-ID.
    pub call: Option<&'a [u8]>,
    pub media: Option<u32>,
    /// `None`: no reply.
    pub reply: Option<&'a [u8]>,
    pub peer: Option<IpAddr>,
    pub took: Duration,
    /// `None`: no relay was asked.
    pub relay: Option<&'a str>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    #[must_use]
    pub fn new(log: Option<EventLog>, clock: Clock) -> Self {
        Self {
            log,
            captures: Captures::default(),
            clock,
            learned: Mutex::new(Repeats::new(GATHERED, MOST_GATHERED)),
            overflow: Mutex::default(),
            limits: Mutex::default(),
        }
    }

    #[must_use]
    pub fn log(&self) -> Option<&EventLog> {
        self.log.as_ref()
    }

    #[must_use]
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    fn append(&self, make: impl FnOnce() -> Event) {
        if let Some(log) = &self.log {
            let event = make();
            self.captures.happened(&event);
            log.append(event);
        }
    }

    /// Reports a command and its reply, if any.
    pub fn command(&self, answered: &Answered) {
        self.append(|| {
            let facts = ControlFacts {
                verb: answered.verb.clone(),
                command: Text::cut(answered.body, KEPT),
                reply: answered.reply.map(|reply| Text::cut(reply, KEPT)),
                relay: answered.relay.map(Into::into),
                peer: answered.peer,
                took_us: micros(answered.took),
            };
            Event {
                ago: answered.took,
                call: answered.call.map(Into::into),
                media: answered.media,
                ..Event::of_agent(Facts::Control(Box::new(facts)))
            }
        });
    }

    /// Reports a copy of a SIP message.
    pub fn sip(&self, source: Endpoint, destination: Endpoint, message: &Message) {
        self.append(|| Event::of_call(message.call_id(), Facts::Sip(Box::new(facts::sip(source, destination, message)))));
    }

    /// Reports that a limit has rejected a session.
    pub fn refused(&self, call_id: Option<&[u8]>, refusal: &Refusal) {
        let Some(left_out) = lock(&self.limits).write(self.clock.now()) else {
            return;
        };
        let call_id = call_id.map(|call_id| call_id.escape_ascii().to_string());
        tracing::warn!(call_id, "refused: {refusal}; {left_out} more since the last such line");
        self.agent(AgentWhat::Limit, &format!("{refusal}; {left_out} more since the last such event"));
    }

    /// Reports a blocked scanner.
    pub fn blocked(&self, found: Found) {
        let source = match found {
            Found::Source(source) => source.to_string(),
            Found::Address(addr) => addr.to_string(),
        };
        tracing::warn!("{source} scans ports: blocked");
    }

    /// Reports a packet without an entry. The first of its kind is an event, those of the next second are one more.
    pub fn learned(&self, book: &Book, stream: StreamId, notice: &Notice, verdict: Verdict) {
        if self.log.is_none() {
            return;
        }
        let make = |count| of_stream(book, stream, Facts::Learn(facts::learned(notice, verdict, count)));
        let alike = (stream, notice.key.src, verdict);
        if lock(&self.learned).admit(self.clock.uptime(), &alike, || make(0)) {
            self.append(|| make(1));
        }
    }

    /// Reports the collected packets after their second.
    pub fn tell_gathered(&self) {
        let now = self.clock.uptime();
        let mut learned = lock(&self.learned);
        while let Some(repeated) = learned.take_ended(now) {
            self.append(|| gathered(repeated, now));
        }
        if learned.take_others() > 0 && lock(&self.overflow).begins(now) {
            let detail =
                format!("packets that meet no entry come from more than {MOST_GATHERED} sources a second: further sources have no event");
            self.agent(AgentWhat::Limit, &detail);
        }
    }

    /// Reports a stream's new state or reason.
    pub fn changed(&self, book: &Book, id: StreamId, before: State, state: State, reason: Reason, after: Option<Duration>) {
        self.append(|| {
            let line = book.line(id.line);
            let stream = line.map(|line| line.stream(id.sender, id.component));
            let stays = state == State::Offloaded;
            let facts = StateFacts {
                state,
                before,
                reason,
                detail: line.and_then(|line| line.detail(id.sender, id.component)).map(Into::into),
                entry: stream
                    .and_then(|stream| stream.entry)
                    .filter(|_| stays && before != State::Offloaded)
                    .map(entry),
                counters: stream
                    .filter(|_| before == State::Offloaded && !stays)
                    .and_then(|stream| counted(stream.counters)),
                after_us: after.map(micros),
            };
            of_stream(book, id, Facts::State(facts))
        });
    }

    /// Reports a failed write.
    pub fn write_failed(&self, book: &Book, stream: Option<StreamId>, written: &Written) {
        self.append(|| {
            let facts = Facts::Table(table(written));
            stream.map_or_else(|| Event::of_agent(facts.clone()), |stream| of_stream(book, stream, facts.clone()))
        });
    }

    /// Reports an event of a line.
    pub fn happened(&self, book: &Book, id: LineId, what: Happening) {
        self.append(|| {
            let (facts, stream) = happened(what);
            match stream {
                Some(stream) => of_stream(book, stream, Facts::Call(facts)),
                None => of_line(book.line(id), Facts::Call(facts)),
            }
        });
    }

    /// Reports an event of a whole call.
    pub fn call(&self, call_id: &[u8], what: CallWhat) {
        self.append(|| Event::of_call(call_id, Facts::Call(CallFacts::of(what))));
    }

    /// Reports that a client begins to capture a call, or has done so for this time.
    pub fn captured(&self, call_id: &[u8], client: &str, lasted: Option<Duration>) {
        let call = call_id.escape_ascii().to_string();
        match lasted {
            None => tracing::info!("{client} captures the packets of call {call}"),
            Some(lasted) => tracing::info!("{client} has captured the packets of call {call} for {:.1} s", lasted.as_secs_f64()),
        }
        self.append(|| {
            let what = lasted.map_or(CallWhat::CaptureBegun, |_| CallWhat::CaptureEnded);
            let mut facts = CallFacts::of(what);
            facts.seconds = lasted.map(|lasted| lasted.as_secs_f64());
            facts.detail = Some(client.into());
            Event::of_call(call_id, Facts::Call(facts))
        });
    }

    /// Reports that the notice of a media time-out cannot be delivered.
    pub fn notify_failed(&self, call_id: &[u8], detail: &str) {
        self.append(|| {
            let mut facts = CallFacts::of(CallWhat::NotifyFailed);
            facts.detail = Some(detail.into());
            Event::of_call(call_id, Facts::Call(facts))
        });
    }

    /// Reports the end of a call. `number`: calls that have ended, this one included; `relay`: returns a relay's name.
    pub fn ended<'a>(&self, ended: &Ended, number: u64, relay: impl Fn(RelayId) -> &'a str, now: Time) {
        self.append(|| {
            let facts = facts::ended(ended, number, relay, now, self.clock.wall());
            Event::of_call(&ended.call, Facts::Ended(Box::new(facts)))
        });
    }

    /// Reports that a relay answers again, does not answer, or has come back without its sessions.
    pub fn relay(&self, name: &str, what: LinkWhat, detail: Option<&str>) {
        self.append(|| Event::of_agent(Facts::Relay(link(name, what, detail))));
    }

    /// Reports the data plane's new state.
    pub fn data_plane(&self, target: &str, what: LinkWhat, detail: Option<&str>) {
        self.append(|| Event::of_agent(Facts::DataPlane(link(target, what, detail))));
    }

    /// Reports an event of the agent as a whole.
    pub fn agent(&self, what: AgentWhat, detail: &str) {
        self.append(|| {
            let mut facts = AgentFacts::of(what);
            facts.detail = (!detail.is_empty()).then(|| detail.into());
            Event::of_agent(Facts::Agent(facts))
        });
    }

    /// Writes the queued events.
    pub fn close(&self) {
        if let Some(log) = &self.log {
            log.close(Duration::from_secs(1));
        }
    }
}

/// Returns the event of collected packets, at the time of the last of them.
fn gathered(repeated: Repeated<Event>, now: Duration) -> Event {
    let Repeated { value: event, count, last } = repeated;
    let facts = match event.facts {
        Facts::Learn(facts) => Facts::Learn(LearnFacts { count, ..facts }),
        other => other,
    };
    Event {
        facts,
        ago: now.saturating_sub(last),
        ..event
    }
}

fn of_line(line: Option<LineView>, facts: Facts) -> Event {
    match line {
        Some(line) => Event {
            media: line.media(),
            ..Event::of_call(line.call_id(), facts)
        },
        None => Event::of_agent(facts),
    }
}

fn of_stream(book: &Book, id: StreamId, facts: Facts) -> Event {
    Event {
        party: Some(id.sender),
        component: Some(facts::component(id)),
        ..of_line(book.line(id.line), facts)
    }
}

fn link(name: &str, what: LinkWhat, detail: Option<&str>) -> LinkFacts {
    LinkFacts {
        what,
        name: name.into(),
        detail: detail.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_packets_are_told_at_the_time_of_the_last() {
        for (last, now) in [(20, 1_100), (1_100, 1_100), (5, 60_000)] {
            let repeated = Repeated {
                value: Event::of_agent(Facts::Agent(AgentFacts::of(AgentWhat::Limit))),
                count: 2,
                last: Duration::from_millis(last),
            };
            assert_eq!(
                gathered(repeated, Duration::from_millis(now)).ago,
                Duration::from_millis(now - last)
            );
        }
    }

    #[test]
    fn a_limit_that_is_met_again_and_again_is_told_once() {
        let mut episode = Episode::default();
        let told = (0..100).filter(|n| episode.begins(CALM / 4 * *n)).count();
        assert_eq!(told, 1);
        assert!(episode.begins(CALM * 100), "after a calm it is another one");
    }
}
