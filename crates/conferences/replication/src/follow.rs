//! Follows the kernel's routes: copies whose next hop changed.

use crate::fault::Result;
use crate::hops::Hops;
use crate::table::{Replication, Retired};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Changed next-hop rows that must be written into the copies.
#[derive(Debug)]
pub struct Moves {
    rows: HashMap<(IpAddr, IpAddr), u16>,
    next: u32,
}

impl Moves {
    /// Rows by destination and source address.
    #[must_use]
    pub fn new(rows: HashMap<(IpAddr, IpAddr), u16>) -> Self {
        Self { rows, next: 1 }
    }
}

impl Replication {
    /// Makes up to `limit` rewrites follow changed next hops. Returns whether all have followed. The former rows are unused after the next
    /// round.
    pub fn follow(&mut self, hops: &mut impl Hops, moves: &mut Moves, limit: usize) -> bool {
        let rows = u32::try_from(self.copies.rows()).unwrap_or(u32::MAX);
        let limit = u32::try_from(limit.max(1)).unwrap_or(u32::MAX);
        let end = if moves.rows.is_empty() {
            rows
        } else {
            moves.next.saturating_add(limit).min(rows)
        };
        let mut elsewhere: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for index in moves.next..end {
            let Some(copy) = self.copies.at(index) else { continue };
            let Some(row) = moves.rows.get(&(copy.rewrite.dst.addr, copy.rewrite.src.addr)).copied() else {
                continue;
            };
            let (name, ifindex) = (copy.name, hops.output(row));
            if copy.ifindex == ifindex || self.copies.find(name) != Some(index) {
                self.copies.move_to(index, row, ifindex);
            } else {
                elsewhere.entry(name.number).or_default().push(index);
            }
        }
        for (number, indexes) in elsewhere {
            if let Err(fault) = self.follow_number(hops, number, &indexes) {
                tracing::warn!("a route changed, and copies of the streams with number {number} pause until they follow: {fault}");
                self.move_in_place(hops, number, &indexes, moves);
            }
        }
        moves.next = end.max(moves.next);
        end >= rows
    }

    /// The same without free records: packets that arrive before their list is rebuilt are lost.
    fn move_in_place(&mut self, hops: &impl Hops, number: u32, indexes: &[u32], moves: &Moves) {
        for index in indexes {
            let Some(copy) = self.copies.at(*index) else { continue };
            if let Some(row) = moves.rows.get(&(copy.rewrite.dst.addr, copy.rewrite.src.addr)) {
                self.copies.move_to(*index, *row, hops.output(*row));
            }
        }
        for row in self.streams.of_number(number).collect::<Vec<_>>() {
            self.renew(row);
        }
    }

    /// Moves copies of one stream number to other interfaces. Each copy gets a new record, so that its packets take the new next hop
    /// together with the new list.
    fn follow_number(&mut self, hops: &mut impl Hops, number: u32, indexes: &[u32]) -> Result<()> {
        let mut made: Vec<(u32, u32)> = Vec::new();
        let mut make = || -> Result<()> {
            for before in indexes {
                let Some(copy) = self.copies.at(*before) else { continue };
                let index = self.make_copy(hops, copy.name, copy.rewrite)?;
                self.copies.name(index);
                made.push((*before, index));
            }
            Ok(())
        };
        let planned = make().and_then(|()| self.plan(&self.parts_of_number(number)));
        let planned = match planned {
            Ok(planned) => planned,
            Err(fault) => {
                for (before, index) in made {
                    self.copies.rename(before);
                    self.drop_copy(index);
                }
                return Err(fault);
            }
        };
        for (before, index) in &made {
            self.copies.put_in_force(*index, Some(*before));
        }
        self.turn_all(planned);
        for (before, _) in made {
            self.retire(Retired::Copy(before));
        }
        Ok(())
    }
}
