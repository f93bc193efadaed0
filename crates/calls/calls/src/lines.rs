//! All media lines. A line that is being worked on is not among them until it is given back.

use crate::ids::{ByLine, LineId};
use crate::line::Line;

/// All media lines by their identifiers.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: ByLine<Box<Line>>,
    /// Lines that are being worked on.
    lent: Vec<LineId>,
}

impl Lines {
    /// Asserts that a line is not lent: a lookup would not find it.
    fn assert_here(&self, id: LineId) {
        debug_assert!(
            !self.lent.contains(&id),
            "line {} is worked on: use the reference to it",
            id.number()
        );
    }

    fn assert_all_here(&self) {
        debug_assert!(self.lent.is_empty(), "lines {:?} are worked on, and would be left out", self.lent);
    }

    /// Takes a line out, to work on it together with the rest of the book.
    pub(crate) fn lend(&mut self, id: LineId) -> Option<Box<Line>> {
        self.assert_here(id);
        let line = self.lines.remove(&id)?;
        self.lent.push(id);
        Some(line)
    }

    /// Puts the line back that was lent last.
    pub(crate) fn give_back(&mut self, line: Box<Line>) {
        debug_assert_eq!(self.lent.last(), Some(&line.id));
        self.lent.pop();
        self.lines.insert(line.id, line);
    }

    pub(crate) fn get(&self, id: &LineId) -> Option<&Line> {
        self.assert_here(*id);
        self.lines.get(id).map(|line| &**line)
    }

    pub(crate) fn get_mut(&mut self, id: &LineId) -> Option<&mut Line> {
        self.assert_here(*id);
        self.lines.get_mut(id).map(|line| &mut **line)
    }

    pub(crate) fn insert(&mut self, line: Line) {
        self.lines.insert(line.id, Box::new(line));
    }

    pub(crate) fn remove(&mut self, id: &LineId) -> Option<Box<Line>> {
        self.assert_here(*id);
        self.lines.remove(id)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &LineId> {
        self.assert_all_here();
        self.lines.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Line> {
        self.assert_all_here();
        self.lines.values().map(|line| &**line)
    }

    pub(crate) fn len(&self) -> usize {
        self.assert_all_here();
        self.lines.len()
    }
}
