//! A reader of the event log: what is kept from a number on, then what is appended.

use super::line::{Head, LONGEST, is_whole, sequence};
use super::store::Segment;
use super::{LogError, Shared, lock};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::watch;

const CHUNK: usize = 64 << 10;

/// A reader. It holds no more of the log than a chunk, and slows nobody.
#[derive(Debug)]
pub struct Follow {
    shared: Arc<Shared>,
    changes: watch::Receiver<u64>,
    /// The next number that is wanted; `None`: whatever is kept first.
    wanted: Option<u64>,
    place: Option<Place>,
    /// Bytes of the file before `place.offset` that make no whole line yet.
    rest: Vec<u8>,
    /// The place was found where the wanted event is kept no longer.
    expired: bool,
}

#[derive(Debug)]
struct Place {
    segment: Segment,
    /// Numbers are lower, else they are damaged.
    end: u64,
    file: File,
    offset: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Missing {
    /// Older segments were removed to make room.
    Expired,
    /// Dropped by a full queue, not written, or damaged.
    Lost,
    /// The number asked for is higher than any that was given: it is of another log.
    Reset,
}

#[derive(Serialize)]
struct Gap {
    kind: &'static str,
    from: u64,
    first: u64,
    reason: Missing,
}

impl Follow {
    pub(super) fn new(shared: Arc<Shared>, from: Option<u64>) -> Self {
        Self {
            changes: shared.next.subscribe(),
            shared,
            wanted: from,
            place: None,
            rest: Vec::new(),
            expired: false,
        }
    }

    /// Append the next events to `lines`, one JSON object a line, gaps among them. Nothing is appended: there is no more at present.
    /// It reads files, so it may block for a moment.
    ///
    /// # Errors
    /// A segment cannot be read. Called again, it goes on after what can be read.
    pub fn read(&mut self, lines: &mut Vec<u8>) -> Result<(), LogError> {
        self.changes.mark_unchanged();
        self.check_future(lines);
        let before = lines.len();
        while lines.len() == before {
            if self.place.is_none() && !self.find()? {
                return Ok(());
            }
            if !self.read_chunk(lines)? && !self.next_segment()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether [`Follow::read`] finds more at once.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.wanted.is_none_or(|wanted| wanted < *self.shared.next.borrow())
    }

    /// Wait until [`Follow::read`] may find more.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The number after the last event that was read.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.wanted.unwrap_or_else(|| *self.shared.next.borrow())
    }

    fn check_future(&mut self, lines: &mut Vec<u8>) {
        let next = *self.shared.next.borrow();
        let Some(wanted) = self.wanted.filter(|wanted| *wanted > next) else {
            return;
        };
        let first = lock(&self.shared.segments).first().map_or(next, |segment| segment.first);
        gap(lines, wanted, first, Missing::Reset);
        self.wanted = None;
        self.place = None;
    }

    /// Open the segment that the wanted event is in, or the first one; false: there is none.
    fn find(&mut self) -> Result<bool, LogError> {
        let after = self.segments_from(|segment| self.wanted.is_some_and(|wanted| segment.first <= wanted), 1);
        self.expired = self
            .wanted
            .is_some_and(|wanted| after.first().is_some_and(|segment| segment.first > wanted));
        self.open_first(after)
    }

    /// Go on with the segment after this one; false: there is none.
    fn next_segment(&mut self) -> Result<bool, LogError> {
        let Some(first) = self.place.as_ref().map(|place| place.segment.first) else {
            return Ok(false);
        };
        self.open_first(self.segments_from(|segment| segment.first <= first, 0))
    }

    /// All segments but those that are `before`, of which the last `back` stay.
    fn segments_from(&self, before: impl Fn(&Segment) -> bool, back: usize) -> Vec<Segment> {
        let segments = lock(&self.shared.segments);
        let at = segments.partition_point(before).saturating_sub(back);
        segments.get(at..).unwrap_or_default().to_vec()
    }

    /// Open the first one that is still there.
    fn open_first(&mut self, segments: Vec<Segment>) -> Result<bool, LogError> {
        let next = *self.shared.next.borrow();
        let ends: Vec<u64> = segments.iter().skip(1).map(|segment| segment.first).chain([next]).collect();
        for (segment, end) in segments.into_iter().zip(ends) {
            if self.open(segment, end)? {
                return Ok(true);
            }
            self.expired = true;
        }
        Ok(false)
    }

    /// False: it was removed in the meantime.
    fn open(&mut self, segment: Segment, end: u64) -> Result<bool, LogError> {
        self.rest.clear();
        match File::open(&segment.path) {
            Ok(file) => {
                self.place = Some(Place {
                    end: if segment.own { u64::MAX } else { end },
                    segment,
                    file,
                    offset: 0,
                });
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(LogError::Io(segment.path, error)),
        }
    }

    /// Read a chunk and take its whole lines; false: the segment has no more at present.
    fn read_chunk(&mut self, lines: &mut Vec<u8>) -> Result<bool, LogError> {
        let Some(place) = &mut self.place else { return Ok(false) };
        let io = |error| LogError::Io(place.segment.path.clone(), error);
        let known = lock(&self.shared.segments)
            .iter()
            .find(|segment| segment.first == place.segment.first)
            .map(|segment| segment.length);
        // One that was removed is complete.
        let length = match known {
            Some(length) => length,
            None => place.file.metadata().map_err(io)?.len(),
        };
        let most = usize::try_from(length.saturating_sub(place.offset)).unwrap_or(CHUNK).min(CHUNK);
        let kept = self.rest.len();
        self.rest.resize(kept + most, 0);
        let count = place.file.read_at(&mut self.rest[kept..], place.offset).map_err(io)?;
        self.rest.truncate(kept + count);
        place.offset += count as u64;
        if count == 0 {
            return Ok(false);
        }
        let own = place.segment.own;
        let numbers = place.segment.first..place.end;
        self.take_lines(own, &numbers, lines);
        Ok(true)
    }

    fn take_lines(&mut self, own: bool, numbers: &Range<u64>, lines: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while let Some(length) = rest[at..].iter().position(|byte| *byte == b'\n') {
            let line = &rest[at..at + length];
            at += length + 1;
            if let Some(number) = sequence(line).filter(|number| own || (numbers.contains(number) && is_whole(line))) {
                self.take(number, line, lines);
            }
        }
        self.rest = rest[at..].to_vec();
        if self.rest.len() > LONGEST {
            self.rest.clear();
        }
    }

    fn take(&mut self, number: u64, line: &[u8], lines: &mut Vec<u8>) {
        if let Some(wanted) = self.wanted {
            if number < wanted {
                return;
            }
            if number > wanted && !follows(line, wanted) {
                gap(lines, wanted, number, if self.expired { Missing::Expired } else { Missing::Lost });
            }
        }
        self.expired = false;
        lines.extend_from_slice(line);
        lines.push(b'\n');
        self.wanted = Some(number + 1);
    }
}

/// Whether the line begins an epoch, and the epoch before has nothing from `wanted` on.
fn follows(line: &[u8], wanted: u64) -> bool {
    Head::read(line).and_then(|head| head.follows()).is_some_and(|last| last < wanted)
}

fn gap(lines: &mut Vec<u8>, from: u64, first: u64, reason: Missing) {
    let gap = Gap {
        kind: "gap",
        from,
        first,
        reason,
    };
    // A number and two words always become JSON.
    if serde_json::to_writer(&mut *lines, &gap).is_ok() {
        lines.push(b'\n');
    }
}
