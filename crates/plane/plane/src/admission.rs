//! Source filters, blocklist and allowlist of relay ports without a matching entry. No I/O; time is an argument.
//!
//! Every row has a time to live, so that it soon expires without the agent. Rows in force are written again in time.

use shunt_latch::Found;
use shunt_net::Endpoint;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time to live of a source filter.
pub(crate) const FILTER_TTL: Duration = Duration::from_secs(600);
/// Time to live of an allowlist row.
pub(crate) const ALLOW_TTL: Duration = Duration::from_secs(7 * 86_400);
/// Most addresses on the allowlist.
const MOST_ALLOWED: usize = 65_536;
/// Pause before a row that did not fit is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// A row to write; without data, the row is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Filter(Endpoint, Option<Arc<[IpAddr]>>),
    Block(Endpoint, bool),
    Allow(IpAddr, bool),
}

impl Change {
    pub(crate) fn row(&self) -> Row {
        match self {
            Self::Filter(port, _) => Row::Filter(*port),
            Self::Block(source, _) => Row::Block(*source),
            Self::Allow(addr, _) => Row::Allow(*addr),
        }
    }
}

/// The key of a row, in writing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Row {
    Filter(Endpoint),
    Block(Endpoint),
    Allow(IpAddr),
}

/// A wanted source filter.
#[derive(Debug)]
struct Filter {
    allowed: Arc<[IpAddr]>,
    /// Whether the port is in the queue of rows to renew.
    is_placed: bool,
}

/// The wanted rows.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    filters: HashMap<Endpoint, Filter>,
    /// Rows that wait to be written.
    dirty: BTreeSet<Row>,
    /// Rows under way, and whether each has changed meanwhile. One row has one request at a time, because requests may overtake each other.
    under_way: HashMap<Row, bool>,
    /// Ports in the order in which their filters are renewed.
    refresh: VecDeque<(Instant, Endpoint)>,
    allowed: HashMap<IpAddr, Instant>,
    allowed_order: VecDeque<IpAddr>,
    blocked: HashMap<Endpoint, Instant>,
}

impl Admission {
    /// Queues a row that has changed or must be renewed.
    fn mark(&mut self, row: Row) {
        match self.under_way.get_mut(&row) {
            Some(changed) => *changed = true,
            None => drop(self.dirty.insert(row)),
        }
    }

    /// Sets the allowed sources of a port and the port above. Returns whether a source became allowed.
    pub(crate) fn filter(&mut self, now: Instant, port: Endpoint, allowed: Option<Arc<[IpAddr]>>) -> bool {
        let Some(allowed) = allowed else {
            if self.filters.remove(&port).is_some() {
                self.mark(Row::Filter(port));
            }
            return false;
        };
        for addr in &*allowed {
            self.allow(now, *addr);
        }
        let before = self.filters.get(&port);
        if before.is_some_and(|before| before.allowed == allowed) {
            return false;
        }
        let admits = before.map_or(!allowed.is_empty(), |before| {
            allowed.iter().any(|addr| !before.allowed.contains(addr))
        });
        let is_placed = before.is_some_and(|before| before.is_placed);
        self.filters.insert(port, Filter { allowed, is_placed });
        self.mark(Row::Filter(port));
        admits
    }

    /// Adds a party's address, which is then not an unknown source and not blocked as a whole. Returns whether it became allowed.
    pub(crate) fn allow(&mut self, now: Instant, addr: IpAddr) -> bool {
        let whole = Endpoint::new(addr, 0);
        let was_blocked = self.blocked.remove(&whole).is_some();
        if was_blocked {
            self.mark(Row::Block(whole));
        }
        if self.allowed.get(&addr).is_some_and(|until| *until > now) {
            return was_blocked;
        }
        let is_new = self.allowed.insert(addr, now + ALLOW_TTL / 2).is_none();
        if is_new {
            self.allowed_order.push_back(addr);
        }
        self.mark(Row::Allow(addr));
        if self.allowed.len() > MOST_ALLOWED
            && let Some(oldest) = self.allowed_order.pop_front()
        {
            self.allowed.remove(&oldest);
            self.mark(Row::Allow(oldest));
        }
        is_new || was_blocked
    }

    /// Blocks a scanner. Returns whether it was not blocked already.
    pub(crate) fn block(&mut self, now: Instant, found: Found, length: Duration) -> bool {
        let source = match found {
            Found::Source(source) => source,
            Found::Address(addr) => Endpoint::new(addr, 0),
        };
        self.blocked.retain(|_, until| *until > now);
        if self.blocked.get(&source).is_some_and(|until| *until > now + length / 2) {
            return false;
        }
        self.blocked.insert(source, now + length);
        self.mark(Row::Block(source));
        true
    }

    /// Queues all wanted rows for a data plane that has connected and has none.
    pub(crate) fn start_over(&mut self, now: Instant) {
        self.under_way.clear();
        self.refresh.clear();
        self.filters.values_mut().for_each(|filter| filter.is_placed = false);
        self.blocked.retain(|_, until| *until > now);
        self.dirty = self.filters.keys().map(|port| Row::Filter(*port)).collect();
        self.dirty.extend(self.blocked.keys().map(|source| Row::Block(*source)));
        self.dirty.extend(self.allowed.keys().map(|addr| Row::Allow(*addr)));
    }

    /// Returns when the next filter must be renewed.
    pub(crate) fn next_refresh(&self) -> Option<Instant> {
        self.refresh.front().map(|(at, _)| *at)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes up to `most` changes to write, filters first. A later change of a row replaces an earlier one.
    pub(crate) fn take(&mut self, now: Instant, most: usize) -> Vec<Change> {
        while let Some((at, port)) = self.refresh.front().copied() {
            if at > now {
                break;
            }
            self.refresh.pop_front();
            if let Some(filter) = self.filters.get_mut(&port) {
                filter.is_placed = false;
                self.mark(Row::Filter(port));
            }
        }
        let rows: Vec<Row> = self.dirty.iter().take(most).copied().collect();
        let take = |row: Row| {
            self.dirty.remove(&row);
            self.under_way.insert(row, false);
            match row {
                Row::Filter(port) => Change::Filter(port, self.filters.get(&port).map(|filter| Arc::clone(&filter.allowed))),
                Row::Block(source) => Change::Block(source, self.blocked.contains_key(&source)),
                Row::Allow(addr) => Change::Allow(addr, self.allowed.contains_key(&addr)),
            }
        };
        rows.into_iter().map(take).collect()
    }

    /// Drops a change for which the target has no table.
    pub(crate) fn has_no_table(&mut self, change: &Change) {
        self.under_way.remove(&change.row());
    }

    /// Records the result of a change.
    pub(crate) fn written(&mut self, now: Instant, change: &Change, done: bool) {
        let row = change.row();
        if self.under_way.remove(&row) == Some(true) {
            self.dirty.insert(row);
        }
        match change {
            Change::Filter(port, Some(_)) => {
                let Some(filter) = self.filters.get_mut(port) else { return };
                let was_placed = std::mem::replace(&mut filter.is_placed, true);
                if done && was_placed {
                    return;
                }
                let at = now + if done { FILTER_TTL / 2 } else { PAUSE };
                // Usually the last one; after a failure one near the front.
                let place = self.refresh.partition_point(|(other, _)| *other <= at);
                self.refresh.insert(place, (at, *port));
            }
            Change::Filter(port, None) if !done => {
                // The row expires on its own.
                tracing::debug!("the source filter of {port} stays for up to {FILTER_TTL:?}");
            }
            Change::Block(source, true) if !done => {
                self.blocked.remove(source);
            }
            Change::Allow(addr, true) if !done => {
                self.allowed.insert(*addr, now + PAUSE);
            }
            _ => {}
        }
    }

    /// Returns the number of source filters in force.
    pub(crate) fn len(&self) -> usize {
        self.filters.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn port(number: u16) -> Endpoint {
        Endpoint::new(Ipv4Addr::LOCALHOST, number)
    }

    fn addr(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn filters(changes: &[Change]) -> Vec<&Change> {
        changes.iter().filter(|change| matches!(change, Change::Filter(..))).collect()
    }

    /// Writes all waiting changes.
    fn write(admission: &mut Admission, now: Instant) -> Vec<Change> {
        let changes = admission.take(now, 100);
        for change in &changes {
            admission.written(now, change, true);
        }
        changes
    }

    #[test]
    fn only_the_latest_wish_for_a_port_is_written() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        assert!(!admission.filter(now, port(4), Some([].into())), "a port that closes admits nobody");
        assert!(admission.filter(now, port(4), Some([addr(1)].into())));
        assert!(!admission.filter(now, port(4), Some([addr(1)].into())), "it is in force");
        let changes = write(&mut admission, now);
        assert_eq!(filters(&changes), [&Change::Filter(port(4), Some([addr(1)].into()))]);
        assert!(!admission.is_dirty());
        admission.filter(now, port(4), None);
        assert_eq!(filters(&write(&mut admission, now)), [&Change::Filter(port(4), None)]);
    }

    #[test]
    fn a_row_that_is_being_written_is_not_written_a_second_time_beside_it() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        admission.filter(now, port(4), Some([].into()));
        admission.block(now, Found::Address(addr(9)), FILTER_TTL);
        let closed = admission.take(now, 100);
        assert_eq!(
            closed,
            [
                Change::Filter(port(4), Some([].into())),
                Change::Block(Endpoint::new(addr(9), 0), true)
            ]
        );
        admission.filter(now, port(4), Some([addr(9)].into()));
        assert_eq!(admission.take(now, 100), [Change::Allow(addr(9), true)]);
        assert!(!admission.is_dirty(), "nothing can be written now");
        for change in &closed {
            admission.written(now, change, true);
        }
        assert!(admission.is_dirty());
        let opened = [
            Change::Filter(port(4), Some([addr(9)].into())),
            Change::Block(Endpoint::new(addr(9), 0), false),
        ];
        assert_eq!(admission.take(now, 100), opened);
    }

    #[test]
    fn a_new_session_waits_for_no_row_of_the_one_before() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        admission.filter(now, port(4), Some([].into()));
        admission.take(now, 100);
        admission.start_over(now);
        assert_eq!(admission.take(now, 100), [Change::Filter(port(4), Some([].into()))]);
    }

    #[test]
    fn filters_in_force_are_written_again_in_time() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        admission.filter(now, port(4), Some([addr(1)].into()));
        admission.filter(now, port(6), Some([addr(1)].into()));
        write(&mut admission, now);
        admission.filter(now, port(6), None);
        write(&mut admission, now);
        let later = admission.next_refresh().unwrap();
        assert!(later < now + FILTER_TTL);
        assert_eq!(write(&mut admission, later), [Change::Filter(port(4), Some([addr(1)].into()))]);
        admission.start_over(later);
        assert_eq!(filters(&write(&mut admission, later)).len(), 1);
    }

    #[test]
    fn a_scanner_is_blocked_once_for_a_time_and_a_party_is_let_out() {
        let (mut admission, now, length) = (Admission::default(), Instant::now(), Duration::from_secs(30));
        assert!(admission.block(now, Found::Address(addr(9)), length));
        assert!(!admission.block(now, Found::Address(addr(9)), length));
        assert!(admission.block(now + length * 2 / 3, Found::Address(addr(9)), length), "it goes on");
        write(&mut admission, now);
        admission.allow(now + length, addr(9));
        let changes = write(&mut admission, now);
        assert!(changes.contains(&Change::Block(Endpoint::new(addr(9), 0), false)), "{changes:?}");
    }
}
