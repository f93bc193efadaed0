//! The needed headers, from the lines after the start line.

use super::lines::{is_blank, split_line, trim};
use memchr::memchr;
use std::borrow::Cow;

/// The values of the needed headers. The first of several with one name counts, except that all Via values are counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers<'a> {
    pub(crate) call_id: Cow<'a, [u8]>,
    pub(crate) from: Cow<'a, [u8]>,
    pub(crate) to: Cow<'a, [u8]>,
    pub(crate) cseq: Cow<'a, [u8]>,
    pub(crate) via: Cow<'a, [u8]>,
    pub(crate) vias: usize,
    pub(crate) record_routes: usize,
    /// User-Agent of a request, Server of a response.
    pub(crate) user_agent: Cow<'a, [u8]>,
    pub(crate) reason: Cow<'a, [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    CallId,
    From,
    To,
    Cseq,
    Via,
    RecordRoute,
    UserAgent,
    Reason,
}

/// Most headers are none of these: the first letter rules them out.
fn name_of(text: &[u8]) -> Option<Name> {
    const NAMES: [(&[u8], Name); 13] = [
        (b"call-id", Name::CallId),
        (b"i", Name::CallId),
        (b"from", Name::From),
        (b"f", Name::From),
        (b"to", Name::To),
        (b"t", Name::To),
        (b"cseq", Name::Cseq),
        (b"via", Name::Via),
        (b"v", Name::Via),
        (b"record-route", Name::RecordRoute),
        (b"user-agent", Name::UserAgent),
        (b"server", Name::UserAgent),
        (b"reason", Name::Reason),
    ];
    let first = text.first()?.to_ascii_lowercase();
    NAMES
        .iter()
        .find(|(name, _)| name[0] == first && name.eq_ignore_ascii_case(text))
        .map(|(_, name)| *name)
}

impl<'a> Headers<'a> {
    /// Reads header lines until the empty line, which the body follows.
    pub(crate) fn read(mut rest: &'a [u8]) -> (Self, &'a [u8]) {
        let mut headers = Self::default();
        while !rest.is_empty() {
            let (line, after) = split_line(rest);
            rest = after;
            if line.is_empty() {
                break;
            }
            let colon = memchr(b':', line);
            let Some((name, colon)) = colon.and_then(|colon| Some((name_of(trim(&line[..colon]))?, colon))) else {
                continue;
            };
            let mut value = Cow::Borrowed(trim(&line[colon + 1..]));
            // A line that begins with a blank continues the header before it.
            while rest.first().is_some_and(|&byte| is_blank(byte)) {
                let (line, after) = split_line(rest);
                rest = after;
                fold(&mut value, trim(line));
            }
            headers.put(name, value);
        }
        (headers, rest)
    }

    fn put(&mut self, name: Name, value: Cow<'a, [u8]>) {
        let place = match name {
            Name::CallId => &mut self.call_id,
            Name::From => &mut self.from,
            Name::To => &mut self.to,
            Name::Cseq => &mut self.cseq,
            Name::Via => {
                self.vias += elements(&value);
                &mut self.via
            }
            Name::RecordRoute => {
                self.record_routes += elements(&value);
                return;
            }
            Name::UserAgent => &mut self.user_agent,
            Name::Reason => &mut self.reason,
        };
        if place.is_empty() {
            *place = value;
        }
    }
}

fn fold<'a>(value: &mut Cow<'a, [u8]>, more: &'a [u8]) {
    if value.is_empty() {
        *value = Cow::Borrowed(more);
    } else if !more.is_empty() {
        let value = value.to_mut();
        value.push(b' ');
        value.extend_from_slice(more);
    }
}

/// How many elements a comma-separated value has.
fn elements(value: &[u8]) -> usize {
    let commas = outside_quotes(value).filter(|(_, byte)| *byte == b',').count();
    if value.is_empty() { 0 } else { commas + 1 }
}

/// The bytes outside quoted strings, with their offsets. An unclosed quote is an ordinary byte.
pub(crate) fn outside_quotes(value: &[u8]) -> impl Iterator<Item = (usize, u8)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        while value.get(at) == Some(&b'"') {
            let Some(length) = quoted_length(&value[at..]) else { break };
            at += length;
        }
        let byte = *value.get(at)?;
        at += 1;
        Some((at - 1, byte))
    })
}

/// The length of the quoted string at the start of `text`, with both quotes.
fn quoted_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The URI of From or To (RFC 3261 section 20.10): the text in angle brackets. Without brackets, the text before the first parameter, which
/// belongs to the header.
pub(crate) fn uri(value: &[u8]) -> &[u8] {
    let open = outside_quotes(value).find(|(_, byte)| *byte == b'<').map(|(at, _)| at + 1);
    let (rest, ends): (&[u8], &[u8]) = match open {
        Some(at) => (&value[at..], b">"),
        None => (value, b";"),
    };
    let end = rest.iter().position(|byte| ends.contains(byte)).unwrap_or(rest.len());
    trim(&rest[..end])
}

/// The value of a header's parameter, never of one inside the display name or the URI.
pub(crate) fn parameter<'a>(value: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let after_uri = outside_quotes(value)
        .filter(|(_, byte)| *byte == b'>')
        .last()
        .map_or(0, |(at, _)| at + 1);
    parameter_after(&value[after_uri..], wanted)
}

/// The value of the first parameter with this name; an empty one for a parameter without a value.
pub(crate) fn parameter_after<'a>(params: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    for (at, _) in outside_quotes(params).filter(|(_, byte)| *byte == b';') {
        let rest = &params[at + 1..];
        let end = rest
            .iter()
            .position(|byte| matches!(byte, b';' | b',' | b'='))
            .unwrap_or(rest.len());
        if trim(&rest[..end]).eq_ignore_ascii_case(wanted) {
            let value = if rest.get(end) == Some(&b'=') {
                trim(&rest[end + 1..])
            } else {
                &[]
            };
            let end = value
                .iter()
                .position(|byte| byte.is_ascii_whitespace() || matches!(byte, b';' | b',' | b'>' | b'"'))
                .unwrap_or(value.len());
            return Some(&value[..end]);
        }
    }
    None
}
