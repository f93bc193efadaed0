//! Calls that were set up past the agent, adopted from relays that list their sessions.

use crate::core::Core;
use shunt_admin::CallWhat;
use shunt_calls::RelayId;
use shunt_rtpproxy::listing;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How often a relay's list is looked at; a SIP server uses the relay itself for as long as it takes the agent for dead.
const PERIOD: Duration = Duration::from_secs(10);
/// Pages of one list: more sessions than a relay has ports.
const MOST_PAGES: usize = 10_000;

/// Look at a relay's list again and again, for ever.
pub async fn watch(core: Arc<Core>, id: RelayId) {
    core.restored().await;
    loop {
        if core
            .relays()
            .get(id)
            .is_some_and(|relay| relay.is_alive() && relay.facts().lists_sessions)
        {
            adopt(&core, id).await;
            sleep(PERIOD).await;
        } else {
            sleep(PERIOD / 10).await;
        }
    }
}

async fn adopt(core: &Arc<Core>, id: RelayId) {
    let mut next = 0;
    let mut adopted = 0_u32;
    for _ in 0..MOST_PAGES {
        let Some(reply) = core.relays().request(id, &listing::ask(next)).await else {
            return;
        };
        let Some((after, records)) = listing::read(&reply) else {
            tracing::warn!("a relay's list of sessions cannot be read");
            return;
        };
        for record in &records {
            let before = core.read(shunt_calls::Book::line_count);
            core.tell(|book, now| book.adopt_session(now, id, record));
            if core.read(shunt_calls::Book::line_count) > before {
                adopted += 1;
                core.events().call(record.call_id, CallWhat::Adopted);
            }
        }
        let Some(after) = after else { break };
        next = after;
        tokio::task::yield_now().await;
    }
    if adopted > 0 {
        tracing::info!("{adopted} media lines were set up past this agent and are adopted");
        // Their entries, of an agent before this one, count as nobody's until the table is read again.
        core.plane().inspect(|plane| plane.audit());
    }
}
