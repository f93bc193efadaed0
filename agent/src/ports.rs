//! Prevents two calls on one relay port: a relay that has died forgets its sessions and assigns ports of live calls again.

use crate::commands::no_port;
use crate::core::Core;
use shunt_calls::{PortHeld, RelayId};
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::{Command, Reply, Request, splice_reply, with_new_port};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Most ports to request instead of a held one; each costs a round trip to the relay.
const MOST_TRIES: u32 = 100;
/// rtpproxy closes a replaced port a moment later.
const FULL_TRIES: u32 = 20;
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// Reports the reply to a U or L to the call state. Ports that other calls hold are exchanged first. Returns the reply for the SIP server.
pub async fn settle(
    core: &Arc<Core>,
    peer: Option<IpAddr>,
    relay: RelayId,
    command: &Command<'_>,
    body: &[u8],
    reply: Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut reply = reply;
    if let Some(reply) = &reply {
        core.restorer().restore_holders(core, reply).await;
    }
    let (mut tries, mut full) = (0, 0);
    loop {
        let Err(held) = core.replied(peer, relay, command, reply.as_deref()) else {
            return reply;
        };
        let before = reply?;
        if tries == 0 {
            core.stats.ports_held.inc();
            tracing::warn!("{held}; it is asked for another one");
        }
        tries += 1;
        let other = if tries > MOST_TRIES {
            None
        } else {
            exchange(core, relay, body, &before, &held, &mut full).await
        };
        match other {
            Some(Exchanged::Reply(other)) => reply = Some(other),
            // The relay did not answer, so the command has no answer.
            Some(Exchanged::Silent) => reply = None,
            None => return Some(refuse(core, peer, relay, command, &held).await),
        }
        if let Some(reply) = &reply {
            core.restorer().restore_holders(core, reply).await;
        }
    }
}

enum Exchanged {
    Reply(Vec<u8>),
    Silent,
}

/// Returns the reply with another port in the held part; `None` if the relay has no other.
async fn exchange(core: &Core, relay: RelayId, body: &[u8], reply: &[u8], held: &PortHeld, full: &mut u32) -> Option<Exchanged> {
    let command = Command::parse(body).ok()?;
    let again = if held.part == 0 {
        with_new_port(&command)
    } else {
        answer_with_new_port(&command)?
    };
    loop {
        let Some(answer) = core.relays().forward(relay, &again, None).await else {
            return Some(Exchanged::Silent);
        };
        if Reply::new(&answer).error().is_none() {
            let changed = splice_reply(reply, held.part, &answer);
            // A relay that assigns the same port again does not understand the request.
            return (changed != reply).then_some(Exchanged::Reply(changed));
        }
        *full += 1;
        if *full >= FULL_TRIES {
            return None;
        }
        sleep(FULL_PAUSE).await;
    }
}

/// Returns the L in `U … && L address port` as a separate command, for another port.
fn answer_with_new_port(command: &Command) -> Option<Vec<u8>> {
    let media = command.sub_lookup().ok()??;
    let target = Target {
        call_id: media.session.call_id,
        from: media.session.from.raw,
        to: media.session.to.map(|to| to.raw),
    };
    build::lookup(b"N", target, media.ip(), media.port, None).ok()
}

/// Rejects a call that would share a port: ends the session if the command made it, and reports a lack of ports to the SIP server.
async fn refuse(core: &Arc<Core>, peer: Option<IpAddr>, relay: RelayId, command: &Command<'_>, held: &PortHeld) -> Vec<u8> {
    core.stats.ports_refused.inc();
    tracing::error!("{held}, and no other one: refused");
    let is_new = command
        .session()
        .is_some_and(|session| core.read(|book| book.line_of(session).is_none()));
    if let (true, Some(session)) = (is_new, command.session()) {
        let target = Target {
            call_id: session.call_id,
            from: session.from.raw,
            to: session.to.map(|to| to.raw),
        };
        if let Ok(delete) = build::delete(target, false) {
            core.relays().forward(relay, &delete, None).await;
        }
    }
    // For a known call nothing has changed.
    let _ = core.replied(peer, relay, command, None);
    no_port(is_new && held.part == 0 && matches!(command.request, Request::Update(_)))
}
