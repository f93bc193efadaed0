//! No relay port for two calls: a relay that has died forgets its sessions, and gives the ports of calls that go on out again.

use crate::commands::no_port;
use crate::core::Core;
use shunt_calls::{PortHeld, RelayId};
use shunt_rtpproxy::build::{self, Target};
use shunt_rtpproxy::{Command, Reply, Request, splice_reply, with_new_port};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Ports that a relay is asked for in place of one that is held; each costs a round trip to it.
const MOST_TRIES: u32 = 100;
/// rtpproxy closes the ports that it was asked to change a moment later.
const FULL_TRIES: u32 = 20;
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// Tell the call state of the reply to a U or L. Ports that other calls hold are exchanged for others first; the reply for the SIP server.
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
            // It fell silent: so the command has no answer.
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

/// The reply with another port in the part that is held; `None` where the relay has no other.
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
            // A relay that gives the same port again does not know what is asked of it.
            return (changed != reply).then_some(Exchanged::Reply(changed));
        }
        *full += 1;
        if *full >= FULL_TRIES {
            return None;
        }
        sleep(FULL_PAUSE).await;
    }
}

/// The L in `U … && L address port` as a command of its own, for another port.
fn answer_with_new_port(command: &Command) -> Option<Vec<u8>> {
    let media = command.sub_lookup().ok()??;
    let target = Target {
        call_id: media.session.call_id,
        from: media.session.from.raw,
        to: media.session.to.map(|to| to.raw),
    };
    build::lookup(b"N", target, media.ip(), media.port, None).ok()
}

/// No call is better than two on one port: the session goes, where it is the command's own, and the SIP server is told that there is no port.
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
    // For a call that is known nothing has changed.
    let _ = core.replied(peer, relay, command, None);
    no_port(is_new && held.part == 0 && matches!(command.request, Request::Update(_)))
}
