//! Segment files: their names, and what of one can be read. No I/O.

use super::line::{HIGHEST, is_whole, sequence};

const SUFFIX: &str = ".ndjson";
const PREFIX: &str = "events-";

/// The name of the file whose first event has this number.
pub(super) fn name(first: u64) -> String {
    format!("{PREFIX}{first:020}{SUFFIX}")
}

/// The number in a file's name; `None`: it is no segment.
pub(super) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// What is in a segment's bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Up to the end of the last whole line.
    pub(super) whole: usize,
    /// Number and place of the last whole line.
    pub(super) last: Option<(u64, std::ops::Range<usize>)>,
    /// Lines before it that are none.
    pub(super) damaged: usize,
}

/// Look through the segment whose first event has the number `first`. A line is whole if it is JSON, ends with a line feed and has a higher number
/// than those before it.
pub(super) fn scan(first: u64, bytes: &[u8]) -> Scan {
    let mut found = Scan::default();
    let (mut at, mut damaged) = (0, 0);
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = at..at + length;
        at += length + 1;
        let number = sequence(&bytes[line.clone()])
            .filter(|number| (first..HIGHEST).contains(number))
            .filter(|_| is_whole(&bytes[line.clone()]));
        match number {
            Some(number) if found.last.as_ref().is_none_or(|(last, _)| number > *last) => {
                found.whole = at;
                found.damaged += std::mem::take(&mut damaged);
                found.last = Some((number, line));
            }
            _ => damaged += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(number: u64) -> Vec<u8> {
        format!("{{\"seq\":{number},\"epoch\":1,\"kind\":\"agent\",\"facts\":{{}}}}\n").into_bytes()
    }

    fn segment(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| line(*number)).collect()
    }

    proptest! {
        #[test]
        fn a_cut_file_keeps_its_whole_lines(count in 0u64..20, cut in 0usize..2000) {
            let bytes = segment(&(0..count).collect::<Vec<_>>());
            let cut = cut.min(bytes.len());
            let found = scan(0, &bytes[..cut]);
            prop_assert!(found.whole <= cut);
            let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(found.last.map(|(last, _)| last + 1).unwrap_or(0), lines as u64);
            prop_assert_eq!(found.damaged, 0);
        }

        #[test]
        fn any_bytes_are_looked_through(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let found = scan(0, &bytes);
            prop_assert!(found.whole <= bytes.len());
        }

        #[test]
        fn one_wrong_byte_costs_at_most_two_lines(count in 2u64..20, place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = segment(&(100..100 + count).collect::<Vec<_>>());
            let place = place.index(bytes.len());
            bytes[place] = byte;
            let found = scan(0, &bytes);
            let good = bytes[..found.whole].iter().filter(|byte| **byte == b'\n').count() - found.damaged;
            // A wrong digit can make a number too high, so that lower ones after it do not count.
            let number_changed = byte.is_ascii_digit();
            prop_assert!(number_changed || good as u64 + 2 >= count, "{} of {}", good, count);
        }
    }

    #[test]
    fn damage_in_the_middle_is_counted_and_at_the_end_cut_off() {
        let mut bytes = line(1);
        bytes.extend_from_slice(b"\0\0\0\0\n");
        bytes.extend(line(2));
        let whole = bytes.len();
        bytes.extend_from_slice(b"{\"seq\":3,\"ep");
        let found = scan(0, &bytes);
        assert_eq!((found.whole, found.damaged), (whole, 1));
        assert_eq!(found.last.map(|(last, _)| last), Some(2));
    }

    #[test]
    fn names_sort_as_their_numbers() {
        assert!(name(9) < name(10));
        assert_eq!(first_of(&name(1_732_447_922_123_456)), Some(1_732_447_922_123_456));
        assert_eq!(first_of("events-12.ndjson"), None);
        assert_eq!(first_of("lock"), None);
    }
}
