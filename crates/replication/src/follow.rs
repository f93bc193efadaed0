//! Following the kernel's routes: copies whose next hop changed.

use crate::hops::Hops;
use crate::table::Replication;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// Next-hop rows that changed, on their way into the copies.
#[derive(Debug)]
pub struct Moves {
    rows: HashMap<(IpAddr, IpAddr), u16>,
    next: u32,
}

impl Moves {
    /// rows: by destination and source address.
    #[must_use]
    pub fn new(rows: HashMap<(IpAddr, IpAddr), u16>) -> Self {
        Self { rows, next: 1 }
    }
}

impl Replication {
    /// Have up to `limit` rewrites follow next hops that changed; whether all have followed. The former rows may be given to other
    /// destinations only then.
    pub fn follow(&mut self, hops: &impl Hops, moves: &mut Moves, limit: usize) -> bool {
        let rows = u32::try_from(self.copies.rows()).unwrap_or(u32::MAX);
        if moves.rows.is_empty() || moves.next >= rows {
            return true;
        }
        let end = moves.next.saturating_add(u32::try_from(limit.max(1)).unwrap_or(u32::MAX)).min(rows);
        let mut numbers = BTreeSet::new();
        for index in moves.next..end {
            let Some(copy) = self.copies.at(index) else { continue };
            let to = moves.rows.get(&(copy.rewrite.dst.addr, copy.rewrite.src.addr)).copied();
            let (name, current) = (copy.name, self.copies.find(copy.name));
            if let Some(row) = to
                && self.copies.move_to(index, row, hops.output(row))
                && current == Some(index)
            {
                numbers.insert(name.number);
            }
        }
        for number in numbers {
            for row in self.streams.of_number(number).collect::<Vec<_>>() {
                self.renew(row);
            }
        }
        moves.next = end;
        end >= rows
    }
}
