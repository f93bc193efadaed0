//! One program for all targets: FUZZ_TARGET names the one that libFuzzer drives. `tests/fuzz/run.py` starts it.
//!
//! A target takes any bytes. It may fail only as the parser says it does; a panic, a hang or a broken promise is a finding.
#![no_main]

mod control;
mod edge;
mod media;
mod mix;
mod ng;
mod sip;
mod tables;
mod tiling;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("bfrt_schema", tables::schema),
    ("bfrt_write", tables::write),
    ("book", control::book),
    ("conference_rtcp", media::rtcp),
    ("conference_rtp", media::rtp),
    ("conference_stun", media::stun),
    ("edge", edge::edge),
    ("edge_layers", edge::layers),
    ("edge_srtcp", edge::srtcp),
    ("control_framing", control::framing),
    ("hep3", sip::hep),
    ("journal_row", tables::journal_row),
    ("mix_room", mix::room),
    ("ng_command", ng::command),
    ("ng_framing", ng::framing),
    ("ng_reply", ng::reply),
    ("ng_value", ng::value),
    ("rtpproxy_command", control::command),
    ("rtpproxy_reply", control::reply),
    ("sip_message", sip::message),
    ("tiling_h261", tiling::h261),
    ("tiling_h264", tiling::h264),
    ("tiling_h265", tiling::h265),
];

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
