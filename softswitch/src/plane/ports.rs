//! The program of each relay port: the one whose client has written its media range.
//!
//! A softswitch may serve several programs, one for each agent. They share the relay table; notices and source filters depend on the port.

use shunt_net::Endpoint;
use shunt_relay_table::MediaRange;
use std::collections::BTreeMap;

/// A served program, by its position in `softswitch.programs`.
pub type Program = usize;

/// A media range and its priority, which has no effect here.
pub type Name = (MediaRange, u32);

/// The media ranges, and the program of each. Ranges of a former process have no program until one writes them again, unless there is only
/// one program.
#[derive(Debug, Default)]
pub struct Ports {
    rows: BTreeMap<Name, Option<Program>>,
    are_all_one: bool,
}

fn covers(range: &MediaRange, end: &Endpoint) -> bool {
    range.addr == end.addr && (range.first..=range.last).contains(&end.port)
}

impl Ports {
    /// Adopts the ranges of a former process. `programs`: how many are served.
    #[must_use]
    pub fn adopt<'a>(ranges: impl IntoIterator<Item = &'a MediaRange>, programs: usize) -> Self {
        let are_all_one = programs == 1;
        let rows = ranges.into_iter().map(|range| ((*range, 0), are_all_one.then_some(0)));
        Self {
            rows: rows.collect(),
            are_all_one,
        }
    }

    /// Returns whether a program has this range at this priority.
    #[must_use]
    pub fn has(&self, program: Program, name: &Name) -> bool {
        self.rows.get(name) == Some(&Some(program))
    }

    /// Returns whether the range exists for any program.
    #[must_use]
    pub fn is_used(&self, range: &MediaRange) -> bool {
        self.rows.keys().any(|(other, _)| other == range)
    }

    /// Returns a program's ranges of one IP version.
    #[must_use]
    pub fn of(&self, program: Program, v6: bool) -> Vec<Name> {
        let rows = self
            .rows
            .iter()
            .filter(|((range, _), owner)| **owner == Some(program) && range.addr.is_ipv6() == v6);
        rows.map(|(name, _)| *name).collect()
    }

    /// Returns another program with an overlapping range, and that range.
    #[must_use]
    pub fn rival(&self, program: Program, range: &MediaRange) -> Option<(Program, MediaRange)> {
        self.rows.iter().find_map(|((other, _), owner)| {
            let rival = owner.filter(|owner| *owner != program)?;
            (other.addr == range.addr && other.first <= range.last && range.first <= other.last).then_some((rival, *other))
        })
    }

    /// Records that a program has written a range without a rival.
    pub fn insert(&mut self, program: Program, name: Name) {
        self.rows.retain(|(range, _), owner| owner.is_some() || *range != name.0);
        self.rows.insert(name, Some(program));
    }

    pub fn remove(&mut self, name: &Name) {
        self.rows.remove(name);
    }

    /// Returns the program of a relay port. Ports without a range, such as those of conferences, belong to the first one.
    #[must_use]
    pub fn program_of(&self, end: &Endpoint) -> Option<Program> {
        if self.are_all_one {
            return Some(0);
        }
        let row = self.rows.iter().find(|((range, _), _)| covers(range, end));
        row.map_or(Some(0), |(_, owner)| *owner)
    }

    /// Returns the programs with ports.
    pub fn programs(&self) -> impl Iterator<Item = Program> {
        self.rows.values().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn range(first: u16, last: u16) -> MediaRange {
        let addr = Ipv4Addr::new(192, 0, 2, 1).into();
        MediaRange { addr, first, last }
    }

    fn end(port: u16) -> Endpoint {
        Endpoint::new(Ipv4Addr::new(192, 0, 2, 1), port)
    }

    #[test]
    fn each_range_is_of_the_program_that_wrote_it() {
        let mut ports = Ports::adopt([], 2);
        ports.insert(0, (range(100, 199), 1));
        ports.insert(1, (range(200, 299), 1));
        assert_eq!(
            [100, 199, 200, 299].map(|port| ports.program_of(&end(port))),
            [0, 0, 1, 1].map(Some)
        );
        assert_eq!(ports.program_of(&end(300)), Some(0), "in no range");
        assert!(ports.has(1, &(range(200, 299), 1)) && !ports.has(0, &(range(200, 299), 1)));
        assert_eq!(ports.of(0, false), [(range(100, 199), 1)]);
        assert!(ports.of(0, true).is_empty());
    }

    #[test]
    fn a_range_that_meets_anothers_has_a_rival() {
        let mut ports = Ports::adopt([], 2);
        ports.insert(1, (range(200, 299), 1));
        assert_eq!(ports.rival(0, &range(299, 400)), Some((1, range(200, 299))));
        assert_eq!(ports.rival(0, &range(100, 200)), Some((1, range(200, 299))));
        assert_eq!((ports.rival(0, &range(300, 400)), ports.rival(1, &range(250, 400))), (None, None));
    }

    #[test]
    fn ranges_that_were_left_belong_to_whoever_writes_them_again() {
        let mut ports = Ports::adopt(&[range(100, 199), range(200, 299)], 2);
        assert_eq!(ports.program_of(&end(100)), None);
        assert_eq!(ports.rival(0, &range(100, 199)), None);
        ports.insert(1, (range(100, 199), 1));
        assert_eq!((ports.program_of(&end(100)), ports.program_of(&end(200))), (Some(1), None));
        assert_eq!(ports.programs().collect::<Vec<_>>(), [1]);
        assert!(ports.is_used(&range(200, 299)));
    }

    #[test]
    fn the_only_program_has_every_port() {
        let ports = Ports::adopt(&[range(100, 199)], 1);
        assert_eq!([end(100), end(300)].map(|end| ports.program_of(&end)), [Some(0); 2]);
        assert!(ports.has(0, &(range(100, 199), 0)));
    }
}
