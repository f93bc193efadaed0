//! One program for all targets: FUZZ_TARGET names the one that libFuzzer drives. `tests/fuzz/run.py` starts it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_fuzz::{TARGETS, Target};
use std::sync::OnceLock;

fn target() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let Some((_, target)) = found else {
            let known: Vec<&str> = TARGETS.iter().map(|(known, _)| *known).collect();
            eprintln!("FUZZ_TARGET is {name:?}; one of these is wanted: {}", known.join(", "));
            std::process::exit(2);
        };
        *target
    })
}

fuzz_target!(|data: &[u8]| target()(data));
