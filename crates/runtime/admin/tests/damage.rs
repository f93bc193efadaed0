//! Segments with any damage: readers get whole events with rising numbers, and every hole is a gap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Directory, PATIENCE, event, read, segments, settled};
use proptest::prelude::*;
use serde_json::Value;
use shunt_admin::EventLog;
use std::path::Path;
use std::sync::OnceLock;

/// One change of a file: bytes are overwritten, inserted or cut out, or the file ends there.
#[derive(Clone, Debug)]
enum Damage {
    Overwrite(prop::sample::Index, Vec<u8>),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Truncate(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<prop::sample::Index>;
    // Zeros, as after a power failure; line ends; anything.
    let bytes = || {
        prop_oneof![
            Just(vec![0; 64]),
            Just(vec![b'\n']),
            "[0-9]{1,3}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 1..40)
        ]
    };
    prop_oneof![
        (place(), bytes()).prop_map(|(place, bytes)| Damage::Overwrite(place, bytes)),
        (place(), bytes()).prop_map(|(place, bytes)| Damage::Insert(place, bytes)),
        (place(), 1usize..300).prop_map(|(place, count)| Damage::Remove(place, count)),
        place().prop_map(Damage::Truncate),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |place: &prop::sample::Index| place.index(bytes.len().max(1)).min(bytes.len());
        match self {
            Self::Overwrite(place, with) => {
                let at = at(place);
                let end = (at + with.len()).min(bytes.len());
                let with = &with[..end - at];
                bytes[at..end].copy_from_slice(with);
            }
            Self::Insert(place, with) => {
                let at = at(place);
                bytes.splice(at..at, with.iter().copied());
            }
            Self::Remove(place, count) => {
                let at = at(place);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Self::Truncate(place) => bytes.truncate(at(place)),
        }
    }
}

/// The files of a log of two epochs in several segments: name and content, in order.
fn original() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let directory = Directory::new();
        for _ in 0..2 {
            let mut settings = directory.settings();
            settings.segment_bytes = 4_096;
            let log = EventLog::open(settings).unwrap();
            for count in 1..=60 {
                log.append(event("1-15695@198.51.100.7"));
                // One group each, so that there are several segments.
                settled(&log, 1 + count);
            }
            log.close(PATIENCE);
        }
        let found = segments(&directory.log());
        assert!(found.len() >= 4);
        found
            .iter()
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
            .collect()
    })
}

fn restore(directory: &Path, change: impl Fn(usize, &mut Vec<u8>)) {
    std::fs::create_dir(directory).unwrap();
    for (place, (name, bytes)) in original().iter().enumerate() {
        let mut bytes = bytes.clone();
        change(place, &mut bytes);
        std::fs::write(directory.join(name), bytes).unwrap();
    }
}

/// Every event has the number after the one before, unless a gap says otherwise or an epoch begins.
fn check(lines: &[Value], mut wanted: Option<u64>) -> Result<(), TestCaseError> {
    for line in lines {
        if line["kind"] == "gap" {
            let (from, first) = (line["from"].as_u64(), line["first"].as_u64());
            prop_assert_eq!(from, wanted, "the gap begins where the reader was: {}", line);
            prop_assert!(from < first, "a gap is not empty: {}", line);
            wanted = first;
            continue;
        }
        let number = line["seq"].as_u64();
        let begins = line["facts"]["what"] == "started" && line["facts"]["previous_seq"].as_u64() < wanted;
        prop_assert!(
            wanted.is_none() || number == wanted || (begins && number > wanted),
            "{} after {:?}",
            line,
            wanted
        );
        wanted = number.map(|number| number + 1);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_damage_is_a_gap(
        damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..5),
        lost in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = Directory::new();
        let files = original().len();
        restore(&directory.log(), |place, bytes| {
            for (file, damage) in &damages {
                if file.index(files) == place {
                    damage.apply(bytes);
                }
            }
        });
        if let Some(file) = lost {
            std::fs::remove_file(directory.log().join(&original()[file.index(files)].0)).unwrap();
        }
        let log = EventLog::open(directory.settings()).unwrap();
        prop_assert_eq!(log.status().error, None);
        log.append(event("after"));
        settled(&log, 2);
        let lines = read(&log, None);
        check(&lines, None)?;
        prop_assert_eq!(&lines.last().unwrap()["call"], "after");
        // And for who was in the middle of it.
        let middle = serde_json::from_slice::<Value>(original()[1].1.split(|byte| *byte == b'\n').next().unwrap()).unwrap()["seq"].as_u64();
        check(&read(&log, middle), middle)?;
        log.close(PATIENCE);
    }
}

#[test]
fn without_damage_there_is_no_gap() {
    let directory = Directory::new();
    restore(&directory.log(), |_, _| {});
    let log = EventLog::open(directory.settings()).unwrap();
    settled(&log, 1);
    let lines = read(&log, None);
    assert_eq!(lines.len(), 2 * 62 + 1);
    assert!(lines.iter().all(|line| line["kind"] != "gap"));
}

#[test]
fn a_digit_that_makes_a_number_too_high_costs_no_other_segment() {
    let directory = Directory::new();
    restore(&directory.log(), |place, bytes| {
        if place == 1 {
            let text = String::from_utf8(std::mem::take(bytes)).unwrap();
            *bytes = text.replacen("{\"seq\":1", "{\"seq\":8", 1).into_bytes();
        }
    });
    let log = EventLog::open(directory.settings()).unwrap();
    settled(&log, 1);
    let lines = read(&log, None);
    let gaps: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "gap").collect();
    assert_eq!((gaps.len(), lines.len()), (1, 2 * 62 + 1));
    assert_eq!(gaps[0]["first"].as_u64().unwrap() - gaps[0]["from"].as_u64().unwrap(), 1);
}
