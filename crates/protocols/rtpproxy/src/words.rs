//! Words of a command, separated by blanks, tabs and line ends.

pub(crate) fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// The words with their offsets.
#[derive(Clone)]
pub(crate) struct Words<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.text[self.at..];
        let start = self.at + rest.iter().position(|&byte| !is_separator(byte))?;
        let rest = &self.text[start..];
        let end = start + rest.iter().position(|&byte| is_separator(byte)).unwrap_or(rest.len());
        self.at = end;
        Some((start, &self.text[start..end]))
    }
}

pub(crate) fn trim_start(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_separator(byte)).unwrap_or(text.len());
    &text[start..]
}

pub(crate) fn trim(text: &[u8]) -> &[u8] {
    let text = trim_start(text);
    let end = text.iter().rposition(|&byte| !is_separator(byte)).map_or(0, |last| last + 1);
    &text[..end]
}

pub(crate) fn trim_line_end(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .rposition(|byte| !matches!(byte, b'\r' | b'\n'))
        .map_or(0, |last| last + 1);
    &text[..end]
}

/// A number of at most `digits` decimal digits and nothing else.
pub(crate) fn number(text: &[u8], digits: usize) -> Option<u64> {
    if text.is_empty() || text.len() > digits || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
