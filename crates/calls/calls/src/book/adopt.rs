//! Sessions that a relay lists and the agent does not know: the SIP server used the relay directly while the agent was down.

use super::Book;
use crate::decision::Decision;
use crate::ids::{LineId, RelayId, Side};
use crate::leg::next_port;
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::listing::{Party, Record};
use shunt_rtpproxy::{Command, PortReply, Tag};

impl Book {
    /// Adopts a session of a relay, as if the agent had seen its U and L. For a known session it adds an answer that bypassed the agent. A
    /// session that has ended stays ended.
    ///
    /// A source that the relay has latched counts as learned, because a relay that lists its sessions verifies sources itself.
    pub fn adopt_session(&mut self, now: Time, relay: RelayId, record: &Record) -> Vec<Decision> {
        let from = Tag::parse(record.from);
        let known = self.line_named(record.call_id, from);
        let is_over = known.is_none() && self.ended.has_session(record.call_id, from.name, from.media);
        let is_settled = known
            .and_then(|id| self.lines.get(&id))
            .is_some_and(|line| line.is_answered() || !record.complete || line.relay != relay);
        if is_over || is_settled {
            return Vec::new();
        }
        // Entries at these ports may belong to this call, from before a restart of the agent; the next comparison adopts them.
        for port in [record.caller.relay, record.callee.relay].into_iter().flatten() {
            for port in [Some(port), next_port(port)].into_iter().flatten() {
                self.orphans.remove(&port);
            }
        }
        let offered = known.is_some() || self.replay(now, relay, record, Side::Caller);
        if offered && record.complete {
            self.replay(now, relay, record, Side::Callee);
        }
        self.adopt_sources(now, record, from);
        self.take()
    }

    /// Replays the command that described a party, with the relay's reply. Returns false if the party has not been described.
    fn replay(&mut self, now: Time, relay: RelayId, record: &Record, described: Side) -> bool {
        let (party, other) = match described {
            Side::Caller => (record.caller, record.callee),
            Side::Callee => (record.callee, record.caller),
        };
        let (Some(signalled), Some(port)) = (party.signalled, other.relay) else {
            return false;
        };
        let Ok(text) = command(record, described, party, signalled) else {
            return false;
        };
        let Ok(command) = Command::parse(&text) else { return false };
        let reply = PortReply::new(port).to_string();
        match self.replied(now, None, relay, &command, Some(reply.as_bytes())) {
            Ok(decisions) => {
                self.out.extend(decisions);
                true
            }
            // Another call holds the port, and the data plane cannot tell the two apart.
            Err(_) => false,
        }
    }

    fn line_named(&self, call_id: &[u8], from: Tag) -> Option<LineId> {
        self.calls.get(call_id)?.line(from.name, from.media)
    }

    fn adopt_sources(&mut self, now: Time, record: &Record, from: Tag) {
        let Some(id) = self.line_named(record.call_id, from) else {
            return;
        };
        self.with(id, |book, line| {
            for (side, party) in [(Side::Caller, record.caller), (Side::Callee, record.callee)] {
                let Some(source) = party.learned.filter(|_| !party.asymmetric) else {
                    continue;
                };
                let leg = line.leg_mut(side);
                leg.rtp.adopt(now, source, None);
                leg.latched_at = Some(now);
                book.join(line, side, source.addr);
            }
            line.inherited = true;
            book.mark(line);
            book.sync(line, now);
        });
    }
}

fn command(record: &Record, described: Side, party: Party, signalled: Endpoint) -> Result<Vec<u8>, shunt_rtpproxy::ParseError> {
    let modifiers: &[u8] = if party.asymmetric { b"A" } else { b"" };
    let target = |to| Target {
        call_id: record.call_id,
        from: record.from,
        to,
    };
    match described {
        Side::Caller => {
            let notify = record.notify.as_ref().map(|(socket, tag)| (socket.as_slice(), tag.as_slice()));
            build::update(modifiers, target(None), Some(signalled.addr), signalled.port, notify)
        }
        Side::Callee => build::lookup(modifiers, target(record.to), Some(signalled.addr), signalled.port, None),
    }
}
