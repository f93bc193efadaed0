//! Commands of SIP servers: forwards each to the relay that has the call, and reports it to the call state.
//!
//! Replies are the relay's own, except that the reply to Q includes the data plane's packets.

use crate::core::Core;
use crate::events::Answered;
use crate::ports;
use crate::turns::Turns;
use shunt_calls::{RelayId, RelayKind, Side, Step};
use shunt_control::{Deadline, Kind, Patience, Rare, Sender, Service};
use shunt_net::FiveTuple;
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::{Command, ErrorCode, Reply, Request, Subcommand, add_counts, error_reply, with_notify_address};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

/// Serves the control sockets.
pub struct Commands {
    core: Arc<Core>,
    turns: Turns,
    patience: Patience,
    not_understood: Mutex<Rare>,
}

/// A reply, and the relay that gave it; `None`: the agent answers itself.
type Answer = (Option<RelayId>, Option<Vec<u8>>);

impl Service for Commands {
    fn kind(&self, body: &[u8]) -> Kind {
        Command::parse(body).map_or(Kind::Continues, |command| self.kind_of(&command))
    }

    fn on_expired(&self) {
        self.core.stats.commands_expired.inc();
    }

    async fn execute(&self, body: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let (peer, received) = (sender.ip(), received(sender));
        let began = self.core.clock().now();
        let (command, (relay, reply)) = match Command::parse(body) {
            Ok(command) => {
                self.core.stats.count_command(&command.request);
                let reply = match command.session() {
                    Some(session) => match self.turns.take(session.call_id).await {
                        Some(_turn) => {
                            let (reply, undo) = self.of_call(&command, peer, received).await;
                            if !matches!(command.request, Request::Query(_)) || !command.subcommands.is_empty() {
                                // A timely reply has priority over a slow disk.
                                let _ = timeout_at(received + self.patience.answer(), self.core.keep()).await;
                            }
                            let began = reply.1.as_deref().is_some_and(|reply| Reply::new(reply).error().is_none());
                            match undo {
                                Some(undo) if began && self.patience.is_over(received) => {
                                    self.undo(&undo, peer, received).await;
                                    (reply.0, None)
                                }
                                _ => reply,
                            }
                        }
                        None => (None, None),
                    },
                    None => self.of_none(&command).await,
                };
                (Some(command), reply)
            }
            Err(error) => {
                self.log_not_understood(&error);
                (None, self.pass(None, body).await)
            }
        };
        let took = self.core.clock().now().since(began);
        if let Some(command) = &command {
            self.core.stats.command_took(&command.request, took);
        }
        let session = command.as_ref().and_then(Command::session);
        self.core.events().command(&Answered {
            body,
            verb: command.as_ref().and_then(verb),
            call: session.map(|session| session.call_id),
            media: session.and_then(|session| session.from.media),
            reply: reply.as_deref(),
            peer,
            took,
            relay: relay
                .and_then(|relay| self.core.relays().get(relay))
                .map(|relay| relay.name.as_str()),
        });
        reply
    }
}

impl Commands {
    #[must_use]
    pub fn new(core: Arc<Core>, patience: Patience) -> Self {
        Self {
            core,
            patience,
            turns: Turns::default(),
            not_understood: Mutex::default(),
        }
    }

    fn log_not_understood(&self, error: &shunt_rtpproxy::ParseError) {
        self.core.stats.not_understood.inc();
        let mut rare = self.not_understood.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = rare.write(self.core.clock().now()) {
            tracing::info!("passing on a command that is not understood: {error}; {left_out} more since the last such line");
        }
    }

    /// Sends a command to a relay unchanged; without a relay, to the first one that is alive.
    async fn pass(&self, relay: Option<RelayId>, body: &[u8]) -> Answer {
        let relays = self.core.relays();
        let Some(relay) = relay.or_else(|| relays.best(RelayKind::Rtpproxy)) else {
            return (None, None);
        };
        (Some(relay), relays.forward(relay, body, None).await)
    }

    /// Returns whether a command starts a call: a U for an unknown line, unless it names the callee. Then the call was set up without this
    /// agent.
    fn kind_of(&self, command: &Command) -> Kind {
        match &command.request {
            Request::Delete(_) | Request::DeleteAll => Kind::Ends,
            Request::Update(media) if media.session.to.is_none() && self.core.read(|book| book.line_of(&media.session).is_none()) => {
                Kind::Begins
            }
            _ => Kind::Continues,
        }
    }

    // -- commands without a call --------------------------------------------------------------------

    async fn of_none(&self, command: &Command<'_>) -> Answer {
        let relays = self.core.relays();
        match command.request {
            Request::DeleteAll => {
                self.core.restored().await;
                self.core.command(command);
                self.core.keep().await;
                let mut first = None;
                for relay in relays.ids_of(RelayKind::Rtpproxy) {
                    let reply = relays.forward(relay, command.raw, None).await;
                    first = first.or(reply.map(|reply| (relay, reply)));
                }
                first.map_or((None, None), |(relay, reply)| (Some(relay), Some(reply)))
            }
            Request::Capability => {
                // A capability counts only if every relay has it, because any of them may get the call.
                let mut least: Option<(RelayId, Vec<u8>)> = None;
                for relay in relays.living(RelayKind::Rtpproxy) {
                    let Some(reply) = relays.forward(relay, command.raw, None).await else {
                        continue;
                    };
                    if least.as_ref().is_none_or(|(_, least)| reply < *least) {
                        least = Some((relay, reply));
                    }
                }
                least.map_or((None, None), |(relay, reply)| (Some(relay), Some(reply)))
            }
            _ => self.pass(None, command.raw).await,
        }
    }

    // -- commands of a call ---------------------------------------------------------------------

    /// Returns the reply, and for a command that starts a call the command that ends it.
    async fn of_call(&self, command: &Command<'_>, peer: Option<IpAddr>, received: Instant) -> (Answer, Option<Vec<u8>>) {
        let copied = command.steps().filter_map(|step| match step {
            Subcommand::Copy(session) => Some(session.call_id),
            _ => None,
        });
        for call_id in command.session().map(|session| session.call_id).into_iter().chain(copied) {
            self.core.restorer().restore_call(&self.core, call_id).await;
        }
        let (step, waits) = self.core.command(command);
        let known = match step {
            Step::Answer(reply) => return ((None, Some(reply)), None),
            Step::Pass { relay, .. } => relay,
        };
        wait_for(waits).await;
        let kind = self.kind_of(command);
        let undo = if kind == Kind::Begins { end_of(command) } else { None };
        let deadline = Deadline {
            send: received + self.patience.send(kind),
            undo: undo.as_deref().map(|undo| (received + self.patience.answer(), undo)),
        };
        let deadline = (kind != Kind::Ends).then_some(deadline);
        let answer = match &command.request {
            Request::Update(_) | Request::Lookup(_) => self.offer_answer(command, known, peer, deadline).await,
            Request::Query(_) => self.query(command, known, peer).await,
            _ => match self.somewhere(command, known, command.raw, deadline).await {
                Some((relay, reply)) => {
                    self.took(command, peer, relay, reply.as_deref());
                    (Some(relay), reply)
                }
                None => (None, None),
            },
        };
        (answer, undo)
    }

    /// Ends a call whose first reply is too late: the SIP server does not know the call and would not end it.
    async fn undo(&self, delete: &[u8], peer: Option<IpAddr>, received: Instant) {
        self.core.stats.commands_expired.inc();
        if let Ok(delete) = Command::parse(delete) {
            self.of_call(&delete, peer, received).await;
        }
    }

    /// Handles the relay's reply, or its absence, to a command that requests no port.
    fn took(&self, command: &Command<'_>, peer: Option<IpAddr>, relay: RelayId, reply: Option<&[u8]>) {
        if self.core.replied(peer, relay, command, reply).is_err() {
            tracing::error!("a port in the reply to a command that asks for none");
        }
    }

    /// U and L.
    async fn offer_answer(
        &self,
        command: &Command<'_>,
        known: Option<RelayId>,
        peer: Option<IpAddr>,
        deadline: Option<Deadline<'_>>,
    ) -> Answer {
        let rewritten = peer.and_then(|peer| with_notify_address(command, peer));
        let body = rewritten.as_deref().unwrap_or(command.raw);
        let asked = match (known, &command.request) {
            (None, Request::Update(_)) => self.first_living(body, deadline).await,
            _ => self.somewhere(command, known, body, deadline).await,
        };
        let Some((relay, reply)) = asked else { return (None, None) };
        (Some(relay), ports::settle(&self.core, peer, relay, command, body, reply).await)
    }

    /// Sends a new call to the relay with the fewest sessions that answers.
    async fn first_living(&self, body: &[u8], deadline: Option<Deadline<'_>>) -> Option<(RelayId, Option<Vec<u8>>)> {
        let relays = self.core.relays();
        for relay in relays.candidates(RelayKind::Rtpproxy) {
            if let Some(reply) = relays.forward(relay, body, deadline).await {
                return Some((relay, Some(reply)));
            }
        }
        relays.best(RelayKind::Rtpproxy).map(|relay| (relay, None))
    }

    /// Sends a command to the call's relay. For an unknown call, which is older than this agent, it tries each relay until one knows the
    /// call.
    async fn somewhere(
        &self,
        command: &Command<'_>,
        known: Option<RelayId>,
        body: &[u8],
        deadline: Option<Deadline<'_>>,
    ) -> Option<(RelayId, Option<Vec<u8>>)> {
        let relays = self.core.relays();
        if let Some(relay) = known {
            return Some((relay, relays.forward(relay, body, deadline).await));
        }
        let mut last = relays.best(RelayKind::Rtpproxy).map(|relay| (relay, None));
        for relay in relays.candidates(RelayKind::Rtpproxy) {
            let Some(reply) = relays.forward(relay, body, deadline).await else {
                continue;
            };
            let refused = Reply::new(&reply).error().is_some()
                || (matches!(command.request, Request::Lookup(_)) && Reply::new(&reply).port().is_some_and(|reply| reply.port == 0));
            last = Some((relay, Some(reply)));
            if !refused {
                break;
            }
        }
        last
    }

    /// Q: the relay's reply, with the data plane's packets.
    async fn query(&self, command: &Command<'_>, known: Option<RelayId>, peer: Option<IpAddr>) -> Answer {
        let Some((relay, reply)) = self.somewhere(command, known, command.raw, None).await else {
            return (None, None);
        };
        let reply = match reply {
            Some(reply) => Some(self.with_counts(command, reply).await),
            None => None,
        };
        if !command.subcommands.is_empty() {
            // After the counting, because one of the subcommands may end the session.
            self.took(command, peer, relay, reply.as_deref());
        }
        (Some(relay), reply)
    }

    async fn with_counts(&self, command: &Command<'_>, reply: Vec<u8>) -> Vec<u8> {
        let Some(session) = command.session() else { return reply };
        let Some((line, swapped, keys)) = self.core.read(|book| {
            let (line, swapped) = book.line_of(session)?;
            let keys: Vec<FiveTuple> = line.streams().filter_map(|stream| stream.entry).map(|entry| entry.key()).collect();
            Some((line.id(), swapped, keys))
        }) else {
            return reply;
        };
        self.core.queried(line, swapped, command.raw, &reply);
        self.core.read_counters(&keys).await;
        let counts = self.core.read(|book| Side::BOTH.map(|side| book.packets_from(line, side)));
        let [caller, callee] = counts;
        let (first, second) = if swapped { (callee, caller) } else { (caller, callee) };
        let added = add_counts(command, &reply, |name| match name {
            b"npkts_ina" => first,
            b"npkts_ino" => second,
            b"nrelayed" => caller.saturating_add(callee),
            _ => 0,
        });
        added.unwrap_or(reply)
    }
}

/// Returns when a command reached the host; for a command over a connection, when it was read.
#[must_use]
pub fn received(sender: Sender) -> Instant {
    sender.received.map_or_else(Instant::now, Instant::from_std)
}

/// Returns the command that ends the session of another one, by the same claim.
fn end_of(command: &Command) -> Option<Vec<u8>> {
    let session = command.session()?;
    let target = Target {
        call_id: session.call_id,
        from: session.from.raw,
        to: session.to.map(|to| to.raw),
    };
    build::delete(target, command.media().is_some_and(|media| media.flags.weak)).ok()
}

/// Returns the command's letter; `None`: it is not understood.
fn verb(command: &Command) -> Option<Box<str>> {
    let letter = command.raw.first().filter(|_| command.request != Request::Unknown)?;
    Some(char::from(letter.to_ascii_uppercase()).to_string().into())
}

/// Waits for deletes, so that the relay sees the change when it happens. Each has its result in bounded time.
pub async fn wait_for(waits: Vec<oneshot::Receiver<()>>) {
    let all = async {
        for wait in waits {
            let _ = wait.await;
        }
    };
    let _ = timeout(Core::patience(), all).await;
}

/// The answer if all ports of a relay are held by other calls.
#[must_use]
pub fn no_port(is_first: bool) -> Vec<u8> {
    error_reply(if is_first {
        ErrorCode::NO_PORT
    } else {
        ErrorCode::NO_PORT_FOR_OTHER_LEG
    })
}
