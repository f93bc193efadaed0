//! Conferences without I/O and without a clock: time is an input; rows of tables and RTCP are outputs.
//!
//! [`book`] owns all conferences: events go in, decisions come out. Its parts:
//!
//! | from | by | to |
//! | --- | --- | --- |
//! | joins, leaves, latched sources, levels | [`membership`] | a [`trees::Layout`] |
//! | who plays only one stream | [`mixing`] ([`jobs`]) | a mixer's input, and the receivers of its mixes |
//! | senders of video, mixers' reports | [`tiles`] | the owner and the mixer of each tile |
//! | receivers of tiled streams | [`tiling`] | which video each participant gets |
//! | a layout | [`migration`] ([`trees`], [`capacity`]) | ordered writes of planned rows ([`tables`]) |
//! | layouts of all conferences | [`planner`] | the steps of a round, and the data plane's contents |
//! | planned rows | [`rows`] with [`rewriting`] and [`payload_types`] | rows with addresses; [`diff`]: the steps to them |
//! | receivers' RTCP | [`adaptation`] ([`downlink`], [`best_downlink`], [`policy`]) | levels, and feedback for each sender |
//! | senders' RTCP, requests | [`reports`], [`key_frames`] | RTCP to forward at once |
//! | copies of packets, NACKs | [`repair`] ([`packets`], [`sequence`]) | retransmissions |
#![forbid(unsafe_code)]

pub mod account;
pub mod adaptation;
mod allocation;
pub mod best_downlink;
pub mod book;
pub mod capacity;
pub mod diff;
pub mod downlink;
pub mod frames;
pub mod ice;
pub mod jobs;
pub mod key_frames;
pub mod membership;
pub mod migration;
pub mod mixer;
pub mod mixing;
pub mod packets;
pub mod participant;
pub mod payload_types;
mod placement;
pub mod planner;
pub mod policy;
pub mod repair;
pub mod reports;
pub mod rewriting;
pub mod routes;
pub mod rows;
pub mod sequence;
pub mod tables;
pub mod tiles;
pub mod tiling;
pub mod trees;

pub use allocation::{Numbers, Reserved};
