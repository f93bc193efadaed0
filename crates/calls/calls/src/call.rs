//! The media lines of one Call-ID, by session tag and media index.

use crate::ids::LineId;
use crate::record::CallNumber;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Named {
    tag: Arc<[u8]>,
    media: Option<u32>,
    line: LineId,
}

/// An index of lines, ordered by tag: most calls have one line, and a binary search serves a call with a thousand tags.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Key under which the results of its ended lines are kept.
    pub(crate) number: CallNumber,
    lines: Vec<Named>,
}

impl Call {
    pub(crate) fn new(number: CallNumber) -> Self {
        Self { number, lines: Vec::new() }
    }

    /// Adds a line.
    pub(crate) fn enter(&mut self, tag: Arc<[u8]>, media: Option<u32>, line: LineId) {
        let at = self.lines.partition_point(|named| *named.tag <= *tag);
        if self.lines.is_empty() {
            self.lines.reserve_exact(1);
        }
        self.lines.insert(at, Named { tag, media, line });
    }

    pub(crate) fn remove(&mut self, line: LineId, tag: &[u8]) {
        let first = self.first_of(tag);
        let found = self.of(tag).iter().position(|named| named.line == line);
        if let Some(at) = found {
            self.lines.remove(first + at);
        }
    }

    fn first_of(&self, tag: &[u8]) -> usize {
        self.lines.partition_point(|named| *named.tag < *tag)
    }

    fn of(&self, tag: &[u8]) -> &[Named] {
        let rest = &self.lines[self.first_of(tag)..];
        &rest[..rest.partition_point(|named| *named.tag == *tag)]
    }

    /// Returns the lines of a session tag with their media indexes, in the order of their addition.
    pub(crate) fn of_tag<'a>(&'a self, tag: &[u8]) -> impl Iterator<Item = (Option<u32>, LineId)> + use<'a> {
        self.of(tag).iter().map(|named| (named.media, named.line))
    }

    /// Returns the line of a session.
    pub(crate) fn line(&self, tag: &[u8], media: Option<u32>) -> Option<LineId> {
        self.of_tag(tag).find(|(index, _)| *index == media).map(|(_, line)| line)
    }

    /// Returns all lines.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LineId> + '_ {
        self.lines.iter().map(|named| named.line)
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_tag_and_media_index() {
        let mut call = Call::new(CallNumber::default());
        for (number, (tag, media)) in [("b", None), ("a", Some(1)), ("c", None), ("a", Some(2)), ("", None)]
            .into_iter()
            .enumerate()
        {
            call.enter(tag.as_bytes().into(), media, LineId(number as u64));
        }
        assert_eq!(call.line(b"a", Some(2)), Some(LineId(3)));
        assert_eq!(call.line(b"a", None), None);
        assert_eq!(call.line(b"d", None), None);
        assert_eq!(call.of_tag(b"a").collect::<Vec<_>>(), [(Some(1), LineId(1)), (Some(2), LineId(3))]);
        call.remove(LineId(1), b"a");
        call.remove(LineId(0), b"a");
        assert_eq!(call.of_tag(b"a").collect::<Vec<_>>(), [(Some(2), LineId(3))]);
        assert_eq!((call.len(), call.line(b"b", None)), (4, Some(LineId(0))));
        assert_eq!(call.ids().collect::<Vec<_>>(), [LineId(4), LineId(3), LineId(0), LineId(2)]);
    }
}
