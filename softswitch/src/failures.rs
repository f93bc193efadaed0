//! The failed members of a batch, and how they are reported to the client: singly, or in ranges if they are many.

use prost::Message as _;
use shunt_bfrt::google::rpc;
use shunt_bfrt::{BfrtError, Code, pb};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tonic::Status;

/// Up to this position each member has its own error in the status details, as in P4 Studio's server. Beyond it the details would make a
/// trailer of megabytes, so the status's text names the failures.
const DETAILED: usize = 65_536;
/// Most ranges in the text. A batch with more is broken off, and the text says where.
const RANGES: usize = 8_192;
const ERROR_TYPE: &str = "type.googleapis.com/bfrt_proto.Error";

/// Name of a batch in the status's text.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub status: &'static str,
    /// Name of its members, and of the successful operation.
    pub members: &'static str,
    pub done: &'static str,
}

/// Failed neighbours with the same code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: usize,
    last: usize,
    code: Code,
}

/// The failures of one batch. Its size is bounded: of later ones only the codes are stored.
#[derive(Debug, Default)]
pub struct Failures {
    near: BTreeMap<usize, BfrtError>,
    ranges: Vec<Range>,
    count: usize,
}

impl Failures {
    /// Adds a failed member after all earlier failures.
    pub fn add(&mut self, position: usize, error: BfrtError) {
        self.count += 1;
        match self.ranges.last_mut() {
            Some(range) if range.last + 1 == position && range.code == error.code => range.last = position,
            _ => self.ranges.push(Range {
                first: position,
                last: position,
                code: error.code,
            }),
        }
        if position < DETAILED {
            self.near.insert(position, error);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a member failed.
    #[must_use]
    pub fn has(&self, position: usize) -> bool {
        self.code(position).is_some()
    }

    fn code(&self, position: usize) -> Option<Code> {
        let at = self.ranges.partition_point(|range| range.last < position);
        self.ranges.get(at).filter(|range| range.first <= position).map(|range| range.code)
    }

    /// Returns whether a batch with this many tried members has more failures than can be named.
    #[must_use]
    pub fn is_beyond_naming(&self, served: usize) -> bool {
        served > DETAILED && self.ranges.len() >= RANGES
    }

    /// Returns a member's error to send, empty if it did not fail.
    #[must_use]
    pub fn error(&self, position: usize) -> pb::Error {
        let sent = |code: Code, message: String| pb::Error {
            canonical_code: code as i32,
            message,
            ..pb::Error::default()
        };
        match (self.near.get(&position), self.code(position)) {
            (Some(error), _) => sent(error.code, error.to_string()),
            (None, Some(code)) => sent(code, code.words().to_owned()),
            (None, None) => pb::Error::default(),
        }
    }

    /// Returns status UNKNOWN, which names every failure. `sent`: the batch's members; `broken_off`: the first member that was not tried.
    #[must_use]
    pub fn status(&self, words: Words, sent: usize, broken_off: Option<usize>) -> Status {
        let last = self.ranges.last().map_or(0, |range| range.last);
        if last < DETAILED && broken_off.is_none() {
            return unknown(words.status.to_owned(), (0..=last).map(|position| self.error(position)));
        }
        unknown(self.text(words, sent, broken_off), [])
    }

    /// Returns status DEADLINE_EXCEEDED, which names every failure. `from`: the first member that was not tried.
    #[must_use]
    pub fn timed_out(&self, words: Words, sent: usize, from: usize) -> Status {
        Status::deadline_exceeded(self.text(words, sent, Some(from)))
    }

    fn text(&self, words: Words, sent: usize, broken_off: Option<usize>) -> String {
        let Words { status, members, done } = words;
        let mut text = format!(
            "{status}: {} of {sent} {members} failed{}",
            self.count,
            if self.count > 0 { ":" } else { ";" }
        );
        for Range { first, last, code } in &self.ranges {
            let _ = if first == last {
                write!(text, " {first} ({});", code.words())
            } else {
                write!(text, " {first}-{last} ({});", code.words())
            };
        }
        if let Some(from) = broken_off {
            let _ = write!(text, " {members} from {from} on were not tried;");
        }
        let _ = write!(text, " all others were {done}");
        text
    }
}

fn unknown(message: String, errors: impl IntoIterator<Item = pb::Error>) -> Status {
    let any = |error: pb::Error| prost_types::Any {
        type_url: ERROR_TYPE.into(),
        value: error.encode_to_vec(),
    };
    let status = rpc::Status {
        code: Code::Unknown as i32,
        message: message.clone(),
        details: errors.into_iter().map(any).collect(),
    };
    Status::with_details(tonic::Code::Unknown, message, status.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words = Words {
        status: "Write Error Status",
        members: "updates",
        done: "applied",
    };

    fn failed(positions: impl IntoIterator<Item = usize>, code: Code) -> Failures {
        let mut failures = Failures::default();
        for position in positions {
            failures.add(position, BfrtError::new(code, "Why."));
        }
        failures
    }

    #[test]
    fn near_failures_are_told_one_by_one() {
        let failures = failed([1, DETAILED - 1], Code::Exists);
        let status = failures.status(WORDS, DETAILED, None);
        let sent = rpc::Status::decode(status.details()).map(|status| status.details.len());
        assert_eq!((status.message(), sent), ("Write Error Status", Ok(DETAILED)));
        assert_eq!(failures.error(1).message, "Why. Already exists");
        assert_eq!(
            (failures.error(0).canonical_code, failures.has(0), failures.has(1)),
            (0, false, true)
        );
    }

    #[test]
    fn far_failures_are_told_in_ranges() {
        let mut failures = failed((5..8).chain([9, DETAILED]), Code::Exists);
        failures.add(DETAILED + 1, BfrtError::new(Code::NotFound, "Why."));
        let status = failures.status(WORDS, 70_000, None);
        let text = "Write Error Status: 6 of 70000 updates failed: 5-7 (Already exists); 9 (Already exists); 65536 (Already exists); \
                    65537 (Object not found); all others were applied";
        assert_eq!(status.message(), text);
        assert_eq!(failures.error(DETAILED + 1).canonical_code, Code::NotFound as i32);
        assert!([5, 6, 7, 9, DETAILED].iter().all(|position| failures.has(*position)) && !failures.has(8) && !failures.has(4));
    }

    #[test]
    fn a_deadline_says_what_was_done() {
        let words = Words {
            status: "Timed out",
            ..WORDS
        };
        let status = failed([3], Code::Exists).timed_out(words, 9, 5);
        let text = "Timed out: 1 of 9 updates failed: 3 (Already exists); updates from 5 on were not tried; all others were applied";
        assert_eq!((status.code(), status.message()), (tonic::Code::DeadlineExceeded, text));
        let status = failed([], Code::Exists).timed_out(words, 9, 5);
        let text = "Timed out: 0 of 9 updates failed; updates from 5 on were not tried; all others were applied";
        assert_eq!(status.message(), text);
    }

    #[test]
    fn what_cannot_be_named_is_broken_off() {
        let failures = failed((0..2 * RANGES).step_by(2), Code::Exists);
        assert!(!failures.is_beyond_naming(DETAILED) && failures.is_beyond_naming(DETAILED + 1));
        let text = failures.status(WORDS, 70_000, Some(DETAILED + 1)).message().to_owned();
        assert!(
            text.ends_with("; updates from 65537 on were not tried; all others were applied"),
            "{text}"
        );
    }
}
