//! Announces 5-tuples in use that have no entry to a data plane that stores hashes, because it cannot distinguish two 5-tuples of one hash.
//! No entry of another call then takes their packets.

use crate::core::Core;
use shunt_calls::{LineId, LineView, Side};
use shunt_latch::Component;
use shunt_net::{Endpoint, FiveTuple};
use std::sync::Arc;
use std::time::Duration;

/// The plane forgets a 5-tuple 45 s after its last announcement.
const EVERY: Duration = Duration::from_secs(15);
/// Lines per iteration before the loop yields.
const AT_ONCE: usize = 500;

fn next_port(end: Endpoint) -> Option<Endpoint> {
    Some(Endpoint::new(end.addr, end.port.checked_add(1)?))
}

/// Returns the learned or signalled 5-tuples of a line that have no entry.
fn without_entry(line: &LineView<'_>) -> Vec<FiveTuple> {
    let mut found = Vec::new();
    if line.released().is_some() {
        return found;
    }
    for side in [Side::Caller, Side::Callee] {
        let leg = line.leg(side);
        let Some(relay) = leg.relay else { continue };
        let rtp = leg.learned.or(leg.signalled);
        let rtcp = leg.learned_rtcp.or_else(|| next_port(rtp?));
        for (component, source, port) in [(Component::Rtp, rtp, Some(relay)), (Component::Rtcp, rtcp, next_port(relay))] {
            if let (Some(source), Some(port), None) = (source, port, line.stream(side, component).entry)
                && source.addr.is_ipv6() == port.addr.is_ipv6()
                && !source.addr.is_unspecified()
            {
                found.push(FiveTuple::new(source, port));
            }
        }
    }
    found
}

impl Core {
    fn stores_hashes(&self) -> bool {
        self.data_plane.current().facts.is_some_and(|facts| facts.stores_hashes)
    }

    /// Announces the parties of a call after a command.
    pub fn expect_call(&self, call_id: &[u8]) {
        if let Some(plane) = self.plane().filter(|_| self.stores_hashes()) {
            let of_call = |book: &shunt_calls::Book| book.lines_of_call(call_id).flat_map(|line| without_entry(&line)).collect();
            plane.expect(self.read(of_call));
        }
    }
}

/// Repeats the announcements for all calls, without end.
pub async fn watch(core: Arc<Core>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(plane) = core.plane().filter(|_| core.stores_hashes()) else {
            continue;
        };
        let lines: Vec<LineId> = core.read(|book| book.lines().map(|line| line.id()).collect());
        for lines in lines.chunks(AT_ONCE) {
            let found = |book: &shunt_calls::Book| {
                lines
                    .iter()
                    .filter_map(|id| book.line(*id))
                    .flat_map(|line| without_entry(&line))
                    .collect()
            };
            plane.expect(core.read(found));
            tokio::task::yield_now().await;
        }
    }
}
