//! Every target takes its corpus, and copies of it that are cut, spliced and changed at places which are the same in each run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use shunt_fuzz::TARGETS;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Changed inputs for each target, and for those whose inputs cost milliseconds.
const CHANGED: usize = 10_000;
const CHANGED_OF_SLOW: usize = 100;
const SLOW: [&str; 4] = ["mix_room", "tiling_h261", "tiling_h264", "tiling_h265"];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = corpus().join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("the folder can be read").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("the file can be read"))
        .collect()
}

/// Numbers that look random (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap_or(0) % limit.max(1)
    }

    /// One to eight changes of a copy: bits, octets of borderline values, cuts, insertions, and pieces of another input.
    fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut made = input.to_vec();
        for _ in 0..=self.below(8) {
            let at = self.below(made.len() + 1);
            match self.below(6) {
                0 if at < made.len() => made[at] ^= 1 << self.below(8),
                1 if at < made.len() => made[at] = [0, 1, 0x7F, 0x80, 0xFF, b'-', b' ', b'9'][self.below(8)],
                2 => made.truncate(at),
                3 => made.insert(at, u8::try_from(self.below(256)).unwrap_or(0)),
                4 => {
                    let end = (at + self.below(8)).min(made.len());
                    drop(made.drain(at..end));
                }
                _ => {
                    let from = self.below(other.len() + 1);
                    let piece = &other[from..(from + self.below(32)).min(other.len())];
                    drop(made.splice(at..at, piece.iter().copied()));
                }
            }
        }
        made
    }
}

#[test]
fn the_corpus_and_changed_copies_break_no_target() {
    std::thread::scope(|scope| {
        for (name, target) in TARGETS {
            scope.spawn(move || {
                let kept = inputs(name);
                let take = |input: &[u8]| {
                    assert!(catch_unwind(|| target(input)).is_ok(), "{name} fails on {input:?}");
                };
                kept.iter().for_each(|input| take(input));
                let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
                for _ in 0..if SLOW.contains(name) { CHANGED_OF_SLOW } else { CHANGED } {
                    let (one, other) = (numbers.below(kept.len()), numbers.below(kept.len()));
                    take(&numbers.change(&kept[one], &kept[other]));
                }
            });
        }
    });
}

#[test]
fn every_folder_of_the_corpus_has_its_target() {
    let folders = std::fs::read_dir(corpus()).expect("the corpus can be read");
    for folder in folders {
        let name = folder.expect("the corpus can be read").file_name();
        let known = TARGETS.iter().any(|(target, _)| name.to_str() == Some(target));
        assert!(
            known || name == "configuration",
            "{name:?} is nobody's corpus (the configuration's is read by Python)"
        );
    }
}
