//! Decides when the whole table is read, and tracks ports that are written meanwhile. Pure.

use shunt_net::Endpoint;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Average entries per second: a large table is audited less often.
const RATE: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Audit {
    every: Duration,
    next: Option<Instant>,
    /// During an audit: ports with writes.
    changed: Option<HashSet<Endpoint>>,
}

impl Audit {
    pub(crate) fn new(every: Duration) -> Self {
        Self {
            every,
            next: None,
            changed: None,
        }
    }

    /// Returns when the next audit begins.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next.filter(|_| self.changed.is_none())
    }

    /// Moves the next audit forward to this time.
    pub(crate) fn hurry(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Starts an audit if one is due. `busy`: ports with waiting or running writes.
    pub(crate) fn begin(&mut self, now: Instant, busy: impl Iterator<Item = Endpoint>) -> bool {
        let begins = self.due().is_some_and(|due| due <= now);
        if begins {
            (self.next, self.changed) = (None, Some(busy.collect()));
        }
        begins
    }

    /// Records a write at a port.
    pub(crate) fn wrote(&mut self, port: Endpoint) {
        if let Some(changed) = &mut self.changed {
            changed.insert(port);
        }
    }

    /// Ends the audit. Returns the ports that were written meanwhile.
    pub(crate) fn end(&mut self, now: Instant, entries: usize) -> HashSet<Endpoint> {
        let pause = Duration::from_secs((entries / RATE) as u64).max(self.every);
        self.hurry(now + pause);
        self.changed.take().unwrap_or_default()
    }

    pub(crate) fn failed(&mut self, again: Instant) {
        self.changed = None;
        self.hurry(again);
    }

    /// Stops audits: the data plane is gone.
    pub(crate) fn stop(&mut self) {
        (self.next, self.changed) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_is_written_while_it_reads_is_told_and_a_large_table_is_read_less_often() {
        let (mut audit, now) = (Audit::new(Duration::from_secs(60)), Instant::now());
        let port = |number| Endpoint::new(Ipv4Addr::LOCALHOST, number);
        assert!(!audit.begin(now, std::iter::empty()));
        audit.hurry(now);
        audit.wrote(port(2));
        assert!(audit.begin(now, std::iter::once(port(4))));
        assert!(!audit.begin(now, std::iter::empty()), "it goes on");
        audit.wrote(port(6));
        assert_eq!(audit.end(now, 1_000_000), HashSet::from([port(4), port(6)]));
        assert_eq!(audit.due(), Some(now + Duration::from_secs(100)));
    }
}
