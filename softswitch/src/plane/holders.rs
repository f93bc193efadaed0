//! The programs that have written each row of blocklist and allowlist. These rows name a source and no relay port, so programs share them:
//! a row is deleted when the last program that has written it deletes it.

use super::ports::Program;
use shunt_net::Endpoint;
use std::collections::HashMap;

/// A row of a table: the table's id, and the source.
pub type Source = (u32, Endpoint);

/// For each row the programs that have written it, as bits.
#[derive(Debug, Default)]
pub struct Holders {
    rows: HashMap<Source, u64>,
    /// The number of rows at which expired ones are removed.
    look_at: usize,
}

/// With fewer rows than this, expired ones stay.
const FEW: usize = 4096;

impl Holders {
    /// Most programs of a softswitch.
    pub const PROGRAMS: usize = u64::BITS as usize;

    /// Records that a program has written a row. `in_force`: whether a row has not expired.
    pub fn hold(&mut self, program: Program, source: Source, mut in_force: impl FnMut(&Source) -> bool) {
        if self.rows.len() >= self.look_at.max(FEW) && !self.rows.contains_key(&source) {
            self.rows.retain(|source, _| in_force(source));
            self.look_at = 2 * self.rows.len();
        }
        *self.rows.entry(source).or_default() |= 1 << program;
    }

    /// Records that a program deletes a row. Returns whether no other program has written it.
    pub fn release(&mut self, program: Program, source: &Source) -> bool {
        let Some(programs) = self.rows.get_mut(source) else { return true };
        *programs &= !(1 << program);
        let is_free = *programs == 0;
        if is_free {
            self.rows.remove(source);
        }
        is_free
    }

    /// Returns whether other programs have written a row.
    #[must_use]
    pub fn has_others(&self, program: Program, source: &Source) -> bool {
        self.rows.get(source).is_some_and(|programs| programs & !(1 << program) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn source(port: u16) -> Source {
        (1, Endpoint::new(Ipv4Addr::LOCALHOST, port))
    }

    #[test]
    fn a_row_is_deleted_with_the_last_that_has_written_it() {
        let mut holders = Holders::default();
        holders.hold(0, source(1), |_| true);
        holders.hold(1, source(1), |_| true);
        assert!(holders.has_others(0, &source(1)));
        assert!(!holders.release(0, &source(1)));
        assert!(!holders.has_others(1, &source(1)) && holders.has_others(0, &source(1)));
        assert!(holders.release(1, &source(1)));
        assert!(holders.release(0, &source(2)), "a row that nobody has written since the start");
    }

    #[test]
    fn rows_whose_time_is_over_take_no_room() {
        let mut holders = Holders::default();
        for port in 0..2 * FEW as u16 {
            holders.hold(1, source(port), |_| false);
        }
        assert!(holders.rows.len() <= FEW);
    }
}
