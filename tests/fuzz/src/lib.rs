//! Targets that take any bytes: a target may fail only as the parser says it does; a panic, a hang or a broken promise is a finding.
//!
//! `cargo test` gives them the corpus and changed copies of it (tests/corpus.rs); `make fuzz` drives them by libFuzzer (program).

// A target reports a fault by a panic.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod control;
mod edge;
mod media;
mod mix;
mod ng;
mod sip;
mod tables;
mod tiling;

pub type Target = fn(&[u8]);

/// All targets, by the names of their folders in the corpus.
pub const TARGETS: &[(&str, Target)] = &[
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
