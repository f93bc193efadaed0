//! Lines that end in CR LF, LF or CR.

use memchr::memchr2;

/// The first line without its end, and the remaining text.
pub(crate) fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let Some(end) = memchr2(b'\r', b'\n', text) else {
        return (text, &[]);
    };
    let both = text[end] == b'\r' && text.get(end + 1) == Some(&b'\n');
    (&text[..end], &text[end + 1 + usize::from(both)..])
}

pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Without surrounding blanks.
pub(crate) fn trim(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|&byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

pub(crate) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| is_blank(byte)).filter(|word| !word.is_empty())
}

/// A decimal number of at most nine digits, and nothing else.
pub(crate) fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 9 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
