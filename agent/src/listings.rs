//! Adopts calls that were set up without the agent, from relays that list their sessions.

use crate::core::Core;
use crate::ng;
use shunt_admin::CallWhat;
use shunt_calls::{Book, RelayId, RelayKind};
use shunt_rtpproxy::listing;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Poll interval of a relay's list. The SIP server uses the relay directly while it considers the agent dead.
const PERIOD: Duration = Duration::from_secs(10);
/// Most calls in a list of rtpengine: the content of a datagram.
const MOST_LISTED: u32 = 1000;
/// A call with a packet of at most this age is adopted at once. Before that its media counts as that of an unknown source.
const FRESH: Duration = Duration::from_millis(1100);
/// How long another unknown call is observed. It is adopted if the relay counts packets of it meanwhile.
const OBSERVED: Duration = Duration::from_secs(1);
/// Most pages of one list: more sessions than a relay has ports.
const MOST_PAGES: usize = 10_000;

/// Polls a relay's list, without end.
pub async fn watch(core: Arc<Core>, id: RelayId) {
    core.restored().await;
    if core.relays().get(id).is_some_and(|relay| relay.kind == RelayKind::Rtpengine) {
        return watch_rtpengine(core, id).await;
    }
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
        // Their entries, of a previous agent, count as orphans until the table is read again.
        core.plane().inspect(|plane| plane.audit());
    }
}

/// Polls an rtpengine's calls, without end. Adopts unknown ones, and queries known ones after the relay or the agent has started and while
/// they have no answer here.
async fn watch_rtpengine(core: Arc<Core>, id: RelayId) {
    let mut is_first = true;
    loop {
        let Some(relay) = core.relays().get(id).filter(|relay| relay.is_alive()) else {
            is_first = true;
            sleep(PERIOD / 10).await;
            continue;
        };
        let listed = core.relays().request(id, &shunt_ng::build::list(MOST_LISTED)).await;
        let reply = listed.as_deref().and_then(|reply| shunt_ng::Reply::parse(reply).ok());
        if let Some(reply) = reply.filter(shunt_ng::Reply::is_ok) {
            let calls: Vec<Vec<u8>> = reply.calls.iter().map(|call| call.to_vec()).collect();
            look_at_calls(&core, id, &calls, is_first).await;
            if calls.len() >= MOST_LISTED as usize && is_first {
                tracing::info!(
                    "relay {}: it names {MOST_LISTED} of its calls; others that were set up past this agent are not adopted",
                    relay.name
                );
            }
            is_first = false;
        }
        sleep(PERIOD).await;
    }
}

/// `all`: also query known calls that have their answer.
async fn look_at_calls(core: &Arc<Core>, id: RelayId, calls: &[Vec<u8>], all: bool) {
    let (known, unknown): (Vec<_>, Vec<_>) = calls
        .iter()
        .partition(|call_id| core.read(|book| book.relay_of_call(call_id).is_some()));
    for call_id in known {
        // An answer may have bypassed this agent while the SIP server considered it dead.
        if core.read(|book| book.relay_of_call(call_id) == Some(id) && (all || book.lacks_answer(call_id))) {
            ng::look(core, id, call_id).await;
        }
    }
    let (mut adopted, mut observed) = (0_u32, Vec::new());
    for call_id in unknown {
        match media(core, id, call_id).await {
            Some(media) if is_fresh(media.last_packet, core.clock().wall()) => adopted += adopt_call(core, id, call_id).await,
            Some(media) => observed.push((call_id, media.packets)),
            None => {}
        }
    }
    if !observed.is_empty() {
        sleep(OBSERVED).await;
    }
    for (call_id, before) in observed {
        if media(core, id, call_id).await.is_some_and(|media| media.packets > before) {
            adopted += adopt_call(core, id, call_id).await;
        }
    }
    if adopted > 0 {
        tracing::info!("{adopted} calls were set up past this agent and are adopted");
        core.plane().inspect(|plane| plane.audit());
    }
}

/// Adopts a call. Returns how many calls are adopted: 1 or 0.
async fn adopt_call(core: &Arc<Core>, id: RelayId, call_id: &[u8]) -> u32 {
    let before = core.read(Book::line_count);
    ng::look(core, id, call_id).await;
    if core.read(Book::line_count) == before {
        return 0;
    }
    core.events().call(call_id, CallWhat::Adopted);
    1
}

/// rtpengine's figures of a call.
struct Media {
    packets: u64,
    /// Seconds since 1970.
    last_packet: i64,
}

/// `None`: no answer, or no such call.
async fn media(core: &Arc<Core>, id: RelayId, call_id: &[u8]) -> Option<Media> {
    let reply = core.relays().request(id, &shunt_ng::build::query(call_id)).await?;
    let description = shunt_ng::describe(&reply).ok()?;
    let streams = || description.tags.iter().flat_map(|tag| &tag.medias).flat_map(|media| &media.streams);
    Some(Media {
        packets: streams().fold(0, |sum: u64, stream| sum.saturating_add(stream.packets)),
        last_packet: streams().map(|stream| stream.last_packet).max()?,
    })
}

/// Returns whether media flows by rtpengine's clock, which has whole seconds. rtpengine lists a call for its delete-delay after the end,
/// and an agent that has just started does not know which calls have ended. If the clocks differ, the call is observed.
fn is_fresh(last_packet: i64, now: Duration) -> bool {
    let last = u64::try_from(last_packet).map_or(Duration::ZERO, Duration::from_secs);
    now.checked_sub(last).is_some_and(|since| since <= FRESH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_is_fresh_in_the_second_of_its_last_packet() {
        let now = Duration::from_millis(1_000_900);
        for (last_packet, fresh) in [(1000, true), (999, false), (990, false), (0, false), (-1, false), (1001, false)] {
            assert_eq!(is_fresh(last_packet, now), fresh, "{last_packet}");
        }
        assert!(is_fresh(999, Duration::from_millis(1_000_050)), "the next packet is not due yet");
    }
}
