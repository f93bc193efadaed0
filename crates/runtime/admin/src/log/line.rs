//! One line of the event log: an event as JSON. The sequence number comes first, so that a reader finds it without parsing the rest.

use serde::{Deserialize, Serialize};
use shunt_admin_model::Text;
use shunt_admin_model::{Component, Event, Facts};
use shunt_calls::Side;

const PREFIX: &[u8] = b"{\"seq\":";
/// Numbers are lower, so that every reader of JSON takes them exactly (RFC 8259 section 6). Of damaged digits it leaves less to believe.
pub(super) const HIGHEST: u64 = 1 << 53;
/// Lines that are longer are no events.
pub(super) const LONGEST: usize = 1 << 20;

/// An event with what the log adds.
#[derive(Debug)]
pub(super) struct Stamped {
    pub(super) seq: u64,
    /// Unix time, µs.
    pub(super) time_us: u64,
    /// Since the start of the epoch, by the monotonic clock, µs.
    pub(super) mono_us: u64,
    pub(super) event: Event,
}

#[derive(Serialize)]
struct Written<'a> {
    seq: u64,
    epoch: u64,
    time_us: u64,
    mono_us: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    party: Option<Side>,
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<Component>,
    facts: &'a Facts,
}

impl Stamped {
    /// Append the line to `buffer`; false, and nothing is appended, if it would be too long.
    pub(super) fn write(&self, epoch: u64, buffer: &mut Vec<u8>) -> bool {
        let before = buffer.len();
        let event = &self.event;
        let written = Written {
            seq: self.seq,
            epoch,
            time_us: self.time_us,
            mono_us: self.mono_us,
            kind: event.facts.kind(),
            call: event.call.as_ref(),
            media: event.media,
            party: event.party,
            component: event.component,
            facts: &event.facts,
        };
        let fits = serde_json::to_writer(&mut *buffer, &written).is_ok() && buffer.len() - before < LONGEST;
        if fits {
            buffer.push(b'\n');
        } else {
            buffer.truncate(before);
        }
        fits
    }
}

/// The sequence number of a line without its line end; `None`: it is no line of the log.
pub(super) fn sequence(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(PREFIX)?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    if rest.get(digits) != Some(&b',') || line.last() != Some(&b'}') {
        return None;
    }
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Of two lines that damage has made into one there are two numbers, which is no JSON of ours.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Whether a line is JSON throughout, and one event.
pub(super) fn is_whole(line: &[u8]) -> bool {
    // What is ignored is not checked to be UTF-8.
    let text = std::str::from_utf8(line).ok();
    let number = text.and_then(|text| serde_json::from_str(text).ok()).map(|Numbered { seq }| seq);
    number.is_some() && number == sequence(line)
}

/// What a line says of its epoch.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Head {
    pub(super) epoch: u64,
    kind: String,
    facts: HeadFacts,
}

#[derive(Debug, Default, Deserialize)]
struct HeadFacts {
    #[serde(default)]
    what: Option<String>,
    #[serde(default)]
    previous_seq: Option<u64>,
}

impl Head {
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    fn is_agent(&self, what: &str) -> bool {
        self.kind == "agent" && self.facts.what.as_deref() == Some(what)
    }

    /// The last event of an epoch that ended as it should.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_agent("stopped")
    }

    /// For the first event of an epoch: the last number of the epoch before.
    pub(super) fn follows(&self) -> Option<u64> {
        self.facts.previous_seq.filter(|_| self.is_agent("started"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_that_damage_has_joined_are_no_line() {
        let line = br#"{"seq":744,"epoch":1,"kind":"call","facts":{}}"#;
        assert!(is_whole(line));
        let joined = br#"{"seq":744,"seq":746,"epoch":1,"kind":"call","facts":{}}"#;
        assert_eq!(sequence(joined), Some(744));
        assert!(!is_whole(joined));
        assert!(!is_whole(br#"{"seq":744,"epoch":1"#));
    }
}
