//! NG commands of SIP servers: forwards each to the rtpengine that has the call, byte for byte, and reports it to the call state.
//!
//! Replies are rtpengine's own, except that those to `query` and `delete` include the data plane's packets. After an offer or answer the
//! agent sends a `query` of its own for the call's state; no SIP server waits for it.

use crate::commands::{received, wait_for};
use crate::core::Core;
use crate::events::Answered;
use shunt_calls::{After, Book, Decision, RelayId, RelayKind, is_unknown_call};
use shunt_control::{Deadline, Kind, Patience, Rare, Sender, Service};
use shunt_latch::Time;
use shunt_net::{Endpoint, FiveTuple};
use shunt_ng::{CallDescription, Command, Counts, Effect, Reply, Verb, add_counts, build, describe};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How often a missing description is requested again, and the pause before that.
const DESCRIPTION_TRIES: u32 = 5;
const DESCRIPTION_PAUSE: Duration = Duration::from_secs(1);

/// Serves the NG control sockets.
pub struct NgCommands {
    core: Arc<Core>,
    patience: Patience,
    not_understood: Mutex<Rare>,
}

/// A reply, and the relay that gave it; `None`: the agent answers itself.
type Answer = (Option<RelayId>, Option<Vec<u8>>);

impl Service for NgCommands {
    fn kind(&self, body: &[u8]) -> Kind {
        Command::parse(body).map_or(Kind::Continues, |command| self.kind_of(&command))
    }

    fn on_expired(&self) {
        self.core.stats.commands_expired.inc();
    }

    async fn execute(&self, body: &[u8], sender: Sender) -> Option<Vec<u8>> {
        let received = received(sender);
        let began = self.core.clock().now();
        let parsed = Command::parse(body);
        let (relay, reply) = match &parsed {
            Ok(command) => match command.call_id.as_deref() {
                Some(call_id) => match self.core.ng_turns.take(call_id).await {
                    Some(_turn) => {
                        let (answer, begins) = self.of_call(command, call_id, received).await;
                        if !matches!(command.verb, Verb::Query) {
                            // A timely reply has priority over a slow disk.
                            let _ = timeout_at(received + self.patience.answer(), self.core.keep()).await;
                        }
                        if begins && self.patience.is_over(received) {
                            self.undo(call_id, received).await;
                            (answer.0, None)
                        } else {
                            answer
                        }
                    }
                    None => (None, None),
                },
                None => self.pass(body).await,
            },
            Err(error) => {
                self.log_not_understood(error);
                self.pass(body).await
            }
        };
        let took = self.core.clock().now().since(began);
        let command = parsed.as_ref().ok();
        if let Some(command) = command {
            self.core.stats.count_ng(command.verb, took);
        }
        self.core.events().command(&Answered {
            body,
            verb: command.map(|command| String::from_utf8_lossy(&command.name).into()),
            call: command.and_then(|command| command.call_id.as_deref()),
            media: None,
            reply: reply.as_deref(),
            peer: sender.ip(),
            took,
            relay: relay
                .and_then(|relay| self.core.relays().get(relay))
                .map(|relay| relay.name.as_str()),
        });
        reply
    }
}

impl NgCommands {
    #[must_use]
    pub fn new(core: Arc<Core>, patience: Patience) -> Self {
        Self {
            core,
            patience,
            not_understood: Mutex::default(),
        }
    }

    fn log_not_understood(&self, error: &shunt_ng::ParseError) {
        self.core.stats.not_understood.inc();
        let mut rare = self.not_understood.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = rare.write(self.core.clock().now()) {
            tracing::info!("passing on an NG command that is not understood: {error}; {left_out} more since the last such line");
        }
    }

    /// Sends a command without a call to the first relay that is alive.
    async fn pass(&self, body: &[u8]) -> Answer {
        let relays = self.core.relays();
        let Some(relay) = relays.best(RelayKind::Rtpengine) else {
            return (None, None);
        };
        (Some(relay), relays.forward(relay, body, None).await)
    }

    /// Returns whether an offer starts a call: its call is unknown, and it does not name the callee. Otherwise the call was set up without
    /// this agent.
    fn kind_of(&self, command: &Command) -> Kind {
        match (command.verb, command.effect()) {
            (_, Effect::Ends) => Kind::Ends,
            (Verb::Offer, _) if !has_text(&command.to_tag) && !self.is_known(command) => Kind::Begins,
            _ => Kind::Continues,
        }
    }

    fn is_known(&self, command: &Command) -> bool {
        let call_id = command.call_id.as_deref().unwrap_or_default();
        self.core.read(|book| book.relay_of_call(call_id).is_some())
    }

    /// Returns the reply, and whether the command started a call.
    async fn of_call(&self, command: &Command<'_>, call_id: &[u8], received: Instant) -> (Answer, bool) {
        self.core.restorer().restore_call(&self.core, call_id).await;
        let (foreseen, waits) = self.core.ng_command(command);
        let known = match foreseen {
            Ok(known) => known,
            Err(refusal) => return ((None, Some(build::error(&refusal.to_string(), command.encoding))), false),
        };
        wait_for(waits).await;
        let kind = self.kind_of(command);
        let undo = build::delete(call_id, None, None, None);
        let deadline = Deadline {
            send: received + self.patience.send(kind),
            undo: (kind == Kind::Begins).then_some((received + self.patience.answer(), undo.as_slice())),
        };
        let deadline = (kind != Kind::Ends).then_some(deadline);
        let Some((relay, reply)) = self.somewhere(command, known, deadline).await else {
            return ((None, None), false);
        };
        let parsed = reply.as_deref().and_then(|reply| Reply::parse(reply).ok());
        let counted = match command.effect() {
            _ if reply.is_none() => None,
            // The entries are removed, so their final counters are known.
            Effect::Ends => Some(self.core.read(|book| book.ng_counts(call_id))),
            Effect::None if command.verb == Verb::Query => {
                let keys: Vec<FiveTuple> = self.core.read(|book| book.entries_of_call(call_id));
                self.core.read_counters(&keys).await;
                Some(self.core.read(|book| book.ng_counts(call_id)))
            }
            _ => None,
        };
        let after = self.core.ng_replied(relay, command, parsed.as_ref());
        match after {
            After::Nothing => {}
            After::Describe => self.look_later(relay, call_id, Book::ng_described),
            After::DescribeCopies => self.look_later(relay, call_id, Book::ng_copies_described),
        }
        let begins = kind == Kind::Begins && parsed.is_some_and(|reply| reply.is_ok());
        ((Some(relay), reply.map(|reply| with_counts(reply, counted))), begins)
    }

    /// Ends a call whose first reply is too late: the SIP server does not know the call and would not end it.
    async fn undo(&self, call_id: &[u8], received: Instant) {
        self.core.stats.commands_expired.inc();
        let delete = build::delete(call_id, None, None, None);
        if let Ok(delete) = Command::parse(&delete) {
            self.of_call(&delete, call_id, received).await;
        }
    }

    /// Sends a command to the call's relay, a new call to the answering relay with the fewest calls. For another unknown call it tries each
    /// relay until one knows the call.
    async fn somewhere(
        &self,
        command: &Command<'_>,
        known: Option<RelayId>,
        deadline: Option<Deadline<'_>>,
    ) -> Option<(RelayId, Option<Vec<u8>>)> {
        let relays = self.core.relays();
        if let Some(relay) = known {
            return Some((relay, relays.forward(relay, command.raw, deadline).await));
        }
        let mut last = relays.best(RelayKind::Rtpengine).map(|relay| (relay, None));
        for relay in relays.candidates(RelayKind::Rtpengine) {
            let Some(reply) = relays.forward(relay, command.raw, deadline).await else {
                continue;
            };
            let unknown = Reply::parse(&reply).is_ok_and(|reply| is_unknown_call(&reply));
            last = Some((relay, Some(reply)));
            if !unknown {
                break;
            }
        }
        last
    }

    /// Queries a call, after the commands that wait for it.
    fn look_later(&self, relay: RelayId, call_id: &[u8], apply: Apply) {
        let (core, call_id) = (Arc::clone(&self.core), call_id.to_vec());
        tokio::spawn(async move {
            for attempt in 0..DESCRIPTION_TRIES {
                if attempt > 0 {
                    sleep(DESCRIPTION_PAUSE).await;
                }
                if look_for(&core, relay, &call_id, apply).await {
                    return;
                }
            }
            tracing::warn!(
                call_id = %call_id.escape_ascii(),
                "rtpengine does not say what has become of the call: its media stays there"
            );
        });
    }
}

fn has_text(tag: &Option<std::borrow::Cow<'_, [u8]>>) -> bool {
    tag.as_deref().is_some_and(|tag| !tag.is_empty())
}

/// Updates a call by its relay's description.
type Apply = fn(&mut Book, Time, RelayId, &[u8], &CallDescription) -> Vec<Decision>;

/// Queries a relay for a call, in order with its commands, and updates the call. Returns whether the relay answered.
pub async fn look(core: &Arc<Core>, relay: RelayId, call_id: &[u8]) -> bool {
    look_for(core, relay, call_id, Book::ng_described).await
}

async fn look_for(core: &Arc<Core>, relay: RelayId, call_id: &[u8], apply: Apply) -> bool {
    let Some(_turn) = core.ng_turns.take(call_id).await else {
        return false;
    };
    let Some(reply) = core.relays().request(relay, &build::query(call_id)).await else {
        return false;
    };
    match describe(&reply) {
        Ok(description) => {
            core.tell(|book, now| apply(book, now, relay, call_id, &description));
            true
        }
        // Its answer for an unknown call comes with the next command, or by the time-out.
        Err(error) => {
            let unknown = Reply::parse(&reply).is_ok_and(|reply| is_unknown_call(&reply));
            if !unknown {
                tracing::warn!(call_id = %call_id.escape_ascii(), "the reply to query cannot be read: {error}");
            }
            unknown
        }
    }
}

fn with_counts(reply: Vec<u8>, counted: Option<Vec<(Endpoint, shunt_calls::Counters)>>) -> Vec<u8> {
    let Some(counted) = counted.filter(|counted| !counted.is_empty()) else {
        return reply;
    };
    let counted: HashMap<Endpoint, shunt_calls::Counters> = counted.into_iter().collect();
    let of = |local: Endpoint| {
        counted.get(&local).map_or_else(Counts::default, |counters| Counts {
            packets: counters.packets,
            bytes: counters.bytes,
        })
    };
    add_counts(&reply, of).unwrap_or(reply)
}
