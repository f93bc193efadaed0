//! The XDP programs, run on single frames in maps of their own (BPF_PROG_TEST_RUN): input, verdict, counts, frame afterwards.
#![allow(clippy::expect_used, clippy::panic)]

mod build_for_arm64;
mod checksum;
mod conference;
mod frame;
mod own_mac;
mod path_mtu;
mod plane;
mod relaying;
mod source_filter;
